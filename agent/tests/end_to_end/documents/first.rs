//! The pages from nothing to an enforced limit: what they have typed, and that their limits refuse a greedy source and no other.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use testbed::wire::{self, Sender};

use super::Reader;
use crate::connections::SYN;
use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, StopWhenDropped};
use crate::traffic::burst;

const GREEDY: [u8; 4] = [203, 0, 113, 7];
const POLITE: [u8; 4] = [198, 51, 100, 7];

/// A page, and the limit of its config that a source exceeds first.
struct First {
    page: &'static str,
    limit: &'static str,
    burst: f64,
    per_second: f64,
    /// A packet of a source that this limit counts.
    frame: fn([u8; 4]) -> Vec<u8>,
    /// As many packets as take many seconds to pass.
    flood: usize,
    /// Fewer than the burst.
    few: usize,
}

/// The mode of the config on trial.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Observe,
    Enforce,
}

fn tcp(source: [u8; 4], port: u16) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source, SERVER)
        .tcp(5_000, port, SYN, &[])
        .build()
}

fn udp(source: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source, SERVER)
        .udp(5_000, port, payload)
        .build()
}

pub fn the_first_limit_on_ssh_is_so() {
    let network = Network::new().as_packaged();
    let _sshd = listener(&network, 22);
    let first = First {
        page: "docs/start/first/ssh.md",
        limit: "ssh",
        burst: 5.0,
        per_second: 5.0 / 60.0,
        frame: |source| tcp(source, 22),
        flood: 100,
        few: 2,
    };
    first.is_so(&network, |_, _| {});
}

pub fn the_first_limits_on_a_web_server_are_so() {
    let network = Network::new().as_packaged();
    let _server = listener(&network, 80);
    let first = First {
        page: "docs/start/first/web-server.md",
        limit: "web-connections",
        burst: 100.0,
        per_second: 10.0,
        frame: |source| tcp(source, 443),
        flood: 2_000,
        few: 50,
    };
    first.is_so(&network, |agent, mode| {
        // No source sent as many packets as that limit allows.
        assert_eq!(agent.counts("web-packets").1, 0);
        if mode == Mode::Enforce {
            // An acknowledgement is no connection.
            let frame = Frame::between(CLIENT_MAC, SERVER_MAC)
                .ipv4(GREEDY, SERVER)
                .tcp(5_000, 80, 0x10, &[])
                .build();
            let connections = agent.counts("web-connections");
            burst(&network, &[frame], 60_000);
            agent.wait_for("refused packets", |_| agent.counts("web-packets").1 > 0);
            assert_eq!(agent.counts("web-connections"), connections);
        }
    });
}

pub fn the_first_limits_on_dns_are_so() {
    let network = Network::new().as_packaged();
    network.add_client_addresses(&[GREEDY, POLITE]);
    for prefix in ["203.0.113.0/24", "198.51.100.0/24"] {
        network.ip(&["route", "add", prefix, "dev", "weir0"]);
    }
    let any = (Ipv4Addr::UNSPECIFIED, 53).into();
    let server = network.in_server(|| wire::bind(any)).unwrap();
    let first = First {
        page: "docs/start/first/dns.md",
        limit: "queries",
        burst: 40.0,
        per_second: 20.0,
        // A query for the root's name servers.
        frame: |source| {
            let query = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
            udp(source, 53, &query)
        },
        flood: 2_000,
        few: 20,
    };
    replying(&server, || {
        first.is_so(&network, |agent, mode| {
            agent.wait_for("replies", |_| agent.counts("replies").0 > 0);
            assert_eq!(agent.counts("replies").1, 0);
            if mode == Mode::Enforce {
                // More than a megabyte to one address, whose burst is a quarter of that.
                let before = agent.counts("queries");
                for _ in 0..1_000 {
                    let _ = server.send_to(&[0; 1_200], (Ipv4Addr::from(POLITE), 5_000));
                }
                agent.wait_for("refused replies", |_| agent.counts("replies").1 > 0);
                assert_eq!(agent.counts("queries"), before);
            }
        });
    });
}

pub fn the_first_limits_on_a_game_server_are_so() {
    let network = Network::new().as_packaged();
    let first = First {
        page: "docs/start/first/game-server.md",
        limit: "players",
        burst: 400.0,
        per_second: 200.0,
        frame: |source| udp(source, 27_015, b"move"),
        // Fewer than the limit on its network allows at once.
        flood: 3_000,
        few: 100,
    };
    first.is_so(&network, |agent, mode| {
        assert_eq!(agent.counts("networks").1, 0);
        if mode == Mode::Enforce {
            // Each below its own limit, and together above that of their network.
            let bots: Vec<Vec<u8>> = (1..=100)
                .map(|last| udp([192, 0, 2, last], 27_015, b"move"))
                .collect();
            let players = agent.counts("players");
            burst(&network, &bots, 100 * 390);
            agent.wait_for("refused bots", |_| agent.counts("networks").1 > 0);
            assert_eq!(agent.counts("players").1, players.1);
        }
    });
}

pub fn the_first_limits_on_an_api_are_so() {
    let network = Network::new().as_packaged();
    let _nginx = listener(&network, 443);
    let first = First {
        page: "docs/start/first/api.md",
        limit: "connections",
        burst: 100.0,
        per_second: 20.0,
        frame: |source| tcp(source, 443),
        flood: 2_000,
        few: 50,
    };
    let socket = network.folder.path().join("decide.sock");
    first.is_so(&network, |_, mode| {
        let since = Instant::now();
        let statuses: Vec<u16> = (0..300).map(|_| checked(&socket, GREEDY)).collect();
        let allowed = statuses.iter().filter(|status| **status == 200).count();
        match mode {
            Mode::Observe => assert_eq!(allowed, 300),
            Mode::Enforce => {
                let most = 100.0 + 100.0 / 60.0 * since.elapsed().as_secs_f64() + 1.0;
                assert!(allowed as f64 <= most, "{allowed} of at most {most}");
                assert!(statuses.contains(&429), "{statuses:?}");
            }
        }
        assert_eq!(checked(&socket, POLITE), 200);
    });
}

impl First {
    /// Starts an agent with the page's config, and types its commands. `more` checks the page's other limits: once while all
    /// are observed, and once while they are enforced.
    fn is_so(&self, network: &Network, more: impl Fn(&Agent<'_>, Mode)) {
        let reader = Reader::of(network, self.page);
        let (table, limits) = reader.config(0);
        let folder = network.folder.path().display().to_string();
        let config = network.config(&table.replace("/run/weir", &folder), &limits);
        let mut running = Some(network.start_file(&config, &[]));
        let mut mode = Mode::Observe;
        thread::scope(|scope| {
            let mut sending = None;
            reader.types(|command| {
                // The state that a printed table shows lasts as long as there is traffic.
                drop(sending.take());
                match (command, &running) {
                    ("weir limits", Some(agent)) => {
                        self.is_limited(network, agent, mode);
                        more(agent, mode);
                        sending = Some(Sending::start(scope, network, (self.frame)(GREEDY)));
                        mode = Mode::Enforce;
                    }
                    ("weir reload", Some(agent)) => {
                        let status = agent.json(&["status"]);
                        assert_eq!(status["mode"], "enforce");
                        assert!(status["trial"].is_null(), "{status}");
                    }
                    (detach, _) if detach.starts_with("weir detach") => {
                        let agent = running.take().unwrap();
                        assert_eq!(agent.json(&["status"])["mode"], "observe");
                        agent.stop(Signal::SIGTERM);
                        assert!(network.has_pins());
                    }
                    _ => {}
                }
                0
            });
        });
        assert!(mode == Mode::Enforce && running.is_none() && !network.has_pins());
    }

    /// Sends a flood of one source and few packets of another.
    fn is_limited(&self, network: &Network, agent: &Agent<'_>, mode: Mode) {
        let send = |source, count: usize| {
            let before = agent.counts(self.limit);
            burst(network, &[(self.frame)(source)], count);
            let all = before.0 + before.1 + count as u64;
            agent.wait_for("all packets", |_| {
                let (passed, refused) = agent.counts(self.limit);
                passed + refused >= all
            });
            let after = agent.counts(self.limit);
            (after.0 - before.0, after.1 - before.1)
        };
        let since = Instant::now();
        let (passed, refused) = send(GREEDY, self.flood);
        match mode {
            Mode::Observe => {
                assert_eq!((passed, refused), (self.flood as u64, 0));
                let limit = agent.limit(self.limit);
                let above = limit["would_throttle"]["packets"].as_u64();
                assert!(above > Some(0), "{limit}");
            }
            Mode::Enforce => {
                let most = self.burst + self.per_second * since.elapsed().as_secs_f64() + 1.0;
                assert!(
                    passed as f64 <= most && passed + refused == self.flood as u64,
                    "{passed} passed of at most {most}, {refused} were refused"
                );
            }
        }
        assert_eq!(send(POLITE, self.few), (self.few as u64, 0));
    }
}

/// A source that sends all the time, until this is dropped.
struct Sending<'scope> {
    is_over: Arc<AtomicBool>,
    thread: Option<ScopedJoinHandle<'scope, ()>>,
}

impl<'scope> Sending<'scope> {
    fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        network: &'env Network,
        frame: Vec<u8>,
    ) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = scope.spawn(move || {
            network.in_client(|| {
                let sender = Sender::new();
                while !stop.load(Ordering::Relaxed) {
                    sender.send(&frame);
                    thread::sleep(Duration::from_millis(1));
                }
            });
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(ScopedJoinHandle::join);
    }
}

fn listener(network: &Network, port: u16) -> TcpListener {
    network.in_server(|| TcpListener::bind((Ipv4Addr::from(SERVER), port)).unwrap())
}

/// Sends each datagram back while `work` lasts.
fn replying(socket: &UdpSocket, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 1_500];
            while !is_over.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        });
        let _stop = StopWhenDropped(&is_over);
        work();
    });
}

/// The status of the reply to nginx's question about a request of a client.
fn checked(socket: &Path, client: [u8; 4]) -> u16 {
    let mut stream = UnixStream::connect(socket).unwrap();
    write!(
        stream,
        "GET /v1/check?limit=clients HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         x-forwarded-for: {}\r\n\r\n",
        Ipv4Addr::from(client)
    )
    .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply.split(' ').nth(1).unwrap().parse().unwrap()
}
