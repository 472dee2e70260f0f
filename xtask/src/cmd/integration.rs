//! `integration`: the agent among programs that it works with in use.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

use super::build;
use super::{setup, test};
use crate::apt::Apt;
use crate::python::ENVOY;
use crate::tally::Tally;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// What to run.
#[derive(clap::Args)]
pub struct Arguments {
    /// Only tests with this in their names.
    #[arg(last = true)]
    tests: Vec<OsString>,
}

/// A test target, and the program that its tests need.
struct Suite {
    target: &'static str,
    /// The variable that tells the tests where the program is.
    variable: &'static str,
    provide: fn(&mut Apt) -> Result<PathBuf>,
}

const SUITES: [Suite; 1] = [Suite { target: "envoy", variable: "WEIR_ENVOY", provide: |apt| ENVOY.ensure(apt) }];

/// Provides each suite's program, and runs its tests; that none ran is an error.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let object = build::objects(&workspace, &toolchain)?;
    let (mut total, mut apt) = (Tally::default(), Apt::default());
    for suite in SUITES {
        let program = (suite.provide)(&mut apt)?;
        println!("running    tests of {} with {}", suite.target, program.display());
        let mut tests = workspace.cargo();
        tests.args(["test", "--locked", "--package", "agent", "--test", suite.target, "--"]).args(&arguments.tests);
        tests.env(suite.variable, &program).env("WEIR_EBPF_OBJECT", &object);
        let tally = test::run_tests(&mut tests).with_context(|| format!("testing: {}", suite.target))?;
        ensure!(
            tally.passed > 0 || !arguments.tests.is_empty(),
            "no test of {} ran: see above why they were skipped",
            suite.target
        );
        total += &tally;
    }
    ensure!(total.passed > 0, "no test ran: leave out the names after --, or see above why they were skipped");
    println!("integration: {total}");
    Ok(())
}
