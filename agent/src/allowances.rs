//! Exemptions for a while (`agent allow`): their file in the state directory, and their effect on a config.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use api::allowance::{Allowance, LONGEST_SECONDS};
use config::policy::{Config, Prefix};
use config::{PrefixKey, prefix};
use host::{StateDirectory, StateError};

use crate::ban_owner;
use crate::ban_reason::{self, is_printable};

const NAME: &str = "allowed";
/// The largest file that is read: [`MOST`] exemptions with the longest texts.
const LARGEST: u64 = 4 << 20;
/// The end of the year 9999, after which a date has another form; in seconds since 1970.
pub const LAST_INSTANT: u64 = 253_402_300_799;
/// The most exemptions.
pub const MOST: usize = 1_000;

/// Reads the exemptions that have not ended at `now`, in seconds since 1970; with a note if the file is damaged.
pub fn read(directory: &StateDirectory, now: u64) -> (Vec<Allowance>, Option<String>) {
    match directory.read(NAME, LARGEST, parse) {
        Ok(saved) => {
            let mut allowances = saved.unwrap_or_default();
            allowances.retain(|allowance| allowance.until > now);
            (allowances, None)
        }
        Err(damaged) => {
            let note = format!("{damaged}; exemptions by agent allow are lost");
            (Vec::new(), Some(note))
        }
    }
}

fn parse(text: &[u8]) -> Result<Vec<Allowance>, String> {
    let allowances: Vec<Allowance> =
        serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let is_wrong = |allowance: &&Allowance| {
        let texts = allowance.reason.iter().chain([&allowance.owner]);
        prefix_of(allowance).is_none()
            || allowance.until > LAST_INSTANT
            || !texts.into_iter().all(|text| is_printable(text))
    };
    match allowances.iter().find(is_wrong) {
        Some(wrong) => Err(format!("invalid exemption of {:?}", wrong.cidr)),
        None => Ok(allowances),
    }
}

/// Replaces the file.
///
/// # Errors
///
/// When it cannot be written.
pub fn write(directory: &StateDirectory, allowances: &[Allowance]) -> Result<(), StateError> {
    let text = serde_json::to_vec(allowances).unwrap_or_default();
    directory.replace(NAME, &[&text])
}

/// Checks an order; returns its prefixes.
///
/// # Errors
///
/// The invalid value, and the correction.
pub fn check(
    cidrs: &[String],
    for_seconds: f64,
    reason: Option<&str>,
    owner: Option<&str>,
) -> Result<Vec<Prefix>, String> {
    let allowable = |cidr: &String| match prefix::parse(cidr) {
        Err(wrong) => Err(wrong.to_string()),
        Ok(prefix) if PrefixKey::from(&prefix).is_wide() => Err(format!(
            "{prefix} is wider than /8 (IPv6: /16): to refuse nobody, set [agent] mode = \"observe\""
        )),
        Ok(prefix) => Ok(prefix),
    };
    let prefixes = cidrs.iter().map(allowable).collect::<Result<Vec<_>, _>>()?;
    if !(for_seconds > 0.0 && for_seconds <= LONGEST_SECONDS as f64) {
        return Err("invalid time: write more than 0 s and at most 100 years, such as --for 1h; [agent] never_limit has no end".to_owned());
    }
    if let Some(Err(error)) = reason.map(ban_reason::check) {
        return Err(format!("--reason: {error}"));
    }
    match owner.map(ban_owner::check) {
        Some(Err(error)) => Err(format!("--owner: {error}")),
        _ => Ok(prefixes),
    }
}

/// The prefix of an exemption.
pub fn prefix_of(allowance: &Allowance) -> Option<Prefix> {
    prefix::parse(&allowance.cidr).ok()
}

/// The config with the prefixes added to the exempt ones.
#[must_use]
pub fn applied(mut config: Config, allowances: &[Allowance]) -> Config {
    let prefixes = allowances.iter().filter_map(prefix_of);
    config.agent.never_limit.extend(prefixes);
    config
}

/// `until 2026-03-31T18:00:00Z by root: ticket 4711`
pub fn terms(allowance: &Allowance) -> String {
    let until = UNIX_EPOCH + Duration::from_secs(allowance.until);
    let mut text = format!(
        "until {} by {}",
        humantime::format_rfc3339_seconds(until),
        allowance.owner
    );
    if let Some(reason) = &allowance.reason {
        let _ = write!(text, ": {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowance(cidr: &str, until: u64) -> Allowance {
        Allowance {
            cidr: cidr.to_owned(),
            owner: "root".to_owned(),
            reason: Some("ticket 4711".to_owned()),
            since: 0,
            until,
        }
    }

    #[test]
    fn what_has_not_ended_is_read_again_and_exempts_its_prefix() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let all = [
            allowance("192.0.2.9", 100),
            allowance("2001:db8::/48", 1_000),
        ];
        assert_eq!(read(&directory, 0), (vec![], None));
        write(&directory, &all).unwrap();
        assert_eq!(read(&directory, 99), (all.to_vec(), None));
        let (left, note) = read(&directory, 100);
        assert_eq!((&left[..], note), (&all[1..], None));
        let config = applied(Config::built_in(&[]), &left);
        let exempt = |address: &str| {
            let address = address.parse().unwrap();
            let never = &config.agent.never_limit;
            never.iter().any(|prefix| prefix.contains(address))
        };
        assert!(exempt("2001:db8::1") && !exempt("192.0.2.9"));
        assert_eq!(
            terms(&all[1]),
            "until 1970-01-01T00:16:40Z by root: ticket 4711"
        );
    }

    #[test]
    fn an_order_is_checked_with_what_to_write() {
        let wrong = |cidr: &str, time: f64, reason: Option<&str>, owner: Option<&str>| {
            check(&[cidr.to_owned()], time, reason, owner).unwrap_err()
        };
        let hour = 3_600.0;
        for (error, words) in [
            (wrong("nobody", hour, None, None), "neither an address"),
            (wrong("10.0.0.0/7", hour, None, None), "wider than /8"),
            (wrong("::/0", hour, None, None), "wider than /8"),
            (wrong("192.0.2.1", 0.0, None, None), "such as --for 1h"),
            (wrong("192.0.2.1", f64::NAN, None, None), "such as --for 1h"),
            (wrong("192.0.2.1", 1e12, None, None), "at most 100 years"),
            (wrong("192.0.2.1", hour, Some("a\nb"), None), "--reason"),
            (wrong("192.0.2.1", hour, None, Some("list:a")), "--owner"),
        ] {
            assert!(error.contains(words), "{error}");
        }
        let cidrs = ["192.0.2.1", "10.0.0.0/8"].map(str::to_owned);
        assert_eq!(check(&cidrs, hour, None, None).unwrap().len(), 2);
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_exempts_nobody() {
        for text in [
            "[",
            "[{\"cidr\":\"nobody\",\"owner\":\"\",\"since\":0,\"until\":9}]",
            "[{\"cidr\":\"::1\",\"owner\":\"\",\"since\":0,\"until\":253402300800}]",
            "[{\"cidr\":\"::1\",\"owner\":\"\\u001b\",\"since\":0,\"until\":9}]",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let directory = StateDirectory::at(folder.path());
            directory.replace(NAME, &[text.as_bytes()]).unwrap();
            let (found, note) = read(&directory, 0);
            let note = note.unwrap();
            assert!(
                found.is_empty() && note.contains("allowed.damaged"),
                "{note}"
            );
        }
    }
}
