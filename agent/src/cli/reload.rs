//! `weir reload`, `weir try` and `weir confirm`: replacing the config in effect.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use api::reload::{Confirmed, Reloaded};
use api::request::{LONGEST_CONFIG, Request};
use config::{ConfigError, human, ssh};
use host::PROGRAM;

use super::exit::{USAGE, invalid, usage};
use super::print::Print;
use crate::cli::arguments::Options;
use crate::daemon::reload::{ReloadError, TRIALS};

/// Reloads the agent's config, which `file` may name.
pub fn reload(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    // The agent has another working directory.
    let file = file.map(std::path::absolute).transpose()?;
    let answer: Reloaded = options.client().ask(&Request::Reload {
        operator: ssh::client(),
        file,
    })?;
    print_result(&answer, options, || {
        let mut lines = vec![format!(
            "reloaded in {}",
            human::time(Duration::from_millis(answer.milliseconds))
        )];
        lines.extend(differences(&answer));
        lines.join("\n")
    })
}

/// Compares `file`, or the agent's own, with the config in effect.
pub fn compare(file: Option<&Path>, options: &Options) -> anyhow::Result<ExitCode> {
    let (file, text) = match file {
        None => (None, None),
        Some(file) => match checked(file) {
            Ok(text) => (Some(std::path::absolute(file)?), Some(text)),
            Err(error) => return Ok(invalid(&error)),
        },
    };
    let operator = ssh::client();
    let answer: Reloaded = options.client().ask(&Request::Compare {
        file,
        text,
        operator,
    })?;
    print_result(&answer, options, || differences(&answer).join("\n"))
}

pub fn revert(options: &Options) -> anyhow::Result<ExitCode> {
    let answer: Reloaded = options.client().ask(&Request::Revert)?;
    print_result(&answer, options, || {
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
        return Ok(usage(&ReloadError::Time(duration)));
    }
    let text = match checked(file) {
        Ok(text) => text,
        Err(error) => return Ok(invalid(&error)),
    };
    let request = Request::Try {
        // The agent has another working directory, and may not be allowed to read the file.
        file: std::path::absolute(file)?,
        text: Some(text),
        for_seconds: duration.as_secs_f64(),
        operator: ssh::client(),
    };
    let answer: Reloaded = options.client().ask(&request)?;
    print_result(&answer, options, || {
        let time = human::time(duration);
        format!(
            "{} is in effect for {time}, then the previous config again; to keep it: {PROGRAM} confirm",
            file.display()
        )
    })
}

/// The text of a valid config. Errors are shown with their positions, without a request to the agent.
fn checked(file: &Path) -> Result<String, String> {
    let text = config::read_argument(file).map_err(|error| error.to_string())?;
    config::parse(file, &text).map_err(|error| ConfigError::Invalid(error).to_string())?;
    if text.len() > LONGEST_CONFIG {
        let (file, length) = (file.display(), text.len());
        return Err(format!(
            "error: {file} has {length} bytes: the agent takes at most {LONGEST_CONFIG} from a command"
        ));
    }
    Ok(text)
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

fn print_result(
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
