//! Envoy's rate limit services v3 over gRPC, for Envoy, Istio, Contour, Traefik's and others' clients.
//!
//! A descriptor is charged to every limit whose key has the same entries, in any order, and whose domain is the
//! request's or absent. A request is charged as a whole or not at all. A descriptor without a limit passes, as in
//! Envoy's own service.

use std::borrow::Cow;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use common::rate_limiter::Outcome;
use config::policy::RequestProtocol;
use config::request_key::{SOURCE, entry_name, is_remote_address};
use host::clients::{Client, accept};
use host::descriptors::places;
use rls::envoy::config::core::v3::HeaderValue;
use rls::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use rls::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server::RateLimitQuotaServiceServer;
use rls::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use rls::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use rls::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use rls::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use rls::grpc::health::v1::health_server::HealthServer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status};

use super::answer::answer;
use super::charge::{Charge, ChargeKind};
use super::connection::{Connection, PATIENCE};
use super::engine::Engine;
use super::engine_handle::EngineHandle;
use super::headers;
use super::health::HealthChecks;
use super::quotas::{self, Quotas};
use super::received::{Bounded, Receiving};
use super::together::tightest;

/// The most descriptors of one request.
const MOST_DESCRIPTORS: usize = 100;
/// The most bytes of one descriptor: Envoy's default limit of a request's headers, and the entries around them.
const LONGEST_DESCRIPTOR: usize = 64 * 1024;
/// The longest message, in bytes. Envoy lets a request pass if its message is refused.
const LONGEST_MESSAGE: usize = MOST_DESCRIPTORS * LONGEST_DESCRIPTOR;
/// The longest question about health: the name of a service.
const LONGEST_HEALTH_CHECK: usize = 1024;
/// Requests of one connection at a time.
const STREAMS: u32 = 1_024;
/// The most bytes of a request's headers.
const HEADER_LIST_BYTES: u32 = 8 * 1024;
/// The first bytes of a client: the preface of HTTP/2 and the head of a frame.
const OPENING: usize = 24 + 9;
/// The longest connection without a quota stream, so that no client keeps its place forever.
const LONGEST: Duration = Duration::from_secs(300);

/// Serves until it is dropped.
pub async fn serve(listener: TcpListener, handle: EngineHandle) {
    let receiving = Receiving::default();
    let health = Bounded::new(
        HealthServer::new(HealthChecks).max_decoding_message_size(LONGEST_HEALTH_CHECK),
        receiving.clone(),
    );
    let quotas = RateLimitQuotaServiceServer::new(Quotas {
        handle: handle.clone(),
    })
    .max_decoding_message_size(quotas::LONGEST_MESSAGE);
    let limits = Bounded::new(
        RateLimitServiceServer::new(Rls { handle }).max_decoding_message_size(LONGEST_MESSAGE),
        receiving,
    );
    let server = tonic::transport::Server::builder()
        .timeout(PATIENCE)
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADER_LIST_BYTES)
        .http2_keepalive_interval(Some(PATIENCE))
        .http2_keepalive_timeout(Some(PATIENCE))
        .add_service(health)
        .add_service(limits)
        .add_service(quotas);
    let (sender, connections) = mpsc::unbounded_channel();
    let take = move |client: Client<_>| {
        let connection = Connection::new(client)
            .opened_by(OPENING)
            .ends_after(LONGEST);
        drop(sender.send(Ok::<_, io::Error>(connection)));
    };
    tokio::select! {
        () = accept(listener, places().grpc, take) => {}
        // It ends with the runtime. Errors of one connection do not concern the server.
        _ = server.serve_with_incoming(UnboundedReceiverStream::new(connections)) => {}
    }
}

struct Rls {
    handle: EngineHandle,
}

#[tonic::async_trait]
impl RateLimitService for Rls {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let response = decide(&self.handle.engine(), request.get_ref(), self.handle.now());
        response
            .map(Response::new)
            .map_err(Status::invalid_argument)
    }
}

/// A charge and its descriptor.
struct DescriptorCharge {
    descriptor: usize,
    charge: Charge,
}

pub fn decide(
    engine: &Engine,
    request: &RateLimitRequest,
    now: u64,
) -> Result<RateLimitResponse, String> {
    if request.domain.is_empty() {
        return Err("missing domain in the request".to_owned());
    }
    let descriptors = &request.descriptors;
    if descriptors.is_empty() || descriptors.len() > MOST_DESCRIPTORS {
        return Err(format!(
            "{} descriptors: send 1 to {MOST_DESCRIPTORS}",
            descriptors.len()
        ));
    }
    // The client's address may be in a separate descriptor: it determines the class for all.
    let entries = || {
        descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.entries)
    };
    let (remote_address, named_source) = (
        address(entries(), is_remote_address),
        address(entries(), is_source),
    );
    let bans_nobody = !engine.bans_from(RequestProtocol::Grpc);
    let mut all = Vec::new();
    for (nth, descriptor) in descriptors.iter().enumerate() {
        if descriptor.limit.is_some() {
            engine.unsupported.count_limit();
        }
        let cost = cost(request, descriptor);
        let values: Vec<Cow<'_, str>> = descriptor
            .entries
            .iter()
            .map(|entry| headers::text(&entry.value))
            .collect();
        let entries = || {
            let names = descriptor
                .entries
                .iter()
                .map(|entry| entry_name(&entry.key));
            names.zip(values.iter().map(|value| &**value))
        };
        // The address that Envoy sees takes precedence over an entry with that name, such as a header.
        let own = |is_it: fn(&str) -> bool| address(descriptor.entries.iter(), is_it);
        let seen = own(is_remote_address).or(remote_address);
        let source = seen.or_else(|| own(is_source)).or(named_source).flatten();
        for limit in engine.limits_of(&request.domain, entries) {
            let charge = engine
                .charge_of(limit, entries(), source, cost)
                .map_err(|error| error.to_string())?;
            all.push(DescriptorCharge {
                descriptor: nth,
                charge: Charge {
                    kind: if descriptor.is_negative_hits {
                        ChargeKind::Refund
                    } else {
                        ChargeKind::Conforming
                    },
                    bans_nobody,
                    ..charge
                },
            });
        }
    }
    let charges: Vec<Charge> = all.iter().map(|one| one.charge).collect();
    let outcomes = engine.decide_together(&charges, now);

    let mut statuses = vec![
        DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        };
        descriptors.len()
    ];
    for (one, outcome) in all.iter().zip(&outcomes) {
        let limit = current_limit(engine, &one.charge);
        let status = &mut statuses[one.descriptor];
        let is_tighter = |other: Option<u64>| {
            !outcome.allowed || other.is_none_or(|other| outcome.remaining < other)
        };
        // Of several limits on one descriptor, the reply has the one that refuses, else the one with the least left.
        if is_tighter(
            status
                .current_limit
                .as_ref()
                .map(|_| u64::from(status.limit_remaining)),
        ) && status.code == i32::from(Code::Ok)
        {
            let code = if outcome.allowed {
                Code::Ok
            } else {
                Code::OverLimit
            };
            *status = DescriptorStatus {
                code: code.into(),
                current_limit: limit,
                limit_remaining: u32::try_from(outcome.remaining).unwrap_or(u32::MAX),
                duration_until_reset: duration(outcome.reset_after),
            };
        }
    }
    let is_over = statuses
        .iter()
        .any(|status| status.code == i32::from(Code::OverLimit));
    Ok(RateLimitResponse {
        overall_code: if is_over { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add: tightest(&outcomes)
            .map(|nth| headers(engine, &charges[nth], outcomes[nth]))
            .unwrap_or_default(),
    })
}

fn is_source(name: &str) -> bool {
    name == SOURCE
}

/// The address in the entries with this name: `None` without any, `Some(None)` if they differ. No value makes a request
/// invalid: clients that choose a value, as in a header, could otherwise bypass all limits where Envoy passes requests
/// after errors.
fn address<'e>(
    entries: impl Iterator<Item = &'e Entry>,
    is_it: fn(&str) -> bool,
) -> Option<Option<IpAddr>> {
    let parse = |entry: &Entry| {
        let value = std::str::from_utf8(&entry.value).ok()?;
        let address: IpAddr = value.parse().ok()?;
        Some(address.to_canonical())
    };
    let mut addresses = entries.filter(|entry| is_it(&entry.key)).filter_map(parse);
    let first = addresses.next()?;
    Some(addresses.all(|other| other == first).then_some(first))
}

/// The descriptor's hits, else the request's, else 1.
fn cost(request: &RateLimitRequest, descriptor: &RateLimitDescriptor) -> u64 {
    let of_request = u64::from(request.hits_addend.max(1));
    descriptor.hits_addend.unwrap_or(of_request)
}

/// The client's limit, which Envoy sends as `x-ratelimit-limit`. Envoy has whole units of time; for other windows only
/// the name is reported.
fn current_limit(engine: &Engine, charge: &Charge) -> Option<RateLimit> {
    let quota = engine.quota(charge)?;
    let unit = match quota.per_nanoseconds / 1_000_000 {
        1_000 => Unit::Second,
        60_000 => Unit::Minute,
        3_600_000 => Unit::Hour,
        86_400_000 => Unit::Day,
        // A month has 30 days in limits.toml.
        2_592_000_000 => Unit::Month,
        31_536_000_000 => Unit::Year,
        _ => Unit::Unknown,
    };
    Some(RateLimit {
        name: engine.limit(charge.limit).name.clone(),
        requests_per_unit: u32::try_from(quota.count).unwrap_or(u32::MAX),
        unit: unit.into(),
    })
}

fn duration(time: Duration) -> Option<prost_types::Duration> {
    prost_types::Duration::try_from(time).ok()
}

fn headers(engine: &Engine, charge: &Charge, outcome: Outcome) -> Vec<HeaderValue> {
    let answer = answer(&engine.limit(charge.limit).name, outcome);
    let policy = engine.policy_header(charge);
    let headers = [
        (
            "ratelimit-policy",
            policy
                .and_then(|policy| policy.to_str().ok())
                .map(str::to_owned),
        ),
        ("ratelimit", policy.map(|_| headers::limit(&answer))),
        ("retry-after", headers::retry_after(&answer)),
    ];
    let header = |(key, value): (&str, Option<String>)| {
        Some(HeaderValue {
            key: key.to_owned(),
            value: value?,
        })
    };
    headers.into_iter().filter_map(header).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use prost::Message;
    use rls::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tonic::body::Body;
    use tonic::codegen::Service as _;
    use tonic::codegen::http;

    use super::*;
    use crate::{Current, Edge, Offence};

    struct NoEdge;

    impl Edge for NoEdge {
        fn escalate(&self, _: Offence) {}
    }

    /// Counts bans.
    #[derive(Default)]
    struct Bans(AtomicUsize);

    impl Edge for Bans {
        fn escalate(&self, _: Offence) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn clients_ban_only_where_escalate_from_has_grpc() {
        for (from, bans) in [("[]", 0), ("[\"http\"]", 0), ("[\"http\", \"grpc\"]", 2)] {
            let text = format!(
                "[agent]\ninterfaces = [\"eth0\"]\n[decide]\nhttp = \"127.0.0.1:0\"\ngrpc = \"127.0.0.1:0\"\n\
                 escalate_from = {from}\n[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"remote_address\"]\n\
                 rate = \"5/day\"\nescalate = {{ after = 20, within = \"1h\", ban = \"5m\" }}\n"
            );
            let config = config::parse(Path::new("limits.toml"), &text).unwrap();
            let edge = Arc::new(Bans::default());
            let engine = Engine::new(&config.config, edge.clone()).unwrap();
            let entry = Entry {
                key: "remote_address".to_owned(),
                value: b"192.0.2.7".to_vec(),
            };
            let request = RateLimitRequest {
                domain: "shop".to_owned(),
                descriptors: vec![RateLimitDescriptor {
                    entries: vec![entry],
                    ..RateLimitDescriptor::default()
                }],
                hits_addend: 1,
            };
            let refused = (0..45)
                .map(|_| decide(&engine, &request, 1).unwrap())
                .filter(|response| response.overall_code == i32::from(Code::OverLimit));
            // The limit is the same for all.
            assert_eq!(refused.count(), 40, "{from}");
            assert_eq!(edge.0.load(Ordering::Relaxed), bans, "{from}");
        }
    }

    /// A client chooses the bytes of a header, and an error would make Envoy let the request pass.
    #[test]
    fn values_that_are_no_utf8_are_decided() {
        let text = "[[limit]]\nname = \"agents\"\nscope = \"request\"\nkey = [\"agent\"]\nrate = \"2/day\"\n";
        let config = config::parse(Path::new("limits.toml"), text).unwrap();
        let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
        let field = |number: u8, bytes: &[u8]| {
            let head = [number << 3 | 2, bytes.len() as u8];
            [&head[..], bytes].concat()
        };
        for value in [&b"a\xff"[..], b"a\xfe", b"\xff", b"\xed\xa0\x80", b"\xc3"] {
            let entry = [field(1, b"agent"), field(2, value)].concat();
            let descriptor = field(2, &field(1, &entry));
            let message = [field(1, b"shop"), descriptor].concat();
            let request = RateLimitRequest::decode(&*message).unwrap();
            let passed = (0..5)
                .map(|_| decide(&engine, &request, 1).unwrap())
                .filter(|response| response.overall_code == i32::from(Code::Ok));
            assert_eq!(passed.count(), 2, "{value:?}");
        }
    }

    /// An error would make Envoy let the request pass.
    #[test]
    fn unsupported_fields_are_reported_and_the_rest_is_decided() {
        let text = "[[limit]]\nname = \"paths\"\nscope = \"request\"\nkey = [\"path\"]\nrate = \"2/day\"\n";
        let config = config::parse(Path::new("limits.toml"), text).unwrap();
        let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
        let of = |path: &str| RateLimitDescriptor {
            entries: vec![Entry {
                key: "path".to_owned(),
                value: path.as_bytes().to_vec(),
            }],
            ..RateLimitDescriptor::default()
        };
        let with_limit = RateLimitDescriptor {
            limit: Some(RateLimitOverride {
                requests_per_unit: 1_000,
                ..RateLimitOverride::default()
            }),
            ..of("/")
        };
        let codes = |descriptors: &[&RateLimitDescriptor]| {
            let request = RateLimitRequest {
                domain: "shop".to_owned(),
                descriptors: descriptors.iter().map(|one| (*one).clone()).collect(),
                hits_addend: 1,
            };
            let response = decide(&engine, &request, 1).unwrap();
            let code = |status: &DescriptorStatus| status.code == i32::from(Code::Ok);
            response.statuses.iter().map(code).collect::<Vec<_>>()
        };
        assert_eq!(engine.notes().count(), 0);
        assert_eq!(codes(&[&with_limit, &of("/")]), [true, true]);
        assert_eq!(codes(&[&with_limit, &of("/other")]), [false, true]);
        let notes: Vec<String> = engine.notes().collect();
        assert_eq!(
            notes,
            [
                "limit of a descriptor over gRPC is not supported (sent so far: 2): the limits of limits.toml apply"
            ]
        );
    }

    #[test]
    fn negative_hits_are_a_refund_that_is_made_with_the_whole_request() {
        let text = "[[limit]]\nname = \"tokens\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"100/day\"\n\
                    algorithm = \"fixed-window\"\n";
        let config = config::parse(Path::new("limits.toml"), text).unwrap();
        let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
        let of = |user: &str, hits: u64| RateLimitDescriptor {
            entries: vec![Entry {
                key: "user".to_owned(),
                value: user.as_bytes().to_vec(),
            }],
            hits_addend: Some(hits),
            ..RateLimitDescriptor::default()
        };
        let refund = |user: &str, hits: u64| RateLimitDescriptor {
            is_negative_hits: true,
            ..of(user, hits)
        };
        let ask = |descriptors: &[RateLimitDescriptor]| {
            let request = RateLimitRequest {
                domain: "shop".to_owned(),
                descriptors: descriptors.to_vec(),
                hits_addend: 1,
            };
            let statuses = decide(&engine, &request, 1).unwrap().statuses;
            let left = |status: &DescriptorStatus| {
                (status.code == i32::from(Code::Ok), status.limit_remaining)
            };
            statuses.iter().map(left).collect::<Vec<_>>()
        };
        assert_eq!(ask(&[of("alice", 80)]), [(true, 20)]);
        assert_eq!(ask(&[refund("alice", 30)]), [(true, 50)]);
        // No more than the whole allowance.
        assert_eq!(ask(&[refund("alice", 500)]), [(true, 100)]);
        assert_eq!(ask(&[of("alice", 60)]), [(true, 40)]);
        // Another descriptor is refused: nothing is returned.
        let refused = ask(&[refund("alice", 60), of("bob", 101)]);
        assert_eq!(refused, [(true, 40), (false, 100)]);
        assert_eq!(ask(&[of("alice", 0)]), [(true, 40)]);
        assert_eq!(
            ask(&[refund("alice", 60), of("bob", 100)]),
            [(true, 100), (true, 0)]
        );
        let counters = &engine.limits[0].counters;
        assert_eq!(
            counters.passed.load(Ordering::Relaxed),
            4,
            "refunds do not count"
        );
    }

    /// The server's SETTINGS have the most bytes of headers (RFC 9113, 6.5.2).
    #[tokio::test]
    async fn a_stream_has_a_bound_on_its_headers() {
        const MAX_HEADER_LIST_SIZE: u16 = 6;
        let config =
            config::parse(Path::new("limits.toml"), "[agent]\nallow_empty = true\n").unwrap();
        let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
        let handle = EngineHandle::new(Arc::new(Current::from_pointee(engine)), || 1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, handle));
        let mut client = TcpStream::connect(address).await.unwrap();
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        client.write_all(preface).await.unwrap();
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let mut settings = vec![0; usize::from(head[2])];
        client.read_exact(&mut settings).await.unwrap();
        let bound = settings.chunks(6).find_map(|setting| {
            let id = u16::from_be_bytes(setting[..2].try_into().unwrap());
            let value = u32::from_be_bytes(setting[2..].try_into().unwrap());
            (id == MAX_HEADER_LIST_SIZE).then_some(value)
        });
        assert_eq!(bound, Some(HEADER_LIST_BYTES));
        server.abort();
    }

    /// A field of a protocol buffer.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let (mut field, mut length) = (vec![number << 3 | 2], bytes.len());
        while length >= 0x80 {
            field.push(length as u8 | 0x80);
            length >>= 7;
        }
        field.push(length as u8);
        [field, bytes.to_vec()].concat()
    }

    /// A client's longest headers, in each of five and of a hundred descriptors: Envoy lets a refused message pass.
    #[tokio::test]
    async fn a_message_of_envoys_longest_headers_is_decided() {
        let text = "[[limit]]\nname = \"agents\"\nscope = \"request\"\nkey = [\"agent\"]\nrate = \"1/day\"";
        let config = config::parse(Path::new("limits.toml"), text).unwrap();
        let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
        let handle = EngineHandle::new(Arc::new(Current::from_pointee(engine)), || 1);
        let mut service = Bounded::new(
            RateLimitServiceServer::new(Rls { handle }).max_decoding_message_size(LONGEST_MESSAGE),
            Receiving::default(),
        );
        for (descriptors, byte) in [(5, b'a'), (MOST_DESCRIPTORS, b'b')] {
            let value = vec![byte; 60 * 1024];
            let entry = [field(1, b"agent"), field(2, &value)].concat();
            let descriptor = field(2, &field(1, &entry));
            let message = [field(1, b"shop"), descriptor.repeat(descriptors)].concat();
            let frame = [&[0], &(message.len() as u32).to_be_bytes()[..], &message].concat();
            let request =
                http::Request::post("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
                    .header("content-type", "application/grpc")
                    .body(Body::new(Full::new(frame.into())))
                    .unwrap();
            let response = service.call(request).await.unwrap();
            let status = response.headers().get("grpc-status");
            assert_eq!(status, None, "{descriptors} descriptors");
        }
    }
}
