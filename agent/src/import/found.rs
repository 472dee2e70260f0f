//! The limits, bans and exempt prefixes of an import, and the rest with its reasons.

use std::collections::{BTreeMap, BTreeSet};

use config::PrefixKey;
use config::policy::Prefix;
use host::PROGRAM;
use ipnet::IpNet;

use super::prefixes::{is_narrow, short};
use super::rule::{Conditions, Limit, Ruleset, Set, Sources};

/// The most exempt prefixes, and the most sources of a limit: they are in the config itself.
const MOST_INLINE: usize = 1_000;
/// The most rules that are named, for each reason why they are not carried over; the most reasons.
const NAMED: usize = 50;
const MOST_REASONS: usize = 200;
/// The most rules that a list is named after.
const MOST_ORIGINS: usize = 5;
/// The most limits, those that are comments included.
pub const MOST_LIMITS: usize = 200;
const FURTHER_REASONS: &str = "other reasons";
/// Parts of the names of sets that are usually accepted, not refused.
const TRUSTED: [&str; 9] = [
    "white", "allow", "trust", "permit", "accept", "safe", "ignore", "exempt", "good",
];

/// The findings of an import.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub limits: Vec<FoundLimit>,
    /// By name, and why the list would refuse more than its rules.
    pub bans: BTreeMap<(String, Option<String>), FoundBans>,
    pub exempt: BTreeSet<IpNet>,
    /// Where exempt prefixes come from.
    pub exempt_origins: Vec<String>,
    /// Those that are not named.
    pub exempt_further: u64,
    /// Rules by the reason why they are not carried over.
    pub left_out: BTreeMap<String, LeftOut>,
    /// Further comments, each with lines of a config that would refuse more than the rule.
    pub offers: Vec<(String, String)>,
    /// Prefixes of all ban lists.
    banned: usize,
    /// Keys of sets that rules name.
    used: BTreeSet<String>,
}

/// A limit, with what may differ.
#[derive(Clone, Debug)]
pub struct FoundLimit {
    pub origin: String,
    pub limit: Limit,
    pub conditions: Conditions,
    pub sources: Option<Vec<IpNet>>,
    pub action: Action,
    /// Whether it is about TCP's SYNs.
    pub is_syn: bool,
    pub notes: Vec<String>,
    /// Why Weir would refuse more than the rule.
    pub more: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Drop,
    Reject,
    Mark(u32),
}

/// Prefixes of one ban list.
#[derive(Clone, Debug, Default)]
pub struct FoundBans {
    pub origins: Vec<String>,
    /// Origins that are not named.
    pub further: u64,
    pub prefixes: Vec<IpNet>,
    pub notes: BTreeSet<String>,
}

/// Rules that are not carried over for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    pub count: u64,
    /// The first of them.
    pub rules: Vec<String>,
}

impl Found {
    pub fn leave_out(&mut self, why: &str, origin: &str) {
        let is_known = self.left_out.len() < MOST_REASONS || self.left_out.contains_key(why);
        let why = if is_known { why } else { FURTHER_REASONS };
        let left_out = self.left_out.entry(why.to_owned()).or_default();
        left_out.count += 1;
        if left_out.rules.len() < NAMED {
            left_out.rules.push(origin.to_owned());
        }
    }

    /// Adds sources that a rule refuses to the ban list of their set, or of the rule's chain; `false` if some are left out.
    pub fn ban(
        &mut self,
        ruleset: &Ruleset,
        chain: &str,
        sources: &Sources,
        origin: &str,
        more: Option<String>,
    ) -> bool {
        let before = self
            .left_out
            .values()
            .map(|left_out| left_out.count)
            .sum::<u64>();
        match sources {
            Sources::Prefixes(prefixes) => self.ban_prefixes(chain, prefixes, origin, more),
            Sources::Set(key) => match self.usable(ruleset, key) {
                Ok(set) => self.ban_set(set, origin, more),
                Err(why) => self.leave_out(&why, origin),
            },
        }
        before
            == self
                .left_out
                .values()
                .map(|left_out| left_out.count)
                .sum::<u64>()
    }

    /// Adds all of a set to its ban list.
    pub fn ban_set(&mut self, set: &Set, origin: &str, more: Option<String>) {
        if !set.temporary.is_empty() {
            let (count, first) = (set.temporary.len(), short(&set.temporary[0]));
            let why = format!(
                "a list has no elements that expire, such as {first}: {PROGRAM} ban {first} --for TIME, with the time that is left"
            );
            self.leave_out(
                &why,
                &format!("{} of {}", elements(count as u64), set.origin),
            );
        }
        if set.invalid > 0 {
            self.leave_out(
                "they are not addresses",
                &format!("{} of {}", elements(set.invalid), set.origin),
            );
        }
        if set.prefixes.is_empty() {
            if set.temporary.is_empty() {
                self.leave_out(
                    "the set is empty, or its elements are added as packets arrive",
                    origin,
                );
            }
            return;
        }
        let name = (set.name.clone(), more.clone());
        self.ban_prefixes(
            &set.name,
            &matched(&set.prefixes, &set.exceptions),
            origin,
            more,
        );
        if let (false, Some(bans)) = (set.exceptions.is_empty(), self.bans.get_mut(&name)) {
            bans.notes
                .insert("Without the exceptions (nomatch) of the set.".to_owned());
        }
    }

    pub fn ban_prefixes(
        &mut self,
        name: &str,
        prefixes: &[IpNet],
        origin: &str,
        more: Option<String>,
    ) {
        let wide: Vec<&IpNet> = prefixes
            .iter()
            .filter(|prefix| !is_narrow(prefix))
            .collect();
        if let Some(first) = wide.first() {
            let why = format!(
                "a list has no prefixes wider than /8 (IPv6: /16), such as {first}: {PROGRAM} ban --force {first}"
            );
            self.leave_out(&why, origin);
        }
        let narrow = prefixes.iter().filter(|prefix| is_narrow(prefix));
        if wide.len() == prefixes.len() {
            return;
        }
        self.banned += prefixes.len();
        if self.banned > lists::MOST_PREFIXES {
            self.banned -= prefixes.len();
            return self.leave_out(
                &format!("ban lists have at most {} prefixes", lists::MOST_PREFIXES),
                origin,
            );
        }
        let bans = self.bans.entry((name.to_owned(), more)).or_default();
        bans.prefixes.extend(narrow);
        if bans.origins.len() < MOST_ORIGINS {
            bans.origins.push(origin.to_owned());
        } else {
            bans.further += 1;
        }
    }

    /// Exempts sources; `false` if they are too many, or unknown.
    pub fn exempt(&mut self, ruleset: &Ruleset, sources: &Sources, origin: &str) -> bool {
        let prefixes: Vec<IpNet> = match sources {
            Sources::Prefixes(prefixes) => prefixes.to_vec(),
            Sources::Set(key) => match self.usable(ruleset, key) {
                Ok(set) if set.invalid == 0 => {
                    let all: Vec<IpNet> =
                        set.prefixes.iter().chain(&set.temporary).copied().collect();
                    matched(&all, &set.exceptions)
                }
                _ => return false,
            },
        };
        if prefixes.len() + self.exempt.len() > MOST_INLINE {
            return false;
        }
        self.exempt.extend(prefixes);
        self.exempt_origin(origin.to_owned());
        true
    }

    fn exempt_origin(&mut self, origin: String) {
        if self.exempt_origins.len() < MOST_ORIGINS {
            self.exempt_origins.push(origin);
        } else {
            self.exempt_further += 1;
        }
    }

    /// The prefixes that a limit applies to.
    pub fn inline(&mut self, ruleset: &Ruleset, sources: &Sources) -> Result<Vec<IpNet>, String> {
        let (prefixes, has_exceptions) = match sources {
            Sources::Prefixes(prefixes) => (&prefixes[..], false),
            Sources::Set(key) => {
                let set = self.usable(ruleset, key)?;
                (&set.prefixes[..], !set.exceptions.is_empty())
            }
        };
        if prefixes.is_empty() || prefixes.len() > MOST_INLINE || has_exceptions {
            return Err(format!(
                "sources of a limit are 1 to {MOST_INLINE} prefixes that do not expire, without exceptions"
            ));
        }
        Ok(prefixes.to_vec())
    }

    fn usable<'r>(&mut self, ruleset: &'r Ruleset, key: &str) -> Result<&'r Set, String> {
        self.used.insert(key.to_owned());
        let Some(set) = ruleset.sets.get(key) else {
            let name: String = key
                .rsplit(' ')
                .next()
                .unwrap_or(key)
                .chars()
                .take(64)
                .collect();
            let program = if key.starts_with("ipset ") {
                "ipset save"
            } else {
                "nft -j list ruleset"
            };
            return Err(format!(
                "set {name} is not in the input: import the output of {program} with it"
            ));
        };
        match &set.unusable {
            Some(why) => Err(format!("set {} cannot be a list: {why}", set.name)),
            None => Ok(set),
        }
    }

    /// Sets that no rule names: ban lists if there are no rules at all.
    pub fn rest_of_sets(&mut self, ruleset: &Ruleset) {
        let has_rules = ruleset.chains.iter().any(|chain| !chain.rules.is_empty());
        for (key, set) in &ruleset.sets {
            match &set.unusable {
                _ if self.used.contains(key) => {}
                Some(why) => self.leave_out(why, &set.origin),
                None if !has_rules => {
                    let is_trusted = TRUSTED.iter().any(|word| key.to_lowercase().contains(word));
                    let more = is_trusted.then(|| {
                        "no rule names the set, and its name is that of trusted addresses"
                            .to_owned()
                    });
                    self.ban_set(set, &set.origin, more.clone());
                    if let Some(bans) = self.bans.get_mut(&(set.name.clone(), more)) {
                        bans.notes.insert(
                            "No rule names the set: leave the list out if its addresses are trusted."
                                .to_owned(),
                        );
                    }
                }
                None if set.prefixes.is_empty() => {}
                None => self.leave_out("no rule that is carried over names the set", &set.origin),
            }
        }
    }

    /// Bans of jails.
    pub fn jails(&mut self, jails: &BTreeMap<String, Set>) {
        for set in jails.values() {
            self.ban_set(set, &set.origin, None);
            for ((name, _), bans) in &mut self.bans {
                if *name == set.name {
                    bans.notes.insert(format!(
                        "fail2ban lifts its bans, and a list keeps its prefixes: remove them, or leave the list out and ban with \
                         {PROGRAM} ban --file FILE --for TIME. fail2ban may refuse a jail's ports alone, a list refuses all packets."
                    ));
                }
            }
        }
    }

    /// Adds exempt sources, comments and offers of another import.
    pub fn append(&mut self, other: Self) {
        self.exempt.extend(other.exempt);
        other
            .exempt_origins
            .into_iter()
            .for_each(|origin| self.exempt_origin(origin));
        self.exempt_further += other.exempt_further;
        self.offers.extend(other.offers);
        for (why, left_out) in other.left_out {
            let all = self.left_out.entry(why).or_default();
            all.count += left_out.count;
            all.rules.extend(left_out.rules);
        }
    }

    /// How much has been found, to see whether an input has anything.
    pub fn size(&self) -> usize {
        self.exempt.len() + self.offers.len() + self.left_out.len()
    }
}

/// The prefixes that a set matches: those of its entries without its exceptions.
fn matched(prefixes: &[IpNet], exceptions: &[IpNet]) -> Vec<IpNet> {
    if exceptions.is_empty() {
        return prefixes.to_vec();
    }
    let keys = |nets: &[IpNet]| -> Vec<PrefixKey> {
        nets.iter().map(|net| PrefixKey::from(*net)).collect()
    };
    let mut left = Vec::new();
    lists::without(keys(prefixes), keys(exceptions), &mut left);
    let net = |key: &PrefixKey| Prefix::from(key).to_string().parse().ok();
    left.iter().filter_map(net).collect()
}

fn elements(count: u64) -> String {
    if count == 1 {
        "1 element".to_owned()
    } else {
        format!("{} elements", config::human::number(count))
    }
}
