//! Forecasts of when costs will pass.

use std::time::Duration;

use super::account::Account;
use super::tiers::{self, Tiers};

/// The future state of a key if only the given costs are charged.
#[derive(Debug)]
pub struct Forecast {
    pub(super) tiers: Tiers,
    pub(super) words: Box<[u64]>,
    pub(super) at: u64,
    /// How far the clock of the states is ahead of this host's.
    pub(super) ahead: u64,
    /// For a key that hosts exchange: its account, and the time to the next exchange.
    pub(super) account: Option<(Account, Duration)>,
    /// When the calendar's period ends, and the whole allowance is there.
    pub(super) ends: Option<u64>,
}

impl Forecast {
    /// For a state that ends after this time.
    pub(super) fn until(self, left: Option<Duration>) -> Self {
        let ends = left.map(|left| self.at.saturating_add(left.as_nanos() as u64));
        Self { ends, ..self }
    }

    /// Charges a cost as soon as it conforms, at the latest at `until`, and returns when.
    ///
    /// # Errors
    ///
    /// When it conforms too late, with that instant, or never. Nothing is charged then.
    pub fn passes_at(&mut self, cost: u64, until: u64) -> Result<u64, Option<u64>> {
        let mut at = self.conforms_at(cost)?;
        if let Some(ends) = self.ends
            && at >= ends
        {
            if ends > until {
                return Err(Some(ends));
            }
            tiers::open(&self.tiers, &mut self.words, ends);
            (self.at, self.ends) = (ends, None);
            at = self.conforms_at(cost)?;
        }
        if let Some((account, sync)) = self.account
            && !account.conforms(&self.tiers, &self.words, at, cost)
        {
            at = at.saturating_add(sync.as_nanos() as u64);
        }
        let here = at.wrapping_sub(self.ahead);
        if here > until {
            return Err(Some(here));
        }
        if !tiers::charge(&self.tiers, &mut self.words, at, cost) {
            return Err(None);
        }
        self.at = at;
        Ok(here)
    }

    /// The instant at which a cost conforms in the present state.
    fn conforms_at(&self, cost: u64) -> Result<u64, Option<u64>> {
        let wait = tiers::wait(&self.tiers, &self.words, self.at, cost).ok_or(None)?;
        Ok(self.at.saturating_add(wait.as_nanos() as u64))
    }
}
