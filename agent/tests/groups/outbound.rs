//! Connections of a group's processes: never more than the limits, with any target and listener; and
//! what a group is billed for.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use testbed::groups::{Host, Worker};

/// A pause between two attempts in which a bucket of a second's burst may have become full, so that allowance was lost.
const PAUSE: Duration = Duration::from_millis(500);

/// The attempts of a scan, on a machine that has no time for it.
const LEAST: u32 = 100;

/// Does `act` with ever new addresses of the loopback's for so long, and at least [`LEAST`] times. Prints what was let through and refused, the
/// nanoseconds that passed, and those of pauses.
pub fn scan(act: &str, milliseconds: u64) {
    let udp = UdpSocket::bind("0.0.0.0:0").unwrap();
    let udp_v6 = UdpSocket::bind("[::]:0").unwrap();
    // Of its own: a destination that another scan has paid for is free.
    let range = match act {
        "udp" | "udp6" => 1,
        "datagram" => 2,
        "datagram6" => 3,
        _ => 0,
    };
    let start = Instant::now();
    let (mut passed, mut refused) = (0u64, 0u64);
    let (mut last, mut paused) = (start, Duration::ZERO);
    let mut nth = 0u32;
    while start.elapsed() < Duration::from_millis(milliseconds) || nth < LEAST {
        nth += 1;
        let pause = last.elapsed();
        last += pause;
        if pause >= PAUSE {
            paused += pause;
        }
        let address = Ipv4Addr::from(0x7f00_0100 + range * (1 << 22) + nth % 0x3f_ff00);
        let to = SocketAddr::from((address, 9));
        let mapped = SocketAddr::from((address.to_ipv6_mapped(), 9));
        let result = match act {
            // Nobody listens there: what is let through is answered by a reset.
            "tcp" => TcpStream::connect(to).map(drop),
            "udp" => udp.connect(to),
            "udp6" => udp_v6.connect(mapped),
            "datagram" => udp.send_to(b"x", to).map(drop),
            "datagram6" => udp_v6.send_to(b"x", mapped).map(drop),
            "one" => udp.send_to(b"x", "127.9.9.9:9").map(drop),
            other => panic!("no such way to scan: {other:?}"),
        };
        match result {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => refused += 1,
            _ => passed += 1,
        }
    }
    println!(
        "{passed} {refused} {} {}",
        start.elapsed().as_nanos(),
        paused.as_nanos()
    );
}

/// What a scan prints.
fn scanned(worker: &mut Worker) -> [f64; 4] {
    let line = worker.line();
    let numbers: Vec<f64> = line
        .split(' ')
        .map(|number| number.parse().unwrap())
        .collect();
    numbers.try_into().unwrap_or_else(|_| panic!("{line:?}"))
}

/// Lets a worker scan, and checks what it reached against `burst` and `rate` a second. Returns it, and what was refused.
fn assert_scan(host: &Host, act: &str, burst: f64, rate: f64) -> [f64; 2] {
    let mut worker = host.spawn(&["scan", act, "1500"]);
    let spawned = Instant::now();
    worker.begin();
    let [passed, refused, nanoseconds, paused] = scanned(&mut worker);
    // The rest of the burst is unknown, and none of it is granted twice.
    let most = burst + rate * (nanoseconds / 1e9) + 1.0;
    let least = rate * ((nanoseconds - paused) / 1e9) * 0.9 - 2.0;
    assert!(
        passed <= most && passed >= least,
        "{act}: {passed} of at most {most} in {nanoseconds} ns"
    );
    assert!(
        refused > passed,
        "{act}: {refused} refused in {:?}",
        spawned.elapsed()
    );
    [passed, refused]
}

/// The sums of what several scans reached and were refused.
fn sums(scans: &[[f64; 2]]) -> [f64; 2] {
    [0, 1].map(|nth| scans.iter().map(|scan| scan[nth]).sum())
}

pub fn a_scanner_never_exceeds_its_connects() {
    let mut host = Host::new();
    host.start("", "network = { connects = \"20/s\" }");
    let scans = ["tcp", "udp", "udp6"].map(|act| assert_scan(&host, act, 20.0, 20.0));
    // A datagram is no connection.
    let mut worker = host.spawn(&["scan", "datagram", "200"]);
    worker.begin();
    assert_eq!(scanned(&mut worker)[1], 0.0);

    let network = host.group()["network"].clone();
    let counted = ["connects", "connects_refused"].map(|name| network[name].as_f64().unwrap());
    assert_eq!(counted, sums(&scans), "{network}");
    assert_eq!(network["destinations"], 0, "{network}");
    let last = &network["last_refusal"];
    assert_eq!(
        (&last["limit"], &last["program"], &last["port"]),
        (&"connects".into(), &"worker".into(), &9.into())
    );
    assert!(
        last["destination"].as_str().unwrap().starts_with("127."),
        "{last}"
    );
    let table = String::from_utf8(host.command(&["groups"]).stdout).unwrap();
    assert!(
        table.contains("connections above connects") && table.contains("worker (process"),
        "{table}"
    );
    let deadline = Instant::now() + Duration::from_secs(300);
    let events = || String::from_utf8(host.command(&["events", "--json"]).stdout).unwrap();
    while !events().contains("\"limit\":\"connects\"") {
        assert!(Instant::now() < deadline, "{}", events());
        std::thread::sleep(Duration::from_millis(50));
    }
}

pub fn a_scanner_never_exceeds_its_destinations() {
    let mut host = Host::new();
    host.start("", "network = { destinations = \"40/2s\" }");
    let scans =
        ["tcp", "udp", "datagram", "datagram6"].map(|act| assert_scan(&host, act, 40.0, 20.0));
    // One destination is charged once in its period, however much is sent to it.
    let mut worker = host.spawn(&["scan", "one", "1000"]);
    std::thread::sleep(Duration::from_millis(500));
    worker.begin();
    let [passed, refused, ..] = scanned(&mut worker);
    assert!(
        refused == 0.0 && passed >= LEAST.into(),
        "{passed} {refused}"
    );
    let network = host.group()["network"].clone();
    let [_, refused] = sums(&scans);
    assert_eq!(
        network["destinations_refused"].as_f64(),
        Some(refused),
        "{network}"
    );
    assert_eq!(network["connects_refused"], 0, "{network}");
}

pub fn a_connection_is_charged_to_all_of_its_limits_or_to_none() {
    let mut host = Host::new();
    // A connection that one of them refuses is not charged to the other.
    host.start(
        "",
        "network = { connects = \"1000/s\", destinations = \"10/h\" }",
    );
    let mut worker = host.spawn(&["scan", "tcp", "1000"]);
    worker.begin();
    let [passed, refused, ..] = scanned(&mut worker);
    assert_eq!(passed, 10.0);
    assert!(passed + refused >= LEAST.into(), "{refused}");
    let network = host.group()["network"].clone();
    assert_eq!(
        (
            &network["connects"],
            &network["destinations"],
            &network["connects_refused"]
        ),
        (&10.into(), &10.into(), &0.into()),
        "{network}"
    );
    // Nobody is there: the limit and what is known stay.
    let mut worker = host.spawn(&["scan", "tcp", "200"]);
    host.stop(Signal::SIGKILL);
    worker.begin();
    assert_eq!(
        scanned(&mut worker)[0],
        10.0,
        "the first ten are known, and there is nothing left for others"
    );
}

pub fn limits_on_connections_outlive_their_agent_and_no_config() {
    let mut host = Host::new();
    let limits = "network = { connects = \"1000000/s\", destinations = \"1/day\" }";
    host.start("", limits);
    let one = |host: &Host| {
        let mut worker = host.spawn(&["scan", "one", "100"]);
        worker.begin();
        scanned(&mut worker)
    };
    assert_eq!(one(&host)[1], 0.0);
    host.stop(Signal::SIGKILL);
    host.start("", limits);
    assert_eq!(
        one(&host)[1],
        0.0,
        "the next agent forgot a destination that was paid for"
    );
    // Another one.
    let mut other = host.spawn(&["scan", "tcp", "100"]);
    other.begin();
    assert_eq!(scanned(&mut other)[0], 0.0);
    host.stop(Signal::SIGTERM);
    // Without the limits nothing of them is left.
    host.start("on_exit = \"detach\"", "pids = 50");
    let mut worker = host.spawn(&["scan", "tcp", "100"]);
    worker.begin();
    assert_eq!(scanned(&mut worker)[1], 0.0);
    host.stop(Signal::SIGTERM);
    assert!(!host.has_remains());
}

pub fn packets_that_a_group_sends_are_limited() {
    let mut host = Host::new();
    host.start("", "network = { packets = \"100/s\" }");
    let mut worker = host.spawn(&["scan", "one", "2000"]);
    worker.begin();
    let [let_through, refused, nanoseconds, paused] = scanned(&mut worker);
    let network = host.group()["network"].clone();
    let most = 100.0 + 100.0 * (nanoseconds / 1e9) + 1.0;
    let least = 0.9 * 100.0 * ((nanoseconds - paused) / 1e9);
    // 1 byte, and 28 of headers.
    let passed = network["egress_bytes"].as_f64().unwrap() / 29.0;
    assert!(
        passed <= most && passed >= least,
        "{passed} of {least} to {most}"
    );
    let sent = let_through + refused;
    assert_eq!(
        network["packets_refused"].as_f64(),
        Some(sent - passed),
        "{network}"
    );
}

pub fn usage_is_right_over_restarts_and_kills_of_the_agent() {
    // Memory is counted where its controller is enabled, for a limit.
    const LIMITS: &str = "pids = 50\nmemory = { max = \"1GiB\" }";
    let mut host = Host::new();
    // Its CPU time is known, however long the machine takes to give it.
    let used = |worker: &mut Worker| {
        worker.begin();
        assert_eq!(worker.line(), "used");
    };
    // The same numbers by two ways: what the group's cgroup has used since it was made, and what was billed.
    let assert_billed = |host: &Host| {
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            let used = host.group();
            let rows = host.json(&["usage", "--group", "g"]);
            let sum = |name: &str| {
                rows.as_array()
                    .unwrap()
                    .iter()
                    .map(|row| row[name].as_f64().unwrap())
                    .sum::<f64>()
            };
            let (cpu, sent) = (
                used["cpu"]["usage_seconds"].as_f64().unwrap(),
                &used["network"]["egress_bytes"],
            );
            assert!(
                sum("cpu_seconds") <= cpu + 0.02
                    && sum("network_egress_bytes") <= sent.as_f64().unwrap(),
                "{used} {rows}"
            );
            if sum("memory_byte_seconds") > 0.0
                && sum("cpu_seconds") >= cpu - 0.02
                && sum("network_egress_bytes") == sent.as_f64().unwrap()
            {
                return (
                    sum("cpu_seconds"),
                    sum("network_egress_bytes"),
                    sum("memory_byte_seconds"),
                );
            }
            assert!(Instant::now() < deadline, "{used} {rows}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    host.start("", LIMITS);
    // Memory is charged to the group that a process is in when it takes it: what it had before is another's.
    let mut holder = host.spawn(&["hold", "1"]);
    holder.begin();
    assert_eq!(holder.line(), "held");
    used(&mut host.spawn(&["use", "300"]));
    let mut sender = host.spawn(&["scan", "one", "100"]);
    sender.begin();
    sender.line();
    let (mut cpu, sent, _) = assert_billed(&host);
    assert!(cpu > 0.2 && sent >= 29.0 * f64::from(LEAST), "{cpu} {sent}");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        // Usage between two looks is recorded, too.
        let mut worker = host.spawn(&["use", "200"]);
        host.stop(signal);
        used(&mut worker);
        host.start("", LIMITS);
        let (after, _, memory) = assert_billed(&host);
        assert!(
            after > cpu + 0.1 && memory > 0.0,
            "{signal}: {cpu} {after} {memory}"
        );
        cpu = after;
    }
    let csv = String::from_utf8(host.command(&["usage", "--csv"]).stdout).unwrap();
    let lines: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(
        lines.len() >= 2 && lines.iter().all(|fields| *fields == 8),
        "{csv}"
    );
    assert_eq!(
        host.json(&["usage", "--to", "1999-12-31"]),
        serde_json::json!([])
    );
    assert_eq!(
        host.command(&["usage", "--from", "yesterday"])
            .status
            .code(),
        Some(2)
    );
}
