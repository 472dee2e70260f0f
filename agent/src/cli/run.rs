//! `agent --config limits.toml`: enforces the config until the agent is stopped.

mod configured;
mod enforce;
mod fallbacks;

use std::path::Path;
use std::process::ExitCode;
use std::thread;

use datapath::compile::CompileError;
use datapath::memory;

use self::enforce::Stage;
use self::fallbacks::{PAUSE, run_until_stopped};
use super::arguments::Options;
use super::exit::USAGE;
use crate::log;
use crate::supervisor::Supervisor;

pub fn run(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    log::start(
        options.log_level.unwrap_or_default(),
        options.log_format.unwrap_or_default(),
    );
    memory::keep_little();
    let mut stage = Stage::Starting;
    let result = run_until_stopped(file, &mut stage);
    let Err(error) = result else { return result };
    if let Some(error) = error.downcast_ref::<CompileError>() {
        tracing::error!("{error}");
        return Ok(ExitCode::from(USAGE));
    }
    if matches!(stage, Stage::Starting) && Supervisor.is_there() {
        Supervisor.failed(&format!("{error:#}"));
        thread::sleep(PAUSE);
    }
    Err(error)
}
