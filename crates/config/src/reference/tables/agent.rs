use super::key::{key, words};
use crate::policy::MOST_SOURCES;
use crate::reference::{Absent, Kind, TableReference};

pub const AGENT: TableReference = TableReference {
    heading: "[agent]",
    variant: None,
    page: "agent",
    summary: "Where limits are enforced, and how the agent runs.",
    keys: &[
        key(
            "interfaces",
            Kind::List(&Kind::Text(&["eth0", "ens*"])),
            Absent::Described("none; required by limits on packets"),
            "Interfaces on which limits on packets are enforced: names, or patterns with `*` and `?`. The agent attaches \
             to an interface within a second of its appearing; a missing one is a note in `agent status`, not an error.",
        ),
        key(
            "attach",
            words!(Attach),
            Absent::Value("\"auto\""),
            "The hook for ingress. `auto` takes native XDP where the driver has it, else traffic control. `native` \
             requires native XDP. `generic` is XDP after the kernel has allocated a buffer. `tc` is traffic control. \
             Egress always uses traffic control.",
        ),
        key(
            "mode",
            words!(Mode),
            Absent::Value("\"enforce\""),
            "`enforce` refuses packets and requests above a limit. `observe` counts what would be refused, and refuses \
             nothing except \
             an operator's bans.",
        ),
        key(
            "on_exit",
            words!(OnExit),
            Absent::Value("\"keep\""),
            "What happens when the agent stops. `keep` leaves limits in effect, and the next agent takes them over with \
             their state. `detach` removes them from the kernel.",
        ),
        key(
            "max_sources",
            Kind::Integer(1, MOST_SOURCES as u64),
            Absent::Described("1_000_000, or fewer where sliding logs would take too much memory"),
            "Capacity of the table of sources, for all limits together. `agent check` prints the memory that it takes.",
        ),
        key(
            "never_limit",
            Kind::List(&Kind::Prefix(&["192.0.2.10", "2001:db8:ffff::/48"])),
            Absent::Value("[]"),
            "Exempt addresses and prefixes: no limit and no ban applies to them.",
        ),
        key(
            "protect",
            Kind::Either(&[Kind::Boolean, Kind::List(&words!(Shield))]),
            Absent::Value("[\"ssh\", \"gateways\", \"store\"]"),
            "Further exempt addresses, found by the agent: the client of the SSH session that starts or controls it, the \
             default gateways, and the store of `[cluster]`. `true` is all of them, `false` none.",
        ),
        key(
            "watch",
            Kind::Boolean,
            Absent::Value("false"),
            "Whether the agent reloads the file when it changes.",
        ),
        key(
            "allow_empty",
            Kind::Boolean,
            Absent::Value("false"),
            "Whether a file without a limit and without a group is valid. Without it, an empty file is an error, so that \
             a failed template cannot remove every limit.",
        ),
        key(
            "metrics",
            Kind::Text(&["127.0.0.1:9464", "[::1]:9464"]),
            Absent::Described("off"),
            "Address and port on which the agent serves Prometheus metrics at `/metrics`, and the live page at `/`. Changing \
             it requires a restart.",
        ),
        key(
            "live",
            Kind::Either(&[
                Kind::Boolean,
                Kind::List(&Kind::Text(&["weir.example.org"])),
            ]),
            Absent::Described("on where `metrics` is a loopback address"),
            "Whether the address of `metrics` serves the live page: addresses of sources, and all that `agent status` \
             prints, to all clients that reach it. `true` serves it on any address, `false` on none. A list serves it on any \
             address, also to requests for these host names: without them, a request has to name an IP address or \
             `localhost`. Changing it requires a restart.",
        ),
        key(
            "control",
            Kind::Path(&["/run/weir/control.sock"]),
            Absent::Value("\"/run/weir/control.sock\""),
            "The control socket, which `agent status` and the other commands use. Changing it requires a restart.",
        ),
        key(
            "pins",
            Kind::Path(&["/sys/fs/bpf/weir"]),
            Absent::Value("\"/sys/fs/bpf/weir\""),
            "Directory in a BPF file system for the programs, links and maps that outlive the agent. Changing it requires \
             a restart.",
        ),
        key(
            "state_dir",
            Kind::Path(&["/var/lib/weir"]),
            Absent::Value("\"/var/lib/weir\""),
            "Directory for the state that survives a reboot: bans, counters, the state of slow limits, trials.",
        ),
        key(
            "container_sockets",
            Kind::List(&Kind::Path(&["/run/docker.sock"])),
            Absent::Value("[\"/run/docker.sock\", \"/run/podman/podman.sock\"]"),
            "Sockets of Docker and Podman, where groups look up containers by name and label.",
        ),
        key(
            "cgroup",
            Kind::Text(&["weir"]),
            Absent::Value("\"weir\""),
            "Name of the cgroup that contains the groups' own: letters, digits, dashes and underscores.",
        ),
    ],
    example: "[agent]\ninterfaces = [\"eth0\"]\nmode = \"observe\"\nnever_limit = [\"192.0.2.10\"]\n\n\
              [[limit]]\nname = \"packets-per-source\"\nrate = \"20000/s\"\n",
};
