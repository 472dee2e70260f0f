//! Envoy's rate limit service, asked by a client that was generated from Envoy's own definitions, not from ours.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::UInt64Value;
use testbed::application::Agent;
use tonic::transport::Channel;

/// A descriptor with these entries.
fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry {
        key: (*key).to_owned(),
        value: (*value).to_owned(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}

struct Client {
    runtime: tokio::runtime::Runtime,
    client: RateLimitServiceClient<Channel>,
}

impl Client {
    fn of(agent: &Agent) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let client = runtime
            .block_on(RateLimitServiceClient::connect(format!(
                "http://{}",
                agent.grpc
            )))
            .unwrap();
        Self { runtime, client }
    }

    fn ask(
        &mut self,
        domain: &str,
        hits: u32,
        descriptors: &[RateLimitDescriptor],
    ) -> Result<RateLimitResponse, String> {
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.to_vec(),
            hits_addend: hits,
        };
        let answer = self
            .runtime
            .block_on(self.client.should_rate_limit(request));
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| format!("{:?}: {}", status.code(), status.message()))
    }
}

fn codes(response: &RateLimitResponse) -> (Code, Vec<Code>) {
    (
        response.overall_code(),
        response
            .statuses
            .iter()
            .map(|status| status.code())
            .collect(),
    )
}

#[test]
fn hits_are_charged_and_the_reply_has_the_limit() {
    let agent = Agent::start("grpc = \"127.0.0.1:0\"");
    let mut client = Client::of(&agent);
    let alice = [descriptor(&[("user", "alice")])];
    let response = client.ask("envoy", 700, &alice).unwrap();
    assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok]));
    let status = &response.statuses[0];
    assert!((300..310).contains(&status.limit_remaining), "{status:?}");
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.requests_per_unit, limit.unit()),
        ("credits-per-user", 600, Unit::Hour)
    );
    // 700 credits are back after 4,200 s.
    let reset = status.duration_until_reset.as_ref().unwrap().seconds;
    assert!((4_100..=4_200).contains(&reset), "{reset}");
    let headers: Vec<&str> = response
        .response_headers_to_add
        .iter()
        .map(|header| header.key.as_str())
        .collect();
    assert_eq!(headers, ["ratelimit-policy", "ratelimit"]);

    let response = client.ask("envoy", 700, &alice).unwrap();
    assert_eq!(codes(&response), (Code::OverLimit, vec![Code::OverLimit]));
    assert!(
        response
            .response_headers_to_add
            .iter()
            .any(|header| header.key == "retry-after")
    );
    // No hits are one hit, and those of a descriptor are stronger than those of the request; none of it is looking.
    let before = client.ask("envoy", 0, &alice).unwrap().statuses[0].limit_remaining;
    assert!((299..400).contains(&before), "{before}");
    let own = RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: 50 }),
        ..alice[0].clone()
    };
    let after = client.ask("envoy", 250, &[own]).unwrap().statuses[0].limit_remaining;
    // Neither one nor 250, while fewer than 40 are back.
    assert!((before - 50..before - 10).contains(&after), "{after}");
    let look = RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: 0 }),
        ..alice[0].clone()
    };
    let looked = client.ask("envoy", 250, &[look]).unwrap().statuses[0].limit_remaining;
    assert!((after..after + 100).contains(&looked), "{looked}");
}

#[test]
fn several_descriptors_are_charged_all_or_none() {
    let agent = Agent::start("grpc = \"127.0.0.1:0\"");
    let mut client = Client::of(&agent);
    let alice = descriptor(&[("user", "alice")]);
    // Envoy's word for the client's address, and the entries in another order.
    let login = descriptor(&[("path", "/login"), ("remote_address", "192.0.2.1")]);
    let both = [alice.clone(), login.clone()];
    for left in [2, 1, 0] {
        let response = client.ask("shop", 1, &both).unwrap();
        assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok; 2]));
        assert_eq!(response.statuses[1].limit_remaining, left);
    }
    let response = client.ask("shop", 1, &both).unwrap();
    assert_eq!(
        codes(&response),
        (Code::OverLimit, vec![Code::Ok, Code::OverLimit])
    );
    let credits = client.ask("shop", 1, &[alice]).unwrap().statuses[0].limit_remaining;
    assert!(
        (996..=1_000).contains(&credits),
        "four were charged, not five: {credits}"
    );
    // Another address is another key; another domain has no such limit; nor has a part of the key.
    let other = descriptor(&[("source", "192.0.2.2"), ("path", "/login")]);
    assert_eq!(
        client.ask("shop", 1, &[other]).unwrap().statuses[0].limit_remaining,
        2
    );
    for (domain, descriptor) in [("bar", login), ("shop", descriptor(&[("path", "/login")]))] {
        let response = client.ask(domain, 1, &[descriptor]).unwrap();
        assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok]));
        assert_eq!(response.statuses[0].current_limit, None);
    }
}

#[test]
fn a_source_in_a_descriptor_gives_its_class() {
    let agent = Agent::start("grpc = \"127.0.0.1:0\"");
    let mut client = Client::of(&agent);
    let payer = [
        descriptor(&[("user", "alice")]),
        descriptor(&[("remote_address", "198.51.100.9")]),
    ];
    let response = client.ask("envoy", 4_000, &payer).unwrap();
    assert_eq!(codes(&response), (Code::Ok, vec![Code::Ok; 2]));
    assert!((1_000..1_010).contains(&response.statuses[0].limit_remaining));
    // The reported limit is that of the class.
    let limit = response.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit()), (3_000, Unit::Hour));
    let header = |name: &str| {
        let found = response
            .response_headers_to_add
            .iter()
            .find(|header| header.key == name);
        found
            .map(|header| header.value.as_str())
            .unwrap_or_default()
    };
    assert_eq!(
        header("ratelimit-policy"),
        "\"credits-per-user\";q=3000;w=3600;qu=\"credits\""
    );
    assert!(
        header("ratelimit").starts_with("\"credits-per-user\";r=10"),
        "{}",
        header("ratelimit")
    );
}

/// Envoy lets requests pass whose limits were not answered: a value that a client can choose, as in a header, must not
/// make an answer impossible.
#[test]
fn no_value_that_a_client_can_choose_makes_a_request_invalid() {
    let agent = Agent::start("grpc = \"127.0.0.1:0\"");
    let mut client = Client::of(&agent);
    let payer = ("remote_address", "198.51.100.9");
    // A descriptor named source that is no address comes under the limit as it is, and gives no class.
    let web = [descriptor(&[("source", "web"), ("path", "/login")])];
    for left in [2, 1, 0] {
        assert_eq!(
            client.ask("shop", 1, &web).unwrap().statuses[0].limit_remaining,
            left
        );
    }
    assert_eq!(
        codes(&client.ask("shop", 1, &web).unwrap()),
        (Code::OverLimit, vec![Code::OverLimit])
    );
    let other = [descriptor(&[
        ("source", "203.0.113.9, 192.0.2.1"),
        ("path", "/login"),
    ])];
    assert_eq!(
        client.ask("shop", 1, &other).unwrap().statuses[0].limit_remaining,
        2
    );
    // The class is that of the address that Envoy saw, whatever somebody else calls the source, in any order.
    let claimed = descriptor(&[("source", "203.0.113.1")]);
    for (user, descriptors) in [
        (
            "a",
            [
                descriptor(&[("user", "a")]),
                claimed.clone(),
                descriptor(&[payer]),
            ],
        ),
        (
            "b",
            [
                descriptor(&[payer]),
                claimed.clone(),
                descriptor(&[("user", "b")]),
            ],
        ),
    ] {
        let response = client.ask("envoy", 4_000, &descriptors).unwrap();
        assert_eq!(response.overall_code(), Code::Ok, "{user}");
    }
    // Of two that nobody vouches for, neither gives a class to the others.
    let two = [
        descriptor(&[("user", "c")]),
        claimed,
        descriptor(&[("source", "198.51.100.9")]),
    ];
    let response = client.ask("envoy", 1, &two).unwrap();
    assert_eq!(
        response.statuses[0]
            .current_limit
            .as_ref()
            .unwrap()
            .requests_per_unit,
        600
    );
}

#[test]
fn invalid_requests_are_refused_and_charge_nothing() {
    let agent = Agent::start("http = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"");
    let mut client = Client::of(&agent);
    let alice = descriptor(&[("user", "alice")]);
    for (domain, descriptors, reason) in [
        ("", vec![alice.clone()], "missing domain"),
        ("envoy", vec![], "0 descriptors"),
        ("envoy", vec![alice.clone(); 101], "101 descriptors"),
    ] {
        let error = client.ask(domain, 1, &descriptors).unwrap_err();
        assert!(
            error.starts_with("InvalidArgument") && error.contains(reason),
            "{error}"
        );
    }
    assert_eq!(agent.remaining("alice"), 1_000);
}

/// Envoy would let the whole request pass after an error.
#[test]
fn a_limit_of_a_descriptors_own_is_reported_and_the_configs_applies() {
    let agent = Agent::start("http = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"");
    let mut client = Client::of(&agent);
    let own_limit = RateLimitOverride {
        requests_per_unit: 5,
        unit: 1,
    };
    let alice = RateLimitDescriptor {
        limit: Some(own_limit),
        ..descriptor(&[("user", "alice")])
    };
    assert!(client.ask("envoy", 100, &[alice]).is_ok());
    let remaining = agent.remaining("alice");
    assert!((900..1_000).contains(&remaining), "{remaining}");
    let status = agent.json(&["status"]);
    let notes = status["notes"].as_array().unwrap();
    let reported = notes.iter().filter_map(|note| note.as_str());
    let reported: Vec<&str> = reported
        .filter(|note| note.starts_with("limit of a descriptor over gRPC is not supported"))
        .collect();
    assert_eq!(reported.len(), 1, "{status}");
}
