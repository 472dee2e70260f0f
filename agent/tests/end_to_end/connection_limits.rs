//! Limits with `concurrent` together with other settings.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use testbed::tests;
use testbed::trials::Test;

use crate::connections::{PORT, SYN, held, limit, shown};
use crate::support::{Agent, INTERFACE, Network, run};
use crate::traffic::burst;

pub const ON_ANY_KERNEL: &[Test] = tests![
    connections_of_both_ip_versions_count_on_each_hook,
    connections_from_other_sources_and_on_other_interfaces_do_not_count,
    a_syn_that_a_rate_refuses_reserves_no_connection,
    a_source_that_keeps_opening_too_many_connections_is_banned,
    every_refused_connection_is_counted_for_its_source,
];

/// The hooks, and the settings of `[agent]` for them. A refused connection is reset, so that no test waits for it.
const HOOKS: [&str; 2] = ["attach = \"native\"", "attach = \"tc\""];

/// A listener on every address of the server, which accepts nothing: the kernel establishes connections all the same.
fn listen(network: &Network) -> TcpListener {
    network.in_server(|| TcpListener::bind((Ipv6Addr::UNSPECIFIED, PORT)).unwrap())
}

/// Connects from one of the client's addresses.
fn connect_from(network: &Network, source: &str, to: &str) -> io::Result<TcpStream> {
    let (source, to): (IpAddr, IpAddr) = (source.parse().unwrap(), to.parse().unwrap());
    network.in_client(|| {
        let family = if source.is_ipv4() {
            AddressFamily::Inet
        } else {
            AddressFamily::Inet6
        };
        let socket = socket(family, SockType::Stream, SockFlag::empty(), None)?;
        setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(30, 0))?;
        bind(
            socket.as_raw_fd(),
            &SockaddrStorage::from(SocketAddr::new(source, 0)),
        )?;
        connect(
            socket.as_raw_fd(),
            &SockaddrStorage::from(SocketAddr::new(to, PORT)),
        )?;
        Ok(socket.into())
    })
}

/// The same for a connection that must be refused.
fn refused_from(network: &Network, source: &str, to: &str) {
    let error = connect_from(network, source, to)
        .map(|stream| format!("{stream:?}"))
        .unwrap_err();
    assert_eq!(
        error.kind(),
        io::ErrorKind::ConnectionRefused,
        "{source}: {error}"
    );
}

/// The packets that the client has sent again so far: on a busy machine, the reply to a SYN may come late.
fn sent_again(network: &Network) -> u64 {
    network.in_client(|| crate::tcp::counted("RetransSegs"))
}

/// The open connections that `weir show` lists for a source.
fn listed(agent: &Agent<'_>, source: &str) -> usize {
    agent.json(&["show", source])["connections"]
        .as_array()
        .map_or(0, Vec::len)
}

/// A network whose client has IPv6, and receives what XDP sends.
fn network() -> Network {
    let network = Network::new();
    network
        .in_client(|| std::fs::write("/proc/sys/net/ipv6/conf/client0/disable_ipv6", "0").unwrap());
    network.accept_xdp_frames();
    network
}

fn connections_of_both_ip_versions_count_on_each_hook() {
    for hook in HOOKS {
        let network = network();
        let add = |address: &str| {
            run(
                "ip",
                &[
                    "-n",
                    network.client(),
                    "addr",
                    "add",
                    address,
                    "dev",
                    "client0",
                    "nodad",
                ],
            );
        };
        // Two addresses of a /64, and one of another.
        ["fd77::2/64", "fd77::3/64", "fd77:0:0:1::2/64"]
            .into_iter()
            .for_each(add);
        network.ip(&["-6", "route", "add", "fd77:0:0:1::/64", "dev", INTERFACE]);
        let _listener = listen(&network);
        let agent = network.start(hook, &limit(3, "action = \"reject\""));
        let open = |source: &str| connect_from(&network, source, "fd77::1").unwrap();
        let of_prefix = [open("fd77::2"), open("fd77::2"), open("fd77::3")];
        refused_from(&network, "fd77::3", "fd77::1");
        let _others = [
            open("fd77:0:0:1::2"),
            connect_from(&network, "10.77.0.2", "10.77.0.1").unwrap(),
        ];
        let (open_now, refused) = agent.counts("open");
        assert!(
            open_now == 5 && (1..=1 + sent_again(&network)).contains(&refused),
            "{hook}: {open_now} open, {refused} refused"
        );
        for (source, count, own) in [
            ("fd77::2", 3, 2),
            ("fd77::3", 3, 1),
            ("fd77:0:0:1::2", 1, 1),
            ("10.77.0.2", 1, 1),
        ] {
            let open = shown(&agent, source)["open"].clone();
            assert_eq!(
                (open, listed(&agent, source)),
                (count.into(), own),
                "{hook}: {source}"
            );
        }
        // Reset, so that nothing remains of them.
        for stream in &of_prefix {
            setsockopt(
                stream,
                sockopt::Linger,
                &libc::linger {
                    l_onoff: 1,
                    l_linger: 0,
                },
            )
            .unwrap();
        }
        drop(of_prefix);
        agent.wait_for("their end", |_| shown(&agent, "fd77::2")["open"] == 0);
        open("fd77::3");
    }
}

fn connections_from_other_sources_and_on_other_interfaces_do_not_count() {
    for hook in HOOKS {
        let network = network();
        network.add_link("weir1", "client1");
        network.configure_server("weir1", "10.78.0.1/24");
        run(
            "ip",
            &[
                "-n",
                network.client(),
                "addr",
                "add",
                "10.78.0.2/24",
                "dev",
                "client1",
            ],
        );
        network.add_client_address("10.77.0.9");
        let _listener = listen(&network);
        // Not reset: the second link's client has no program that receives what XDP sends.
        let on_link = limit(2, "interfaces = [\"weir1\"]").replace("\"open\"", "\"link\"");
        let limits = on_link + &limit(1, "sources = [\"10.77.0.9\"]\naction = \"reject\"");
        let agent = network.start_on(&[INTERFACE, "weir1"], hook, &limits);
        let open = |source: &str, to: &str| connect_from(&network, source, to).unwrap();
        let _free: Vec<TcpStream> = (0..5).map(|_| open("10.77.0.2", "10.77.0.1")).collect();
        let _of_source = open("10.77.0.9", "10.77.0.1");
        refused_from(&network, "10.77.0.9", "10.77.0.1");
        let _on_link = [
            open("10.78.0.2", "10.78.0.1"),
            open("10.78.0.2", "10.78.0.1"),
        ];
        let third = network.in_client(|| {
            TcpStream::connect_timeout(
                &SocketAddr::from(([10, 78, 0, 1], PORT)),
                Duration::from_millis(300),
            )
        });
        assert!(third.is_err(), "{hook}");
        let counts = (agent.counts("open"), agent.counts("link"));
        let again = sent_again(&network);
        assert!(
            counts.0.0 == 1
                && (1..=1 + again).contains(&counts.0.1)
                && counts.1.0 == 2
                && (1..=1 + again).contains(&counts.1.1),
            "{hook}: {counts:?}, {again} again"
        );
        for (source, count) in [("10.77.0.2", 0), ("10.77.0.9", 1), ("10.78.0.2", 2)] {
            assert_eq!(listed(&agent, source), count, "{hook}: {source}");
        }
    }
}

/// Both limits apply to a SYN. If the rate refuses it, its reservation ends at once, and keeps nobody else out.
fn a_syn_that_a_rate_refuses_reserves_no_connection() {
    let network = network();
    network.add_client_addresses(&[[10, 77, 0, 7], [10, 77, 0, 9]]);
    let _listener = listen(&network);
    let rate = "[[limit]]\nname = \"rate\"\nunit = \"connections\"\nrate = \"2/day\"\naction = \"reject\"\n";
    let limits = limit(4, "key = \"all\"\naction = \"reject\"") + rate;
    let agent = network.start("", &limits);
    let open = |source: &str| connect_from(&network, source, "10.77.0.1").unwrap();
    let _first = [open("10.77.0.9"), open("10.77.0.9")];
    // Within the 3 s of a reservation, unless the machine is slow: five times as many as there is room for.
    (0..20).for_each(|_| refused_from(&network, "10.77.0.9", "10.77.0.1"));
    let _others = [open("10.77.0.2"), open("10.77.0.2")];
    refused_from(&network, "10.77.0.7", "10.77.0.1");
    // A SYN is counted by the limit that refuses it, or by all that pass it.
    let (open, rate) = (agent.counts("open"), agent.counts("rate"));
    let again = sent_again(&network);
    assert!(
        open.0 == 4
            && (1..=1 + again).contains(&open.1)
            && rate.0 == 4
            && (20..=20 + again).contains(&rate.1),
        "{open:?}, {rate:?}, {again} again"
    );
}

fn a_source_that_keeps_opening_too_many_connections_is_banned() {
    let network = Network::new();
    let _listener = listen(&network);
    let more = "protocol = \"tcp\"\nescalate = { after = 30, within = \"1h\", ban = \"5m\" }";
    let agent = network.start("", &limit(2, more));
    let _polite = [(); 2].map(|()| connect_from(&network, "10.77.0.2", "10.77.0.1").unwrap());
    let syns: Vec<Vec<u8>> = (0..40)
        .map(|nth| held().tcp(10_000 + nth, PORT, SYN, b"").build())
        .collect();
    burst(&network, &syns, 40);
    agent.wait_for("the ban", |_| agent.is_banned("10.77.5.9"));
    let ban = &agent.json(&["bans"])[0];
    assert_eq!(
        (&ban["cidr"], &ban["origin"]),
        (&"10.77.5.9".into(), &"limit:open".into())
    );
    assert!(!agent.is_banned("10.77.0.2"));
    let before = agent.counts("open");
    burst(&network, &syns, 40);
    assert_eq!(
        (
            agent.counts("open"),
            &agent.json(&["bans"])[0]["throttled_packets"]
        ),
        (before, &40.into())
    );
}

/// More than the samples of keys that a CPU takes in a window: once a key has one, each refusal counts.
fn every_refused_connection_is_counted_for_its_source() {
    let network = Network::new();
    let agent = network.start("", &limit(1, ""));
    let syns: Vec<Vec<u8>> = (0..20_000)
        .map(|nth| held().tcp(nth, PORT, SYN, b"").build())
        .collect();
    let before = network.arrived();
    network.in_client(|| crate::wire::Sender::new().send_all(&syns));
    network.wait_for_arrival(before, syns.len() as u64);
    let (passed, refused) = agent.counts("open");
    assert_eq!(passed + refused, 20_000);
    assert_eq!(shown(&agent, "10.77.5.9")["throttled_packets"], refused);
    let top = agent.json(&["top", "--once"]);
    assert_eq!(
        (&top[0]["source"], &top[0]["throttled_packets"]),
        (&"10.77.5.9".into(), &refused.into())
    );
}
