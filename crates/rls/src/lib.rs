//! Envoy's rate limit service v3 and gRPC's health checks, generated from the definitions in `proto/`. A separate crate, so that the workspace's
//! lints do not apply to generated code.

/// `grpc.*`, as the packages nest.
pub mod grpc {
    /// `grpc.health.*`.
    pub mod health {
        /// `grpc.health.v1`.
        pub mod v1 {
            tonic::include_proto!("grpc.health.v1");
        }
    }
}

/// `envoy.*`, as the packages nest.
pub mod envoy {
    /// `envoy.config.*`.
    pub mod config {
        /// `envoy.config.core.*`.
        pub mod core {
            /// `envoy.config.core.v3`.
            pub mod v3 {
                tonic::include_proto!("envoy.config.core.v3");
            }
        }
    }
    /// `envoy.extensions.*`.
    pub mod extensions {
        /// `envoy.extensions.common.*`.
        pub mod common {
            /// `envoy.extensions.common.ratelimit.*`.
            pub mod ratelimit {
                /// `envoy.extensions.common.ratelimit.v3`.
                pub mod v3 {
                    tonic::include_proto!("envoy.extensions.common.ratelimit.v3");
                }
            }
        }
    }
    /// `envoy.service.*`.
    pub mod service {
        /// `envoy.service.ratelimit.*`.
        pub mod ratelimit {
            /// `envoy.service.ratelimit.v3`.
            pub mod v3 {
                tonic::include_proto!("envoy.service.ratelimit.v3");
            }
        }
    }
}
