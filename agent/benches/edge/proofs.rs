//! The CPU time of forged SYNs and ACKs to a listener with SYN cookies: Weir's proofs, the kernel's own cookies, and
//! nftables' synproxy.
//!
//! The sender is that of [`crate::flood`], and sending, delivery, the reply and its delivery are on one CPU. At the other end,
//! replies are dropped where this costs least: in the driver if they arrive as frames, else before the network stack.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::programs::xdp::XdpMode;
use common::packet::build::Frame;
use config::policy::Attach;
use testbed::measure::{Series, pin};

use crate::flood::{CPU, PORT, REFUSING, timed};
use crate::network::{INTERFACE, Lane, RECEIVER, RECEIVER_MAC, Sender};
use crate::policies;
use crate::programs::{Harness, Order, Weir};
use crate::rivals::{Holding, Rival, nft, weir};

const PART: &str = "proofs";
const NANOSECONDS: &str = "ns";
const OVER_A_DROP: &str = "ns over a bare drop";
/// Half of what the table has room for, so that none is evicted.
const SOURCES: u64 = 500_000;
/// SYNs of a sample: with those before it, fewer than Weir answers at once.
const SYNS: u32 = 32_000;
/// Packets of any other sample.
const PACKETS: u32 = 200_000;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// The receivers of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    DropOnly,
    DropByTc,
    Weir(Attach),
    /// Weir with proofs by resets, in native XDP.
    WeirResets,
    Kernel,
    Synproxy,
}

impl By {
    const ANSWERING: [Self; 7] = [
        Self::DropOnly,
        Self::DropByTc,
        Self::Weir(Attach::Native),
        Self::Weir(Attach::Tc),
        Self::Kernel,
        Self::Synproxy,
        // The last one, since it has nothing to do with ACKs.
        Self::WeirResets,
    ];
    const WEIR: [Self; 2] = [Self::Weir(Attach::Native), Self::Weir(Attach::Tc)];

    const fn name(self) -> &'static str {
        match self {
            Self::DropOnly => Rival::DropOnly.name(),
            Self::DropByTc => "drop only, by TC",
            Self::Weir(Attach::Tc) => Rival::WeirTc.name(),
            Self::Weir(_) => Rival::WeirXdp.name(),
            Self::WeirResets => "weir, resets",
            Self::Kernel => "the kernel's cookies",
            Self::Synproxy => "nftables' synproxy",
        }
    }
}

/// Something that holds a lane's interface. Fields are dropped in this order.
struct Receiver {
    by: By,
    _programs: Programs,
    harness: Harness,
    _listener: TcpListener,
    lane: Lane,
}

#[expect(dead_code, reason = "held for what dropping it does")]
enum Programs {
    None,
    Drop(Holding),
    DropByTc(Box<Harness>),
    Weir(Box<Weir>),
}

impl Receiver {
    /// With a listener whose kernel answers each SYN by a cookie. `tables` are those of Weir's policy.
    fn new(sender: &Sender, by: By, tables: &str) -> Result<Self> {
        let lane = sender.lane()?;
        lane.route_by_neighbour()?;
        let listener = lane.inside(|| -> Result<TcpListener> {
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2")
                .context("setting tcp_syncookies")?;
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).context("binding the listener")
        })??;
        let programs = match by {
            By::DropOnly => Programs::Drop(Rival::DropOnly.hold(&lane, REFUSING)?),
            By::DropByTc => {
                let mut harness = Harness::load(lane.from_index)?;
                lane.inside(|| harness.attach_drop_by_tc(INTERFACE))??;
                Programs::DropByTc(Box::new(harness))
            }
            By::Weir(attach) => Programs::Weir(Box::new(weir(&lane, tables, attach)?)),
            By::WeirResets => Programs::Weir(Box::new(weir(&lane, tables, Attach::Native)?)),
            By::Kernel => Programs::None,
            By::Synproxy => synproxy(&lane).map(|()| Programs::None)?,
        };
        let mut harness = Harness::load(lane.from_index)?;
        if matches!(by, By::Weir(Attach::Native) | By::WeirResets) {
            harness
                .xdp_mut("drop")?
                .attach(&lane.from, XdpMode::Driver)
                .context("attaching the other end's program")?;
        } else {
            harness.attach_drop_by_tc(&lane.from)?;
        }
        harness.walk(Order::Random, SOURCES)?;
        Ok(Self {
            by,
            _programs: programs,
            harness,
            _listener: listener,
            lane,
        })
    }
}

/// The rules of nft's manual.
fn synproxy(lane: &Lane) -> Result<()> {
    lane.inside(|| std::fs::write("/proc/sys/net/netfilter/nf_conntrack_tcp_loose", "0"))?
        .context("setting nf_conntrack_tcp_loose")?;
    let script = format!(
        "table ip bench {{\n\
         chain untracked {{\ntype filter hook prerouting priority raw; policy accept;\n\
         tcp dport {PORT} tcp flags syn notrack\n}}\n\
         chain proven {{\ntype filter hook input priority filter; policy accept;\n\
         tcp dport {PORT} ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm\n\
         ct state invalid drop\n}}\n}}\n"
    );
    nft(lane, &script)
}

/// A kind of packet, at one of the receivers.
struct Row {
    case: &'static str,
    by: By,
    receiver: usize,
    flags: u8,
    packets: u32,
    samples: Vec<f64>,
}

/// Measures every receiver under floods that have `only` in their name.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    pin(CPU)?;
    let proving = |prove: &str| {
        policies::limit(
            "a",
            policies::USUAL,
            &format!("protocol = \"tcp\"\nunit = \"connections\"\nprove = {prove}"),
        )
    };
    let (cookies, resets) = (proving("true"), proving("\"reset\""));
    let refusing = policies::limit("a", policies::REFUSING, "");
    let answering = By::ANSWERING.map(|by| {
        (
            by,
            if by == By::WeirResets {
                &resets
            } else {
                &cookies
            },
        )
    });
    let all = answering
        .into_iter()
        .chain(By::WEIR.map(|by| (by, &refusing)));
    let mut receivers: Vec<Receiver> = all
        .map(|(by, tables)| Receiver::new(&sender, by, tables).with_context(|| by.name()))
        .collect::<Result<_>>()?;
    let refusing = By::ANSWERING.len()..receivers.len();
    let mut rows = Vec::new();
    for (case, flags, packets, of) in [
        ("forged SYNs", SYN, SYNS, 0..refusing.start),
        ("forged ACKs", ACK, PACKETS, 0..refusing.start - 1),
        ("ACKs above a limit", ACK, PACKETS, refusing.clone()),
    ] {
        if case.contains(only) {
            let row = |receiver: usize| {
                let by = receivers[receiver].by;
                Row {
                    case,
                    by,
                    receiver,
                    flags,
                    packets,
                    samples: Vec::new(),
                }
            };
            rows.extend(of.map(row));
        }
    }
    // The first packet of each source passes.
    let is_measured = |nth: &usize| rows.iter().any(|row| row.receiver == *nth);
    for nth in refusing.filter(is_measured) {
        let receiver = &mut receivers[nth];
        receiver.harness.walk(Order::Orderly, SOURCES)?;
        receiver.send(ACK, 2 * SOURCES as u32)?;
        receiver.harness.walk(Order::Random, SOURCES)?;
    }
    for _ in 0..rounds {
        for row in &mut rows {
            let sample = row.turn(&mut receivers[row.receiver]);
            row.samples
                .push(sample.with_context(|| format!("{}: {}", row.by.name(), row.case))?);
        }
    }
    Ok(rows
        .iter()
        .map(|row| row.series(NANOSECONDS, row.samples.clone()))
        .chain(over_a_drop(&rows))
        .collect())
}

/// The same, over what the program that only drops takes in the same round.
fn over_a_drop(rows: &[Row]) -> impl Iterator<Item = Series> {
    rows.iter()
        .filter(|row| row.by != By::DropOnly)
        .filter_map(|row| {
            let drop = rows
                .iter()
                .find(|drop| drop.case == row.case && drop.by == By::DropOnly)?;
            let over = row
                .samples
                .iter()
                .zip(&drop.samples)
                .map(|(time, drop)| time - drop)
                .collect();
            Some(row.series(OVER_A_DROP, over))
        })
}

impl Receiver {
    /// Sends it so many segments, and returns what that took of this CPU.
    fn send(&mut self, flags: u8, packets: u32) -> Result<Duration> {
        let frame = frame(flags);
        self.harness.renew(&frame)?;
        timed(&self.harness, &frame, packets)
    }

    /// Replies, and packets that reached a protocol.
    fn counts(&self) -> Result<(u64, u64)> {
        Ok((self.lane.answered()?, self.lane.received()?.0))
    }

    /// Whether it replies to forged segments.
    const fn replies(&self, flags: u8) -> bool {
        match self.by {
            By::DropOnly | By::DropByTc => false,
            By::Kernel => true,
            By::Weir(_) | By::WeirResets | By::Synproxy => flags == SYN,
        }
    }
}

impl Row {
    /// Nanoseconds a packet.
    fn turn(&self, receiver: &mut Receiver) -> Result<f64> {
        if self.flags == ACK {
            // Cookies are in use.
            receiver.send(SYN, 64)?;
        }
        // Caches are this one's again before anything counts.
        receiver.send(self.flags, self.packets / 8)?;
        let before = receiver.counts()?;
        let time = receiver.send(self.flags, self.packets)?;
        let after = receiver.counts()?;
        let (replies, delivered) = (after.0 - before.0, after.1 - before.1);
        let (few, most) = (
            u64::from(self.packets / 100),
            u64::from(self.packets / 100 * 99),
        );
        let is_as_expected = if receiver.replies(self.flags) {
            replies >= most
        } else {
            replies <= few
        };
        ensure!(
            is_as_expected,
            "{replies} replies to {} packets",
            self.packets
        );
        ensure!(
            !matches!(self.by, By::Weir(_) | By::WeirResets) || delivered <= few,
            "{delivered} of {} packets passed",
            self.packets
        );
        Ok(time.as_nanos() as f64 / f64::from(self.packets))
    }

    fn series(&self, unit: &'static str, samples: Vec<f64>) -> Series {
        Series::new(PART, self.case, self.by.name(), unit).with(samples)
    }
}

/// A segment to the listener, whose source the sending program fills in.
fn frame(flags: u8) -> Vec<u8> {
    Frame::between([2, 0, 0, 0, 0, 1], RECEIVER_MAC)
        .ipv4([10, 0, 0, 0], RECEIVER)
        .tcp(4_000, PORT, flags, b"")
        .build()
}
