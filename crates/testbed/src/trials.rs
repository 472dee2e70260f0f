//! Tests under the names of their functions, for test programs with a harness of their own.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};

/// Whether `cargo xtask test --long` runs the tests: those with random numbers or instants then run more rounds.
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("WEIR_LONG").is_some()
}

/// Whether only what differs most between machines is tested: set by `cargo xtask vm --quick`.
#[must_use]
pub fn is_quick() -> bool {
    std::env::var_os("WEIR_QUICK").is_some()
}

/// A test and the name of its function.
pub type Test = (&'static str, fn());

/// From here on, a test's time is printed: the slow ones are those that make the suite slow.
const SLOW: Duration = Duration::from_secs(5);

/// A test for libtest-mimic, which fails if its function panics.
#[must_use]
pub fn trial(&(name, test): &Test) -> Trial {
    Trial::test(name, move || {
        timed(name, test);
        Ok(())
    })
}

/// Runs a test, and says how long it took if that is long.
pub fn timed(name: &str, test: fn()) {
    let start = Instant::now();
    test();
    let took = start.elapsed();
    if took >= SLOW {
        eprintln!("slow: {name} took {:.0} s", took.as_secs_f64());
    }
}

/// A test that is skipped with this reason, if there is one.
#[must_use]
pub fn trial_unless(test: &Test, obstacle: Option<impl Display>) -> Trial {
    if let Some(reason) = &obstacle {
        eprintln!("skipped: {}: {reason}", test.0);
    }
    trial(test).with_ignored_flag(obstacle.is_some())
}

/// The seed of a random order, by the name that Rust's own harness has for it: `cargo xtask test --shuffle` sets it.
const SEED: &str = "RUST_TEST_SHUFFLE_SEED";

/// Runs tests as the arguments say, in random order if there is a seed, and ends the program.
pub fn run(arguments: &Arguments, mut trials: Vec<Trial>) -> ! {
    if let Ok(seed) = std::env::var(SEED) {
        let seed = seed
            .parse()
            .unwrap_or_else(|error| panic!("invalid {SEED} `{seed}`: {error}"));
        trials.sort_by_cached_key(|trial| place(seed, trial.name()));
    }
    libtest_mimic::run(arguments, trials).exit()
}

/// Where a test has its place in the order of a seed.
fn place(seed: u64, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (seed, name).hash(&mut hasher);
    hasher.finish()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_order_and_another_seed_another() {
        let order = |seed| {
            let mut names: Vec<String> = (0..100).map(|nth| format!("test_{nth}")).collect();
            names.sort_by_cached_key(|name| place(seed, name));
            names
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }
}
