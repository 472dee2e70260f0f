//! The same load over gRPC, by each server's own service.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use prost::Message;
use rls::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use rls::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response::Code,
};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic_prost::ProstCodec;

use super::{KEYS, Kind};

/// The peer's request.
#[derive(Clone, Message)]
struct ThrottleRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

/// The peer's reply, without the fields that are not read.
#[derive(Clone, Message)]
struct ThrottleResponse {
    #[prost(bool, tag = "1")]
    allowed: bool,
}

fn of_weir(key: u64) -> RateLimitRequest {
    let entry = Entry {
        key: "user".to_owned(),
        value: format!("user-{key:07}").into_bytes(),
    };
    let descriptor = RateLimitDescriptor {
        entries: vec![entry],
        ..RateLimitDescriptor::default()
    };
    RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![descriptor],
        ..RateLimitRequest::default()
    }
}

fn of_peer(key: u64) -> ThrottleRequest {
    let key = format!("user-{key:07}");
    ThrottleRequest {
        key,
        max_burst: 1_000_000,
        count_per_period: 1_000_000,
        period: 3_600,
        quantity: 1,
    }
}

/// Decisions of one client thread until the slice ends: each connection has one request outstanding.
pub fn load(
    kind: Kind,
    at: &str,
    connections: usize,
    start: Instant,
    slice: Duration,
) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting a runtime")?;
    let tasks = tokio::task::LocalSet::new();
    let connect = |nth: usize| {
        let endpoint = Endpoint::from_shared(format!("http://{at}"));
        async move {
            let channel = endpoint
                .context("an address")?
                .connect()
                .await
                .context("connecting")?;
            let (mut client, mut key, mut done) = (Grpc::new(channel), nth as u64 * 97, 0);
            while start.elapsed() < slice {
                key = (key + 1) % KEYS;
                client.ready().await.context("waiting for the connection")?;
                let is_passed = match kind {
                    Kind::Weir | Kind::Static => {
                        let path = PathAndQuery::from_static(
                            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
                        );
                        let codec = ProstCodec::<_, RateLimitResponse>::default();
                        let reply = client
                            .unary(tonic::Request::new(of_weir(key)), path, codec)
                            .await;
                        reply.context("asking")?.into_inner().overall_code == Code::Ok as i32
                    }
                    Kind::Throttlecrab => {
                        let path = PathAndQuery::from_static("/throttlecrab.RateLimiter/Throttle");
                        let codec = ProstCodec::<_, ThrottleResponse>::default();
                        let reply = client
                            .unary(tonic::Request::new(of_peer(key)), path, codec)
                            .await;
                        reply.context("asking")?.into_inner().allowed
                    }
                };
                ensure!(is_passed, "not passed by {}", kind.name());
                done += 1;
            }
            Ok(done)
        }
    };
    tasks.block_on(&runtime, async {
        let running: Vec<_> = (0..connections)
            .map(|nth| tokio::task::spawn_local(connect(nth)))
            .collect();
        let mut done = 0;
        for task in running {
            done += task.await.context("a client panicked")??;
        }
        Ok(done)
    })
}
