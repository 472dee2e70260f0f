//! The steps of an evaluation that are separate functions in the kernel.

use core::ops::DerefMut;

use super::cells::FullTable;
use super::hearing::Hearing;
use super::one_rule::{charge, charge_by_bucket, conclude, look, take_back};
use super::open::{open, take};
use super::overflow::{claim, estimate, leave, spread};
use super::verdict::Ruling;
use crate::table::Claim;

/// A host that evaluates packets with several rules.
pub trait Steps: FullTable {
    /// Memory for a packet with several rules, outside of the kernel's small stack.
    type Hearing: DerefMut<Target = Hearing>;
    /// The working state for a packet with several rules.
    fn hearing(&self) -> Option<Self::Hearing>;
    /// [`charge_by_bucket`]. The kernel verifies it once, instead of on every path; likewise the following ones.
    fn charge_by_bucket(&self, hearing: &mut Hearing) -> Ruling {
        charge_by_bucket(self, hearing)
    }
    /// [`look`].
    fn look(&self, hearing: &mut Hearing, nth: u32) -> bool {
        look(self, hearing, nth)
    }
    /// [`open`].
    fn open(&self, hearing: &mut Hearing, nth: u32) {
        open(self, hearing, nth);
    }
    /// [`charge`].
    fn charge(&self, hearing: &mut Hearing, nth: u32) -> bool {
        charge(self, hearing, nth)
    }
    /// [`conclude`].
    fn conclude(&self, hearing: &mut Hearing, nth: u32) {
        conclude(self, hearing, nth);
    }
    /// [`take_back`].
    fn take_back(&self, hearing: &mut Hearing, count: u32) {
        take_back(self, hearing, count);
    }
    /// [`estimate`].
    fn estimate(&self, hearing: &mut Hearing) {
        estimate(self, hearing);
    }
    /// [`claim`].
    fn claim(&self, hearing: &mut Hearing) -> Claim {
        claim(self, hearing)
    }
    /// [`take`].
    fn take(&self, hearing: &mut Hearing, nth: u32, claim: Claim) {
        take(self, hearing, nth, claim);
    }
    /// [`leave`].
    fn leave(&self, hearing: &mut Hearing) {
        leave(self, hearing);
    }
    /// [`spread`].
    fn spread(&self, hearing: &mut Hearing) {
        spread(self, hearing);
    }
}
