//! The documents by use: a reader types each page's commands on a host in the state that the text describes, and compares
//! what they print.

mod first;
mod named;
mod printed;
mod scenes;

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use tempfile::TempDir;
use testbed::documents::{self, Page};
use testbed::tests;
use testbed::trials::Test;

use crate::support::{INTERFACE, Network, SERVER};
use first::*;
use named::NOT_RUN;
use printed::lines_are_compared_by_words_and_kinds_of_figures;
use scenes::*;

pub const TESTS: &[Test] = tests![
    every_command_of_the_documents_is_run_or_named,
    lines_are_compared_by_words_and_kinds_of_figures,
    the_readme_is_so,
    the_guide_on_bans_is_so,
    the_guide_on_levels_is_so,
    the_guide_on_connections_is_so,
    the_guide_on_heavy_prefixes_is_so,
    the_guide_on_proofs_is_so,
    the_guide_on_quotas_is_so,
    the_guide_on_recording_is_so,
    the_first_trial_is_so,
    the_first_limit_on_ssh_is_so,
    the_first_limits_on_a_web_server_are_so,
    the_first_limits_on_dns_are_so,
    the_first_limits_on_a_game_server_are_so,
    the_first_limits_on_an_api_are_so,
    the_reference_of_events_is_so,
    the_page_on_upgrades_is_so,
];

/// The address of the server where a page has another host send to it. Commands with it are typed on the client.
const DOCUMENTED: &str = "192.0.2.10";

/// The page whose commands `tour` runs.
const TOUR: &str = "docs/TOUR.md";

/// Why a command is not run here.
fn reason(page: &str, command: &str) -> Option<&'static str> {
    NOT_RUN
        .iter()
        .flat_map(|(reason, commands)| commands.iter().map(move |named| (reason, named)))
        .find(|(_, (of, start))| page.starts_with(of) && command.starts_with(start))
        .map(|(reason, _)| *reason)
}

fn every_command_of_the_documents_is_run_or_named() {
    let commands: Vec<documents::Command> =
        documents::pages().iter().flat_map(Page::commands).collect();
    let mut neither = Vec::new();
    let (mut here, mut without_agent, mut tour) = (0, 0, 0);
    let mut named = std::collections::BTreeMap::<&str, Vec<String>>::new();
    for command in &commands {
        let text = format!("{}:{}: {}", command.page, command.line, command.text);
        match reason(&command.page, &command.text) {
            _ if command.is_run_without_agent => without_agent += 1,
            _ if command.page == TOUR => tour += 1,
            Some(reason) => named.entry(reason).or_default().push(text),
            None if SCENES.contains(&command.page.as_str()) => here += 1,
            None => neither.push(text),
        }
    }
    println!("run here: {here}, by the tour: {tour}, by cargo xtask docs: {without_agent}");
    for (reason, commands) in &named {
        println!("{} not run, {reason}:", commands.len());
        for command in commands {
            println!("  {command}");
        }
    }
    assert!(
        neither.is_empty(),
        "neither run by a scene nor named in documents/named.rs:\n{}",
        neither.join("\n")
    );
    for (reason, starts) in NOT_RUN {
        for (page, start) in *starts {
            let is_used = commands
                .iter()
                .any(|command| command.page.starts_with(page) && command.text.starts_with(start));
            assert!(is_used, "{reason}: {page} has no command {start:?}");
        }
    }
    assert!(here > 30 && tour >= 40, "{here}, {tour}");
    // A transcript without a language would not be found.
    for page in documents::pages() {
        for block in page.blocks() {
            let is_transcript = block.text.lines().any(|line| line.starts_with("$ "));
            assert!(
                !is_transcript || block.kind().starts_with("console"),
                "{}:{}: write ```console",
                page.path,
                block.line
            );
        }
    }
}

/// What a command printed.
struct Typed {
    command: String,
    printed: String,
}

/// Somebody who types the commands of a page on the server.
struct Reader<'n> {
    network: &'n Network,
    page: Page,
    /// The first folder of PATH, with `weir`.
    links: TempDir,
}

impl<'n> Reader<'n> {
    fn of(network: &'n Network, page: &str) -> Self {
        let links = tempfile::tempdir().unwrap();
        testbed::weir_in(links.path());
        Self {
            network,
            page: documents::page(page),
            links,
        }
    }

    /// The nth config of the page: its `[agent]` table without interfaces, and the rest.
    fn config(&self, nth: usize) -> (String, String) {
        let blocks = self.page.blocks();
        let configs = blocks
            .iter()
            .filter(|block| block.kind() == "toml" || block.kind() == "toml,fragment");
        let text = configs.clone().nth(nth).unwrap().text.clone();
        let (agent, rest) = match text.strip_prefix("[agent]\n") {
            Some(text) => text.split_at(text.find("\n[[").map_or(text.len(), |at| at + 1)),
            None => ("", text.as_str()),
        };
        let is_kept = |line: &&str| !line.starts_with("interfaces");
        let agent: String = agent
            .lines()
            .filter(is_kept)
            .map(|line| format!("{line}\n"))
            .collect();
        (agent, rest.replace("eth0", INTERFACE))
    }

    /// Types every command that is not named, and compares what it prints. `before` makes the state in which it is typed,
    /// and returns the exit status that the page promises.
    fn types(&self, mut before: impl FnMut(&str) -> i32) -> Vec<Typed> {
        let mut typed = Vec::new();
        for command in self.page.commands() {
            let is_elsewhere =
                command.is_run_without_agent || reason(&command.page, &command.text).is_some();
            if is_elsewhere {
                continue;
            }
            let place = format!("{}:{}: {}", command.page, command.line, command.text);
            let expected = before(&command.text);
            let (status, printed) = self.run(&command.text);
            assert_eq!(status, Some(expected), "{place}\n{printed}");
            if let Some(output) = &command.output {
                let end = output.iter().rposition(|line| !line.is_empty());
                let output = &output[..end.map_or(0, |end| end + 1)];
                let lines: Vec<String> = printed.trim_end().lines().map(str::to_owned).collect();
                assert!(
                    printed::matches(output, &lines),
                    "{place}\nThe page has\n{}\nand the command prints\n{printed}",
                    output.join("\n")
                );
            }
            typed.push(Typed {
                command: command.text,
                printed,
            });
        }
        assert!(!typed.is_empty());
        typed
    }

    /// Exit status and output of a line, with this network's paths in place of a packaged host's.
    fn run(&self, line: &str) -> (Option<i32>, String) {
        let folder = self.network.folder.path();
        let paths = [
            ("/etc/weir", folder.display().to_string()),
            ("/run/weir", folder.display().to_string()),
            ("/var/lib/weir", self.network.state().display().to_string()),
        ];
        let line = paths.iter().fold(line.to_owned(), |line, (usual, own)| {
            line.replace(usual, own)
        });
        let is_from_client = line.contains(DOCUMENTED);
        let line = line.replace(DOCUMENTED, &Ipv4Addr::from(SERVER).to_string());
        let mut path = self.links.path().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &format!("exec 2>&1; set -o pipefail; {line}")])
            .current_dir(folder)
            .stdin(Stdio::null())
            .env("PATH", path)
            .env("WEIR_CONTROL", self.network.control());
        for variable in ["WEIR_CONFIG", "SSH_CONNECTION", "SUDO_USER", "COLUMNS"] {
            shell.env_remove(variable);
        }
        let output = if is_from_client {
            self.network.in_client(|| shell.output())
        } else {
            self.network.in_server(|| shell.output())
        };
        let output = output.unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let printed = paths
            .iter()
            .fold(printed, |text, (usual, own)| text.replace(own, usual));
        (output.status.code(), without_losses(&printed))
    }
}

/// The output without samples that a busy machine has lost: they are no part of the state that a page describes.
fn without_losses(printed: &str) -> String {
    let whole = |line: &str| match line.rsplit_once("; ") {
        Some((line, losses)) if losses.ends_with("lost.") => format!("{line}.\n"),
        _ => format!("{line}\n"),
    };
    printed.lines().map(whole).collect()
}
