//! TCP under a byte limit: it reaches the rate with every burst that `check` accepts without a warning.

use std::sync::Mutex;
use std::time::Duration;

use testbed::tests;
use testbed::trials::Test;

use crate::flows::{Flows, From};
use crate::support::{Network, is_virtual};

pub const TESTS: &[Test] = tests![
    tcp_reaches_the_rate_of_a_byte_limit_by_native_xdp,
    tcp_reaches_the_rate_of_a_byte_limit_by_generic_xdp,
    tcp_reaches_the_rate_of_a_byte_limit_by_traffic_control,
    tcp_reaches_the_rate_of_a_byte_limit_on_egress,
    a_burst_that_tcp_cannot_use_is_warned_of_and_falls_short,
];

fn tcp_reaches_the_rate_of_a_byte_limit_by_native_xdp() {
    ingress("native");
}

fn tcp_reaches_the_rate_of_a_byte_limit_by_generic_xdp() {
    ingress("generic");
}

fn tcp_reaches_the_rate_of_a_byte_limit_by_traffic_control() {
    ingress("tc");
}

fn tcp_reaches_the_rate_of_a_byte_limit_on_egress() {
    reaches("", "direction = \"egress\"", From::Server);
}

const RATE: f64 = 20e6;
/// The least that `check` accepts for this rate.
const BURST: f64 = 5e6;
/// For how long a sender may wait that lost all it had in flight.
const PAUSE: Duration = Duration::from_millis(250);
const LIMIT: &str = "[[limit]]\nname = \"tcp\"\nunit = \"bytes\"\nrate = \"20MB/s\"\n";

/// Each measures a rate, and has the processors to itself.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn ingress(attach: &str) {
    reaches(&format!("attach = {attach:?}"), "", From::Client);
}

fn reaches(agent: &str, limit: &str, from: From) {
    for (count, delay) in [(1, 0), (10, 0), (1, 20), (10, 20)] {
        let network = Network::new();
        let limit = format!("{LIMIT}burst = \"5MB\"\n{limit}\n");
        assert!(!warns(&network, agent, &limit), "check accepts the burst");
        let agent = network.start(agent, &limit);
        let flows = Flows {
            from,
            count,
            delay: Duration::from_millis(delay),
            warm_up: Duration::from_secs(1),
            time: Duration::from_secs(5),
        };
        let _alone = ONE_AT_A_TIME
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // Until then, the sender is slower than the limit.
        let measured = flows.measure_once(&network, || is_virtual() || agent.counts("tcp").1 > 0);
        let what = format!("{flows:?}: {measured:?}");
        assert!(
            measured.bytes as f64 <= BURST + RATE * measured.elapsed.as_secs_f64(),
            "{what}"
        );
        // An emulated CPU may be slower than the limit.
        if !is_virtual() {
            // A pause that has not ended with the measurement has not been made up for.
            let whole = (flows.time - PAUSE).as_secs_f64() / flows.time.as_secs_f64();
            let given = whole - measured.late_share();
            assert!(measured.rate_on_wire() >= 0.85 * RATE * given, "{what}");
            // The bucket's burst, and bytes that the receiver had not read by then.
            let most = 1.1 * RATE + RATE * measured.late_share();
            assert!(measured.rate_on_wire() <= most, "{what}");
        }
        assert!(
            agent.counts("tcp").1 > 0 || is_virtual(),
            "{what}: nothing was refused"
        );
    }
}

/// Less than a sender's pause is worth: the pause is what the warning is about.
fn a_burst_that_tcp_cannot_use_is_warned_of_and_falls_short() {
    for (direction, from) in [("ingress", From::Client), ("egress", From::Server)] {
        let network = Network::new();
        let limit = format!("{LIMIT}burst = \"256KiB\"\ndirection = {direction:?}\n");
        assert!(warns(&network, "", &limit), "{direction}");
        let _agent = network.start("", &limit);
        let time = Duration::from_secs(2);
        let flows = Flows {
            from,
            count: 1,
            delay: Duration::ZERO,
            warm_up: Duration::from_millis(500),
            time,
        };
        let measured = flows.measure(&network);
        // An emulated CPU sends slowly, so that a smaller burst is enough for it.
        assert!(
            measured.rate < 0.85 * RATE || is_virtual(),
            "{direction}: it reaches the rate after all: {measured:?}"
        );
    }
}

/// Whether `check` says that TCP stays below the limit.
fn warns(network: &Network, agent: &str, limit: &str) -> bool {
    let config = network.config(agent, limit);
    let output = network.command(&["check", config.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    [output.stdout, output.stderr]
        .iter()
        .any(|text| String::from_utf8_lossy(text).contains("TCP stays below"))
}
