//! Envoy's rate limit quota service v3 over gRPC: a proxy decides requests alone, with units that it was assigned.
//!
//! A bucket is charged to the limits of a descriptor with the same entries. Weir charges the units of an assignment before the proxy
//! has them, and returns those that it has not used: all proxies together pass no more than the limit, besides units
//! that they have at the time, at most a tenth of the allowance or the units of two reports.

mod bucket;
mod buckets;
mod grant;
mod stream;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::time::Duration;

use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server::RateLimitQuotaService;
use rls::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status, Streaming};

pub(super) use self::buckets::Buckets;
pub(super) use self::stream::Stream;
use super::connection::ConnectionState;
use super::engine_handle::EngineHandle;

/// The longest message, in bytes: reports of 10,000 buckets of the usual length.
pub(super) const LONGEST_MESSAGE: usize = 2 << 20;
/// The most streams of a connection: Envoy has one for each of its filters and domains.
const MOST_OF_CONNECTION: usize = 8;

/// The longest time without a report.
const SILENT: Duration = Duration::from_secs(15 * 60);

/// Replies to reports.
pub(super) struct Quotas {
    pub(super) handle: EngineHandle,
}

#[tonic::async_trait]
impl RateLimitQuotaService for Quotas {
    type StreamRateLimitQuotasStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<RateLimitQuotaResponse, Status>> + Send>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
        let handle = self.handle.clone();
        let buckets = handle.engine().quota_buckets.clone();
        let connection = request.extensions().get::<ConnectionState>();
        let open = connection.map(|connection| {
            // It keeps its place: a new stream costs the units that the proxy has.
            connection.activity.begin();
            connection.quota_streams.open(MOST_OF_CONNECTION)
        });
        if matches!(open, Some(None)) {
            buckets.refuse_stream();
            return Err(Status::resource_exhausted(
                "too many quota streams of a connection: end one of them",
            ));
        }
        let mut stream = Stream::new(buckets)?;
        let silent = |_| Err(Status::deadline_exceeded("no report for 15 minutes"));
        let reports = request.into_inner().timeout(SILENT);
        let replies = reports.filter_map(move |reports| {
            let _open = &open;
            let reports = reports.unwrap_or_else(silent);
            let reply =
                reports.and_then(|reports| stream.reply(&handle.engine(), reports, handle.now()));
            // Envoy takes no response without an action.
            let is_empty = |reply: &RateLimitQuotaResponse| reply.bucket_action.is_empty();
            Some(reply).filter(|reply| !reply.as_ref().is_ok_and(is_empty))
        });
        Ok(Response::new(Box::pin(replies)))
    }
}
