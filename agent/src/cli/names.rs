//! Names that the running agent has, for completions.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use std::{env, thread};

use api::allowance::Allowance;
use api::event::Event;
use api::request::Request;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::socket::control_socket;
use crate::server::control::Client;
use crate::stats::{BansRow, Status};

/// The longest time that a completion waits for the running agent.
const PATIENCE: Duration = Duration::from_millis(300);
/// The most names of one completion.
const MOST: usize = 1_000;

/// What the running agent has names of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    Limits,
    Groups,
    Interfaces,
    /// Banned prefixes, as they were banned.
    Bans,
    /// Owners of bans.
    Owners,
    /// Prefixes that `weir allow` exempts.
    Exemptions,
    /// The tables `[[notify]]`.
    Receivers,
    /// The addresses of remembered events.
    Addresses,
    /// The subjects of remembered events, classes among them, with interfaces and groups.
    Subjects,
}

/// Completes a value by names of the running agent.
pub fn names(named: Named) -> ArgValueCompleter {
    ArgValueCompleter::new(move |current: &OsStr| {
        let words: Vec<OsString> = env::args_os().collect();
        let (sender, receiver) = mpsc::channel();
        // It ends with the process: a config that it reads, or the agent, may never reply.
        thread::spawn(move || {
            let client = Client::new(&typed_socket(&words));
            let _ = sender.send(of_the_agent(named, &client).unwrap_or_default());
        });
        let names = receiver.recv_timeout(PATIENCE).unwrap_or_default();
        let current = current.to_string_lossy();
        names
            .into_iter()
            .filter(|name| name.starts_with(&*current))
            .take(MOST)
            .map(CompletionCandidate::new)
            .collect()
    })
}

/// The control socket of the agent that the typed line names.
fn typed_socket(words: &[OsString]) -> PathBuf {
    let value = |option: &str| {
        let value = words.iter().enumerate().rev().find_map(|(nth, word)| {
            let word = word.to_str()?;
            match word.strip_prefix(option)? {
                "" => words.get(nth + 1).map(PathBuf::from),
                rest => rest.strip_prefix('=').map(PathBuf::from),
            }
        });
        value.filter(|path| !path.as_os_str().is_empty())
    };
    control_socket(value("--control"), value("--config"))
}

/// The names; `None` if the agent does not reply.
fn of_the_agent(named: Named, client: &Client) -> Option<BTreeSet<String>> {
    let status = || client.ask::<Status>(&Request::Status).ok();
    let bans = || client.ask::<Vec<BansRow>>(&Request::Bans).ok();
    let subjects = || {
        let events: Vec<Event> = client.ask(&Request::Events).ok()?;
        Some(events.into_iter().filter_map(|event| event.source))
    };
    Some(match named {
        Named::Limits => status()?
            .limits
            .into_iter()
            .map(|limit| limit.name)
            .collect(),
        Named::Groups => status()?.groups.into_iter().collect(),
        Named::Interfaces => interfaces(status()?).collect(),
        Named::Receivers => status()?
            .notifications
            .into_iter()
            .map(|receiver| receiver.name)
            .collect(),
        Named::Bans => bans()?.into_iter().map(banned).collect(),
        Named::Owners => bans()?
            .into_iter()
            .filter(|row| row.ban.holder.origin == "operator")
            .map(|row| row.ban.holder.owner)
            .collect(),
        Named::Exemptions => {
            let exemptions: Vec<Allowance> = client.ask(&Request::Allowances).ok()?;
            exemptions
                .into_iter()
                .map(|exemption| exemption.cidr)
                .collect()
        }
        Named::Addresses => subjects()?
            .filter(|subject| subject.parse::<std::net::IpAddr>().is_ok())
            .collect(),
        Named::Subjects => {
            let status = status()?;
            let groups = status.groups.clone();
            subjects()?
                .chain(groups)
                .chain(interfaces(status))
                .collect()
        }
    })
}

fn interfaces(status: Status) -> impl Iterator<Item = String> {
    status
        .interfaces
        .into_iter()
        .map(|interface| interface.name)
}

/// A ban as `weir unban` takes it.
fn banned(row: BansRow) -> String {
    row.ban
        .holder
        .address
        .map_or(row.ban.cidr, |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_agent_is_the_one_that_the_line_names() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("a.toml");
        std::fs::write(&config, "[agent]\ncontrol = \"/run/c.sock\"\n").unwrap();
        let socket = |line: &str| {
            let line = line.replace("CONFIG", config.to_str().unwrap());
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            typed_socket(&words)
        };
        for (line, path) in [
            ("agent --control a.sock show ", "a.sock"),
            ("agent show --control=a.sock ", "a.sock"),
            ("agent --control b.sock show --control a.sock 1", "a.sock"),
            ("agent --config CONFIG unban ", "/run/c.sock"),
            ("agent unban --control= --config=CONFIG ", "/run/c.sock"),
            ("agent --config CONFIG unban --control", "/run/c.sock"),
        ] {
            assert_eq!(socket(line), Path::new(path), "{line}");
        }
    }
}
