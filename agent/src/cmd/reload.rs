//! `agent reload`, `agent try` and `agent confirm`: another config in place of the one in force.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use super::{Print, USAGE};
use crate::cli::Options;
use crate::config::{self, ConfigError, ssh};
use crate::control::{LONGEST_CONFIG, Request};
use crate::live::{Confirmed, Reloaded, TRIALS};

pub fn reload(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Reloaded = options.client().ask(&Request::Reload { operator: ssh::client() })?;
    tell(&answer, options, || {
        let mut lines = vec![format!("reloaded in {} ms", answer.milliseconds)];
        lines.extend(differences(&answer));
        lines.join("\n")
    })
}

pub fn compare(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Reloaded = options.client().ask(&Request::Compare)?;
    tell(&answer, options, || differences(&answer).join("\n"))
}

pub fn revert(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Reloaded = options.client().ask(&Request::Revert)?;
    tell(&answer, options, || {
        let mut lines = vec!["rolled back to the config before the trial".to_owned()];
        lines.extend(differences(&answer));
        lines.join("\n")
    })
}

fn differences(answer: &Reloaded) -> Vec<String> {
    if answer.changes.is_empty() { vec!["no differences".to_owned()] } else { answer.changes.lines() }
}

pub fn try_config(file: &Path, duration: Duration, options: &Options) -> anyhow::Result<ExitCode> {
    if !TRIALS.contains(&duration) {
        eprintln!("a trial lasts from 1s to 24h: write --for 60s");
        return Ok(ExitCode::from(USAGE));
    }
    // What is wrong is shown where it stands, and the agent is not bothered.
    let checked =
        config::read_text(file).and_then(|text| config::parse(file, &text).map(|_| text).map_err(ConfigError::Invalid));
    let text = match checked {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    if text.len() > LONGEST_CONFIG {
        eprintln!("{} has {} bytes; a trial takes {LONGEST_CONFIG} at most", file.display(), text.len());
        return Ok(ExitCode::from(USAGE));
    }
    let request = Request::Try {
        // The agent runs in another directory, and may not be allowed to read the file.
        file: std::path::absolute(file)?,
        text: Some(text),
        for_seconds: duration.as_secs_f64(),
        operator: ssh::client(),
    };
    let answer: Reloaded = options.client().ask(&request)?;
    tell(&answer, options, || {
        let time = humantime::format_duration(duration);
        format!("{} is in force for {time}, and then what was before again; to keep it: agent confirm", file.display())
    })
}

pub fn confirm(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Confirmed = options.client().ask(&Request::Confirm)?;
    match Print::from(options.json) {
        Print::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Print::Table => {
            println!("{} stays in force", answer.file);
            if let Some(note) = &answer.note {
                println!("note: {note}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(answer: &Reloaded, options: &Options, done: impl FnOnce() -> String) -> anyhow::Result<ExitCode> {
    match Print::from(options.json) {
        Print::Json => println!("{}", serde_json::to_string_pretty(answer)?),
        Print::Table if answer.ok => {
            println!("{}", done());
            for note in &answer.notes {
                println!("note: {note}");
            }
        }
        Print::Table => eprintln!("{}\nnothing was changed", answer.errors.join("\n")),
    }
    Ok(match (answer.ok, answer.wrong_config) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(USAGE),
        (false, false) => ExitCode::FAILURE,
    })
}
