//! gRPC's health checks: the service is healthy as long as it replies.

use rls::grpc::health::v1::health_check_response::ServingStatus;
use rls::grpc::health::v1::health_server::Health;
use rls::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tonic::{Request, Response, Status};

/// The services that are checked; an empty name is the whole server.
const SERVICES: [&str; 3] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
];

/// Replies to `grpc.health.v1.Health/Check`.
#[derive(Clone, Copy, Debug, Default)]
pub struct HealthChecks;

#[tonic::async_trait]
impl Health for HealthChecks {
    type WatchStream = tokio_stream::Empty<Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            service if SERVICES.contains(&service) => Ok(Response::new(HealthCheckResponse {
                status: ServingStatus::Serving.into(),
            })),
            other => Err(Status::not_found(format!("unknown service {other:?}"))),
        }
    }

    /// Clients then use `Check` instead, as gRPC's protocol of health checks has it.
    async fn watch(
        &self,
        _request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented(
            "Watch is not supported: use Check of grpc.health.v1.Health",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_service_is_serving_and_others_are_unknown() {
        let check = async |service: &str| {
            let request = HealthCheckRequest {
                service: service.to_owned(),
            };
            HealthChecks.check(Request::new(request)).await
        };
        for service in SERVICES {
            let reply = check(service).await.unwrap().into_inner();
            assert_eq!(reply.status(), ServingStatus::Serving);
        }
        let error = check("other").await.unwrap_err();
        assert_eq!(error.code(), tonic::Code::NotFound);
    }
}
