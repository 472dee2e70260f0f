//! The shape and capacity of the table of sources.

use common::settings::Settings;
use common::table::Shape;
use config::policy::{DEFAULT_SOURCES, MOST_SOURCES};

use super::error::CompileError;
use super::groups::Groups;

/// The most bytes of the rings of sliding logs.
const LARGEST_RINGS: u64 = 1 << 30;
/// The same without a configured `max_sources`: a reload that replaces the table temporarily needs three times as much.
const DEFAULT_RINGS: u64 = 512 << 20;

/// The cells of the smallest table, shared by its groups: 4 MiB with one limit on a key.
const FEWEST_CELLS: u64 = 1 << 18;
/// The most bytes of the rings of a small table's cells.
const CELL_RINGS: u64 = 16 << 20;

/// The shape of a table, but for the number of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSpec {
    slot_words: u32,
    groups: u32,
    ring_words: u32,
}

impl From<&Settings> for TableSpec {
    fn from(settings: &Settings) -> Self {
        Self {
            slot_words: settings.shape.slot_words,
            groups: settings.shape.groups,
            ring_words: settings.ring_words,
        }
    }
}

impl TableSpec {
    /// The shape for these groups.
    pub(super) fn of(groups: &Groups) -> Self {
        Self {
            slot_words: groups.slot_words(),
            groups: groups.numbers(),
            ring_words: groups.ring_words,
        }
    }

    /// The shape for `max_sources` keys. Without rings it takes 32 bytes per key with one limit, 64 with up to three,
    /// and 72 with up to seven.
    ///
    /// An eighth is cells, for keys without a slot. Tables of small slots have nearly twice as many slots as keys, so
    /// that few sets are full while others have room. A small table has as many cells as one for a million keys.
    #[must_use]
    pub fn shape(&self, max_sources: u32) -> Shape {
        let max_sources = u64::from(max_sources);
        let is_wide = self.slot_words == 8;
        let eighth = (max_sources / if is_wide { 8 } else { 4 }).max(1);
        let slots = if is_wide {
            max_sources
        } else {
            2 * max_sources - eighth
        };
        let mut cells = eighth.max(FEWEST_CELLS);
        if self.ring_words > 0 {
            let ring = u64::from(self.ring_words) * 8;
            cells = cells.min((CELL_RINGS / ring).max(eighth));
        }
        let shape = Shape {
            sets: 0,
            slot_words: self.slot_words,
            groups: self.groups,
            cells: 0,
        };
        Shape {
            sets: u32::try_from(slots.div_ceil(u64::from(shape.slots())).max(1))
                .unwrap_or(u32::MAX),
            cells: u32::try_from((cells / u64::from(self.groups)).max(1)).unwrap_or(u32::MAX),
            ..shape
        }
    }

    /// The bytes of the rings of a table for `max_sources` keys.
    fn rings(&self, max_sources: u32) -> u64 {
        u64::from(self.ring_words) * u64::from(self.shape(max_sources).all_slots()) * 8
    }

    /// The capacity: the configured one, or the default, lowered to the maximum for [`DEFAULT_RINGS`].
    pub(super) fn sources(&self, written: Option<u32>) -> Result<u32, CompileError> {
        let Some(max_sources) = written else {
            let fits = |sources: &u32| self.rings(*sources) <= DEFAULT_RINGS;
            let powers = (0..DEFAULT_SOURCES.ilog2() + 1)
                .rev()
                .map(|power| 1 << power);
            return Ok(std::iter::once(DEFAULT_SOURCES)
                .chain(powers)
                .find(fits)
                .unwrap_or(1));
        };
        let rings = self.rings(max_sources);
        if rings > LARGEST_RINGS {
            let fits = self
                .most(|sources| self.rings(sources) <= LARGEST_RINGS)
                .unwrap_or(1);
            return Err(CompileError::LogsTooLarge {
                mebibytes: rings.div_ceil(1 << 20),
                max_sources,
                fits,
            });
        }
        Ok(max_sources)
    }

    /// The largest number of sources for which `fits` is true, rounded down to two significant digits; `None` if it is
    /// true for none. `fits` must be true for all numbers below one for which it is true.
    pub fn most(&self, fits: impl Fn(u32) -> bool) -> Option<u32> {
        let (mut fitting, mut above) = (0, MOST_SOURCES + 1);
        while fitting + 1 < above {
            let middle = fitting + (above - fitting) / 2;
            if fits(middle) {
                fitting = middle;
            } else {
                above = middle;
            }
        }
        let unit = 10u32.pow(fitting.checked_ilog10()?.saturating_sub(1));
        Some(fitting / unit * unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(slot_words: u32, ring_words: u32) -> TableSpec {
        TableSpec {
            slot_words,
            groups: 1,
            ring_words,
        }
    }

    #[test]
    fn the_default_is_a_million_sources_and_fewer_where_logs_are_long() {
        assert_eq!(spec(2, 0).sources(None), Ok(1_000_000));
        assert_eq!(spec(2, 10).sources(None), Ok(1_000_000));
        for ring_words in [60, 100, 500, 1024, 7 * 1024] {
            let sources = spec(2, ring_words).sources(None).unwrap();
            assert!(sources.is_power_of_two(), "{sources}");
            assert!(spec(2, ring_words).rings(sources) <= DEFAULT_RINGS);
            assert!(spec(2, ring_words).rings(2 * sources) > DEFAULT_RINGS);
        }
    }

    #[test]
    fn what_is_written_and_does_not_fit_is_an_error_with_what_does() {
        let Err(CompileError::LogsTooLarge { fits, .. }) = spec(2, 1000).sources(Some(1_000_000))
        else {
            panic!()
        };
        assert_eq!(spec(2, 1000).sources(Some(fits)), Ok(fits));
        assert!(
            spec(2, 1000).sources(Some(fits + fits / 10)).is_err(),
            "{fits}"
        );
    }
}
