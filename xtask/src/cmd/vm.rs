//! `vm`: tests inside virtual machines with other kernels than this machine's.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::build::{self, Built, Profile};
use super::package;
use super::setup;
use crate::tally::Tally;
use crate::tools::{Detail, Group};
use crate::vm::{
    Cargo, DISTRIBUTIONS, Distribution, Guest, Image, Kernel, Machine, Outcome, Program, RELEASES, Release,
};
use crate::workspace::Workspace;

/// What runs when nothing is chosen: tests by name, with the arguments of each.
const DEFAULTS: [(&str, &[&str]); 3] = [
    // Without what is large for its own sake, which emulation would only make long, and without rates of TCP that
    // emulated CPUs do not reach.
    ("end_to_end", &["--skip", "half_a_million", "--skip", "hundred_thousand", "--skip", "tcp_reaches_the_rate"]),
    // Controllers of cgroup v2, which the machine that builds may not have.
    ("groups", &[]),
    // The verdicts of one algorithm, and the most rules a packet may have: `end_to_end` loads every algorithm. Two CPUs
    // against each other tell more where they are not emulated.
    ("kernel", &["--skip", "two_cpus", "--skip", "leaky-bucket", "--skip", "window", "--skip", "log"]),
];
/// What runs in guests with systemd.
const WITH_SYSTEMD: (&str, &[&str]) = ("systemd", &[]);
/// How long one machine may take, boot included.
const PATIENCE: Duration = Duration::from_secs(1_800);

/// Set up, build, and run tests in virtual machines with other kernels.
#[derive(clap::Args)]
pub struct Arguments {
    /// Use every kernel there is a recipe for, not only the default ones.
    #[arg(long, conflicts_with = "kernel")]
    kernels: bool,
    /// Use these kernels, as in 6.1,6.12.
    #[arg(long, value_delimiter = ',', value_name = "VERSIONS")]
    kernel: Vec<String>,
    /// Run in guests whose first process is systemd, with the package instead of the bare agent.
    #[arg(long, conflicts_with_all = ["kernel", "kernels"])]
    systemd: bool,
    /// With --systemd, use these guests, as in bookworm,trixie.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", requires = "systemd")]
    guest: Vec<String>,
    /// Package an agent that is built faster and runs slower; for work on tests.
    #[arg(long, requires = "systemd")]
    debug: bool,
    /// `--test NAME` chooses a test of the workspace, what follows it is passed on to it.
    #[arg(last = true, value_name = "--test NAME [ARGUMENTS]")]
    chosen: Vec<OsString>,
}

/// A test and what it is told.
struct Chosen {
    test: String,
    arguments: Vec<OsString>,
}

/// Runs every chosen test on every chosen kernel, and fails if one of them did.
pub fn run(arguments: &Arguments) -> Result<()> {
    if arguments.systemd {
        return with_systemd(arguments);
    }
    let releases = releases(arguments)?;
    let chosen = chosen(&arguments.chosen, DEFAULTS.to_vec())?;
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Vm, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Release)?;
    let programs = build_tests(&workspace, &built, chosen)?;

    let mut failures = Vec::new();
    let mut lines = Vec::new();
    let mut total = Tally::default();
    for release in releases {
        let kernel = release.provide()?;
        for (test, program) in &programs {
            let name = format!("Linux {}: {test}", kernel.name);
            println!("running    {name}");
            match run_one(&kernel, program, &built.agent) {
                Ok(outcome) => {
                    total += &outcome.tally;
                    lines.push(format!("{name}: {}, {:.0} s", outcome.tally, outcome.time.as_secs_f64()));
                    if outcome.status != 0 {
                        failures.push(format!("{name} ended with {}", outcome.status));
                    }
                }
                Err(error) => failures.push(format!("{name}: {error:#}")),
            }
        }
    }
    conclude(&lines, &total, &failures)
}

/// Installs the package in guests with systemd and runs the tests there.
fn with_systemd(arguments: &Arguments) -> Result<()> {
    let distributions: Vec<&Distribution> = match arguments.guest.as_slice() {
        [] => DISTRIBUTIONS.iter().collect(),
        names => names.iter().map(|name| Distribution::find(name)).collect::<Result<_>>()?,
    };
    let chosen = chosen(&arguments.chosen, vec![WITH_SYSTEMD])?;
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Vm, Detail::Changes)?;
    let profile = if arguments.debug { Profile::Debug } else { Profile::Release };
    let built = build::all(&workspace, &toolchain, profile)?;
    let packages = package::packages(&workspace, &built)?;
    let programs = build_tests(&workspace, &built, chosen)?;

    let mut failures = Vec::new();
    let mut lines = Vec::new();
    let mut total = Tally::default();
    for distribution in distributions {
        let image = Image::provide(distribution)?;
        for (test, program) in &programs {
            let name = format!("Debian {}: {test}", distribution.name);
            println!("running    {name}");
            let cargo =
                Cargo { program, packages: [("weir.deb", &packages.package), ("weir-next.deb", &packages.next)] };
            match image.run(&cargo, PATIENCE, &mut io::stdout().lock()).and_then(told_of_a_test) {
                Ok(outcome) => {
                    total += &outcome.tally;
                    lines.push(format!("{name}: {}, {:.0} s", outcome.tally, outcome.time.as_secs_f64()));
                    if outcome.status != 0 {
                        failures.push(format!("{name} ended with {}", outcome.status));
                    }
                }
                Err(error) => failures.push(format!("{name}: {error:#}")),
            }
        }
    }
    conclude(&lines, &total, &failures)
}

fn conclude(lines: &[String], total: &Tally, failures: &[String]) -> Result<()> {
    lines.iter().for_each(|line| println!("{line}"));
    println!("total: {total}");
    if !failures.is_empty() {
        bail!("in virtual machines\n- {}", failures.join("\n- "));
    }
    Ok(())
}

fn run_one(kernel: &Kernel, program: &Program, agent: &Path) -> Result<Outcome> {
    let guest = Guest::new(kernel, program, agent)?;
    told_of_a_test(Machine::new(kernel, &guest, PATIENCE)?.run(&mut io::stdout().lock())?)
}

fn told_of_a_test(outcome: Outcome) -> Result<Outcome> {
    ensure!(
        outcome.status != 0 || outcome.tally.passed + outcome.tally.ignored > 0,
        "it ended well and told of no test"
    );
    Ok(outcome)
}

fn releases(arguments: &Arguments) -> Result<Vec<&'static Release>> {
    if !arguments.kernel.is_empty() {
        return arguments.kernel.iter().map(|version| Release::find(version)).collect();
    }
    Ok(RELEASES.iter().filter(|release| arguments.kernels || release.is_default).collect())
}

fn chosen(words: &[OsString], defaults: Vec<(&str, &[&str])>) -> Result<Vec<Chosen>> {
    match words {
        [] => Ok(defaults
            .into_iter()
            .map(|(test, arguments)| Chosen {
                test: test.to_owned(),
                arguments: arguments.iter().map(OsString::from).collect(),
            })
            .collect()),
        [option, test, arguments @ ..] if option == "--test" => {
            let test = test.to_str().with_context(|| format!("{} is no name of a test", test.display()))?.to_owned();
            Ok(vec![Chosen { test, arguments: arguments.to_vec() }])
        }
        _ => bail!("after -- comes --test NAME, then what that test is told, as in `-- --test end_to_end polite`"),
    }
}

/// Builds the chosen tests as `cargo xtask test` does, so that neither builds what the other has built.
fn build_tests(workspace: &Workspace, built: &Built, chosen: Vec<Chosen>) -> Result<Vec<(String, Program)>> {
    let mut cargo = workspace.cargo();
    cargo.args(["test", "--no-run", "--locked", "--workspace", "--exclude", "ebpf"]);
    cargo.arg("--message-format=json-render-diagnostics").env("WEIR_EBPF_OBJECT", &built.object);
    for one in &chosen {
        cargo.arg("--test").arg(&one.test);
    }
    let said = messages(&mut cargo)?;
    let program = |Chosen { test, arguments }| {
        let path = executable(&said, &test).with_context(|| format!("cargo built no test named {test}"))?;
        Ok((test, Program { path, arguments }))
    };
    chosen.into_iter().map(program).collect()
}

fn messages(cargo: &mut Command) -> Result<String> {
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        bail!("building the tests failed: {}", output.status);
    }
    String::from_utf8(output.stdout).context("reading what cargo built")
}

/// Where cargo put the program of a test, from its messages in JSON, one a line.
fn executable(messages: &str, test: &str) -> Option<PathBuf> {
    messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find_map(|message| {
        let target = message.get("target")?;
        let is_test = target.get("kind")?.as_array()?.iter().any(|kind| kind == "test");
        let path = message.get("executable")?.as_str()?;
        (is_test && target.get("name")? == test).then(|| PathBuf::from(path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_and_what_it_is_told_are_taken_apart() {
        let words = |words: &[&str]| chosen(&words.iter().map(OsString::from).collect::<Vec<_>>(), DEFAULTS.to_vec());
        let one = words(&["--test", "groups", "--exact", "a b"]).unwrap();
        assert_eq!((one[0].test.as_str(), one[0].arguments.len()), ("groups", 2));
        assert_eq!(words(&[]).unwrap().len(), DEFAULTS.len());
        assert!(words(&["polite"]).is_err());
        assert!(words(&["--test"]).is_err());
    }

    #[test]
    fn the_program_of_a_test_is_found_in_what_cargo_says() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"kernel"},"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"kernel"},"executable":"/target/kernel-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages, "kernel"), Some("/target/kernel-1".into()));
        assert_eq!(executable(messages, "weir"), None);
    }
}
