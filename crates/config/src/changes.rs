//! The differences between two configs, by the summaries of their tables.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::policy::{Config, Limit, RequestLimit};
use super::schema::{self, Table, TableReference};

/// The differences between two configs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Only in the new config.
    pub added: Vec<Change>,
    /// In both, with different values.
    pub changed: Vec<Change>,
    /// Only in the old config.
    pub removed: Vec<Change>,
}

/// One table of limits.toml, or one key of a table that is not an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// `limit web`, `group batch`, `class payer`, `request publish`, `notify pager`, `[agent] mode`.
    pub what: String,
    /// The summary in the old config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The summary in the new config.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

impl Changes {
    /// Compares two configs.
    #[must_use]
    pub fn between(before: &Config, after: &Config) -> Self {
        let mut changes = Comparison::between(before, after).changes;
        // A limit with another scope is in another table.
        let removed = std::mem::take(&mut changes.removed);
        for gone in removed {
            let same = changes.added.iter().position(|new| new.what == gone.what);
            match same {
                Some(nth) => changes.changed.push(Change {
                    before: gone.before,
                    ..changes.added.remove(nth)
                }),
                None => changes.removed.push(gone),
            }
        }
        changes
    }

    /// Whether the configs are equal.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }

    /// As a diff: `+ limit web  …`, `- limit web  …`.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let all = self.removed.iter().chain(&self.changed).chain(&self.added);
        all.flat_map(|change| {
            let line = |sign: char, text: &Option<String>| {
                text.as_ref()
                    .map(|text| format!("{sign} {}  {text}", change.what))
            };
            line('-', &change.before)
                .into_iter()
                .chain(line('+', &change.after))
        })
        .collect()
    }
}

/// The keys with other values that a reload cannot change: `[agent] control`.
#[must_use]
pub fn needing_restart(before: &Config, after: &Config) -> Vec<String> {
    Comparison::between(before, after).fixed
}

/// The differences of the declared tables.
#[derive(Default)]
struct Comparison {
    changes: Changes,
    /// The keys that a reload cannot change.
    fixed: Vec<String>,
}

impl Comparison {
    fn between(before: &Config, after: &Config) -> Self {
        let mut all = Self::default();
        all.tables("limit", Limit::summary, &before.limits, &after.limits);
        let (old, new) = (&before.decide.limits, &after.decide.limits);
        all.tables("limit", RequestLimit::summary, old, new);
        all.tables("group", Group::summary, &before.groups, &after.groups);
        let (old, new) = (&before.classes, &after.classes);
        all.tables("class", schema::summary, old, new);
        all.tables("notify", schema::summary, &before.notify, &after.notify);
        let (old, new) = (&before.ban_lists, &after.ban_lists);
        all.tables("ban list", schema::summary, old, new);
        let (old, new) = (&before.decide.requests, &after.decide.requests);
        all.tables("request", schema::summary, old, new);
        all.settings(Some(&before.agent), Some(&after.agent));
        all.settings(Some(&before.geo), Some(&after.geo));
        all.settings(Some(&before.decide), Some(&after.decide));
        all.settings(before.cluster.as_ref(), after.cluster.as_ref());
        all.settings(before.crowdsec.as_ref(), after.crowdsec.as_ref());
        all.settings(before.fleet.as_ref(), after.fleet.as_ref());
        all
    }

    /// Adds the differences of an array of tables, by their names.
    fn tables<T: Table>(
        &mut self,
        what: &str,
        summary: fn(&T) -> String,
        before: &[T],
        after: &[T],
    ) {
        let what = |table: &T| format!("{what} {}", table.name());
        let old: HashMap<&str, &T> = before.iter().map(|table| (table.name(), table)).collect();
        for table in after {
            let Some(before) = old.get(table.name()) else {
                self.changes.added.push(Change {
                    what: what(table),
                    before: None,
                    after: Some(summary(table)),
                });
                continue;
            };
            let keys = table.differing(before);
            if keys.is_empty() {
                continue;
            }
            let fixed = keys.iter().filter(|key| key.needs_restart);
            let fixed = fixed.map(|key| format!("{} {}", what(table), key.name));
            self.fixed.extend(fixed);
            let (mut old, mut new) = (summary(before), summary(table));
            if old == new {
                // The summary omits these keys.
                old = format!("{old}, {}", schema::summary_of(*before, &keys));
                new = format!("{new}, {}", schema::summary_of(table, &keys));
            }
            self.changes.changed.push(Change {
                what: what(table),
                before: Some(old),
                after: Some(new),
            });
        }
        let new: HashSet<&str> = after.iter().map(T::name).collect();
        let gone = before.iter().filter(|table| !new.contains(table.name()));
        self.changes.removed.extend(gone.map(|table| Change {
            what: what(table),
            before: Some(summary(table)),
            after: None,
        }));
    }

    /// Adds the differences of a table, key by key.
    fn settings<T: Table>(&mut self, before: Option<&T>, after: Option<&T>) {
        let texts = |table: Option<&T>| -> Vec<Option<String>> {
            let texts = table.map(T::shown).unwrap_or_default().into_iter();
            texts
                .map(|shown| Some(shown.text).filter(|text| !text.is_empty()))
                .collect()
        };
        let (mut old, mut new) = (texts(before).into_iter(), texts(after).into_iter());
        let differing = match (before, after) {
            (Some(before), Some(after)) => after.differing(before),
            _ => Vec::new(),
        };
        let TableReference { heading, keys, .. } = T::REFERENCE;
        for key in keys {
            let what = format!("{heading} {}", key.name);
            let (before, after) = (old.next().flatten(), new.next().flatten());
            let is_other = differing.iter().any(|other| other.name == key.name)
                || before.is_some() != after.is_some();
            if key.needs_restart && is_other {
                self.fixed.push(what.clone());
            }
            let changes = match (&before, &after) {
                (None, None) => continue,
                (None, Some(_)) => &mut self.changes.added,
                (Some(_), None) => &mut self.changes.removed,
                _ if is_other => &mut self.changes.changed,
                _ => continue,
            };
            changes.push(Change {
                what,
                before,
                after,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> Config {
        let text = format!("[agent]\ninterfaces = [\"eth0\"]\n{text}");
        crate::parse(Path::new("limits.toml"), &text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config
    }

    #[test]
    fn protection_that_is_switched_off_is_a_changed_value() {
        let limit = "[[limit]]\nname = \"a\"\nrate = \"5/s\"\n";
        let after = config(&format!("protect = false\n{limit}"));
        let changes = Changes::between(&config(limit), &after);
        assert_eq!(
            changes.lines(),
            [
                "- [agent] protect  ssh, gateways, store, resolvers, addresses",
                "+ [agent] protect  false",
            ]
        );
    }

    #[test]
    fn another_bound_of_a_fair_limit_is_a_change() {
        let with = |least: u32| {
            let fair = format!("fair = {{ at_least = \"{least}/s\" }}\n");
            config(&format!("[[limit]]\nname = \"a\"\nrate = \"fair\"\n{fair}"))
        };
        let changes = Changes::between(&with(20), &with(30));
        assert_eq!(
            changes.lines(),
            [
                "- limit a  ingress any  fair share of packets per address (IPv6 /64), at least 20/s, by sockets, drop",
                "+ limit a  ingress any  fair share of packets per address (IPv6 /64), at least 30/s, by sockets, drop",
            ]
        );
    }

    #[test]
    fn added_changed_and_removed_tables_are_named() {
        let before = config(
            "[[limit]]\nname = \"a\"\nrate = \"5/s\"\n[[limit]]\nname = \"b\"\nrate = \"5/s\"\n",
        );
        let after = config(
            "mode = \"observe\"\n[[limit]]\nname = \"b\"\nrate = \"6/s\"\n[[limit]]\nname = \"c\"\nrate = \"5/s\"\n\
             [[class]]\nname = \"friends\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 2.5\n",
        );
        assert!(Changes::between(&before, &before).is_empty());
        let changes = Changes::between(&before, &after);
        assert_eq!(
            changes.lines(),
            [
                "- limit a  ingress any  5 packets/s per address (IPv6 /64), burst 5, drop",
                "- limit b  ingress any  5 packets/s per address (IPv6 /64), burst 5, drop",
                "+ limit b  ingress any  6 packets/s per address (IPv6 /64), burst 6, drop",
                "- [agent] mode  enforce",
                "+ [agent] mode  observe",
                "+ limit c  ingress any  5 packets/s per address (IPv6 /64), burst 5, drop",
                "+ class friends  sources = [192.0.2.0/24], multiplier = 2.5",
            ]
        );
        let back = Changes::between(&after, &before);
        assert_eq!(
            (back.added.len(), back.changed.len(), back.removed.len()),
            (1, 2, 2)
        );
    }
    #[test]
    fn a_limit_that_changes_its_scope_is_changed() {
        let before = config("[[limit]]\nname = \"a\"\nrate = \"5/s\"\n");
        let after = config(
            "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/s\"\n",
        );
        let changes = Changes::between(&before, &after);
        assert_eq!((changes.added, changes.removed), (Vec::new(), Vec::new()));
        assert_eq!(
            changes.changed,
            [Change {
                what: "limit a".to_owned(),
                before: Some(before.limits[0].summary()),
                after: Some(after.decide.limits[0].summary()),
            }]
        );
    }

    #[test]
    fn another_time_zone_of_a_calendar_is_a_change() {
        let with = |zone: &str| {
            let limit = "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/calendar-day\"\n";
            config(&format!("{limit}time_zone = \"{zone}\"\n"))
        };
        let changes = Changes::between(&with("UTC"), &with("Asia/Tokyo"));
        assert_eq!(
            changes.lines(),
            [
                "- limit a  requests  5 requests/calendar-day per user, fixed-window, time zone UTC, refuse",
                "+ limit a  requests  5 requests/calendar-day per user, fixed-window, time zone Asia/Tokyo, refuse",
            ]
        );
        assert!(Changes::between(&with("utc"), &with("UTC")).is_empty());
    }

    #[test]
    fn a_key_that_the_summary_omits_is_compared() {
        let with = |line: &str| {
            config(&format!(
                "[[group]]\nname = \"a\"\npid = 7\npids = 5\n{line}\n"
            ))
        };
        assert_eq!(
            Changes::between(&with(""), &with("move = \"force\"")).lines(),
            [
                "- group a  pid 7: processes 5, move = false",
                "+ group a  pid 7: processes 5, move = force",
            ]
        );
    }

    #[test]
    fn every_setting_of_a_table_is_compared() {
        let limit = "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/s\"\n\
                     cluster = \"keys\"\n";
        let with = |agent: &str, decide: &str, cluster: &str| {
            config(&format!(
                "{agent}{limit}[decide]\nmax_keys = 9\n{decide}\n[cluster]\nstore = \"redis://one\"\n\
                 node = \"a\"\n{cluster}\n"
            ))
        };
        let before = with("", "", "");
        for (agent, decide, cluster, line) in [
            (
                "container_sockets = [\"/a\", \"/b\"]\n",
                "",
                "",
                "+ [agent] container_sockets  /a, /b",
            ),
            ("", "max_waiting = 7", "", "+ [decide] max_waiting  7"),
            (
                "",
                "max_waiting_per_key = 7",
                "",
                "+ [decide] max_waiting_per_key  7",
            ),
            (
                "",
                "max_reservations = 7",
                "",
                "+ [decide] max_reservations  7",
            ),
            (
                "",
                "max_reservations_per_key = 7",
                "",
                "+ [decide] max_reservations_per_key  7",
            ),
            ("", "", "max_hot_keys = 7", "+ [cluster] max_hot_keys  7"),
        ] {
            let lines = Changes::between(&before, &with(agent, decide, cluster)).lines();
            assert!(lines.iter().any(|it| it == line), "{line}: {lines:?}");
        }
    }

    #[test]
    fn settings_that_are_fixed_at_the_start_require_a_restart() {
        let with = |agent: &str, decide: &str| {
            config(&format!(
                "{agent}\n[decide]\n{decide}\n[[limit]]\nname = \"a\"\nrate = \"5/s\"\n"
            ))
        };
        let before = with("", "");
        for (agent, decide, keys) in [
            (
                "mode = \"observe\"\ncontainer_sockets = []",
                "max_keys = 7",
                "",
            ),
            ("state_dir = \"/a\"", "", "[agent] state_dir"),
            (
                "control = \"/a\"\npins = \"/b\"\nmetrics = \"127.0.0.1:1\"\nlive = true\ncgroup = \"a\"",
                "",
                "[agent] metrics, [agent] live, [agent] control, [agent] pins, [agent] cgroup",
            ),
            (
                "",
                "http = \"127.0.0.1:1\"\ngrpc = \"127.0.0.1:2\"",
                "[decide] http, [decide] grpc",
            ),
        ] {
            let found = needing_restart(&before, &with(agent, decide)).join(", ");
            assert_eq!(found, keys);
        }
    }
}
