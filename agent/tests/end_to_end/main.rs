//! Real packets over veth, the agent's own binary: what an operator would see.

mod actions;
mod bans;
mod flood;
mod hooks;
mod keys;
mod life;
mod limits;
mod support;
mod traffic;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = support::obstacle();
    if let Some(reason) = obstacle {
        eprintln!("skipped: {reason}");
    }
    let rooms = [limits::TESTS, keys::TESTS, hooks::TESTS, actions::TESTS, bans::TESTS, flood::TESTS, life::TESTS];
    let trials = rooms
        .into_iter()
        .flatten()
        .map(|(name, test)| {
            Trial::test(*name, move || {
                test();
                Ok(())
            })
            .with_ignored_flag(obstacle.is_some())
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
