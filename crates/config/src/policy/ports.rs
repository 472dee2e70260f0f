//! Sets of ports.

/// Ports, as ranges that neither overlap nor are adjacent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortSet(Vec<(u16, u16)>);

impl PortSet {
    /// The union of ranges in any order.
    #[must_use]
    pub fn new(mut ranges: Vec<(u16, u16)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::new();
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.0
            .iter()
            .any(|(first, last)| (*first..=*last).contains(&port))
    }

    /// Each port or range as written in limits.toml.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        let text = |(first, last): &(u16, u16)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        self.0.iter().map(text).collect()
    }

    /// Every port of the set.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }
}
