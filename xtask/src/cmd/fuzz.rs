//! `fuzz`: coverage-guided fuzzers, by libFuzzer.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use super::build;
use super::setup;
use crate::cargo_tools::FUZZ;
use crate::process;
use crate::toolchain::Toolchain;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Run coverage-guided fuzzers over the parsers of what others send: frames, configs, lists, captures, databases, states,
/// requests.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only this one; without it, each in turn.
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(TARGETS))]
    target: Option<String>,
    /// The time of each, in seconds.
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u64,
}

const TARGETS: [&str; 8] = [
    "packet", "config", "list", "capture", "mmdb", "state", "rls", "http",
];
/// The crate, from the root.
const CRATE: &str = "crates/fuzz";
/// Arguments of libFuzzer: seconds for one input, and MiB of memory.
const BOUNDS: [&str; 3] = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=4096"];

/// Builds all, and runs the chosen ones one after the other; fails with the inputs that one of them found.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Build, Detail::Changes)?;
    let chosen: Vec<&str> = match &arguments.target {
        Some(target) => vec![target],
        None => TARGETS.to_vec(),
    };
    build_targets(&workspace, &toolchain, &chosen)?;
    let failed: Vec<String> = chosen
        .iter()
        .filter_map(|target| {
            let outcome = fuzz(&workspace, target, arguments.seconds);
            outcome.err().map(|error| format!("{error:#}"))
        })
        .collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// The triple that cargo-fuzz builds for.
fn triple() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

fn build_targets(workspace: &Workspace, toolchain: &Toolchain, chosen: &[&str]) -> Result<()> {
    let object = build::objects(workspace, toolchain)?;
    let cargo_fuzz = FUZZ.ensure(Detail::Changes)?;
    let target = workspace.target.join("fuzz");
    for name in chosen {
        let mut build = Command::new(&cargo_fuzz);
        build
            .current_dir(&workspace.root)
            // Weir's own code is safe Rust but for calls of the system: an address sanitizer would only halve the speed.
            .args(["build", "--fuzz-dir", CRATE, "--sanitizer", "none"])
            .args(["--target", &triple(), "--target-dir"])
            .arg(&target)
            .arg(name)
            .env("CARGO", &toolchain.compiler.cargo)
            .env("RUSTC", &toolchain.compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_INCREMENTAL", "0")
            .env("WEIR_EBPF_OBJECT", &object)
            .env_remove("CARGO_TARGET_DIR")
            .env_remove("CARGO_MANIFEST_DIR");
        process::run(&mut build).with_context(|| format!("building the fuzzer {name}"))?;
    }
    Ok(())
}

/// Runs one, and prints how many inputs it tried.
fn fuzz(workspace: &Workspace, name: &str, seconds: u64) -> Result<()> {
    let folder = workspace.target.join("fuzz");
    // New inputs are kept here; the seeds of the tree stay as they are.
    let found = folder.join("corpus").join(name);
    let artifacts = folder.join("artifacts").join(name);
    for folder in [&found, &artifacts] {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    }
    let program = folder.join(triple()).join("release").join(name);
    let start = Instant::now();
    let mut command = Command::new(&program);
    command
        .current_dir(&workspace.root)
        .args([
            &found,
            &workspace.root.join(CRATE).join("corpus").join(name),
        ])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg("-print_final_stats=1")
        .args(BOUNDS)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let output = command
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "fuzzer {name}: {}\n{}\nto run it again: {} FILE",
        output.status,
        tail(&said),
        program.display()
    );
    let tried = statistic(&said, "number_of_executed_units")
        .with_context(|| format!("reading how many inputs {name} tried"))?;
    let speed = statistic(&said, "average_exec_per_sec").unwrap_or_default();
    println!(
        "fuzz: {name}: {tried} inputs in {:.0} s, {speed} a second; {} are kept",
        start.elapsed().as_secs_f64(),
        count(&found)
    );
    Ok(())
}

/// The end of what it printed, where the failed input is.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

fn statistic(said: &str, name: &str) -> Option<u64> {
    let line = format!("stat::{name}:");
    let value = said.lines().find_map(|text| text.strip_prefix(&line))?;
    value.trim().parse().ok()
}

fn count(folder: &Path) -> usize {
    fs::read_dir(folder).map_or(0, Iterator::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_read_from_what_libfuzzer_prints() {
        let said = "Done 12345 runs in 31 second(s)\nstat::number_of_executed_units: 12345\n\
                    stat::average_exec_per_sec:     398\n";
        assert_eq!(statistic(said, "number_of_executed_units"), Some(12_345));
        assert_eq!(statistic(said, "average_exec_per_sec"), Some(398));
        assert_eq!(statistic(said, "peak_rss_mb"), None);
    }

    #[test]
    fn each_target_is_in_the_tree_with_seeds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(CRATE);
        let files = fs::read_dir(root.join("fuzz_targets")).unwrap();
        let mut names: Vec<String> = files
            .map(|file| file.unwrap().path())
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        let mut targets = TARGETS.map(str::to_owned);
        targets.sort();
        assert_eq!(names, targets);
        for target in TARGETS {
            assert!(count(&root.join("corpus").join(target)) > 0, "{target}");
        }
    }
}
