//! Metrics of bans from elsewhere: lists, databases of networks and countries, CrowdSec.

use api::crowdsec::CrowdSecStatus;
use api::geo::GeoStatus;
use api::list::ListsStatus;
use prometheus::Error;

use super::page::Page;

impl Page<'_> {
    pub(super) fn ban_lists(&mut self, lists: &ListsStatus) -> Result<(), Error> {
        let all = || lists.lists.iter();
        self.gauge(
            "weir_list_prefixes",
            "Prefixes of a ban list.",
            ["list"],
            all().map(|list| ([list.name.as_str()], list.prefixes)),
        )?;
        self.counter(
            "weir_list_throttled_packets_total",
            "Packets that a ban list refused; among the banned ones.",
            ["list"],
            all().map(|list| ([list.name.as_str()], list.throttled_packets)),
        )?;
        self.gauge(
            "weir_list_failing",
            "1 while a ban list cannot be read or put in effect; its last content stays in effect.",
            ["list"],
            all().map(|list| ([list.name.as_str()], u64::from(list.problem.is_some()))),
        )?;
        self.gauge(
            "weir_list_memory_bytes",
            "Kernel memory of all ban lists.",
            [],
            [([], lists.memory_bytes)],
        )
    }

    pub(super) fn databases(&mut self, databases: &[GeoStatus]) -> Result<(), Error> {
        self.gauge(
            "weir_geo_prefixes",
            "Prefixes in effect of a database of networks or countries.",
            ["database"],
            databases
                .iter()
                .map(|it| ([it.database.as_str()], it.prefixes)),
        )?;
        self.gauge(
            "weir_geo_built_timestamp_seconds",
            "When a database's publisher built the content in effect, in seconds since 1970.",
            ["database"],
            databases
                .iter()
                .filter_map(|it| Some(([it.database.as_str()], it.built?))),
        )?;
        self.gauge(
            "weir_geo_failing",
            "1 while a database cannot be used; its last content stays in effect.",
            ["database"],
            databases
                .iter()
                .map(|it| ([it.database.as_str()], u64::from(it.problem.is_some()))),
        )
    }

    pub(super) fn crowdsec(&mut self, crowdsec: &CrowdSecStatus) -> Result<(), Error> {
        let is_up = u64::from(crowdsec.state == "ok");
        self.gauge(
            "weir_crowdsec_up",
            "1 if the last pull of decisions succeeded.",
            [],
            [([], is_up)],
        )?;
        if let Some(ago) = crowdsec.last_pull_seconds_ago {
            self.ratio(
                "weir_crowdsec_last_pull_age_seconds",
                "Since decisions were last pulled.",
                [],
                [([], ago)],
            )?;
        }
        self.gauge(
            "weir_crowdsec_decisions",
            "Decisions that apply.",
            [],
            [([], crowdsec.decisions)],
        )?;
        let banned = crowdsec.banned_prefixes;
        self.gauge(
            "weir_crowdsec_banned_prefixes",
            "Prefixes banned by decisions.",
            [],
            [([], banned)],
        )?;
        let exceptions = crowdsec.exceptions.len() as u64;
        self.gauge(
            "weir_crowdsec_exceptions",
            "Prefixes to which no decision applies.",
            [],
            [([], exceptions)],
        )?;
        let ignored = &crowdsec.ignored;
        self.gauge(
            "weir_crowdsec_ignored_decisions",
            "Decisions that are not enforced.",
            ["reason"],
            [
                (["scope"], ignored.scope),
                (["type"], ignored.r#type),
                (["invalid"], ignored.invalid),
                (["wide"], ignored.wide),
                (["simulated"], ignored.simulated),
                (["own"], ignored.own),
                (["excess"], ignored.excess),
            ],
        )?;
        self.counter(
            "weir_crowdsec_pulls_total",
            "Pulls of decisions.",
            ["result"],
            [
                (["ok"], crowdsec.pulls),
                (["failed"], crowdsec.failed_pulls),
            ],
        )?;
        let Some(alerts) = &crowdsec.alerts else {
            return Ok(());
        };
        self.counter(
            "weir_crowdsec_alerts_total",
            "Alerts of bans by limits.",
            ["result"],
            [(["sent"], alerts.sent), (["dropped"], alerts.dropped)],
        )?;
        self.gauge(
            "weir_crowdsec_alerts_waiting",
            "Alerts that wait for the local API.",
            [],
            [([], alerts.waiting)],
        )
    }
}
