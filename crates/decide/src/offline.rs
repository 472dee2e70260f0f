//! Requests as the bytes that a client sends, without sockets: for tests of any bytes.

use std::time::Duration;

use host::clients::{Client, Places};
use prost::Message as _;
use rls::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;
use rls::envoy::service::ratelimit::v3::RateLimitRequest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::engine::Engine;
use super::engine_handle::EngineHandle;
use super::quotas::Stream;
use super::{grpc, http};

/// The bytes between client and server.
const BUFFER: usize = 256 * 1024;
/// A request with `wait` would take longer.
const LONGEST: Duration = Duration::from_millis(200);

/// The replies to the bytes of one HTTP connection, whose client sends no more afterwards.
pub async fn http_replies(handle: EngineHandle, bytes: &[u8]) -> Vec<u8> {
    let (mut client, server) = tokio::io::duplex(BUFFER);
    let Some(activity) = Places::new(1).take_unless_busy().await else {
        return Vec::new();
    };
    let converse = async {
        let _ = client.write_all(bytes).await;
        let _ = client.shutdown().await;
        let mut replies = Vec::new();
        let _ = client.read_to_end(&mut replies).await;
        replies
    };
    let serve = http::converse(Client::new(server, activity), handle);
    tokio::time::timeout(LONGEST, async { tokio::join!(serve, converse).1 })
        .await
        .unwrap_or_default()
}

/// The reply to a message of Envoy's rate limit service.
///
/// # Errors
///
/// When the message is invalid.
pub fn rls_reply(engine: &Engine, message: &[u8], now: u64) -> Result<Vec<u8>, String> {
    let request = RateLimitRequest::decode(message).map_err(|error| error.to_string())?;
    grpc::decide(engine, &request, now).map(|reply| reply.encode_to_vec())
}

/// The replies to a message of Envoy's rate limit quota service that a stream has twice.
///
/// # Errors
///
/// When the message is invalid.
pub fn quota_replies(engine: &Engine, message: &[u8], now: u64) -> Result<[Vec<u8>; 2], String> {
    let reports = RateLimitQuotaUsageReports::decode(message).map_err(|error| error.to_string())?;
    let mut stream =
        Stream::new(engine.quota_buckets.clone()).map_err(|status| status.message().to_owned())?;
    let mut reply = |now| {
        let reply = stream.reply(engine, reports.clone(), now);
        let reply = reply.map_err(|status| status.message().to_owned());
        reply.map(|reply| reply.encode_to_vec())
    };
    Ok([reply(now)?, reply(now.saturating_add(1_000_000_000))?])
}
