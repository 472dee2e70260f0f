//! The ports of a limit's sockets.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Ports, as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    ranges: Vec<RangeInclusive<u16>>,
    /// Those that the operator has named as backends'.
    backends: BTreeSet<u16>,
}

impl Ports {
    #[must_use]
    pub const fn new(ranges: Vec<RangeInclusive<u16>>) -> Self {
        Self {
            ranges,
            backends: BTreeSet::new(),
        }
    }

    /// These and the ports of backends, which may listen on loopback addresses.
    #[must_use]
    pub fn and_backends(mut self, ports: &[u16]) -> Self {
        self.ranges.extend(ports.iter().map(|port| *port..=*port));
        self.backends.extend(ports);
        self
    }

    /// The same ports in ascending order, each once.
    pub(super) fn merged(mut self) -> Self {
        self.ranges.retain(|range| !range.is_empty());
        self.ranges.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
        for range in self.ranges {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Self {
            ranges: merged,
            backends: self.backends,
        }
    }

    pub(super) fn contains(&self, port: u16) -> bool {
        self.ranges.iter().any(|range| range.contains(&port))
    }

    pub(super) fn is_of_backend(&self, port: u16) -> bool {
        self.backends.contains(&port)
    }

    /// The ports one by one, if they are no more than this.
    pub(super) fn few(&self, most: usize) -> Option<Vec<u16>> {
        let ports = self.ranges.iter().cloned().flatten();
        let ports: Vec<u16> = ports.take(most + 1).collect();
        (ports.len() <= most).then_some(ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "an empty range has no ports")]
    fn merged_ports_have_each_port_once() {
        let merged = |ranges: &[RangeInclusive<u16>]| Ports::new(ranges.to_vec()).merged().ranges;
        assert_eq!(merged(&[53..=53, 53..=53]), [53..=53]);
        assert_eq!(
            merged(&[90..=95, 80..=85, 81..=82, 86..=86, 9..=8]),
            [80..=86, 90..=95]
        );
        assert_eq!(merged(&[u16::MAX..=u16::MAX, 1..=u16::MAX]), [1..=u16::MAX]);
        assert_eq!(merged(&[]), []);
    }

    #[test]
    fn ports_of_backends_are_among_others() {
        let ports = Ports::new(vec![80..=81]).and_backends(&[81, 8080]).merged();
        assert_eq!(ports.ranges, [80..=81, 8080..=8080]);
        let of_backends = [80, 81, 8080].map(|port| ports.is_of_backend(port));
        assert_eq!(of_backends, [false, true, true]);
    }
}
