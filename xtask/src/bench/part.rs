//! The parts of the benchmark.

use clap::ValueEnum;

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Nanoseconds a packet, by BPF_PROG_TEST_RUN.
    Packet,
    /// Packets a second over veth.
    Flood,
    /// What others get while made-up sources fill the table.
    Overflow,
    /// What a server still serves under a flood.
    Served,
    /// Forged SYNs and ACKs to a listener with SYN cookies: proofs beside the kernel's cookies and synproxy, over veth.
    Proofs,
    /// TCP connections that are opened and closed, over veth: what `concurrent` adds.
    Connections,
    /// A list of a million banned prefixes: loading it, packets, memory.
    Lists,
    /// Bytes of kernel memory for each source.
    Memory,
    /// How long starts and reloads take, a look at a million sources, and a replay.
    Agent,
    /// Decisions in user space, and over HTTP beside another server.
    Decisions,
    /// What an agent costs while nothing happens.
    Rest,
    /// CPU time and delays of the agent's threads and of process groups, each with a bound.
    Costs,
    /// One key on several CPUs at once, and a source for each. Only if it is named.
    Cpus,
    /// The model of growth, to more CPUs and sources than this machine has. Only if it is named.
    Growth,
    /// Fair limits before a UDP server and nginx, beside limits with the best number; writes a section of docs/guides/fair.md and its
    /// plots. Only if it is named.
    Fair,
    /// The static program of a release beside the one with the system's C library, both as `cargo xtask package` optimizes. Only if
    /// it is named.
    Static,
}

impl Part {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Flood => "flood",
            Self::Overflow => "overflow",
            Self::Served => "served",
            Self::Proofs => "proofs",
            Self::Connections => "connections",
            Self::Lists => "lists",
            Self::Memory => "memory",
            Self::Agent => "agent",
            Self::Decisions => "decisions",
            Self::Rest => "rest",
            Self::Costs => "costs",
            Self::Cpus => "cpus",
            Self::Growth => "growth",
            Self::Fair => "fair",
            Self::Static => "static",
        }
    }

    /// Whether its figures are of kernel programs alone, which are the same in any build.
    pub const fn is_of_programs(self) -> bool {
        matches!(
            self,
            Self::Packet | Self::Proofs | Self::Connections | Self::Cpus | Self::Growth
        )
    }

    /// Whether it measures what others have installed.
    pub const fn has_alternatives(self) -> bool {
        !matches!(
            self,
            Self::Packet | Self::Connections | Self::Cpus | Self::Growth
        )
    }

    /// The number of rounds: (quick, full).
    pub const fn rounds(self) -> (usize, usize) {
        match self {
            Self::Packet => (3, 31),
            Self::Flood => (2, 11),
            Self::Overflow => (2, 7),
            Self::Served => (1, 7),
            Self::Proofs => (2, 15),
            Self::Connections => (2, 21),
            Self::Lists => (1, 7),
            Self::Memory => (1, 3),
            Self::Agent => (2, 9),
            Self::Decisions => (2, 11),
            Self::Rest | Self::Costs => (1, 1),
            Self::Cpus | Self::Growth => (2, 15),
            // A round takes a quarter of an hour.
            Self::Fair => (1, 3),
            Self::Static => (2, 11),
        }
    }
}
