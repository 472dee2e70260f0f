//! `agent detach`: removes from the kernel what a stopped agent left in effect.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::USAGE;
use crate::config::policy::AgentConfig;
use crate::config::{self, ConfigError};
use crate::control::Client;
use crate::datapath::{LoadError, PinDirectory};
use crate::groups;

pub fn detach(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let agent = match file {
        None => AgentConfig::default(),
        Some(file) => match config::load(file) {
            Ok(loaded) => loaded.config.agent,
            // Limits must come out of the kernel whatever has become of the file.
            Err(error @ ConfigError::Invalid(_)) => {
                eprintln!("{error}\nwarning: the config is invalid: its [agent] pins and control are used, no more");
                config::paths(&config::read_text(file)?)
            }
            Err(error) => {
                eprintln!("{error}");
                return Ok(ExitCode::from(USAGE));
            }
        },
    };
    // A running agent would go on reporting limits that are gone, and attach its programs again.
    let pins = agent.pins.exists().then(|| PinDirectory::open(&agent.pins)).transpose()?;
    let lock = pins.as_ref().map(PinDirectory::lock).transpose();
    if matches!(lock, Err(LoadError::InUse { .. })) || Client::new(&agent.control).is_answered() {
        eprintln!(
            "an agent is running on {}: stop it first, as by systemctl stop weir; with on_exit = \"detach\" it detaches by itself",
            agent.control.display()
        );
        return Ok(ExitCode::FAILURE);
    }
    let _lock = lock?;
    let (had_groups, problems) = groups::detach(&agent);
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem).context("ending the process groups");
    }
    if had_groups {
        println!("ended the process groups; their processes are back where they came from");
    }
    let Some(pins) = pins else {
        if !had_groups {
            println!("nothing to detach: there is no {}", agent.pins.display());
        }
        return Ok(ExitCode::SUCCESS);
    };
    let removed = pins.clear().context("detaching")?;
    for path in &removed {
        println!("removed {}", path.display());
    }
    println!("nothing of Weir is left in the kernel");
    Ok(ExitCode::SUCCESS)
}
