//! Tests under the names of their functions, for test programs with a harness of their own.

use std::fmt::Display;
use std::time::{Duration, Instant};

use libtest_mimic::Trial;

/// Whether `cargo xtask test --long` runs the tests: those with random numbers or instants then run more rounds.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("WEIR_LONG").is_some()
}

/// A test and the name of its function.
pub type Test = (&'static str, fn());

/// From here on, a test's time is printed: the slow ones are those that make the suite slow.
const SLOW: Duration = Duration::from_secs(5);

/// A test for libtest-mimic, which fails if its function panics.
#[must_use]
pub fn trial(&(name, test): &Test) -> Trial {
    Trial::test(name, move || {
        let start = Instant::now();
        test();
        let took = start.elapsed();
        if took >= SLOW {
            eprintln!("slow: {name} took {:.0} s", took.as_secs_f64());
        }
        Ok(())
    })
}

/// A test that is skipped with this reason, if there is one.
#[must_use]
pub fn trial_unless(test: &Test, obstacle: Option<impl Display>) -> Trial {
    if let Some(reason) = &obstacle {
        eprintln!("skipped: {}: {reason}", test.0);
    }
    trial(test).with_ignored_flag(obstacle.is_some())
}

/// Whether `WEIR_MEASURING` leaves a test out: `only` takes those that measure the machine, `none` the others.
#[must_use]
pub fn is_left_out(is_measuring: bool) -> bool {
    match std::env::var("WEIR_MEASURING").as_deref() {
        Ok("only") => !is_measuring,
        Ok("none") => is_measuring,
        _ => false,
    }
}

/// A [`Test`](trials::Test).
#[macro_export]
macro_rules! test {
    ($test:ident) => {
        (stringify!($test), $test as fn())
    };
    ($module:ident::$test:ident) => {
        (stringify!($test), $module::$test as fn())
    };
}

/// A table of tests.
#[macro_export]
macro_rules! tests {
    ($($($test:ident)::+),* $(,)?) => {
        &[$($crate::test!($($test)::+)),*]
    };
}
