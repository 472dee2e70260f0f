//! `vm`: runs tests inside virtual machines with other kernels.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::build::{self, Built, Profile};
use super::package;
use super::setup;
use crate::architecture::Architecture;
use crate::dist;
use crate::suite::{self, Job};
use crate::vm::{
    Cargo, DISTRIBUTIONS, Distribution, Guest, Image, Kernel, Machine, Outcome, Program, RELEASES,
    Release, Report,
};
use crate::workspace::Workspace;

/// The default tests, each with the name parts of those that are skipped.
const DEFAULTS: [(&str, &[&str]); 3] = [
    // Large tests, which only take long under emulation; and the pages of docs/, which the guest does not have.
    (
        "end_to_end",
        &[
            "half_a_million",
            "hundred_thousand",
            "million_prefixes",
            "twenty_thousand_prefixes",
            "keeps_a_recording_within_its_memory",
            "recipe_",
            "the_first_limit",
            "the_tour_",
            "_of_the_documents_",
            "_is_so",
        ],
    ),
    // Controllers of cgroup v2, which the build machine may not have.
    ("groups", &["_of_their_page_"]),
    // The verdicts of one algorithm, and the maximum of rules for a packet: `end_to_end` loads every algorithm. Races
    // of two CPUs are more meaningful without emulation.
    (
        "kernel",
        &[
            "two_cpus",
            "million_prefixes",
            "leaky-bucket",
            "window",
            "log",
        ],
    ),
];
/// The tests in guests with systemd.
const WITH_SYSTEMD: (&str, &[&str]) = ("systemd", &[]);
/// The kernel's argument for `--lockdown`.
const LOCKDOWN: &str = "lockdown=confidentiality";
/// The kernel's arguments for `--cgroup-v1`; systemd 256 and 257 require the second.
const CGROUP_V1: &str = "systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1";
/// The timeout of one machine, including the boot.
const PATIENCE: Duration = Duration::from_secs(3_000);

/// Set up, build, and run tests in virtual machines with other kernels.
#[derive(clap::Args)]
pub struct Arguments {
    /// Use every kernel there is a recipe for, not only the default ones.
    #[arg(long, conflicts_with = "kernel")]
    kernels: bool,
    /// Use these kernels, as in 6.1,6.12.
    #[arg(long, value_delimiter = ',', value_name = "VERSIONS")]
    kernel: Vec<String>,
    /// Run in guests whose first process is systemd, with the package instead of the bare agent. With --kernel or
    /// --kernels, run both.
    #[arg(long)]
    systemd: bool,
    /// With --systemd, use these guests, as in bookworm,trixie.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        requires = "systemd"
    )]
    guest: Vec<String>,
    /// With --systemd, also test the image of the release in this directory.
    #[arg(long, value_name = "DIRECTORY", requires = "systemd")]
    dist: Option<PathBuf>,
    /// Leave out tests whose result depends little on the kernel or on systemd.
    #[arg(long)]
    quick: bool,
    /// How many machines run at a time. With more than one, each one's output is shown when it ends.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    machines: u8,
    /// Boot with lockdown=confidentiality, under which no program may read the kernel's memory.
    #[arg(long, conflicts_with = "systemd")]
    lockdown: bool,
    /// Boot guests with systemd on cgroup v1, as older distributions do.
    #[arg(long, requires = "systemd", conflicts_with_all = ["kernel", "kernels"])]
    cgroup_v1: bool,
    /// The architecture of the kernels' machines, this machine's by default. For another one, the tests and the agent are
    /// built anew, which takes as long as a first build.
    #[arg(long, value_name = "NAME", value_parser = Architecture::find, conflicts_with_all = ["systemd", "release"])]
    arch: Option<&'static Architecture>,
    /// Test an optimized agent instead of that of `cargo xtask test`, which is built already.
    #[arg(long)]
    release: bool,
    /// `--test NAME` chooses a test of the workspace, what follows it is passed on to it.
    #[arg(last = true, value_name = "--test NAME [ARGUMENTS]")]
    chosen: Vec<OsString>,
}

impl Arguments {
    const fn runs_kernels(&self) -> bool {
        self.kernels || !self.kernel.is_empty() || !self.systemd
    }

    fn architecture(&self) -> Result<&'static Architecture> {
        self.arch.map_or_else(Architecture::host, Ok)
    }

    const fn profile(&self) -> Profile {
        if self.release {
            Profile::Release
        } else {
            Profile::Debug
        }
    }
}

/// A test and its arguments.
struct Chosen {
    test: String,
    arguments: Vec<OsString>,
}

/// Runs every chosen test in every chosen machine; fails if one of them failed.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        arguments.chosen.is_empty() || !(arguments.runs_kernels() && arguments.systemd),
        "a test runs on kernels or in guests with systemd: leave out --systemd, or --kernel"
    );
    if arguments.machines > 1 {
        return at_a_time(arguments);
    }
    let mut report = Report::default();
    if arguments.runs_kernels() {
        on_kernels(arguments, &mut report)?;
    }
    if arguments.systemd {
        with_systemd(arguments, &mut report)?;
    }
    report.conclude()
}

fn on_kernels(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let releases = releases(arguments)?;
    let chosen = chosen(&arguments.chosen, DEFAULTS.to_vec())?;
    let architecture = arguments.architecture()?;
    let (built, mut programs) = build_all(arguments, chosen)?;
    if arguments.quick {
        programs
            .iter_mut()
            .for_each(|(_, program)| program.variables.push("WEIR_QUICK=1"));
    }
    for release in releases {
        let kernel = release.provide(architecture)?;
        for (test, program) in &programs {
            let name = format!("Linux {}: {test}", kernel.name);
            println!("running    {name}");
            let argument = arguments.lockdown.then_some(LOCKDOWN);
            report.add(&name, run_one(&kernel, program, &built.agent, argument));
        }
    }
    Ok(())
}

/// Installs the package in guests with systemd and runs the tests there.
fn with_systemd(arguments: &Arguments, report: &mut Report) -> Result<()> {
    let distributions = distributions(arguments)?;
    let released = arguments.dist.as_deref().map(image_of).transpose()?;
    let chosen = chosen(&arguments.chosen, vec![WITH_SYSTEMD])?;
    let (built, programs) = build_all(arguments, chosen)?;
    let packages = package::packages(&Workspace::locate()?, &built)?;
    for distribution in distributions {
        let image = Image::provide(distribution)?;
        for (test, program) in &programs {
            let name = format!("Debian {}: {test}", distribution.name);
            println!("running    {name}");
            let cargo = Cargo {
                program,
                packages: [
                    ("weir.deb", &packages.package),
                    ("weir-next.deb", &packages.next),
                ],
                released: released.as_deref(),
                is_debug: !arguments.release,
                is_quick: arguments.quick,
                kernel_arguments: arguments.cgroup_v1.then_some(CGROUP_V1),
            };
            let outcome = image.run(&cargo, PATIENCE, &mut io::stdout().lock());
            report.add(&name, outcome.and_then(ran_a_test));
        }
    }
    Ok(())
}

/// The image of the release in a directory.
fn image_of(directory: &Path) -> Result<PathBuf> {
    let image = directory.join(dist::image_name(env!("CARGO_PKG_VERSION")));
    ensure!(
        image.is_file(),
        "{} not found: `cargo xtask dist` makes it",
        image.display()
    );
    Ok(image)
}

/// Runs this program for each machine, several at a time: a machine waits much, and its CPUs take turns on one of the host's.
fn at_a_time(arguments: &Arguments) -> Result<()> {
    let mut machines = Vec::new();
    if arguments.runs_kernels() {
        for release in releases(arguments)? {
            for chosen in chosen(&arguments.chosen, DEFAULTS.to_vec())? {
                machines.push(("--kernel", release.version, chosen));
            }
        }
    }
    if arguments.systemd {
        let distributions = distributions(arguments)?;
        ensure!(
            distributions.len() == 1,
            "guests would write the package at the same time: choose one with --guest"
        );
        for distribution in distributions {
            for chosen in chosen(&arguments.chosen, vec![WITH_SYSTEMD])? {
                machines.push(("--guest", distribution.name, chosen));
            }
        }
    }
    // Those that take longest begin first.
    machines.sort_by_key(|(.., chosen)| !["end_to_end", WITH_SYSTEMD.0].contains(&&*chosen.test));

    let tests = machines.iter().map(|(.., chosen)| Chosen {
        test: chosen.test.clone(),
        arguments: Vec::new(),
    });
    build_all(arguments, tests.collect())?;
    let program = std::env::current_exe().context("finding the path of this program")?;
    let job = |(option, machine, chosen): &(&str, &str, Chosen)| {
        let mut command = Command::new(&program);
        command.args(["vm", option, machine]);
        if *option == "--guest" {
            command.arg("--systemd");
        }
        if let Some(architecture) = arguments.arch {
            command.args(["--arch", architecture.name]);
        }
        if let Some(directory) = &arguments.dist {
            command.arg("--dist").arg(directory);
        }
        for (is_set, option) in [
            (arguments.quick, "--quick"),
            (arguments.lockdown, "--lockdown"),
            (arguments.cgroup_v1, "--cgroup-v1"),
            (arguments.release, "--release"),
        ] {
            if is_set {
                command.arg(option);
            }
        }
        command
            .args(["--", "--test", &chosen.test])
            .args(&chosen.arguments);
        Job {
            name: format!("{machine}: {}", chosen.test),
            command,
        }
    };
    suite::run(
        |jobs| {
            machines
                .iter()
                .for_each(|machine| _ = jobs.send(job(machine)));
            Ok(())
        },
        arguments.machines.into(),
        &Workspace::locate()?.target.join("test-output"),
        &mut io::stdout().lock(),
    )
    .map(drop)
}

fn run_one(
    kernel: &Kernel,
    program: &Program,
    agent: &Path,
    argument: Option<&str>,
) -> Result<Outcome> {
    let guest = Guest::new(kernel, program, agent)?;
    let mut machine = Machine::new(kernel, &guest, PATIENCE)?;
    if let Some(argument) = argument {
        machine.add_argument(argument);
    }
    ran_a_test(machine.run(&mut io::stdout().lock())?)
}

fn ran_a_test(outcome: Outcome) -> Result<Outcome> {
    ensure!(
        outcome.status != 0 || outcome.tally.passed + outcome.tally.ignored > 0,
        "it ended with status 0 and ran no test"
    );
    Ok(outcome)
}

fn releases(arguments: &Arguments) -> Result<Vec<&'static Release>> {
    if !arguments.kernel.is_empty() {
        return arguments
            .kernel
            .iter()
            .map(|version| Release::find(version))
            .collect();
    }
    Ok(RELEASES
        .iter()
        .filter(|release| arguments.kernels || release.is_default)
        .collect())
}

fn distributions(arguments: &Arguments) -> Result<Vec<&'static Distribution>> {
    match arguments.guest.as_slice() {
        [] => Ok(DISTRIBUTIONS.iter().collect()),
        names => names.iter().map(|name| Distribution::find(name)).collect(),
    }
}

fn chosen(words: &[OsString], defaults: Vec<(&str, &[&str])>) -> Result<Vec<Chosen>> {
    match words {
        [] => Ok(defaults
            .into_iter()
            .map(|(test, skipped)| Chosen {
                test: test.to_owned(),
                arguments: skipped
                    .iter()
                    .flat_map(|name| ["--skip", name])
                    .map(OsString::from)
                    .collect(),
            })
            .collect()),
        [option, test, arguments @ ..] if option == "--test" => {
            let test = test
                .to_str()
                .with_context(|| format!("{} is no name of a test", test.display()))?
                .to_owned();
            Ok(vec![Chosen {
                test,
                arguments: arguments.to_vec(),
            }])
        }
        _ => bail!(
            "after -- write --test NAME, then that test's arguments, as in `-- --test end_to_end polite`"
        ),
    }
}

/// Builds the agent and the chosen tests. The tests, and an agent that is not optimized, are those of `cargo xtask test`.
fn build_all(
    arguments: &Arguments,
    chosen: Vec<Chosen>,
) -> Result<(Built, Vec<(String, Program)>)> {
    let workspace = &Workspace::locate()?;
    let architecture = arguments.architecture()?;
    let toolchain = &setup::ensure_guests(architecture)?;
    let targets: Vec<&str> = chosen.iter().map(|one| one.test.as_str()).collect();
    let (built, programs) = match arguments.profile() {
        Profile::Debug => build::of_tests_for(architecture, workspace, toolchain, &targets)?,
        profile @ (Profile::Release | Profile::Dist) => {
            let built = build::all(workspace, toolchain, profile)?;
            let programs = build::tests(workspace, &built.object, &targets)?;
            (built, programs)
        }
    };
    let program = |Chosen { test, arguments }| {
        let found = programs
            .iter()
            .find(|program| program.is_integration && program.target == test);
        let path = found
            .with_context(|| format!("cargo built no test named {test}"))?
            .path
            .clone();
        Ok((
            test,
            Program {
                path,
                arguments,
                variables: Vec::new(),
            },
        ))
    };
    let chosen = chosen.into_iter().map(program).collect::<Result<_>>()?;
    Ok((built, chosen))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_and_its_arguments_are_separated() {
        let words = |words: &[&str]| {
            chosen(
                &words.iter().map(OsString::from).collect::<Vec<_>>(),
                DEFAULTS.to_vec(),
            )
        };
        let one = words(&["--test", "groups", "--exact", "a b"]).unwrap();
        assert_eq!(
            (one[0].test.as_str(), one[0].arguments.len()),
            ("groups", 2)
        );
        assert_eq!(words(&[]).unwrap().len(), DEFAULTS.len());
        assert!(words(&["polite"]).is_err());
        assert!(words(&["--test"]).is_err());
    }
}
