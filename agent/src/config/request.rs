//! `[[request]]`: what a request costs.

use super::report::Span;
use super::table::{self, Table};
use crate::decide::{Formula, FormulaError};

/// A kind of request and its cost, in credits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCost {
    /// Unique.
    pub name: String,
    /// Over the caller's parameters.
    pub cost: Formula,
}

/// A request's cost, and where its name stands.
pub struct ReadRequest {
    pub request: RequestCost,
    pub name_span: Span,
}

pub fn read(mut table: Table<'_, '_>) -> Option<ReadRequest> {
    table.required("name", "\"publish\"");
    let name = table.string("name", "\"publish\"");
    if let Some(("", span)) = &name {
        table.problems.error(span.clone(), "a request needs a name", "write name = \"publish\"");
    }
    let example = "\"100 * messages\"";
    let cost = table.required("cost", example).and_then(|value| {
        let text = match (table::integer(value), value.get_ref().as_str()) {
            (Some(number), _) => number.to_string(),
            (_, Some(text)) => text.to_owned(),
            _ => {
                table.wrong_type("cost", value, &format!("a formula: cost = {example}"));
                return None;
            }
        };
        match Formula::parse(&text) {
            Ok(cost) => Some(cost),
            Err(error) => {
                let message = match error {
                    FormulaError::Syntax { reason, .. } => format!("this is no formula: {reason}"),
                    other => other.to_string(),
                };
                let help =
                    format!("write numbers, parameters, limit, + - * / % ^, ceil, floor or round: cost = {example}");
                table.problems.error(value.span(), message, help);
                None
            }
        }
    });
    table.finish();
    let (name, name_span) = name?;
    Some(ReadRequest { request: RequestCost { name: name.to_owned(), cost: cost? }, name_span })
}
