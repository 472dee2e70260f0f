//! The ports of a limit's sockets.

use std::ops::RangeInclusive;

/// Ports, as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub Vec<RangeInclusive<u16>>);

impl Ports {
    /// The same ports in ascending order, each once.
    pub(super) fn merged(mut self) -> Self {
        self.0.retain(|range| !range.is_empty());
        self.0.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u16>> = Vec::new();
        for range in self.0 {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    pub(super) fn contains(&self, port: u16) -> bool {
        self.0.iter().any(|range| range.contains(&port))
    }

    /// The ports one by one, if they are no more than this.
    pub(super) fn few(&self, most: usize) -> Option<Vec<u16>> {
        let ports: Vec<u16> = self.0.iter().cloned().flatten().take(most + 1).collect();
        (ports.len() <= most).then_some(ports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::reversed_empty_ranges, reason = "an empty range has no ports")]
    fn merged_ports_have_each_port_once() {
        let merged = |ranges: &[RangeInclusive<u16>]| Ports(ranges.to_vec()).merged().0;
        assert_eq!(merged(&[53..=53, 53..=53]), [53..=53]);
        assert_eq!(
            merged(&[90..=95, 80..=85, 81..=82, 86..=86, 9..=8]),
            [80..=86, 90..=95]
        );
        assert_eq!(merged(&[u16::MAX..=u16::MAX, 1..=u16::MAX]), [1..=u16::MAX]);
        assert_eq!(merged(&[]), []);
    }
}
