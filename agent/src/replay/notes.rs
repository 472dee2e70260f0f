//! Notes about a replay for the operator.

use api::capture::CaptureOf;
use config::human::number;

use super::Outcome;
use super::capture::Origin;
use super::evaluation::Evaluation;
use crate::pcapng::Sample;

/// The most link types that a note lists.
const LISTED_TYPES: usize = 5;

/// The notes about a completed replay.
pub(super) fn of(outcome: &Outcome, evaluations: &[Evaluation<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |count: u64, what: &str, text: &str| {
        if count > 0 {
            notes.push(format!("{} {text}", counted(count, what)));
        }
    };
    note(
        outcome.undirected,
        "packet",
        "evaluated as ingress, since the capture does not record the direction: name the host's addresses with --local PREFIX",
    );
    note(
        outcome.unnamed,
        "packet",
        "evaluated without the limits that have interfaces: the capture does not name theirs; name it with --interface NAME",
    );
    let copied_on: Vec<&str> = outcome
        .copies
        .interfaces
        .iter()
        .filter_map(|number| outcome.interfaces.name(*number))
        .take(LISTED_TYPES)
        .collect();
    note(
        outcome.copies.count,
        "packet",
        &format!(
            "captured again on another interface ({}), as tcpdump -i any does: evaluated once a direction, as the agent does",
            copied_on.join(", ")
        ),
    );
    let most = |of: fn(&super::Tally) -> u64| {
        evaluations
            .iter()
            .map(|each| of(&each.tally()))
            .max()
            .unwrap_or(0)
    };
    note(
        most(|tally| tally.unknown),
        "packet",
        "not evaluated: too little was captured; capture at least 128 bytes of each packet (tcpdump -s 128)",
    );
    note(
        most(|tally| tally.cut),
        "packet",
        "evaluated without its payload, which was not captured: requests in it are not counted",
    );
    note(
        outcome.merged,
        "frame",
        "longer than 9,216 bytes: merged by offloads before the capture, and counted as one packet each",
    );
    let troubles = outcome.clock.troubles();
    note(
        troubles.reordered,
        "packet",
        "up to 1 s older than the previous packet: evaluated at that packet's time",
    );
    note(
        troubles.stepped_back,
        "step",
        "of the capture's clock back by 1 s or more: the replay's clock continues",
    );
    note(
        troubles.gaps,
        "gap",
        "of more than 400 days: counted as 400 days",
    );
    note(
        troubles.without_time,
        "packet",
        "without a time: evaluated at the previous packet's time",
    );
    for read in &outcome.captures {
        let file = read.path.display();
        notes.extend(
            of_origin(read.origin)
                .into_iter()
                .map(|note| format!("{file}: {note}")),
        );
        if !read.skipped.link_types.is_empty() {
            let packets = counted(read.skipped.link_types.values().sum(), "packet");
            let types: Vec<String> = read
                .skipped
                .link_types
                .keys()
                .take(LISTED_TYPES)
                .map(u32::to_string)
                .collect();
            notes.push(format!(
                "{file}: {packets} skipped: link type {} is not supported",
                types.join(", ")
            ));
        }
        if read.skipped.headerless > 0 {
            let packets = counted(read.skipped.headerless, "packet");
            notes.push(format!(
                "{file}: {packets} skipped: truncated within the capture's own header"
            ));
        }
    }
    for config in evaluations.iter().map(Evaluation::config) {
        let elastic = config
            .limits
            .iter()
            .filter(|limit| limit.throttle.is_elastic())
            .count();
        let open = config
            .limits
            .iter()
            .filter(|limit| limit.concurrent.is_some())
            .count();
        let fair = config.limits.iter().filter(|limit| limit.is_fair());
        let (with_most, without) = fair.partition::<Vec<_>, _>(|limit| {
            limit
                .shares
                .as_ref()
                .is_some_and(|shares| shares.at_most.is_some())
        });
        let banning = config
            .ban_lists
            .iter()
            .filter(|list| list.class().is_none())
            .count();
        let cluster = config
            .limits
            .iter()
            .filter(|limit| limit.cluster.is_some())
            .count();
        for (count, what, text) in [
            (
                elastic,
                "elastic limit",
                "evaluated as on a host without spare CPU time",
            ),
            (
                open,
                "limit on open connections",
                "not evaluated: a capture has packets, and no sockets",
            ),
            (
                without.len(),
                "fair limit",
                "evaluated as while the host keeps up, refusing nothing: a capture does not contain the load of servers",
            ),
            (
                with_most.len(),
                "fair limit with at_most",
                "evaluated as while the host keeps up, refusing only what exceeds at_most: a capture does not contain the \
                 load of servers",
            ),
            (
                banning,
                "ban list",
                "not applied: a replay refuses by limits only",
            ),
            (
                cluster,
                "limit of the cluster",
                "evaluated as if this host had the whole limit",
            ),
            (
                config.decide.limits.len(),
                "limit on requests",
                "not evaluated: captures do not contain the requests of applications to the agent",
            ),
        ] {
            if count > 0 {
                notes.push(format!("{} {text}", counted(count as u64, what)));
            }
        }
    }
    notes.dedup();
    notes
}

/// What a capture of `weir record --capture` lacks.
fn of_origin(origin: Origin) -> Vec<String> {
    let Some(Sample { one_in, of }) = origin.sample else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if one_in > 1 {
        notes.push(format!(
            "a sample of one in {} sources: their own rates are whole; totals, and limits that several sources share, have \
             only about 1/{} of the traffic",
            number(one_in.into()),
            number(one_in.into())
        ));
    }
    if of == CaptureOf::Refused {
        notes.push(
            "only refused packets: those that passed are missing, so that a limit refuses less here than it did; capture \
             all with --of all"
                .to_owned(),
        );
    }
    if origin.lost > 0 {
        notes.push(format!(
            "{} missing, which the capture lost",
            counted(origin.lost, "packet")
        ));
    }
    notes
}

/// `1 packet`, `2,000 packets`; text after the noun is kept.
fn counted(count: u64, what: &str) -> String {
    let (head, tail) = what
        .match_indices(' ')
        .map(|(at, _)| (&what[..at], &what[at + 1..]))
        .find(|(head, _)| head.ends_with("limit"))
        .unwrap_or((what, ""));
    let plural = if count == 1 { "" } else { "s" };
    let space = if tail.is_empty() { "" } else { " " };
    format!("{} {head}{plural}{space}{tail}", number(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_says_what_it_lacks() {
        let origin = |one_in, of, lost| Origin {
            sample: Some(Sample { one_in, of }),
            lost,
        };
        assert!(of_origin(Origin::default()).is_empty());
        assert!(of_origin(origin(1, CaptureOf::All, 0)).is_empty());
        let notes = of_origin(origin(100, CaptureOf::Refused, 2_000));
        assert!(
            notes[0].starts_with("a sample of one in 100 sources")
                && notes[1].starts_with("only refused packets")
        );
        assert_eq!(notes[2], "2,000 packets missing, which the capture lost");
    }

    #[test]
    fn one_of_a_thing_is_not_several() {
        assert_eq!(counted(1, "packet"), "1 packet");
        assert_eq!(counted(2_000, "packet"), "2,000 packets");
        assert_eq!(counted(2, "elastic limit"), "2 elastic limits");
        assert_eq!(
            counted(2, "limit of the cluster"),
            "2 limits of the cluster"
        );
        assert_eq!(
            counted(2, "fair limit with at_most"),
            "2 fair limits with at_most"
        );
    }
}
