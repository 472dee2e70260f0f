//! Open reservations: units that are charged before the work, and committed or released after it.
//!
//! A reservation is found by a random ID, and taken out of the store by who settles it: it is settled once. Their number
//! is bounded. One whose time is over is committed or released, as its request said, before the next decision.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::decide::OnExpiry;
use api::status::ReservationsStatus;
use common::limiter::Refund;
use hyper::header::HeaderValue;
use tokio::sync::Notify;

use super::error::DecideError;
use super::fingerprint::Fingerprint;
use super::limit::Together;
use super::line::LineCounters;
use super::periods::Periods;
use super::state_store::StateStore;
use super::tiers::Charges;

/// The name of a reservation: 128 random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id(u128);

impl Id {
    fn new() -> Result<Self, DecideError> {
        let word = || getrandom::u64().map_err(DecideError::Randomness);
        Ok(Self(u128::from(word()?) << 64 | u128::from(word()?)))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_id = text.len() == 32 && text.bytes().all(is_hex);
        is_id.then(|| u128::from_str_radix(text, 16).ok().map(Self))?
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// The state that a reservation has charged.
#[derive(Clone, Debug)]
pub(super) struct Account {
    /// The store at that time; a later one has its keys after a reload.
    pub(super) store: Arc<StateStore>,
    pub(super) key: Fingerprint,
    /// Whether the key's own state was charged: a key without room shares an allowance, and nothing is returned to it.
    pub(super) is_own: bool,
    /// Its charge to each tier.
    pub(super) charges: Charges,
    /// By the calendar: the limit's periods, and the key itself.
    pub(super) periods: Option<(Arc<Periods>, Fingerprint)>,
}

/// An open reservation.
#[derive(Clone, Debug)]
pub(super) struct Reservation {
    pub(super) limit: String,
    pub(super) policy: Option<HeaderValue>,
    /// `None` if nothing was charged: the client is exempt, or the limit observes and would have refused.
    pub(super) account: Option<Account>,
    pub(super) line: Arc<LineCounters>,
    /// The demand of the limit, where hosts share it.
    pub(super) together: Option<Arc<Together>>,
    pub(super) spot: KeySpot,
    /// The whole allowance, for formulas.
    pub(super) most: u64,
    pub(super) at: u64,
    /// The requested units.
    pub(super) reserved: u64,
    /// Those that were charged: none by a limit that observes and would have refused.
    pub(super) charged: u64,
    pub(super) until: u64,
    pub(super) on_expiry: OnExpiry,
}

impl Reservation {
    /// What `used` units leave unused.
    pub(super) const fn refund(&self, used: u64) -> Refund {
        Refund {
            at: self.at,
            charged: self.charged,
            used,
            ends: None,
        }
    }
}

/// The queue's number of a limit, which is the same in successive engines, and a key of it.
pub(super) type KeySpot = (u64, Fingerprint);

/// The most open reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationBounds {
    pub in_all: usize,
    /// Per key of a limit.
    pub per_key: usize,
}

#[derive(Debug, Default)]
struct Open {
    by_id: HashMap<Id, Reservation>,
    due: BTreeSet<(u64, Id)>,
    /// Places that are taken for requests which are being decided.
    places: usize,
    /// Open reservations and places of each key.
    by_key: HashMap<KeySpot, usize>,
}

impl Open {
    fn enter(&mut self, spot: KeySpot) {
        *self.by_key.entry(spot).or_default() += 1;
    }

    fn leave(&mut self, spot: KeySpot) {
        if let Entry::Occupied(mut count) = self.by_key.entry(spot) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn remove(&mut self, id: Id) -> Option<Reservation> {
        let reservation = self.by_id.remove(&id)?;
        self.due.remove(&(reservation.until, id));
        self.leave(reservation.spot);
        Some(reservation)
    }
}

/// All open reservations. Shared by successive engines.
#[derive(Debug)]
pub(super) struct Reservations {
    open: Mutex<Open>,
    /// When the next one is over.
    next: AtomicU64,
    /// Requests without room for a reservation.
    pub(super) without_room: AtomicU64,
    pub(super) changed: Notify,
}

impl Default for Reservations {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            next: AtomicU64::new(u64::MAX),
            without_room: AtomicU64::new(0),
            changed: Notify::new(),
        }
    }
}

/// A place for one more reservation.
#[derive(Debug)]
pub(super) struct Place {
    reservations: Arc<Reservations>,
    id: Id,
    pub(super) spot: KeySpot,
}

impl Place {
    pub(super) fn fill(self, reservation: Reservation) -> Id {
        let (id, until) = (self.id, reservation.until);
        let mut open = self.reservations.lock();
        open.due.insert((until, id));
        open.enter(reservation.spot);
        open.by_id.insert(id, reservation);
        if until < self.reservations.next(&open) {
            self.reservations.changed.notify_one();
        }
        id
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.reservations.lock();
        open.places -= 1;
        open.leave(self.spot);
    }
}

impl Reservations {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes when the next reservation is over; returns the instant before.
    fn next(&self, open: &Open) -> u64 {
        let next = open.due.first().map_or(u64::MAX, |(until, _)| *until);
        self.next.swap(next, Ordering::Relaxed)
    }

    /// When the next reservation is over; `u64::MAX` without any.
    pub(super) fn next_due(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Takes a place for a key, if there is one.
    pub(super) fn place(
        self: &Arc<Self>,
        spot: KeySpot,
        bounds: ReservationBounds,
    ) -> Result<Place, DecideError> {
        let id = Id::new()?;
        let mut open = self.lock();
        let of_key = open.by_key.get(&spot).copied().unwrap_or(0);
        let full = match bounds {
            ReservationBounds { per_key, .. } if of_key >= per_key => {
                Some(DecideError::ReservationsOfKeyFull { most: per_key })
            }
            ReservationBounds { in_all, .. } if open.by_id.len() + open.places >= in_all => {
                Some(DecideError::ReservationsFull { most: in_all })
            }
            _ => None,
        };
        if let Some(full) = full {
            self.without_room.fetch_add(1, Ordering::Relaxed);
            return Err(full);
        }
        open.places += 1;
        open.enter(spot);
        Ok(Place {
            reservations: Arc::clone(self),
            id,
            spot,
        })
    }

    /// Takes a reservation out, so that nobody else settles it.
    pub(super) fn take(&self, text: &str) -> Result<(Id, Reservation), DecideError> {
        let unknown = || DecideError::UnknownReservation(text.to_owned());
        let id = Id::parse(text).ok_or_else(unknown)?;
        let mut open = self.lock();
        let reservation = open.remove(id).ok_or_else(unknown)?;
        self.next(&open);
        Ok((id, reservation))
    }

    /// Puts back a reservation that was taken and not settled.
    pub(super) fn put_back(&self, (id, reservation): (Id, Reservation)) {
        let mut open = self.lock();
        let until = reservation.until;
        open.due.insert((until, id));
        open.enter(reservation.spot);
        open.by_id.insert(id, reservation);
        if until < self.next(&open) {
            self.changed.notify_one();
        }
    }

    /// Takes out the reservations that are over at `now`.
    pub(super) fn take_due(&self, now: u64) -> Vec<Reservation> {
        let mut open = self.lock();
        let mut due = Vec::new();
        while let Some((until, id)) = open.due.first().copied()
            && until <= now
        {
            open.due.remove(&(until, id));
            due.extend(open.remove(id));
        }
        self.next(&open);
        due
    }

    /// A note for the operator; `None` if there was room for all.
    pub(super) fn full_note(&self) -> Option<String> {
        let without_room = self.without_room.load(Ordering::Relaxed);
        (without_room > 0).then(|| {
            format!(
                "no room for {without_room} reservations so far, which are errors for their clients; {} are open: raise [decide] max_reservations or max_reservations_per_key",
                self.len()
            )
        })
    }

    /// The document of `status`.
    pub(super) fn status(&self) -> ReservationsStatus {
        ReservationsStatus {
            open: self.len() as u64,
            without_room: self.without_room.load(Ordering::Relaxed),
        }
    }

    /// The number of open reservations.
    pub(super) fn len(&self) -> usize {
        self.lock().by_id.len()
    }
}
