//! The limits, bans and exempt sources among the rules that incoming packets come to.

use std::collections::{BTreeMap, BTreeSet};

use super::found::{Action, Found, FoundLimit, MOST_LIMITS};
use super::rule::{
    Conditions, Connection, Hook, Key, Limit, Protocol, Rule, Ruleset, Unit, Verdict,
};

/// The most rules in all chains with their jumps, and the deepest jump, as in the kernel.
const MOST_STEPS: u32 = 2_000_000;
const DEEPEST: u32 = 16;
/// The most different earlier rules that are remembered; further ones are taken to be about any packet.
const MOST_EARLIER: usize = 200;

const UNNAMED: &str = "its chain is of one device, which this version of nft does not print";

/// Walks through all chains of incoming packets.
pub fn walk(ruleset: &Ruleset) -> Found {
    let names = ruleset
        .chains
        .iter()
        .enumerate()
        .map(|(at, chain)| ((chain.table.as_str(), chain.name.as_str()), at));
    let mut walk = Walk {
        ruleset,
        names: names.collect(),
        found: Found::default(),
        earlier: Vec::new(),
        visited: BTreeSet::new(),
        is_unnamed: false,
        steps: 0,
    };
    let mut order: Vec<usize> = (0..ruleset.chains.len()).collect();
    order.sort_by_key(|at| ruleset.chains[*at].order);
    for at in order {
        let chain = &ruleset.chains[at];
        match &chain.hook {
            Hook::None => {}
            Hook::Other(why) => chain
                .rules
                .iter()
                .for_each(|rule| walk.found.leave_out(why, &rule.origin)),
            Hook::Incoming(_) | Hook::IncomingUnnamed => {
                // The next chain gets accepted packets alone.
                walk.earlier.retain(|(earlier, _)| earlier.is_refused);
                walk.is_unnamed = chain.hook == Hook::IncomingUnnamed;
                let device = if let Hook::Incoming(device) = &chain.hook {
                    device.clone()
                } else {
                    None
                };
                let interfaces = device.map(|device| vec![device]);
                walk.chain(
                    at,
                    &Conditions {
                        interfaces,
                        ..Conditions::default()
                    },
                    0,
                );
            }
        }
    }
    for (at, chain) in ruleset.chains.iter().enumerate() {
        if chain.hook == Hook::None && !walk.visited.contains(&at) {
            chain.rules.iter().for_each(|rule| {
                walk.found
                    .leave_out("no incoming packet comes to its chain", &rule.origin);
            });
        }
    }
    walk.found
}

/// Packets that an earlier rule keeps from later ones.
#[derive(PartialEq, Eq)]
struct Earlier {
    /// Without the sources.
    conditions: Conditions,
    has_sources: bool,
    /// The depth of the chain that they leave by `return`.
    until: Option<u32>,
    is_refused: bool,
}

struct Walk<'r> {
    ruleset: &'r Ruleset,
    names: BTreeMap<(&'r str, &'r str), usize>,
    found: Found,
    /// With the first rule of each.
    earlier: Vec<(Earlier, String)>,
    visited: BTreeSet<usize>,
    /// Whether the chain is of one interface, which is not known.
    is_unnamed: bool,
    steps: u32,
}

impl<'r> Walk<'r> {
    fn chain(&mut self, at: usize, outer: &Conditions, depth: u32) {
        let ruleset: &'r Ruleset = self.ruleset;
        let chain = &ruleset.chains[at];
        self.visited.insert(at);
        let mut rules = chain.rules.iter().peekable();
        while let Some(rule) = rules.next() {
            self.steps += 1;
            if self.steps > MOST_STEPS || depth > DEEPEST {
                self.found
                    .leave_out("its chain is reached by too many jumps", &rule.origin);
                break;
            }
            let Some(conditions) = outer.and(&rule.conditions) else {
                self.found
                    .leave_out("no packet meets its conditions", &rule.origin);
                continue;
            };
            if conditions.is_loopback() {
                if rule.verdict != Verdict::Accept {
                    self.found
                        .leave_out("Weir does not limit loopback", &rule.origin);
                }
                continue;
            }
            match &rule.limit {
                Some(limit) if limit.is_over => self.over(rule, limit, conditions),
                Some(limit) => {
                    let refusing = rules.next_if(|next| completes(rule, next));
                    self.up_to(rule, limit, conditions, refusing, depth);
                }
                None => self.without_limit(&chain.table, &chain.name, rule, conditions, depth),
            }
        }
        self.earlier
            .retain(|(earlier, _)| earlier.until != Some(depth));
    }

    /// A rule for packets above a limit.
    fn over(&mut self, rule: &Rule, limit: &Limit, conditions: Conditions) {
        match &rule.verdict {
            Verdict::Drop => self.limit(&rule.origin, limit, conditions, Action::Drop),
            Verdict::Reject => self.limit(&rule.origin, limit, conditions, Action::Reject),
            Verdict::Mark(mark) => self.limit(&rule.origin, limit, conditions, Action::Mark(*mark)),
            Verdict::Continue => {
                let why = "it counts or logs packets above a limit and refuses none; action = \"observe\" comes closest";
                self.found.leave_out(why, &rule.origin);
            }
            Verdict::Accept
            | Verdict::Return
            | Verdict::Jump(_)
            | Verdict::Goto(_)
            | Verdict::Other(_) => {
                self.found.leave_out(
                    "packets above its limit are not refused by the rule itself",
                    &rule.origin,
                );
                self.remember(&rule.origin, conditions, None, false);
            }
        }
    }

    /// A rule for packets up to a limit, and the next rule if it refuses all others.
    fn up_to(
        &mut self,
        rule: &Rule,
        limit: &Limit,
        conditions: Conditions,
        next: Option<&Rule>,
        depth: u32,
    ) {
        match (&rule.verdict, next) {
            (_, Some(next)) => {
                let action = if next.verdict == Verdict::Reject {
                    Action::Reject
                } else {
                    Action::Drop
                };
                let origin = format!("{}, and the next rule", rule.origin);
                self.limit(&origin, limit, conditions.clone(), action);
            }
            (Verdict::Continue, _) => self
                .found
                .leave_out("it counts, marks or logs packets", &rule.origin),
            _ => {
                let why = "packets above its limit come to the next rules, and none refuses exactly these";
                self.found.leave_out(why, &rule.origin);
            }
        }
        match rule.verdict {
            Verdict::Continue | Verdict::Drop | Verdict::Reject | Verdict::Mark(_) => {}
            Verdict::Return => self.remember(&rule.origin, conditions, Some(depth), false),
            _ => self.remember(&rule.origin, conditions, None, false),
        }
    }

    fn without_limit(
        &mut self,
        table: &str,
        chain: &str,
        rule: &Rule,
        conditions: Conditions,
        depth: u32,
    ) {
        let origin = &rule.origin;
        match &rule.verdict {
            Verdict::Drop | Verdict::Reject => self.refuse(chain, origin, conditions),
            Verdict::Accept => {
                let is_exempt = !self.is_unnamed
                    && conditions.is_by_source_alone()
                    && conditions
                        .sources
                        .as_ref()
                        .is_some_and(|of| self.found.exempt(self.ruleset, of, origin));
                if !is_exempt {
                    self.found.leave_out(
                        "a rule that accepts packets stays with the firewall",
                        origin,
                    );
                    self.remember(origin, conditions, None, false);
                }
            }
            Verdict::Return => self.remember(origin, conditions, Some(depth), false),
            Verdict::Continue | Verdict::Mark(_) => self
                .found
                .leave_out("it counts, marks or logs packets", origin),
            Verdict::Jump(target) | Verdict::Goto(target) => {
                match self.names.get(&(table, target.as_str())) {
                    Some(at) => self.chain(*at, &conditions, depth + 1),
                    None => self
                        .found
                        .leave_out("its target is not in the input", origin),
                }
                if matches!(rule.verdict, Verdict::Goto(_)) {
                    self.remember(origin, conditions, None, false);
                }
            }
            Verdict::Other(what) => {
                self.found
                    .leave_out(&format!("Weir has no equal of {what}"), origin);
                self.remember(origin, conditions, None, false);
            }
        }
    }

    /// A rule that refuses packets without a limit.
    fn refuse(&mut self, chain: &str, origin: &str, conditions: Conditions) {
        let Some(sources) = &conditions.sources else {
            let why = match conditions.others.as_slice() {
                [] => {
                    "a rule without a limit and without sources stays with the firewall".to_owned()
                }
                others => unknown(others),
            };
            self.found.leave_out(&why, origin);
            return self.remember(origin, conditions, None, true);
        };
        let accepted = || {
            self.earlier
                .iter()
                .find(|(it, _)| !it.is_refused && it.conditions.overlaps(&conditions))
        };
        let more = if self.is_unnamed {
            Some(UNNAMED.to_owned())
        } else if !conditions.is_by_source_alone() {
            Some("it refuses some packets of these sources, and a ban list all of them".to_owned())
        } else if self.earlier.len() >= MOST_EARLIER {
            Some(
                "rules before it may accept some packets of these sources, and a ban list refuses all of them"
                    .to_owned(),
            )
        } else {
            accepted().map(|(_, before)| {
                format!("a rule before it accepts some packets of these sources, which a ban list refuses ({before})")
            })
        };
        let is_carried = self
            .found
            .ban(self.ruleset, chain, sources, origin, more.clone())
            && more.is_none();
        if !is_carried {
            self.remember(origin, conditions, None, true);
        }
    }

    fn remember(
        &mut self,
        origin: &str,
        mut conditions: Conditions,
        until: Option<u32>,
        is_refused: bool,
    ) {
        let has_sources = conditions.sources.take().is_some();
        let earlier = Earlier {
            conditions,
            has_sources,
            until,
            is_refused,
        };
        if self.earlier.len() < MOST_EARLIER
            && !self.earlier.iter().any(|(known, _)| *known == earlier)
        {
            self.earlier.push((earlier, origin.to_owned()));
        }
    }

    /// Why Weir's limit counts packets that do not come to the rule.
    fn counts_more(&self, conditions: &Conditions, is_syn: bool, key: Key) -> Option<String> {
        if self.earlier.len() >= MOST_EARLIER {
            return Some("rules before it accept or refuse packets that Weir counts".to_owned());
        }
        let is_harmless = |it: &Earlier| match it.is_refused {
            // The other states of TCP have no SYNs.
            false => is_syn && it.conditions.connection == Connection::Established,
            // A source whose packets are all refused needs no allowance.
            true => {
                let is_own = matches!(key, Key::Source { prefix: None, .. });
                let is_of_state = it
                    .conditions
                    .others
                    .iter()
                    .all(|other| matches!(other.as_str(), "ct state" | "--ctstate"));
                (it.has_sources && is_own && it.conditions.covers(conditions))
                    || (is_syn && is_of_state && !it.conditions.others.is_empty())
            }
        };
        let before = self
            .earlier
            .iter()
            .find(|(it, _)| it.conditions.overlaps(conditions) && !is_harmless(it));
        before.map(|(it, origin)| {
            let verb = if it.is_refused { "refuses" } else { "accepts" };
            format!("a rule before it {verb} packets that Weir counts ({origin})")
        })
    }

    /// A limit that the rule has: carried over, a comment, or left out.
    fn limit(&mut self, origin: &str, limit: &Limit, conditions: Conditions, action: Action) {
        let refused = conditions.clone();
        let found = self.found_limit(origin, limit, conditions, action);
        let is_carried = matches!(&found, Ok(found) if found.more.is_none());
        match found {
            Ok(found) => self.found.limits.push(found),
            Err(why) => self.found.leave_out(&why, origin),
        }
        if !is_carried && !matches!(action, Action::Mark(_)) {
            self.remember(origin, refused, None, true);
        }
    }

    fn found_limit(
        &mut self,
        origin: &str,
        limit: &Limit,
        mut conditions: Conditions,
        action: Action,
    ) -> Result<FoundLimit, String> {
        if !conditions.others.is_empty() {
            return Err(unknown(&conditions.others));
        }
        let is_tcp = conditions.protocol == Some(Protocol::Tcp);
        let is_open = limit.unit == Unit::Open;
        if is_open && !is_tcp {
            return Err(
                "it counts connections of other protocols, too, and Weir those of TCP".to_owned(),
            );
        }
        let is_counted = is_tcp && limit.unit != Unit::Bytes;
        let mut notes = Vec::new();
        if conditions.connection == Connection::Any && is_counted && !is_open {
            let is_established = |it: &Earlier| {
                !it.is_refused && it.conditions.connection == Connection::Established
            };
            let mut before = self
                .earlier
                .iter()
                .filter(|(it, _)| it.conditions.overlaps(&conditions));
            if let Some((_, before)) = before.find(|(it, _)| is_established(it)) {
                notes.push(format!(
                    "Packets of established connections are accepted before it ({before})."
                ));
                conditions.connection = Connection::New;
            }
        }
        match conditions.connection {
            Connection::New | Connection::Syn if is_counted => {}
            Connection::Any => {}
            _ => return Err("Weir sees TCP's SYNs, and no other state of a connection".to_owned()),
        }
        let is_syn = is_open || conditions.connection != Connection::Any;
        let is_merged =
            !is_syn && !matches!(conditions.protocol, Some(Protocol::Udp | Protocol::Icmp));
        let more = if self.is_unnamed {
            Some(format!("{UNNAMED}; add it as interfaces"))
        } else {
            self.counts_more(&conditions, is_syn, limit.key).or_else(|| {
                let why = "it counts TCP packets that the kernel has merged (GRO) as one, and Weir counts each";
                is_merged.then(|| why.to_owned())
            })
        };
        if self.found.limits.len() >= MOST_LIMITS {
            return Err(format!("an import has at most {MOST_LIMITS} limits"));
        }
        let sources = conditions
            .sources
            .as_ref()
            .map(|sources| self.found.inline(self.ruleset, sources))
            .transpose()?;
        let (origin, limit) = (origin.to_owned(), limit.clone());
        Ok(FoundLimit {
            origin,
            limit,
            conditions,
            sources,
            action,
            is_syn,
            notes,
            more,
        })
    }
}

fn unknown(conditions: &[String]) -> String {
    format!(
        "it has conditions that Weir does not have ({})",
        conditions.join(", ")
    )
}

/// Whether the second rule refuses exactly the packets that the first one has not accepted.
fn completes(first: &Rule, second: &Rule) -> bool {
    matches!(first.verdict, Verdict::Accept | Verdict::Return)
        && second.limit.is_none()
        && matches!(second.verdict, Verdict::Drop | Verdict::Reject)
        && first.conditions == second.conditions
        && first.conditions.others.is_empty()
}
