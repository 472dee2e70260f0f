//! Operations of operators: bans, resets, recordings, captures.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::capture::CaptureOf;
use api::record::RecordStatus;
use api::request::{BanOrder, Banned, CountersReset, Reset, Unbanned};
use config::policy::{ClusterMode, Mode, Prefix};
use config::request_key::entry_name;
use config::{PrefixKey, prefix};
use datapath::bans::{By, Owner};
use decide::{Answer, KeyReset, Question, Scope};
use host::PROGRAM;

use super::agent::Agent;
use super::ban_events::ordered;
use super::capture::CaptureParts;
use super::packets::{PacketEngine, Whose};
use super::trace::Verdicts;
use crate::ban_owner;
use crate::ban_reason::is_printable;
use crate::daemon::events::{Follower, Subscription};
use crate::pcapng::Sample;
use crate::stats::ResetError;

impl Agent {
    pub(crate) fn record(&self, for_seconds: f64) -> Result<RecordStatus, String> {
        let interfaces = self
            .changing
            .live()
            .config()
            .agent
            .interfaces
            .iter()
            .map(ToString::to_string)
            .collect();
        self.recorder.start(
            Duration::try_from_secs_f64(for_seconds).unwrap_or_default(),
            interfaces,
        )
    }

    pub(crate) fn reset_counters(&self) -> Result<CountersReset, String> {
        let of_packets = match self.packets.load_full() {
            Some(packets) => packets.reset_counters().map_err(text)?.limits,
            None => 0,
        };
        let of_requests = self.requests.engine().reset_counters();
        self.counter_resets.fetch_add(1, Ordering::Relaxed);
        let reset = CountersReset {
            limits: of_packets + of_requests,
        };
        tracing::info!("counters of {} limits reset by an operator", reset.limits);
        Ok(reset)
    }

    pub(crate) fn order_bans(&self, orders: &[BanOrder]) -> Result<Banned, String> {
        let packets = self.packet_engine()?;
        let exceptions = packets.decision_counts().1.len();
        let banned = packets.for_client(|in_effect| in_effect.order_bans(orders));
        let flushed = self.flush_bans();
        let mut banned = banned?;
        if let Err(error) = flushed {
            banned.notes.push(format!(
                "state_dir cannot be written: {error}; after a kill of the agent the ban has no owner, and after a reboot it is gone"
            ));
        }
        // A ban ends exceptions within it.
        if packets.decision_counts().1.len() != exceptions {
            self.crowdsec.exceptions_changed();
        }
        ordered(orders, &banned)
            .into_iter()
            .for_each(|event| self.events.push(event));
        self.lists
            .end_exceptions(orders.iter().filter_map(|order| prefix_key(&order.cidr)));
        Ok(banned)
    }

    /// Lifts bans. Prefixes that nobody bans but ban lists, CrowdSec and other hosts become exceptions from these.
    pub(crate) fn unban(&self, cidrs: &[String], whose: &Whose) -> Result<Unbanned, String> {
        let unbanned = self
            .packet_engine()?
            .for_client(|in_effect| in_effect.lift_bans(cidrs, whose));
        // The journal's thread logs why it fails.
        let _ = self.flush_bans();
        let mut unbanned = unbanned?;
        if !unbanned.exceptions.is_empty() || !unbanned.exceptions_from_hosts.is_empty() {
            self.crowdsec.exceptions_changed();
        }
        // A program that lifts its own bans must not overrule a list.
        let prefixes: Vec<PrefixKey> = match whose {
            Whose::Everybody | Whose::User(_) => {
                cidrs.iter().filter_map(|cidr| prefix_key(cidr)).collect()
            }
            Whose::Owner(_) | Whose::Host(_) => Vec::new(),
        };
        unbanned.excepted = self.lists.except(&prefixes)?;
        unbanned.was_banned |= !unbanned.excepted.is_empty();
        Ok(unbanned)
    }

    /// Lifts every ban.
    pub(crate) fn unban_all(&self) -> Result<Unbanned, String> {
        let unbanned = self
            .packet_engine()?
            .for_client(|in_effect| in_effect.lift_all_bans());
        let _ = self.flush_bans();
        unbanned
    }

    /// Waits until changes of bans survive a kill, unless the disk hangs.
    fn flush_bans(&self) -> Result<(), String> {
        self.state
            .journal()
            .map_or(Ok(()), |journal| journal.flush())
    }

    /// The packet engine, for commands that require it.
    fn packet_engine(&self) -> Result<Arc<PacketEngine>, String> {
        let none = || {
            "this command requires a limit on packets, and the config in effect has none".to_owned()
        };
        self.packets().ok_or_else(none)
    }

    /// Resets the states of a prefix's addresses under limits on packets and on requests.
    pub(crate) fn reset(&self, prefix: &Prefix, limit: Option<&str>) -> Result<Reset, String> {
        let has_requests = !self.changing.live().config().decide.limits.is_empty();
        let requests = self.requests.engine();
        requests
            .check_reset(prefix, limit)
            .map_err(|error| match error {
                decide::ResetError::TooWide { limit, keys } => text(ResetError::TooManyKeys {
                    prefix: *prefix,
                    limit,
                    keys,
                }),
                error => text(error),
            })?;
        let (of_packets, mut kept) = match self.packet_engine() {
            Ok(packets) => {
                let reset = packets
                    .for_client(|in_effect| in_effect.reader().reset(prefix, limit))
                    .map_err(text)?;
                (reset.forgotten, reset.kept)
            }
            Err(_) if has_requests => (None, Vec::new()),
            Err(none) => return Err(none),
        };
        let (of_requests, others) = requests.reset_sources(prefix, limit).map_err(text)?;
        kept.extend(others);
        if let (Some(limit), true) = (limit, of_packets.is_none() && of_requests.is_none()) {
            return Err(format!(
                "limit {limit:?} counts by more than the address: {PROGRAM} reset --limit {limit} resets every key"
            ));
        }
        let (of_packets, of_requests) = (of_packets.unwrap_or(0), of_requests.unwrap_or(0));
        Ok(Reset {
            forgotten: of_packets + of_requests,
            kept,
            ..Reset::default()
        })
    }

    pub(crate) fn reset_limit(&self, limit: &str) -> Result<Reset, String> {
        let of_requests = self.requests.engine().reset(limit);
        let forgotten = match (of_requests.map_err(text)?, self.packets()) {
            (Some(forgotten), _) => forgotten,
            (None, Some(packets)) => {
                packets.for_client(|in_effect| in_effect.reader().reset_limit(limit))?
            }
            (None, None) => {
                return Err(format!(
                    "unknown limit {limit:?}: {PROGRAM} limits lists all"
                ));
            }
        };
        let limits = || vec![limit.to_owned()];
        let (on_all_hosts, on_this_host) = match self.cluster_mode(limit) {
            Some((Scope::Request, ClusterMode::Keys)) => (limits(), Vec::new()),
            Some(_) => (Vec::new(), limits()),
            None => (Vec::new(), Vec::new()),
        };
        Ok(Reset {
            forgotten,
            on_all_hosts,
            on_this_host,
            ..Reset::default()
        })
    }

    /// How hosts share a limit, if they do.
    fn cluster_mode(&self, limit: &str) -> Option<(Scope, ClusterMode)> {
        let live = self.changing.live();
        let config = live.config();
        let of_requests = config
            .decide
            .limits
            .iter()
            .find(|other| other.name == limit);
        let of_packets = config.limits.iter().find(|other| other.name == limit);
        let of_requests = of_requests.map(|limit| (Scope::Request, limit.cluster));
        let (scope, mode) =
            of_requests.or_else(|| of_packets.map(|limit| (Scope::Packet, limit.cluster)))?;
        Some((scope, mode?))
    }

    /// Resets the state of a key of limits on requests.
    pub(crate) fn reset_key(
        &self,
        key: &BTreeMap<String, String>,
        limit: Option<&str>,
    ) -> Result<Reset, String> {
        let entries = key.iter();
        let entries = entries.map(|(entry, value)| (entry_name(entry), value.as_str()));
        let engine = self.requests.engine();
        let reset = engine.reset_key(entries, limit);
        let KeyReset {
            forgotten,
            limits,
            on_all_hosts,
            on_this_host,
        } = reset.map_err(text)?;
        Ok(Reset {
            forgotten,
            limits,
            on_all_hosts,
            on_this_host,
            ..Reset::default()
        })
    }
}

impl Agent {
    /// Decides a question that may wait; dropping the future removes it from its queue.
    pub(crate) async fn wait(&self, question: &Question) -> Result<Answer, String> {
        let decision = self.requests.handle().ask(question).map_err(text)?;
        Ok(decision.answer().await.map_err(text)?.answer)
    }

    /// The verdicts on packets of one source.
    pub(crate) fn trace(&self, source: IpAddr) -> Result<Verdicts, String> {
        self.tracer.follow(source.to_canonical())
    }

    /// Starts a capture of packets.
    pub(crate) fn capture(&self, sample: Sample, length: Duration) -> Result<CaptureParts, String> {
        let mode = self.changing.live().config().agent.mode;
        let refuses_nothing = mode == Mode::Observe && sample.of == CaptureOf::Refused;
        let note = "the config in effect only observes, so that no limit refuses a packet: capture all with --of all";
        self.capturer.start(
            sample,
            length,
            refuses_nothing
                .then(|| note.to_owned())
                .into_iter()
                .collect(),
        )
    }

    /// Subscribes a follower to events, starting with the last `last` remembered ones.
    pub(crate) fn follow(&self, last: usize, follower: Follower) -> Result<Subscription, String> {
        self.events.follow(last, follower).map_err(text)
    }
}

/// Whose bans `weir unban` lifts.
pub(crate) fn whose(owner: Option<&str>, user: Option<&str>, all: bool) -> Result<Whose, String> {
    let by_operator = |name: &str| match name {
        ban_owner::UNRECORDED => Ok(Owner::unnamed(By::Operator)),
        name => ban_owner::check(name)
            .map(|()| Owner::named(By::Operator, name))
            .map_err(text),
    };
    let Some(owner) = owner.filter(|_| !all) else {
        return Ok(if all {
            Whose::Everybody
        } else {
            Whose::User(by_operator(user.unwrap_or(ban_owner::ROOT))?)
        });
    };
    match owner.split_once(':') {
        _ if owner == "limit" => Ok(Whose::Owner(Owner::unnamed(By::Limit))),
        Some(("limit", name)) => Ok(Whose::Owner(Owner::named(By::Limit, name))),
        Some(("host", name)) if is_printable(name) => Ok(Whose::Host(name.to_owned())),
        Some(("list", _)) => Err(feed_error(owner)),
        _ if owner == "crowdsec" => Err(feed_error(owner)),
        _ => Ok(Whose::Owner(by_operator(owner)?)),
    }
}

fn feed_error(owner: &str) -> String {
    format!(
        "{owner} bans what it contains: {PROGRAM} unban CIDR --all makes an exception from all lists and from CrowdSec"
    )
}

fn prefix_key(cidr: &str) -> Option<PrefixKey> {
    prefix::parse(cidr)
        .ok()
        .map(|prefix| PrefixKey::from(&prefix))
}

/// An error for a client.
pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
