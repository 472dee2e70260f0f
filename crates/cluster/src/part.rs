//! One shared limit: its enforcement on this host, and this host's part in it.

use std::time::Duration;

use api::cluster::{ClusterLimitStatus, HostShareStatus};
use common::limiter::Rate;
use common::share::Share;
use config::policy::{Cluster, ClusterMode, Config, Limit, RequestLimit};
use decide::EffectiveShare;

use super::error::StoreError;
use super::ledger::{Grant, Report};
use super::member::{LeaseState, Member, Terms, Usage};
use super::past::{Past, PastLimit};
use super::store::HostShare;

/// The enforcement of a limit on this host.
pub trait Enforcer: Send {
    /// Its use so far; `None` if it cannot be read now.
    fn demand(&self) -> Option<Usage>;
    /// Enforces a share from now on.
    fn enforce(&self, in_effect: EffectiveShare);
    /// Whether enforcement ends with the agent, so that the share can be returned at once.
    fn gives_back(&self) -> bool;
}

/// The part of a limit's definition on which its leases depend.
#[derive(Clone, Debug)]
pub struct Definition {
    pub name: String,
    /// In units a second.
    pub rate: f64,
    /// The burst in units, of the strictest of its rates.
    pub units: u64,
}

impl Definition {
    #[must_use]
    pub fn packets(limit: &Limit) -> Self {
        let bursts = limit.rates.all().map(|(_, burst, _)| burst);
        Self {
            name: limit.name.clone(),
            rate: per_second(limit.rates.rate),
            units: bursts.min().unwrap_or(1),
        }
    }

    #[must_use]
    pub fn requests(limit: &RequestLimit) -> Self {
        let bursts = limit.rates.all().map(|(_, burst, _)| burst);
        Self {
            name: limit.name.clone(),
            rate: per_second(limit.rates.rate),
            units: bursts.min().unwrap_or(1),
        }
    }

    /// The definitions of a config's limits with `cluster = "shares"`.
    pub fn all(config: &Config) -> impl Iterator<Item = Self> + '_ {
        let packets = config
            .limits
            .iter()
            .filter(|limit| limit.cluster == Some(ClusterMode::Shares))
            .map(Self::packets);
        packets.chain(
            config
                .decide
                .limits
                .iter()
                .filter(|limit| limit.cluster == Some(ClusterMode::Shares))
                .map(Self::requests),
        )
    }

    #[must_use]
    pub fn terms(&self, cluster: &Cluster) -> Terms {
        Terms {
            sync: cluster.sync,
            lease: Terms::lease_for(cluster.sync),
            when_store_is_down: cluster.when_store_is_down,
            rate: self.rate,
            units: self.units.clamp(1, Share::PARTS),
            in_zone: cluster.zone.is_some(),
        }
    }

    /// A new member, with the state that earlier runs of the agent have saved.
    #[must_use]
    pub fn member(
        &self,
        cluster: &Cluster,
        past: &Past,
        host: String,
        usage: Usage,
        now: u64,
    ) -> Member {
        let new = Member::new(self.terms(cluster), host, usage, now);
        Member::after(past.limit(&self.name), past.hosts(), new)
    }
}

fn per_second(rate: Rate) -> f64 {
    rate.count as f64 * 1e9 / rate.per_nanoseconds as f64
}

/// A shared limit, and its enforcement on this host.
pub struct Shared {
    pub definition: Definition,
    pub enforcer: Box<dyn Enforcer>,
}

/// A limit and its lease.
pub(super) struct Part {
    pub(super) shared: Shared,
    pub(super) member: Member,
    /// The sequence of the pending request.
    asking: Option<u64>,
    held: EffectiveShare,
    usage: Usage,
    shares: Vec<HostShareStatus>,
    failures: u64,
    is_failing: bool,
    last_error: Option<String>,
}

impl Part {
    pub(super) fn new(shared: Shared, mut member: Member, usage: Usage, now: u64) -> Self {
        let held = member.in_effect(now);
        shared.enforcer.enforce(held);
        Self {
            shared,
            member,
            asking: None,
            held,
            usage,
            shares: Vec::new(),
            failures: 0,
            is_failing: false,
            last_error: None,
        }
    }

    /// The same limit under another config. Its share is enforced again, since the enforcement may be new as well.
    pub(super) fn under(mut self, shared: Shared, cluster: &Cluster, now: u64) -> Self {
        let usage = shared.enforcer.demand().unwrap_or_default();
        self.member = self
            .member
            .under(shared.definition.terms(cluster), usage, now);
        self.held = self.member.in_effect(now);
        shared.enforcer.enforce(self.held);
        Self {
            shared,
            usage,
            ..self
        }
    }

    /// Whether a request is due and none is pending.
    pub(super) const fn is_due(&self, now: u64) -> bool {
        self.asking.is_none() && self.member.is_due(now)
    }

    /// Ignores the reply to the pending request.
    pub(super) const fn give_up(&mut self) {
        self.asking = None;
    }

    pub(super) fn name(&self) -> &str {
        &self.shared.definition.name
    }

    pub(super) fn count(&mut self, now: u64) {
        if let Some(usage) = self.shared.enforcer.demand() {
            self.usage = usage;
        }
        self.member.count(self.usage, now);
    }

    pub(super) fn enforce(&mut self, now: u64) {
        let in_effect = self.member.in_effect(now);
        if in_effect != self.held {
            self.shared.enforcer.enforce(in_effect);
            self.held = in_effect;
        }
    }

    pub(super) const fn held(&self) -> EffectiveShare {
        self.held
    }

    pub(super) fn request(&mut self, now: u64) -> (String, Report) {
        let report = self.member.report(now);
        self.asking = Some(report.sequence);
        (self.name().to_owned(), report)
    }

    /// Whether this request is pending; ends it.
    pub(super) fn takes(&mut self, sequence: u64) -> bool {
        self.asking.take_if(|asking| *asking == sequence).is_some()
    }

    pub(super) fn granted(&mut self, asked: u64, grant: Option<Grant>, now: u64) {
        if let Some(grant) = grant {
            self.member.granted(asked, &grant, now);
            self.enforce(now);
        }
        if self.is_failing {
            self.is_failing = false;
            tracing::info!(
                limit = self.name(),
                "cluster: the lease of limit {:?} is renewed again",
                self.name()
            );
        }
    }

    /// Records a failed renewal; the next request follows after `pause`.
    pub(super) fn failed(&mut self, error: &StoreError, now: u64, pause: Duration) {
        self.failures += 1;
        // Errors of all limits are reported once, by `Health`.
        if error.is_reply() && !self.is_failing {
            self.is_failing = true;
            tracing::error!(
                limit = self.name(),
                "cluster: renewing the lease of limit {:?} failed: {error}",
                self.name()
            );
        }
        self.last_error = Some(error.to_string());
        self.member.request_after(now + pause.as_nanos() as u64);
    }

    pub(super) fn note(&self) -> Option<String> {
        let error = self.last_error.as_ref().filter(|_| self.is_failing)?;
        Some(format!(
            "renewing the lease of limit {:?} failed: {error}",
            self.name()
        ))
    }

    pub(super) fn past(&self) -> (String, PastLimit) {
        (self.name().to_owned(), self.member.past())
    }

    pub(super) fn looked(&mut self, hosts: Vec<HostShare>) {
        let factor = |parts: u64| parts as f64 / Share::PARTS as f64;
        let rate = self.shared.definition.rate;
        let status = |host: HostShare| HostShareStatus {
            share: factor(host.share),
            demand_per_second: factor(host.demand) * rate,
            host: host.host,
        };
        self.shares = hosts.into_iter().map(status).collect();
        self.shares.sort_by(|a, b| a.host.cmp(&b.host));
    }

    pub(super) fn status(&self, cluster: &Cluster) -> ClusterLimitStatus {
        let share_from = match self.member.state() {
            LeaseState::Joining => ClusterLimitStatus::JOINING.to_owned(),
            LeaseState::Leased => ClusterLimitStatus::LEASE.to_owned(),
            LeaseState::Alone => cluster.when_store_is_down.to_string(),
        };
        ClusterLimitStatus {
            name: self.name().to_owned(),
            mode: ClusterMode::Shares.to_string(),
            share: self.held.share.factor(),
            share_from,
            demand_per_second: self.member.demand(),
            hosts: self.member.hosts(),
            zones: self.member.zones(),
            zone_share: cluster
                .zone
                .as_ref()
                .filter(|_| self.member.state() == LeaseState::Leased)
                .map(|_| self.member.all().factor()),
            is_settling: self.member.is_quiet(),
            failures: self.failures,
            last_error: self.last_error.clone(),
            shares: self.shares.clone(),
            ..ClusterLimitStatus::default()
        }
    }
}
