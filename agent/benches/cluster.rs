//! How near to their limit many hosts stay together: 2, 4 and 8 agents on a real store, half a minute each; and
//! what passes of windows that four agents keep together.
//!
//! Prints two tables in Markdown. `cargo xtask accuracy` puts them into docs/CLUSTER.md.

use std::time::Duration;

use testbed::fleet::zones::Zones;
use testbed::fleet::{Kept, Outcome, Spread, drive, measure, windows};
use testbed::redis;

/// Windows are so long.
const WINDOW: Duration = Duration::from_secs(10);
/// The default.
const SYNC: &str = "100ms";
/// The row of two zones of two hosts.
const ZONES: &str = "shares, two zones";
/// One way from each zone to the store of all.
const FAR: Duration = Duration::from_millis(150);

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
    println!("| kept by | hosts | sync | demand | seconds | asked | passed | limit | error |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let time = Duration::from_secs(seconds);
    let mut is_off = false;
    let mut row = |kept: &str, sync: &str, spread: Spread, hosts: usize, outcome: &Outcome| {
        let error = 100.0 * outcome.error();
        println!(
            "| {kept} | {hosts} | {sync} | {spread} | {:.1} | {} | {} | {:.0} | {error:+.1} % |",
            outcome.seconds, outcome.wanted, outcome.passed, outcome.limit
        );
        // Demand that moves faster than shares do gets less: the row shows how much.
        let may_be_less = spread == Spread::Hopping || kept == ZONES && spread == Spread::Moving;
        is_off |= error > 10.0 || error < -10.0 && !may_be_less;
    };
    let even_and_uneven =
        |kept: Kept, hosts: usize| Spread::ALL.map(|spread| (kept, hosts, SYNC, spread));
    let mut cases = [2, 4, 8]
        .map(|hosts| even_and_uneven(Kept::Shares, hosts))
        .concat();
    cases.extend(even_and_uneven(Kept::Keys, 4));
    cases.push((Kept::Keys, 4, SYNC, Spread::One));
    for kept in [Kept::Shares, Kept::Keys] {
        cases.extend([SYNC, "20ms", "10ms"].map(|sync| (kept, 4, sync, Spread::Hopping)));
    }
    for (kept, hosts, sync, spread) in cases {
        let outcome = measure(&redis.url(), (hosts, sync), kept, spread, time);
        row(&kept.to_string(), sync, spread, hosts, &outcome);
    }
    for spread in Spread::ALL {
        let zones = Zones::start(2, 2, FAR, "");
        zones.divided();
        let outcome = drive(&zones.hosts, spread, 2.5, time);
        row(ZONES, "100ms, 500ms", spread, 4, &outcome);
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
