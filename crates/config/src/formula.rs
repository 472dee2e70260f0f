//! The cost of a request: a formula over the caller's parameters, compiled once.
//!
//! Evaluated by `exmex`: maintained, small, permissively licensed. It compiles to a flat list and accepts custom
//! operators.

use std::collections::BTreeMap;
use std::fmt;

use exmex::{BinOp, Express, FlatEx, MakeOperators, Operator, ops_factory};
use thiserror::Error;

use super::functions;
use super::human;
use super::names::LONGEST;

/// The variable for the most credits that the caller's class can have.
pub const ALLOWANCE: &str = "allowance";
/// The former name of `allowance`; now an ordinary parameter.
pub const LIMIT: &str = "limit";
/// The largest integer up to which doubles are exact.
const LARGEST_COST: f64 = (1u64 << 53) as f64;

// Operators on one line have the same precedence and associate to the left. None is declared commutative: the evaluator
// would reorder operators between constants.
ops_factory!(
    Operators,
    f64,
    Operator::make_bin_unary(
        "+",
        BinOp {
            apply: |a, b| a + b,
            prio: 0,
            is_commutative: false
        },
        |a| a
    ),
    Operator::make_bin_unary(
        "-",
        BinOp {
            apply: |a, b| a - b,
            prio: 0,
            is_commutative: false
        },
        |a| -a
    ),
    Operator::make_bin(
        "*",
        BinOp {
            apply: |a, b| a * b,
            prio: 1,
            is_commutative: false
        }
    ),
    Operator::make_bin(
        "/",
        BinOp {
            apply: |a, b| a / b,
            prio: 1,
            is_commutative: false
        }
    ),
    Operator::make_bin(
        "%",
        BinOp {
            apply: |a, b| a % b,
            prio: 1,
            is_commutative: false
        }
    ),
    Operator::make_bin(
        "^",
        BinOp {
            apply: f64::powf,
            prio: 2,
            is_commutative: false
        }
    ),
    // min(a, b) and max(a, b) arrive here in infix form.
    Operator::make_bin(
        functions::MIN,
        BinOp {
            apply: |a, b| both(a, b, f64::min),
            prio: 0,
            is_commutative: false
        }
    ),
    Operator::make_bin(
        functions::MAX,
        BinOp {
            apply: |a, b| both(a, b, f64::max),
            prio: 0,
            is_commutative: false
        }
    ),
    Operator::make_unary("ceil", f64::ceil),
    Operator::make_unary("floor", f64::floor),
    Operator::make_unary("round", f64::round)
);

/// Applies `choose`, unless an operand is not finite: `choose` must not hide that error.
fn both(a: f64, b: f64, choose: fn(f64, f64) -> f64) -> f64 {
    match (a.is_finite(), b.is_finite()) {
        (true, true) => choose(a, b),
        (true, false) => b,
        (false, _) => a,
    }
}

/// Why a formula has no cost. Nothing is charged then.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum FormulaError {
    /// The formula is invalid.
    #[error("invalid formula {text:?}: {reason}")]
    Syntax {
        /// The formula's text.
        text: String,
        /// The parser's reason.
        reason: String,
    },
    /// A parameter is missing.
    #[error(
        "the cost {formula:?} requires the parameter {name:?}{}",
        instead_of(name)
    )]
    Missing { formula: String, name: String },
    /// A parameter that the formula does not use.
    #[error(
        "the cost {formula:?} has no parameter {:?}; it has {known}",
        human::cut(name, LONGEST)
    )]
    Unknown {
        formula: String,
        name: String,
        /// The formula's parameters.
        known: String,
    },
    /// The result is not a valid cost.
    #[error("the cost {formula:?} comes to {result}, which is {why}")]
    Result {
        formula: String,
        /// The result.
        result: f64,
        /// The reason.
        why: &'static str,
    },
}

#[derive(Clone)]
pub struct Formula {
    text: String,
    compiled: FlatEx<f64, Operators>,
}

impl fmt::Display for Formula {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl Formula {
    /// Compiles `text`.
    ///
    /// # Errors
    ///
    /// When the formula is invalid.
    pub fn parse(text: &str) -> Result<Self, FormulaError> {
        let syntax = |reason: String| FormulaError::Syntax {
            text: text.to_owned(),
            reason,
        };
        let infix = functions::to_infix(text).map_err(|error| syntax(error.to_string()))?;
        let compiled =
            FlatEx::<f64, Operators>::parse(&infix).map_err(|error| syntax(error.to_string()))?;
        let formula = Self {
            text: text.to_owned(),
            compiled,
        };
        let strange = formula
            .compiled
            .var_names()
            .iter()
            .find(|name| !is_name(name));
        match strange {
            Some(name) => Err(syntax(format!("invalid parameter name {name:?}"))),
            None => Ok(formula),
        }
    }

    /// The text that was compiled.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names of the parameters.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.compiled
            .var_names()
            .iter()
            .map(String::as_str)
            .filter(|name| *name != ALLOWANCE)
    }

    /// Whether it uses `allowance`.
    #[must_use]
    pub fn has_allowance(&self) -> bool {
        self.compiled
            .var_names()
            .iter()
            .any(|name| name == ALLOWANCE)
    }

    /// The cost if the formula has no parameters.
    ///
    /// # Errors
    ///
    /// When the result is not a valid cost.
    pub fn constant(&self) -> Result<Option<u64>, FormulaError> {
        if !self.compiled.var_names().is_empty() {
            return Ok(None);
        }
        self.cost(0, &BTreeMap::new()).map(Some)
    }

    /// The cost in whole credits, rounded up (to the ninth decimal, since 0.1 × 30 is 3).
    ///
    /// # Errors
    ///
    /// When a parameter is missing or unknown, or the result is not a number, negative, or above 2⁵³.
    pub fn cost(
        &self,
        allowance: u64,
        parameters: &BTreeMap<String, f64>,
    ) -> Result<u64, FormulaError> {
        let formula = || self.text.clone();
        let known = self.compiled.var_names();
        if let Some(name) = parameters
            .keys()
            .find(|name| *name == ALLOWANCE || !known.contains(name))
        {
            let listed: Vec<&str> = self.parameters().collect();
            let known = if listed.is_empty() {
                "none".to_owned()
            } else {
                listed.join(", ")
            };
            return Err(FormulaError::Unknown {
                formula: formula(),
                name: name.clone(),
                known,
            });
        }
        let mut values = Vec::with_capacity(known.len());
        for name in known {
            values.push(match parameters.get(name) {
                Some(value) => *value,
                None if name == ALLOWANCE => allowance as f64,
                None => {
                    return Err(FormulaError::Missing {
                        formula: formula(),
                        name: name.clone(),
                    });
                }
            });
        }
        let result = self
            .compiled
            .eval(&values)
            .map_err(|error| FormulaError::Syntax {
                text: formula(),
                reason: error.to_string(),
            })?;
        let whole = result.ceil();
        let cost = if (result - result.round()).abs() < 1e-9 {
            result.round()
        } else {
            whole
        };
        let why = match cost {
            cost if cost.is_nan() => "not a number",
            cost if cost < 0.0 => "negative",
            cost if cost > LARGEST_COST => "above the largest cost, 2^53",
            _ => return Ok(cost as u64),
        };
        Err(FormulaError::Result {
            formula: formula(),
            result,
            why,
        })
    }
}

/// The hint for a missing parameter that used to have another meaning.
fn instead_of(name: &str) -> &'static str {
    if name == LIMIT {
        "; write `allowance` for the most that the caller's class can have"
    } else {
        ""
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Compares the texts.
impl PartialEq for Formula {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Formula {}

impl fmt::Debug for Formula {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Formula({:?})", self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(text: &str, parameters: &[(&str, f64)]) -> Result<u64, String> {
        let parameters = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        Formula::parse(text)
            .and_then(|formula| formula.cost(100, &parameters))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn costs_are_what_the_formula_says() {
        for (text, parameters, expected) in [
            ("allowance / 10", &[][..], 10),
            ("limit / 10", &[("limit", 500.0)], 50),
            ("min(limit, allowance) / 10", &[("limit", 500.0)], 10),
            ("100 * messages", &[("messages", 3.0)], 300),
            (
                "10*topics + 2 * messages",
                &[("topics", 2.0), ("messages", 0.0)],
                20,
            ),
            ("2 + 3 * 4 ^ 2 - 6 / 3", &[], 48),
            ("10 - 2 - 3", &[], 5),
            ("10 - 2 + 3", &[], 11),
            ("24 / 4 / 2 * 3", &[], 9),
            ("7 % 4", &[], 3),
            ("5 * n % 4", &[("n", 3.0)], 3),
            ("n % 4 * 5", &[("n", 7.0)], 15),
            ("100 / 5 % 3 * 2", &[], 4),
            ("20 - n + 2 * 3 % 4", &[("n", 3.0)], 19),
            ("20 - (n + 2) * 3 % 4", &[("n", 3.0)], 17),
            ("n - 2 + 3 - 4", &[("n", 9.0)], 6),
            ("2 ^ 3 ^ 2", &[], 64),
            (
                "minutes * 2 + ceiling - flooring",
                &[("minutes", 3.0), ("ceiling", 2.0), ("flooring", 1.0)],
                7,
            ),
            ("ceil(bytes / 1024)", &[("bytes", 1025.0)], 2),
            ("floor(2.9) + round(2.5)", &[], 5),
            ("bytes / 1024", &[("bytes", 1.0)], 1),
            ("0.1 * messages", &[("messages", 30.0)], 3),
            ("maximum + limits", &[("maximum", 1.0), ("limits", 2.0)], 3),
            ("min(allowance, 1000) / 10", &[], 10),
            ("min(allowance, 50) / 10", &[], 5),
            ("max(1, bytes / 1024)", &[("bytes", 10.0)], 1),
            ("max(1, bytes / 1024)", &[("bytes", 10_240.0)], 10),
            (
                "2 * max(min(a, b), c - 1) + 1",
                &[("a", 5.0), ("b", 7.0), ("c", 3.0)],
                11,
            ),
            ("10 - min (2, 3) - max(1,2,3)", &[], 5),
            ("min(2)", &[], 2),
            ("ceil(min(2.2, max(1.5, a)))", &[("a", 9.0)], 3),
            (
                "minimum + min(max_size, 4) + max",
                &[("minimum", 1.0), ("max_size", 9.0), ("max", 2.0)],
                7,
            ),
            ("-min(-3, 2)", &[], 3),
            ("-(-5)", &[], 5),
            ("0", &[], 0),
        ] {
            assert_eq!(cost(text, parameters), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_formulas_and_costs_are_errors() {
        for (text, parameters, reason) in [
            ("100 * ", &[][..], "invalid formula"),
            ("", &[], "invalid formula"),
            ("1 +* 2", &[], "invalid formula"),
            ("messages", &[], "requires the parameter \"messages\""),
            (
                "messages",
                &[("messages", 1.0), ("mesages", 1.0)],
                "no parameter \"mesages\"; it has messages",
            ),
            (
                "allowance",
                &[("allowance", 5.0)],
                "no parameter \"allowance\"; it has none",
            ),
            (
                "limit / 10",
                &[],
                "requires the parameter \"limit\"; write `allowance`",
            ),
            ("messages", &[("messages", -1.0)], "negative"),
            ("10 - messages", &[("messages", 11.0)], "negative"),
            ("2 ^ 54", &[], "above the largest cost"),
            ("10 ^ 400", &[], "above the largest cost"),
            (
                "1 / messages",
                &[("messages", 0.0)],
                "above the largest cost",
            ),
            ("messages / messages", &[("messages", 0.0)], "not a number"),
            // min and max do not hide an invalid operand.
            (
                "min(messages / messages, 5)",
                &[("messages", 0.0)],
                "not a number",
            ),
            (
                "max(5, messages / messages)",
                &[("messages", 0.0)],
                "not a number",
            ),
            ("min(10 ^ 400, 5)", &[], "above the largest cost"),
            ("min(messages, 5)", &[("messages", -1.0)], "negative"),
            (
                "max(2 ^ 54, messages)",
                &[("messages", 1.0)],
                "above the largest cost",
            ),
            (
                "min(messages, 5)",
                &[],
                "requires the parameter \"messages\"",
            ),
            ("min(1, 2", &[], "no closing parenthesis"),
            ("min()", &[], "min( has an empty argument"),
            ("max(1,,2)", &[], "max( has an empty argument"),
            ("1, 2", &[], "unexpected comma: only min( and max("),
            ("ceil(1, 2)", &[], "unexpected comma: only min( and max("),
            ("1 & 2", &[], "unexpected '&'"),
            ("avg(1)", &[], "unknown function \"avg\"; use ceil"),
            ("2(3)", &[], "invalid formula"),
        ] {
            let error = cost(text, parameters).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    /// An expression, printed with the fewest parentheses that the usual precedence requires.
    #[derive(Clone, Debug)]
    enum Tree {
        Number(u8),
        Parameter,
        Of(Box<Tree>, char, Box<Tree>),
    }

    impl Tree {
        fn binds(&self) -> u8 {
            match self {
                Self::Of(_, '+' | '-', _) => 0,
                Self::Of(_, '*' | '/' | '%', _) => 1,
                Self::Of(..) => 2,
                _ => 3,
            }
        }

        fn value(&self, parameter: f64) -> f64 {
            match self {
                Self::Number(number) => f64::from(*number),
                Self::Parameter => parameter,
                Self::Of(left, sign, right) => {
                    let (left, right) = (left.value(parameter), right.value(parameter));
                    match sign {
                        '+' => left + right,
                        '-' => left - right,
                        '*' => left * right,
                        '/' => left / right,
                        '%' => left % right,
                        _ => left.powf(right),
                    }
                }
            }
        }

        fn text(&self) -> String {
            match self {
                Self::Number(number) => number.to_string(),
                Self::Parameter => "n".to_owned(),
                Self::Of(left, sign, right) => {
                    let around = |tree: &Self, needs: bool| match needs {
                        true => format!("({})", tree.text()),
                        false => tree.text(),
                    };
                    let (left_needs, right_needs) =
                        (left.binds() < self.binds(), right.binds() <= self.binds());
                    format!(
                        "{} {sign} {}",
                        around(left, left_needs),
                        around(right, right_needs)
                    )
                }
            }
        }
    }

    fn tree() -> impl Strategy<Value = Tree> {
        let leaf = prop_oneof![(0u8..10).prop_map(Tree::Number), Just(Tree::Parameter)];
        leaf.prop_recursive(6, 32, 2, |inner| {
            (
                inner.clone(),
                prop::sample::select(vec!['+', '-', '*', '/', '%', '^']),
                inner,
            )
                .prop_map(|(left, sign, right)| Tree::Of(Box::new(left), sign, Box::new(right)))
        })
    }

    proptest! {
        #[test]
        fn operators_bind_as_usual(tree in tree(), parameter in 0u8..10) {
            let (expected, text) = (tree.value(f64::from(parameter)), tree.text());
            let formula = Formula::parse(&text).unwrap();
            let values = vec![f64::from(parameter); formula.compiled.var_names().len()];
            let found = formula.compiled.eval(&values).unwrap();
            prop_assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{}: {} is not {}", text, found, expected);
        }
    }
}
