//! The connections that exist when counting begins.

use std::collections::HashSet;
use std::{fs, io};

use common::connections::{MOST_KEYS, Reservation, Tuple};
use common::packet::{Address, Kind, Protocol};
use common::prefix::PrefixEntry;
use common::rule::{Rule, RuleSpan, Subject};
use common::scope::{self, ScopeSpans, ScopedPacket, Scopes, Scoping, SpansBy};
use common::settings::{PortSpans, span_index};

use crate::compile::Image;
use crate::hooks::attached::Attached;

const LISTEN: u8 = 10;
/// Established, and the states from which only its end is left, while its socket is open.
const OPEN: [u8; 6] = [1, 4, 5, 8, 9, 11];

/// The open connections to listeners of this network namespace.
pub fn to_this_host() -> io::Result<Vec<Tuple>> {
    let mut sockets = Vec::new();
    for name in ["tcp", "tcp6"] {
        match fs::read_to_string(format!("/proc/thread-self/net/{name}")) {
            Ok(text) => sockets.extend(text.lines().skip(1).filter_map(socket)),
            // IPv6 may be off.
            Err(error) if error.kind() == io::ErrorKind::NotFound && name == "tcp6" => {}
            Err(error) => return Err(error),
        }
    }
    let listening: HashSet<u32> = sockets
        .iter()
        .filter(|(_, state)| *state == LISTEN)
        .map(|(tuple, _)| tuple.local_port)
        .collect();
    let is_open = |(tuple, state): &(Tuple, u8)| {
        OPEN.contains(state) && listening.contains(&tuple.local_port)
    };
    Ok(sockets
        .into_iter()
        .filter(is_open)
        .map(|(tuple, _)| tuple)
        .collect())
}

/// A line of `/proc/net/tcp`: `sl local_address rem_address st …`, addresses as words in memory order.
fn socket(line: &str) -> Option<(Tuple, u8)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, local_port) = endpoint(fields.next()?)?;
    let (remote, remote_port) = endpoint(fields.next()?)?;
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let words = |address: Address| [address.hi, address.lo];
    Some((
        Tuple {
            remote: words(remote),
            local: words(local),
            remote_port,
            local_port,
        },
        state,
    ))
}

fn endpoint(text: &str) -> Option<(Address, u32)> {
    let (address, port) = text.split_once(':')?;
    let port = u32::from_str_radix(port, 16).ok()?;
    let word = |nth: usize| {
        Some(
            u32::from_str_radix(address.get(nth * 8..nth * 8 + 8)?, 16)
                .ok()?
                .to_ne_bytes(),
        )
    };
    if address.len() == 8 {
        return Some((Address::from_ipv4(word(0)?), port));
    }
    let mut octets = [0; 16];
    for (nth, part) in octets.chunks_mut(4).enumerate() {
        part.copy_from_slice(&word(nth)?);
    }
    Some((Address::from_ipv6(octets), port))
}

/// The keys under which a policy counts a connection; `None` if it counts it under none.
pub fn reservation(image: &Image, interface: &Attached, tuple: &Tuple) -> Option<Reservation> {
    let [hi, lo] = tuple.remote;
    let remote = Address { hi, lo };
    let is_by_prefix = image.settings.prefixes_in_use != 0;
    let entry = if is_by_prefix {
        image.entry(remote)
    } else {
        PrefixEntry::default()
    };
    if entry.exemption() != 0 {
        return None;
    }
    let subject = Subject {
        hi,
        lo,
        is_ipv4: u32::from(remote.is_ipv4()),
        local_port: tuple.local_port,
        class: entry.class(),
        interface: if image.settings.interfaces_in_use != 0 {
            interface.index
        } else {
            0
        },
        network: image.network(remote),
        ..Subject::default()
    };
    let span = span(image, interface, entry, tuple.local_port as u16).without_proofs();
    let rules = image
        .rules
        .get(span.first as usize..)?
        .iter()
        .take(span.count as usize);
    let mut reservation = Reservation::default();
    for (key, rule) in reservation
        .keys
        .iter_mut()
        .zip(rules.take(MOST_KEYS).take_while(|rule| rule.counts_open()))
    {
        *key = Rule::key_of(rule, &subject);
        reservation.count += 1;
    }
    // Of a window that has expired.
    reservation.window = u32::MAX / 2;
    (reservation.count > 0).then_some(reservation)
}

/// As the kernel program finds the span of a SYN.
fn span(image: &Image, interface: &Attached, entry: PrefixEntry, port: u16) -> RuleSpan {
    let index = span_index(Protocol::Tcp, Kind::Connection);
    let settings = &image.settings;
    let mut span = match SpansBy::from_setting(settings.spans_by) {
        SpansBy::Scope => {
            let scoped = ScopedPacket::new(index).with_port(port);
            return scope::find(
                &Scoped { image, interface },
                entry.source_index(),
                interface.index,
                scoped,
            );
        }
        SpansBy::Port => {
            let packed = image
                .ports
                .get(usize::from(port))
                .map_or(0, |spans| spans.packed[index]);
            PortSpans::unpack(packed)
        }
        SpansBy::Protocol => settings.spans[index],
    };
    span.first += entry.source_index() * settings.rules_per_multiplier;
    span
}

struct Scoped<'i> {
    image: &'i Image,
    interface: &'i Attached,
}

impl Scopes for Scoped<'_> {
    fn scoping(&self) -> Scoping {
        self.image.settings.scoping
    }

    fn interface_number(&self, _index: u32) -> u32 {
        let names = self.interface.names.iter();
        self.image.interfaces.of(names.map(String::as_str))
    }

    fn port_row(&self, port: u16) -> u32 {
        self.image
            .ports
            .get(usize::from(port))
            .map_or(0, |spans| spans.packed[0])
    }

    fn scope_spans(&self, row: u32) -> Option<&ScopeSpans> {
        self.image.scopes.get(row as usize)
    }

    fn rules_of_multiplier(&self) -> u32 {
        self.image.settings.rules_per_multiplier
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_are_read_in_both_versions_of_ip() {
        let line = "   1: 0100007F:1F90 0A02000A:C350 01 00000000:00000000 00:00000000 00000000 0 0 1 1 0 20 4 30 10 -1";
        let (tuple, state) = socket(line).unwrap();
        let words = |address: Address| [address.hi, address.lo];
        assert_eq!(
            (state, tuple.local_port, tuple.remote_port),
            (1, 8080, 50_000)
        );
        assert_eq!(tuple.local, words(Address::from_ipv4([127, 0, 0, 1])));
        assert_eq!(tuple.remote, words(Address::from_ipv4([10, 0, 2, 10])));
        let line = "   0: B80D0120000000000000000001000000:0050 0000000000000000FFFF00000100007F:1F90 08 0:0";
        let (tuple, state) = socket(line).unwrap();
        let mut own = [0; 16];
        own[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        own[15] = 1;
        assert_eq!((state, tuple.local), (8, words(Address::from_ipv6(own))));
        // An IPv4 client of an IPv6 listener is the same key as elsewhere.
        assert_eq!(tuple.remote, words(Address::from_ipv4([127, 0, 0, 1])));
        assert_eq!(socket("sl local_address rem_address st"), None);
    }
}
