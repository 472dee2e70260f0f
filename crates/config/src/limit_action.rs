//! `action` and `throttle` of `[[limit]]`: the handling of packets above a limit.

use toml::de::DeValue;

use super::policy::{Action, Algorithm, Direction, Mark, Multiplier, Throttle};
use super::table::{Table, Value, float};

/// A code point has six bits.
const LARGEST_DSCP: u64 = 63;

pub fn action(table: &mut Table<'_, '_>, direction: Direction, algorithm: Algorithm) -> Action {
    let words = &[
        ("drop", Action::Drop),
        ("observe", Action::Observe),
        ("reject", Action::Reject),
        ("mark", Action::Mark(Mark::DEFAULT)),
        ("shape", Action::Shape),
    ];
    let Some(value) = table.value("action") else {
        return Action::Drop;
    };
    if let DeValue::Table(content) = value.get_ref() {
        let mut inner = Table::new(content, value.span(), "action", table.problems);
        let mark = inner.value("mark").map(|value| mark(&mut inner, value));
        if mark.is_none() {
            inner.problems.error(
                value.span(),
                "invalid action: a table without mark",
                MARK_HELP,
            );
        }
        inner.finish();
        return Action::Mark(mark.unwrap_or(Mark::DEFAULT));
    }
    let action = table.word("action", words).unwrap_or(Action::Drop);
    if action == Action::Shape {
        if direction == Direction::Ingress {
            table.problems.error(
                value.span(),
                "action = \"shape\" is not supported on ingress: packets that have arrived cannot be delayed",
                "set direction = \"egress\", or action = \"drop\"",
            );
        }
        if !algorithm.can_shape() {
            table.problems.error(
                value.span(),
                "action = \"shape\" requires algorithm = \"leaky-bucket\": no other has a queue",
                "set algorithm = \"leaky-bucket\"",
            );
        }
    }
    action
}

const MARK_HELP: &str = "write \"mark\", or action = { mark = { mark = 1, dscp = 8 } }";

/// Reads the mark and the code point, at least one of them.
fn mark(table: &mut Table<'_, '_>, value: Value<'_>) -> Mark {
    let DeValue::Table(content) = value.get_ref() else {
        table
            .problems
            .error(value.span(), "invalid mark: not a table", MARK_HELP);
        return Mark::DEFAULT;
    };
    let mut inner = Table::new(content, value.span(), "mark", table.problems);
    let mark = inner
        .number("mark", 0, u64::from(u32::MAX))
        .map(|mark| mark as u32);
    let dscp = inner.number("dscp", 0, LARGEST_DSCP).map(|dscp| dscp as u8);
    if mark.is_none() && dscp.is_none() {
        inner.problems.error(
            value.span(),
            "empty mark: it sets neither mark nor dscp",
            MARK_HELP,
        );
    }
    inner.finish();
    Mark { mark, dscp }
}

pub fn throttle(table: &mut Table<'_, '_>) -> Throttle {
    let Some(value) = table.value("throttle") else {
        return Throttle::Hard;
    };
    let help = "write \"hard\", { soft = \"10%\" } or { elastic = { up_to = 3.0 } }";
    match value.get_ref() {
        DeValue::String(text) if text == "hard" => Throttle::Hard,
        DeValue::Table(content) if content.contains_key("soft") => {
            let mut inner = Table::new(content, value.span(), "throttle", table.problems);
            let soft = inner.string("soft", "\"10%\"").and_then(|(text, span)| {
                let share = text
                    .strip_suffix('%')
                    .and_then(|number| number.trim().parse::<f64>().ok());
                let share = share.filter(|share| *share > 0.0 && *share <= 1_000.0);
                let multiplier = share.and_then(|share| Multiplier::new(1.0 + share / 100.0));
                if multiplier.is_none() {
                    inner.problems.error(
                        span,
                        format!("invalid share {text:?}"),
                        "write a percentage above 0, at most 1000: { soft = \"10%\" }",
                    );
                }
                multiplier
            });
            inner.finish();
            soft.map_or(Throttle::Hard, Throttle::Soft)
        }
        DeValue::Table(content) if content.contains_key("elastic") => {
            let mut inner = Table::new(content, value.span(), "throttle", table.problems);
            let elastic = inner
                .value("elastic")
                .and_then(|value| up_to(&mut inner, value));
            inner.finish();
            elastic.map_or(Throttle::Hard, Throttle::Elastic)
        }
        _ => {
            table.problems.error(value.span(), "invalid throttle", help);
            Throttle::Hard
        }
    }
}

/// The multiplier of an elastic limit while the host has spare CPU time.
fn up_to(table: &mut Table<'_, '_>, value: Value<'_>) -> Option<Multiplier> {
    const HELP: &str = "write { elastic = { up_to = 3.0 } }";
    let DeValue::Table(content) = value.get_ref() else {
        table.problems.error(
            value.span(),
            "invalid elastic: not a table with up_to",
            HELP,
        );
        return None;
    };
    let mut inner = Table::new(content, value.span(), "elastic", table.problems);
    inner.required("up_to", "3.0");
    let up_to = inner.value("up_to").and_then(|value| {
        let times = float(value)
            .filter(|times| *times > 1.0 && *times <= 1_000.0)
            .and_then(Multiplier::new);
        if times.is_none() {
            inner.problems.error(
                value.span(),
                "invalid up_to: it is a number above 1, at most 1000",
                HELP,
            );
        }
        times
    });
    inner.finish();
    up_to
}

/// Reports an action that conflicts with the throttle.
pub fn check_action(table: &mut Table<'_, '_>, action: Action, throttle: Throttle) {
    let why = match action {
        _ if throttle == Throttle::Hard => return,
        Action::Mark(_) => {
            "throttle conflicts with action = \"mark\": a limit that marks refuses nothing"
        }
        Action::Shape => {
            "throttle conflicts with action = \"shape\": a limit that shapes sends at a constant rate"
        }
        Action::Drop | Action::Observe | Action::Reject => return,
    };
    let span = table.span_of("throttle");
    table
        .problems
        .error(span, why, "leave out throttle, or set action = \"drop\"");
}
