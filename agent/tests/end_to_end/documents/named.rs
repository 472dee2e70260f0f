//! The commands of the documents that are not run, with the reason.

/// The start of a page's path, and that of a command.
type Named = (&'static str, &'static str);

/// Reasons, and the commands that each is for.
pub const NOT_RUN: &[(&str, &[Named])] = &[
    (
        "since it builds or tests Weir",
        &[
            ("README.md", "cargo xtask"),
            ("docs/contributing/testing.md", "cargo xtask"),
            ("docs/contributing/testing.md", "WEIR_BUDGET=write"),
            ("docs/contributing/testing.md", "sudo target/trace/agent"),
            ("docs/contributing/releasing.md", "git checkout"),
            ("docs/contributing/releasing.md", "cargo xtask"),
            ("docs/start/install.md", "cargo xtask build"),
            ("docs/start/install.md", "cp config/"),
            ("docs/start/install.md", "target/release/agent"),
            ("docs/start/install.md", "sudo target/release/agent"),
            ("docs/operations/upgrade.md", "target/release/agent"),
            ("docs/operations/upgrade.md", "install -m 755"),
        ],
    ),
    (
        "since it needs curl: fair_load.rs sends the same report",
        &[("docs/guides/fair.md", "curl --unix-socket")],
    ),
    (
        "since it checks the files of a release",
        &[
            ("docs/contributing/releasing.md", "ssh-keygen"),
            ("docs/contributing/releasing.md", "sha256sum"),
        ],
    ),
    (
        "since it changes a host's packages or units; agent/tests/systemd does, in a guest",
        &[
            ("README.md", "systemctl"),
            ("docs/start/install.md", "apt"),
            ("docs/start/install.md", "systemctl"),
            ("docs/start/install.md", "weir doctor"),
            ("docs/start/install.md", "tar"),
            ("docs/start/install.md", "install"),
            ("docs/start/install.md", "mkdir"),
            ("docs/start/install.md", "groupadd"),
            ("docs/start/install.md", "weir --config"),
            ("docs/start/first/", "apt"),
            ("docs/start/first/", "tar"),
            ("docs/start/first/", "install"),
            ("docs/start/first/", "mkdir"),
            ("docs/start/first/", "systemctl"),
            ("docs/operations/upgrade.md", "apt"),
            ("docs/operations/upgrade.md", "journalctl"),
            ("docs/operations/upgrade.md", "systemctl"),
            ("docs/operations/upgrade.md", "kill -TERM"),
            ("docs/operations/upgrade.md", "weir --config"),
            ("docs/operations/containers.md", "podman"),
            ("docs/operations/containers.md", "sed"),
            ("docs/SERVICE.md", "mkdir"),
            ("docs/SERVICE.md", "ln"),
            ("docs/SERVICE.md", "systemctl"),
        ],
    ),
    (
        "since its keys decay before it is typed on a busy host: prove.rs counts what is proven",
        &[("docs/guides/prove.md", "weir limits")],
    ),
    (
        "since it settles a reservation, whose ID is new each time: agent/tests/decide/settling.rs has them",
        &[
            (
                "docs/guides/applications.md",
                "weir decide --limit credits-per-user",
            ),
            ("docs/guides/applications.md", "weir decide --commit"),
        ],
    ),
    (
        "since it needs dig, or curl and nginx: first.rs sends the same queries, and proxies.rs has the nginx",
        &[
            ("docs/start/first/dns.md", "for"),
            ("docs/start/first/api.md", "for"),
        ],
    ),
    (
        "since it needs a user with jobs: agent/tests/groups runs some under the page's limits",
        &[
            ("docs/start/first/shared-machine.md", "systemd-run"),
            ("docs/start/first/shared-machine.md", "weir"),
            ("docs/start/first/shared-machine.md", "mv"),
        ],
    ),
    (
        "since it needs another host",
        &[("docs/operations/monitoring.md", "ssh")],
    ),
    (
        "since it needs programs that others wrote: the tests of crowdsec and import have them",
        &[
            ("docs/guides/crowdsec.md", "cscli"),
            ("docs/guides/crowdsec.md", "chmod"),
            ("docs/guides/migrating.md", "nft"),
            ("docs/guides/migrating.md", "ipset"),
            ("docs/guides/migrating.md", "iptables"),
            ("docs/guides/migrating.md", "ip6tables-save"),
            ("docs/guides/migrating.md", "fail2ban-client"),
            ("docs/guides/migrating.md", "weir import /etc/fail2ban"),
            ("docs/guides/migrating.md", "weir check limits.toml"),
            ("docs/guides/migrating.md", "weir try limits.toml"),
        ],
    ),
    (
        "since it needs a capture or a recording of a real host: replay.rs, suggest.rs and capture.rs make theirs",
        &[
            ("docs/REPLAY.md", "tcpdump"),
            ("docs/REPLAY.md", "weir replay --config limits.toml"),
            ("docs/guides/record.md", "weir suggest"),
            ("docs/guides/record.md", "weir check limits.next.toml"),
            ("docs/guides/record.md", "weir record --capture"),
            ("docs/guides/record.md", "weir replay"),
            ("docs/guides/record.md", "weir try"),
            ("docs/guides/record.md", "weir confirm"),
            ("docs/guides/suggest.md", "tcpdump"),
            (
                "docs/guides/suggest.md",
                "weir suggest --local 192.0.2.10 --interface",
            ),
            ("docs/guides/suggest.md", "weir check"),
            ("docs/guides/suggest.md", "weir replay"),
            ("docs/guides/suggest.md", "weir try"),
            ("docs/guides/suggest.md", "weir confirm"),
        ],
    ),
    (
        "since it needs a store and hosts: fleet_rules.rs has three",
        &[
            ("docs/guides/fleet-rules.md", "weir fleet"),
            ("docs/guides/fleet-rules.md", "weir record --capture"),
        ],
    ),
    (
        "since it runs until it is interrupted: events.rs follows events",
        &[("docs/reference/events.md", "weir events --follow")],
    ),
];
