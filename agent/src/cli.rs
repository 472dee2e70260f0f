//! Command-line arguments. `cmd::options` resolves which config and which control socket they name.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::decide::Wait;

/// Weir: per-source rate limits in the kernel, and resource limits for process groups
#[derive(Debug, Parser)]
#[command(name = "agent", version, arg_required_else_help = true, max_term_width = 100)]
#[command(after_help = "agent --config FILE is short for agent run --config FILE.\n\n\
    Exit status: 0 done; 1 failed while running; 2 wrong usage or config (nothing was touched).")]
pub struct Cli {
    /// The verb; `agent --config FILE` without one runs the agent.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options that stand on either side of the verb.
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
}

/// A config by position: `agent check FILE` is `agent check --config FILE`.
#[derive(Clone, Debug, Default, Args)]
pub struct ConfigFile {
    /// The config, as --config names it
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// A time with its unit, or a bare number of seconds, as `timeout` and `sleep` take it.
fn duration(text: &str) -> Result<Duration, humantime::DurationError> {
    text.parse().map(Duration::from_secs).or_else(|_| humantime::parse_duration(text))
}

/// What to ask about a limit on requests.
#[derive(Clone, Debug, Args)]
pub struct Decide {
    /// The limit's name
    #[arg(long, value_name = "NAME")]
    pub limit: String,
    /// An entry of the key and its value; once for each. Entries that the limit has a value for may be left out
    #[arg(long = "key", value_name = "ENTRY=VALUE")]
    pub keys: Vec<String>,
    /// The client's address, for its class and for limits by source
    #[arg(long, value_name = "IP")]
    pub source: Option<IpAddr>,
    /// The kind of request, and its parameters: --request publish messages=3
    #[arg(long, num_args = 1.., value_names = ["NAME", "PARAMETER=VALUE"], conflicts_with = "cost")]
    pub request: Vec<String>,
    /// The cost itself; 1 if neither it nor a request is given
    #[arg(long, value_name = "UNITS")]
    pub cost: Option<u64>,
    /// Look, and charge nothing
    #[arg(long)]
    pub peek: bool,
    /// Wait in the limit's line until it conforms, for at most so long (500ms, 2s; at most 60s)
    #[arg(long, value_name = "TIME", conflicts_with = "peek")]
    pub wait: Option<Wait>,
    /// End with status 1 if it is refused
    #[arg(long)]
    pub exit_status: bool,
}

/// What to do to a process group.
#[derive(Clone, Debug, Subcommand)]
pub enum GroupCommand {
    /// Freeze its processes
    Freeze {
        /// The group's name
        name: String,
    },
    /// Thaw its frozen processes
    Thaw {
        /// The group's name
        name: String,
    },
    /// Kill all its processes
    Kill {
        /// The group's name
        name: String,
    },
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
    Limits,
    /// Show the most throttled and busiest sources, the limits' load and process groups, live; ? lists the keys
    Top {
        /// Print one table of sources and exit
        #[arg(long)]
        once: bool,
    },
    /// Show refusals by source and limit: the first, then a sample each second
    Events {
        /// Print new events as they happen, until interrupted
        #[arg(long)]
        follow: bool,
        /// Print at most N remembered events; default: all, with --follow 10
        #[arg(long, value_name = "N")]
        last: Option<usize>,
    },
    /// Show one source: class, ban, remaining allowance of each limit, retry-after, counters
    Show {
        /// The source's address
        source: IpAddr,
    },
    /// Show each process group: members, usage and limits, time throttled, pressure; or freeze, thaw or kill one
    Groups {
        /// Freeze, thaw or kill one group
        #[command(subcommand)]
        emergency: Option<GroupCommand>,
    },
    /// Reset the state of one source, or of all sources of one limit, to the whole allowance
    Reset {
        /// The source's address
        #[arg(required_unless_present = "limit", conflicts_with = "limit")]
        source: Option<IpAddr>,
        /// Reset every source of this limit
        #[arg(long, value_name = "NAME")]
        limit: Option<String>,
    },
    /// Decide one request, as applications ask for it
    Decide(Decide),
    /// Refuse every packet from addresses or prefixes until the ban expires or is lifted
    Ban {
        /// Addresses or prefixes; an IPv6 address stands for its /64
        #[arg(value_name = "CIDR", required_unless_present = "file", conflicts_with = "file")]
        cidrs: Vec<String>,
        /// A list, one address or prefix a line, # begins a comment; - reads standard input
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// For how long: seconds, or a time such as 10m or 2h30m; default: until it is lifted
        #[arg(long = "for", value_name = "TIME", value_parser = duration)]
        duration: Option<Duration>,
        /// Ban the address of this SSH session, or a network wider than /8 (IPv6: /16)
        #[arg(long)]
        force: bool,
    },
    /// Lift bans
    Unban {
        /// Addresses or prefixes, as they were banned
        #[arg(value_name = "CIDR", required_unless_present_any = ["file", "all"], conflicts_with_all = ["file", "all"])]
        cidrs: Vec<String>,
        /// A list, as agent ban takes it
        #[arg(long, value_name = "FILE", conflicts_with = "all")]
        file: Option<PathBuf>,
        /// Lift every ban
        #[arg(long)]
        all: bool,
    },
    /// List the bans and when they expire
    Bans,
    /// Read the config again, all or nothing; unchanged limits keep their state
    Reload {
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
    /// End a trial at once and roll back to the config before
    Revert,
    /// Remove from the kernel what a stopped agent left in effect
    Detach(ConfigFile),
    /// Report what this host supports and how to fix what is missing; exits with 1 if the config requires it
    Doctor(ConfigFile),
    /// Print a shell's completions, for packages
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, for packages: agent man | man -l -
    Man,
}
