//! The part of a running agent that answers applications, by itself or beside the limits on packets.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use super::run::stopped;
use crate::applications::{Orders, RequestsAlone, bans};
use crate::cli::Run;
use crate::config::policy::Config;
use crate::control::Server;
use crate::decide::{Engine, Service};
use crate::stats::monotonic_nanoseconds;

/// Whether there is nothing to do for packets.
pub fn are_all(config: &Config) -> bool {
    config.limits.is_empty() && config.agent.interfaces.is_empty() && !config.decide.limits.is_empty()
}

/// Starts to answer; the bans that are due come out at the other end.
pub fn start(config: &Config) -> anyhow::Result<(Service, Orders)> {
    let (queue, orders) = bans();
    let engine = Engine::new(config, Arc::new(queue))?;
    Ok((Service::start(&config.decide, engine, monotonic_nanoseconds)?, orders))
}

/// Says where applications are answered.
pub fn greet(service: &Service) {
    if let Some(endpoint) = service.http() {
        eprintln!("deciding over HTTP on {endpoint}");
    }
    if let Some(address) = service.grpc() {
        eprintln!("deciding over gRPC on {address}");
    }
}

/// Runs with limits on requests alone.
pub fn run(config: Config, options: &Run) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        let server = Server::bind(&config.agent.control)?;
        // Without an interface there is no limit that escalates, so nothing comes out of the queue.
        let (service, _) = start(&config)?;
        let limits = config.decide.limits.len();
        let plural = if limits == 1 { "" } else { "s" };
        let control = config.agent.control.display();
        eprintln!("{limits} limit{plural} on requests, none on packets; control socket {control}");
        greet(&service);
        let file = options.config.as_ref().map(|file| file.display().to_string());
        let agent = Arc::new(RequestsAlone::new(config, file, service));
        tokio::select! {
            () = server.serve(Arc::clone(&agent)) => {}
            result = stopped() => result?,
        }
        eprintln!("stopped; nobody answers applications any more");
        Ok(ExitCode::SUCCESS)
    })
}
