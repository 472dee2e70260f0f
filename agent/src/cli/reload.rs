//! `agent reload`, `agent try` and `agent confirm`: replacing the config in effect.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use api::reload::{Confirmed, Reloaded};
use api::request::{LONGEST_CONFIG, Request};
use config::{ConfigError, ssh};

use super::exit::{USAGE, invalid, usage};
use super::print::Print;
use crate::cli::arguments::Options;
use crate::daemon::reload::TRIALS;

pub fn reload(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Reloaded = options.client().ask(&Request::Reload {
        operator: ssh::client(),
    })?;
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
    if answer.changes.is_empty() {
        vec!["no differences".to_owned()]
    } else {
        answer.changes.lines()
    }
}

pub fn try_config(file: &Path, duration: Duration, options: &Options) -> anyhow::Result<ExitCode> {
    if !TRIALS.contains(&duration) {
        return Ok(usage(&"a trial lasts from 1s to 24h: write --for 60s"));
    }
    // Errors are shown with their positions, without a request to the agent.
    let checked = config::read_text(file).and_then(|text| {
        config::parse(file, &text)
            .map(|_| text)
            .map_err(ConfigError::Invalid)
    });
    let text = match checked {
        Ok(text) => text,
        Err(error) => return Ok(invalid(&error)),
    };
    if text.len() > LONGEST_CONFIG {
        let (file, length) = (file.display(), text.len());
        return Ok(usage(&format!(
            "{file} has {length} bytes: a trial takes at most {LONGEST_CONFIG}"
        )));
    }
    let request = Request::Try {
        // The agent has another working directory, and may not be allowed to read the file.
        file: std::path::absolute(file)?,
        text: Some(text),
        for_seconds: duration.as_secs_f64(),
        operator: ssh::client(),
    };
    let answer: Reloaded = options.client().ask(&request)?;
    tell(&answer, options, || {
        let time = humantime::format_duration(duration);
        format!(
            "{} is in effect for {time}, then the previous config again; to keep it: agent confirm",
            file.display()
        )
    })
}

pub fn confirm(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Confirmed = options.client().ask(&Request::Confirm)?;
    Print::from(options.json).document(&answer, |answer| {
        println!("{} stays in effect", answer.file);
        if let Some(note) = &answer.note {
            println!("note: {note}");
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

fn tell(
    answer: &Reloaded,
    options: &Options,
    done: impl FnOnce() -> String,
) -> anyhow::Result<ExitCode> {
    Print::from(options.json).document(answer, |answer| {
        if answer.ok {
            println!("{}", done());
            answer
                .notes
                .iter()
                .for_each(|note| println!("note: {note}"));
        } else {
            eprintln!("{}\nnothing was changed", answer.errors.join("\n"));
        }
    })?;
    Ok(match (answer.ok, answer.wrong_config) {
        (true, _) => ExitCode::SUCCESS,
        (false, true) => ExitCode::from(USAGE),
        (false, false) => ExitCode::FAILURE,
    })
}
