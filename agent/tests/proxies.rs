//! Proxies themselves ask `GET /v1/check`, with the configs of docs/guides/proxies.md: `cargo xtask integration`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use libtest_mimic::Arguments;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use std::os::fd::AsRawFd;
use tempfile::TempDir;
use testbed::application::{Agent, Setup};
use testbed::port::Port;
use testbed::recipes::recipe_of;
use testbed::tests;
use testbed::trials::{Test, trial_unless};
use testbed::wait::PATIENCE;

const PAGE: &str = "guides/proxies.md";
/// The limit of the page, with fewer requests.
const RATE: &str = "rate = \"3/h\"\n";

const OF_NGINX: &[Test] = tests![
    nginx_refuses_with_retry_after_by_the_clients_address,
    nginx_refuses_or_passes_while_the_agent_is_away,
];
const OF_HAPROXY: &[Test] = tests![
    haproxy_refuses_with_retry_after_by_the_clients_address,
    haproxy_refuses_or_passes_while_the_agent_is_away,
];
const OF_CADDY: &[Test] = tests![
    caddy_refuses_with_retry_after_by_the_clients_address,
    caddy_refuses_while_the_agent_is_away,
];

fn main() {
    let with = |tests: &'static [Test], variable: &str| {
        let obstacle = std::env::var_os(variable)
            .is_none()
            .then_some("it needs the proxy: run `cargo xtask integration`, which provides it");
        tests.iter().map(move |test| trial_unless(test, obstacle))
    };
    let trials = with(OF_NGINX, "WEIR_NGINX")
        .chain(with(OF_HAPROXY, "WEIR_HAPROXY"))
        .chain(with(OF_CADDY, "WEIR_CADDY"));
    testbed::trials::run(&Arguments::from_args(), trials.collect());
}

fn nginx_refuses_with_retry_after_by_the_clients_address() {
    limits_each_client(&|agent, upstream| nginx(agent, upstream, ""));
}

fn nginx_refuses_or_passes_while_the_agent_is_away() {
    let (agent, upstream) = (agent(), Upstream::start());
    let refusing = nginx(&agent, &upstream, "");
    let passing = nginx(&agent, &upstream, "error_page 502 504 = @unlimited;");
    assert_eq!(refusing.get("/", 1, "").status, 200);
    assert_eq!(passing.get("/", 1, "").status, 200);
    drop(agent);
    assert_eq!(refusing.get("/", 1, "").status, 503);
    assert_eq!(passing.get("/", 1, "").status, 200);
}

/// The page's condition for refusals, and the one that lets requests pass without an answer.
const REFUSING: &str = "unless { var(txn.weir_status) -m int 200 }";
const PASSING: &str = "if { var(txn.weir_status) -m int 400:499 }";

fn haproxy_refuses_with_retry_after_by_the_clients_address() {
    limits_each_client(&|agent, upstream| haproxy(agent, upstream, REFUSING));
}

fn haproxy_refuses_or_passes_while_the_agent_is_away() {
    let (agent, upstream) = (agent(), Upstream::start());
    let refusing = haproxy(&agent, &upstream, REFUSING);
    let passing = haproxy(&agent, &upstream, PASSING);
    assert_eq!(refusing.get("/", 1, "").status, 200);
    assert_eq!(passing.get("/", 1, "").status, 200);
    assert_eq!(passing.get("/", 1, "").status, 200);
    assert_eq!(passing.get("/", 1, "").status, 429);
    drop(agent);
    assert_eq!(refusing.get("/", 1, "").status, 503);
    assert_eq!(passing.get("/", 1, "").status, 200);
    assert_eq!(upstream.requests(), 4);
}

fn caddy_refuses_with_retry_after_by_the_clients_address() {
    limits_each_client(&caddy);
}

fn caddy_refuses_while_the_agent_is_away() {
    let (agent, upstream) = (agent(), Upstream::start());
    let proxy = caddy(&agent, &upstream);
    assert_eq!(proxy.get("/", 1, "").status, 200);
    drop(agent);
    assert_eq!(proxy.get("/", 1, "").status, 502);
    assert_eq!(upstream.requests(), 1);
}

/// Three requests of one address pass, whatever it writes in the header, and no more reach the application.
fn limits_each_client(start: &dyn Fn(&Agent, &Upstream) -> Proxy) {
    let (agent, upstream) = (agent(), Upstream::start());
    let proxy = start(&agent, &upstream);
    let forged = |nth| format!("X-Forwarded-For: 192.0.2.{nth}\r\n");
    for nth in 0..3 {
        let reply = proxy.get("/", 1, &forged(nth));
        assert_eq!((reply.status, reply.body.as_str()), (200, "application"));
    }
    for nth in 3..6 {
        let reply = proxy.get("/", 1, &forged(nth));
        assert_eq!(reply.status, 429, "{reply:?}");
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=3_600).contains(&wait), "{reply:?}");
    }
    assert_eq!(upstream.requests(), 3);
    // Another client has an allowance of its own, and an error of the application's stays one.
    assert_eq!(proxy.get("/error", 2, "").status, 500);
    assert_eq!(upstream.requests(), 4);
}

/// An agent with the page's config, and fewer requests an hour.
fn agent() -> Agent {
    let config = recipe_of(PAGE, "check").replace("rate = \"100/min\"\n", RATE);
    assert!(config.contains(RATE));
    let (decide, limits) = config.split_once("\n\n").unwrap();
    let decide = decide
        .trim_start_matches("[decide]\n")
        .replace("/run/weir", "FOLDER");
    Agent::start_as(&Setup {
        decide: &decide,
        config: limits,
        ..Setup::default()
    })
}

/// A block of the page, with other values for some of it.
fn block(name: &str, replacements: &[(&str, &str)]) -> String {
    let mut text = recipe_of(PAGE, name);
    for (value, other) in replacements {
        assert!(text.contains(value), "{value} in {text}");
        text = text.replace(value, other);
    }
    text
}

const APPLICATION: &str = "127.0.0.1:8080";
const FOLDER: &str = "/run/weir";

/// nginx with the page's locations, and another line in the one that asks.
fn nginx(agent: &Agent, upstream: &Upstream, line: &str) -> Proxy {
    let locations = block(
        "nginx",
        &[
            (FOLDER, agent.folder.path().to_str().unwrap()),
            (APPLICATION, &upstream.at.to_string()),
            ("internal;", &format!("internal; {line}")),
        ],
    );
    Proxy::start("WEIR_NGINX", |folder, port| {
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
            .collect();
        let config = format!(
            "daemon off;\nuser root;\npid {folder}/pid;\nworker_processes 1;\nerror_log stderr crit;\n\
             events {{}}\nhttp {{\naccess_log off;\n{temporary}server {{\nlisten 127.0.0.1:{port};\n{locations}\n\
             location @unlimited {{ return 204; }}\n}}\n}}\n"
        );
        std::fs::write(format!("{folder}/nginx.conf"), config).unwrap();
        let path = format!("{folder}/nginx.conf");
        vec!["-p".to_owned(), folder.to_owned(), "-c".to_owned(), path]
    })
}

/// HAProxy with the page's config and script, and a condition for answers other than 200.
fn haproxy(agent: &Agent, upstream: &Upstream, condition: &str) -> Proxy {
    Proxy::start("WEIR_HAPROXY", |folder, port| {
        let script = format!("{folder}/weir.lua");
        let socket = (FOLDER, agent.folder.path().to_str().unwrap());
        // HAProxy lets requests pass when the agent does not reply in time, as on a busy machine.
        let time = ("timeout = 1000", "timeout = 60000");
        std::fs::write(&script, block("haproxy-lua", &[socket, time])).unwrap();
        let config = block(
            "haproxy",
            &[
                ("/etc/haproxy/weir.lua", &script),
                ("bind :80", &format!("bind 127.0.0.1:{port}")),
                (APPLICATION, &upstream.at.to_string()),
                (REFUSING, condition),
            ],
        );
        let path = format!("{folder}/haproxy.cfg");
        std::fs::write(&path, config).unwrap();
        vec!["-f".to_owned(), path]
    })
}

fn caddy(agent: &Agent, upstream: &Upstream) -> Proxy {
    Proxy::start("WEIR_CADDY", |folder, port| {
        let site = block(
            "caddy",
            &[
                (FOLDER, agent.folder.path().to_str().unwrap()),
                (APPLICATION, &upstream.at.to_string()),
                (":80 {", &format!("http://:{port} {{\nbind 127.0.0.1")),
            ],
        );
        let config =
            format!("{{\nadmin off\nauto_https off\nstorage file_system {folder}\n}}\n{site}");
        let path = format!("{folder}/Caddyfile");
        std::fs::write(&path, config).unwrap();
        ["run", "--adapter", "caddyfile", "--config", &path]
            .map(str::to_owned)
            .to_vec()
    })
}

/// A running proxy, killed when dropped.
struct Proxy {
    child: Child,
    at: SocketAddr,
    _port: Port,
    _folder: TempDir,
}

impl Proxy {
    /// Starts the program that a variable names, with the arguments for a folder and a port, and waits until it listens.
    fn start(variable: &str, arguments: impl FnOnce(&str, u16) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = Port::reserve();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
        let arguments = arguments(folder.path().to_str().unwrap(), port.number());
        let mut child = Command::new(std::env::var_os(variable).unwrap())
            .args(arguments)
            .env("HOME", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        testbed::wait::until("the proxy to listen", || {
            assert!(child.try_wait().unwrap().is_none(), "the proxy ended");
            TcpStream::connect(at).ok()
        });
        Self {
            child,
            at,
            _port: port,
            _folder: folder,
        }
    }

    /// The reply to a request from 127.0.0.`client` with these header lines.
    fn get(&self, path: &str, client: u8, headers: &str) -> Reply {
        let mut stream = connected(Ipv4Addr::new(127, 0, 0, client), self.at);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = self.at;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n"
        )
        .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        Reply {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // nginx's master ends its workers on SIGTERM only.
        let id = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    head: String,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A connection from an address of this host.
fn connected(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let SocketAddr::V4(to) = to else {
        panic!("{to} is no IPv4 address")
    };
    let descriptor = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::empty(),
        None,
    )
    .unwrap();
    let from = SockaddrIn::from(std::net::SocketAddrV4::new(from, 0));
    bind(descriptor.as_raw_fd(), &from).unwrap();
    connect(descriptor.as_raw_fd(), &SockaddrIn::from(to)).unwrap();
    descriptor.into()
}

/// An application: it answers 500 below /error, else 200.
struct Upstream {
    at: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Upstream {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut reader = BufReader::new(stream);
                let head: Vec<String> = reader
                    .by_ref()
                    .lines()
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let Some(first) = head.first() else { continue };
                counted.fetch_add(1, Ordering::SeqCst);
                let status = match first.contains(" /error ") {
                    true => "500 Error",
                    false => "200 OK",
                };
                let reply = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 11\r\n\r\napplication"
                );
                let _ = reader.get_mut().write_all(reply.as_bytes());
            }
        });
        Self { at, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}
