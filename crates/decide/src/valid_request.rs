//! A validated request.

use api::decide::OnExpiry;

use super::charge::Charge;
use super::reservations::{Id, Place, Reservation};

#[derive(Debug)]
pub(super) enum ValidRequest {
    Charge(Charge),
    Reserve(Charge, Terms),
    /// A reservation that was taken out of the store, and the units that it used.
    Settle((Id, Reservation), u64),
}

/// What is known of a reservation before it is decided.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) place: Place,
    pub(super) until: u64,
    pub(super) on_expiry: OnExpiry,
}
