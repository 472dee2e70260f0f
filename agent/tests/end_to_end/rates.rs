//! TCP under a byte limit: all data arrive, no sooner than the limit allows. `cargo xtask tcp` measures how near to the
//! rate TCP comes.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use testbed::tests;
use testbed::trials::Test;

use crate::flows::From;
use crate::support::Network;

pub const TESTS: &[Test] = tests![
    tcp_exceeds_no_byte_limit_by_native_xdp,
    tcp_exceeds_no_byte_limit_by_generic_xdp,
    tcp_exceeds_no_byte_limit_by_traffic_control,
    tcp_exceeds_no_byte_limit_on_egress,
];

fn tcp_exceeds_no_byte_limit_by_native_xdp() {
    transfer("attach = \"native\"", "", From::Client);
}

fn tcp_exceeds_no_byte_limit_by_generic_xdp() {
    transfer("attach = \"generic\"", "", From::Client);
}

fn tcp_exceeds_no_byte_limit_by_traffic_control() {
    transfer("attach = \"tc\"", "", From::Client);
}

fn tcp_exceeds_no_byte_limit_on_egress() {
    transfer("", "direction = \"egress\"", From::Server);
}

const RATE: f64 = 2e6;
const BURST: f64 = 500e3;
/// So many bytes take a second at least.
const BYTES: usize = 2_500_000;
const LIMIT: &str =
    "[[limit]]\nname = \"tcp\"\nunit = \"bytes\"\nrate = \"2MB/s\"\nburst = \"500KB\"\n";

/// Transfers data over one connection.
fn transfer(agent: &str, limit: &str, from: From) {
    let network = Network::new();
    let agent = network.start(agent, &format!("{LIMIT}{limit}\n"));
    let address = match from {
        From::Client => "10.77.0.1:9100",
        From::Server => "10.77.0.2:9100",
    };
    let at_sender = |work: &mut (dyn FnMut() + Send)| match from {
        From::Client => network.in_client(work),
        From::Server => network.in_server(work),
    };
    let listen = || TcpListener::bind(address).unwrap();
    let listener = match from {
        From::Client => network.in_server(listen),
        From::Server => network.in_client(listen),
    };
    let start = Instant::now();
    let arrived = thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(120)))
                .unwrap();
            let mut data = Vec::new();
            stream.read_to_end(&mut data).unwrap();
            data.len()
        });
        at_sender(&mut || {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.write_all(&vec![7; BYTES]).unwrap();
        });
        receiving.join().unwrap()
    });
    let least = Duration::from_secs_f64((BYTES as f64 - BURST) / RATE);
    assert_eq!(arrived, BYTES);
    assert!(
        start.elapsed() >= least,
        "{BYTES} bytes in {:?}, which takes at least {least:?}",
        start.elapsed()
    );
    assert!(agent.counts("tcp").1 > 0, "nothing was refused");
}
