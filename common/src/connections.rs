//! Open TCP connections per key: reserved at the SYN, counted from socket states.
//!
//! A reservation lasts for two to three windows of [`WINDOW_NANOSECONDS`]. Once the connection is established, it is
//! an open one, until its socket closes. Both counts together never exceed the limit, whatever CPUs do simultaneously:
//! an opened connection is counted as open before its reservation ends.

mod addressed;

use crate::key::Key;
use crate::rule::{Enforcement, Rule, Subject};
use crate::throttle::{Cell, Host, Outcome, Sample};

pub use addressed::{Addressed, Client};

/// The most limits with `concurrent` for one connection.
pub const MOST_KEYS: usize = 4;

/// The largest `concurrent`, also of a class with a multiplier: a [`Pending`] counts as many in each window.
pub const MOST_CONCURRENT: u64 = 0xffff;

/// A reservation lasts at least twice as long and at most three times.
pub const WINDOW_NANOSECONDS: u64 = 1_500_000_000;

/// The most attempts to reserve while other CPUs change the count; then the connection is refused.
const TRIES: u32 = 8;

const WINDOWS: u32 = 3;
const BITS: u32 = 16;
const COUNT: u64 = (1 << BITS) - 1;
const COUNTS: u64 = (1 << (WINDOWS * BITS)) - 1;

/// How far the clocks of two CPUs, or the times at which they read it, may differ in windows.
const BEHIND: u32 = 16;

/// The window of an instant.
#[inline(always)]
#[must_use]
pub const fn window(nanoseconds: u64) -> u32 {
    (nanoseconds / WINDOW_NANOSECONDS) as u32
}

/// Whether a reservation of window `made` is in effect in window `now`.
#[inline(always)]
#[must_use]
pub const fn is_in_effect(made: u32, now: u32) -> bool {
    let age = now.wrapping_sub(made);
    age < WINDOWS || age > u32::MAX - BEHIND
}

/// The reservations of a key: those of the newest window in the lowest 16 bits, then those of the two before; the
/// lower half of the window's number on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pending(pub u64);

impl Pending {
    /// Without the reservations that have expired in window `now`. An earlier `now` is that of a CPU that is behind. So are
    /// the last 16 windows before the number's lower half returns, after 27 hours: for these, reservations that nobody has
    /// ended or touched since then count again.
    #[inline(always)]
    #[must_use]
    pub const fn at(self, now: u32) -> Self {
        let now = now as u64 & COUNT;
        let passed = now.wrapping_sub(self.0 >> (WINDOWS * BITS)) & COUNT;
        if passed == 0 || passed > COUNT - BEHIND as u64 && self.0 & COUNTS != 0 {
            return self;
        }
        let counts = if passed == 1 {
            self.0 << BITS & COUNTS
        } else if passed == 2 {
            self.0 << (2 * BITS) & COUNTS
        } else {
            0
        };
        Self(now << (WINDOWS * BITS) | counts)
    }

    /// All reservations.
    #[inline(always)]
    #[must_use]
    pub const fn count(self) -> u64 {
        (self.0 & COUNT) + (self.0 >> BITS & COUNT) + (self.0 >> (2 * BITS) & COUNT)
    }

    /// With one more in its newest window, unless that is full.
    #[inline(always)]
    #[must_use]
    pub const fn plus_one(self) -> Self {
        if self.0 & COUNT == COUNT {
            self
        } else {
            Self(self.0 + 1)
        }
    }

    /// With one fewer of window `made`; the same if that has expired.
    #[inline(always)]
    #[must_use]
    pub const fn minus_one(self, made: u32) -> Self {
        let age = (self.0 >> (WINDOWS * BITS)).wrapping_sub(made as u64) & COUNT;
        let one = if age == 1 {
            1 << BITS
        } else if age == 2 {
            1 << (2 * BITS)
        } else if age == 0 || age > COUNT - BEHIND as u64 {
            // Made while another CPU had already begun the next window.
            1
        } else {
            return self;
        };
        if self.0 & (COUNT * one) == 0 {
            self
        } else {
            Self(self.0 - one)
        }
    }
}

/// The addresses and ports of a connection to this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Tuple {
    /// The client's address, as two words of [`crate::packet::Address`].
    pub remote: [u64; 2],
    /// This host's.
    pub local: [u64; 2],
    /// The client's port.
    pub remote_port: u32,
    /// This host's port.
    pub local_port: u32,
}

/// The keys under which a connection is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Reservation {
    /// The first `count` are in use.
    pub keys: [Key; MOST_KEYS],
    /// How many.
    pub count: u32,
    /// The [`window`] in which it was made.
    pub window: u32,
}

/// An open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Connection {
    /// The keys.
    pub reservation: Reservation,
    /// Its addresses and ports.
    pub tuple: Tuple,
    /// When it was established or found, on the clock of `bpf_ktime_get_ns`.
    pub since: u64,
    /// A bit for each key that counts it.
    pub counted: u32,
    /// The [`seen_at`] of the last time when its socket was seen.
    pub seen: u32,
}

/// An instant in units of 2^30 ns, about a second: at which a socket was seen.
#[inline(always)]
#[must_use]
pub const fn seen_at(nanoseconds: u64) -> u32 {
    (nanoseconds >> 30) as u32
}

impl Connection {
    /// Whether its socket has not been seen since an instant, although it was to be.
    #[must_use]
    pub const fn is_missing_since(&self, nanoseconds: u64) -> bool {
        self.since < nanoseconds && self.seen < seen_at(nanoseconds)
    }
}

/// An open connection whose socket no longer exists: the kernel program did not run when it was closed, or could not
/// remove the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Stale {
    /// The address of the former socket; 0: none.
    pub socket: u64,
    /// [`Connection::since`].
    pub since: u64,
    /// [`Connection::seen`].
    pub seen: u32,
    /// 0.
    pub unused: u32,
}

impl Stale {
    /// Of an entry.
    #[inline(always)]
    #[must_use]
    pub const fn of(socket: u64, connection: &Connection) -> Self {
        Self {
            socket,
            since: connection.since,
            seen: connection.seen,
            unused: 0,
        }
    }
}

/// The most stale entries that one visit of all sockets removes.
pub const MOST_STALE: u32 = 64;

/// A SYN under evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Attempt {
    /// The fields that rules evaluate.
    pub subject: Subject,
    /// The connection that it opens.
    pub tuple: Tuple,
    /// Its reservation.
    pub reservation: Reservation,
    /// The first of its rules with `concurrent`.
    pub first: u32,
    /// 1: a SYN before it holds the reservation.
    pub is_repeated: u32,
}

/// The constants of the programs that count connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct ConnectionSettings {
    /// The number of the network namespace whose sockets count.
    pub namespace: u32,
    /// Offsets in the kernel's `struct sock_common`.
    pub family: u32,
    /// The remote IPv4 address.
    pub remote_ipv4: u32,
    /// This host's.
    pub local_ipv4: u32,
    /// The remote IPv6 address.
    pub remote_ipv6: u32,
    /// This host's.
    pub local_ipv6: u32,
    /// The remote port, in network byte order.
    pub remote_port: u32,
    /// The local port, in host byte order.
    pub local_port: u32,
    /// The state.
    pub state: u32,
    /// The pointer to the namespace.
    pub net: u32,
    /// The offset of its number in the namespace.
    pub namespace_number: u32,
    /// 0.
    pub unused: u32,
}

impl ConnectionSettings {
    /// No namespace. The default of a program until the agent writes its own.
    pub const NONE: Self = Self {
        namespace: 0,
        family: 0,
        remote_ipv4: 0,
        local_ipv4: 0,
        remote_ipv6: 0,
        local_ipv6: 0,
        remote_port: 0,
        local_port: 0,
        state: 0,
        net: 0,
        namespace_number: 0,
        unused: 0,
    };
}

/// The result for a SYN, as one number: the number of rules with `concurrent` in the lower half, and above it the rule
/// that refuses, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission(pub u64);

impl Admission {
    /// It has a reservation under so many rules.
    #[inline(always)]
    #[must_use]
    pub const fn admitted(rules: u32) -> Self {
        Self(rules as u64)
    }

    /// This rule refuses it.
    #[inline(always)]
    #[must_use]
    pub const fn refused_by(rule: u32) -> Self {
        Self((rule as u64 + 1) << 32)
    }

    /// The rules with `concurrent`.
    #[inline(always)]
    #[must_use]
    pub const fn rules(self) -> u32 {
        self.0 as u32
    }

    /// The rule that refuses it.
    #[inline(always)]
    #[must_use]
    pub const fn refusing(self) -> Option<u32> {
        if self.0 >> 32 == 0 {
            None
        } else {
            Some((self.0 >> 32) as u32 - 1)
        }
    }
}

/// The counts of connections: BPF maps in the kernel, memory in tests.
pub trait Ledger: Host {
    /// The open connections of a key.
    fn open_connections(&self, key: &Key) -> u64;
    /// The reservations of a key; created if there are none. `None` without room.
    fn pending_connections(&self, key: &Key) -> Option<Self::Cell>;
    /// The window in which another SYN of the same connection made a reservation.
    fn reserved_in(&self, tuple: &Tuple) -> Option<u32>;
    /// Remembers the reservation.
    fn remember(&self, tuple: &Tuple, reservation: &Reservation);
    /// The present [`window`].
    fn window(&self) -> u32;
}

/// The result of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reserved {
    Within,
    Over,
    Lost,
}

/// Adds a reservation if it is within the limit, or if `is_forced`.
///
/// It is added first and compared with the limit then. A connection is counted as open before its reservation ends, and
/// the exchange orders the two readings: a reservation that `pending` no longer has is in `open`. Among admitted
/// connections, the last one to be added has met all others, so that all together are within the limit. A reservation
/// that becomes open between both readings is counted twice, which refuses at most this connection.
#[inline(always)]
fn reserve_one<C: Cell>(
    pending: C,
    open: impl Fn() -> u64,
    most: u64,
    now: u32,
    is_forced: bool,
) -> Reserved {
    for _ in 0..TRIES {
        // A first look, so that a key at its limit costs no exchange.
        let looked = open();
        let before = pending.load();
        let current = Pending(before).at(now);
        if looked + current.count() >= most && !is_forced {
            return Reserved::Over;
        }
        if pending.compare_exchange(before, current.plus_one().0) != before {
            continue;
        }
        if open() + current.count() < most {
            return Reserved::Within;
        }
        if !is_forced {
            release_one(pending, now);
        }
        return Reserved::Over;
    }
    Reserved::Lost
}

/// Ends a reservation of window `made`.
#[inline(always)]
fn release_one<C: Cell>(pending: C, made: u32) {
    for _ in 0..TRIES {
        let before = pending.load();
        let after = Pending(before).minus_one(made).0;
        if after == before || pending.compare_exchange(before, after) == before {
            return;
        }
    }
    // It expires.
}

/// Counts an established connection as open and ends its reservation of window `made`, if that is still in effect.
/// Returns whether the connection is counted.
#[inline(always)]
pub fn establish<C: Cell>(
    count_up: impl FnOnce() -> bool,
    pending: impl FnOnce() -> Option<C>,
    made: u32,
    now: u32,
) -> bool {
    // In this order: see `reserve_one`.
    let is_counted = count_up();
    if is_in_effect(made, now)
        && let Some(pending) = pending()
    {
        release_one(pending, made);
    }
    is_counted
}

/// Reserves a connection under each of the rules with `concurrent` at the start of a span, or under none.
#[inline(always)]
pub fn reserve<H: Ledger>(host: &H, attempt: &mut Attempt, count: u32) -> Admission {
    let now = host.window();
    let first = attempt.first;
    attempt.is_repeated = match host.reserved_in(&attempt.tuple) {
        Some(made) if is_in_effect(made, now) => 1,
        _ => 0,
    };
    attempt.reservation.window = now;
    attempt.reservation.count = 0;
    for nth in 0..MOST_KEYS {
        if nth as u32 >= count {
            break;
        }
        let Some(rule) = host.rule(first + nth as u32) else {
            break;
        };
        if !rule.counts_open() {
            break;
        }
        attempt.reservation.count = nth as u32 + 1;
        if attempt.is_repeated != 0 {
            continue;
        }
        let key = rule.key_of(&attempt.subject);
        attempt.reservation.keys[nth] = key;
        let is_enforced = rule.enforcement == Enforcement::Enforce as u8;
        let open = || host.open_connections(&key);
        let reserved = match host.pending_connections(&key) {
            Some(pending) => reserve_one(pending, open, rule.most, now, !is_enforced),
            // Without room for its reservations, what it has open counts.
            None if open() < rule.most => Reserved::Within,
            None => Reserved::Over,
        };
        match reserved {
            Reserved::Within => continue,
            Reserved::Lost if !is_enforced => continue,
            Reserved::Over if !is_enforced => {
                count_refusal(host, attempt, rule, key, Outcome::WouldThrottle);
            }
            _ => {
                count_refusal(host, attempt, rule, key, Outcome::Throttled);
                attempt.reservation.count = nth as u32;
                take_back(host, attempt);
                return Admission::refused_by(first + nth as u32);
            }
        }
    }
    Admission::admitted(attempt.reservation.count)
}

/// Concludes a reserved connection: the other rules passed its SYN, or refused it.
#[inline(always)]
pub fn conclude<H: Ledger>(host: &H, attempt: &Attempt, passes: bool) {
    if !passes {
        take_back(host, attempt);
        return;
    }
    for nth in 0..MOST_KEYS as u32 {
        if nth >= attempt.reservation.count {
            break;
        }
        if let Some(rule) = host.rule(attempt.first + nth) {
            host.count(rule.counter, Outcome::Passed, attempt.subject.size);
        }
    }
    if attempt.is_repeated == 0 && attempt.reservation.count != 0 {
        host.remember(&attempt.tuple, &attempt.reservation);
    }
}

#[inline(always)]
fn take_back<H: Ledger>(host: &H, attempt: &Attempt) {
    for (nth, key) in attempt.reservation.keys.iter().enumerate() {
        if nth as u32 >= attempt.reservation.count || attempt.is_repeated != 0 {
            break;
        }
        if let Some(pending) = host.pending_connections(key) {
            release_one(pending, attempt.reservation.window);
        }
    }
}

#[inline(always)]
fn count_refusal<H: Host>(host: &H, attempt: &Attempt, rule: &Rule, key: Key, outcome: Outcome) {
    host.count(rule.counter, outcome, attempt.subject.size);
    host.sample_untallied(&Sample {
        rule,
        key,
        outcome,
        weight: 1,
        rest: 0,
    });
}

#[cfg(test)]
mod tests;
