//! Bans as operators and escalations order them: what each order comes to.

use common::ban::Ban;

use super::InForce;
use crate::bans::By;
use crate::compile::PrefixKey;
use crate::config::policy::{Mode, Prefix};
use crate::config::prefix;
use crate::control::{BanOrder, Banned, StillBanned, Unbanned, WithoutEffect};
use crate::stats::monotonic_nanoseconds;

/// What comes of a ban that a limit escalates to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Escalated {
    Banned,
    /// There is a ban that ends later.
    BannedForLonger,
    /// The agent only observes.
    Observed,
}

impl InForce {
    /// Bans every prefix that a ban can have an effect on. The operator's own longer ban of a prefix stays as it is.
    pub(super) fn order_bans(&mut self, orders: &[BanOrder]) -> Result<Banned, String> {
        let now = monotonic_nanoseconds();
        let parsed = orders.iter().map(|order| parse(order, now)).collect::<Result<Vec<_>, _>>()?;
        let (mut bans, mut banned) = (Vec::new(), Banned::default());
        for (prefix, until) in parsed {
            let key = PrefixKey::from(&prefix);
            if let Some(exempt) = self.config.agent.never_limit.iter().find(|exempt| exempt.covers(&prefix)) {
                let reason = format!("{exempt} is exempt: agent status lists never_limit and the protected addresses");
                banned.without_effect.push(WithoutEffect { cidr: key.to_string(), reason });
                continue;
            }
            if let Some(inside) = self.config.agent.never_limit.iter().find(|exempt| prefix.covers(exempt)) {
                banned.notes.push(format!("{inside} in {key} is exempt and stays reachable"));
            }
            bans.push((key, until));
        }
        banned.kept = self.ban(&bans, By::Operator, now).map_err(|error| error.to_string())?;
        banned.banned = (bans.len() - banned.kept.len()) as u64;
        if banned.banned > 0 && self.ingress.attached().is_empty() {
            let reason = "no interface is attached: agent status shows why".to_owned();
            banned.without_effect.push(WithoutEffect { cidr: "all of them".to_owned(), reason });
        }
        Ok(banned)
    }

    /// Carries out a ban that a limit escalates to. In observe mode limits refuse nothing, and ban nobody.
    pub(super) fn escalate(&mut self, order: &BanOrder) -> Result<Escalated, String> {
        let now = monotonic_nanoseconds();
        let (prefix, until) = parse(order, now)?;
        if self.config.agent.mode == Mode::Observe {
            return Ok(Escalated::Observed);
        }
        let kept = self.ban(&[((&prefix).into(), until)], By::Limit, now).map_err(|error| error.to_string())?;
        Ok(if kept.is_empty() { Escalated::Banned } else { Escalated::BannedForLonger })
    }

    /// Lifts the bans of exactly these prefixes.
    pub(super) fn lift_bans(&mut self, cidrs: &[String]) -> Result<Unbanned, String> {
        let prefixes = cidrs.iter().map(|cidr| parse_prefix(cidr)).collect::<Result<Vec<_>, _>>()?;
        let mut unbanned = Unbanned::default();
        for prefix in &prefixes {
            unbanned.unbanned += u64::from(self.unban(prefix).map_err(|error| error.to_string())?);
        }
        unbanned.was_banned = unbanned.unbanned > 0;
        let now = monotonic_nanoseconds();
        unbanned.still_banned = prefixes
            .iter()
            .filter_map(|prefix| Some((prefix, self.bans.around(prefix, now)?.0)))
            .map(|(prefix, by)| StillBanned { cidr: prefix.to_string(), by: by.to_string() })
            .collect();
        Ok(unbanned)
    }

    /// Lifts every ban.
    pub(super) fn lift_all_bans(&mut self) -> Result<Unbanned, String> {
        let all: Vec<String> = self.bans.iter().map(|entry| entry.prefix.to_string()).collect();
        self.lift_bans(&all)
    }
}

fn parse_prefix(cidr: &str) -> Result<PrefixKey, String> {
    let parsed = prefix::parse(cidr).map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))?;
    Ok(PrefixKey::from(&parsed))
}

/// The prefix of an order, and until when it is banned.
fn parse(order: &BanOrder, now: u64) -> Result<(Prefix, u64), String> {
    let prefix = prefix::parse(&order.cidr).map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))?;
    let until = match order.for_seconds {
        None => Ban::FOREVER,
        Some(seconds) if seconds > 0.0 && seconds.is_finite() => now.saturating_add((seconds * 1e9) as u64),
        Some(seconds) => return Err(format!("invalid time of a ban: {seconds} s; write more than 0")),
    };
    Ok((prefix, until))
}
