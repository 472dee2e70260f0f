//! Queries of the running agent, and how replies are printed.

use std::process::ExitCode;

use api::request::Request;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::print::Print;
use crate::cli::arguments::Options;

/// Queries the agent, and prints the reply.
pub(super) fn ask<T: DeserializeOwned + Serialize>(
    options: &Options,
    request: &Request,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<ExitCode> {
    let answer: T = options.client().ask(request)?;
    print(options, &answer, table)
}

/// Prints a reply.
pub(super) fn print<T: Serialize>(
    options: &Options,
    document: &T,
    table: impl FnOnce(&T) -> String,
) -> anyhow::Result<ExitCode> {
    Print::from(options.json).document(document, |document| println!("{}", table(document)))?;
    Ok(ExitCode::SUCCESS)
}

/// The error for a name that the running agent does not have.
pub(super) fn unknown<'n>(
    what: &str,
    name: &str,
    known: impl Iterator<Item = &'n str>,
) -> Option<String> {
    let known: Vec<&str> = known.collect();
    let has = || {
        if known.is_empty() {
            "none".to_owned()
        } else {
            known.join(", ")
        }
    };
    (!known.contains(&name))
        .then(|| format!("unknown {what} {name:?}; the running agent has: {}", has()))
}
