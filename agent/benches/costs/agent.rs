//! Threads of the agent under load.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use testbed::measure::scheduled;
use testbed::network::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use testbed::wait::until;
use testbed::wire::Sender;

use crate::{Cost, percent};

/// For how long each is measured.
const TIME: Duration = Duration::from_secs(20);
const METRICS: &str = "127.0.0.1:9464";

fn udp(source: u32) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4(source.to_be_bytes(), SERVER)
        .udp(5000, 9_000, &[0; 22])
        .build()
}

/// The CPU time of a thread, by its name.
fn thread_time(agent: &Agent<'_>, name: &str) -> Duration {
    let is_it = |task: &PathBuf| {
        std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim() == name)
    };
    // It may not run yet.
    let task = until(name, || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", agent.process())).ok()?;
        tasks.map(|task| task.unwrap().path()).find(is_it)
    });
    scheduled(&task).unwrap()
}

/// The thread that records packets, while made-up sources come as fast as they can be sent.
pub fn recording() -> Cost {
    const NAME: &str = "weir-record";
    let network = Network::new();
    let agent = network.start(
        "max_sources = 10000",
        "[[limit]]\nname = \"packets\"\nrate = \"100000/s\"\n",
    );
    agent.json(&["record", "--for", "1h"]);
    let (began, before) = (Instant::now(), thread_time(&agent, NAME));
    let mut number = 0x0b00_0000u32;
    network.in_client(|| {
        let (sender, mut frame) = (Sender::new(), udp(number));
        while began.elapsed() < TIME {
            let frames: Vec<_> = (0..100)
                .map(|_| {
                    number += 1;
                    Frame::set_ipv4_source(&mut frame, number.to_be_bytes());
                    frame.clone()
                })
                .collect();
            sender.send_all(&frames);
        }
    });
    let (used, time) = (thread_time(&agent, NAME) - before, began.elapsed());
    // A tenth of a second in each of at most six steps until the sample is small enough, and then a hundredth of the time.
    let most = Duration::from_millis(600) + time / 100;
    Cost {
        figures: format!("{used:.2?} of CPU time in {time:.1?}"),
        bound: format!("{most:.2?}"),
        is_within: used <= most,
    }
}

/// The thread that serves a live page, with a hundred thousand sources in the table and a reader a second.
pub fn live_page() -> Cost {
    const NAME: &str = "weir-metrics";
    let network = Network::new();
    let agent = network.start(
        &format!("metrics = {METRICS:?}\nmax_sources = 200_000"),
        "[[limit]]\nname = \"packets\"\nrate = \"1/day\"\nburst = 1\n",
    );
    let frames: Vec<_> = (0..100_000).map(|nth| udp(0x0b00_0000 + nth)).collect();
    // Twice, so that each is refused once: then it is sampled.
    network.in_client(|| {
        let sender = Sender::new();
        frames
            .chunks(100)
            .for_each(|frames| (0..2).for_each(|_| sender.send_all(frames)));
    });
    let read = || network.in_server(read_live_page);
    // Afterwards, sources are not read for 500 times the CPU time that two readings took.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !read().contains("\"passed_per_second\":0") {
        assert!(Instant::now() < deadline, "no rates after two readings");
        thread::sleep(Duration::from_millis(200));
    }
    let (began, before) = (Instant::now(), thread_time(&agent, NAME));
    while began.elapsed() < TIME {
        read();
        thread::sleep(Duration::from_secs(1));
    }
    let share = percent(thread_time(&agent, NAME) - before, began.elapsed());
    Cost {
        figures: format!("{share:.2} % of a CPU"),
        bound: "1 %".to_owned(),
        is_within: share < 1.0,
    }
}

fn read_live_page() -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(METRICS).unwrap();
    let request = format!("GET /live.json HTTP/1.1\r\nHost: {METRICS}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}
