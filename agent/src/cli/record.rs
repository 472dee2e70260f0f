//! `weir record`: how busy each source is, while the agent runs.

use std::process::ExitCode;
use std::time::Duration;

use api::record::{LENGTHS, RecordState, RecordStatus, wrong_length};
use api::request::Request;
use config::human;
use host::PROGRAM;

use super::ask::ask;
use super::exit::usage;
use super::table::{self, instant, number};
use crate::cli::arguments::Options;

/// The length of a recording without `--for`.
const DAY: Duration = Duration::from_secs(86_400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Start,
    Stop,
    Status,
}

impl Wanted {
    pub const fn of(stop: bool, status: bool) -> Self {
        match (stop, status) {
            (true, _) => Self::Stop,
            (_, true) => Self::Status,
            _ => Self::Start,
        }
    }
}

pub fn record(
    duration: Option<Duration>,
    wanted: Wanted,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    if let Some(length) = duration.filter(|length| !LENGTHS.contains(length)) {
        return Ok(usage(&wrong_length(length)));
    }
    let request = match wanted {
        Wanted::Start => Request::Record {
            for_seconds: duration.unwrap_or(DAY).as_secs_f64(),
        },
        Wanted::Stop => Request::StopRecording,
        Wanted::Status => Request::Recording,
    };
    ask(options, &request, text)
}

fn text(status: &RecordStatus) -> String {
    let time = |seconds: f64| human::time(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    if status.state == RecordState::None {
        let error = status
            .error
            .as_ref()
            .map(|error| format!("\nnote: {error}"))
            .unwrap_or_default();
        return format!("no recording; {PROGRAM} record --for 24h starts one{error}");
    }
    let mut pairs = vec![
        ("recording", status.state.name().to_owned()),
        ("file", status.file.clone()),
        ("started", instant(status.started)),
        (
            if status.state == RecordState::Ended {
                "ended"
            } else {
                "ends"
            },
            instant(status.ends),
        ),
        ("time with packets", time(status.seconds)),
        ("packets", number(status.packets)),
        ("sources by service", number(status.sources)),
        ("protocols and ports", number(status.services)),
    ];
    if status.one_in > 1 {
        pairs.push((
            "sample",
            format!("one in {} sources", number(status.one_in.into())),
        ));
    }
    let mut text = table::pairs(pairs);
    for gap in &status.gaps {
        text.push_str(&format!(
            "\ngap: {} to {}",
            instant(gap.from),
            instant(gap.to)
        ));
    }
    if status.sampled_seconds > 0.0 {
        let sampled = time(status.sampled_seconds);
        text.push_str(&format!(
            "\nnote: for {sampled}, only a sample of the sources was recorded: too many were active"
        ));
    }
    if status.lost > 0 {
        text.push_str(&format!(
            "\nnote: {} packets of further sources were not recorded",
            number(status.lost)
        ));
    }
    if let Some(error) = &status.error {
        text.push_str(&format!("\nnote: the recording is not written: {error}"));
    }
    text
}
