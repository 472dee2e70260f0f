//! The alternatives that a user would choose from, each with the same rate and burst for every source.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::programs::Xdp;
use aya::programs::xdp::XdpMode;
use config::policy::Attach;
use datapath::{Entry, OwnAddresses};

use crate::network::{INTERFACE, Lane};
use crate::policies::policy;
use crate::programs::{Harness, Weir, minimal};

/// The limit on each source.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    pub count: u32,
    pub per: Per,
    pub burst: u32,
}

/// The times that all of them know.
#[derive(Clone, Copy, Debug)]
pub enum Per {
    Second,
    Minute,
    Hour,
}

impl Per {
    const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
        }
    }

    const fn nanoseconds(self) -> u64 {
        match self {
            Self::Second => 1_000_000_000,
            Self::Minute => 60_000_000_000,
            Self::Hour => 3_600_000_000_000,
        }
    }

    /// As in limits.toml.
    const fn unit(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "min",
            Self::Hour => "h",
        }
    }
}

/// The programs that can be attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rival {
    /// Nothing.
    Nothing,
    /// A program that only passes.
    PassOnly,
    /// A program that only drops.
    DropOnly,
    Minimal,
    WeirXdp,
    WeirTc,
    NftablesIngress,
    NftablesInput,
    HashlimitRaw,
    HashlimitInput,
}

/// As many sources as anybody has to remember, with some room: an LRU hash evicts before it is full.
const MOST_SOURCES: u32 = 1 << 20;

impl Rival {
    /// The limiters.
    pub const LIMITERS: [Self; 7] = [
        Self::WeirXdp,
        Self::WeirTc,
        Self::Minimal,
        Self::NftablesIngress,
        Self::NftablesInput,
        Self::HashlimitRaw,
        Self::HashlimitInput,
    ];

    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::PassOnly => "pass only",
            Self::DropOnly => "drop only",
            Self::Minimal => "minimal, LRU hash",
            Self::WeirXdp => "weir",
            Self::WeirTc => "weir by TC",
            Self::NftablesIngress => "nftables at ingress",
            Self::NftablesInput => "nftables at input",
            Self::HashlimitRaw => "hashlimit in raw",
            Self::HashlimitInput => "hashlimit at input",
        }
    }
}

/// A rival that holds an interface until it is dropped.
pub struct Holding {
    _programs: Programs,
}

/// Resources that are released on drop; the namespace takes nftables and iptables rules with it.
#[expect(dead_code, reason = "held for what dropping it does")]
enum Programs {
    None,
    Harness(Box<Harness>),
    Minimal(Box<Ebpf>),
    Weir(Box<Weir>),
}

impl Rival {
    /// Has it hold the lane's interface.
    pub fn hold(self, lane: &Lane, limit: Limit) -> Result<Holding> {
        self.try_hold(lane, limit)
            .map(|programs| Holding {
                _programs: programs,
            })
            .with_context(|| self.name().to_owned())
    }

    fn try_hold(self, lane: &Lane, limit: Limit) -> Result<Programs> {
        match self {
            Self::Nothing => Ok(Programs::None),
            Self::PassOnly | Self::DropOnly => {
                let mut harness = Harness::load(lane.from_index)?;
                let program = harness.xdp_mut(if self == Self::DropOnly {
                    "drop"
                } else {
                    "pass"
                })?;
                lane.inside(|| attach(program))??;
                Ok(Programs::Harness(Box::new(harness)))
            }
            Self::Minimal => {
                let emission = limit.per.nanoseconds() / u64::from(limit.count);
                let mut ebpf = minimal(emission, emission * u64::from(limit.burst - 1))?;
                let program: &mut Xdp = ebpf
                    .program_mut("minimal")
                    .context("there is no minimal")?
                    .try_into()?;
                lane.inside(|| attach(program))??;
                Ok(Programs::Minimal(Box::new(ebpf)))
            }
            Self::WeirXdp => weir_with(lane, limit, Attach::Native),
            Self::WeirTc => weir_with(lane, limit, Attach::Tc),
            Self::NftablesIngress => nftables(
                lane,
                limit,
                "netdev",
                &format!("ingress device {INTERFACE}"),
            ),
            Self::NftablesInput => nftables(lane, limit, "ip", "input"),
            Self::HashlimitRaw => hashlimit(lane, limit, "raw", "PREROUTING"),
            Self::HashlimitInput => hashlimit(lane, limit, "filter", "INPUT"),
        }
    }
}

fn attach(program: &mut Xdp) -> Result<()> {
    program
        .attach(INTERFACE, XdpMode::Driver)
        .context("attaching")?;
    Ok(())
}

fn weir_with(lane: &Lane, limit: Limit, attach: Attach) -> Result<Programs> {
    let (count, unit, burst) = (limit.count, limit.per.unit(), limit.burst);
    let tables = format!("[[limit]]\nname = \"a\"\nrate = \"{count}/{unit}\"\nburst = {burst}\n");
    Ok(Programs::Weir(Box::new(weir(lane, &tables, attach)?)))
}

/// Weir with a policy of these tables on the lane's interface, as an agent in the lane would have it.
pub fn weir(lane: &Lane, tables: &str, attach: Attach) -> Result<Weir> {
    let entry = if attach == Attach::Tc {
        Entry::Tc
    } else {
        Entry::Xdp
    };
    lane.inside(|| {
        let mut weir = Weir::load(&policy(tables), entry)?;
        if weir.datapath.replies() {
            weir.datapath.set_own(OwnAddresses::read()?)?;
        }
        weir.datapath.attach(INTERFACE, attach)?;
        Ok(weir)
    })?
}

fn nftables(lane: &Lane, limit: Limit, family: &str, hook: &str) -> Result<Programs> {
    let Limit { count, per, burst } = limit;
    let script = format!(
        "table {family} bench {{\n\
         set sources {{\ntype ipv4_addr\nflags dynamic\nsize {MOST_SOURCES}\ntimeout 1h\n}}\n\
         chain hold {{\ntype filter hook {hook} priority 0; policy accept;\n\
         update @sources {{ ip saddr limit rate over {count}/{} burst {burst} packets }} drop\n}}\n}}\n",
        per.name()
    );
    nft(lane, &script)?;
    Ok(Programs::None)
}

/// Runs a script of nft in a lane.
pub fn nft(lane: &Lane, script: &str) -> Result<()> {
    let mut nft = Command::new("nsenter")
        .args([
            &format!("--net=/run/netns/{}", lane.namespace),
            "nft",
            "-f",
            "-",
        ])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting nft")?;
    nft.stdin
        .take()
        .context("nft takes no input")?
        .write_all(script.as_bytes())
        .context("writing to nft")?;
    let output = nft.wait_with_output()?;
    ensure!(
        output.status.success(),
        "nft: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

fn hashlimit(lane: &Lane, limit: Limit, table: &str, chain: &str) -> Result<Programs> {
    let rate = format!("{}/{}", limit.count, limit.per.name());
    let (burst, most) = (limit.burst.to_string(), MOST_SOURCES.to_string());
    // The iptables that is xtables itself, and not a front end of nftables.
    let rule = [
        "-t",
        table,
        "-A",
        chain,
        "-i",
        INTERFACE,
        "-m",
        "hashlimit",
        "--hashlimit-name",
        "bench",
    ];
    let held = [
        "--hashlimit-above",
        &rate,
        "--hashlimit-burst",
        &burst,
        "--hashlimit-mode",
        "srcip",
    ];
    let size = [
        "--hashlimit-htable-size",
        &most,
        "--hashlimit-htable-max",
        &most,
        "-j",
        "DROP",
    ];
    lane.run("iptables-legacy", &[&rule[..], &held, &size].concat())?;
    Ok(Programs::None)
}
