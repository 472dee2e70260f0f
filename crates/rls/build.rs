//! Generates the services from `proto/` with protox, so that protoc need not be installed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let definitions = protox::compile(
        [
            "envoy/service/ratelimit/v3/rls.proto",
            "grpc/health/v1/health.proto",
        ],
        ["proto"],
    )?;
    tonic_prost_build::configure()
        .build_client(false)
        .compile_fds(definitions)?;
    Ok(())
}
