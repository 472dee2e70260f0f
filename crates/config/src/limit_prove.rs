//! `prove` of `[[limit]]`.

use super::policy::{Action, Direction, ProtocolFilter, Prove, Unit};
use super::table::Table;

/// How sources prove their address; `None` without `prove`.
pub fn prove(table: &mut Table<'_, '_>) -> Option<Prove> {
    let value = table.value("prove")?;
    if let Some(is_proven) = value.get_ref().as_bool() {
        return is_proven.then_some(Prove::InUse);
    }
    if value.get_ref().as_str().is_some() {
        return table.word("prove", Prove::WORDS);
    }
    table.wrong_type(
        "prove",
        value,
        "prove = true (\"in-use\"), \"always\", \"reset\" or false",
    );
    None
}

/// Only sources of TCP can prove their address, and only before this host replies to them.
pub fn check_prove(
    table: &mut Table<'_, '_>,
    direction: Direction,
    protocol: ProtocolFilter,
    unit: Unit,
    action: Action,
) {
    let span = table.span_of("prove");
    if direction == Direction::Egress {
        table.problems.error(
            span,
            "prove is not supported with direction = \"egress\"",
            "leave out prove",
        );
        return;
    }
    if protocol != ProtocolFilter::Tcp
        && !(protocol == ProtocolFilter::Any && unit == Unit::Connections)
    {
        let message =
            format!("prove is not supported with protocol = \"{protocol}\" and unit = \"{unit}\"");
        table.problems.error(
            span,
            message,
            "set protocol = \"tcp\", or unit = \"connections\"",
        );
        return;
    }
    if action == Action::Observe {
        let message = "prove has no effect with action = \"observe\"";
        table
            .problems
            .warning(span, message, "set action = \"drop\", or leave out prove");
    }
}
