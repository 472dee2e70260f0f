//! The engine of limits on requests, with the state of earlier runs.

use std::collections::HashMap;
use std::sync::Arc;

use config::policy::Config;
use decide::{Engine, EngineError, ServiceError};
use thiserror::Error;

use super::orders::{self, Orders};
use super::state::Restore;
use crate::stats::monotonic_nanoseconds;

/// The servers for applications cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// The limits cannot be enforced.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A server cannot listen.
    #[error(transparent)]
    Service(#[from] ServiceError),
}

/// Listens for applications, with the state of an earlier agent. [`decide::Service::serve`] starts to process their requests.
///
/// # Errors
///
/// When it cannot listen on a configured address.
pub fn start(
    config: &Config,
    shares: &HashMap<String, cluster::EffectiveShare>,
    restore: Option<&Restore>,
) -> Result<(decide::Service, Orders), StartError> {
    let (queue, orders) = orders::queue();
    let mut engine = Engine::new(config, Arc::new(queue))?;
    if let Some((saved, restore)) =
        restore.and_then(|restore| Some((restore.saved.requests.as_ref()?, restore)))
    {
        engine.resume(saved, restore.then, restore.now);
    }
    // Before the first question, which would otherwise be evaluated under the whole limit on every host.
    engine.set_shares(shares);
    Ok((
        decide::Service::listen(&config.decide, engine, monotonic_nanoseconds)?,
        orders,
    ))
}
