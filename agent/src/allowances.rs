//! Exemptions and raised limits for a while (`agent allow`): their file in the state directory, and their effect on a config.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use api::allowance::{Allowance, LONGEST_SECONDS, MOST_TIMES};
use config::policy::{ClusterMode, Config, Multiplier, Prefix};
use config::{PrefixKey, prefix};
use datapath::compile;
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
            || allowance.times.is_some_and(|times| factor(times).is_none())
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
    times: Option<f64>,
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
    if let Some(times) = times.filter(|times| factor(*times).is_none()) {
        return Err(format!(
            "invalid --times {times}: write a number above 1 and up to {MOST_TIMES}, such as --times 5"
        ));
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

/// The factor that `--times` names.
fn factor(times: f64) -> Option<Multiplier> {
    Multiplier::new(times).filter(|factor| factor.factor() > 1.0)
}

/// The config with the prefixes added to those that are exempt, or have more than the limits say.
#[must_use]
pub fn applied(mut config: Config, allowances: &[Allowance]) -> Config {
    for allowance in allowances {
        let Some(prefix) = prefix_of(allowance) else {
            continue;
        };
        match allowance.times {
            None => config.agent.never_limit.push(prefix),
            Some(times) => {
                let factor = factor(times).map(|factor| (prefix, factor));
                config.agent.multiplied.extend(factor);
            }
        }
    }
    config
}

/// The same at a start, which raised limits that a changed config cannot have do not keep from enforcing it: they are removed
/// from `allowances`, with a note.
#[must_use]
pub fn applied_at_start(
    config: Config,
    allowances: &mut Vec<Allowance>,
) -> (Config, Option<String>) {
    if allowances.iter().all(|allowance| allowance.times.is_none()) {
        return (applied(config, allowances), None);
    }
    let raised = applied(config.clone(), allowances);
    let error = match (compile::plan(&raised), decide::memory(&raised)) {
        (Err(error), _) => error.to_string(),
        (_, Err((limit, error))) => format!("limit {limit:?}: {error}"),
        (Ok(_), Ok(_)) => return (raised, None),
    };
    allowances.retain(|allowance| allowance.times.is_none());
    let note = format!("limits are not raised by agent allow --times any more: {error}");
    (applied(config, allowances), Some(note))
}

/// Why limits cannot be raised under a config.
pub fn obstacle(config: &Config) -> Option<String> {
    let is_exchanged = |limit: &&config::policy::Limit| limit.cluster == Some(ClusterMode::Keys);
    let limit = config.limits.iter().find(is_exchanged)?;
    Some(format!(
        "--times is not supported with cluster = \"keys\" on packets, which limit {:?} has: leave out --times to exempt the \
         prefix",
        limit.name
    ))
}

/// `5 times the limits`, or `exempt`.
pub fn effect(times: Option<f64>) -> String {
    times.map_or_else(
        || "exempt".to_owned(),
        |times| format!("{times} times the limits"),
    )
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
            times: None,
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
            check(&[cidr.to_owned()], time, None, reason, owner).unwrap_err()
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
        assert_eq!(check(&cidrs, hour, None, None, None).unwrap().len(), 2);
        for times in [f64::NAN, -5.0, 0.0, 1.0, 2e6] {
            let error = check(&cidrs, hour, Some(times), None, None).unwrap_err();
            assert!(error.contains("such as --times 5"), "{error}");
        }
        assert_eq!(check(&cidrs, hour, Some(2.5), None, None).unwrap().len(), 2);
    }

    #[test]
    fn raised_limits_multiply_those_of_the_longest_class_around_a_prefix() {
        let text = "[[class]]\nname = \"a\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 3\n\
                    [[class]]\nname = \"b\"\nsources = [\"192.0.2.128/25\"]\nunlimited = true\n\
                    [agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nrate = \"5/s\"\n";
        let loaded = config::parse("limits.toml".as_ref(), text).unwrap();
        let raised = |cidr: &str, times: f64| Allowance {
            times: Some(times),
            ..allowance(cidr, 100)
        };
        let all = [
            raised("192.0.2.0/23", 2.0),
            raised("192.0.2.9", 5.0),
            raised("192.0.2.200", 5.0),
            raised("198.51.100.1", 2.5),
        ];
        let config = applied(loaded.config, &all);
        let services: Vec<(String, u32, Option<f64>)> = config
            .services()
            .iter()
            .map(|of| {
                let factor = match of.service {
                    config::policy::Service::Multiplier(factor) => Some(factor.factor()),
                    config::policy::Service::Unlimited => None,
                };
                (of.prefix.short(), of.class, factor)
            })
            .collect();
        let expected = [
            ("192.0.2.0/23", 0, Some(2.0)),
            ("192.0.2.0/24", 1, Some(6.0)),
            ("192.0.2.9", 1, Some(15.0)),
            ("192.0.2.128/25", 2, None),
            ("192.0.2.200", 2, None),
            ("198.51.100.1", 0, Some(2.5)),
        ];
        assert_eq!(
            services,
            expected.map(|(prefix, class, factor)| (prefix.to_owned(), class, factor))
        );
        let factors: Vec<f64> = config.multipliers().iter().map(|of| of.factor()).collect();
        assert_eq!(factors, [1.0, 3.0, 2.0, 6.0, 15.0, 2.5]);
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
