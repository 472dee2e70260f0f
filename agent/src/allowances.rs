//! Exemptions and raised limits for a while (`weir allow`): their file in the state directory, and their effect on a config.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use api::allowance::{Allowance, LONGEST_SECONDS, MOST_TIMES};
use api::event::seconds_since_1970;
use config::policy::{ClusterMode, Config, Multiplier, Prefix, Service};
use config::{PrefixKey, prefix};
use datapath::compile;
use host::PROGRAM;
use host::{StateDirectory, StateError};

use crate::ban_owner;
use crate::ban_reason::{self, is_printable};

const EXEMPT: &str = "allowed";
/// Raised limits have a file of their own: versions without them would read them as exemptions.
const RAISED: &str = "raised";
/// The largest file that is read: [`MOST`] exemptions with the longest texts.
const LARGEST: u64 = 4 << 20;
/// The end of the year 9999, after which a date has another form; in seconds since 1970.
pub const LAST_INSTANT: u64 = 253_402_300_799;
/// The most exemptions.
pub const MOST: usize = 1_000;

/// Reads what has not ended at `now`, in seconds since 1970; with notes on damaged files.
pub fn read(directory: &StateDirectory, now: u64) -> (Vec<Allowance>, Vec<String>) {
    let (mut allowances, mut notes) = (Vec::new(), Vec::new());
    for name in [EXEMPT, RAISED] {
        match directory.read(name, LARGEST, parse) {
            Ok(saved) => allowances.extend(saved.unwrap_or_default()),
            Err(damaged) => {
                notes.push(format!("{damaged}; exemptions by {PROGRAM} allow are lost"));
            }
        }
    }
    allowances.retain(|allowance| allowance.until > now);
    (allowances, notes)
}

/// Whether the saved orders raise limits of a config.
#[must_use]
pub fn are_limits_raised(config: &Config) -> bool {
    let directory = StateDirectory::at(&config.agent.state_dir);
    let (allowances, _) = read(&directory, seconds_since_1970() as u64);
    allowances.iter().any(|allowance| allowance.times.is_some())
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

/// Replaces the files.
///
/// # Errors
///
/// When one cannot be written.
pub fn write(directory: &StateDirectory, allowances: &[Allowance]) -> Result<(), StateError> {
    let write = |name, is_raised: bool| {
        let of_file = |one: &&Allowance| one.times.is_some() == is_raised;
        let some: Vec<&Allowance> = allowances.iter().filter(of_file).collect();
        let text = serde_json::to_vec(&some).unwrap_or_default();
        directory.replace(name, &[&text])
    };
    write(EXEMPT, false)?;
    write(RAISED, true)
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

/// The same, but limits are not raised where the config cannot have that, so that they keep no config from taking effect: they
/// are removed from `allowances`, with a note.
#[must_use]
pub fn applied_where_possible(
    config: Config,
    allowances: &mut Vec<Allowance>,
) -> (Config, Option<String>) {
    let raised = applied(config.clone(), allowances);
    let Err(error) = check_raised(&raised) else {
        return (raised, None);
    };
    allowances.retain(|allowance| allowance.times.is_none());
    let note = format!("{PROGRAM} allow --times raises no limits any more: {error}");
    (applied(config, allowances), Some(note))
}

/// Checks whether limits can be raised as a config says. Returns a note if some are not raised as far.
///
/// # Errors
///
/// Why not.
pub fn check_raised(raised: &Config) -> Result<Option<String>, String> {
    if raised.agent.multiplied.is_empty() {
        return Ok(None);
    }
    let is_exchanged = |limit: &&config::policy::Limit| limit.cluster == Some(ClusterMode::Keys);
    if let Some(limit) = raised.limits.iter().find(is_exchanged) {
        return Err(format!(
            "--times is not supported with cluster = \"keys\" on packets, which limit {:?} has: leave out --times to exempt the \
             prefix",
            limit.name
        ));
    }
    if let Some(limit) = raised.limits.iter().find(|limit| limit.is_fair()) {
        return Err(format!(
            "--times is not supported with rate = \"fair\", which limit {:?} has: leave out --times to exempt the prefix",
            limit.name
        ));
    }
    match (compile::plan(raised), decide::memory(raised)) {
        (Err(error), _) => Err(format!("{error}; write a smaller --times")),
        (_, Err((limit, error))) => Err(format!(
            "limit {limit:?} cannot be raised: {error}; write a smaller --times"
        )),
        (Ok(plan), Ok(_)) => Ok(plan.note_on_logs(raised)),
    }
}

/// Why some of these raise nothing.
pub fn without_effect(raised: &Config, new: &[Allowance]) -> Vec<String> {
    let services = raised.services();
    let note = |allowance: &Allowance| {
        allowance.times?;
        let prefix = prefix_of(allowance)?;
        let key = PrefixKey::from(&prefix);
        let is_within = |wide: &&Prefix| {
            let wide = PrefixKey::from(*wide);
            wide.length <= key.length && key.cut(wide.length) == wide
        };
        if let Some(wide) = raised.agent.never_limit.iter().find(is_within) {
            return Some(format!("{}: never_limit has {wide}", allowance.cidr));
        }
        let own = services.iter().find(|service| service.prefix == prefix)?;
        (own.service == Service::Unlimited)
            .then(|| format!("{}: its class is unlimited", allowance.cidr))
    };
    new.iter().filter_map(note).collect()
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
        assert_eq!(read(&directory, 0), (vec![], vec![]));
        write(&directory, &all).unwrap();
        assert_eq!(read(&directory, 99), (all.to_vec(), vec![]));
        let (left, note) = read(&directory, 100);
        assert_eq!((&left[..], note), (&all[1..], vec![]));
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
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let exempt = allowance("192.0.2.7", 100);
        let both = [&all[..], std::slice::from_ref(&exempt)].concat();
        write(&directory, &both).unwrap();
        // Versions without raised limits read this file alone.
        let before = directory.read(EXEMPT, LARGEST, parse).ok().flatten();
        assert_eq!(before, Some(vec![exempt]));
        assert_eq!(read(&directory, 0).0.len(), 5);
        let config = applied(loaded.config, &all);
        assert_eq!(check_raised(&config), Ok(None));
        assert_eq!(
            without_effect(&config, &all),
            ["192.0.2.200: its class is unlimited"]
        );
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
    fn limits_are_not_raised_beside_a_fair_one() {
        let text = "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nrate = \"fair\"\n";
        let config = config::parse("limits.toml".as_ref(), text).unwrap().config;
        let exempt = allowance("192.0.2.7", 100);
        let raised = Allowance {
            times: Some(5.0),
            ..allowance("192.0.2.9", 100)
        };
        let both = applied(config.clone(), &[exempt.clone(), raised.clone()]);
        let error = check_raised(&both).unwrap_err();
        assert!(
            error.contains("rate = \"fair\", which limit \"web\" has: leave out --times"),
            "{error}"
        );
        assert_eq!(
            check_raised(&applied(config.clone(), std::slice::from_ref(&exempt))),
            Ok(None)
        );
        let mut all = vec![exempt.clone(), raised];
        let (possible, note) = applied_where_possible(config, &mut all);
        assert!(possible.agent.multiplied.is_empty() && all == [exempt]);
        assert!(note.unwrap().contains("raises no limits any more"));
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
            directory.replace(EXEMPT, &[text.as_bytes()]).unwrap();
            let (found, note) = read(&directory, 0);
            assert!(
                found.is_empty() && note[0].contains("allowed.damaged"),
                "{note:?}"
            );
        }
    }
}
