//! Beside others on the same hooks: programs of somebody else's, and other agents.

use std::path::Path;

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::foreign::Place;
use crate::service::with_capabilities_of_the_unit;
use crate::support::{Agent, Network};
use crate::traffic::{LIMIT, PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![a_second_agent_on_an_interface_says_so_and_ends,];

/// Tests that require a chain of programs at one hook (Linux 6.6).
pub const WITH_TCX: &[Test] = tests![
    programs_of_others_in_a_tcx_chain_stay_and_run,
    a_program_that_ends_the_chain_before_weir_is_reported,
];

const TC: &str = "attach = \"tc\"\nmax_sources = 2000";
const SLOW: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

fn refused(network: &Network, config: &Path, message: &str) {
    let output = network.run_to_end(config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(message), "{said}");
}

fn a_second_agent_on_an_interface_says_so_and_ends() {
    let egress = LIMIT.replace("rate", "direction = \"egress\"\nrate");
    let small = "max_sources = 2000\n";
    let tc = format!("{small}attach = \"tc\"");
    for (attach, rest) in [(small, LIMIT), (&tc, LIMIT), (small, &egress)] {
        let network = Network::new();
        let agent = network.start(attach, rest);
        let others = network.other_pins();
        for attach in ["", "attach = \"native\"", "attach = \"tc\""] {
            refused(
                &network,
                &network.rival(attach, rest, &others),
                "another Weir agent",
            );
            assert!(!others.exists(), "{attach}: something was left behind");
        }
        // The same pins by another name of the socket.
        refused(
            &network,
            &network.rival(attach, rest, network.pins()),
            "another agent is running",
        );
        assert!(network.has_pins());
        // Programs that a stopped agent left are its own, too: the next agent of its config takes them over.
        agent.stop(Signal::SIGKILL);
        refused(
            &network,
            &network.rival("", rest, &others),
            "run agent detach",
        );
        let agent = network.start(attach, rest);
        // The first agent's counters continue.
        let before = agent.counts("packets").0;
        burst(&network, &[udp_from(7)], 10);
        assert_eq!(
            agent.counts("packets").0 - before,
            if rest == LIMIT { 10 } else { 0 }
        );
        drop(agent);
        network.told(&[
            "detach",
            "--config",
            network.config(attach, rest).to_str().unwrap(),
        ]);
        let rival = network.rival("on_exit = \"detach\"", rest, &others);
        network
            .spawn_agent(&rival, &[])
            .wait_until_it_says("enforcing 1 limit");
    }
}

fn programs_of_others_in_a_tcx_chain_stay_and_run() {
    let network = Network::new();
    let _counting = aya::sys::enable_stats(aya::sys::Stats::RunTime).unwrap();
    let receiver = network.receiver(PORT);
    let first = network.attach_foreign(Place::FirstOfTcx);
    let agent = network.start(TC, SLOW);
    let (before_us, after_us) = (
        network.attach_foreign(Place::FirstOfTcx),
        network.attach_foreign(Place::LastOfTcx),
    );
    let seen = |count: u64, passed: u64, work: &dyn Fn()| {
        let all = [&first, &before_us, &after_us];
        let was = all.map(crate::foreign::Foreign::runs);
        work();
        burst(&network, &[udp_from(7)], count as usize);
        assert_eq!(receiver.counts()[7], passed);
        let ran: Vec<u64> = all
            .iter()
            .zip(was)
            .map(|(program, was)| program.runs() - was)
            .collect();
        // Who comes before ours sees every packet, who comes after it those that ours passes.
        assert!(
            ran[1] >= count && ran[0] >= passed && ran[2] >= passed,
            "{ran:?}"
        );
    };
    let reload = |agent: &Agent<'_>| {
        network.config(
            TC,
            &format!("{SLOW}[[limit]]\nname = \"more\"\nrate = \"1000/s\"\n"),
        );
        assert_eq!(agent.json(&["reload"])["ok"], true);
    };
    seen(60, 60, &|| {});
    seen(60, 40, &|| reload(&agent));
    // Killed, taken over, detached: the others stay where they are.
    agent.stop(Signal::SIGKILL);
    seen(20, 0, &|| {});
    let agent = network.start(TC, SLOW);
    seen(20, 0, &|| {});
    agent.stop(Signal::SIGTERM);
    network.told(&[
        "detach",
        "--config",
        network.config(TC, SLOW).to_str().unwrap(),
    ]);
    seen(20, 20, &|| {});
}

fn a_program_that_ends_the_chain_before_weir_is_reported() {
    let network = Network::new();
    let receiver = network.receiver(PORT);
    let egress = "[[limit]]\nname = \"out\"\ndirection = \"egress\"\nrate = \"1/h\"\nburst = 100\n";
    let config = network.config(TC, &format!("{SLOW}{egress}"));
    let agent = network.spawn_with(&config, with_capabilities_of_the_unit);
    let agent = network.wait_for_agent(agent);
    let notes = || {
        let status = agent.json(&["status"]);
        let notes = status["notes"].as_array().unwrap();
        let ahead =
            |note: &&serde_json::Value| note.as_str().unwrap().contains("comes before Weir");
        notes.iter().filter(ahead).count()
    };
    assert_eq!(notes(), 0);
    let other = network.attach_foreign(Place::EndOfTcx);
    assert_eq!(notes(), 1);
    // It is as the note says.
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(
        (receiver.counts()[7], agent.counts("packets")),
        (150, (0, 0))
    );
    let another = network.attach_foreign(Place::EndOfEgressTcx);
    assert_eq!(notes(), 2);
    drop(other);
    assert_eq!(notes(), 1);
    drop(another);
    assert_eq!(notes(), 0);
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (100, 50));
}
