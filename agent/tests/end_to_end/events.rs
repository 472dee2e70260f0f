//! Who was throttled, as the kernel tells it: few events of many packets, and none that is missing without a word.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::until;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_flood_of_refused_packets_gives_few_events_that_name_source_and_limit,
    each_of_many_throttled_sources_has_an_event,
    events_are_followed_live_as_json_lines_until_the_agent_goes,
    a_full_ring_loses_events_and_says_how_many,
    followers_that_hang_delay_no_client,
    an_observing_agent_reports_would_throttles,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n";

fn events(agent: &Agent<'_>, verdict: &str) -> Vec<Value> {
    let lines = agent.lines(&["events", "--json"]);
    lines
        .into_iter()
        .filter(|event| event["verdict"] == verdict)
        .collect()
}

/// A program's output, line by line.
struct Lines(Receiver<String>);

impl Lines {
    fn of(child: &mut Child) -> Self {
        let (sender, receiver) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // It ends with the program.
        std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self(receiver)
    }

    fn next(&self) -> String {
        self.0
            .recv_timeout(Duration::from_secs(300))
            .expect("another line")
    }
}

/// By definition one event at first, and then at most one a second.
fn most(time: Duration) -> usize {
    1 + time.as_secs() as usize
}

fn a_flood_of_refused_packets_gives_few_events_that_name_source_and_limit() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let (start, count) = (Instant::now(), 100_000);
    burst(&network, &[udp_from(7)], count);
    until("end of the flood", || {
        (agent.counts("packets").1 == count as u64 - 10).then_some(())
    });
    let time = start.elapsed();
    let told = until("event", || {
        Some(events(&agent, "throttled")).filter(|told| !told.is_empty())
    });
    assert!(
        told.len() <= most(time),
        "{} events in {time:?}",
        told.len()
    );
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    for event in &told {
        assert_eq!(
            (&event["source"], &event["limit"]),
            (&"10.77.0.7".into(), &"packets".into())
        );
        assert_eq!(event["direction"], "ingress");
        assert_eq!(event["reason"], "more than 1/h packets, burst 10");
        let age = now - event["time"].as_f64().unwrap();
        assert!(
            (-1.0..=start.elapsed().as_secs_f64() + 1.0).contains(&age),
            "{age} seconds ago"
        );
    }
    assert_eq!(told[0]["count"], 1, "the first refusal is told at once");
    assert!(
        told.windows(2)
            .all(|two| two[0]["count"].as_u64() < two[1]["count"].as_u64())
    );
    // For people, the same.
    let output = network.command(&["events"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.lines()
            .any(|line| line.contains("throttled") && line.contains("10.77.0.7")),
        "{text}"
    );
}

fn each_of_many_throttled_sources_has_an_event() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let frames: Vec<_> = (10..=209).map(udp_from).collect();
    let start = Instant::now();
    burst(&network, &frames, frames.len() * 100);
    until("end", || {
        (agent.counts("packets").1 == frames.len() as u64 * 90).then_some(())
    });
    let time = start.elapsed();
    let told = until("event of every source", || {
        let mut told: HashMap<String, usize> = HashMap::new();
        for event in events(&agent, "throttled") {
            *told
                .entry(event["source"].as_str().unwrap().to_owned())
                .or_default() += 1;
        }
        (told.len() == frames.len()).then_some(told)
    });
    assert!(
        told.values().all(|count| *count <= most(time)),
        "in {time:?}: {told:?}"
    );
    assert!(events(&agent, "lost").is_empty());
}

fn events_are_followed_live_as_json_lines_until_the_agent_goes() {
    let network = Network::new();
    let limit = "[[limit]]\nname = \"dns\"\nrate = \"1/h\"\nburst = 5\nprotocol = \"udp\"\nkey = \"source-port\"\n";
    let agent = network.start("", limit);
    let mut child = network.spawn(&["events", "--follow", "--json"], |command| {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    });
    let lines = Lines::of(&mut child);
    // It follows before it has anything to say; the first event may be one of those remembered, and comes all the same.
    for last in [7, 8] {
        burst(&network, &[udp_from(last)], 50);
        let source = format!("10.77.0.{last} port {PORT}");
        let event = loop {
            let event: Value = serde_json::from_str(&lines.next()).unwrap();
            // If sending took longer than a second, the one before has another event, and the limit an attack.
            if event["source"] == *source || !is_follow_up(&event, last - 1) {
                break event;
            }
        };
        assert_eq!(event["source"], *source, "{event}");
        assert_eq!(
            (&event["limit"], &event["verdict"]),
            (&"dns".into(), &"throttled".into())
        );
        assert_eq!(
            (&event["protocol"], &event["port"]),
            (&"udp".into(), &PORT.into())
        );
    }
    drop(agent);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("closed the connection"), "{said}");
}

/// Whether an event is of the source before, or about a limit.
fn is_follow_up(event: &Value, last: u8) -> bool {
    let is_of_limit = event["verdict"]
        .as_str()
        .is_some_and(|verdict| verdict.starts_with("attack"));
    is_of_limit || event["source"] == format!("10.77.0.{last} port {PORT}")
}

fn a_full_ring_loses_events_and_says_how_many() {
    const SOURCES: u32 = 3_000;
    let network = Network::new();
    let agent = network.start(
        "max_sources = 100000",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 1\n",
    );
    let mut child = network.spawn(&["events", "--follow", "--json"], |command| {
        command.stdout(Stdio::piped());
    });
    let lines = Lines::of(&mut child);
    // Heard once, so that it does follow; an event of risen refusals may come before.
    burst(&network, &[udp_from(7)], 2);
    while !lines.next().contains("\"throttled\"") {}
    agent.signal(Signal::SIGSTOP);
    network.in_client(|| {
        let sender = Sender::new();
        let mut frame = Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4([11, 0, 0, 0], SERVER)
            .udp(5000, PORT, b"x")
            .build();
        for source in 0..SOURCES {
            // No more than a window of the kernel's quota has samples for.
            if source % 1_000 == 0 {
                std::thread::sleep(Duration::from_millis(150));
            }
            Frame::set_ipv4_source(&mut frame, (0x0b00_0000 + source).to_be_bytes());
            sender.send(&frame);
            sender.send(&frame);
        }
    });
    agent.signal(Signal::SIGCONT);
    until("end", || {
        (agent.counts("packets").1 == u64::from(SOURCES) + 1).then_some(())
    });
    // Each of those that were refused is told of, or is one of those that are told as lost.
    let (mut told, mut lost_by_ring, mut lost_by_follower) = (0, 0, 0);
    while told + lost_by_ring + lost_by_follower < u64::from(SOURCES) {
        let event: Value = serde_json::from_str(&lines.next()).unwrap();
        let is_of_ring = event["reason"].as_str().unwrap().contains("ring");
        match event["verdict"].as_str().unwrap() {
            "lost" if is_of_ring => lost_by_ring += event["count"].as_u64().unwrap(),
            "lost" => lost_by_follower += event["count"].as_u64().unwrap(),
            "throttled" => told += 1,
            // On a slow machine also that refusals have risen.
            other => assert!(other.starts_with("attack"), "{event}"),
        }
    }
    assert_eq!(told + lost_by_ring + lost_by_follower, u64::from(SOURCES));
    let fit = datapath::MOST_AT_ONCE as u64;
    assert!(
        lost_by_ring >= u64::from(SOURCES) - fit && told > 0,
        "{told} told, {lost_by_ring} lost"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

fn followers_that_hang_delay_no_client() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let hang = || {
        let mut stream = UnixStream::connect(network.control()).unwrap();
        stream
            .write_all(b"{\"verb\":\"follow\",\"last\":0}\n")
            .unwrap();
        stream
    };
    let mut followers: Vec<_> = (0..weir::daemon::events::MOST_FOLLOWERS)
        .map(|_| hang())
        .collect();
    // None of them ever reads; there is no place for one more, and all else goes on.
    let refused = until("refusal", || {
        let mut child = network.spawn(&["events", "--follow"], |command| {
            command.stdout(Stdio::null()).stderr(Stdio::piped());
        });
        std::thread::sleep(Duration::from_millis(300));
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
        }
        let said = child.wait_with_output().unwrap().stderr;
        Some(String::from_utf8(said).unwrap()).filter(|said| said.contains("clients follow events"))
    });
    assert!(refused.contains("16 clients"), "{refused}");
    for round in 1..=5 {
        burst(
            &network,
            &(10..=209).map(udp_from).collect::<Vec<_>>(),
            200 * 15,
        );
        assert_eq!(agent.json(&["status"])["mode"], "enforce", "round {round}");
    }
    until("event", || {
        (!events(&agent, "throttled").is_empty()).then_some(())
    });
    // Who goes makes room.
    followers.clear();
    let line = until("room for another follower", || {
        let mut child = network.spawn(
            &["events", "--follow", "--json", "--last", "1"],
            |command| {
                command.stdout(Stdio::piped()).stderr(Stdio::null());
            },
        );
        // One that is refused ends without a line.
        let line = Lines::of(&mut child)
            .0
            .recv_timeout(Duration::from_secs(300))
            .ok();
        let _ = child.kill();
        child.wait().unwrap();
        line
    });
    assert!(serde_json::from_str::<Value>(&line).is_ok(), "{line:?}");
}

fn an_observing_agent_reports_would_throttles() {
    let network = Network::new();
    let agent = network.start("mode = \"observe\"", LIMIT);
    let start = Instant::now();
    burst(&network, &[udp_from(7)], 1_010);
    until("end", || {
        (agent.limit("packets")["would_throttle"]["packets"] == 1_000).then_some(())
    });
    let time = start.elapsed();
    let told = until("event", || {
        Some(events(&agent, "would-throttle")).filter(|told| !told.is_empty())
    });
    assert!(
        told.len() <= most(time),
        "{} events in {time:?}",
        told.len()
    );
    assert_eq!(
        (&told[0]["source"], &told[0]["limit"]),
        (&"10.77.0.7".into(), &"packets".into())
    );
    assert!(events(&agent, "throttled").is_empty());
}
