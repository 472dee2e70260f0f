//! `[[request]]`: what a request costs.

use super::report::Span;
use super::table::{self, Table};
use crate::decide::{ALLOWANCE, Formula, FormulaError, LIMIT};

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
    pub cost_span: Span,
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
            Ok(cost) => {
                check(&mut table, &cost, value.span());
                Some(cost)
            }
            Err(error) => {
                let message = match error {
                    FormulaError::Syntax { reason, .. } => format!("this is no formula: {reason}"),
                    other => other.to_string(),
                };
                let help = format!(
                    "write numbers, parameters, allowance, + - * / % ^, ceil, floor or round: cost = {example}"
                );
                table.problems.error(value.span(), message, help);
                None
            }
        }
    });
    let cost_span = table.span_of("cost");
    table.finish();
    let (name, name_span) = name?;
    Some(ReadRequest { request: RequestCost { name: name.to_owned(), cost: cost? }, name_span, cost_span })
}

/// What no question can make right, and what once meant something else.
fn check(table: &mut Table<'_, '_>, cost: &Formula, span: Span) {
    if let Err(error) = cost.constant() {
        let help = "write a number from 0 to 2^53, or a formula over parameters";
        table.problems.error(span, format!("every such request is an error: {error}"), help);
    } else if cost.parameters().any(|name| name == LIMIT) && !cost.has_allowance() {
        // Who knows the one name means what he writes by the other.
        let message = "`limit` is a parameter that the caller has to give; it was the most credits of his class before";
        let help = format!(
            "write {ALLOWANCE} for what the class can have: cost = \"{}\"; or keep the parameter within it: \
             min(limit, {ALLOWANCE})",
            cost.text().replace(LIMIT, ALLOWANCE)
        );
        table.problems.warning(span, message, help);
    }
}
