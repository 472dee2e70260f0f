//! `[[request]]`: the cost of a request.

use super::report::Span;
use super::table::{self, Table};
use crate::formula::{ALLOWANCE, Formula, FormulaError, LIMIT};

/// A kind of request and its cost, in credits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestCost {
    pub name: String,
    /// The formula over the caller's parameters.
    pub cost: Formula,
}

/// A request and its name's span.
pub struct ReadRequest {
    pub request: RequestCost,
    pub name_span: Span,
    pub cost_span: Span,
}

pub fn read(mut table: Table<'_, '_>) -> Option<ReadRequest> {
    let name = table.name("request", "\"publish\"");
    let example = "\"100 * messages\"";
    let cost = table.required("cost", example).and_then(|value| {
        let text = match (table::integer(value), value.get_ref().as_str()) {
            (Some(number), _) => number.to_string(),
            (_, Some(text)) => text.to_owned(),
            _ if value.get_ref().is_integer() => {
                let help = "write a number from 0 to 2^53, or a formula over parameters";
                table.problems.error(value.span(), "cost is out of range", help);
                return None;
            }
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
                    FormulaError::Syntax { reason, .. } => format!("invalid formula: {reason}"),
                    other => other.to_string(),
                };
                let help = format!(
                    "write numbers, parameters, allowance, + - * / % ^, ceil, floor, round, min or max: cost = {example}"
                );
                table.problems.error(value.span(), message, help);
                None
            }
        }
    });
    let cost_span = table.span_of("cost");
    table.finish();
    let (name, name_span) = name?;
    Some(ReadRequest {
        request: RequestCost {
            name: name.to_owned(),
            cost: cost?,
        },
        name_span,
        cost_span,
    })
}

/// Reports formulas that are invalid for all parameters, and names that changed their meaning.
fn check(table: &mut Table<'_, '_>, cost: &Formula, span: Span) {
    if let Err(error) = cost.constant() {
        let help = "write a number from 0 to 2^53, or a formula over parameters";
        table
            .problems
            .error(span, format!("invalid cost: {error}"), help);
    } else if cost.parameters().any(|name| name == LIMIT) && !cost.has_allowance() {
        // Formulas that use the current name use the other one in its current meaning.
        let message = "`limit` is a parameter that each request must give; in earlier versions it was the class's allowance";
        let help = format!(
            "write {ALLOWANCE} for the most that the class can have: cost = \"{}\"; or keep the parameter within it: \
             min(limit, {ALLOWANCE})",
            cost.text().replace(LIMIT, ALLOWANCE)
        );
        table.problems.warning(span, message, help);
    }
}
