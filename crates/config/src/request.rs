//! `[[request]]`: the cost of a request.

use toml::de::DeValue;

use super::names;
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Value};
use super::table;
use crate::formula::{ALLOWANCE, Formula, FormulaError, LIMIT};

/// A kind of request and what it costs, for limits with `unit = "credits"`.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[[request]]", since = "0.1.0", check = check)]
#[table(
    example = "[[request]]\nname = \"publish\"\ncost = \"100 * messages\"\n\n\
                   [[limit]]\nname = \"credits-per-user\"\nscope = \"request\"\nkey = [\"user\"]\n\
                   unit = \"credits\"\nrate = \"600/min\"\nburst = 100\n"
)]
pub struct RequestCost {
    /// Unique name, which the caller gives: at most 64 characters, without control characters.
    #[key(examples = ["publish"], check = check_name)]
    pub name: String,
    /// Credits, as a formula over the caller's parameters: numbers, `+ - * / % ^ ( )`, `ceil`, `floor`, `round`, `min`,
    /// `max`. `allowance` is the most that the client's class can have. The result is rounded up.
    #[key(examples = ["100 * messages", "min(limit / 10, allowance)"])]
    pub cost: Formula,
}

impl Value for Formula {
    const KIND: Kind = Kind::Either(&[Kind::Integer(0, 1 << 53), Kind::Text(&[])]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        const RANGE: &str = "write a number from 0 to 2^53, or a formula over parameters";
        let text = match (at.get_ref(), table::integer(at)) {
            (_, Some(number)) => number.to_string(),
            (DeValue::String(text), _) => text.to_string(),
            (DeValue::Integer(number), _) => {
                let message = format!("{} is out of range: {}", key.name, number.as_str());
                problems.error(at.span(), message, RANGE);
                return None;
            }
            _ => {
                key.not_a(at, format!("write a formula: {}", key.example()), problems);
                return None;
            }
        };
        let formula = match Self::parse(&text) {
            Ok(formula) => formula,
            Err(error) => {
                let message = match error {
                    FormulaError::Syntax { reason, .. } => format!("invalid formula: {reason}"),
                    other => other.to_string(),
                };
                let help = format!(
                    "write numbers, parameters, allowance, + - * / % ^, ceil, floor, round, min or max: {}",
                    key.example()
                );
                problems.error(at.span(), message, help);
                return None;
            }
        };
        // It would be invalid for all parameters.
        if let Err(error) = formula.constant() {
            problems.error(at.span(), format!("invalid cost: {error}"), RANGE);
            return None;
        }
        Some(formula)
    }

    fn write(&self) -> Option<toml::Value> {
        Some(self.text().into())
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Warns of a name that changed its meaning.
fn check(read: &Located<'_, RequestCost>, problems: &mut Problems) {
    let cost = &read.table.cost;
    // Formulas that use the current name use the other one in its current meaning.
    if cost.parameters().any(|name| name == LIMIT) && !cost.has_allowance() {
        let message = "`limit` is a parameter that each request must give; in earlier versions it was the class's allowance";
        let help = format!(
            "write {ALLOWANCE} for the most that the class can have: cost = \"{}\"; or keep the parameter within it: \
             min(limit, {ALLOWANCE})",
            cost.text().replace(LIMIT, ALLOWANCE)
        );
        problems.warning(read.span_of(&RequestCost::COST), message, help);
    }
}

fn check_name(text: &str, key: &Key) -> Result<(), Wrong> {
    names::check(text, "request", key)
}
