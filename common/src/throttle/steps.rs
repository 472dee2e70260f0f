//! The steps of an evaluation that are separate functions in the kernel.

use core::ops::DerefMut;

use super::cells::FullTable;
use super::fair_rule::{FairStep, charge_fair, charge_new_fair, take_back_fair};
use super::one_rule::{charge, charge_by_bucket, conclude, look, refuse_by, take_back};
use super::open::{open, take};
use super::overflow::{claim, estimate, leave, spread};
use super::packet_state::PacketState;
use super::verdict::PackedVerdict;
use crate::table::Claim;

/// A host that evaluates packets with several rules.
pub trait Steps: FullTable {
    /// Memory for a packet with several rules, outside of the kernel's small stack.
    type PacketState: DerefMut<Target = PacketState>;
    /// The working state for a packet with several rules.
    fn packet_state(&self) -> Option<Self::PacketState>;
    /// [`charge_by_bucket`]. The kernel verifies it once, instead of on every path; likewise the following ones.
    fn charge_by_bucket(&self, packet_state: &mut PacketState) -> PackedVerdict {
        charge_by_bucket(self, packet_state)
    }
    /// [`look`].
    fn look(&self, packet_state: &mut PacketState, nth: u32) -> bool {
        look(self, packet_state, nth)
    }
    /// [`refuse_by`].
    fn refuse_by(&self, packet_state: &mut PacketState, nth: u32) -> bool {
        refuse_by(self, packet_state, nth)
    }
    /// [`open`].
    fn open(&self, packet_state: &mut PacketState, nth: u32) {
        open(self, packet_state, nth);
    }
    /// [`charge`].
    fn charge(&self, packet_state: &mut PacketState, nth: u32) -> bool {
        charge(self, packet_state, nth)
    }
    /// [`conclude`].
    fn conclude(&self, packet_state: &mut PacketState, nth: u32) {
        conclude(self, packet_state, nth);
    }
    /// [`take_back`].
    fn take_back(&self, packet_state: &mut PacketState, count: u32) {
        take_back(self, packet_state, count);
    }
    /// [`charge_fair`].
    fn charge_fair(&self, packet_state: &mut PacketState, place: u32) -> FairStep {
        charge_fair(self, packet_state, place)
    }
    /// [`charge_new_fair`].
    fn charge_new_fair(&self, packet_state: &mut PacketState, place: u32) -> FairStep {
        charge_new_fair(self, packet_state, place)
    }
    /// [`take_back_fair`].
    fn take_back_fair(&self, packet_state: &mut PacketState, count: u32) {
        take_back_fair(self, packet_state, count);
    }
    /// [`estimate`].
    fn estimate(&self, packet_state: &mut PacketState) {
        estimate(self, packet_state);
    }
    /// [`claim`].
    fn claim(&self, packet_state: &mut PacketState) -> Claim {
        claim(self, packet_state)
    }
    /// [`take`].
    fn take(&self, packet_state: &mut PacketState, nth: u32, claim: Claim) {
        take(self, packet_state, nth, claim);
    }
    /// [`leave`].
    fn leave(&self, packet_state: &mut PacketState) {
        leave(self, packet_state);
    }
    /// [`spread`].
    fn spread(&self, packet_state: &mut PacketState) {
        spread(self, packet_state);
    }
}
