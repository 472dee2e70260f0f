//! The agent may be killed at any instant, and an agent of another version may follow: limits stay in effect.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use aya::programs::links::{FdLink, PinnedLink};
use common::packet::build::Frame;
use common::settings::TableIdentity;
use common::table::{ELEMENT_WORDS, LOCK};
use nix::sys::signal::Signal;
use testbed::random::Random;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::{Test, is_long};
use testbed::wait::wait;

use crate::foreign::pin_program;
use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC, StopWhenDropped};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::{Receiver, Sender};

pub const TESTS: &[Test] = tests![
    kills_under_traffic_leave_the_limit_as_exact_as_it_is,
    kills_by_traffic_control_leave_the_limit_as_exact_as_it_is,
    kills_never_open_a_limit_on_what_leaves,
    kills_while_the_hook_changes_never_open_the_limit,
    a_table_of_another_version_is_reset_and_reported,
    a_change_that_a_kill_interrupts_is_undone_or_completed,
    a_set_that_a_killed_agent_left_locked_serves_new_sources_again,
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

fn kills_under_traffic_leave_the_limit_as_exact_as_it_is() {
    kills(
        &ON_INGRESS,
        if is_long() { 50 } else { 14 },
        &["auto"],
        0.98,
    );
}

fn kills_never_open_a_limit_on_what_leaves() {
    // While one policy takes over from another both hold what leaves, the longer the busier the machine is: that may
    // refuse more, never less.
    kills(&ON_EGRESS, if is_long() { 30 } else { 10 }, &["auto"], 0.8);
}

fn kills_by_traffic_control_leave_the_limit_as_exact_as_it_is() {
    kills(&ON_INGRESS, if is_long() { 20 } else { 10 }, &["tc"], 0.98);
}

fn kills_while_the_hook_changes_never_open_the_limit() {
    // Two hooks hold the packets while one takes the place of the other: that may refuse more, never less.
    kills(
        &ON_INGRESS,
        if is_long() { 30 } else { 10 },
        &["native", "generic", "tc"],
        0.5,
    );
}

/// Which packets a limit is for: of one key to [`PORT`], and of another to port 9001.
struct Way {
    direction: &'static str,
    /// The last octets of the addresses that are the keys.
    keys: [u8; 2],
}

const ON_INGRESS: Way = Way {
    direction: "ingress",
    keys: [7, 8],
};
const ON_EGRESS: Way = Way {
    direction: "egress",
    keys: [2, 3],
};

impl Way {
    fn is_out(&self) -> bool {
        self.direction == "egress"
    }

    /// Where the nth kind arrives, and from whom.
    fn receiver(&self, network: &Network, nth: usize) -> (Receiver, usize) {
        let port = [PORT, 9_001][nth];
        if self.is_out() {
            let receiver = network.client_receiver(&format!("10.77.0.{}:{port}", self.keys[nth]));
            return (receiver, usize::from(SERVER[3]));
        }
        (network.receiver(port), usize::from(self.keys[nth]))
    }

    /// Runs `work` where packets of this way come from, with what sends so many of the nth kind.
    fn send<T: Send>(
        &self,
        network: &Network,
        work: impl FnOnce(&dyn Fn(usize, u64)) -> T + Send,
    ) -> T {
        let ports = [PORT, 9_001];
        if self.is_out() {
            return network.in_server(|| {
                let sockets =
                    ports.map(|port| UdpSocket::bind((Ipv4Addr::from(SERVER), port)).unwrap());
                work(&|nth, count| {
                    let to = (Ipv4Addr::new(10, 77, 0, self.keys[nth]), ports[nth]);
                    // The sender may get an error for refused packets.
                    (0..count).for_each(|_| drop(sockets[nth].send_to(&[0; 22], to)));
                })
            });
        }
        let frame = |nth: usize| {
            let from =
                Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 0, self.keys[nth]], SERVER);
            from.udp(5000, ports[nth], &[0; 22]).build()
        };
        let frames = [0, 1].map(|nth| vec![frame(nth); AT_ONCE as usize]);
        network.in_client(|| {
            let sender = Sender::new();
            work(&|nth, count| sender.send_all(&frames[nth][..count as usize]))
        })
    }
}

/// Kills agents while they start and reload, with the ways of attaching in turn. At least `least` of what conforms passes.
fn kills(way: &Way, rounds: usize, attach: &[&str], least: f64) {
    let network = Network::new();
    network.add_client_address("10.77.0.3/16");
    let limit = |name: &str, rate: &str, rest: &str| {
        format!(
            "[[limit]]\nname = {name:?}\ndirection = {:?}\nrate = {rate:?}\n{rest}\n",
            way.direction
        )
    };
    let slow = limit("slow", "1/day", "burst = 50\nports = [9001]");
    let more = limit("more", "9/s", "ports = [1234]");
    let limit = limit("packets", &format!("{RATE}/s"), &format!("burst = {BURST}"));
    // The second is another table, and the third another one again.
    let configs = [
        format!("{limit}{slow}"),
        format!("{more}{slow}{limit}"),
        format!(
            "{slow}{limit}{}",
            more.replace("ports", "algorithm = \"sliding-window\"\nports")
        ),
    ];
    let table = |nth: usize| {
        format!(
            "max_sources = 20000\nattach = {:?}",
            attach[nth % attach.len()]
        )
    };
    let agent = network.start(&table(0), &configs[0]);
    let [(receiver, from), (slow_receiver, slow_from)] =
        [0, 1].map(|nth| way.receiver(&network, nth));
    agent.stop(Signal::SIGKILL);
    let (stop, stalls) = (AtomicBool::new(false), Stalls::watch());
    let slow_sent = AtomicU64::new(0);
    let mut kills = [0u32; 2];
    let (time, sent_at, counts) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.counts_until(&stop));
        let sending = scope.spawn(|| {
            way.send(&network, |sender| {
                let (began, mut sent_at) = (Instant::now(), Vec::new());
                let mut send = || {
                    sent_at.push(began.elapsed());
                    sender(0, AT_ONCE);
                };
                while !stop.load(Ordering::Relaxed) {
                    // Twenty thousand a second at the most, and on a machine that is not starved no less than the limit.
                    send();
                    sender(1, 1);
                    slow_sent.fetch_add(1, Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
                (0..100).for_each(|_| send());
                (began.elapsed(), sent_at)
            })
        });
        let stopping = StopWhenDropped(&stop);
        // Charges of two policies during a hand-over count for both only afterwards: the slow limit's burst is used up before.
        wait("the slow limit's burst", || {
            slow_sent.load(Ordering::Relaxed) >= 50 || sending.is_finished()
        });
        // Any instant of what an agent does: spread evenly over start, work and reloads by a fixed sequence.
        let mut random = Random::new(1);
        for nth in 0..rounds {
            let config = network.config(&table(nth), &configs[nth % 3]);
            if nth % 2 == 0 {
                // While it starts.
                let agent = network.spawn_agent(&config, &[]);
                thread::sleep(Duration::from_micros(random.below(1 << 20)));
                agent.stop(Signal::SIGKILL);
                kills[0] += 1;
            } else {
                // While it reloads.
                let agent = network.start_file(&config, &[]);
                network.config(&table(nth + 1), &configs[(nth + 1) % 3]);
                agent.signal(Signal::SIGHUP);
                thread::sleep(Duration::from_micros(random.below(1 << 18)));
                agent.stop(Signal::SIGKILL);
                kills[1] += 1;
            }
        }
        drop(stopping);
        let (time, sent_at) = sending.join().unwrap();
        (time, sent_at, receiving.join().unwrap())
    });
    let passed = (counts[from] + receiver.counts()[from]) as f64;
    let allowed = BURST as f64 + RATE as f64 * time.as_secs_f64();
    let (expected, sent) = (conforming(&sent_at), AT_ONCE * sent_at.len() as u64);
    let told = format!(
        "{kills:?} kills in start and reload, in {time:.1?}: {passed} of {sent} passed, where {expected} conform and {allowed:.0} are allowed"
    );
    eprintln!("{told}");
    // While the machine does other things, a change takes longer, in which two policies charge the same packets.
    let late = stalls.so_far().as_secs_f64();
    let refused_twice = RATE as f64 * late;
    assert!(
        passed <= allowed * 1.02 && passed >= expected * least - refused_twice,
        "{told}, late for {late:.1} s"
    );
    let slow = slow_receiver.counts()[slow_from];
    assert!(
        slow <= 50 && slow as f64 >= 50.0 * least,
        "a limit of fifty passed {slow}"
    );
    // Only the limits of the last agent are left, and nothing of those that were killed.
    let agent = network.start(&table(0), &configs[0]);
    for folder in ["next", "done", "moved"] {
        assert!(!network.pins().join(folder).exists());
    }
    assert_eq!(
        agent.remaining(&format!("10.77.0.{}", way.keys[1]), "slow"),
        0
    );
    agent.stop(Signal::SIGTERM);
    network.told(&[
        "detach",
        "--config",
        network.config("", &configs[0]).to_str().unwrap(),
    ]);
    assert!(!network.has_program() && !network.has_pins());
}

fn a_table_of_another_version_is_reset_and_reported() {
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
    table
        .set(
            0,
            TableIdentity {
                version: TableIdentity::VERSION + 1,
                ..identity
            },
            0,
        )
        .unwrap();
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(
        receiver.counts()[7],
        100,
        "until the next agent comes, it is held as it was"
    );
    let agent = network.start("max_sources = 2000", slow);
    let status = agent.json(&["status"]);
    let notes = status["notes"].to_string();
    assert!(
        notes.contains("the state of every source is reset") && notes.contains("another version"),
        "{notes}"
    );
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (200, 150));
    // It is this version's own from then on.
    agent.stop(Signal::SIGKILL);
    let agent = network.start("max_sources = 2000", slow);
    assert_eq!(agent.json(&["status"])["notes"], serde_json::json!([]));
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 0);
}

fn a_change_that_a_kill_interrupts_is_undone_or_completed() {
    let network = Network::new();
    let slow = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
    let agent = network.start("max_sources = 2000", slow);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    agent.stop(Signal::SIGKILL);
    // A table that was begun and that no program uses.
    let next = network.pins().join("next");
    std::fs::create_dir(&next).unwrap();
    for name in ["TABLE", "LAYOUT", "RINGS", "SAMPLES", "SOURCES"] {
        let map = MapData::from_pin(network.pins().join(name)).unwrap();
        map.pin(next.join(name)).unwrap();
    }
    let agent = network.start("max_sources = 2000", slow);
    assert!(!next.exists());
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    // A change whose programs are in effect, and some of whose maps are in place already.
    agent.stop(Signal::SIGKILL);
    std::fs::create_dir(&next).unwrap();
    let pin = network
        .pins()
        .join(format!("link-xdp:{}", network.index("weir0")));
    let link = FdLink::from(PinnedLink::from_pin(pin).unwrap());
    pin_program(
        link.info().unwrap().program_id(),
        &next.join("program-ingress-weir_xdp"),
    );
    for name in ["SAMPLES", "SOURCES"] {
        std::fs::rename(network.pins().join(name), next.join(name)).unwrap();
    }
    let agent = network.start("max_sources = 2000", slow);
    assert!(!next.exists());
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 100);
}

fn a_set_that_a_killed_agent_left_locked_serves_new_sources_again() {
    // A table of one set, in which a new source is refused if it cannot have a slot.
    let config =
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\non_full = \"throttle\"\n";
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
