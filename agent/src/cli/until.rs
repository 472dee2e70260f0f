//! Instants on the command line: `--until`.

use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

/// The forms of a local time.
const LOCAL: [&str; 2] = ["%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S"];

/// Parses an instant in the future.
pub fn parse(text: &str) -> Result<SystemTime, String> {
    parse_at(text, &TimeZone::system(), SystemTime::now())
}

/// The time from now to an instant, which may have passed since it was parsed.
#[must_use]
pub fn left(until: SystemTime) -> Duration {
    let left = until.duration_since(SystemTime::now());
    left.unwrap_or_default()
}

fn parse_at(text: &str, zone: &TimeZone, now: SystemTime) -> Result<SystemTime, String> {
    let local = LOCAL
        .iter()
        .find_map(|form| DateTime::strptime(form, text).ok());
    let until = match local {
        Some(local) => local.to_zoned(zone.clone()).map(|zoned| zoned.timestamp()),
        None => text.parse::<Timestamp>(),
    };
    let until = until.map_err(|_| {
        "write a time such as 2026-03-31T18:00:00Z, or \"2026-03-31 18:00\" in this host's time zone"
            .to_owned()
    })?;
    let instant = SystemTime::from(until);
    if instant <= now {
        let now = Timestamp::try_from(now).map(|now| now.to_zoned(zone.clone()));
        let now = now.as_ref().map(Zoned::datetime).unwrap_or_default();
        return Err(format!(
            "it is past, since it is {} now: write a later time, or --for 10m",
            now.strftime("%Y-%m-%d %H:%M:%S")
        ));
    }
    Ok(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-28 12:00 in Berlin, a day before its clocks go forward.
    const NOW: u64 = 1_774_695_600;

    fn seconds(text: &str) -> Result<u64, String> {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW);
        let until = parse_at(text, &zone, now)?;
        Ok(until.duration_since(now).unwrap().as_secs())
    }

    #[test]
    fn an_instant_is_universal_or_of_the_hosts_time_zone() {
        for (text, left) in [
            ("2026-03-28T11:00:01Z", 1),
            ("2026-03-28T12:10:00+01:00", 600),
            ("2026-03-28t11:00:30.5z", 30),
            ("2026-03-28 12:10", 600),
            ("2026-03-28 12:00:07", 7),
            // Summer time has begun.
            ("2026-03-29 12:00", 23 * 3_600),
            ("2026-03-29T12:00:00Z", 25 * 3_600),
        ] {
            assert_eq!(seconds(text), Ok(left), "{text}");
        }
    }

    #[test]
    fn a_past_or_invalid_instant_is_refused_with_what_to_write() {
        for text in [
            "2026-03-28 12:00",
            "2026-03-28T11:00:00Z",
            "1999-01-01 00:00",
        ] {
            let error = seconds(text).unwrap_err();
            assert!(
                error.contains("it is 2026-03-28 12:00:00 now"),
                "{text}: {error}"
            );
        }
        for text in [
            "",
            "tomorrow",
            "10m",
            "2026-03-31",
            "18:00",
            "2026-02-30 10:00",
            "2026-03-31 25:00",
            "2026-03-31T18:00:00",
        ] {
            let error = seconds(text).unwrap_err();
            assert!(error.contains("2026-03-31T18:00:00Z"), "{text}: {error}");
        }
    }
}
