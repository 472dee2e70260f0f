//! `[[ban_list]]`: files and URLs, refreshes, exceptions, restarts.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network};
use crate::traffic::{LIMIT, PORT, burst, udp_from, udp6_from, v6};

pub const TESTS: &[Test] = tests![
    a_list_in_a_file_refuses_and_follows_the_file,
    a_list_with_the_hosts_own_network_is_reported,
    a_server_that_requests_a_later_attempt_gets_one_request,
    exempt_addresses_and_observe_mode_win_over_lists,
    an_unban_inside_a_list_is_an_exception_that_survives_refreshes_and_restarts,
    a_list_from_a_url_outlives_its_server_and_the_agent,
    a_list_with_a_long_validator_outlives_its_server_and_the_agent,
    bad_replies_are_reported_and_change_nothing,
    a_list_is_replaced_under_traffic_without_a_gap,
    a_reload_adds_and_removes_lists,
    a_hundred_thousand_prefixes_of_a_file_load,
    a_list_gives_its_addresses_a_class,
    a_class_has_the_last_copy_of_a_list_from_a_url,
];

fn file(network: &Network, name: &str) -> PathBuf {
    network.state().with_file_name(name)
}

/// Replaces a list's file at once: whoever reads it meanwhile finds a whole one.
fn replace(network: &Network, path: &Path, text: &str) {
    let next = file(network, "next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(&next, path).unwrap();
}

fn list(name: &str, source: &str, more: &str) -> String {
    format!("[[ban_list]]\nname = {name:?}\n{source}\n{more}\n{LIMIT}")
}

fn of_file(path: &Path) -> String {
    format!("file = {path:?}\nevery = \"1h\"")
}

/// A status of one list.
fn status(agent: &Agent<'_>, nth: usize) -> Value {
    agent.json(&["status"])["ban_lists"]["lists"][nth].clone()
}

fn wait_for_list(agent: &Agent<'_>, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let list = status(agent, 0);
        if wanted(&list) {
            return list;
        }
        assert!(Instant::now() < deadline, "{what}: {list}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The packets of 20 that arrive from each of these sources.
fn arriving<const N: usize>(network: &Network, sources: [u8; N]) -> [usize; N] {
    let receiver = network.receiver(PORT);
    let frames: Vec<_> = sources.iter().map(|last| udp_from(*last)).collect();
    burst(network, &frames, 20 * N);
    let counts = receiver.counts();
    sources.map(|last| counts[usize::from(last)] as usize)
}

fn a_list_with_the_hosts_own_network_is_reported() {
    let network = Network::new();
    let path = file(&network, "bogons.netset");
    std::fs::write(&path, "0.0.0.0/8\n10.0.0.0/8\n192.0.2.0/24\n").unwrap();
    let of = |agent: &str| {
        let config = network.config(agent, &list("bogons", &of_file(&path), ""));
        let output = network.command(&["check", config.to_str().unwrap()]);
        (config, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (config, warned) = of("");
    for part in [
        "ban list \"bogons\"",
        "the network of",
        "by 10.0.0.0/8",
        "0.0.0.0 (the source of DHCP requests) by 0.0.0.0/8",
    ] {
        assert!(warned.contains(part), "{part} in {warned}");
    }
    let notes = |agent: &Agent<'_>| agent.json(&["status"])["notes"].to_string();
    let agent = network.start_file(&config, &[]);
    assert!(
        notes(&agent).contains("the network of"),
        "{}",
        notes(&agent)
    );
    // Exempt, it is not refused.
    let (_, warned) = of("never_limit = [\"10.0.0.0/8\", \"0.0.0.0\"]");
    assert!(!warned.contains("ban list"), "{warned}");
    network.told(&["reload"]);
    assert!(
        !notes(&agent).contains("the network of"),
        "{}",
        notes(&agent)
    );
    // A file that is no list is an error of `check`.
    std::fs::write(&path, "001.002.003.004 - 001.002.003.255 , 000 , name\n").unwrap();
    let output = network.command(&["check", config.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("1 of 1 lines are invalid"), "{said}");
}

fn a_server_that_requests_a_later_attempt_gets_one_request() {
    let network = Network::new();
    let slow =
        b"HTTP/1.1 429 Slow\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let server = Server::new(
        &network,
        Box::new(move |_, stream| drop(stream.write_all(slow))),
    );
    let source = format!("url = {:?}\nevery = \"1s\"", server.url);
    let agent = network.start("", &list("drop", &source, ""));
    let failed = wait_for_list(&agent, "a failed request", |list| {
        !list["problem"].is_null()
    });
    let problem = failed["problem"].as_str().unwrap();
    assert!(
        problem.contains("status 429 and Retry-After, 1 h"),
        "{failed}"
    );
    // Also after a reload, and more than two intervals.
    network.told(&["reload"]);
    let wait = status(&agent, 0)["next_in_seconds"].as_f64().unwrap();
    assert!(wait > 60.0, "{wait}");
    thread::sleep(Duration::from_millis(2_500));
    assert_eq!(server.heads.lock().unwrap().len(), 1);
}

fn a_list_in_a_file_refuses_and_follows_the_file() {
    let network = Network::new();
    let path = file(&network, "drop.netset");
    std::fs::write(
        &path,
        "# test\n10.77.0.7\nfd77:0:0:3::/64\nrubbish\n198.51.100.0/24\n",
    )
    .unwrap();
    let agent = network.start("", &list("drop", &of_file(&path), "format = \"netset\""));
    // In effect when the agent is ready.
    assert_eq!(arriving(&network, [7, 8]), [0, 20]);
    burst(&network, &[udp6_from(v6(3, 1)), udp6_from(v6(4, 1))], 20);
    let shown = status(&agent, 0);
    assert_eq!(
        (
            &shown["name"],
            &shown["prefixes"],
            &shown["throttled_packets"]
        ),
        (&"drop".into(), &3.into(), &30.into())
    );
    assert!(
        shown["note"]
            .as_str()
            .unwrap()
            .contains("line 4: \"rubbish\""),
        "{shown}"
    );
    assert_eq!(agent.json(&["status"])["bypass"]["banned"], 30);
    let ban = agent.json(&["show", "10.77.0.7"])["ban"].clone();
    assert_eq!(
        (&ban["origin"], &ban["cidr"], &ban["expires_in_seconds"]),
        (&"list:drop".into(), &"10.77.0.7".into(), &Value::Null)
    );
    let since = ban["since"].as_f64().unwrap();
    let text = network.command(&["show", "10.77.0.7"]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("by list drop since "), "{text}");
    assert_eq!(agent.json(&["show", "10.77.0.8"])["ban"], Value::Null);
    // Replaced as editors do.
    let next = file(&network, "next");
    let new = "10.77.0.7\n10.77.0.8\n10.77.0.9\n198.51.100.0/24\n";
    std::fs::write(&next, new).unwrap();
    std::fs::rename(&next, &path).unwrap();
    wait_for_list(&agent, "the new file", |list| {
        list["note"].is_null() && list["prefixes"] == 4
    });
    assert_eq!(arriving(&network, [7, 8, 10]), [0, 0, 20]);
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["ban"]["since"]
            .as_f64()
            .unwrap(),
        since,
        "it stayed in the list"
    );
    // Counters of the map before are kept.
    assert_eq!(status(&agent, 0)["throttled_packets"], 70);
    // Not written in place: the agent may read the file before its end.
    std::fs::write(&next, "10.77.0.10\n").unwrap();
    std::fs::rename(&next, &path).unwrap();
    let list = wait_for_list(&agent, "a list that shrank", |list| {
        !list["problem"].is_null()
    });
    assert!(
        list["problem"]
            .as_str()
            .unwrap()
            .contains("from 4 to 1 prefixes"),
        "{list}"
    );
    assert_eq!(arriving(&network, [7, 8, 10]), [0, 0, 20]);
    let events = agent.events(3, |event| event["source"] == "list drop");
    let verdicts: Vec<_> = events
        .iter()
        .map(|event| event["verdict"].clone())
        .collect();
    assert_eq!(verdicts, ["list-updated", "list-updated", "list-failed"]);
    let bans = network.command(&["bans"]);
    let bans = String::from_utf8_lossy(&bans.stdout).into_owned();
    assert!(
        bans.contains("LIST") && bans.contains("drop.netset") && bans.contains("shrank"),
        "{bans}"
    );
}

fn exempt_addresses_and_observe_mode_win_over_lists() {
    let network = Network::new();
    let path = file(&network, "drop.txt");
    std::fs::write(&path, "10.77.0.0/24\n").unwrap();
    let text = list("drop", &of_file(&path), "");
    let agent = network.start("never_limit = [\"10.77.0.7\"]", &text);
    assert_eq!(arriving(&network, [7, 8]), [20, 0]);
    let shown = agent.json(&["show", "10.77.0.7"]);
    assert_eq!(
        (&shown["never_limit"], &shown["ban"]),
        (&true.into(), &Value::Null)
    );
    network.config("mode = \"observe\"", &text);
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [8]), [20]);
    assert_eq!(agent.json(&["show", "10.77.0.8"])["ban"], Value::Null);
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(
        notes.contains("ban lists are suspended in observe mode"),
        "{notes}"
    );
    network.config("", &text);
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [8]), [0]);
}

fn an_unban_inside_a_list_is_an_exception_that_survives_refreshes_and_restarts() {
    let network = Network::new();
    let path = file(&network, "drop.txt");
    std::fs::write(&path, "10.77.0.0/24\n198.51.100.0/24\n").unwrap();
    let text = list("drop", &of_file(&path), "");
    let agent = network.start("", &text);
    assert_eq!(arriving(&network, [7, 8]), [0, 0]);
    let unbanned = agent.json(&["unban", "10.77.0.7"]);
    assert_eq!(
        (&unbanned["was_banned"], &unbanned["excepted"][0]["list"]),
        (&true.into(), &"drop".into())
    );
    assert_eq!(arriving(&network, [7, 8]), [20, 0]);
    replace(
        &network,
        &path,
        "10.77.0.0/24\n10.77.0.7\n198.51.100.0/24\n",
    );
    wait_for_list(&agent, "the new file", |list| list["prefixes"] == 3);
    assert_eq!(arriving(&network, [7, 8]), [20, 0]);
    agent.stop(Signal::SIGTERM);
    let agent = network.start("", &text);
    assert_eq!(arriving(&network, [7, 8]), [20, 0]);
    assert_eq!(
        agent.json(&["status"])["ban_lists"]["exceptions"],
        serde_json::json!(["10.77.0.7"])
    );
    assert_eq!(
        agent.json(&["unban", "203.0.113.1"])["was_banned"],
        false,
        "no list contains it"
    );
    // An order to ban it ends the exception.
    network.told(&["ban", "10.77.0.7"]);
    network.told(&["unban", "10.77.0.9"]);
    assert_eq!(
        agent.json(&["status"])["ban_lists"]["exceptions"],
        serde_json::json!(["10.77.0.9"])
    );
    assert_eq!(arriving(&network, [7, 9]), [0, 20]);
}

/// A server in the agent's namespace, whose replies the test chooses.
struct Server {
    url: String,
    reply: Arc<Mutex<Reply>>,
    heads: Arc<Mutex<Vec<String>>>,
}

type Reply = Box<dyn FnMut(&str, &mut TcpStream) + Send>;

impl Server {
    fn new(network: &Network, reply: Reply) -> Self {
        let listener = network.in_server(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let url = format!("http://{}/drop.txt", listener.local_addr().unwrap());
        let server = Self {
            url,
            reply: Arc::new(Mutex::new(reply)),
            heads: Arc::default(),
        };
        let (reply, heads) = (Arc::clone(&server.reply), Arc::clone(&server.heads));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                    head.push(byte[0]);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                heads.lock().unwrap().push(head.clone());
                (reply.lock().unwrap())(&head, &mut stream);
            }
        });
        server
    }

    fn replies(&self, reply: Reply) {
        *self.reply.lock().unwrap() = reply;
    }

    fn requests(&self) -> usize {
        self.heads.lock().unwrap().len()
    }

    fn wait_for_requests(&self, more: usize) {
        let (before, deadline) = (self.requests(), Instant::now() + Duration::from_secs(300));
        while self.requests() < before + more {
            assert!(Instant::now() < deadline, "no request in a minute");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A reply with this body, to which an ETag belongs.
fn body(text: &'static str) -> Reply {
    Box::new(move |head, stream| {
        let is_known = head.contains(&format!("if-none-match: \"{}\"", text.len()));
        let reply = match is_known {
            true => "HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n".to_owned(),
            false => format!(
                "HTTP/1.1 200 OK\r\nETag: \"{}\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len(),
                text.len()
            ),
        };
        drop(stream.write_all(reply.as_bytes()));
    })
}

fn of_url(server: &Server) -> String {
    format!("url = {:?}\nevery = \"1s\"", server.url)
}

fn a_list_from_a_url_outlives_its_server_and_the_agent() {
    let network = Network::new();
    let server = Server::new(&network, body("10.77.0.7\n10.77.0.8\n"));
    let text = list("drop", &of_url(&server), "");
    let agent = network.start("", &text);
    wait_for_list(&agent, "the first reply", |list| list["prefixes"] == 2);
    assert_eq!(arriving(&network, [7, 8, 9]), [0, 0, 20]);
    // Further requests have the ETag, and a new content is taken up.
    server.wait_for_requests(2);
    assert!(
        server
            .heads
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .contains("if-none-match: \"20\"")
    );
    server.replies(body("10.77.0.7\n10.77.0.9\n10.77.0.10\n"));
    wait_for_list(&agent, "the second content", |list| list["prefixes"] == 3);
    assert_eq!(arriving(&network, [7, 8, 9]), [0, 20, 0]);
    // The server fails, and a reboot takes what is in the kernel.
    server.replies(Box::new(|_, stream| {
        drop(
            stream
                .write_all(b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        );
    }));
    let list = wait_for_list(&agent, "a server that is away", |list| {
        !list["problem"].is_null()
    });
    assert!(
        list["problem"].as_str().unwrap().contains("status 503"),
        "{list}"
    );
    agent.stop(Signal::SIGTERM);
    let config = network.config("", &text);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    assert_eq!(arriving(&network, [7]), [20]);
    let agent = network.start("", &text);
    assert_eq!(arriving(&network, [7, 8, 9]), [0, 20, 0]);
    // A kill leaves the lists in the kernel, and the next agent takes them over.
    agent.stop(Signal::SIGKILL);
    assert_eq!(arriving(&network, [7, 8]), [0, 20]);
    let _agent = network.start("", &text);
    assert_eq!(arriving(&network, [7, 8]), [0, 20]);
}

fn a_list_with_a_long_validator_outlives_its_server_and_the_agent() {
    let network = Network::new();
    let reply = format!(
        "HTTP/1.1 200 OK\r\nETag: \"{}\"\r\nContent-Length: 10\r\nConnection: close\r\n\r\n10.77.0.7\n",
        "e".repeat(50_000)
    );
    let answer = move |_: &str, stream: &mut TcpStream| drop(stream.write_all(reply.as_bytes()));
    let server = Server::new(&network, Box::new(answer));
    let text = list("drop", &of_url(&server), "");
    let agent = network.start("", &text);
    wait_for_list(&agent, "the first reply", |list| list["prefixes"] == 1);
    server.wait_for_requests(2);
    assert!(
        !server
            .heads
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .contains("if-none-match")
    );
    server.replies(Box::new(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 503 Away\r\n\r\n"));
    }));
    agent.stop(Signal::SIGTERM);
    let config = network.config("", &text);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let _agent = network.start("", &text);
    assert_eq!(arriving(&network, [7, 8]), [0, 20]);
}

fn bad_replies_are_reported_and_change_nothing() {
    let network = Network::new();
    let server = Server::new(&network, body("10.77.0.7\n"));
    let agent = network.start("", &list("drop", &of_url(&server), ""));
    wait_for_list(&agent, "the first reply", |list| list["prefixes"] == 1);
    let sends = |reply: &'static [u8]| -> Reply {
        Box::new(move |_, stream| drop(stream.write_all(reply)))
    };
    let rubbish: Reply = Box::new(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"));
        let line = b"<p>this is no list</p>\n".repeat(1000);
        for _ in 0..20 {
            drop(stream.write_all(&line));
        }
    });
    let endless: Reply = Box::new(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"));
        let block = vec![b'\n'; 1 << 20];
        while stream.write_all(&block).is_ok() {}
    });
    let cases: [(&str, Reply); 7] = [
        ("lines are invalid", rubbish),
        (
            "redirects",
            sends(b"HTTP/1.1 302 Found\r\nLocation: /drop.txt\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        ),
        ("larger than", sends(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\n10.77.0.8\n")),
        ("larger than", endless),
        ("closed before", sends(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n10.77.0.8\n10.77.0.9\n")),
        ("status 500", sends(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")),
        ("it shrank from 1 to 0", sends(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")),
    ];
    for (wanted, reply) in cases {
        server.replies(body("10.77.0.7\n"));
        wait_for_list(&agent, "a valid reply", |list| list["problem"].is_null());
        server.replies(reply);
        let list = wait_for_list(&agent, wanted, |list| {
            list["problem"]
                .as_str()
                .is_some_and(|why| why.contains(wanted))
        });
        assert_eq!(list["prefixes"], 1);
        assert_eq!(arriving(&network, [7, 8, 9]), [0, 20, 20]);
        let notes = agent.json(&["status"])["notes"].to_string();
        assert!(notes.contains("its 1 prefixes stay in effect"), "{notes}");
    }
}

fn a_list_is_replaced_under_traffic_without_a_gap() {
    let network = Network::new();
    let path = file(&network, "drop.txt");
    // The file has 10.77.0.7 in each version.
    let version = |nth: u32| -> String {
        let others = (0..2_000u32).map(|at| {
            format!(
                "{}\n",
                std::net::Ipv4Addr::from(0x0b00_0000 + nth * 7 + at * 3)
            )
        });
        format!("10.77.0.7\n{}", others.collect::<String>())
    };
    std::fs::write(&path, version(0)).unwrap();
    let text = list("drop", &of_file(&path), "");
    let agent = network.start("", &text);
    let receiver = network.receiver(PORT);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0u64;
            while !is_over.load(std::sync::atomic::Ordering::Acquire) {
                burst(&network, &[udp_from(7)], 50);
                sent += 50;
            }
            sent
        });
        for nth in 1..=10 {
            let next = file(&network, "next");
            std::fs::write(&next, version(nth)).unwrap();
            std::fs::rename(&next, &path).unwrap();
            let first = std::net::Ipv4Addr::from(0x0b00_0000 + nth * 7).to_string();
            let deadline = Instant::now() + Duration::from_secs(300);
            while agent.json(&["show", &first])["ban"].is_null() {
                assert!(Instant::now() < deadline, "version {nth} is not in effect");
                thread::sleep(Duration::from_millis(20));
            }
            if nth % 3 == 0 {
                network.told(&["reload"]);
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Release);
        sender.join().unwrap()
    });
    assert!(sent > 0);
    assert_eq!(receiver.counts()[7], 0, "of {sent} packets");
    assert_eq!(
        status(&agent, 0)["throttled_packets"],
        sent,
        "no packet is lost from the counters"
    );
}

fn a_reload_adds_and_removes_lists() {
    let network = Network::new();
    let (one, two) = (file(&network, "one.txt"), file(&network, "two.csv"));
    std::fs::write(&one, "10.77.0.7\n").unwrap();
    std::fs::write(&two, "ip,score\n10.77.0.8,5\n").unwrap();
    let agent = network.start("", LIMIT);
    assert_eq!(agent.json(&["status"])["ban_lists"], Value::Null);
    assert_eq!(arriving(&network, [7, 8]), [20, 20]);
    let both = format!(
        "[[ban_list]]\nname = \"two\"\nfile = {two:?}\nformat = \"csv:ip\"\n{}",
        list("one", &of_file(&one), "")
    );
    network.config("", &both);
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [7, 8]), [0, 0]);
    assert_eq!(
        agent.json(&["show", "10.77.0.8"])["ban"]["origin"],
        "list:two"
    );
    network.config("", &list("one", &of_file(&one), ""));
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [7, 8]), [0, 20]);
    network.config("", LIMIT);
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [7, 8]), [20, 20]);
    // Lists of before are not in effect for an instant.
    network.config(
        "",
        &list("three", &format!("file = {two:?}"), "format = \"csv:1\""),
    );
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [7, 8]), [20, 0]);
}

/// `cargo xtask bench lists` loads a million.
fn a_hundred_thousand_prefixes_of_a_file_load() {
    let network = Network::new();
    let path = file(&network, "many.txt");
    // An odd multiplier gives distinct addresses.
    let addresses = (0..100_000u32)
        .map(|nth| nth.wrapping_mul(2_654_435_761))
        .filter(|address| address >> 16 != 0x0a4d);
    let text: String = addresses
        .map(|address| format!("{}\n", std::net::Ipv4Addr::from(address)))
        .collect();
    std::fs::write(&path, text + "10.77.0.7\n").unwrap();
    let agent = network.start("", &list("many", &of_file(&path), ""));
    assert_eq!(arriving(&network, [7, 8]), [0, 20]);
    let lists = agent.json(&["status"])["ban_lists"].clone();
    assert!(
        lists["lists"][0]["prefixes"].as_u64().unwrap() > 99_900,
        "{lists}"
    );
    network.told(&["unban", "10.77.0.7"]);
    assert_eq!(arriving(&network, [7, 8]), [20, 20]);
}

/// Two classes: one of a list, and one with sources of its own. The limit passes 5 packets.
fn of_classes(source: &str) -> String {
    format!(
        "[[class]]\nname = \"slow\"\nsources = [\"10.77.0.40\", \"10.77.0.64/26\"]\nmultiplier = 0.2\n\
         [[class]]\nname = \"partner\"\nmultiplier = 3\n\
         [[ban_list]]\nname = \"partners\"\n{source}\naction = \"class:partner\"\n\
         [[limit]]\nname = \"packets\"\nrate = \"5/h\"\n"
    )
}

fn class_of(agent: &Agent<'_>, source: &str) -> String {
    agent.json(&["show", source])["class"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn a_list_gives_its_addresses_a_class() {
    let network = Network::new();
    let path = file(&network, "partners.netset");
    std::fs::write(&path, "10.77.0.7\n10.77.0.16/30\n10.77.0.40\n10.77.0.65\n").unwrap();
    let text = of_classes(&of_file(&path));
    let agent = network.start("", &text);
    // In effect when the agent is ready. Sources of a class take precedence over the same prefix in a list.
    assert_eq!(
        arriving(&network, [7, 8, 17, 40, 65, 66]),
        [15, 5, 15, 1, 15, 1]
    );
    let shown = agent.json(&["show", "10.77.0.17"]);
    assert_eq!(
        (&shown["class"], &shown["ban"]),
        (&"partner".into(), &Value::Null)
    );
    let from = &shown["class_from"];
    assert_eq!(
        (&from["origin"], &from["cidr"]),
        (&"list:partners".into(), &"10.77.0.16/30".into())
    );
    assert!(from["since"].as_u64().unwrap() > 0);
    assert_eq!(
        agent.json(&["show", "10.77.0.40"])["class_from"],
        Value::Null
    );
    assert_eq!(class_of(&agent, "10.77.0.40"), "slow");
    let text_of = |arguments: &[&str]| {
        String::from_utf8_lossy(&network.command(arguments).stdout).into_owned()
    };
    let text_shown = text_of(&["show", "10.77.0.17"]);
    assert!(
        text_shown.contains("partner, by 10.77.0.16/30 in list partners"),
        "{text_shown}"
    );
    assert!(text_of(&["bans"]).contains("class:partner"));
    let listed = status(&agent, 0);
    assert_eq!(
        (&listed["action"], &listed["prefixes"]),
        (&"class:partner".into(), &4.into())
    );
    let config = network.config("", &text);
    let checked = text_of(&["check", config.to_str().unwrap()]);
    assert!(
        checked.contains("4 prefixes in ") && checked.contains("for class \"partner\""),
        "{checked}"
    );
    let warned =
        String::from_utf8_lossy(&network.command(&["check", config.to_str().unwrap()]).stderr)
            .into_owned();
    assert!(
        warned.contains("1 of 4 prefixes of list \"partners\" are in other classes"),
        "{warned}"
    );
    // It is no ban: nothing to lift.
    assert_eq!(agent.json(&["unban", "10.77.0.17"])["was_banned"], false);
    assert_eq!(class_of(&agent, "10.77.0.17"), "partner");
    // A new file.
    let next = file(&network, "next");
    std::fs::write(&next, "10.77.0.9\n10.77.0.16/30\n10.77.0.40\n").unwrap();
    std::fs::rename(&next, &path).unwrap();
    agent.wait_for("the class of the new file", |_| {
        class_of(&agent, "10.77.0.9") == "partner"
    });
    assert_eq!(class_of(&agent, "10.77.0.7"), "default");
    assert_eq!(arriving(&network, [9, 10, 18]), [15, 5, 15]);
    // An empty one.
    std::fs::write(&path, "").unwrap();
    let list = wait_for_list(&agent, "a list that shrank", |list| {
        !list["problem"].is_null()
    });
    assert!(
        list["problem"]
            .as_str()
            .unwrap()
            .contains("from 3 to 0 prefixes"),
        "{list}"
    );
    network.told(&["reload"]);
    assert_eq!(
        (
            class_of(&agent, "10.77.0.9"),
            status(&agent, 0)["prefixes"].clone()
        ),
        ("partner".into(), 3.into())
    );
    agent.stop(Signal::SIGTERM);
    let agent = network.start("", &text);
    assert_eq!(arriving(&network, [19, 11]), [15, 5]);
    assert_eq!(class_of(&agent, "10.77.0.9"), "partner");
    // Classes are those of enforcement; nothing is refused.
    network.config("mode = \"observe\"", &text);
    network.told(&["reload"]);
    assert_eq!(arriving(&network, [16]), [20]);
    let shown = agent.json(&["show", "10.77.0.16"]);
    assert_eq!(
        (
            &shown["class"],
            &shown["limits"][0]["would_throttle_packets"]
        ),
        (&"partner".into(), &5.into())
    );
    assert!(
        !agent.json(&["status"])["notes"]
            .to_string()
            .contains("ban lists are suspended")
    );
    // Without the list, its class is empty.
    std::fs::write(&path, "10.77.0.9\n").unwrap();
    let without = text.replace(
        "multiplier = 3",
        "sources = [\"10.77.0.12\"]\nmultiplier = 3",
    );
    let (before, after) = without.split_once("[[ban_list]]").unwrap();
    let limit = after.split_once("[[limit]]").unwrap().1;
    network.config("", &format!("{before}[[limit]]{limit}"));
    network.told(&["reload"]);
    assert_eq!(
        (
            class_of(&agent, "10.77.0.9").as_str(),
            class_of(&agent, "10.77.0.12").as_str()
        ),
        ("default", "partner")
    );
}

fn a_class_has_the_last_copy_of_a_list_from_a_url() {
    let network = Network::new();
    let server = Server::new(&network, body("10.77.0.7\n10.77.0.8\n"));
    let text = of_classes(&of_url(&server));
    let agent = network.start("", &text);
    agent.wait_for("the first reply", |_| {
        class_of(&agent, "10.77.0.7") == "partner"
    });
    assert_eq!(arriving(&network, [7, 9]), [15, 5]);
    let bad = |reply: &'static [u8]| -> Reply {
        Box::new(move |_, stream| drop(stream.write_all(reply)))
    };
    server.replies(bad(
        b"HTTP/1.1 503 Away\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    ));
    let list = wait_for_list(&agent, "a server that is away", |list| {
        !list["problem"].is_null()
    });
    assert_eq!(list["prefixes"], 2, "{list}");
    agent.stop(Signal::SIGKILL);
    let _agent = network.start("", &text);
    assert_eq!(arriving(&network, [8, 10]), [15, 5]);
}
