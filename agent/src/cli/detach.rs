//! `agent detach`: removes the kernel state of a stopped agent.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use config::ConfigError;
use config::policy::AgentConfig;
use datapath::{LoadError, PinDirectory};
use host::{StateDirectory, syn_cookies};

use super::exit::invalid;
use crate::daemon;
use crate::server::control::Client;

pub fn detach(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    let agent = match file {
        None => AgentConfig::default(),
        Some(file) => match config::load(file) {
            Ok(loaded) => loaded.config.agent,
            // Detaching must work even if the file is invalid.
            Err(error @ ConfigError::Invalid(_)) => {
                eprintln!(
                    "{error}\nwarning: the config is invalid: only its [agent] paths are used"
                );
                config::paths(&config::read_text(file)?)
            }
            Err(error) => return Ok(invalid(&error)),
        },
    };
    // A running agent would report limits that no longer exist, and attach its programs again.
    let pins = agent
        .pins
        .exists()
        .then(|| PinDirectory::open(&agent.pins))
        .transpose()?;
    let lock = pins.as_ref().map(PinDirectory::lock).transpose();
    if matches!(lock, Err(LoadError::InUse { .. })) || Client::new(&agent.control).is_answered() {
        eprintln!(
            "an agent is running on {}: stop it first (systemctl stop weir); with on_exit = \"detach\" it detaches by itself",
            agent.control.display()
        );
        return Ok(ExitCode::FAILURE);
    }
    let _lock = lock?;
    if let Some(value) = syn_cookies::restore(&StateDirectory::at(&agent.state_dir))
        .context("restoring a setting")?
    {
        println!("{} is {value} again", syn_cookies::SETTING);
    }
    let (had_groups, problems) = cgroup::detach(&agent);
    if let Some(problem) = problems.into_iter().next() {
        return Err(problem).context("ending the process groups");
    }
    if had_groups {
        println!(
            "ended the process groups; their processes are back in the cgroups that they came from"
        );
    }
    let Some(pins) = pins else {
        if !had_groups {
            println!("nothing to detach: {} not found", agent.pins.display());
        }
        return Ok(ExitCode::SUCCESS);
    };
    // Bans outlive the kernel's copy of them.
    let restored_at = |file| daemon::packets::restored_at(&pins.generations(), file);
    let directory = StateDirectory::at(&agent.state_dir);
    match daemon::state::save_bans(&directory, &pins, restored_at) {
        Ok(0) => {}
        Ok(count) => println!(
            "saved {count} {}, for the next agent",
            if count == 1 { "ban" } else { "bans" }
        ),
        Err(error) => eprintln!("warning: bans are lost: {error}"),
    }
    let removed = pins.clear().context("detaching")?;
    for path in &removed {
        println!("removed {}", path.display());
    }
    println!("nothing of Weir is left in the kernel");
    Ok(ExitCode::SUCCESS)
}
