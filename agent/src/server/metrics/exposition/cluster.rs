//! Metrics of the cluster.

use cluster::ClusterStatus;
use prometheus::Error;

use super::page::Page;

impl Page<'_> {
    pub(super) fn cluster(&mut self, cluster: &ClusterStatus) -> Result<(), Error> {
        let each = || {
            cluster
                .limits
                .iter()
                .map(|limit| (limit.name.as_str(), limit))
        };
        let is_up = matches!(cluster.health.as_str(), "up" | "slow");
        self.gauge(
            "weir_cluster_store_up",
            "1 while the store grants shares.",
            [],
            [([], u64::from(is_up))],
        )?;
        if let Some(ago) = cluster.last_answer_seconds_ago {
            self.ratio(
                "weir_cluster_last_answer_age_seconds",
                "Since the store last granted a share.",
                [],
                [([], ago)],
            )?;
        }
        self.gauge(
            "weir_cluster_hosts",
            "Hosts with a lease on a limit when the store last granted one, this host included.",
            ["limit"],
            each().map(|(name, limit)| ([name], limit.hosts)),
        )?;
        self.ratio(
            "weir_cluster_share_ratio",
            "This host's share of a limit: 1 is all of it.",
            ["limit"],
            // With `cluster = "keys"` each host enforces the whole limit, so shares do not add up.
            each()
                .filter(|(_, limit)| limit.mode != "keys")
                .map(|(name, limit)| ([name], limit.share)),
        )?;
        let of_zones = each().filter_map(|(name, limit)| Some(([name], limit.zone_share?)));
        self.ratio(
            "weir_cluster_zone_share_ratio",
            "The share of this host's zone of a limit: 1 is all of it.",
            ["limit"],
            of_zones,
        )?;
        self.gauge(
            "weir_cluster_share_leased",
            "1 while the share is a lease or keys are exchanged, 0 while it is the share without the store.",
            ["limit"],
            each().map(|(name, limit)| ([name], u64::from(limit.is_from_store()))),
        )?;
        self.counter(
            "weir_cluster_renewals_failed_total",
            "Failed renewals of leases.",
            ["limit"],
            each().map(|(name, limit)| ([name], limit.failures)),
        )?;
        self.counter(
            "weir_cluster_keys_exchanged_total",
            "Keys whose consumption was exchanged with other hosts, once for each exchange.",
            ["limit"],
            each().map(|(name, limit)| ([name], limit.keys_exchanged)),
        )?;
        self.gauge(
            "weir_cluster_keys_local",
            "Keys that the last exchange left to this host alone, since there were too many.",
            ["limit"],
            each().map(|(name, limit)| ([name], limit.keys_local)),
        )?;
        let Some(bans) = &cluster.bans else {
            return Ok(());
        };
        self.gauge(
            "weir_cluster_bans",
            "Bans of other hosts.",
            [],
            [([], bans.others)],
        )?;
        let published = bans.published;
        self.gauge(
            "weir_cluster_bans_published",
            "Bans of this host in the store.",
            [],
            [([], published)],
        )?;
        let waiting = bans.waiting;
        self.gauge(
            "weir_cluster_bans_waiting",
            "Bans and removals that wait for the store.",
            [],
            [([], waiting)],
        )?;
        let left_out = bans.left_out;
        self.gauge(
            "weir_cluster_bans_left_out",
            "Bans of this host that the store has no room for.",
            [],
            [([], left_out)],
        )?;
        self.gauge(
            "weir_cluster_bans_ignored",
            "Invalid entries in the store.",
            [],
            [([], bans.ignored)],
        )?;
        let failed = bans.failed_requests;
        self.counter(
            "weir_cluster_ban_requests_failed_total",
            "Failed requests to share bans.",
            [],
            [([], failed)],
        )
    }
}
