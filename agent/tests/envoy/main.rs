//! Envoy itself asks the agent's own binary: `cargo xtask integration`.

mod load;
mod proxy;
mod quotas;

use libtest_mimic::Arguments;
use proxy::{
    Client, Envoy, PROGRAM, Reply, WhenAway, generic, header, remote_address, route,
    route_of_filter, wait_for,
};
use serde_json::{Value, json};
use testbed::application::Agent;
use testbed::port::Port;
use testbed::tests;
use testbed::trials::{Test, trial_unless};

/// Far more than an answer takes, since these tests are about what it is.
const TIMEOUT: &str = "10s";

const LIMITS: &str = r#"
[[class]]
name = "payer"
sources = ["198.51.100.0/24"]
multiplier = 5

[[limit]]
name = "routes"
scope = "request"
key = ["generic_key"]
rate = "100/h"

[[limit]]
name = "login"
scope = "request"
key = ["generic_key=login"]
rate = "3/h"
replaces = "routes"

[[limit]]
name = "addresses"
scope = "request"
key = ["remote_address"]
domain = "shop"
algorithm = "sliding-log"
rate = "4/h"

[[limit]]
name = "users"
scope = "request"
key = ["user"]
rate = "10/h"

[[limit]]
name = "named"
scope = "request"
key = ["source", "path"]
rate = "2/h"
"#;

fn main() {
    let tests: &[Test] = tests![
        a_generic_key_has_the_limit_for_its_value,
        an_address_has_its_own_allowance_and_its_class,
        a_header_has_an_allowance_for_each_value,
        several_descriptors_are_charged_all_or_none,
        hits_are_what_a_request_costs,
        a_descriptor_named_source_that_is_no_address_is_limited,
        no_header_of_a_clients_lets_him_around_a_limit,
        without_an_agent_envoys_failure_mode_decides_and_with_one_the_limit,
        quotas::two_envoys_pass_a_rate_together,
        quotas::two_envoys_pass_a_quota_and_return_unused_units,
        quotas::without_an_agent_envoy_has_its_units_and_later_new_ones,
        load::a_thousand_requests_a_second_are_answered_within_20_ms,
    ];
    let obstacle = std::env::var_os(PROGRAM)
        .is_none()
        .then_some("it needs Envoy: run `cargo xtask integration`, which provides it");
    let trials = tests.iter().map(|test| trial_unless(test, obstacle));
    // One after the other: the last one measures time.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    testbed::trials::run(&arguments, trials.collect())
}

fn routes() -> Vec<Value> {
    vec![
        route(
            "/login",
            json!([{"actions": [generic("generic_key", "login")]}]),
        ),
        route(
            "/other",
            json!([{"actions": [generic("generic_key", "other")]}]),
        ),
        route("/address", json!([{"actions": [remote_address()]}])),
        route("/user", json!([{"actions": [header("x-user", "user")]}])),
        route(
            "/both",
            json!([{"actions": [header("x-user", "user")]}, {"actions": [remote_address()]}]),
        ),
        route_of_filter(
            "/hits",
            json!([{"actions": [header("x-user", "user")], "hits_addend": {"number": 4}}]),
        ),
        route(
            "/named",
            json!([{"actions": [generic("source", "web"), generic("path", "/named")]}]),
        ),
        route(
            "/chosen",
            json!([
                {"actions": [generic("generic_key", "login")]},
                {"actions": [header("x-client", "source")]},
                {"actions": [header("x-client", "remote_address")]},
                {"actions": [remote_address()]},
            ]),
        ),
    ]
}

/// An agent with the limits above, and Envoy that asks it.
fn start() -> (Agent, Envoy) {
    let agent = Agent::start_with("grpc = \"127.0.0.1:0\"", LIMITS);
    let envoy = Envoy::start(&agent.grpc, TIMEOUT, routes());
    (agent, envoy)
}

/// Gets a path some times, and tells how often it was passed; the others are refused by the limit.
fn passed(client: &mut Client, path: &str, headers: &[(&str, &str)], times: usize) -> usize {
    let replies: Vec<Reply> = (0..times).map(|_| client.get(path, headers)).collect();
    replies
        .iter()
        .filter(|reply| !reply.is_passed())
        .for_each(|reply| assert_eq!(reply.status, 429, "{reply:?}"));
    replies.iter().filter(|reply| reply.is_passed()).count()
}

fn from(address: &'static str) -> [(&'static str, &'static str); 1] {
    [("x-forwarded-for", address)]
}

fn a_generic_key_has_the_limit_for_its_value() {
    let (agent, envoy) = start();
    let mut client = envoy.client();
    for left in ["2", "1", "0"] {
        let reply = client.get("/login", &[]);
        assert!(reply.is_passed(), "{reply:?}");
        assert_eq!(
            reply.header("x-ratelimit-limit"),
            "3, 3;w=3600;name=\"login\""
        );
        assert_eq!(reply.header("x-ratelimit-remaining"), left);
        let reset: u64 = reply.header("x-ratelimit-reset").parse().unwrap();
        assert!((1_100..=3_600).contains(&reset), "{reply:?}");
        assert_eq!(reply.header("ratelimit-policy"), "\"login\";q=3;w=3600");
    }
    let reply = client.get("/login", &[]);
    assert_eq!(
        (reply.status, reply.header("x-ratelimit-remaining")),
        (429, "0"),
        "{reply:?}"
    );
    let wait: u64 = reply.header("retry-after").parse().unwrap();
    assert!((1..=1_200).contains(&wait), "{reply:?}");
    // The general limit is for all other values, and was not charged for this one.
    let reply = client.get("/other", &[]);
    assert_eq!(
        (reply.is_passed(), reply.header("x-ratelimit-remaining")),
        (true, "99"),
        "{reply:?}"
    );
    let limits: Value =
        serde_json::from_slice(&agent.command(&["limits", "--json"]).stdout).unwrap();
    let counts = |nth: usize| {
        (
            &limits[nth]["passed"]["packets"],
            &limits[nth]["throttled"]["packets"],
        )
    };
    assert_eq!(
        (counts(0), counts(1)),
        ((&json!(1), &json!(0)), (&json!(3), &json!(1)))
    );
}

fn an_address_has_its_own_allowance_and_its_class() {
    let (_agent, envoy) = start();
    let mut client = envoy.client();
    assert_eq!(passed(&mut client, "/address", &from("203.0.113.9"), 6), 4);
    assert_eq!(passed(&mut client, "/address", &from("203.0.113.10"), 2), 2);
    // Of IPv6, a network of 64 bits is one client.
    assert_eq!(passed(&mut client, "/address", &from("2001:db8::1"), 3), 3);
    assert_eq!(passed(&mut client, "/address", &from("2001:db8::2"), 3), 1);
    // Without a proxy in front it is the address of the connection.
    assert_eq!(passed(&mut client, "/address", &[], 6), 4);
    let reply = client.get("/address", &from("198.51.100.7"));
    assert_eq!(
        reply.header("x-ratelimit-limit"),
        "20, 20;w=3600;name=\"addresses\"",
        "{reply:?}"
    );
    assert_eq!(reply.header("x-ratelimit-remaining"), "19", "{reply:?}");
    assert_eq!(
        reply.header("ratelimit-policy"),
        "\"addresses\";q=20;w=3600",
        "{reply:?}"
    );
    assert_eq!(
        passed(&mut client, "/address", &from("198.51.100.7"), 25),
        19
    );
}

fn a_header_has_an_allowance_for_each_value() {
    let (_agent, envoy) = start();
    let mut client = envoy.client();
    assert_eq!(passed(&mut client, "/user", &[("x-user", "alice")], 13), 10);
    assert_eq!(passed(&mut client, "/user", &[("x-user", "bob")], 2), 2);
    // Without the header Envoy has nothing to ask.
    let reply = client.get("/user", &[]);
    assert!(
        reply.is_passed() && reply.header("x-ratelimit-limit").is_empty(),
        "{reply:?}"
    );
}

fn several_descriptors_are_charged_all_or_none() {
    let (_agent, envoy) = start();
    let mut client = envoy.client();
    let alice = |address: &'static str| [("x-user", "alice"), from(address)[0]];
    assert_eq!(passed(&mut client, "/both", &alice("203.0.113.9"), 6), 4);
    // Two were refused for their address, and cost the user nothing: six are left.
    assert_eq!(passed(&mut client, "/both", &alice("203.0.113.10"), 4), 4);
    assert_eq!(passed(&mut client, "/both", &alice("203.0.113.11"), 4), 2);
    // Nor did those refused for the user cost the address anything.
    assert_eq!(passed(&mut client, "/address", &from("203.0.113.11"), 4), 2);
}

fn hits_are_what_a_request_costs() {
    let (_agent, envoy) = start();
    let mut client = envoy.client();
    let alice = [("x-user", "alice")];
    // Of ten, four each: two requests pass, and two single hits are left.
    assert_eq!(passed(&mut client, "/hits", &alice, 4), 2);
    assert_eq!(passed(&mut client, "/user", &alice, 4), 2);
}

fn a_descriptor_named_source_that_is_no_address_is_limited() {
    let (_agent, envoy) = start();
    let mut client = envoy.client();
    assert_eq!(passed(&mut client, "/named", &[], 5), 2);
    assert_eq!(envoy.counter("ratelimit.error"), 0);
}

/// On the listener that passes what was not answered: an error would be a way around.
fn no_header_of_a_clients_lets_him_around_a_limit() {
    let (_agent, envoy) = start();
    let mut client = envoy.client_of(WhenAway::Pass);
    let mut all = 0;
    for value in [
        "203.0.113.9",
        "nonsense",
        "203.0.113.9, 198.51.100.1",
        "[::1]:80",
        "::ffff:192.0.2.1",
        "%00",
        "no UTF-8: \u{ff}",
        "198.51.100.7",
    ] {
        let reply = client.get(
            "/chosen",
            &[
                ("x-client", value),
                ("x-forwarded-for", "192.0.2.77, 192.0.2.78"),
            ],
        );
        all += usize::from(reply.is_passed());
    }
    assert_eq!(all, 3, "the last one claims a payer's address");
    assert_eq!(envoy.counter("ratelimit.error"), 0);
}

fn without_an_agent_envoys_failure_mode_decides_and_with_one_the_limit() {
    // No connection takes it while there is no agent.
    let port = Port::reserve();
    let grpc = format!("127.0.0.1:{}", port.number());
    let mut agent = Agent::start_with(&format!("grpc = \"{grpc}\""), LIMITS);
    let envoy = Envoy::start(&agent.grpc, TIMEOUT, routes());
    assert_eq!(passed(&mut envoy.client(), "/login", &[], 4), 3);
    assert_eq!(
        passed(&mut envoy.client_of(WhenAway::Pass), "/login", &[], 1),
        0
    );
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    for _ in 0..5 {
        assert!(
            envoy
                .client_of(WhenAway::Pass)
                .get("/login", &[])
                .is_passed()
        );
        let reply = envoy.client().get("/login", &[]);
        assert_eq!(reply.status, 500, "{reply:?}");
    }
    assert!(envoy.counter("ratelimit.error") >= 10);
    // The next agent begins with whole allowances; Envoy finds it by itself.
    drop(agent);
    let _agent = Agent::start_with(&format!("grpc = \"{grpc}\""), LIMITS);
    wait_for("Envoy to find the agent", || {
        (envoy.client().get("/other", &[]).status == 200).then_some(())
    });
    assert_eq!(passed(&mut envoy.client(), "/login", &[], 5), 3);
    assert_eq!(
        passed(&mut envoy.client_of(WhenAway::Pass), "/login", &[], 2),
        0
    );
}
