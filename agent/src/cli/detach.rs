//! `weir detach`: removes the kernel state of a stopped agent.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use config::ConfigError;
use config::policy::AgentConfig;
use datapath::{LoadError, PinDirectory};
use host::{PROGRAM, StateDirectory, syn_cookies};

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
    let state = StateDirectory::at(&agent.state_dir);
    // The other steps are still made if one fails.
    let mut problems = Vec::new();
    match syn_cookies::restore(&state) {
        Ok(Some(value)) => println!("{} is {value} again", syn_cookies::SETTING),
        Ok(None) => {}
        Err(error) => problems.push(format!("restoring {}: {error}", syn_cookies::SETTING)),
    }
    let had_packets = pins.is_some();
    if let Some(pins) = pins
        && let Err(error) = detach_packets(&pins, &state)
    {
        problems.push(format!("{error:#}"));
    }
    let (had_groups, of_groups) = cgroup::detach(&agent);
    if had_groups && of_groups.is_empty() {
        println!(
            "ended the process groups; their processes are back in the cgroups that they came from"
        );
    }
    problems.extend(
        of_groups
            .iter()
            .map(|problem| format!("ending the process groups: {problem}")),
    );
    if !had_packets && !had_groups {
        println!("nothing to detach: {} not found", agent.pins.display());
    }
    problems
        .iter()
        .for_each(|problem| eprintln!("error: {problem}"));
    if problems.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("mend what failed, then run {PROGRAM} detach again");
    Ok(ExitCode::FAILURE)
}

/// Ends all limits on packets. Bans outlive the kernel's copy of them.
fn detach_packets(pins: &PinDirectory, state: &StateDirectory) -> anyhow::Result<()> {
    let restored_at = |file| daemon::packets::restored_at(&pins.generations(), file);
    match daemon::state::save_bans(state, pins, restored_at) {
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
    println!("no limit on packets is in effect");
    Ok(())
}
