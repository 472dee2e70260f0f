//! How near to their limit many hosts stay together: 2, 4 and 8 agents on a real store, half a minute each.
//!
//! Prints a table in Markdown. `cargo xtask accuracy` puts it into docs/CLUSTER.md.

#[path = "../tests/fleet/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod fleet;
#[path = "../tests/redis/mod.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod redis;

use std::time::Duration;

use fleet::{Spread, measure};

fn main() {
    if let Some(obstacle) = redis::obstacle() {
        eprintln!("{obstacle}");
        std::process::exit(1);
    }
    let seconds = std::env::var("WEIR_ACCURACY_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(30);
    let redis = redis::Redis::start(&[]);
    println!("| hosts | demand | seconds | asked | passed | limit | error |");
    println!("|---|---|---|---|---|---|---|");
    let mut is_off = false;
    for hosts in [2, 4, 8] {
        for spread in Spread::ALL {
            let outcome = measure(&redis.url(), hosts, spread, Duration::from_secs(seconds));
            let error = 100.0 * outcome.error();
            println!(
                "| {hosts} | {spread} | {:.1} | {} | {} | {:.0} | {error:+.1} % |",
                outcome.seconds, outcome.wanted, outcome.passed, outcome.limit
            );
            is_off |= error.abs() > 10.0;
        }
    }
    // Leaving by `exit` drops nothing.
    drop(redis);
    if is_off {
        eprintln!("a fleet was more than 10 % off its limit");
        std::process::exit(1);
    }
}
