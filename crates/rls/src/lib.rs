//! Envoy's rate limit service v3, its quota service, and gRPC's health checks. A separate crate, so that the workspace's lints do not apply to
//! generated code.
//!
//! `generated/` is made from the definitions in `proto/`; `crates/rls-tests/tests/generated.rs` compares and writes it.

/// `grpc.*`, as the packages nest.
pub mod grpc {
    /// `grpc.health.*`.
    pub mod health {
        /// `grpc.health.v1`.
        pub mod v1 {
            include!("generated/grpc.health.v1.rs");
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
                include!("generated/envoy.config.core.v3.rs");
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
                    include!("generated/envoy.extensions.common.ratelimit.v3.rs");
                }
            }
        }
    }
    /// `envoy.service.*`.
    pub mod service {
        /// `envoy.service.rate_limit_quota.*`.
        pub mod rate_limit_quota {
            /// `envoy.service.rate_limit_quota.v3`.
            pub mod v3 {
                include!("generated/envoy.service.rate_limit_quota.v3.rs");
            }
        }
        /// `envoy.service.ratelimit.*`.
        pub mod ratelimit {
            /// `envoy.service.ratelimit.v3`.
            pub mod v3 {
                include!("generated/envoy.service.ratelimit.v3.rs");
            }
        }
    }
    /// `envoy.type.*`, whose name is a keyword.
    pub mod r#type {
        /// `envoy.type.v3`.
        pub mod v3 {
            include!("generated/envoy.r#type.v3.rs");
        }
    }
}
