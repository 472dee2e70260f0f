//! The cluster in `weir status`.

use api::cluster::{SharedBansStatus, ZoneStatus};
use cluster::ClusterStatus;
use config::human;

use crate::cli::table::{self, number};

/// The store, then each host's share of each limit.
pub fn text(cluster: &ClusterStatus) -> String {
    let mut store = format!("{} at {}", cluster.health, cluster.store.join(", "));
    if let (Some(answered_in), Some(ago)) =
        (cluster.answered_in_seconds, cluster.last_answer_seconds_ago)
    {
        store.push_str(&format!(
            ", replied {} within {}",
            human::ago(ago),
            human::seconds(answered_in)
        ));
    }
    if let Some(error) = cluster.last_error.as_ref().filter(|_| cluster.failures > 0) {
        store.push_str(&format!(
            "; {} failed requests, the last: {error}",
            number(cluster.failures)
        ));
    }
    let mut pairs = vec![("cluster node", cluster.node.clone()), ("store", store)];
    if !cluster.limits.is_empty() {
        pairs.push(("when store is down", cluster.when_store_is_down.clone()));
        pairs.push(("hosts seen", number(cluster.hosts)));
    }
    if let Some(zone) = &cluster.zone {
        pairs.push(("zone", of_zone(zone)));
    }
    if let Some(bans) = &cluster.bans {
        let SharedBansStatus {
            others,
            published,
            waiting,
            left_out,
            ..
        } = bans;
        let numbers = [
            ("of other hosts", others),
            ("of this host", published),
            ("wait", waiting),
            ("left out", left_out),
        ];
        let text = |(what, count): &(&str, &u64)| format!("{} {what}", number(**count));
        pairs.push((
            "shared bans",
            numbers.iter().map(text).collect::<Vec<_>>().join(", "),
        ));
    }
    let head = table::pairs(pairs);
    if cluster.limits.is_empty() {
        return head;
    }
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let rows = cluster.limits.iter().flat_map(|limit| {
        let from = if limit.is_settling {
            format!("{}, settling", limit.share_from)
        } else {
            limit.share_from.clone()
        };
        let zone = limit.zone_share.map(|share| {
            [
                limit.name.clone(),
                "this zone".to_owned(),
                percent(share),
                format!("one of {}", number(limit.zones)),
                String::new(),
            ]
        });
        let demand = |demand: f64| format!("{demand:.1}/s");
        let own = [
            limit.name.clone(),
            "this one".to_owned(),
            percent(limit.share),
            from,
            demand(limit.demand_per_second),
        ];
        let others = limit.shares.iter().map(move |host| {
            let share = percent(host.share);
            [
                limit.name.clone(),
                host.host.clone(),
                share,
                "store".to_owned(),
                demand(host.demand_per_second),
            ]
        });
        std::iter::once(own).chain(zone).chain(others)
    });
    format!(
        "{head}\n\n{}",
        table::render(["LIMIT", "HOST", "SHARE", "FROM", "DEMAND"], 2, rows)
    )
}

/// The zone, the store of all zones, and the limits for which this host leases the zone's share.
fn of_zone(zone: &ZoneStatus) -> String {
    let mut text = format!("{}, of those at {}", zone.name, zone.store.join(", "));
    if !zone.leads.is_empty() {
        let (health, leads) = (&zone.health, zone.leads.join(", "));
        text.push_str(&format!(" ({health}); leads it for {leads}"));
    }
    if let Some(error) = zone.last_error.as_ref().filter(|_| zone.failures > 0) {
        let count = number(zone.failures);
        text.push_str(&format!(
            "; {count} failed requests to the store of all zones, the last: {error}"
        ));
    }
    text
}
