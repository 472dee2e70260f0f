//! Two rates on one key, in a program without an agent: at most three requests at once, and ten a minute.
//!
//! `cargo run -p common --example tiers`

use std::thread::sleep;
use std::time::{Duration, Instant};

use common::limiter::Rate;
use common::rate_limiter::{Limiter, Policy, PolicyError, RateLimiter, Tiers};

fn main() -> Result<(), PolicyError> {
    let started = Instant::now();
    // Any function that returns nanoseconds of a monotonic clock.
    let clock = || started.elapsed().as_nanos() as u64;

    let mut burst = Limiter::<_, 1>::new(Policy::token_bucket(Rate::per_second(10), 3), clock)?;
    let a_minute = Rate {
        count: 10,
        per_nanoseconds: 60_000_000_000,
    };
    let mut quota = Limiter::<_, 2>::new(Policy::sliding_window(a_minute)?, clock)?;
    let mut both = Tiers::<&mut dyn RateLimiter, 2>([&mut burst, &mut quota]);

    // A request is charged to both limits, or to neither.
    for number in 1.. {
        let outcome = both.decide(1);
        match outcome.retry_after {
            _ if outcome.allowed => println!(
                "request {number}: allowed, {} more would be",
                outcome.remaining
            ),
            Some(wait) if wait < Duration::from_secs(1) => {
                println!("request {number}: wait {} ms", wait.as_millis() + 1);
                sleep(wait);
            }
            Some(wait) => {
                println!(
                    "request {number}: the minute's ten are used up, retry in {} s",
                    wait.as_secs() + 1
                );
                break;
            }
            None => println!("request {number}: can never pass"),
        }
    }
    Ok(())
}
