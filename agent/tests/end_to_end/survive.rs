//! The agent may die at any instant, and be followed by one of another version: what is in force stays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use aya::programs::links::{FdLink, PinnedLink};
use common::settings::TableIdentity;
use common::table::{ELEMENT_WORDS, LOCK};
use nix::sys::signal::Signal;

use crate::foreign::pin_program;
use crate::support::{Network, StopWhenDropped, is_virtual};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[(&str, fn())] = &[
    ("fifty_kills_under_traffic_leave_the_limit_as_exact_as_it_is", fifty_kills),
    ("kills_by_traffic_control_leave_the_limit_as_exact_as_it_is", kills_by_traffic_control),
    ("kills_while_the_hook_changes_never_open_the_limit", kills_between_hooks),
    ("a_table_of_another_version_starts_afresh_and_says_so", other_version),
    ("what_an_agent_was_killed_in_the_middle_of_is_undone_or_completed", halfway),
    ("a_set_that_a_killed_agent_left_locked_serves_new_sources_again", left_locked),
];

const RATE: u64 = 1_000;
const BURST: u64 = 500;
/// Frames that are sent at once.
const AT_ONCE: u64 = 20;

/// How many pass of [`AT_ONCE`] frames sent at each of these instants: all that the limit lets, if there are always enough.
fn conforming(sent_at: &[Duration]) -> f64 {
    let (mut tokens, mut passed, mut last) = (BURST as f64, 0.0, Duration::ZERO);
    for at in sent_at {
        tokens = (tokens + RATE as f64 * (*at - last).as_secs_f64()).min(BURST as f64);
        let now = tokens.floor().min(AT_ONCE as f64);
        (tokens, passed, last) = (tokens - now, passed + now, *at);
    }
    passed
}

fn fifty_kills() {
    // An emulated CPU takes some seconds for each.
    kills(if is_virtual() { 14 } else { 50 }, &["auto"], 0.98);
}

fn kills_by_traffic_control() {
    kills(if is_virtual() { 10 } else { 20 }, &["tc"], 0.98);
}

fn kills_between_hooks() {
    // Two hooks hold the packets while one takes the place of the other: that may refuse more, never less.
    kills(if is_virtual() { 10 } else { 30 }, &["native", "generic", "tc"], 0.5);
}

/// Kills agents while they start and reload, with the ways of attaching in turn. At least `least` of what conforms passes.
fn kills(rounds: usize, attach: &[&str], least: f64) {
    let network = Network::new();
    let limit = format!("[[limit]]\nname = \"packets\"\nrate = \"{RATE}/s\"\nburst = {BURST}\n");
    let slow = "[[limit]]\nname = \"slow\"\nrate = \"1/day\"\nburst = 50\nports = [9001]\n";
    let more = "[[limit]]\nname = \"more\"\nrate = \"9/s\"\nports = [1234]\n";
    // The second is another table, and the third another one again.
    let configs = [
        format!("{limit}{slow}"),
        format!("{more}{slow}{limit}"),
        format!("{slow}{limit}{}", more.replace("ports", "algorithm = \"sliding-window\"\nports")),
    ];
    let table = |nth: usize| format!("max_sources = 20000\nattach = {:?}", attach[nth % attach.len()]);
    let agent = network.start(&table(0), &configs[0]);
    let (receiver, slow_receiver) = (network.receiver(PORT), network.receiver(9_001));
    let other = common::packet::build::Frame::between(crate::support::CLIENT_MAC, crate::support::SERVER_MAC)
        .ipv4([10, 77, 0, 8], crate::support::SERVER)
        .udp(5000, 9_001, &[0; 22])
        .build();
    agent.stop(Signal::SIGKILL);
    let stop = AtomicBool::new(false);
    let mut kills = [0u32; 2];
    let (time, sent_at, counts) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.counts_until(&stop));
        let sending = scope.spawn(|| {
            network.in_client(|| {
                let (sender, frames) = (Sender::new(), vec![udp_from(7); AT_ONCE as usize]);
                let (began, mut sent_at) = (Instant::now(), Vec::new());
                let mut send = || {
                    sent_at.push(began.elapsed());
                    sender.send_all(&frames);
                };
                while !stop.load(Ordering::Relaxed) {
                    // Twenty thousand a second at the most, and on a machine that is not starved no less than the limit.
                    send();
                    sender.send(&other);
                    thread::sleep(Duration::from_millis(1));
                }
                (0..100).for_each(|_| send());
                (began.elapsed(), sent_at)
            })
        });
        let stopping = StopWhenDropped(&stop);
        // Any instant of what an agent does: spread evenly over start, work and reloads by a fixed sequence.
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for nth in 0..rounds {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let config = network.config(&table(nth), &configs[nth % 3]);
            if nth % 2 == 0 {
                // While it starts.
                let agent = network.spawn_agent(&config, &[]);
                thread::sleep(Duration::from_micros(random >> 44));
                agent.stop(Signal::SIGKILL);
                kills[0] += 1;
            } else {
                // While it reloads.
                let agent = network.start_file(&config, &[]);
                network.config(&table(nth + 1), &configs[(nth + 1) % 3]);
                agent.signal(Signal::SIGHUP);
                thread::sleep(Duration::from_micros(random >> 46));
                agent.stop(Signal::SIGKILL);
                kills[1] += 1;
            }
        }
        drop(stopping);
        let (time, sent_at) = sending.join().unwrap();
        (time, sent_at, receiving.join().unwrap())
    });
    let passed = (counts[7] + receiver.counts()[7]) as f64;
    let allowed = BURST as f64 + RATE as f64 * time.as_secs_f64();
    let (expected, sent) = (conforming(&sent_at), AT_ONCE * sent_at.len() as u64);
    let told = format!(
        "{kills:?} kills in start and reload, in {time:.1?}: {passed} of {sent} passed, where {expected} conform and {allowed:.0} are allowed"
    );
    eprintln!("{told}");
    assert!(passed <= allowed * 1.02 && passed >= expected * least, "{told}");
    let slow = slow_receiver.counts()[8];
    assert!(slow <= 50 && slow as f64 >= 50.0 * least, "a limit of fifty passed {slow}");
    // Nothing is left of all those that were killed but what the last one has in force.
    let agent = network.start(&table(0), &configs[0]);
    for folder in ["next", "done", "moved"] {
        assert!(!network.pins().join(folder).exists());
    }
    assert_eq!(agent.remaining("10.77.0.8", "slow"), 0);
    agent.stop(Signal::SIGTERM);
    network.told(&["detach", "--config", network.config("", &configs[0]).to_str().unwrap()]);
    assert!(!network.has_program() && !network.has_pins());
}

fn other_version() {
    let network = Network::new();
    let slow = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
    let agent = network.start("max_sources = 2000", slow);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 150);
    agent.stop(Signal::SIGKILL);
    // As another version would have left it.
    let table = MapData::from_pin(network.pins().join("TABLE")).unwrap();
    let mut table = Array::<_, TableIdentity>::try_from(Map::Array(table)).unwrap();
    let identity = table.get(&0, 0).unwrap();
    table.set(0, TableIdentity { version: TableIdentity::VERSION + 1, ..identity }, 0).unwrap();
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(receiver.counts()[7], 100, "until the next agent comes, it is held as it was");
    let agent = network.start("max_sources = 2000", slow);
    let status = agent.json(&["status"]);
    let notes = status["notes"].to_string();
    assert!(notes.contains("every source starts afresh") && notes.contains("another version"), "{notes}");
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (200, 150));
    // It is this version's own from then on.
    agent.stop(Signal::SIGKILL);
    let agent = network.start("max_sources = 2000", slow);
    assert_eq!(agent.json(&["status"])["notes"], serde_json::json!([]));
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 0);
}

fn halfway() {
    let network = Network::new();
    let slow = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
    let agent = network.start("max_sources = 2000", slow);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    agent.stop(Signal::SIGKILL);
    // A table that was begun and that no program uses.
    let next = network.pins().join("next");
    std::fs::create_dir(&next).unwrap();
    for name in ["TABLE", "LAYOUT", "RINGS", "SIGHTINGS", "SOURCES"] {
        let map = MapData::from_pin(network.pins().join(name)).unwrap();
        map.pin(next.join(name)).unwrap();
    }
    let agent = network.start("max_sources = 2000", slow);
    assert!(!next.exists());
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    // One whose programs are in force, and of which some maps are in place already.
    agent.stop(Signal::SIGKILL);
    std::fs::create_dir(&next).unwrap();
    let pin = network.pins().join(format!("link-xdp:{}", network.index("weir0")));
    let link = FdLink::from(PinnedLink::from_pin(pin).unwrap());
    pin_program(link.info().unwrap().program_id(), &next.join("program-ingress-weir_xdp"));
    for name in ["SIGHTINGS", "SOURCES"] {
        std::fs::rename(network.pins().join(name), next.join(name)).unwrap();
    }
    let agent = network.start("max_sources = 2000", slow);
    assert!(!next.exists());
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 100);
}

fn left_locked() {
    // A table of one set, in which a new source is refused if it cannot have a slot.
    let config = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\non_full = \"throttle\"\n";
    let network = Network::new();
    let agent = network.start("max_sources = 1", config);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 10);
    agent.stop(Signal::SIGKILL);
    let table = || {
        let map = MapData::from_pin(network.pins().join("SOURCES")).unwrap();
        Array::<_, [u64; ELEMENT_WORDS as usize]>::try_from(Map::Array(map)).unwrap()
    };
    let mut element = table().get(&0, 0).unwrap();
    element[0] |= LOCK;
    table().set(0, element, 0).unwrap();
    burst(&network, &[udp_from(8)], 10);
    let _agent = network.start("max_sources = 1", config);
    assert_eq!(table().get(&0, 0).unwrap()[0] & LOCK, 0);
    burst(&network, &[udp_from(9)], 10);
    burst(&network, &[udp_from(7)], 10);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (20, 0, 10));
}
