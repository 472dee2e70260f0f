//! Classes and never-limited addresses as one set of prefixes: the longest match says everything.

use std::collections::{BTreeSet, HashMap, HashSet};

use common::prefix::build::{Prefix, PrefixTree, build};
use common::prefix::{MAX_CLASSES, PrefixEntry};

use super::CompileError;
use super::image::PrefixKey;
use crate::config::policy::{Config, Multiplier, Service};

/// The distinct multipliers of a policy; the first is 1, that of the default class.
pub struct Grades(Vec<Multiplier>);

impl Grades {
    pub fn of(config: &Config) -> Self {
        let mut grades = vec![Multiplier::ONE];
        for class in &config.classes {
            if let Service::Multiplier(multiplier) = class.service
                && !grades.contains(&multiplier)
            {
                grades.push(multiplier);
            }
        }
        Self(grades)
    }

    pub fn multipliers(&self) -> impl Iterator<Item = Multiplier> + '_ {
        self.0.iter().copied()
    }

    pub fn are_needed(&self, config: &Config) -> bool {
        !config.classes.is_empty() || !config.agent.never_limit.is_empty()
    }

    /// What is said of addresses, ready to be looked up.
    ///
    /// # Errors
    ///
    /// When there are more classes than an entry can tell apart.
    pub fn tree(&self, config: &Config) -> Result<PrefixTree, CompileError> {
        if config.classes.len() > MAX_CLASSES as usize {
            return Err(CompileError::TooManyClasses { classes: config.classes.len() });
        }
        let prefix = |key: PrefixKey| Prefix { address: u128::from_be_bytes(key.address), length: key.length };
        let entries: Vec<_> = self.entries(config).into_iter().map(|(key, entry)| (prefix(key), entry)).collect();
        Ok(build(&entries))
    }

    /// What each prefix says of the addresses that it is the longest one of. Never-limited prefixes reach into the classes' longer ones: such an entry is of its class,
    /// and never limited all the same.
    fn entries(&self, config: &Config) -> Vec<(PrefixKey, PrefixEntry)> {
        let mut of_classes = HashMap::new();
        for (nth, class) in config.classes.iter().enumerate() {
            let number = nth as u32 + 1;
            let entry = match class.service {
                Service::Unlimited => PrefixEntry::new(number, 0).with(PrefixEntry::UNLIMITED),
                Service::Multiplier(multiplier) => {
                    let grade = self.0.iter().position(|grade| *grade == multiplier).unwrap_or(0);
                    PrefixEntry::new(number, grade as u32)
                }
            };
            for prefix in &class.sources {
                of_classes.insert(PrefixKey::from(prefix), entry);
            }
        }
        let never: HashSet<PrefixKey> = config.agent.never_limit.iter().map(PrefixKey::from).collect();
        let class_lengths = lengths(of_classes.keys());
        let never_lengths = lengths(never.iter());
        // The class of a never-limited prefix is that of the longest one around it.
        let around = |prefix: &PrefixKey| {
            let outer =
                class_lengths.range(..=prefix.length).rev().find_map(|length| of_classes.get(&prefix.cut(*length)));
            (*prefix, outer.copied().unwrap_or_default())
        };
        let mut entries: Vec<_> = of_classes.iter().map(|(prefix, entry)| (*prefix, *entry)).collect();
        entries.extend(never.iter().filter(|prefix| !of_classes.contains_key(prefix)).map(around));
        for (prefix, entry) in &mut entries {
            if never_lengths.range(..=prefix.length).any(|length| never.contains(&prefix.cut(*length))) {
                *entry = entry.with(PrefixEntry::NEVER_LIMIT);
            }
        }
        entries
    }
}

/// The lengths that occur: few, however many the prefixes.
fn lengths<'p>(prefixes: impl Iterator<Item = &'p PrefixKey>) -> BTreeSet<u32> {
    prefixes.map(|prefix| prefix.length).collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use common::packet::Direction;

    use super::*;
    use crate::compile::compile;
    use crate::config;

    #[test]
    fn more_classes_than_an_entry_tells_apart_are_refused() {
        for classes in [MAX_CLASSES, MAX_CLASSES + 1] {
            let mut text = "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n".to_owned();
            for class in 0..classes {
                let source = std::net::Ipv4Addr::from(0x0a00_0000 + class);
                let _ = write!(text, "[[class]]\nname = \"c{class}\"\nmultiplier = 2\nsources = [\"{source}\"]\n");
            }
            let config =
                config::parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}")).config;
            let compiled = compile(&config, Direction::Ingress);
            if classes > MAX_CLASSES {
                assert_eq!(compiled.unwrap_err(), CompileError::TooManyClasses { classes: classes as usize });
                continue;
            }
            let image = compiled.unwrap();
            let source = (0x0a00_0000 + classes - 1).to_be_bytes();
            let source = common::packet::Address::from_ipv4(source);
            assert_eq!(image.settings.prefixes.look_up(image.prefixes.as_slice(), source).class(), classes);
        }
    }
}
