//! Every kind of device that this kernel can make: a limit on the device alone is in effect in both directions, or on the
//! device that [`table`] names. docs/explanation/interfaces.md has the table for operators.

mod genetlink;
mod table;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, setsockopt, socket, sockopt,
};
use testbed::tests;
use testbed::trials::Test;

use self::table::{KINDS, Kind};
use crate::interfaces::state;
use crate::support::{Agent, Network};
use crate::traffic::PORT;
use crate::wire::is_queueing;

pub const TESTS: &[Test] = tests![every_kind_of_device_is_limited_where_the_table_says];

/// Other packets of the kernels, such as neighbour discovery, are not UDP.
const LIMITS: &str = "[[limit]]\nname = \"in\"\nrate = \"1/h\"\nburst = 100\nprotocol = \"udp\"\n\
    [[limit]]\nname = \"out\"\ndirection = \"egress\"\nrate = \"1/h\"\nburst = 100\nprotocol = \"udp\"\n";
const SENT: u64 = 300;
/// Those that are sent before the queues are empty again: fewer than any queue has room for.
const AT_ONCE: u64 = 100;
/// For packets that do not arrive, also on an emulated CPU.
const PATIENCE: Duration = Duration::from_secs(60);
/// The packets that pass and those that do not, in each direction.
const LIMITED: Seen = Seen {
    arrived: 100,
    counts: (100, 200),
};

/// The same without a limit in effect.
const UNLIMITED: Seen = Seen {
    arrived: SENT,
    counts: (0, 0),
};

/// One direction's packets.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// At the socket.
    arrived: u64,
    /// Passed and throttled by the limit.
    counts: (u64, u64),
}

fn every_kind_of_device_is_limited_where_the_table_says() {
    let mut failures = Vec::new();
    for kind in KINDS {
        // The others are tested, too.
        let outcome = std::panic::catch_unwind(|| outcome(kind))
            .unwrap_or_else(|_| Outcome::Other("panicked".to_owned()));
        match outcome {
            Outcome::Skipped(reason) => eprintln!("skipped: {}: {reason}", kind.name),
            Outcome::AsExpected if kind.refusal.is_some() => {
                eprintln!("{}: not limited, with a note", kind.name);
            }
            Outcome::AsExpected => eprintln!(
                "{}: limited at {}, ingress by {}, egress by tc",
                kind.name, kind.enforced_by, kind.attach
            ),
            Outcome::Other(found) => {
                eprintln!("{}: {found}", kind.name);
                failures.push(format!("{}: {found}", kind.name));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

enum Outcome {
    Skipped(String),
    AsExpected,
    Other(String),
}

fn outcome(kind: &Kind) -> Outcome {
    let network = Network::new();
    let ends = match make(&network, kind) {
        Ok(()) => Ends::of(&network, kind),
        Err(reason) => return Outcome::Skipped(reason),
    };
    if !ends.connect() {
        return Outcome::Other("carries no packets".to_owned());
    }
    let agent = network.start_on(&["kind0"], "", LIMITS);
    let expected = kind.refusal.map_or("attached", |_| "failed");
    let status = agent.wait_for(expected, |status| {
        state(status, kind.enforced_by).1 == expected
    });
    let placement = state(&status, kind.enforced_by);
    let seen = [
        ends.send(&agent, "in", &ends.client, &ends.server),
        ends.send(&agent, "out", &ends.server, &ends.client),
    ];
    let is_expected = match kind.refusal {
        Some(reason) => {
            drop(agent);
            status["notes"].to_string().contains(reason)
                && seen == [UNLIMITED, UNLIMITED]
                && is_left_out_by_a_pattern(&network, reason)
        }
        None => placement.0 == kind.attach && seen == [LIMITED, LIMITED],
    };
    if is_expected {
        return Outcome::AsExpected;
    }
    Outcome::Other(format!(
        "{placement:?}, ingress and egress {seen:?}, notes {}",
        status["notes"]
    ))
}

/// Whether an agent that a pattern gives `kind0` limits the others, and says why not this one.
fn is_left_out_by_a_pattern(network: &Network, reason: &str) -> bool {
    let agent = network.start_on(&["kind*", "weir0"], "", LIMITS);
    let status = agent.wait_for("attached", |status| state(status, "weir0").1 == "attached");
    let interfaces = status["interfaces"].as_array().unwrap();
    let notes = status["notes"].to_string();
    interfaces.iter().all(|on| on["name"] != "kind0")
        && notes.contains("kind0 is not limited, though a pattern matches it")
        && notes.contains(reason)
}

/// Makes the device and its counterpart, or returns why this kernel cannot.
fn make(network: &Network, kind: &Kind) -> Result<(), String> {
    network.add_link("port0", "port0");
    // Tunnels in IPv6 need it at the client, which the network disables.
    network.in_client(|| {
        for scope in ["all", "default", "client0"] {
            let switch = format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6");
            std::fs::write(switch, "0").unwrap();
        }
    });
    batch(
        network.client(),
        "addr add fd77::2/64 dev client0 nodad\nlink set port0 address 02:00:00:00:79:02\n",
    );
    batch(
        network.server(),
        "link set port0 down\nlink set port0 address 02:00:00:00:79:01\n",
    );
    let (first, rest) = split(kind.server);
    if let Err(error) = try_batch(network.server(), first) {
        let is_unknown = error.contains("Unknown device type") || error.contains("not supported");
        assert!(is_unknown, "{first}: {error}");
        return Err(error);
    }
    let (first, rest_of_client) = split(kind.client);
    batch(network.client(), first);
    if let Some(configure) = kind.configure {
        configure(network);
    }
    let up = |device: &str, own: u8| {
        format!(
            "link set {device} up\naddr add 10.79.0.{own}/24 dev {device}\naddr add fd79::{own}/64 dev {device} nodad\n"
        )
    };
    // Unless it has become the device itself.
    let _ = try_batch(network.server(), "link set port0 up\n");
    // A neighbour requires the device to be up.
    batch(network.server(), &format!("{}{rest}\n", up("kind0", 1)));
    batch(
        network.client(),
        &format!("{}{rest_of_client}\n", up(kind.counterpart, 2)),
    );
    Ok(())
}

/// A socket at each end.
struct Ends {
    server: UdpSocket,
    client: UdpSocket,
}

impl Ends {
    fn of(network: &Network, kind: &Kind) -> Self {
        let address = |own: u8| -> SocketAddr {
            if kind.is_ipv6 {
                format!("[fd79::{own}]:{PORT}").parse().unwrap()
            } else {
                ([10, 79, 0, own], PORT).into()
            }
        };
        let socket = |own: u8, device: &str| {
            let socket = bound(device, address(own));
            setsockopt(&socket, sockopt::RcvBufForce, &(16 << 20)).unwrap();
            socket
                .set_read_timeout(Some(Duration::from_millis(300)))
                .unwrap();
            socket
        };
        Self {
            server: network.in_server(|| socket(1, "kind0")),
            client: network.in_client(|| socket(2, kind.counterpart)),
        }
    }

    /// Sends until a packet arrives in each direction: neighbours and keys are known then.
    fn connect(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        [(&self.client, &self.server), (&self.server, &self.client)]
            .into_iter()
            .all(|(from, to)| {
                loop {
                    let _ = from.send_to(b"first", to.local_addr().unwrap());
                    if to.recv(&mut [0; 64]).is_ok() {
                        while to.recv(&mut [0; 64]).is_ok() {}
                        return true;
                    }
                    if Instant::now() > deadline {
                        return false;
                    }
                }
            })
    }

    /// Sends all packets, and returns what became of them once all are counted or none has come for long.
    fn send(&self, agent: &Agent<'_>, limit: &str, from: &UdpSocket, to: &UdpSocket) -> Seen {
        let address = to.local_addr().unwrap();
        let deadline = Instant::now() + PATIENCE;
        let (mut sent, mut arrived) = (0, 0);
        loop {
            for _ in 0..AT_ONCE {
                // A refused packet of egress is an error to its sender.
                let _ = from.send_to(b"packet", address);
            }
            sent += AT_ONCE;
            let counts = loop {
                if to.recv(&mut [0; 64]).is_ok() {
                    arrived += 1;
                    continue;
                }
                let counts = agent.counts(limit);
                let is_settled = counts.0 + counts.1 >= sent && arrived >= counts.0;
                // Without a limit in effect, all arrive.
                if is_settled || arrived >= sent || (Instant::now() > deadline && !is_queueing()) {
                    break counts;
                }
            };
            if sent >= SENT {
                return Seen { arrived, counts };
            }
        }
    }
}

/// A socket that receives and sends on this device only. An address of a VRF requires the device first.
fn bound(device: &str, address: SocketAddr) -> UdpSocket {
    let family = if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None).unwrap();
    setsockopt(&socket, sockopt::BindToDevice, &device.into()).unwrap();
    nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(address)).unwrap();
    socket.into()
}

/// The first command, and the further ones.
fn split(commands: &str) -> (&str, &str) {
    commands.split_once('\n').unwrap_or((commands, ""))
}

/// Runs commands of `ip` in a namespace.
fn batch(namespace: &str, commands: &str) {
    try_batch(namespace, commands).unwrap_or_else(|error| panic!("{commands}: {error}"));
}

fn try_batch(namespace: &str, commands: &str) -> Result<(), String> {
    use std::io::Write as _;
    let mut child = Command::new("ip")
        .args(["-n", namespace, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(commands.as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().next().unwrap_or_default().to_owned())
}
