//! The page on a shared machine: jobs come under its limits, and other processes do not.

use std::net::TcpListener;

use testbed::documents;
use testbed::groups::{Host, Worker, copy};

use crate::limits::{NETWORK_BYTES, assert_limited, assert_network_limited};
use crate::work;

const PAGE: &str = "docs/start/first/shared-machine.md";
/// Figures of the page, and those that a busy test machine reaches in a second.
const LOWER: [(&str, &str); 3] = [
    ("max = \"100%\"", "max = \"2%\""),
    ("pids = 500", "pids = 20"),
    ("egress = \"100Mbit/s\"", "egress = \"8Mbit/s\""),
];

/// The limits of the page's config that enforces.
fn lines() -> String {
    let blocks = documents::page(PAGE).blocks();
    let config = blocks
        .iter()
        .find(|block| block.marks == "toml file=limits.next.toml")
        .unwrap();
    let is_limit = |line: &&str| {
        !["[[group]]", "name", "match"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    let lines: Vec<&str> = config.text.lines().filter(is_limit).collect();
    LOWER
        .iter()
        .fold(lines.join("\n"), |text, (figure, lower)| {
            assert!(text.contains(figure), "{figure} in {text}");
            text.replace(figure, lower)
        })
}

pub fn jobs_have_the_limits_of_their_page_and_others_have_not() {
    let mut host = Host::new();
    host.start("", &lines());
    let mut computing = host.spawn(&["busy", "600000"]);
    computing.begin();
    assert_limited(&host, &computing, 2.0);
    drop(computing);

    let mut forking = host.spawn(&["fork", "100"]);
    forking.begin();
    // The worker itself is one of them.
    assert_eq!(forking.line(), "19");
    drop(forking);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut sending = host.spawn(&["send", &address]);
    let start = std::time::Instant::now();
    sending.begin();
    work::take(&mut listener.accept().unwrap().0, NETWORK_BYTES);
    assert_network_limited(start.elapsed().as_nanos() as f64);
    drop(sending);

    // The same program under another name is nobody's job.
    let counted = |name: &str| host.group()["network"][name].as_u64().unwrap();
    let other = host.path("other");
    copy(&host.worker(), &other);
    let (sent, refused) = (counted("egress_bytes"), counted("egress_throttled_packets"));
    assert!(sent >= NETWORK_BYTES && refused > 0, "{sent}, {refused}");
    let mut polite = Worker::spawn(&other, &["send", &address]);
    polite.begin();
    work::take(&mut listener.accept().unwrap().0, 10 * NETWORK_BYTES);
    assert!(counted("egress_bytes") < sent + NETWORK_BYTES);
}
