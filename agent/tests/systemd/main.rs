//! The package on a real systemd, inside a guest of `cargo xtask vm --systemd`: PID 1, the network and the disk are the
//! tests' own. A test is run by itself, and one that fails prints the journal since its start.
//!
//! To add a test: write a `fn` in a file here, and its entry in that file's `TESTS`. Those of [`BOOTS`]' second list run
//! after a reboot, which [`boot::prepare`] prepares.

mod boot;
mod cgroup_v1;
mod confined;
mod containers;
mod groups;
mod guest;
mod image;
mod package;
mod pages;
mod sandbox;
mod service;
mod units;
mod verbs;

use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use testbed::trials::{Test, is_quick, timed};

/// The tests of each boot, in their order.
const BOOTS: [&[&[Test]]; 2] = [
    &[
        package::TESTS,
        service::TESTS,
        service::THOROUGH,
        sandbox::TESTS,
        sandbox::THOROUGH,
        confined::TESTS,
        confined::OPTIMIZED,
        groups::TESTS,
        groups::THOROUGH,
        units::TESTS,
        units::THOROUGH,
        containers::TESTS,
        image::TESTS,
        verbs::TESTS,
        pages::THOROUGH,
    ],
    &[boot::TESTS],
];
/// The tests in guests with cgroup v1.
const ON_CGROUP_V1: [&[&[Test]]; 1] = [&[cgroup_v1::TESTS]];
/// Those that `--quick` leaves out.
const THOROUGH: [&[Test]; 5] = [
    service::THOROUGH,
    sandbox::THOROUGH,
    groups::THOROUGH,
    units::THOROUGH,
    pages::THOROUGH,
];
/// Asks for one more boot.
const REBOOT: u8 = 75;

fn main() -> ExitCode {
    if let [_, option, socket, request] = std::env::args().collect::<Vec<_>>().as_slice()
        && option == guest::EXCHANGE
    {
        print!("{}", guest::exchange(socket, request));
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|argument| argument == containers::SERVE) {
        containers::serve();
        return ExitCode::SUCCESS;
    }
    if std::env::args().any(|argument| argument == sandbox::PROBE) {
        print!("{}", sandbox::probe());
        return ExitCode::SUCCESS;
    }
    let arguments = Arguments::from_args();
    let boot = guest::boot();
    if boot.is_none() {
        eprintln!("skipped: what takes a guest with systemd: run `cargo xtask vm --systemd`");
    }
    let is_debug = std::env::var_os("WEIR_DEBUG").is_some();
    let mut left_out = Vec::new();
    if is_debug {
        eprintln!("skipped: what takes an optimized agent");
        left_out.extend(confined::OPTIMIZED);
    }
    if is_quick() {
        eprintln!("skipped: the thorough part, by --quick");
        left_out.extend(THOROUGH.into_iter().flatten());
    }
    if !image::is_there() {
        eprintln!(
            "skipped: the image of a release: run `cargo xtask vm --systemd --dist target/dist`"
        );
        left_out.extend(image::TESTS);
    }
    let is_left_out = |name: &str| left_out.iter().any(|(other, _)| *other == name);
    let rooms: &[&[&[Test]]] = if cgroup_v1::is_there() {
        &ON_CGROUP_V1
    } else {
        eprintln!("skipped: groups on cgroup v1: run `cargo xtask vm --systemd --cgroup-v1`");
        &BOOTS
    };
    let boots = || {
        (1..)
            .zip(rooms)
            .flat_map(|(number, rooms)| rooms.iter().map(move |room| (number, *room)))
    };
    let tests = || boots().flat_map(|(number, room)| room.iter().map(move |test| (number, test)));
    let trials = tests()
        .filter(|(number, _)| boot.is_none_or(|boot| boot == *number))
        .map(|(_, (name, test))| {
            Trial::test(*name, || with_journal(name, *test))
                .with_ignored_flag(boot.is_none() || is_left_out(name))
        })
        .collect();
    // They share the one agent that a host has.
    let conclusion = libtest_mimic::run(
        &Arguments {
            test_threads: Some(1),
            ..arguments.clone()
        },
        trials,
    );
    let is_wanted = |name: &str| {
        arguments
            .filter
            .as_ref()
            .is_none_or(|filter| name.contains(filter))
    };
    if let Some(boot) = boot
        && tests().any(|(number, (name, _))| number > boot && is_wanted(name))
    {
        boot::prepare();
        return ExitCode::from(REBOOT);
    }
    if conclusion.has_failed() {
        ExitCode::from(101)
    } else {
        ExitCode::SUCCESS
    }
}

/// Runs a test, and shows what the guest logged meanwhile if it fails.
fn with_journal(name: &str, test: fn()) -> Result<(), Failed> {
    let start = guest::journal_cursor();
    panic::catch_unwind(AssertUnwindSafe(|| timed(name, test))).map_err(|_| {
        println!(
            "--- journal since the test's start\n{}---",
            guest::journal_since(&start)
        );
        Failed::without_message()
    })
}
