use super::key::key;
use crate::schema::{Absent, Key, Kind, TableReference};

pub const GROUP: TableReference = TableReference {
    heading: "[[group]]",
    variant: None,
    page: "group",
    summary: "Limits on the processes that match, enforced through cgroups. A process belongs to the first group that matches it.",
    keys: &[
        key(
            "name",
            Kind::Text(&["batch"]),
            Absent::Invalid,
            "Unique name: at most 64 letters, digits, dashes and underscores.",
        ),
        key(
            "match",
            Kind::List(&Kind::OneKey(&[
                EXE, USER, COMMAND, UNIT, SLICE, CONTAINER, CGROUP, PID,
            ])),
            Absent::Described("the conditions in the group itself"),
            "Conditions; a process, unit or container that meets any of them is a member.",
        ),
        EXE,
        USER,
        COMMAND,
        UNIT,
        SLICE,
        CONTAINER,
        CGROUP,
        PID,
        key(
            "move",
            Kind::Either(&[Kind::Boolean, Kind::Text(&["force"])]),
            Absent::Value("false"),
            "Whether processes are moved out of units and containers that do not match as a whole: `true` if that lifts \
             no restriction, `\"force\"` wherever it is possible.",
        ),
        key(
            "cpu",
            Kind::Table(&[
                key(
                    "max",
                    Kind::Percent(&["150%"]),
                    Absent::Described("no limit"),
                    "CPU time, in percent of one CPU: `150%` is one CPU and a half. At least 1 %.",
                ),
                key(
                    "weight",
                    Kind::Integer(1, 10_000),
                    Absent::Described("the kernel's, 100"),
                    "Share of CPU time among cgroups while the CPUs are busy.",
                ),
                key(
                    "elastic",
                    Kind::Boolean,
                    Absent::Value("false"),
                    "Whether `max` may be exceeded while the host has idle CPU time.",
                ),
            ]),
            Absent::Described("no limit"),
            "CPU time.",
        ),
        key(
            "memory",
            Kind::Table(&[
                key(
                    "high",
                    Kind::Size(&["1GiB"]),
                    Absent::Described("no limit"),
                    "Above it the kernel slows the group down and reclaims its memory. Requires cgroup v2.",
                ),
                key(
                    "max",
                    Kind::Size(&["1536MiB"]),
                    Absent::Described("no limit"),
                    "Above it the kernel kills a process of the group.",
                ),
                key(
                    "swap_max",
                    Kind::Size(&["0B"]),
                    Absent::Described("no limit"),
                    "The most swap that the group uses.",
                ),
            ]),
            Absent::Described("no limit"),
            "Memory.",
        ),
        key(
            "io",
            Kind::List(&Kind::Table(&[
                key(
                    "device",
                    Kind::Path(&["/dev/vda"]),
                    Absent::Invalid,
                    "A block device, or a path on it.",
                ),
                key(
                    "read",
                    Kind::Rate(&["50MB/s"]),
                    Absent::Described("no limit"),
                    "Bytes read.",
                ),
                key(
                    "write",
                    Kind::Rate(&["20MB/s"]),
                    Absent::Described("no limit"),
                    "Bytes written.",
                ),
                key(
                    "read_ops",
                    Kind::Rate(&["500/s"]),
                    Absent::Described("no limit"),
                    "Read operations.",
                ),
                key(
                    "write_ops",
                    Kind::Rate(&["500/s"]),
                    Absent::Described("no limit"),
                    "Write operations.",
                ),
            ])),
            Absent::Value("[]"),
            "Disks.",
        ),
        key(
            "pids",
            Kind::Integer(1, 4_194_304),
            Absent::Described("no limit"),
            "The most processes and threads that the group has.",
        ),
        key(
            "cpus",
            Kind::Text(&["0-1,4"]),
            Absent::Described("all"),
            "CPUs that the group runs on: numbers and ranges.",
        ),
        key(
            "network",
            Kind::Table(&[
                key(
                    "egress",
                    Kind::Rate(&["100Mbit/s"]),
                    Absent::Described("no limit"),
                    "Bytes sent.",
                ),
                key(
                    "ingress",
                    Kind::Rate(&["200Mbit/s"]),
                    Absent::Described("no limit"),
                    "Bytes received.",
                ),
                key(
                    "connects",
                    Kind::Rate(&["20/s"]),
                    Absent::Described("no limit"),
                    "Connections begun with TCP and UDP. Above it connect() fails with EPERM.",
                ),
                key(
                    "destinations",
                    Kind::Rate(&["100/min"]),
                    Absent::Described("no limit"),
                    "Distinct addresses that are connected or sent to: each counts once in the rate's period. At most \
                     100000.",
                ),
                key(
                    "packets",
                    Kind::Rate(&["10000/s"]),
                    Absent::Described("no limit"),
                    "Packets sent.",
                ),
            ]),
            Absent::Described("no limit"),
            "Network traffic of the group's sockets.",
        ),
    ],
    example: "[[group]]\nname = \"batch\"\nmatch = [{ exe = \"/usr/bin/ffmpeg\" }, { user = \"batch\" }]\n\
              cpu = { max = \"150%\", weight = 50 }\npids = 200\n",
};

const EXE: Key = key(
    "exe",
    Kind::Path(&["/usr/bin/ffmpeg"]),
    NOT_USED,
    "Path of the executable.",
);
const USER: Key = key(
    "user",
    Kind::Text(&["batch", "1000"]),
    NOT_USED,
    "Name or number of the user.",
);
const COMMAND: Key = key(
    "command",
    Kind::Text(&["*encode*"]),
    NOT_USED,
    "Pattern for the command line.",
);
const UNIT: Key = key(
    "unit",
    Kind::Text(&["nightly.service"]),
    NOT_USED,
    "Unit of systemd, limited in place.",
);
const SLICE: Key = key(
    "slice",
    Kind::Text(&["machine.slice"]),
    NOT_USED,
    "Slice of systemd, limited in place as a whole.",
);
const CONTAINER: Key = key(
    "container",
    Kind::Text(&["web*", "com.example.app=shop"]),
    NOT_USED,
    "Container by name, id, label or pod, limited in place.",
);
const CGROUP: Key = key(
    "cgroup",
    Kind::Text(&["/user.slice/*"]),
    NOT_USED,
    "Pattern for the path of a cgroup, limited in place.",
);
const PID: Key = key(
    "pid",
    Kind::Integer(2, 4_194_304),
    NOT_USED,
    "Number of a process.",
);
const NOT_USED: Absent = Absent::Described("not used");
