//! The state of the hooks after the kernel refuses a step, or the agent dies before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bpf::link::Link;
use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::intercept::{self, Call, Then};
use crate::interfaces::{SLOW, state, wait_for};
use crate::support::{INTERFACE, Network, has_tcx};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_lack_of_memory_at_take_over_leaves_the_live_link_in_effect,
    a_kill_between_two_interfaces_is_undone_by_the_next_start,
    an_interface_that_takes_no_program_while_it_is_down_is_attached_when_it_comes_up,
];

const BOTH: [&str; 2] = [INTERFACE, "weir1"];

/// The number of the program on an interface's hook.
fn program(network: &Network, hook: &str, interface: &str) -> u32 {
    let index = network.index(interface);
    let info = Link::open(&network.pins().join(format!("link-{hook}:{index}")))
        .unwrap()
        .info()
        .unwrap();
    assert_eq!(info.interface, index, "{interface}");
    info.program
}

fn is_unfinished(network: &Network) -> bool {
    ["next", "done", "moved"]
        .iter()
        .any(|folder| network.pins().join(folder).exists())
}

fn a_lack_of_memory_at_take_over_leaves_the_live_link_in_effect() {
    let hooks = [
        ("xdp", "attach = \"native\""),
        ("tcingress", "attach = \"tc\""),
    ];
    for (hook, attach) in hooks.into_iter().take(if has_tcx() { 2 } else { 1 }) {
        let network = Network::new();
        let receiver = network.receiver(PORT);
        network.start(attach, SLOW).stop(Signal::SIGKILL);
        let live = program(&network, hook, INTERFACE);
        burst(&network, &[udp_from(7)], 60);
        // A start.
        let loose = network.config(attach, &SLOW.replace("100", "5000"));
        let refuse = |call| {
            if call == Call::Update {
                Then::Fail(libc::ENOMEM)
            } else {
                Then::Continue
            }
        };
        let (said, status) = intercept::spawn(&network, &loose, refuse).end();
        assert!(
            status.code() == Some(1) && said.contains("Cannot allocate memory"),
            "{status}: {said}"
        );
        assert_eq!(program(&network, hook, INTERFACE), live);
        burst(&network, &[udp_from(7), udp_from(8)], 300);
        let counts = receiver.counts();
        assert_eq!(
            (counts[7], counts[8]),
            (100, 100),
            "{hook}: the old limit is in effect"
        );
        // A reload.
        let is_refusing = Arc::new(AtomicBool::new(false));
        let refuses = Arc::clone(&is_refusing);
        let refuse = move |call| match call {
            Call::Update if refuses.load(Ordering::SeqCst) => Then::Fail(libc::ENOMEM),
            _ => Then::Continue,
        };
        let agent = network.wait_for_agent(intercept::spawn(
            &network,
            &network.config(attach, SLOW),
            refuse,
        ));
        let live = program(&network, hook, INTERFACE);
        is_refusing.store(true, Ordering::SeqCst);
        network.config(attach, &SLOW.replace("100", "5000"));
        let output = network.command(&["reload"]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(program(&network, hook, INTERFACE), live);
        burst(&network, &[udp_from(8), udp_from(9)], 300);
        let counts = receiver.counts();
        assert_eq!(
            (counts[8], counts[9]),
            (0, 100),
            "{hook}: the old limit is in effect"
        );
        assert_eq!(agent.remaining("10.77.0.9", "packets"), 0);
        is_refusing.store(false, Ordering::SeqCst);
        network.told(&["reload"]);
        assert_eq!(agent.limit("packets")["burst"], 5000);
        assert!(!is_unfinished(&network));
    }
}

fn a_kill_between_two_interfaces_is_undone_by_the_next_start() {
    // By the config that was being put in effect, and by the one before.
    for next in ["5000", "100"] {
        let network = Network::new();
        network.add_link("weir1", "client1");
        let receiver = network.receiver(PORT);
        network.start_on(&BOTH, "", SLOW).stop(Signal::SIGKILL);
        let programs = || BOTH.map(|name| program(&network, "xdp", name));
        let old = programs();
        let updates = AtomicU32::new(0);
        let loose = network.config_on(&BOTH, "", &SLOW.replace("100", "5000"));
        let (_, status) = intercept::spawn(&network, &loose, move |call| match call {
            Call::Update if updates.fetch_add(1, Ordering::SeqCst) == 1 => Then::Kill,
            _ => Then::Continue,
        })
        .end();
        assert_eq!(status.code(), None, "it was killed");
        let mixed = programs();
        let changed = old
            .iter()
            .zip(&mixed)
            .filter(|(old, now)| old != now)
            .count();
        assert!(
            changed == 1 && is_unfinished(&network),
            "{old:?} became {mixed:?}"
        );
        // Until the next start, each interface has one of both policies, and none has neither.
        let changed_first = mixed[0] != old[0];
        burst(&network, &[udp_from(7)], 300);
        assert_eq!(receiver.counts()[7], if changed_first { 300 } else { 100 });
        let agent = network.start_on(&BOTH, "", &SLOW.replace("100", next));
        assert!(!is_unfinished(&network));
        for (name, mixed) in BOTH.iter().zip(mixed) {
            assert_eq!(
                state(&agent.json(&["status"]), name),
                ("native".into(), "attached".to_owned())
            );
            assert_ne!(
                program(&network, "xdp", name),
                mixed,
                "{name} has the program of the next start"
            );
        }
        burst(&network, &[udp_from(8)], 300);
        assert_eq!(receiver.counts()[8], if next == "100" { 100 } else { 300 });
    }
}

fn an_interface_that_takes_no_program_while_it_is_down_is_attached_when_it_comes_up() {
    let network = Network::new();
    network.add_link("weir1", "client1");
    network.ip(&["link", "set", "weir1", "down"]);
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let weir1 = network.index("weir1");
    let config = network.config_on(&BOTH, "", SLOW);
    // As drivers do that have no rings before.
    let agent = network.wait_for_agent(intercept::spawn(
        &network,
        &config,
        move |call| match call {
            Call::Create(interface) if interface == weir1 && !up.load(Ordering::SeqCst) => {
                Then::Fail(libc::ENETDOWN)
            }
            _ => Then::Continue,
        },
    ));
    assert_eq!(state(&agent.json(&["status"]), INTERFACE).1, "attached");
    wait_for(&agent, "weir1", "down");
    is_up.store(true, Ordering::SeqCst);
    network.ip(&["link", "set", "weir1", "up"]);
    wait_for(&agent, "weir1", "attached");
    // One that is attached keeps its program while it is down, and its limits when it is up again.
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    network.ip(&["link", "set", INTERFACE, "down"]);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_200) {
        assert_eq!(
            state(&agent.json(&["status"]), INTERFACE),
            ("native".into(), "attached".to_owned())
        );
    }
    network.ip(&["link", "set", INTERFACE, "up"]);
    burst(&network, &[udp_from(7)], 300);
    agent.wait_for("all packets", |_| agent.counts("packets") == (100, 260));
    assert_eq!(receiver.counts()[7], 100);
}
