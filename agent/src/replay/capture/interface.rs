//! The interfaces of captures, and their clocks.

use super::link::LinkType;

/// Nanoseconds per second.
pub(super) const SECOND: u64 = 1_000_000_000;

/// An interface of a capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interface {
    pub(super) link: Option<LinkType>,
    pub(super) link_number: u32,
    pub(super) clock: Clock,
    pub(super) number: u32,
    pub(super) snap_length: u32,
    /// The bytes of a frame check sequence at the end of each frame, which no hook receives.
    pub(super) check_bytes: u32,
}

/// The unit of timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clock {
    pub(super) unit: TimeUnit,
    /// Seconds to add.
    pub(super) offset: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUnit {
    /// A unit is this many nanoseconds.
    Nanoseconds(u64),
    /// A nanosecond is this many units.
    Fraction(u64),
    /// A second is two to the power of this.
    Binary(u32),
}

impl Clock {
    /// From pcapng's option `if_tsresol`.
    pub(super) fn of(resolution: u8, offset: i64) -> Option<Self> {
        let unit = match resolution {
            0..=9 => TimeUnit::Nanoseconds(10u64.pow(9 - u32::from(resolution))),
            10..=19 => TimeUnit::Fraction(10u64.pow(u32::from(resolution) - 9)),
            0x80..=0xbf => TimeUnit::Binary(u32::from(resolution & 0x7f)),
            _ => return None,
        };
        Some(Self { unit, offset })
    }

    pub(super) fn nanoseconds(self, stamp: u64) -> u64 {
        let nanoseconds = match self.unit {
            TimeUnit::Nanoseconds(factor) => stamp.saturating_mul(factor),
            TimeUnit::Fraction(divisor) => stamp / divisor,
            TimeUnit::Binary(bits) => {
                u64::try_from((u128::from(stamp) * u128::from(SECOND)) >> bits).unwrap_or(u64::MAX)
            }
        };
        if self.offset == 0 {
            return nanoseconds;
        }
        nanoseconds.saturating_add_signed(self.offset.saturating_mul(SECOND as i64))
    }
}

/// Interfaces of all captures, by name.
#[derive(Clone, Debug, Default)]
pub struct InterfaceNames {
    /// Each name, and whether it is an interface's name or a description without one.
    names: Vec<(String, bool)>,
    /// The name for captures that do not name their interface.
    unnamed: Option<String>,
}

impl InterfaceNames {
    /// The most distinct interfaces: a capture that describes more is damaged. The others count as one.
    pub(super) const MOST: usize = 4_096;
    /// The longest stored name.
    const LONGEST: usize = 64;

    #[must_use]
    pub fn name(&self, number: u32) -> Option<&str> {
        self.names
            .get((number as usize).checked_sub(1)?)
            .map(|(name, _)| name.as_str())
    }

    /// No names yet, except for captures that do not name their interface.
    #[must_use]
    pub fn with_unnamed(name: Option<&str>) -> Self {
        Self {
            names: Vec::new(),
            unnamed: name.map(str::to_owned),
        }
    }

    /// The name with this number, if it is an interface's.
    #[must_use]
    pub fn named(&self, number: u32) -> Option<&str> {
        let (name, is_interface) = self.names.get((number as usize).checked_sub(1)?)?;
        is_interface.then_some(name.as_str())
    }

    /// The number of names.
    #[must_use]
    pub fn count(&self) -> usize {
        self.names.len()
    }

    /// The number of a name, without its control characters.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        self.number_of(name, true)
    }

    /// The number for captures that do not name their interface.
    pub(super) fn unnamed(&mut self) -> u32 {
        match self.unnamed.clone() {
            Some(name) => self.number(&name),
            None => self.number_of("capture", false),
        }
    }

    pub(super) fn number_of(&mut self, name: &str, is_interface: bool) -> u32 {
        let printed = |character: &char| character.is_ascii_graphic() || *character == ' ';
        let name: String = name.chars().filter(printed).take(Self::LONGEST).collect();
        let known = (name, is_interface);
        let nth = self
            .names
            .iter()
            .position(|other| *other == known)
            .unwrap_or_else(|| {
                if self.names.len() < Self::MOST {
                    self.names.push(known);
                }
                self.names.len() - 1
            });
        nth as u32 + 1
    }
}
