//! `weir suggest`: limits for recorded or captured traffic, with their reasons.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::capture::CaptureOf;
use api::record::RecordStatus;
use api::request::Request;
use host::PROGRAM;
use host::StateDirectory;

use super::exit::usage;
use super::html::{destination, is_instead};
use super::print::Print;
use super::progress::{advance, progress_bar};
use crate::cli::arguments::{ConfigFile, Options, Suggest};
use crate::daemon::record::{self, RecordFile, is_recording};
use crate::page::Destination;
use crate::replay::capture::InterfaceNames;
use crate::replay::{CaptureReport, Local, Report};
use crate::suggest::capture::{Summary, interfaces, refusals, summarise};
use crate::suggest::{
    Decision, Refusal, SuggestError, SuggestReport, Traffic, decide, limit_plots, limits_toml,
    read_once, suggest_page,
};

pub fn suggest(question: &Suggest, options: &Options) -> anyhow::Result<ExitCode> {
    let print = Print::from(options.json);
    let captures = match (&question.from, question.captures.as_slice()) {
        (None, []) => return recorded(&recording(options), question, print),
        (Some(file), _) if is_recording(file) => return recorded(file, question, print),
        (Some(file), _) => vec![file.clone()],
        (None, [file]) if is_recording(file) => return recorded(file, question, print),
        (None, captures) => captures.to_vec(),
    };
    if let Some(recording) = captures.iter().find(|file| is_recording(file)) {
        return Ok(usage(&format!(
            "{} is a recording: name it alone, with --from",
            recording.display()
        )));
    }
    captured(question, &captures, print)
}

/// The recording of the running agent, or that of a stopped one in the config's state directory.
fn recording(options: &Options) -> PathBuf {
    let of_agent: Option<RecordStatus> = options.client().ask(&Request::Recording).ok();
    let file = of_agent.map(|status| PathBuf::from(status.file));
    file.unwrap_or_else(|| {
        let named = options.config_file(&ConfigFile::default()).ok().flatten();
        let text = named
            .and_then(|file| config::read_text(&file).ok())
            .unwrap_or_default();
        RecordFile::path(&StateDirectory::at(&config::paths(&text).state_dir))
    })
}

/// Suggests limits for a recording.
fn recorded(file: &Path, question: &Suggest, print: Print) -> anyhow::Result<ExitCode> {
    if !question.local.is_empty() {
        return Ok(usage(
            &"--local is for captures: a recording has incoming packets only",
        ));
    }
    let page = match destination(question.html.as_deref(), &[&file.to_owned()], print)? {
        Ok(page) => page,
        Err(status) => return Ok(status),
    };
    let recording = match RecordFile::read(file) {
        Ok(recording) => recording,
        Err(error) if error.is_missing => {
            let file = file.display();
            return Ok(usage(&format!(
                "no recording at {file}: {PROGRAM} record starts one; or name a capture, as in {PROGRAM} suggest FILE"
            )));
        }
        Err(error) => return Err(error.into()),
    };
    let traffic = recording.traffic();
    let notes = recording.notes();
    let report = CaptureReport {
        file: file.display().to_string(),
        format: Some("recording".to_owned()),
        compression: Some("zstd".to_owned()),
        packets: traffic.packets,
        skipped: recording.lost,
        one_in: None,
        of: None,
        lost: 0,
        error: None,
    };
    let found = question
        .interface
        .clone()
        .map_or_else(|| recording.interfaces.clone(), |interface| vec![interface]);
    let report = SuggestReport::new(vec![report], &traffic, notes.clone());
    finish(report, &traffic, &found, print, page.as_ref(), |decision| {
        let mut decision = decision.clone();
        decision.notes.extend(notes);
        Ok((decision, Err(record::note())))
    })
}

/// Suggests limits for captures.
fn captured(question: &Suggest, captures: &[PathBuf], print: Print) -> anyhow::Result<ExitCode> {
    let names = || InterfaceNames::with_unnamed(question.interface.as_deref());
    let local = Local::new(&question.local);
    let read: Vec<&PathBuf> = captures.iter().collect();
    let page = match destination(question.html.as_deref(), &read, print)? {
        Ok(page) => page,
        Err(status) => return Ok(status),
    };
    let bar = progress_bar(captures);
    let Summary {
        outcome,
        traffic,
        likely_local,
    } = summarise(captures, names(), &local, |progress| {
        advance(&bar, progress);
    });
    bar.finish_and_clear();
    if let Some(address) = likely_local {
        let error = format!(
            "unknown direction: the capture does not say which packets came in, and most are from or to {address}: name the \
             host's addresses with --local {address}"
        );
        return Ok(usage(&error));
    }
    let read = Report::of(&outcome, &[], &[]);
    if let Some(refused) = read
        .captures
        .iter()
        .find(|capture| capture.of == Some(CaptureOf::Refused))
    {
        eprintln!(
            "error: {}: too little data: it has only refused packets, without those of polite sources; capture all with {PROGRAM} \
             record --capture FILE --of all",
            refused.file
        );
        return Ok(ExitCode::FAILURE);
    }
    for error in read
        .captures
        .iter()
        .filter_map(|capture| capture.error.as_ref())
    {
        eprintln!("error: {error}");
    }
    // The decision's notes are comments of the config.
    if print == Print::Table {
        read.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    let is_complete = read.is_complete();
    let report = SuggestReport::new(read.captures, &traffic, read.notes);
    let found = interfaces(&outcome.interfaces);
    let status = finish(report, &traffic, &found, print, page.as_ref(), |decision| {
        let refusals = replayed(question, captures, &traffic, decision, &found, &local)?;
        Ok((decision.clone(), refusals.ok_or_else(read_once)))
    })?;
    Ok(if is_complete {
        status
    } else {
        ExitCode::FAILURE
    })
}

/// Decides and prints. `replay` returns the decision with further notes, and its refusals or why there are none.
fn finish(
    mut report: SuggestReport,
    traffic: &Traffic,
    found: &[String],
    print: Print,
    page: Option<&Destination>,
    replay: impl FnOnce(&Decision) -> anyhow::Result<(Decision, Result<Vec<Refusal>, String>)>,
) -> anyhow::Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    let mut plots = Vec::new();
    match decide(traffic) {
        Ok(decision) => {
            let (commented, refusals) = replay(&decision)?;
            let refusals = refusals.as_deref().map_err(String::as_str);
            let config = limits_toml(traffic, &commented, found, refusals);
            plots = limit_plots(traffic, &decision, refusals.ok());
            report.decided(decision, config, refusals.ok());
        }
        Err(error) => {
            status = ExitCode::FAILURE;
            eprintln!("error: {error}");
            report.error = Some(error.to_string());
            if let SuggestError::Sources { lacking } = error {
                report.lacking = lacking;
            }
        }
    }
    // A page that cannot be written leaves the text.
    let written = page.map_or(Ok(()), |page| page.write(&suggest_page(&report, &plots)));
    if !is_instead(page) {
        print.document(&report, |report| {
            print!("{}", report.config.as_deref().unwrap_or_default());
        })?;
    }
    written?;
    Ok(status)
}

/// The packets that the config refuses of the same captures; `None` if they cannot be read twice.
fn replayed(
    question: &Suggest,
    captures: &[PathBuf],
    traffic: &Traffic,
    decision: &Decision,
    found: &[String],
    local: &Local,
) -> anyhow::Result<Option<Vec<Refusal>>> {
    let is_file = |path: &PathBuf| {
        Path::new(path)
            .metadata()
            .is_ok_and(|metadata| metadata.is_file())
    };
    if !captures.iter().all(is_file) {
        return Ok(None);
    }
    let config = limits_toml(traffic, decision, found, Err(&read_once()));
    let bar = progress_bar(captures);
    let names = InterfaceNames::with_unnamed(question.interface.as_deref());
    let refusals = refusals(&config, captures, names, local, |progress| {
        advance(&bar, progress);
    })?;
    bar.finish_and_clear();
    Ok(Some(refusals))
}
