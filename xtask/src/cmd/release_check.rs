//! `release-check`: runs everything that a release must pass, except `.ci/run msrv`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;
use crate::workspace::Workspace;

/// Run everything that a release must pass, and print one table. Takes hours.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only steps with one of these names.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
    /// Print the steps and their commands, and run nothing.
    #[arg(long)]
    list: bool,
}

/// A step and its arguments of `cargo xtask`.
struct Step {
    name: &'static str,
    arguments: &'static [&'static str],
}

const fn step(name: &'static str, arguments: &'static [&'static str]) -> Step {
    Step { name, arguments }
}

const STEPS: [Step; 26] = [
    step("setup", &["setup", "all"]),
    step("lint", &["lint"]),
    step("test", &["test", "--long"]),
    step("busy", &["test", "--busy", "8"]),
    step("shuffle", &["test", "--shuffle"]),
    step("fuzz", &["fuzz", "--seconds", "60"]),
    step(
        "trace",
        &["test", "--trace", "--", "--test", "end_to_end", "trace"],
    ),
    step("integration", &["integration"]),
    step("kernels", &["vm", "--kernels", "--release"]),
    step(
        "lockdown",
        &[
            "vm",
            "--kernel",
            "6.1",
            "--lockdown",
            "--",
            "--test",
            "end_to_end",
            "locked_down",
        ],
    ),
    step(
        "arm64-verdicts",
        &[
            "vm",
            "--arch",
            "aarch64",
            "--",
            "--test",
            "kernel",
            "many_verdicts",
        ],
    ),
    step(
        "arm64-packets",
        &[
            "vm",
            "--arch",
            "aarch64",
            "--",
            "--test",
            "end_to_end",
            "traffic_control",
        ],
    ),
    step("guests", &["vm", "--systemd", "--release"]),
    step(
        "cgroup-v1",
        &["vm", "--systemd", "--guest", "bookworm", "--cgroup-v1"],
    ),
    step("package", &["package", "--dist"]),
    step("dist", &["dist"]),
    step("static", &["dist", "--try", "target/dist"]),
    step(
        "image",
        &[
            "vm",
            "--systemd",
            "--guest",
            "bookworm",
            "--release",
            "--dist",
            "target/dist",
            "--",
            "--test",
            "systemd",
            "image",
        ],
    ),
    // In another folder, from nothing.
    step("dist-verify", &["dist", "--verify", "target/dist"]),
    step("docs", &["docs"]),
    step("rest", &["rest"]),
    step("accuracy", &["accuracy"]),
    step("tcp", &["tcp"]),
    step("bench", &["bench"]),
    step("growth", &["bench", "growth"]),
    step("demo", &["demo"]),
];

/// The result of a step.
struct Ended {
    name: &'static str,
    /// Or why there is none.
    outcome: Result<(), String>,
    tally: Tally,
    time: Duration,
}

/// Runs each step also after a failure; fails if one of them failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    let steps = chosen(&arguments.only)?;
    if arguments.list {
        for step in steps {
            println!("{:12} cargo xtask {}", step.name, step.arguments.join(" "));
        }
        return Ok(());
    }
    let workspace = Workspace::locate()?;
    let folder = workspace.target.join("release-check");
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut ended = Vec::new();
    for step in steps {
        println!("running    {}", step.name);
        ended.push(run_one(step, &log_of(&folder, step)));
    }
    print_table(&ended, &mut io::stdout().lock()).context("printing the table")?;
    let failed: Vec<&str> = ended
        .iter()
        .filter(|step| step.outcome.is_err())
        .map(|step| step.name)
        .collect();
    if !failed.is_empty() {
        bail!(
            "{} of {} steps failed: {}; what they printed is in {}",
            failed.len(),
            ended.len(),
            failed.join(", "),
            folder.display()
        );
    }
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Step>> {
    for name in names {
        if !STEPS.iter().any(|step| step.name == name) {
            let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
            bail!("unknown step `{name}`; the steps are {}", known.join(", "));
        }
    }
    let is_chosen = |step: &&Step| names.is_empty() || names.iter().any(|name| name == step.name);
    Ok(STEPS.iter().filter(is_chosen).collect())
}

/// Runs a step with its output in a file.
fn run_one(step: &Step, log: &Path) -> Ended {
    let start = Instant::now();
    let outcome = into(log, step.arguments);
    let text = fs::read(log).unwrap_or_default();
    let mut tally = Tally::default();
    String::from_utf8_lossy(&text)
        .lines()
        .for_each(|line| tally.take(line));
    Ended {
        name: step.name,
        outcome: outcome.map_err(|error| format!("{error:#}")),
        tally,
        time: start.elapsed(),
    }
}

fn into(log: &Path, arguments: &[&str]) -> Result<()> {
    let file = File::create(log).with_context(|| format!("creating {}", log.display()))?;
    let errors = file.try_clone().context("sharing the log")?;
    let program = std::env::current_exe().context("finding this program")?;
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .status()
        .context("starting the step")?;
    if !status.success() {
        bail!("{status}, see {}", log.display());
    }
    Ok(())
}

fn log_of(folder: &Path, step: &Step) -> PathBuf {
    folder.join(format!("{}.log", step.name))
}

fn print_table(ended: &[Ended], to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "| step | result | tests | minutes |\n|---|---|---|---|")?;
    for step in ended {
        let result = match &step.outcome {
            Ok(()) => "passed",
            Err(reason) => reason,
        };
        let tests = match step.tally.programs {
            0 => String::new(),
            _ => step.tally.to_string(),
        };
        let minutes = step.time.as_secs_f64() / 60.0;
        writeln!(to, "| {} | {result} | {tests} | {minutes:.1} |", step.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_step_is_an_error_that_lists_the_steps() {
        let error = chosen(&["kernal".to_owned()])
            .err()
            .map(|error| error.to_string());
        assert!(error.is_some_and(|text| text.contains("`kernal`") && text.contains("kernels")));
        let only = chosen(&["docs".to_owned()]).unwrap();
        assert_eq!(
            only.iter().map(|step| step.name).collect::<Vec<_>>(),
            ["docs"]
        );
        assert_eq!(chosen(&[]).unwrap().len(), STEPS.len());
    }

    #[test]
    fn the_table_has_a_row_a_step_with_its_reason() {
        let ended = |name, outcome| Ended {
            name,
            outcome,
            tally: Tally {
                programs: 1,
                passed: 3,
                failed: 0,
                ignored: 1,
            },
            time: Duration::from_secs(90),
        };
        let mut table = Vec::new();
        let rows = [
            ended("lint", Ok(())),
            ended("docs", Err("exit status: 1".to_owned())),
        ];
        print_table(&rows, &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert!(
            table.contains("| lint | passed | 3 passed, 0 failed, 1 skipped | 1.5 |"),
            "{table}"
        );
        assert!(
            table.ends_with("| docs | exit status: 1 | 3 passed, 0 failed, 1 skipped | 1.5 |\n")
        );
    }
}
