//! `agent detach`: nothing of an earlier run stays in the kernel.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

use super::USAGE;
use crate::config;
use crate::config::policy::DEFAULT_PINS;
use crate::datapath::PinDirectory;

pub fn detach(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let directory = match file {
        None => DEFAULT_PINS.into(),
        Some(file) => match config::load(file) {
            Ok(loaded) => loaded.config.agent.pins,
            Err(error) => {
                eprintln!("{error}");
                return Ok(ExitCode::from(USAGE));
            }
        },
    };
    if !directory.exists() {
        println!("nothing to detach: there is no {}", directory.display());
        return Ok(ExitCode::SUCCESS);
    }
    let removed = PinDirectory::open(&directory)?.clear().context("detaching")?;
    for path in &removed {
        println!("removed {}", path.display());
    }
    println!("nothing of Weir is left in the kernel");
    Ok(ExitCode::SUCCESS)
}
