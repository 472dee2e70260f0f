//! Clients that hold on to their connections keep nobody else from the agent.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use testbed::application::{Agent, Setup};
use testbed::wait::until;

/// Connections that are opened and left idle.
const IDLE: usize = 300;
/// How long a client may take for each step, and what a busy machine adds to it.
const PATIENCE: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_secs(120);

fn with_few_descriptors() -> Agent {
    // The test holds more connections than a default limit allows.
    let (_, most) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, most, most).unwrap();
    Agent::start_as(&Setup {
        decide: "http = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"",
        agent: "metrics = \"127.0.0.1:0\"",
        descriptors: Some(256),
        ..Setup::default()
    })
}

fn idle(address: &str) -> Vec<TcpStream> {
    let connect = || TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(5));
    // Connections that the agent does not accept wait in the system's queue, which is bounded, too.
    (0..IDLE).map_while(|_| connect().ok()).collect()
}

/// The control socket answers in the time that the command waits for it, and nothing spins.
fn assert_at_ease(agent: &Agent, what: &str) {
    for _ in 0..3 {
        assert!(agent.command(&["status"]).status.success(), "{what}");
    }
    // What was begun before may go on for a while.
    until(&format!("a second at ease with {what}"), || {
        let (before, start) = (agent.cpu_time(), Instant::now());
        thread::sleep(Duration::from_secs(1));
        let used = agent.cpu_time() - before;
        (used < start.elapsed() / 10).then_some(())
    });
}

fn scrape(agent: &Agent) -> String {
    let mut stream = TcpStream::connect(&agent.metrics).unwrap();
    stream.set_read_timeout(Some(PATIENCE + MARGIN)).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}

#[test]
fn idle_connections_leave_the_other_listeners_their_descriptors() {
    let agent = with_few_descriptors();
    let on_grpc = idle(&agent.grpc);
    assert!(on_grpc.len() > 100, "{} connections", on_grpc.len());
    assert_at_ease(&agent, "idle gRPC connections");
    let on_http = idle(&agent.http);
    assert_at_ease(&agent, "idle HTTP connections");
    assert!(scrape(&agent).contains("weir_build_info"));
    let on_metrics = idle(&agent.metrics);
    assert_at_ease(&agent, "idle connections everywhere");
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", agent.child.id()))
        .unwrap()
        .count();
    assert!(descriptors < 256, "{descriptors} descriptors");
    // With nine places and a timeout of 5 s, this would take 33 rounds: longer than the client waits.
    assert!(scrape(&agent).contains("weir_build_info"));
    drop((on_grpc, on_http, on_metrics));
    assert!(scrape(&agent).contains("weir_build_info"));
}

#[test]
fn a_client_that_dawdles_loses_its_place() {
    let agent = with_few_descriptors();
    // One begins a head and never ends it, one says nothing.
    let mut on_http = idle(&agent.http);
    for stream in on_http.iter_mut().step_by(2) {
        stream
            .write_all(b"POST /v1/decide HTTP/1.1\r\nx: ")
            .unwrap();
    }
    let mut on_grpc = idle(&agent.grpc);
    for stream in on_grpc.iter_mut().step_by(2) {
        stream.write_all(b"PRI * HTTP/2").unwrap();
    }
    let start = Instant::now();
    assert_eq!(agent.remaining("alice"), 1_000);
    let rounds = 1 + u32::try_from(IDLE / 20).unwrap();
    assert!(start.elapsed() < rounds * PATIENCE, "{:?}", start.elapsed());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let connected = runtime.block_on(async {
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://{}", agent.grpc)).unwrap();
        tokio::time::timeout(rounds * PATIENCE, endpoint.connect()).await
    });
    assert!(connected.is_ok_and(|connected| connected.is_ok()));
}

#[test]
fn a_client_that_does_not_read_loses_its_place() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let mut stream = TcpStream::connect(&agent.http).unwrap();
    stream.set_nonblocking(true).unwrap();
    let requests = "GET /v1/health HTTP/1.1\r\nhost: weir\r\n\r\n".repeat(1_000);
    let (start, mut is_blocked) = (Instant::now(), false);
    loop {
        match stream.write(requests.as_bytes()) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                is_blocked = true;
                thread::sleep(Duration::from_millis(50));
            }
            Err(_) => break,
        }
        assert!(start.elapsed() < PATIENCE + MARGIN, "it is still there");
    }
    assert!(is_blocked);
}
