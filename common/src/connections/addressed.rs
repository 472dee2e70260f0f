//! Connections whose own address and port a translation in this host's kernel has replaced (netfilter's REDIRECT, or DNAT to
//! this host): the packet path reserves them before it, and their sockets are behind it.
//!
//! The client's address and port stay the same. They lead from a socket to the reservation of the client's last SYN.

use super::{BEHIND, Reservation, Tuple, WINDOW_NANOSECONDS};

/// A client's address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Client {
    /// As [`Tuple::remote`].
    pub remote: [u64; 2],
    /// As [`Tuple::remote_port`].
    pub port: u32,
    /// 0.
    pub unused: u32,
}

/// The address and port of this host to which a client has sent its last SYN with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Addressed {
    /// As [`Tuple::local`].
    pub local: [u64; 2],
    /// As [`Tuple::local_port`].
    pub port: u32,
    /// The [`super::window`] of the reservation.
    pub window: u32,
}

/// How long the kernel completes a handshake, in windows: its SYN cookies are valid for up to 128 s.
const HANDSHAKE: u32 = (128_000_000_000 / WINDOW_NANOSECONDS) as u32 + 1;

impl Client {
    /// The client of a connection.
    #[inline(always)]
    #[must_use]
    pub const fn of(tuple: &Tuple) -> Self {
        Self {
            remote: tuple.remote,
            port: tuple.remote_port,
            unused: 0,
        }
    }
}

impl Addressed {
    /// By the SYN of a connection, reserved in window `window`.
    #[inline(always)]
    #[must_use]
    pub const fn of(tuple: &Tuple, window: u32) -> Self {
        Self {
            local: tuple.local,
            port: tuple.local_port,
            window,
        }
    }

    /// The connection as its client addressed it, for a socket of this client that is established in window `now`. `None`
    /// for one that was established later than the kernel completes a handshake.
    #[inline(always)]
    #[must_use]
    pub const fn original(&self, client: &Client, now: u32) -> Option<Tuple> {
        let age = now.wrapping_sub(self.window);
        if age > HANDSHAKE && age <= u32::MAX - BEHIND {
            return None;
        }
        Some(Tuple {
            remote: client.remote,
            local: self.local,
            remote_port: client.port,
            local_port: self.port,
        })
    }
}

impl Reservation {
    /// The window of a reservation that a socket with another address has taken: none that is in effect. It stays, in case
    /// that the socket was of another connection of the same client.
    #[inline(always)]
    #[must_use]
    pub const fn window_when_taken(now: u32) -> u32 {
        now.wrapping_sub(2 * BEHIND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::is_in_effect;

    const TUPLE: Tuple = Tuple {
        remote: [1, 2],
        local: [3, 4],
        remote_port: 5,
        local_port: 80,
    };

    #[test]
    fn a_translated_socket_is_found_for_as_long_as_a_handshake_takes() {
        let client = Client::of(&Tuple {
            local: [7, 8],
            local_port: 8080,
            ..TUPLE
        });
        for made in [0, 1_000, u32::MAX - 3] {
            let addressed = Addressed::of(&TUPLE, made);
            let at = |later: u32| addressed.original(&client, made.wrapping_add(later));
            assert_eq!([at(0), at(86), at(87)], [Some(TUPLE), Some(TUPLE), None]);
            // Another CPU may be behind, and has begun no new window.
            assert_eq!(at(u32::MAX), Some(TUPLE));
        }
    }

    #[test]
    fn a_reservation_that_was_taken_is_not_in_effect() {
        for now in [0, 5, 1_000, u32::MAX] {
            let made = Reservation::window_when_taken(now);
            for later in 0..1_000 {
                assert!(!is_in_effect(made, now.wrapping_add(later)), "{now}");
            }
        }
    }
}
