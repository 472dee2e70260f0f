//! A list of a million banned prefixes, beside a set of nftables with intervals (CrowdSec's bouncer for nftables fills
//! such sets): how long loading takes, packets over veth with and without the list, and the memory of a prefix.
//!
//! Sources are a thousand, or all new and spread over a quarter of the list; few are on it. There is a prefix in one of
//! eight /24s, so that an eighth of the packets pass the list's filter and search the trees. A limit on all sources
//! together refuses what the list does not: a packet's other costs are small, and the same with and without the list.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use common::list::build::build_lists;
use config::policy::{Attach, ListFormat};
use datapath::{Entry, ListMap};
use testbed::measure::{Series, pin};

use crate::flood::{CPU, frame, send, timed};
use crate::network::{INTERFACE, Lane, Sender};
use crate::policies::policy;
use crate::programs::{Harness, Order, Weir};
use crate::rivals::{Rival, nft};

const PART: &str = "lists";
const PREFIXES: u32 = 1_000_000;
/// The addresses between the starts of two stretches with one prefix each.
const STRETCH: u32 = 2_048;
/// The first stretch.
const FIRST: u32 = u32::from_be_bytes([10, 0, 0, 0]);
/// Packets of a sample.
const PACKETS: u32 = 100_000;
const RIVALS: [Rival; 3] = [Rival::WeirXdp, Rival::WeirTc, Rival::NftablesIngress];
/// The sources of packets.
const SOURCES: [(&str, Order, u64); 2] = [
    ("1000 sources", Order::Random, 1_000),
    ("every packet a new source", Order::New, Order::MOST_NEW),
];
const LIMIT: &str = "[[limit]]\nname = \"a\"\nrate = \"1/h\"\nburst = 1\nipv4_prefix = 0\n";
const LIST: &str = "[[ban_list]]\nname = \"l\"\nfile = \"/dev/null\"\n";

/// A lane that a rival protects. Fields are dropped in this order.
struct Listed {
    _weir: Option<(Weir, Option<ListMap>)>,
    harness: Harness,
    _lane: Lane,
}

/// Measures everything that has `only` in its name.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let prefixes = prefixes();
    let mut series = Vec::new();
    if "loading".contains(only) {
        series.extend(loading(rounds, &prefixes)?);
    }
    if "packets".contains(only) {
        series.extend(packets(rounds, &prefixes)?);
    }
    Ok(series)
}

/// Prefixes in ascending order without overlaps: of five, three are addresses, one is a /28 and one a /24, each somewhere
/// in its stretch.
fn prefixes() -> Vec<(Ipv4Addr, u8)> {
    (0..PREFIXES)
        .map(|nth| {
            let length = [32, 32, 28, 32, 24][nth as usize % 5];
            let size = 1 << (32 - u32::from(length));
            let nth_place = (nth.wrapping_mul(0x9e37_79b1) >> 16) % (STRETCH / size);
            (
                Ipv4Addr::from(FIRST + nth * STRETCH + nth_place * size),
                length,
            )
        })
        .collect()
}

fn text(prefixes: &[(Ipv4Addr, u8)], separator: &str) -> String {
    let mut text = String::with_capacity(prefixes.len() * 20);
    for (address, length) in prefixes {
        let _ = write!(text, "{address}/{length}{separator}");
    }
    text
}

/// From the text of a list to a map that the kernel's program can use.
fn weir_list(text: &str) -> Result<ListMap> {
    let parsed = lists::parse(text.as_bytes(), &ListFormat::Plain)
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    let dated = lists::dated(&parsed.prefixes, &[], 0);
    ListMap::create(&build_lists(lists::merge(&[&dated], &[])))
        .context("creating the map of a list")
}

/// A chain that refuses everything, the sources of a set first.
fn nft_script(elements: Option<&str>) -> String {
    let (set, rule) = elements.map_or_else(Default::default, |elements| {
        (
            format!(
                "set blocked {{\ntype ipv4_addr\nflags interval\nelements = {{ {elements} }}\n}}\n"
            ),
            "ip saddr @blocked drop\n",
        )
    });
    format!(
        "table netdev bench {{\n{set}chain hold {{\n\
         type filter hook ingress device {INTERFACE} priority 0; policy accept;\n\
         {rule}limit rate over 1/hour burst 1 packets drop\n}}\n}}\n"
    )
}

/// Milliseconds from a list's text until it is in effect, and bytes of kernel memory for each prefix.
fn loading(rounds: usize, prefixes: &[(Ipv4Addr, u8)]) -> Result<Vec<Series>> {
    let (lines, script) = (
        text(prefixes, "\n"),
        nft_script(Some(&text(prefixes, ", "))),
    );
    let case = "a million prefixes, from text to in effect";
    let [weir, nftables] = [Rival::WeirXdp, Rival::NftablesIngress].map(Rival::name);
    let (mut ours, mut theirs) = (
        Series::new(PART, case, weir, "ms"),
        Series::new(PART, case, nftables, "ms"),
    );
    let case = "a million prefixes";
    let mut our_bytes = Series::new(PART, case, weir, "bytes a prefix");
    let mut their_bytes = Series::new(PART, case, nftables, "bytes a prefix");
    let sender = Sender::new()?;
    for _ in 0..rounds {
        let mut loaded = Weir::load(&policy(&format!("{LIST}{LIMIT}")), Entry::Xdp)?;
        let start = Instant::now();
        let map = weir_list(&lines)?;
        loaded.datapath.set_lists(Some(&map))?;
        ours.samples.push(start.elapsed().as_secs_f64() * 1e3);
        our_bytes
            .samples
            .push(map.bytes() as f64 / f64::from(PREFIXES));
        drop((loaded, map));
        let lane = sender.lane()?;
        let before = crate::memory::settled()?;
        let start = Instant::now();
        nft(&lane, &script)?;
        theirs.samples.push(start.elapsed().as_secs_f64() * 1e3);
        their_bytes
            .samples
            .push((crate::memory::settled()? - before) / f64::from(PREFIXES));
    }
    Ok(vec![ours, theirs, our_bytes, their_bytes])
}

/// Packets with and without the list, in turns, and what the list costs of one.
fn packets(rounds: usize, prefixes: &[(Ipv4Addr, u8)]) -> Result<Vec<Series>> {
    let (lines, elements) = (text(prefixes, "\n"), text(prefixes, ", "));
    let sender = Sender::new()?;
    sender.enter()?;
    pin(CPU)?;
    let mut pairs = Vec::new();
    for rival in RIVALS {
        let new = |list| Listed::new(&sender, rival, list).with_context(|| rival.name().to_owned());
        pairs.push([new(None)?, new(Some((lines.as_str(), elements.as_str())))?]);
        eprintln!("prepared   {} with a list", rival.name());
    }
    let mut series = Vec::new();
    for (sources, order, keys) in SOURCES {
        for listed in pairs.iter_mut().flatten() {
            listed.harness.walk(order, keys)?;
            send(&listed.harness, &frame(), PACKETS)?;
        }
        let mut costs = RIVALS.map(|rival| {
            [
                "without a list",
                "with a million prefixes",
                "the list's part",
            ]
            .map(|case| {
                Series::new(
                    PART,
                    format!("{sources}, {case}"),
                    rival.name(),
                    "ns a packet",
                )
            })
        });
        for _ in 0..rounds {
            for (pair, costs) in pairs.iter().zip(&mut costs) {
                let [without, with] = [timed_packet(&pair[0])?, timed_packet(&pair[1])?];
                for (series, sample) in costs.iter_mut().zip([without, with, with - without]) {
                    series.samples.push(sample);
                }
            }
        }
        series.extend(costs.into_iter().flatten());
    }
    Ok(series)
}

/// Nanoseconds a packet.
fn timed_packet(listed: &Listed) -> Result<f64> {
    let frame = frame();
    // Caches are this one's again before anything counts.
    send(&listed.harness, &frame, PACKETS / 8)?;
    Ok(timed(&listed.harness, &frame, PACKETS)?.as_nanos() as f64 / f64::from(PACKETS))
}

impl Listed {
    /// `list` is its text as lines, and as elements of a set.
    fn new(sender: &Sender, rival: Rival, list: Option<(&str, &str)>) -> Result<Self> {
        let lane = sender.lane()?;
        let weir = match rival {
            Rival::NftablesIngress => {
                nft(&lane, &nft_script(list.map(|(_, elements)| elements)))?;
                None
            }
            _ => {
                let (entry, attach) = match rival {
                    Rival::WeirTc => (Entry::Tc, Attach::Tc),
                    _ => (Entry::Xdp, Attach::Native),
                };
                let table = if list.is_some() { LIST } else { "" };
                let mut weir = Weir::load(&policy(&format!("{table}{LIMIT}")), entry)?;
                let map = list.map(|(lines, _)| weir_list(lines)).transpose()?;
                weir.datapath.set_lists(map.as_ref())?;
                lane.inside(|| weir.datapath.attach(INTERFACE, attach))??;
                Some((weir, map))
            }
        };
        Ok(Self {
            _weir: weir,
            harness: Harness::load(lane.from_index)?,
            _lane: lane,
        })
    }
}
