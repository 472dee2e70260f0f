//! Metrics of packets, bans and the table of sources.

use prometheus::Error;

use super::page::Page;
use crate::stats::Status;

impl Page<'_> {
    pub(super) fn packets(&mut self, status: &Status) -> Result<(), Error> {
        let (totals, sources, bypass) = (&status.totals, &status.sources, &status.bypass);
        self.counter(
            "weir_packets_total",
            "All packets, by what became of them.",
            ["verdict"],
            [
                (["passed"], totals.passed_packets),
                (["throttled"], totals.throttled_packets),
            ],
        )?;
        self.counter(
            "weir_bytes_total",
            "Their bytes.",
            ["verdict"],
            [
                (["passed"], totals.passed_bytes),
                (["throttled"], totals.throttled_bytes),
            ],
        )?;
        self.counter(
            "weir_bypass_packets_total",
            "Packets that came to no limit: malformed, banned and throttled ones are refused, all others pass.",
            ["reason"],
            [
                (["unlimited"], bypass.unlimited),
                (["not_ip"], bypass.not_ip),
                (["essential"], bypass.essential),
                (["never_limit"], bypass.never_limit),
                (["malformed"], bypass.malformed),
                (["banned"], bypass.banned),
                (["essential_throttled"], bypass.essential_throttled),
                (["not_ip_throttled"], bypass.not_ip_throttled),
            ],
        )?;
        if let Some(proofs) = &status.proofs {
            self.counter(
                "weir_proof_packets_total",
                "SYNs, ACKs and resets of sources that prove their address, by outcome.",
                ["packet", "outcome"],
                [
                    (["syn", "answered"], proofs.syns_answered),
                    (["syn", "challenged"], proofs.syns_challenged),
                    (["syn", "refused"], proofs.syns_refused),
                    (["syn", "passed"], proofs.syns_passed),
                    (["syn", "closed_port"], proofs.syns_to_closed_ports),
                    (["ack", "accepted"], proofs.acks_accepted),
                    (["ack", "limited"], proofs.acks_limited),
                    (["ack", "refused"], proofs.acks_refused),
                    (["reset", "accepted"], proofs.resets_accepted),
                ],
            )?;
        }
        self.gauge(
            "weir_bans",
            "Prefixes that are banned.",
            [],
            [([], status.bans)],
        )?;
        if let Some(lists) = &status.ban_lists {
            self.ban_lists(lists)?;
        }
        if !status.geo.is_empty() {
            self.databases(&status.geo)?;
        }
        self.gauge(
            "weir_sources_tracked",
            "Keys whose allowance is not whole at this moment, of all limits together.",
            [],
            [([], sources.tracked)],
        )?;
        self.gauge(
            "weir_sources_capacity",
            "Capacity of the table in keys.",
            [],
            [([], sources.capacity)],
        )?;
        self.counter(
            "weir_sources_evicted_total",
            "Keys evicted by other busy keys.",
            [],
            [([], sources.evicted)],
        )?;
        self.counter(
            "weir_sources_full_packets_total",
            "Packets of new keys in a full table, by the outcome of on_full.",
            ["outcome"],
            [
                (["passed"], sources.full_passed),
                (["throttled"], sources.full_throttled),
                (["shared"], sources.full_shared),
            ],
        )?;
        self.counter(
            "weir_contended_packets_total",
            "Packets refused since other CPUs kept changing their state.",
            [],
            [([], sources.contended)],
        )
    }
}
