//! `agent suggest`: limits for captured traffic, with their reasons.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::exit::usage;
use super::html::{destination, is_instead};
use super::print::Print;
use super::progress::{advance, progress_bar};
use crate::cli::arguments::Suggest;
use crate::replay::capture::InterfaceNames;
use crate::replay::{Local, Report};
use crate::suggest::capture::{Summary, interfaces, refusals, summarise};
use crate::suggest::{
    Decision, Refusal, SuggestError, SuggestReport, Traffic, decide, limit_plots, limits_toml, suggest_page,
};

pub fn suggest(question: &Suggest, print: Print) -> anyhow::Result<ExitCode> {
    let names = || InterfaceNames::with_unnamed(question.interface.as_deref());
    let local = Local::new(&question.local);
    let read: Vec<&PathBuf> = question.captures.iter().collect();
    let page = match destination(question.html.as_deref(), &read, print)? {
        Ok(page) => page,
        Err(status) => return Ok(status),
    };
    let bar = progress_bar(&question.captures);
    let Summary { outcome, traffic, likely_local } =
        summarise(&question.captures, names(), &local, |progress| advance(&bar, progress));
    bar.finish_and_clear();
    if let Some(address) = likely_local {
        let error = format!(
            "unknown direction: the capture does not say which packets came in, and most are from or to {address}: name the \
             host's addresses with --local {address}"
        );
        return Ok(usage(&error));
    }
    let read = Report::of(&outcome, &[], &[]);
    let mut is_done = read.is_complete();
    for error in read.captures.iter().filter_map(|capture| capture.error.as_ref()) {
        eprintln!("error: {error}");
    }
    // The decision's notes are comments of the config.
    if print == Print::Table {
        read.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    let mut report = SuggestReport::new(read.captures, &traffic, read.notes);
    let found = interfaces(&outcome.interfaces);
    let mut plots = Vec::new();
    match decide(&traffic) {
        Ok(decision) => {
            let refusals = replayed(question, &traffic, &decision, &found, &local)?;
            let config = limits_toml(&traffic, &decision, &found, refusals.as_deref());
            plots = limit_plots(&traffic, &decision, refusals.as_deref());
            report.decided(decision, config, refusals.as_deref());
        }
        Err(error) => {
            is_done = false;
            eprintln!("error: {error}");
            report.error = Some(error.to_string());
            if let SuggestError::Sources { lacking } = error {
                report.lacking = lacking;
            }
        }
    }
    // A page that cannot be written leaves the text.
    let written = page.as_ref().map_or(Ok(()), |page| page.write(&suggest_page(&report, &plots)));
    if !is_instead(page.as_ref()) {
        print.document(&report, |report| print!("{}", report.config.as_deref().unwrap_or_default()))?;
    }
    written?;
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The packets that the config refuses of the same captures; `None` if they cannot be read twice.
fn replayed(
    question: &Suggest,
    traffic: &Traffic,
    decision: &Decision,
    found: &[String],
    local: &Local,
) -> anyhow::Result<Option<Vec<Refusal>>> {
    let is_file = |path: &PathBuf| Path::new(path).metadata().is_ok_and(|metadata| metadata.is_file());
    if !question.captures.iter().all(is_file) {
        return Ok(None);
    }
    let config = limits_toml(traffic, decision, found, None);
    let bar = progress_bar(&question.captures);
    let names = InterfaceNames::with_unnamed(question.interface.as_deref());
    let refusals = refusals(&config, &question.captures, names, local, |progress| advance(&bar, progress))?;
    bar.finish_and_clear();
    Ok(Some(refusals))
}
