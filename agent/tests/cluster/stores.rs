//! Every kind of store: with TLS and a password, a Cluster, Sentinels, a socket; and one that loses the script.

use std::process::Command;
use std::time::Duration;

use testbed::port::Port;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::fleet::Host;
use crate::redis::{Redis, program};

pub const TESTS: &[Test] = tests![
    a_store_with_tls_works_and_its_password_is_never_printed,
    a_cluster_of_stores_is_found_from_one_of_its_nodes,
    sentinels_name_the_master,
    a_store_that_has_forgotten_the_script_is_given_it_again,
];

const LIMIT: &str = "rate = \"1000/s\"";

fn joins(host: &Host) {
    host.until(PATIENCE, "joined", |cluster| {
        let limit = &cluster["limits"][0];
        limit["share_from"] == "lease" && limit["share"] == 1.0 && cluster["health"] != "down"
    });
}

fn a_store_with_tls_works_and_its_password_is_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    testbed::certificates::write(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let reserved = Port::reserve();
    let port = reserved.number();
    let _redis = Redis::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("certificate.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "open-sesame",
    ]);
    let cluster = |password: &str, authorities: &str| {
        format!(
            "store = \"rediss://:{password}@127.0.0.1:{port}\"\nauthorities = {:?}",
            path(authorities)
        )
    };
    let host = Host::start("one", &cluster("open-sesame", "ca.pem"), LIMIT);
    joins(&host);
    let stranger = Host::start("two", &cluster("open-barley", "ca.pem"), LIMIT);
    stranger.until(PATIENCE, "refused", |cluster| {
        cluster["health"] == "down" && !cluster["last_error"].is_null()
    });
    let error = stranger.cluster()["last_error"]
        .as_str()
        .unwrap()
        .to_lowercase();
    assert!(error.contains("auth") || error.contains("pass"), "{error}");
    // Without the authority, nobody's word is taken for it.
    let wary = Host::start("three", &cluster("open-sesame", "key.pem"), LIMIT);
    wary.until(PATIENCE, "wary", |cluster| {
        cluster["health"] == "down" && !cluster["last_error"].is_null()
    });
    for host in [&host, &stranger, &wary] {
        let status = String::from_utf8(host.command(&["status"]).stdout).unwrap();
        let told = format!("{}{}{status}", host.said(), host.cluster());
        assert!(
            !told.contains("open-") && told.contains("127.0.0.1"),
            "{told}"
        );
    }
}

/// A Cluster of two nodes, each with half of the slots.
pub fn two_nodes() -> [Redis; 2] {
    let enabled = ["--cluster-enabled", "yes"];
    let nodes = [Redis::start(&enabled), Redis::start(&enabled)];
    assert_eq!(
        nodes[0].cli(&["cluster", "addslotsrange", "0", "8191"]),
        "OK"
    );
    assert_eq!(
        nodes[1].cli(&["cluster", "addslotsrange", "8192", "16383"]),
        "OK"
    );
    assert_eq!(
        nodes[0].cli(&["cluster", "meet", "127.0.0.1", &nodes[1].port().to_string()]),
        "OK"
    );
    for node in &nodes {
        let deadline = std::time::Instant::now() + Duration::from_secs(300);
        while !node.cli(&["cluster", "info"]).contains("cluster_state:ok") {
            assert!(
                std::time::Instant::now() < deadline,
                "{}",
                node.cli(&["cluster", "info"])
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    nodes
}

fn a_cluster_of_stores_is_found_from_one_of_its_nodes() {
    let nodes = two_nodes();
    // Each limit's ledger is on the node that its name falls to: among many, some on either.
    let more: String = (0..8)
        .map(|nth| {
            format!("\n[[limit]]\nname = \"{nth}\"\nscope = \"request\"\nkey = \"a\"\nrate = \"9/s\"\ncluster = true")
        })
        .collect();
    let host = Host::start(
        "one",
        &format!("store = {:?}", nodes[0].url()),
        &format!("{LIMIT}{more}"),
    );
    joins(&host);
    host.until(PATIENCE, "all leased", |cluster| {
        let limits = cluster["limits"].as_array().unwrap();
        limits.iter().all(|limit| limit["share_from"] == "lease")
    });
    let ledgers = nodes.each_ref().map(|node| {
        node.cli(&["--raw", "keys", "weir:*:ledger"])
            .lines()
            .count()
    });
    assert!(
        ledgers.iter().all(|count| *count > 0) && ledgers.iter().sum::<usize>() == 9,
        "{ledgers:?}"
    );
    // Named all at once, they are found as well.
    let urls = nodes.each_ref().map(Redis::url);
    joins(&Host::start(
        "two",
        &format!("store = {urls:?}\nname = \"other\""),
        LIMIT,
    ));
}

fn sentinels_name_the_master() {
    let master = Redis::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("sentinel.conf");
    let reserved = Port::reserve();
    let port = reserved.number();
    let text = format!(
        "port {port}\nbind 127.0.0.1\nsentinel monitor fleet 127.0.0.1 {} 1\n",
        master.port()
    );
    std::fs::write(&config, text).unwrap();
    let mut child = Command::new(program())
        .arg(&config)
        .args(["--sentinel", "--daemonize", "no"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "the sentinel has ended"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let joined = std::panic::catch_unwind(|| {
        let host = Host::start(
            "one",
            &format!("store = [\"redis://127.0.0.1:{port}\"]\nsentinel = \"fleet\""),
            LIMIT,
        );
        host.until(PATIENCE, "joined", |cluster| {
            cluster["limits"][0]["share_from"] == "lease"
        });
        assert_eq!(
            master
                .cli(&["--raw", "keys", "weir:*:ledger"])
                .lines()
                .count(),
            1
        );
    });
    let _ = child.kill();
    let _ = child.wait();
    joined.unwrap();
}

fn a_store_that_has_forgotten_the_script_is_given_it_again() {
    let redis = Redis::start(&[]);
    // A socket does as well as a port.
    let host = Host::start(
        "one",
        &format!("store = \"unix://{}\"", redis.socket().display()),
        LIMIT,
    );
    joins(&host);
    for _ in 0..5 {
        assert_eq!(redis.cli(&["script", "flush"]), "OK");
        std::thread::sleep(Duration::from_millis(200));
    }
    host.until(PATIENCE, "leased", |cluster| {
        cluster["limits"][0]["share_from"] == "lease"
    });
    let cluster = host.cluster();
    let error = cluster["last_error"]
        .as_str()
        .unwrap_or_default()
        .to_lowercase();
    assert!(!error.contains("script"), "{error}");
}
