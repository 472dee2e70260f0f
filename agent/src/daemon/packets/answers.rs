//! Replies to requests about packets.

use std::net::IpAddr;
use std::sync::PoisonError;

use api::request::{BanOrder, Banned, CountersReset, Unbanned};
use config::policy::Prefix;
use config::prefix;
use datapath::LoadError;
use datapath::compile::PrefixKey;
use datapath::memory::{MemoryStatus, Room};

use super::engine::PacketEngine;
use super::in_effect::InEffect;
use super::lifted_bans::Whose;
use crate::stats::{
    BansRow, Extent, LimitStatus, ResetError, ResetSources, SourceStatus, Status, TopRow, View,
    ViewQuery, monotonic_nanoseconds,
};

impl PacketEngine {
    /// One client at a time, so that the agent's own work waits for at most one.
    fn for_client<T>(&self, answer: impl FnOnce(&mut InEffect) -> T) -> T {
        let _turn = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        answer(&mut self.lock())
    }

    /// The packet part of `agent status`.
    ///
    /// # Errors
    ///
    /// When a map or the host's interfaces cannot be read.
    pub fn status(&self, extent: Extent) -> Result<Status, LoadError> {
        self.for_client(|in_effect| self.status_of(in_effect, extent))
    }

    /// `agent limits`: limits on packets.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn limits(&self, extent: Extent) -> Result<Vec<LimitStatus>, LoadError> {
        self.for_client(|in_effect| in_effect.reader().limits(extent))
    }

    /// `agent top --once`.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn top(&self) -> Result<Vec<TopRow>, LoadError> {
        self.for_client(|in_effect| in_effect.reader().top())
    }

    /// Sources for `agent top`.
    ///
    /// # Errors
    ///
    /// When the query is invalid or a map cannot be read.
    pub fn view(&self, query: &ViewQuery) -> Result<View, String> {
        self.for_client(|in_effect| self.view_of(in_effect, query))
    }

    /// The packet part of `agent show IP`.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn show(&self, source: IpAddr) -> Result<SourceStatus, LoadError> {
        self.for_client(|in_effect| in_effect.reader().show(source))
    }

    /// Resets the states of a prefix's addresses, under one limit or every one.
    ///
    /// # Errors
    ///
    /// When the prefix has too many keys, or a map cannot be written.
    pub fn reset(&self, prefix: &Prefix, limit: Option<&str>) -> Result<ResetSources, ResetError> {
        self.for_client(|in_effect| in_effect.reader().reset(prefix, limit))
    }

    /// Resets the state of every source under a limit; returns the number of states.
    ///
    /// # Errors
    ///
    /// When there is no such limit or a map cannot be written.
    pub fn reset_limit(&self, limit: &str) -> Result<u64, String> {
        self.for_client(|in_effect| {
            let reset = in_effect
                .reader()
                .reset_limit(limit)
                .map_err(|error| error.to_string())?;
            reset.ok_or_else(|| {
                let names: Vec<&str> = in_effect
                    .config
                    .limits
                    .iter()
                    .map(|limit| limit.name.as_str())
                    .collect();
                format!("unknown limit {limit:?} (available: {})", names.join(", "))
            })
        })
    }

    /// Sets the counters of every limit to 0.
    ///
    /// # Errors
    ///
    /// When they cannot be read, or their present values cannot be saved.
    pub fn reset_counters(&self) -> Result<CountersReset, LoadError> {
        self.for_client(|in_effect| in_effect.reset_counters(&self.pins))
    }

    /// Bans prefixes, all of them or none.
    ///
    /// # Errors
    ///
    /// When an order is invalid or the kernel refuses.
    pub fn order_bans(&self, orders: &[BanOrder]) -> Result<Banned, String> {
        self.for_client(|in_effect| in_effect.order_bans(orders))
    }

    /// Lifts bans of these prefixes.
    ///
    /// # Errors
    ///
    /// When a prefix is invalid or the kernel refuses.
    pub fn lift_bans(&self, cidrs: &[String], whose: &Whose) -> Result<Unbanned, String> {
        self.for_client(|in_effect| in_effect.lift_bans(cidrs, whose))
    }

    /// Lifts every ban.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn lift_all_bans(&self) -> Result<Unbanned, String> {
        self.for_client(InEffect::lift_all_bans)
    }

    /// `agent bans`.
    ///
    /// # Errors
    ///
    /// When the kernel's table of bans cannot be read.
    pub fn bans(&self) -> Result<Vec<BansRow>, LoadError> {
        self.for_client(InEffect::list_bans)
    }

    /// The sources of the view; other parts of the document are added elsewhere.
    fn view_of(&self, in_effect: &InEffect, query: &ViewQuery) -> Result<View, String> {
        let within = query.within.as_deref().map(prefix::parse).transpose();
        let within = within.map_err(|wrong| wrong.to_string())?;
        let within = within.as_ref().map(PrefixKey::from);
        self.live()
            .view(&in_effect.reader(), query, within)
            .map_err(|error| error.to_string())
    }

    fn status_of(&self, in_effect: &InEffect, extent: Extent) -> Result<Status, LoadError> {
        let (totals, sources, bypass, proofs) = in_effect.reader().totals(extent)?;
        let interfaces = in_effect.interfaces()?;
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: in_effect.config.agent.mode.to_string(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.file.clone(),
            interfaces,
            totals,
            sources,
            bypass,
            proofs,
            bans: in_effect.bans.len() as u64,
            groups: Vec::new(),
            has_room: in_effect
                .is_elastic()
                .then_some(in_effect.runtime.room_until > monotonic_nanoseconds()),
            memory: Some(MemoryStatus {
                in_effect: in_effect.footprint,
                limit: Room::now().tightest().cloned(),
            }),
            notes: in_effect.notes(),
            ..Status::default()
        })
    }
}
