//! `agent detach`: nothing of an earlier run stays in the kernel.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::USAGE;
use crate::config;
use crate::config::policy::AgentConfig;
use crate::datapath::PinDirectory;
use crate::groups;

pub fn detach(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let agent = match file {
        None => AgentConfig::default(),
        Some(file) => match config::load(file) {
            Ok(loaded) => loaded.config.agent,
            Err(error) => {
                eprintln!("{error}");
                return Ok(ExitCode::from(USAGE));
            }
        },
    };
    let (had_groups, problems) = groups::detach(&agent);
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem).context("ending the process groups");
    }
    if had_groups {
        println!("ended the process groups; their processes are back where they came from");
    }
    let directory = &agent.pins;
    if !directory.exists() {
        if !had_groups {
            println!("nothing to detach: there is no {}", directory.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let removed = PinDirectory::open(directory)?.clear().context("detaching")?;
    for path in &removed {
        println!("removed {}", path.display());
    }
    println!("nothing of Weir is left in the kernel");
    Ok(ExitCode::SUCCESS)
}
