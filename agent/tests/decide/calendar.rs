//! Days and months of the calendar.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use testbed::application::Agent;

const DAY: u64 = 86_400;

fn seconds() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
}

/// A zone in which it is between 12 and 13 o'clock, so that no midnight passes during the test, and how far its clocks are
/// ahead of UTC, in seconds.
fn noon_zone() -> (String, i64) {
    let hour = (seconds() / 3_600 % 24) as i64;
    // The signs of these names are those of POSIX: Etc/GMT+3 is three hours behind.
    match 12 - hour {
        0 => ("Etc/GMT".to_owned(), 0),
        ahead @ 1.. => (format!("Etc/GMT-{ahead}"), ahead * 3_600),
        behind => (format!("Etc/GMT+{}", -behind), behind * 3_600),
    }
}

fn limit(rate: &str, zone: &str) -> String {
    format!(
        "[[limit]]\nname = \"daily\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"{rate}\"\ntime_zone = \"{zone}\"\n"
    )
}

fn ask(cost: i64) -> Value {
    json!({"limit": "daily", "key": {"user": "alice"}, "cost": cost})
}

#[test]
fn a_day_of_the_calendar_resets_at_local_midnight_and_survives_a_restart() {
    let (zone, ahead) = noon_zone();
    let mut agent = Agent::start_with("http = \"127.0.0.1:0\"", &limit("10/calendar-day", &zone));
    let to_midnight = || DAY - (seconds() as i64 + ahead).rem_euclid(DAY as i64) as u64;
    let (status, head, answer) = agent.post(&ask(7).to_string());
    assert_eq!((status, &answer["remaining"]), (200, &json!(3)));
    assert!(
        head.contains("\r\nratelimit-policy: \"daily\";q=10\r\n"),
        "{head}"
    );
    let before = to_midnight();
    let (status, head, refused) = agent.post(&ask(4).to_string());
    let after = to_midnight();
    assert_eq!((status, &refused["remaining"]), (429, &json!(3)));
    let wait = refused["retry_after_seconds"].as_f64().unwrap();
    assert!(
        (after as f64 - 1.0..=before as f64).contains(&wait),
        "{wait} s of {after} to {before}"
    );
    assert_eq!(
        refused["reset_after_seconds"],
        refused["retry_after_seconds"]
    );
    assert!(
        head.contains(&format!("\r\nretry-after: {}\r\n", wait.ceil())),
        "{head}"
    );
    assert!(
        head.contains(&format!("ratelimit: \"daily\";r=3;t={}\r\n", wait.ceil())),
        "{head}"
    );
    let limits = agent.json(&["limits"]);
    assert_eq!(
        (&limits[0]["rate"], &limits[0]["time_zone"]),
        (&json!("10/calendar-day"), &json!(zone))
    );
    agent.restart();
    assert_eq!(agent.post(&ask(0).to_string()).2["remaining"], 3);
    // Another time zone with the same date.
    let file = agent.folder.path().join("limits.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("10/calendar-day", "20/calendar-day");
    std::fs::write(&file, text).unwrap();
    assert!(agent.command(&["reload"]).status.success());
    assert_eq!(agent.post(&ask(0).to_string()).2["remaining"], 13);
}

#[test]
fn a_host_without_time_zones_checks_utc_and_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let check = |zone: &str| {
        std::fs::write(&file, limit("10/calendar-month", zone)).unwrap();
        Command::new(env!("CARGO_BIN_EXE_agent"))
            .args(["check", file.to_str().unwrap()])
            .env("TZDIR", folder.path())
            .output()
            .unwrap()
    };
    let valid = check("UTC");
    assert!(valid.status.success(), "{valid:?}");
    let missing = check("Europe/Berlin");
    let error = String::from_utf8(missing.stderr).unwrap();
    assert!(!missing.status.success());
    assert!(
        error.contains("time zone \"Europe/Berlin\" not found")
            && error.contains("apt install tzdata"),
        "{error}"
    );
}
