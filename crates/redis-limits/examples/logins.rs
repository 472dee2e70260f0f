//! One exact count for all hosts: five logins a minute for each user. Requires Redis or Valkey, whose URL is the argument.
//!
//! `cargo run -p redis-limits --example logins -- redis://127.0.0.1:6379 alice`

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use redis_limits::{Counter, FixedWindow, Limit, Store};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(user)) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: logins URL USER, as redis://127.0.0.1:6379 alice");
        return ExitCode::from(2);
    };
    match login(&url, &user) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the user may log in. The attempt is charged if so.
fn login(url: &str, user: &str) -> Result<bool, Box<dyn Error>> {
    let store = Store::single(url, Duration::from_millis(500))?;
    let mut logins = FixedWindow::new(store, Limit::new("logins", 5, Duration::from_secs(60))?)?;
    // One script in the store decides and charges, so programs on other hosts cannot pass more together.
    let verdict = logins.record(user, 1)?;
    match verdict.retry_after {
        _ if verdict.allowed => println!(
            "{user} may log in; {} left in this window",
            verdict.remaining
        ),
        Some(wait) => println!("{user} has to wait {:.1} s", wait.as_secs_f64()),
        None => println!("{user} can never log in"),
    }
    Ok(verdict.allowed)
}
