//! The measured cases.

use anyhow::{Context as _, Result};
use common::packet::build::Frame;
use common::settings::Runtime;
use common::stream::StreamSettings;
use datapath::{Entry, FairLevel, FairLevels};
use host::clock;

use super::{Case, Sources, Subject};
use crate::policies::{
    Bucket, HOT, REFUSING, SLOW, SLOWEST, USUAL, WARM, algorithm, levels, limit, limits,
    limits_elsewhere, policy, policy_for, policy_without_exempt, prefixes, tiers,
};
use crate::programs::{Harness, Weir, minimal};

const XDP_DROP: u32 = 1;
const XDP_PASS: u32 = 2;
const TC_ACT_SHOT: u32 = 2;
const TC_ACT_UNSPEC: u32 = u32::MAX;

const DROP: &str = "drop only";
const MINIMAL: &str = "minimal, LRU hash";
const WEIR: &str = "weir";

fn ethernet(tag: Option<u16>) -> Frame {
    tag.map_or_else(Frame::ethernet, |id| Frame::ethernet().vlan(id))
}

fn ipv4(tag: Option<u16>) -> Vec<u8> {
    ethernet(tag)
        .ipv4([10, 0, 7, 5], [10, 9, 9, 9])
        .udp(7, 53, &[0; 22])
        .build()
}

fn ipv6() -> Vec<u8> {
    let address = |last| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, last];
    ethernet(None)
        .ipv6(address(1), address(2))
        .udp(7, 53, &[0; 22])
        .build()
}

/// Collects cases, and loads only those that are asked for.
struct Cases<'o> {
    only: &'o str,
    cases: Vec<Case>,
}

/// A case of which everything is known but the subject.
struct Row {
    name: String,
    sources: Sources,
    frame: Vec<u8>,
    verdict: Option<u32>,
}

fn row(name: impl Into<String>) -> Row {
    Row {
        name: name.into(),
        sources: Sources::One,
        frame: ipv4(None),
        verdict: Some(XDP_PASS),
    }
}

impl Row {
    fn of(self, frame: Vec<u8>) -> Self {
        Self { frame, ..self }
    }

    fn from(self, sources: Sources) -> Self {
        Self { sources, ..self }
    }

    fn ends(self, verdict: Option<u32>) -> Self {
        Self { verdict, ..self }
    }
}

impl Cases<'_> {
    fn add(
        &mut self,
        by: &'static str,
        row: Row,
        subject: impl FnOnce() -> Result<Subject>,
    ) -> Result<()> {
        // The cases that others are compared with, or that are subtracted, always run.
        let is_needed = by == DROP || row.name == "one limit, hot key";
        if is_needed || row.name.contains(self.only) {
            let subject = subject().with_context(|| format!("{} of {by}", row.name))?;
            let harness = Harness::load(0)?;
            let Row {
                name,
                sources,
                frame,
                verdict,
            } = row;
            self.cases.push(Case {
                name,
                by,
                subject,
                sources,
                frame,
                verdict,
                harness,
                repeat: 0,
                samples: Vec::new(),
            });
        }
        Ok(())
    }

    fn weir(&mut self, row: Row, tables: &str) -> Result<()> {
        self.add(WEIR, row, || loaded(&policy(tables), Entry::Xdp))
    }

    /// The same one limit for Weir and the minimal limiter.
    fn both(&mut self, row: impl Fn() -> Row, bucket: Bucket) -> Result<()> {
        self.weir(row(), &limit("a", bucket, ""))?;
        self.add(MINIMAL, row(), || {
            Ok(Subject::Minimal(minimal(
                bucket.emission_ns,
                bucket.tolerance_ns(),
            )?))
        })
    }
}

fn loaded(text: &str, entry: Entry) -> Result<Subject> {
    Ok(Subject::Weir(Box::new(Weir::load(text, entry)?), entry))
}

/// All cases that have `only` in their name.
pub fn all(only: &str) -> Result<Vec<Case>> {
    let mut cases = Cases {
        only,
        cases: Vec::new(),
    };
    floors(&mut cases)?;
    hot(&mut cases)?;
    many_sources(&mut cases)?;
    large_policies(&mut cases)?;
    by_tc(&mut cases)?;
    connections(&mut cases)?;
    sampled(&mut cases)?;
    fair(&mut cases)?;
    Ok(cases.cases)
}

/// Programs that only drop, alone and behind the generator.
fn floors(cases: &mut Cases<'_>) -> Result<()> {
    let drop = || Ok(Subject::Drop);
    cases.add(DROP, row("hot key").ends(Some(XDP_DROP)), drop)?;
    for keys in [1_000, 100_000, 1_000_000] {
        let row = row(format!("generator, {keys} keys"))
            .from(Sources::Random(keys))
            .ends(Some(XDP_DROP));
        cases.add(DROP, row, drop)?;
    }
    cases.add(
        DROP,
        row("generator, new keys")
            .from(Sources::New)
            .ends(Some(XDP_DROP)),
        drop,
    )
}

fn hot(cases: &mut Cases<'_>) -> Result<()> {
    cases.both(|| row("one limit, hot key"), HOT)?;
    let bare = |name: &str, row: Row, entry: Entry, cases: &mut Cases<'_>| {
        let row = Row {
            name: format!("{name}, no exempt address"),
            ..row
        };
        let text = policy_without_exempt(&limit("a", HOT, ""));
        cases.add(WEIR, row, || loaded(&text, entry))
    };
    bare("one limit, hot key", row(""), Entry::Xdp, cases)?;
    bare(
        "one limit, hot key, IPv6",
        row("").of(ipv6()),
        Entry::Xdp,
        cases,
    )?;
    bare(
        "one limit, hot key, by TC",
        row("").ends(Some(TC_ACT_UNSPEC)),
        Entry::Tc,
        cases,
    )?;
    cases.both(|| row("one limit, hot key, IPv6").of(ipv6()), HOT)?;
    cases.weir(
        row("one limit, hot key, VLAN").of(ipv4(Some(5))),
        &limit("a", HOT, ""),
    )?;
    cases.both(
        || row("one limit, hot key, refused").ends(Some(XDP_DROP)),
        REFUSING,
    )?;
    cases.weir(
        row("no limit matches"),
        &limit("a", HOT, "protocol = \"tcp\""),
    )?;
    for count in [2, 4, 8] {
        cases.weir(row(format!("{count} limits, hot key")), &limits(count, HOT))?;
    }
    for rates in [2, 4, 7] {
        cases.weir(
            row(format!("one limit of {rates} tiers, hot key")),
            &tiers(rates, HOT),
        )?;
    }
    for count in [1, 2, 3] {
        cases.weir(
            row(format!("one limit, hot key, levels: {count}")),
            &levels(count, HOT),
        )?;
    }
    cases.weir(
        row("4 limits, hot key, refused").ends(Some(XDP_DROP)),
        &limits(4, REFUSING),
    )?;
    for name in ["leaky-bucket", "fixed-window", "sliding-window"] {
        cases.weir(
            row(format!("{name}, hot key")),
            &algorithm(name, "1000000000000/day"),
        )?;
    }
    // A hot key would be refused, since no more than 1,024 packets are remembered; and so much for a million sources
    // would be 16 GiB.
    let log = policy_for(10_000, &algorithm("sliding-log", "1024/10ms"));
    let row = row("sliding-log, 1000 keys").from(Sources::Random(1_000));
    cases.add(WEIR, row, || loaded(&log, Entry::Xdp))
}

fn many_sources(cases: &mut Cases<'_>) -> Result<()> {
    let random = |keys| Sources::Random(keys);
    for (keys, bucket) in [(1_000, WARM), (100_000, SLOW), (1_000_000, SLOWEST)] {
        cases.both(
            || row(format!("one limit, {keys} keys")).from(random(keys)),
            bucket,
        )?;
    }
    let ipv6_row = || {
        row("one limit, 1000000 keys, IPv6")
            .of(ipv6())
            .from(random(1_000_000))
    };
    cases.both(ipv6_row, SLOWEST)?;
    // A key that was evicted meanwhile passes once more, so the last packet's verdict is not certain.
    let refused = || {
        row("one limit, 1000000 keys, refused")
            .from(random(1_000_000))
            .ends(None)
    };
    cases.both(refused, REFUSING)?;
    cases.both(|| row("one limit, new keys").from(Sources::New), USUAL)
}

fn large_policies(cases: &mut Cases<'_>) -> Result<()> {
    cases.weir(
        row("one of 10000 limits, hot key"),
        &(limit("a", HOT, "") + &limits_elsewhere(9_999)),
    )?;
    cases.weir(
        row("100000 prefixes, hot key"),
        &(limit("a", HOT, "") + &prefixes(100_000)),
    )?;
    let random = Sources::Random(1_000_000);
    cases.weir(
        row("100000 prefixes, 1000000 keys").from(random),
        &(limit("a", SLOWEST, "") + &prefixes(100_000)),
    )
}

fn by_tc(cases: &mut Cases<'_>) -> Result<()> {
    let name = "one limit, hot key, by TC";
    cases.add(DROP, row("hot key, by TC").ends(Some(TC_ACT_SHOT)), || {
        Ok(Subject::DropByTc)
    })?;
    cases.add(WEIR, row(name).ends(Some(TC_ACT_UNSPEC)), || {
        loaded(&policy(&limit("a", HOT, "")), Entry::Tc)
    })
}

/// SYNs under a rate of connections, and under a number of open ones.
fn connections(cases: &mut Cases<'_>) -> Result<()> {
    const CONNECTIONS: &str = "unit = \"connections\"";
    const OF_ALL: &str = "unit = \"connections\"\nkey = \"all\"";
    let concurrent = |most: u32, more: &str| {
        format!("[[limit]]\nname = \"a\"\nconcurrent = {most}\nunit = \"connections\"\n{more}\n")
    };
    let new = |name: &str| row(name).of(syn()).from(Sources::New);
    cases.weir(
        row("repeated SYN, a rate").of(syn()),
        &limit("a", HOT, CONNECTIONS),
    )?;
    cases.weir(
        row("repeated SYN, concurrent").of(syn()),
        &concurrent(50, ""),
    )?;
    cases.weir(
        new("SYN of a new source, a rate"),
        &limit("a", USUAL, CONNECTIONS),
    )?;
    cases.weir(new("SYN of a new source, concurrent"), &concurrent(50, ""))?;
    let refused = |name: &str| new(name).ends(Some(XDP_DROP));
    cases.weir(
        refused("SYN of a new source, refused, a rate"),
        &limit("a", REFUSING, OF_ALL),
    )?;
    cases.weir(
        refused("SYN of a new source, refused, concurrent"),
        &concurrent(1, "key = \"all\""),
    )
}

fn syn() -> Vec<u8> {
    const SYN: u8 = 2;
    ethernet(None)
        .ipv4([10, 0, 7, 5], [10, 9, 9, 9])
        .tcp(7, 80, SYN, b"")
        .build()
}

/// A host with a million packets a second, whose sources `weir top --by prefix` samples.
fn sampled(cases: &mut Cases<'_>) -> Result<()> {
    cases.add(
        WEIR,
        row("one limit, hot key, one packet in 250 sampled"),
        || {
            let mut weir = Weir::load(&policy(&limit("a", HOT, "")), Entry::Xdp)?;
            weir.datapath.stream().open()?;
            let stream = StreamSettings {
                until: u64::MAX,
                one_in: 250,
                unused: 0,
            };
            weir.datapath.set_runtime(Runtime {
                stream,
                ..Runtime::default()
            })?;
            Ok(Subject::Weir(Box::new(weir), Entry::Xdp))
        },
    )
}

/// A fair limit beside another one: off, at a level of sources, and at those of networks and of all, too.
fn fair(cases: &mut Cases<'_>) -> Result<()> {
    // More than one CPU can send.
    let level = Some(FairLevel {
        rate: 1e9,
        burst: 1e6,
    });
    let levels = |wider: [Option<FairLevel>; 2]| FairLevels {
        source: level,
        wider,
    };
    let off = FairLevels::default();
    let networks = "levels = [{ prefix = \"24/48\" }, { key = \"all\" }]";
    for (name, more, levels) in [
        ("off", "", off),
        ("with levels, off", networks, off),
        ("at a level", "", levels([None, None])),
        ("with levels, of sources alone", networks, levels([None; 2])),
        ("with levels, of networks", networks, levels([level, None])),
        ("with levels, of all", networks, levels([level, level])),
    ] {
        let row = row(format!("one limit, hot key, a fair one {name}"));
        let text = policy(&format!(
            "{}[[limit]]\nname = \"fair\"\nrate = \"fair\"\n{more}\n",
            limit("a", HOT, "")
        ));
        cases.add(WEIR, row, || {
            let weir = Weir::load(&text, Entry::Xdp)?;
            // For longer than it is measured.
            let from = clock::monotonic_nanoseconds() + 3_600_000_000_000;
            let config = config::parse("limits.toml".as_ref(), &text);
            let config = config.map_err(|report| anyhow::anyhow!("{report}"))?.config;
            let mut handles = weir.datapath.fair_handles(&config)?;
            handles[0].set_levels_at(levels, from);
            Ok(Subject::Weir(Box::new(weir), Entry::Xdp))
        })?;
    }
    Ok(())
}
