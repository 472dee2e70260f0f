//! What is typed.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::control::DEFAULT_SOCKET;

/// Weir: holds a host's callers to their limits, at the kernel edge.
#[derive(Debug, Parser)]
#[command(name = "agent", version, args_conflicts_with_subcommands = true, max_term_width = 100)]
#[command(after_help = "Exit status: 0 done; 1 failed while running; 2 wrong usage or config (nothing was touched).")]
pub struct Cli {
    /// What to do; without a command, the agent runs.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to run.
    #[command(flatten)]
    pub run: Run,
}

/// How the agent runs.
#[derive(Clone, Debug, Args)]
pub struct Run {
    /// The limits to enforce; without one, built-in limits are observed on the interfaces of the default route
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// How to talk to a running agent, and how to print what it says.
#[derive(Clone, Debug, Args)]
pub struct Ask {
    /// The running agent's control socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    pub control: PathBuf,
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// What to ask about a limit on requests.
#[derive(Clone, Debug, Args)]
pub struct Decide {
    /// The limit's name
    #[arg(long, value_name = "NAME")]
    pub limit: String,
    /// An entry of the key and its value; once for each
    #[arg(long = "key", value_name = "ENTRY=VALUE")]
    pub keys: Vec<String>,
    /// The client's address
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
    /// End with status 1 if it is refused
    #[arg(long)]
    pub exit_status: bool,
    /// How to ask
    #[command(flatten)]
    pub ask: Ask,
}

/// What to do to a process group.
#[derive(Clone, Debug, Subcommand)]
pub enum GroupCommand {
    /// Stop its processes where they are
    Freeze {
        /// The group's name
        name: String,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Let its frozen processes go on
    Thaw {
        /// The group's name
        name: String,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Kill all its processes
    Kill {
        /// The group's name
        name: String,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the agent (the same as without a command)
    Run(Run),
    /// Validate a config, and print what it would enforce
    Check {
        /// The config
        file: PathBuf,
        /// Print one JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Mode, uptime, interfaces and how they are attached, totals, table occupancy
    Status(Ask),
    /// Each limit: definition, passed, throttled, would-throttle, keys tracked
    Limits(Ask),
    /// The most throttled and busiest sources, each limit's load and process groups, live; ? tells the keys
    Top {
        /// Print one table of sources and end
        #[arg(long)]
        once: bool,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Who was throttled, by which limit, sampled: the first time, and then once a second
    Events {
        /// Go on with those that come, until it is interrupted
        #[arg(long)]
        follow: bool,
        /// Only so many of those that the agent remembers; with --follow 10, else all
        #[arg(long, value_name = "N")]
        last: Option<usize>,
        /// How to ask; --json prints a document a line
        #[command(flatten)]
        ask: Ask,
    },
    /// Everything known of one source: class, each limit's remaining allowance, retry-after, counters
    Show {
        /// The source's address
        source: IpAddr,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Each process group: members, usage against limit, time throttled, pressure; or, in an emergency, stop one
    Groups {
        /// What to do to a group instead of showing all
        #[command(subcommand)]
        emergency: Option<GroupCommand>,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Forget the state of one source, or of all sources under one limit: they have their whole allowance again
    Reset {
        /// The source's address
        #[arg(required_unless_present = "limit", conflicts_with = "limit")]
        source: Option<IpAddr>,
        /// The limit whose state to forget, for every source
        #[arg(long, value_name = "NAME")]
        limit: Option<String>,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Ask about one limit on requests, as applications do
    Decide(Decide),
    /// Refuse everything from an address or prefix, until the ban ends or is lifted
    Ban {
        /// The address or prefix
        #[arg(value_name = "CIDR", required_unless_present = "file", conflicts_with = "file")]
        cidr: Option<String>,
        /// A list to ban, one address or prefix a line; what follows a # is a comment
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// For how long, such as 10m or 2h30m; without it, until it is lifted
        #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
        duration: Option<std::time::Duration>,
        /// Ban even the address that this SSH session comes from
        #[arg(long)]
        force: bool,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Lift the ban of an address or prefix
    Unban {
        /// The address or prefix, as it was banned
        cidr: String,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// What is banned, and for how much longer
    Bans(Ask),
    /// Read the config again: all of it comes into force, or nothing of it; state of unchanged limits is kept
    Reload(Ask),
    /// Put a config in force for a time, and go back unless it is confirmed
    Try {
        /// The config
        file: PathBuf,
        /// For how long, from 1s to 24h
        #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
        duration: std::time::Duration,
        /// How to ask
        #[command(flatten)]
        ask: Ask,
    },
    /// Keep the config that is on trial
    Confirm(Ask),
    /// Take out of the kernel all that an earlier run left there
    Detach {
        /// The config that run had, for where its pins are
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
    /// What this host can and cannot do, and the command that fixes it; ends with 1 if the config needs what is missing
    Doctor {
        /// The config to look at the host for; without one, what an agent without a config needs
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print one JSON document instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Print a shell's completions, for packages
    Completions {
        /// Which shell's
        shell: clap_complete::Shell,
    },
    /// Print the manual page, for packages: agent man | man -l -
    Man,
}
