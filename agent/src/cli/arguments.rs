//! Command-line arguments. `options` resolves the config and the control socket.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use api::capture::{CaptureOf, SAMPLES};
use api::heavy_prefixes::SHARES;
use clap::{Args, Parser, Subcommand, ValueEnum};
use config::{human, units};
use decide::{OnExpiry, ReserveTime, Wait};
use host::PROGRAM;
use ipnet::IpNet;
use rollout::canary::{NotAShare, Share};
use rollout::document::{LONGEST_BAKE, SHORTEST_BAKE};

use super::names::{Named, names};
use super::until;
use crate::import::Format;
use crate::log::{LogFormat, LogLevel};

/// Weir: per-source rate limits in the kernel, and resource limits for process groups
#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    arg_required_else_help = true,
    max_term_width = 100
)]
#[command(
    after_help = "weir --config FILE is short for weir run --config FILE.\n\n\
    Exit status: 0 done; 1 failed while running; 2 wrong usage or config (nothing was changed)."
)]
pub struct Cli {
    /// The verb; `weir --config FILE` without one runs the agent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options that are valid before and after the verb.
    #[command(flatten)]
    pub options: Options,
}

/// Options of all verbs.
#[derive(Clone, Debug, Default, Args)]
pub struct Options {
    /// The config; without it, WEIR_CONFIG, then /etc/weir/limits.toml where that exists
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The running agent's control socket; without it, WEIR_CONTROL, then the config's [agent] control
    #[arg(long, global = true, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// The agent's log: error, warn, info (default) or debug
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        value_enum,
        hide_possible_values = true
    )]
    pub log_level: Option<LogLevel>,
    /// The format of the agent's log: text (default) or json, one object a line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        value_enum,
        hide_possible_values = true
    )]
    pub log_format: Option<LogFormat>,
}

/// A config by position: `weir check FILE` is `weir check --config FILE`.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigFile {
    /// The config, as --config names it
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// A duration with its unit, or a bare number of seconds, as for `timeout` and `sleep`.
fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs);
    let duration = seconds.ok().or_else(|| units::span(text));
    duration.ok_or_else(|| "write seconds, or a time such as 10m or 2h30m".to_owned())
}

/// Parses the time of a trial.
fn bake(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if !(SHORTEST_BAKE..=LONGEST_BAKE).contains(&time) {
        let [shortest, longest] = [SHORTEST_BAKE, LONGEST_BAKE].map(human::time);
        return Err(format!("write a time from {shortest} to {longest}"));
    }
    Ok(time)
}

/// Parses whole days.
fn days(text: &str) -> Result<u64, &'static str> {
    const DAY: u64 = 24 * 60 * 60;
    let whole = units::span(text)
        .filter(|time| time.subsec_nanos() == 0 && time.as_secs().is_multiple_of(DAY));
    let days = whole.map(|time| time.as_secs() / DAY);
    days.filter(|days| (1..=36_500).contains(days))
        .ok_or("write whole days, such as 7d")
}

/// Parses a sample: one in so many.
fn sample(text: &str) -> Result<u32, &'static str> {
    let number = text
        .strip_prefix("1/")
        .and_then(|number| number.parse().ok());
    number
        .filter(|number| SAMPLES.contains(number))
        .ok_or("write 1/1 for all sources, or from 1/2 to 1/1000000")
}

/// Parses a share of the packets.
fn share(text: &str) -> Result<f64, &'static str> {
    let percent: Option<f64> = text
        .strip_suffix('%')
        .unwrap_or(text)
        .trim_end()
        .parse()
        .ok();
    let share = percent
        .map(|percent| percent / 100.0)
        .filter(|share| SHARES.contains(share));
    share.ok_or("write a percentage from 0.1% to 100%")
}

/// `weir notify test`.
#[derive(Debug, Subcommand)]
pub enum NotifyCommand {
    /// Send a notification about nothing, and report whether it was delivered; exits with 1 if one was not
    Test {
        /// The name of the [[notify]]; without it, each one is tested
        #[arg(value_name = "NAME", add = names(Named::Receivers))]
        name: Option<String>,
    },
}

/// The place of a fleet's rules.
#[derive(Clone, Debug, Args)]
pub struct FleetPlace {
    /// The store and the stream in it, as [fleet] rules has it; without it, that of the config
    #[arg(long = "to", value_name = "ADDRESS")]
    pub place: Option<String>,
}

/// A publisher's key.
#[derive(Clone, Debug, Args)]
pub struct FleetKey {
    /// The secret key, a key file of weir fleet keygen or minisign -G
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// A file with the key's password, if it has one
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The publisher's name; default: your user name
    #[arg(long, value_name = "NAME")]
    pub publisher: Option<String>,
}

/// A release of `weir fleet publish`.
#[derive(Clone, Debug, Args)]
pub struct FleetRelease {
    /// The rules: limits, classes, ban lists, groups and requests as in limits.toml, and no other tables; or a folder with
    /// rules.toml and limits/NAME.toml, one limit each
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    #[command(flatten)]
    pub place: FleetPlace,
    #[command(flatten)]
    pub key: FleetKey,
    /// The share of the hosts that try the rules first, at least one
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    pub canary: Share,
    /// How long each host checks its health before it keeps the rules, from 10s to 7d
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = bake)]
    pub bake: Duration,
    /// How long hosts may begin with the rules; in effect they stay
    #[arg(long, value_name = "TIME", default_value = "30d", value_parser = duration)]
    pub expires: Duration,
    /// Only for hosts with this label; may be repeated
    #[arg(long, value_name = "LABEL=VALUE", value_parser = pair)]
    pub select: Vec<(String, String)>,
    /// The most that a limit is expected to refuse, such as web=5%; may be repeated. Without it, hosts expect of a limit
    /// what it refused in the last hour, and of a new one nothing
    #[arg(long, value_name = "LIMIT=PERCENT", value_parser = expected)]
    pub expect: Vec<(String, Share)>,
    #[command(flatten)]
    pub records: FleetRecords,
    /// Print what would be published, and publish nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Records of the canaries' traffic.
#[derive(Clone, Debug, Args)]
pub struct FleetRecords {
    /// A capture of a host, of weir record --capture FILE --of all: print what each limit refuses of it now and in the newest
    /// version, and expect that share where --expect names none; once for each host
    #[arg(long, value_name = "FILE")]
    pub record: Vec<PathBuf>,
    /// Addresses of the hosts, for captures of other programs; may be repeated
    #[arg(long, value_name = "PREFIX", value_parser = prefix, requires = "record")]
    pub local: Vec<IpNet>,
    /// The interface of captures that do not name theirs, for limits with `interfaces`
    #[arg(long, value_name = "NAME", requires = "record")]
    pub interface: Option<String>,
}

/// `weir fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Sign rules and publish them as the next version, which a few hosts try first
    Publish(FleetRelease),
    /// Show the newest version, how many hosts have which one in effect, and why others do not
    Status {
        #[command(flatten)]
        place: FleetPlace,
    },
    /// End a version: hosts return to the rules before it, and others do not begin with it
    Abort {
        /// The version; without it, the newest that is not aborted
        #[arg(value_name = "VERSION")]
        version: Option<u64>,
        #[command(flatten)]
        place: FleetPlace,
        #[command(flatten)]
        key: FleetKey,
        /// The reason, which hosts report
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// List the published versions, the newest first
    History {
        #[command(flatten)]
        place: FleetPlace,
    },
    /// Show what a file would change of the newest version
    Diff {
        /// The rules, as weir fleet publish takes them
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        place: FleetPlace,
    },
    /// Make a publisher's key: write FILE for the publisher, and print the public key for [fleet] public_keys
    Keygen {
        /// The new key file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Parses `LABEL=VALUE`.
fn pair(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text
        .split_once('=')
        .filter(|(name, value)| !name.is_empty() && !value.is_empty())
        .ok_or("write a label and its value, such as role=web")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses `LIMIT=PERCENT`.
fn expected(text: &str) -> Result<(String, Share), String> {
    let (limit, share) = text
        .split_once('=')
        .ok_or_else(|| "write a limit and a percentage, such as web=5%".to_owned())?;
    let share = share
        .parse()
        .map_err(|error: NotAShare| error.to_string())?;
    Ok((limit.to_owned(), share))
}

/// Parses a size in bytes.
fn size(text: &str) -> Result<u64, String> {
    units::size(text).map_err(|wrong| format!("{}; {}", wrong.message, wrong.help))
}

/// The packets of `weir record --capture`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Captured {
    /// Those that Weir refuses
    Refused,
    /// All that Weir's kernel programs receive
    All,
}

impl From<Captured> for CaptureOf {
    fn from(of: Captured) -> Self {
        match of {
            Captured::Refused => Self::Refused,
            Captured::All => Self::All,
        }
    }
}

/// A request for `weir decide`.
#[derive(Clone, Debug, Args)]
pub struct Decide {
    /// The limit's name
    #[arg(
        long,
        value_name = "NAME",
        required_unless_present_any = ["commit", "release"],
        add = names(Named::Limits),
    )]
    pub limit: Option<String>,
    /// An entry of the key and its value; may be repeated. Leave out entries for which the limit has a value
    #[arg(long = "key", value_name = "ENTRY=VALUE")]
    pub keys: Vec<String>,
    /// The client's address, for its class and for limits by source
    #[arg(long, value_name = "IP")]
    pub source: Option<IpAddr>,
    /// The kind of request, and its parameters: --request publish messages=3
    #[arg(long, num_args = 1.., value_names = ["NAME", "PARAMETER=VALUE"], conflicts_with = "cost")]
    pub request: Vec<String>,
    /// The cost in units, instead of a request; default: 1. A negative cost is a refund, which requires root
    #[arg(long, value_name = "UNITS", allow_negative_numbers = true)]
    pub cost: Option<i64>,
    /// Print the verdict, and charge nothing
    #[arg(long)]
    pub peek: bool,
    /// Wait until the request conforms, at most this long: 500ms, 2s; up to 60s
    #[arg(long, value_name = "TIME", conflicts_with = "peek")]
    pub wait: Option<Wait>,
    /// Charge the cost even if it does not conform: use that is reported after the work
    #[arg(long, conflicts_with_all = ["peek", "wait"])]
    pub force: bool,
    /// Reserve the cost for this long at most, and print the ID: 30s, 10min; up to a day
    #[arg(long, value_name = "TIME", conflicts_with_all = ["peek", "wait", "force"])]
    pub reserve: Option<ReserveTime>,
    /// What happens to the reservation when its time is over: commit (the default) or release
    #[arg(long, value_name = "WHAT", requires = "reserve")]
    pub on_expiry: Option<OnExpiry>,
    /// Settle a reservation by the cost or the request; without either, by what was reserved
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["limit", "keys", "source", "peek", "wait", "force", "reserve", "release"]
    )]
    pub commit: Option<String>,
    /// Return a reservation
    #[arg(
        long,
        value_name = "ID",
        conflicts_with_all = ["limit", "keys", "source", "peek", "wait", "force", "reserve", "request", "cost"]
    )]
    pub release: Option<String>,
    /// Exit with status 1 if the request is refused
    #[arg(long)]
    pub exit_status: bool,
}

/// Captures, and the configs to evaluate them by.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Direction: with --local, packets from those addresses are egress and all others ingress; without \
    it, what Linux cooked and pcapng captures say, else ingress.\n\n\
    Exit status: 0 done; 1 a capture was not read to its end (what was read is reported); 2 wrong usage or config."
)]
pub struct Replay {
    /// Captures: pcap or pcapng, also compressed with gzip or zstd, merged by time; - reads standard input
    #[arg(value_name = "CAPTURE", required = true)]
    pub captures: Vec<PathBuf>,
    /// Another config to evaluate the same packets by
    #[arg(long, value_name = "FILE")]
    pub compare: Option<PathBuf>,
    /// Also write a page with plots and tables, which needs no network; - prints it instead of the text
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Addresses of the host that the capture was taken on; may be repeated
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub local: Vec<IpNet>,
    /// The interface of captures that do not name theirs, for limits with `interfaces`
    #[arg(long, value_name = "NAME", add = names(Named::Interfaces))]
    pub interface: Option<String>,
}

/// The traffic to suggest limits for.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The config is in observe mode and refuses nothing. At least 10 minutes are needed, and 100 sources of a \
    protocol or port; a day with its busiest hour is better. Packets from the host are left out: see --local. A recording \
    has no such packets.\n\n\
    Exit status: 0 done; 1 too little data, or a recording or a capture was not read to its end; 2 wrong usage."
)]
pub struct Suggest {
    /// Captures: pcap or pcapng, also compressed with gzip or zstd, merged by time; - reads standard input
    #[arg(value_name = "CAPTURE", conflicts_with = "from")]
    pub captures: Vec<PathBuf>,
    /// A recording of weir record, or a capture; without it, and without captures, the agent's recording
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Also write a page with plots and tables, which needs no network; - prints it instead of the text
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Addresses of the host that the capture was taken on; once for each prefix
    #[arg(long, value_name = "PREFIX", value_parser = prefix)]
    pub local: Vec<IpNet>,
    /// The interface of captures that do not name theirs, for the config
    #[arg(long, value_name = "NAME", add = names(Named::Interfaces))]
    pub interface: Option<String>,
}

/// Options of `weir import`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Formats: nft -j list ruleset or list set, iptables-save and ip6tables-save, ipset save; fail2ban-client \
    banned, get JAIL banip [--with-time] or status JAIL, and jail.local. Several files are imported together: iptables-save \
    with ipset save.\n\n\
    A printed limit refuses no more than its rule. What Weir cannot do is a comment, with the reason.\n\n\
    Exit status: 0 done; 1 nothing was carried over, or a list was not written; 2 wrong usage, or unknown input."
)]
pub struct Import {
    /// The output of a tool, or its file; without it, or with -, standard input
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The format of the input, if it is not detected
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub from: Option<Format>,
    /// Write the sets of refused addresses into this directory, one file a ban list
    #[arg(long, value_name = "DIRECTORY")]
    pub lists: Option<PathBuf>,
    /// An interface for the config, beside those that rules name; may be repeated
    #[arg(long = "interface", value_name = "NAME", add = names(Named::Interfaces))]
    pub interfaces: Vec<String>,
}

/// An address, or the first one of an IPv6 /64: limits that count addresses count each /64 as one.
fn source(text: &str) -> Result<IpAddr, String> {
    let prefix = prefix(text)?;
    let whole = if prefix.addr().is_ipv4() { 32 } else { 64 };
    if prefix.prefix_len() < whole {
        return Err(format!(
            "invalid source {text:?}: a prefix of many sources; write one address, or filter {PROGRAM} top by the prefix (key /)"
        ));
    }
    Ok(prefix.addr())
}

/// A prefix, or a single address.
fn prefix(text: &str) -> Result<IpNet, String> {
    let parsed = text
        .parse()
        .or_else(|_| text.parse().map(|address: IpAddr| address.into()));
    parsed.map_err(|_| format!("{text:?} is neither an address nor a prefix such as 192.0.2.0/24"))
}

/// What to do to a process group.
#[derive(Clone, Debug, Subcommand)]
pub enum GroupCommand {
    /// Freeze the processes of a group
    Freeze {
        /// The group's name
        #[arg(add = names(Named::Groups))]
        name: String,
    },
    /// Thaw the frozen processes of a group
    Thaw {
        /// The group's name
        #[arg(add = names(Named::Groups))]
        name: String,
    },
    /// Kill all processes of a group
    Kill {
        /// The group's name
        #[arg(add = names(Named::Groups))]
        name: String,
    },
}

/// A manual page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ManualPage {
    /// weir(1)
    #[value(name = "weir", alias = "agent")]
    Program,
    /// limits.toml(5)
    #[value(name = "limits.toml")]
    Limits,
}

/// The rows of `weir top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum TopBy {
    /// Sources: the most refused and the busiest
    #[default]
    Source,
    /// Prefixes from which many of the packets come, by a sample of all packets
    Prefix,
}

/// Which rows of `weir top` come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum TopOrder {
    /// Most refused
    Throttled,
    /// Most passed
    Passed,
    /// Most refused a second; live only
    ThrottledRate,
    /// Most passed a second; live only
    PassedRate,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent; without a config, built-in limits are observed on the interfaces of the default route
    Run(ConfigFile),
    /// Validate a config and print what it enforces
    Check(ConfigFile),
    /// Show mode, uptime, interfaces and how they are attached, totals, table occupancy
    Status,
    /// Show each limit: definition, passed, throttled, would-throttle, keys tracked
    Limits {
        /// Set the counters of all limits to 0, in limits, top, show and metrics; allowances stay
        #[arg(long)]
        reset_counters: bool,
    },
    /// Show the most throttled and busiest sources, the limits' load and process groups, live; ? lists the keys
    Top {
        /// Print one table of sources and exit
        #[arg(long)]
        once: bool,
        /// With --once: print at most N rows
        #[arg(short = 'n', value_name = "N")]
        count: Option<usize>,
        /// The order of rows; with --once, throttled or passed
        #[arg(long, value_enum, value_name = "ORDER")]
        sort: Option<TopOrder>,
        /// Rows by source, or by prefix: those from which many packets come, found in a sample of the last seconds
        #[arg(long, value_enum, value_name = "WHAT", default_value = "source")]
        by: TopBy,
        /// With --by prefix: the least share of all packets in a row, without those of rows within it; default: 1%
        #[arg(long, value_name = "PERCENT", value_parser = share)]
        share: Option<f64>,
    },
    /// Show refusals by source and limit: the first, then a sample each second
    Events {
        /// Print new events as they happen, until interrupted
        #[arg(long)]
        follow: bool,
        /// Print at most N remembered events; default: all, with --follow 10
        #[arg(short = 'n', long, value_name = "N")]
        last: Option<usize>,
        /// Only events about a source: an address, a prefix, or a name as events have it
        #[arg(long, value_name = "SOURCE", add = names(Named::Subjects))]
        source: Option<String>,
        /// Only events of one limit
        #[arg(long, value_name = "NAME", add = names(Named::Limits))]
        limit: Option<String>,
        /// Only events of the last TIME: seconds, or a time such as 10m or 2h
        #[arg(long, value_name = "TIME", value_parser = duration)]
        since: Option<Duration>,
    },
    /// Show one source: class, ban, remaining allowance of each limit, retry-after, counters
    Show {
        /// The source's address, or an IPv6 /64 as weir top lists it
        #[arg(value_parser = source, add = names(Named::Addresses))]
        source: IpAddr,
    },
    /// Show the verdict on each packet of a source, with its reason, until interrupted; requires a trace build
    Trace {
        /// The source's address
        #[arg(add = names(Named::Addresses))]
        source: IpAddr,
    },
    /// Show each process group: members, usage and limits, time throttled, pressure; or freeze, thaw or kill one
    Groups {
        /// Freeze, thaw or kill one group
        #[command(subcommand)]
        emergency: Option<GroupCommand>,
    },
    /// Show what each process group used per day: CPU, memory, disk and network
    Usage {
        /// Only this group
        #[arg(long, value_name = "NAME", add = names(Named::Groups))]
        group: Option<String>,
        /// The first day, in UTC; default: the first recorded
        #[arg(long, value_name = "YYYY-MM-DD", value_parser = cgroup::parse_day)]
        from: Option<String>,
        /// The last day; default: today
        #[arg(long, value_name = "YYYY-MM-DD", value_parser = cgroup::parse_day)]
        to: Option<String>,
        /// The last days with today, such as 7d
        #[arg(long, value_name = "TIME", value_parser = days, conflicts_with_all = ["from", "to"])]
        last: Option<u64>,
        /// Print comma-separated values
        #[arg(long)]
        csv: bool,
    },
    /// Reset the states of one source, of a prefix, of a key of requests, or of all keys of one limit, to the whole allowance
    ///
    /// Keys of requests that hosts exchange (cluster = "keys") are reset on all hosts.
    Reset {
        /// The source's address, or a prefix with at most 65,536 keys of a limit
        #[arg(
            required_unless_present_any = ["limit", "keys"],
            value_parser = prefix,
            add = names(Named::Addresses),
        )]
        source: Option<IpNet>,
        /// An entry of a key of requests and its value; may be repeated
        #[arg(long = "key", value_name = "ENTRY=VALUE", conflicts_with = "source")]
        keys: Vec<String>,
        /// Reset this limit only: for the source, prefix or key, or for every key if none is given
        #[arg(long, value_name = "NAME", add = names(Named::Limits))]
        limit: Option<String>,
    },
    /// Decide one request, as the agent does for applications
    Decide(Decide),
    /// Refuse every packet from addresses or prefixes until the ban expires or is lifted
    Ban {
        /// Addresses or prefixes; an IPv6 address stands for its /64
        #[arg(
            value_name = "CIDR",
            required_unless_present = "file",
            conflicts_with = "file"
        )]
        cidrs: Vec<String>,
        /// A list, one address or prefix a line, # begins a comment; - reads standard input
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// For how long: seconds, or a time such as 10m or 2h30m; default: until it is lifted
        #[arg(long = "for", value_name = "TIME", value_parser = duration)]
        duration: Option<Duration>,
        /// Until when: a time such as 2026-03-31T18:00:00Z, or "2026-03-31 18:00" in this host's time zone
        #[arg(long, value_name = "TIME", value_parser = until::parse, conflicts_with = "duration")]
        until: Option<SystemTime>,
        /// The reason, one line of at most 200 characters: shown by bans, show and events
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Whose ban it is, such as a program's name; an address is banned while the ban of any owner lasts. Default:
        /// your user name
        #[arg(long, value_name = "NAME", add = names(Named::Owners))]
        owner: Option<String>,
        /// Ban the address of this SSH session, or a network wider than /8 (IPv6: /16)
        #[arg(long)]
        force: bool,
    },
    /// Lift your bans
    Unban {
        /// Addresses or prefixes, as they were banned
        #[arg(
            value_name = "CIDR",
            required_unless_present_any = ["file", "all"],
            conflicts_with = "file",
            add = names(Named::Bans)
        )]
        cidrs: Vec<String>,
        /// A list, as weir ban takes it
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Whose bans to lift, as weir bans lists them; default: your user name
        #[arg(long, value_name = "NAME", conflicts_with = "all", add = names(Named::Owners))]
        owner: Option<String>,
        /// Lift the bans of all owners, and make exceptions from ban lists and CrowdSec; without CIDR: every ban
        #[arg(long)]
        all: bool,
    },
    /// List the bans and when they expire
    Bans,
    /// Exempt addresses or prefixes from all limits and bans for a while, or raise their limits
    Allow {
        /// Addresses or prefixes
        #[arg(value_name = "CIDR", required_unless_present = "list")]
        cidrs: Vec<String>,
        /// For how long: seconds, or a time such as 10m or 2h30m
        #[arg(
            long = "for",
            value_name = "TIME",
            value_parser = duration,
            required_unless_present_any = ["until", "list"]
        )]
        duration: Option<Duration>,
        /// Until when: a time such as 2026-03-31T18:00:00Z, or "2026-03-31 18:00" in this host's time zone
        #[arg(long, value_name = "TIME", value_parser = until::parse, conflicts_with = "duration")]
        until: Option<SystemTime>,
        /// So many times what each limit and their class give them, more than 1; bans still apply
        #[arg(long, value_name = "N")]
        times: Option<f64>,
        /// No limit and no ban applies to them, as without --times
        #[arg(long, conflicts_with = "times")]
        exempt: bool,
        /// The reason, one line of at most 200 characters: shown by allow --list, show, status and events
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Who orders it, such as a program's name. Default: your user name
        #[arg(long, value_name = "NAME")]
        owner: Option<String>,
        /// List these exemptions and raised limits, and when they end
        #[arg(long, conflicts_with_all = ["cidrs", "duration", "until", "times", "exempt", "reason", "owner"])]
        list: bool,
    },
    /// End exemptions and raised limits by weir allow
    Disallow {
        /// Addresses or prefixes, as they were allowed
        #[arg(value_name = "CIDR", required = true, add = names(Named::Exemptions))]
        cidrs: Vec<String>,
    },
    /// Read the config again, all or nothing; unchanged limits keep their state
    Reload {
        /// The agent's own config, as --config names it; with --diff, any config, which is compared with the one in effect
        #[arg(value_name = "FILE")]
        file: Option<PathBuf>,
        /// Print what would change, and change nothing
        #[arg(long)]
        diff: bool,
    },
    /// Try a config for some time, then roll back unless it is confirmed
    Try {
        /// The config, as --config names it
        #[command(flatten)]
        config: ConfigFile,
        /// For how long, from 1s to 24h
        #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = duration)]
        duration: Duration,
    },
    /// Keep the config that is on trial
    Confirm,
    /// End a trial at once and roll back to the previous config
    Revert,
    /// Record how busy each source is while the agent runs, for weir suggest
    #[command(
        after_help = "For each protocol and local port, the agent counts each source's packets, bytes, connections and \
        requests in its busiest second, 10 s, minute, 10 min and hour; refused packets too. weir suggest prints limits for \
        them. The recording ends by itself, and continues after a restart of the agent. A new one replaces it, and keeps it \
        as recording.previous.\n\n\
        --capture writes packets instead, as pcapng for weir replay: the first 128 bytes of each, with time, interface, \
        direction and verdict. With --sample 1/100, it has all packets of one in 100 sources (IPv6: /64), so that their rates are \
        whole. It ends after --for, at --max-size, or with this command, and the file is complete until then.\n\n\
        Exit status: 0 done; 1 it failed, or the capture ended early; 2 wrong usage."
    )]
    Record {
        /// For how long, from 1s to 31d; default: 24h. For --capture to 24h; default: 10m
        #[arg(long = "for", value_name = "TIME", value_parser = duration)]
        duration: Option<Duration>,
        /// Write packets to a new file instead; - is standard output
        #[arg(long, value_name = "FILE", conflicts_with_all = ["stop", "status"])]
        capture: Option<PathBuf>,
        /// Capture one in so many sources, such as 1/100
        #[arg(long, value_name = "1/N", default_value = "1/1", requires = "capture", value_parser = sample)]
        sample: u32,
        /// Capture the refused packets or all
        #[arg(
            long,
            value_name = "PACKETS",
            default_value = "refused",
            requires = "capture"
        )]
        of: Captured,
        /// End the capture before its file is larger
        #[arg(long, value_name = "SIZE", default_value = "100MiB", requires = "capture", value_parser = size)]
        max_size: u64,
        /// Replace an existing file
        #[arg(long, requires = "capture")]
        force: bool,
        /// End the recording now
        #[arg(long, conflicts_with_all = ["duration", "status"])]
        stop: bool,
        /// Show the recording: its time, packets, sources and gaps
        #[arg(long, conflicts_with = "duration")]
        status: bool,
    },
    /// Evaluate captured traffic by a config and print what it would have passed and refused
    Replay(Replay),
    /// Suggest limits for recorded or captured traffic: print a limits.toml in observe mode, with the reason for each limit
    Suggest(Suggest),
    /// Print a limits.toml for rules of nftables, iptables, ipset or fail2ban, with what it cannot do as comments
    Import(Import),
    /// Remove from the kernel what a stopped agent left in effect
    Detach(ConfigFile),
    /// Publish rules for many hosts, which follow a store by [fleet], and show which hosts have them
    Fleet {
        #[command(subcommand)]
        command: FleetCommand,
    },
    /// Try out the receivers of events
    Notify {
        #[command(subcommand)]
        command: NotifyCommand,
    },
    /// Report what this host supports and how to fix what is missing; exits with 1 if the config requires it
    Doctor(ConfigFile),
    /// Print a shell's script for completions, which queries the running agent for names
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print a manual page, for packages: weir man | man -l -
    Man {
        /// The page
        #[arg(value_enum, default_value_t = ManualPage::Program)]
        page: ManualPage,
    },
    /// Print a JSON Schema of limits.toml, with which editors complete and check it
    Schema,
}
