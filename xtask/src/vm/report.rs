//! The results of several machines.

use anyhow::{Result, bail};

use super::machine::Outcome;
use crate::tally::Tally;

/// The results of all machines.
#[derive(Default)]
pub struct Report {
    lines: Vec<String>,
    failures: Vec<String>,
    total: Tally,
}

impl Report {
    /// Adds a machine's result by its name.
    pub fn add(&mut self, name: &str, outcome: Result<Outcome>) {
        match outcome {
            Ok(outcome) => {
                self.total += &outcome.tally;
                self.lines.push(format!(
                    "{name}: {}, {:.0} s",
                    outcome.tally,
                    outcome.time.as_secs_f64()
                ));
                if outcome.status != 0 {
                    self.failures
                        .push(format!("{name} ended with {}", outcome.status));
                }
            }
            Err(error) => self.failures.push(format!("{name}: {error:#}")),
        }
    }

    /// Prints all results; fails if one of them did.
    pub fn conclude(&self) -> Result<()> {
        self.lines.iter().for_each(|line| println!("{line}"));
        println!("total: {}", self.total);
        if !self.failures.is_empty() {
            bail!("in virtual machines\n- {}", self.failures.join("\n- "));
        }
        Ok(())
    }
}
