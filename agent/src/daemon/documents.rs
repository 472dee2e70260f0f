//! The documents of the running agent.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use api::allowance::Allowance;
use api::fair::FairLevel;
use api::list::ListStatus;
use api::source::{ClassOrigin, FairShare};
use cgroup::GroupStatus;
use config::policy;
use notifications::Notifier;

use super::agent::Agent;
use super::fair;
use super::operations::text;
use crate::allowances;
use crate::geo::ClassLists;
use crate::protect::{self, Detected, Exemption};
use crate::stats::{
    BansRow, ClassShare, Extent, LimitDefinition, LimitStatus, SourceStatus, Status, TopRow, View,
    ViewQuery,
};

/// The documents from which metrics and the live page are made.
pub trait AgentDocuments: Send + Sync + 'static {
    /// `weir status`.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read; so for all documents.
    fn status(&self, extent: Extent) -> Result<Status, String>;

    /// `weir limits`.
    ///
    /// # Errors
    ///
    /// As for all documents.
    fn limits(&self, extent: Extent) -> Result<Vec<LimitStatus>, String>;

    /// `weir groups`.
    fn groups(&self) -> Vec<GroupStatus>;

    /// `weir bans`.
    ///
    /// # Errors
    ///
    /// As for all documents.
    fn bans(&self) -> Result<Vec<BansRow>, String>;

    /// `weir top`.
    ///
    /// # Errors
    ///
    /// Also when the query is invalid.
    fn view(&self, query: &ViewQuery) -> Result<View, String>;
}

impl Agent {
    /// The part of the config in effect, with its notes.
    fn status_of_config(&self) -> Status {
        let (mut lists, of_lists) = self.lists.status();
        let live = self.changing.live();
        let (config, databases, left_out) = (live.config(), live.databases(), live.left_out());
        of_classes(&mut lists.lists, databases.lists());
        let (protected, never_banned) = protect::by_exemption(live.detected());
        let of_left_out = left_out.iter().map(ToString::to_string).collect();
        Status {
            last_reload: live.last(),
            trial: live.trial(),
            limits: LimitDefinition::of_config(config),
            never_limit: config
                .agent
                .never_limit
                .iter()
                .map(ToString::to_string)
                .collect(),
            protected,
            never_banned,
            allowed: live.allowances().to_vec(),
            left_out: left_out.to_vec(),
            notes: [of_lists, databases.notes(), of_left_out].concat(),
            fair: self.fair.statuses(config),
            ban_lists: Some(lists).filter(|lists| !lists.lists.is_empty()),
            geo: databases.status(),
            ..Status::default()
        }
    }
}

impl AgentDocuments for Agent {
    fn status(&self, extent: Extent) -> Result<Status, String> {
        // A change replaces the packets first, then the config, then the report on the fleet's rules. In the reverse order, no
        // part is older than one that was read before it.
        let (rules, of_rules) = self.rollout.status();
        let of_config = self.status_of_config();
        let of_packets = match self.packets.load_full() {
            Some(packets) => packets
                .for_client(|in_effect| in_effect.status(extent))
                .map_err(text)?,
            None => Status {
                mode: self.changing.live().config().agent.mode.to_string(),
                notes: vec!["the config has no limits on packets".to_owned()],
                ..Status::default()
            },
        };
        let requests = self.requests().current().load();
        let (cluster, of_cluster) = self.fleet.status();
        let (crowdsec, of_crowdsec) = self.crowdsec.status();
        let (attacks, attacks_total) = self.attacks.get();
        let notifications = self.notifier.status();
        let notes = [
            of_packets.notes,
            requests.notes().collect(),
            self.groups.notes(),
            self.state.notes(),
            self.recorder.notes(),
            of_config.notes,
            of_cluster,
        ];
        let mut status = Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: of_packets.mode,
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.file.as_ref().map(|file| file.display().to_string()),
            interfaces: of_packets.interfaces,
            totals: of_packets.totals,
            sources: of_packets.sources,
            bypass: of_packets.bypass,
            proofs: of_packets.proofs,
            bans: of_packets.bans,
            counter_resets: self.counter_resets.load(Ordering::Relaxed),
            has_room: of_packets.has_room.or_else(|| requests.has_room()),
            groups: self.groups.names(),
            memory: of_packets.memory,
            notes: notes.concat(),
            attacks,
            attacks_total,
            notifications,
            cluster,
            reservations: requests.reservations_status(),
            crowdsec,
            rules,
            ..of_config
        };
        status.notes.extend(fair_notes(&status));
        let of_notifications = Notifier::notes(&status.notifications);
        status
            .notes
            .extend([of_notifications, of_crowdsec, of_rules].concat());
        Ok(status)
    }

    fn limits(&self, extent: Extent) -> Result<Vec<LimitStatus>, String> {
        let mut limits: Vec<LimitStatus> = match self.packets.load_full() {
            Some(packets) => packets
                .for_client(|in_effect| in_effect.reader().limits(extent))
                .map_err(text)?,
            None => Vec::new(),
        };
        limits.extend(self.requests.engine().statuses());
        let live = self.changing.live();
        let classes = ClassShare::all(live.config());
        let fair = self.fair.levels(live.config());
        drop(live);
        for limit in &mut limits {
            limit.definition.classes.clone_from(&classes);
            let mut fair = fair.iter();
            let of_limit = fair.find(|fair| fair.limit == limit.definition.name);
            limit.level = of_limit.map(FairLevel::from);
        }
        Ok(limits)
    }

    fn groups(&self) -> Vec<GroupStatus> {
        self.groups.statuses()
    }

    fn bans(&self) -> Result<Vec<BansRow>, String> {
        self.packets()
            .map_or(Ok(Vec::new()), |packets| {
                packets.for_client(|in_effect| in_effect.list_bans())
            })
            .map_err(text)
    }

    fn view(&self, query: &ViewQuery) -> Result<View, String> {
        let sources = match self.packets.load_full() {
            Some(packets) => packets.view(query)?,
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
            groups: self.groups(),
            ..sources
        })
    }
}

/// The notes on each fair limit.
fn fair_notes(status: &Status) -> Vec<String> {
    let notes = fair::all_notes(status);
    notes.iter().map(ToString::to_string).collect()
}

impl Agent {
    /// `weir top --once`.
    pub(crate) fn top(&self) -> Result<Vec<TopRow>, String> {
        self.packets()
            .map_or(Ok(Vec::new()), |packets| {
                packets.for_client(|in_effect| in_effect.reader().top())
            })
            .map_err(text)
    }

    /// `weir show`.
    pub(crate) fn show(&self, source: IpAddr) -> Result<SourceStatus, String> {
        let mut status = match self.packets() {
            Some(packets) => packets
                .for_client(|in_effect| in_effect.reader().show(source))
                .map_err(text)?,
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
        let fair = self.fair.levels(self.changing.live().config());
        for limit in &mut status.limits {
            let of_limit = fair.iter().find(|fair| fair.limit == limit.name);
            limit.fair = of_limit.map(|fair| FairShare {
                state: fair.state,
                level: fair.level,
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
