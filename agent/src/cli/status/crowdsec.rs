//! The bouncer in `weir status`.

use api::crowdsec::{AlertsStatus, CrowdSecStatus};
use config::human;

use crate::cli::table::{self, number};

/// The most exceptions that are printed.
const MOST_EXCEPTIONS: usize = 10;

pub fn text(crowdsec: &CrowdSecStatus) -> String {
    let ago = |ago: Option<f64>| ago.map_or_else(|| "never".to_owned(), human::ago);
    let (decisions, prefixes) = (number(crowdsec.decisions), number(crowdsec.banned_prefixes));
    let decisions = format!(
        "{decisions}, {prefixes} prefixes banned, {} ignored",
        number(crowdsec.ignored.total())
    );
    let full = ago(crowdsec.last_full_pull_seconds_ago);
    let exceptions = if crowdsec.exceptions.is_empty() {
        "none".to_owned()
    } else {
        human::listed(crowdsec.exceptions.iter().cloned(), MOST_EXCEPTIONS)
    };
    let alerts = crowdsec.alerts.as_ref().map_or_else(
        || "not sent: machine_id is not set".to_owned(),
        |alerts| {
            let AlertsStatus {
                sent,
                waiting,
                dropped,
                ..
            } = alerts;
            format!(
                "{} sent, {} waiting, {} dropped",
                number(*sent),
                number(*waiting),
                number(*dropped)
            )
        },
    );
    table::pairs([
        (
            "crowdsec",
            format!("{} at {}", crowdsec.state, crowdsec.url),
        ),
        ("decisions", decisions),
        (
            "last pull",
            format!(
                "{}, of all decisions {full}",
                ago(crowdsec.last_pull_seconds_ago)
            ),
        ),
        ("exceptions", exceptions),
        ("alerts", alerts),
    ])
}
