//! `integration`: tests the agent with the programs it is used with.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::build;
use super::{setup, test};
use crate::apt::Apt;
use crate::debian;
use crate::process;
use crate::python::{ANSIBLE, ENVOY};
use crate::tally::Tally;
use crate::tools::{Detail, Group};
use crate::workspace::{self, Workspace};

/// What to run.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only tests with this in their names.
    #[arg(last = true)]
    tests: Vec<OsString>,
}

/// A test target, and the program that its tests require.
struct Suite {
    target: &'static str,
    /// A part of the names of the tests that require it; empty for all.
    tests: &'static str,
    /// The variable that passes the program's path to the tests.
    variable: &'static str,
    provide: fn(&mut Apt) -> Result<PathBuf>,
}

const SUITES: [Suite; 10] = [
    Suite {
        target: "envoy",
        tests: "",
        variable: "WEIR_ENVOY",
        provide: |apt| ENVOY.ensure(apt),
    },
    Suite {
        target: "end_to_end",
        tests: "fail2ban_itself",
        variable: "WEIR_FAIL2BAN",
        provide: |apt| installed(apt, "fail2ban", "fail2ban-server"),
    },
    Suite {
        target: "end_to_end",
        tests: "crowdsec_itself",
        variable: "WEIR_CROWDSEC",
        provide: |_| crowdsec(),
    },
    Suite {
        target: "end_to_end",
        tests: "recipe_ansible",
        variable: "WEIR_ANSIBLE",
        provide: |apt| ANSIBLE.ensure(apt),
    },
    Suite {
        target: "proxies",
        tests: "nginx_",
        variable: "WEIR_NGINX",
        provide: |apt| installed(apt, "nginx", "nginx"),
    },
    Suite {
        target: "proxies",
        tests: "haproxy_",
        variable: "WEIR_HAPROXY",
        provide: |apt| installed(apt, "haproxy", "haproxy"),
    },
    Suite {
        target: "proxies",
        tests: "caddy_",
        variable: "WEIR_CADDY",
        provide: |apt| installed(apt, "caddy", "caddy"),
    },
    Suite {
        target: "browser",
        tests: "",
        variable: "WEIR_CHROMEDRIVER",
        // Requires the package chromium.
        provide: |apt| installed(apt, "chromium-driver", "chromedriver"),
    },
    Suite {
        target: "cluster",
        tests: "valkey_",
        variable: "WEIR_VALKEY",
        provide: valkey,
    },
    Suite {
        target: "end_to_end",
        tests: "rules_spread_through_valkey",
        variable: "WEIR_VALKEY",
        provide: valkey,
    },
];

/// An installed program, or one of a package, whose service is not started.
fn installed(apt: &mut Apt, package: &str, program: &str) -> Result<PathBuf> {
    if process::find(program).is_none() {
        apt.install(&[package])?;
    }
    process::find(program)
        .with_context(|| format!("{package} was installed, yet {program} is not in PATH"))
}

/// The directory with the packages of CrowdSec and its bouncer, unpacked into the user's cache: an installation would
/// start them.
fn crowdsec() -> Result<PathBuf> {
    let folder = workspace::cache("crowdsec")?;
    let root = folder.join("root");
    for package in ["crowdsec", "crowdsec-firewall-bouncer"] {
        let program = root.join("usr/bin").join(package);
        if !process::is_executable(&program) {
            debian::unpack_own(package, &folder, &root)?;
        }
        ensure!(
            process::is_executable(&program),
            "{package} was unpacked, yet {} is not a program",
            program.display()
        );
    }
    Ok(root)
}

/// Valkey: installed, from the archive or, on Debian 12, unpacked from the backports into the user's cache.
fn valkey(apt: &mut Apt) -> Result<PathBuf> {
    const SERVER: &str = "valkey-server";
    let release = fs::read_to_string("/etc/os-release").context("reading /etc/os-release")?;
    if process::find(SERVER).is_some()
        || !release
            .lines()
            .any(|line| line == "VERSION_CODENAME=bookworm")
    {
        return installed(apt, SERVER, SERVER);
    }
    let folder = workspace::cache("valkey-bookworm")?;
    let program = folder.join("root/usr/bin").join(SERVER);
    if !process::is_executable(&program) {
        let suite = debian::Suite::open("bookworm-backports", "amd64", folder.join("apt"))?;
        // Its libraries are those of redis-server, which is installed.
        for package in ["valkey-tools", SERVER] {
            suite.unpack(package, |_| false, &folder.join("root"))?;
        }
    }
    ensure!(
        process::is_executable(&program),
        "{SERVER} was unpacked, yet {} is not a program",
        program.display()
    );
    Ok(program)
}

/// Provides each suite's program, and runs its tests; fails if none ran.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let object = build::objects(&workspace, &toolchain)?;
    let agent = workspace.agent("debug");
    test::mount_bpffs();
    let (mut total, mut apt) = (Tally::default(), Apt::default());
    for suite in SUITES {
        let program = match (suite.provide)(&mut apt) {
            // Not every release of Debian has it.
            Err(error) if suite.variable == "WEIR_CROWDSEC" => {
                println!("skipped: CrowdSec itself: {error:#}");
                continue;
            }
            program => program?,
        };
        println!(
            "running    tests of {} with {}",
            suite.target,
            program.display()
        );
        let mut tests = workspace.cargo();
        tests.args(["test", "--locked"]).args(build::EVERY_PACKAGE);
        tests.args(["--test", suite.target, "--"]);
        match (arguments.tests.is_empty(), suite.tests) {
            (true, "") => {}
            (true, part) => drop(tests.arg(part)),
            (false, _) => drop(tests.args(&arguments.tests)),
        }
        tests
            .env(suite.variable, &program)
            .env("WEIR_EBPF_OBJECT", &object)
            .env("WEIR_AGENT", &agent);
        let tally =
            test::run_tests(&mut tests).with_context(|| format!("testing: {}", suite.target))?;
        ensure!(
            tally.passed > 0 || !arguments.tests.is_empty(),
            "no test of {} ran: see above why they were skipped",
            suite.target
        );
        total += &tally;
    }
    // Envoy's definitions take a minute to build, so that the tests' usual build leaves them out.
    println!("running    tests of the rate limit service with Envoy's own definitions");
    let mut tests = workspace.cargo();
    tests
        .args(["test", "--locked", "--workspace"])
        .args(["--exclude", "ebpf", "--exclude", "xtask"])
        .args(["--test", "decide_grpc", "--test", "generated", "--"])
        .args(&arguments.tests);
    tests
        .env("WEIR_EBPF_OBJECT", &object)
        .env("WEIR_AGENT", &agent);
    total += &test::run_tests(&mut tests).context("testing: rls-tests")?;
    ensure!(
        total.passed > 0,
        "no test ran: leave out the names after --, or see above why they were skipped"
    );
    println!("integration: {total}");
    Ok(())
}
