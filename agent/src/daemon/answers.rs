//! Replies on the control socket. Documents are serialised only here.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use api::allowance::Allowance;
use api::capture::CaptureOf;
use api::cluster::ClusterStatus;
use api::list::ListStatus;
use api::record::RecordStatus;
use api::request::{BanOrder, Banned, CountersReset, Request, Reset, Unbanned};
use api::source::ClassOrigin;
use config::policy::{self, Mode, Prefix};
use config::{PrefixKey, prefix};
use datapath::bans::{By, Owner};
use notifications::Notifier;

use super::agent::Agent;
use super::ban_events::ordered;
use super::capture::CaptureParts;
use super::packets::{PacketEngine, Whose};
use super::reload::{AllowanceTerms, Cause};
use super::trace::Verdicts;
use crate::allowances;
use crate::ban_owner;
use crate::ban_reason::is_printable;
use crate::daemon::events::{Follower, Subscription};
use crate::geo::ClassLists;
use crate::pcapng::Sample;
use crate::protect::{self, Detected, Exemption};
use crate::server::control::Handler;
use crate::stats::{
    ClassShare, Extent, LimitDefinition, LimitStatus, ResetError, SourceStatus, Status, View,
    ViewQuery, monotonic_nanoseconds,
};

impl Agent {
    fn status(&self, extent: Extent) -> Result<Status, String> {
        let mut status = match self.packets.load_full() {
            Some(packets) => packets.status(extent).map_err(text)?,
            None => Status {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                mode: self.changing.live().config().agent.mode.to_string(),
                uptime_seconds: self.started.elapsed().as_secs(),
                config: self.file.as_ref().map(|file| file.display().to_string()),
                notes: vec!["the config has no limits on packets".to_owned()],
                ..Status::default()
            },
        };
        status.groups = self.groups.names();
        status.counter_resets = self.counter_resets.load(Ordering::Relaxed);
        status.uptime_seconds = self.started.elapsed().as_secs();
        let requests = self.requests().current().load();
        status.notes.extend(requests.notes());
        status.reservations = requests.reservations_status();
        status.has_room = status.has_room.or_else(|| requests.has_room());
        status.notes.extend(self.groups.notes());
        status.notes.extend(self.state.notes());
        status.notes.extend(self.recorder.notes());
        status.notes.extend(self.lists.notes());
        status.ban_lists = Some(self.lists.status()).filter(|lists| !lists.lists.is_empty());
        let live = self.changing.live();
        status.notes.extend(live.databases().notes());
        status.geo = live.databases().status();
        if let Some(lists) = &mut status.ban_lists {
            of_classes(&mut lists.lists, live.databases().lists());
        }
        status.last_reload = live.last();
        status.trial = live.trial();
        status.left_out = live.left_out().to_vec();
        status
            .notes
            .extend(status.left_out.iter().map(ToString::to_string));
        (status.protected, status.never_banned) = protect::by_exemption(live.detected());
        status.allowed = live.allowances().to_vec();
        status.limits = LimitDefinition::of_config(live.config());
        status.never_limit = live
            .config()
            .agent
            .never_limit
            .iter()
            .map(ToString::to_string)
            .collect();
        drop(live);
        let cluster = self.cluster.load_full();
        status
            .notes
            .extend(cluster.iter().flat_map(|cluster| cluster.notes()));
        (status.attacks, status.attacks_total) = self.attacks.get();
        status.notifications = self.notifier.status();
        status.notes.extend(Notifier::notes(&status.notifications));
        let exchange = self.exchange.load_full().map(|exchange| exchange.status());
        let sharer = self.sharer.load_full();
        status
            .notes
            .extend(sharer.iter().flat_map(|sharer| sharer.notes()));
        let parts = [
            cluster.map(|cluster| cluster.status()),
            exchange,
            sharer.map(|sharer| sharer.status()),
        ];
        status.cluster = parts.into_iter().flatten().reduce(ClusterStatus::with);
        status.notes.extend(self.crowdsec.notes());
        status.crowdsec = self.crowdsec.status();
        Ok(status)
    }

    fn show(
        &self,
        source: IpAddr,
        packets: Option<Arc<PacketEngine>>,
    ) -> Result<SourceStatus, String> {
        let mut status = match packets {
            Some(packets) => packets.show(source).map_err(text)?,
            None => self.class_of(source),
        };
        let is_never_banned = {
            let live = self.changing.live();
            let detected = live.detected().iter();
            detected
                .map(|one| one.address)
                .any(|one| one == source.to_canonical())
        };
        // A ban of a wider prefix does not apply to it.
        if status.never_limit || is_never_banned {
            status.ban = None;
        } else if status.ban.is_none() {
            status.ban = self.lists.ban_of(source);
        }
        {
            let live = self.changing.live();
            let databases = live.databases();
            let listed = databases
                .lists()
                .of_address(live.config(), source.to_canonical());
            status.class_from = listed.map(|(name, listed)| ClassOrigin {
                origin: format!("list:{name}"),
                cidr: listed.prefix().to_string(),
                since: u64::from(listed.since),
            });
        }
        status.allowed = self.allowance_of(source);
        let is_exempt = |allowance: &Allowance| allowance.times.is_none();
        status.never_limit |= status.allowed.as_ref().is_some_and(is_exempt);
        status.exempt = self.exempt(source, &status);
        status.requests = self
            .requests
            .engine()
            .requests_of(source, self.requests.now());
        Ok(status)
    }

    /// The exemption for a while that covers a source for the longest time; else what raises its limits.
    fn allowance_of(&self, source: IpAddr) -> Option<Allowance> {
        let source = source.to_canonical();
        let live = self.changing.live();
        let covers = |allowance: &&Allowance| {
            allowances::prefix_of(allowance).is_some_and(|prefix| prefix.contains(source))
        };
        let covering = || live.allowances().iter().filter(covers);
        let exempt = covering().filter(|allowance| allowance.times.is_none());
        let length = |allowance: &&Allowance| {
            allowances::prefix_of(allowance).map(|prefix| prefix.mapped_length())
        };
        exempt
            .max_by_key(|allowance| allowance.until)
            .or_else(|| covering().max_by_key(length))
            .cloned()
    }

    /// The status of a source whose packets are not limited.
    fn class_of(&self, source: IpAddr) -> SourceStatus {
        let address = source.to_canonical();
        let live = self.changing.live();
        let config = live.config();
        let classes = live.databases().classes(config.classes.clone());
        let class = policy::class_of(&classes, address).map(|class| class.name.clone());
        SourceStatus {
            source: source.to_string(),
            class: class.unwrap_or_else(|| "default".to_owned()),
            never_limit: config
                .agent
                .never_limit
                .iter()
                .any(|prefix| prefix.contains(address)),
            ..SourceStatus::default()
        }
    }

    /// Why no limit applies to a source.
    fn exempt(&self, source: IpAddr, status: &SourceStatus) -> Option<String> {
        let source = source.to_canonical();
        let live = self.changing.live();
        let config = live.config();
        if !status.never_limit {
            let class = config
                .classes
                .iter()
                .find(|class| class.name == status.class)?;
            let is_unlimited = class.unlimited;
            return is_unlimited.then(|| format!("class {} is unlimited", class.name));
        }
        let named = config
            .agent
            .never_limit
            .iter()
            .find(|prefix| prefix.contains(source));
        let detected = live.detected().iter().find(|one| one.address == source);
        let protected = || {
            let Detected { why, .. } = detected?;
            Some(match detected?.exemption() {
                Exemption::WithinAllowance => {
                    format!("it is {why}, up to 10,000 packets a second on each interface")
                }
                Exemption::Full | Exemption::FromBans => format!("it is {why}"),
            })
        };
        Some(
            named
                .map(|prefix| format!("never_limit has {prefix}"))
                .or_else(protected)
                .or_else(|| status.allowed.as_ref().map(allowances::terms))
                .unwrap_or_else(|| "yes".to_owned()),
        )
    }

    fn view(&self, query: ViewQuery) -> Result<View, String> {
        let sources = match self.packets.load_full() {
            Some(packets) => packets.view(&query)?,
            None => View::default(),
        };
        let prefixes = query
            .prefixes
            .map(|share| self.prefixes.summary(share))
            .transpose()?;
        Ok(View {
            prefixes,
            status: self.status(Extent::Whole)?,
            limits: self.limits(Extent::Whole)?,
            groups: self.groups.statuses(),
            ..sources
        })
    }

    fn record(&self, for_seconds: f64) -> Result<RecordStatus, String> {
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

    fn reset_counters(&self) -> Result<CountersReset, String> {
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

    fn order_bans(&self, packets: &PacketEngine, orders: &[BanOrder]) -> Result<Banned, String> {
        let exceptions = packets.decision_counts().1.len();
        let banned = packets.order_bans(orders);
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
    fn unban(&self, cidrs: &[String], whose: &Whose) -> Result<Unbanned, String> {
        let unbanned = self.packet_engine()?.lift_bans(cidrs, whose);
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

    /// Waits until changes of bans survive a kill, unless the disk hangs.
    fn flush_bans(&self) -> Result<(), String> {
        self.state
            .journal()
            .map_or(Ok(()), |journal| journal.flush())
    }

    fn limits(&self, extent: Extent) -> Result<Vec<LimitStatus>, String> {
        let mut limits: Vec<LimitStatus> = match self.packets.load_full() {
            Some(packets) => packets.limits(extent).map_err(text)?,
            None => Vec::new(),
        };
        limits.extend(self.requests.engine().statuses());
        let classes = ClassShare::all(self.changing.live().config());
        limits
            .iter_mut()
            .for_each(|limit| limit.definition.classes.clone_from(&classes));
        Ok(limits)
    }

    /// The packet engine, for commands that require it.
    fn packet_engine(&self) -> Result<Arc<PacketEngine>, String> {
        let none = || {
            "this command requires a limit on packets, and the config in effect has none".to_owned()
        };
        self.packets().ok_or_else(none)
    }

    /// Resets the states of a prefix's addresses under limits on packets and on requests.
    fn reset(&self, prefix: &Prefix, limit: Option<&str>) -> Result<Reset, String> {
        let has_requests = !self.changing.live().config().decide.limits.is_empty();
        let requests = self.requests.engine();
        let too_many = |(limit, keys)| ResetError::TooManyKeys {
            prefix: *prefix,
            limit,
            keys,
        };
        requests
            .check_reset(prefix, limit)
            .map_err(too_many)
            .map_err(text)?;
        let (of_packets, mut kept) = match self.packet_engine() {
            Ok(packets) => {
                let reset = packets.reset(prefix, limit).map_err(text)?;
                (reset.forgotten, reset.kept)
            }
            Err(_) if has_requests => (None, Vec::new()),
            Err(none) => return Err(none),
        };
        let (of_requests, others) = requests.reset_sources(prefix, limit);
        kept.extend(others);
        if let (Some(limit), true) = (limit, of_packets.is_none() && of_requests.is_none()) {
            return Err(format!(
                "limit {limit:?} counts by more than the address: agent reset --limit {limit} resets every key"
            ));
        }
        let (of_packets, of_requests) = (of_packets.unwrap_or(0), of_requests.unwrap_or(0));
        Ok(Reset {
            forgotten: of_packets + of_requests,
            kept,
        })
    }

    fn reset_limit(&self, limit: &str) -> Result<Reset, String> {
        let forgotten = match (self.requests.engine().reset(limit), self.packets()) {
            (Some(forgotten), _) => forgotten,
            (None, Some(packets)) => packets.reset_limit(limit)?,
            (None, None) => {
                return Err(format!("unknown limit {limit:?}: agent limits lists all"));
            }
        };
        let kept = Vec::new();
        Ok(Reset { forgotten, kept })
    }
}

impl Handler for Agent {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        match request {
            Request::Status => json(self.status(Extent::Whole)?),
            Request::Limits => json(self.limits(Extent::Whole)?),
            Request::Top => json(self.packets().map_or(Ok(Vec::new()), |packets| packets.top()).map_err(text)?),
            Request::HeavyPrefixes { share } => json(self.prefixes.summary(share)?),
            Request::View { query } => json(self.view(query)?),
            Request::Show { source } => json(self.show(source.to_canonical(), self.packets())?),
            Request::TestNotifications { name } => json(self.notifier.test(name.as_deref())?),
            Request::Reset { source, limit } => {
                json(self.reset(&Prefix::of_address(source.to_canonical()), limit.as_deref())?)
            }
            Request::ResetPrefix { prefix, limit } => {
                let prefix = config::prefix::parse(&prefix).map_err(|wrong| wrong.to_string())?;
                json(self.reset(&prefix, limit.as_deref())?)
            }
            Request::ResetLimit { limit } => json(self.reset_limit(&limit)?),
            Request::ResetCounters => json(self.reset_counters()?),
            Request::Ban { orders } => json(self.order_bans(&*self.packet_engine()?, &orders)?),
            Request::Unban { cidrs, owner, user, all } => {
                json(self.unban(&cidrs, &whose(owner.as_deref(), user.as_deref(), all)?)?)
            }
            Request::UnbanAll => {
                let unbanned = self.packet_engine()?.lift_all_bans();
                let _ = self.flush_bans();
                json(unbanned?)
            }
            Request::Allow { cidrs, for_seconds, times, reason, owner } => {
                json(self.allow(&cidrs, AllowanceTerms { for_seconds, times, reason, owner })?)
            }
            Request::Disallow { cidrs } => json(self.disallow(&cidrs)?),
            Request::Allowances => json(self.changing.live().allowances()),
            Request::Bans => json(self.packets().map_or(Ok(Vec::new()), |packets| packets.bans()).map_err(text)?),
            Request::Decide { question } => {
                json(self.requests.engine().decide(&question, self.requests.now()).map_err(text)?)
            }
            Request::Reload { operator, file } => json(match file.and_then(|named| self.other_file(&named)) {
                Some(other) => other,
                None => self.reload(Cause::Command, operator),
            }),
            Request::Try { file, text, for_seconds, operator } => {
                let time = Duration::try_from_secs_f64(for_seconds).unwrap_or_default();
                json(self.try_config(&file, text, time, operator))
            }
            Request::Compare { file, text, operator } => json(self.compare(file.as_deref(), text, operator)),
            Request::Confirm => json(self.confirm()?),
            Request::Revert => json(self.revert()),
            Request::Record { for_seconds } => json(self.record(for_seconds)?),
            Request::StopRecording => json(self.recorder.stop()?),
            Request::Recording => json(self.recorder.status()),
            Request::Events => json(self.events.recent().iter().map(|event| &**event).collect::<Vec<_>>()),
            Request::Follow { .. } | Request::Trace { .. } | Request::Capture { .. } => {
                Err("events, verdicts and captures are followed line by line, which needs another connection"
                    .to_owned())
            }
            Request::Groups => json(self.groups.statuses()),
            Request::Usage { group, from, to } => {
                json(self.groups.usage(group.as_deref(), from.as_deref(), to.as_deref()))
            }
            Request::Emergency { group, what } => json(self.groups.emergency(group, what)?),
        }
    }

    fn counters(&self) -> Result<View, String> {
        Ok(View {
            at_seconds: monotonic_nanoseconds() as f64 / 1e9,
            status: self.status(Extent::Counters)?,
            limits: self.limits(Extent::Counters)?,
            groups: self.groups.statuses(),
            ..View::default()
        })
    }

    async fn wait(&self, question: &decide::Question) -> Result<serde_json::Value, String> {
        let decision = self.requests.handle().ask(question).map_err(text)?;
        json(decision.answer().await.map_err(text)?.answer)
    }

    fn trace(&self, source: IpAddr) -> Result<Verdicts, String> {
        self.tracer.follow(source.to_canonical())
    }

    fn capture(&self, sample: Sample, length: Duration) -> Result<CaptureParts, String> {
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

    fn follow(&self, last: usize, follower: Follower) -> Result<Subscription, String> {
        self.events.follow(last, follower).map_err(text)
    }
}

/// Whose bans `agent unban` lifts.
fn whose(owner: Option<&str>, user: Option<&str>, all: bool) -> Result<Whose, String> {
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
        "{owner} bans what it contains: agent unban CIDR --all makes an exception from all lists and from CrowdSec"
    )
}

fn prefix_key(cidr: &str) -> Option<PrefixKey> {
    prefix::parse(cidr)
        .ok()
        .map(|prefix| PrefixKey::from(&prefix))
}

fn json(document: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(document).map_err(text)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Corrects the status of lists whose newest content is not in effect in their classes.
fn of_classes(statuses: &mut [ListStatus], lists: &ClassLists) {
    for status in statuses {
        let Some((prefixes, Some(why))) = lists.in_effect(&status.name) else {
            continue;
        };
        status.prefixes = prefixes;
        status
            .problem
            .get_or_insert_with(|| format!("it could not be put in effect: {why}"));
    }
}
