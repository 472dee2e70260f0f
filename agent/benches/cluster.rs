//! How near to their limit many hosts stay together: 2, 4 and 8 agents on a real store, half a minute each; and
//! what passes of windows that four agents keep together.
//!
//! Prints two tables in Markdown. `cargo xtask accuracy` puts them into docs/CLUSTER.md.

use std::time::Duration;

use testbed::fleet::{Kept, Spread, measure, windows};
use testbed::redis;

/// Windows are so long.
const WINDOW: Duration = Duration::from_secs(10);

fn main() {
    if let Some(obstacle) = redis::obstacle() {
        eprintln!("{obstacle}");
        std::process::exit(1);
    }
    let seconds = std::env::var("WEIR_ACCURACY_SECONDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(30);
    let redis = redis::Redis::start(&[]);
    println!("| kept by | hosts | demand | seconds | asked | passed | limit | error |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut is_off = false;
    let shares = [2, 4, 8]
        .into_iter()
        .flat_map(|hosts| Spread::ALL.map(|spread| (Kept::Shares, hosts, spread)))
        .chain([(Kept::Shares, 4, Spread::Hopping)]);
    let keys = Spread::ALL
        .into_iter()
        .chain([Spread::One, Spread::Hopping])
        .map(|spread| (Kept::Keys, 4, spread));
    for (kept, hosts, spread) in shares.chain(keys) {
        let outcome = measure(
            &redis.url(),
            hosts,
            kept,
            spread,
            Duration::from_secs(seconds),
        );
        let error = 100.0 * outcome.error();
        println!(
            "| {kept} | {hosts} | {spread} | {:.1} | {} | {} | {:.0} | {error:+.1} % |",
            outcome.seconds, outcome.wanted, outcome.passed, outcome.limit
        );
        // Demand that moves within a sync gets less: the row shows how much.
        is_off |= error > 10.0 || error < -10.0 && spread != Spread::Hopping;
    }
    println!();
    println!(
        "| algorithm | demand | seconds | asked | passed | most in a window | least in a whole one | of |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for spread in Spread::ALL.into_iter().chain([Spread::One]) {
        for outcome in windows::measure(
            &redis.url(),
            4,
            spread,
            WINDOW,
            Duration::from_secs(seconds),
        ) {
            let windows::Outcome {
                algorithm,
                seconds,
                wanted,
                passed,
                most,
                least,
                ..
            } = outcome;
            let least = least.map_or_else(|| "-".to_owned(), |least| least.to_string());
            println!(
                "| {algorithm} | {spread} | {seconds:.1} | {wanted} | {passed} | {most} | {least} | {} |",
                windows::COUNT
            );
            is_off |= most > windows::COUNT * 11 / 10;
        }
    }
    // Leaving by `exit` drops nothing.
    drop(redis);
    if is_off {
        eprintln!("a fleet was more than 10 % off its limit, or above 110 % of a window");
        std::process::exit(1);
    }
}
