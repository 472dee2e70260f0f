//! Calendar days and months of a time zone: the periods of `rate = "1000/calendar-day"`.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase};

use super::report::Wrong;
use super::schema::{Key, Kind, Text};
use super::suggestion::suggestion;

const HOUR: u64 = 3_600_000_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// The years 1970 to 9900, in seconds since 1970: a clock outside of them is taken for the nearest.
const SECONDS: (i64, i64) = (0, 250_000_000_000);
/// The name that every host knows.
const UTC: &str = "UTC";

/// The kind of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CalendarUnit {
    Day,
    Month,
}

impl CalendarUnit {
    const ALL: [Self; 2] = [Self::Day, Self::Month];

    /// `calendar-day`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Day => "calendar-day",
            Self::Month => "calendar-month",
        }
    }

    /// `day`: the rolling time of the same name.
    #[must_use]
    pub const fn rolling(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The usual length: 24 hours, 30 days.
    #[must_use]
    pub const fn usual_nanoseconds(self) -> u64 {
        match self {
            Self::Day => 24 * HOUR,
            Self::Month => 30 * 24 * HOUR,
        }
    }

    /// The length of the shortest period without a change of the clock: 24 hours, 28 days.
    #[must_use]
    pub const fn shortest_nanoseconds(self) -> u64 {
        match self {
            Self::Day => 24 * HOUR,
            Self::Month => 28 * 24 * HOUR,
        }
    }

    /// How long a key's use is kept: longer than any period (25 hours; 31 days and an hour), by as much as a wrong clock may
    /// have to be set back.
    #[must_use]
    pub const fn kept_nanoseconds(self) -> u64 {
        match self {
            Self::Day => 36 * HOUR,
            Self::Month => 32 * 24 * HOUR,
        }
    }
}

/// A rate's text with a rolling time in place of the calendar's, and the calendar's period.
///
/// # Errors
///
/// When its time names the calendar, but no period of it.
pub fn split(rate: &str) -> Result<Option<(String, CalendarUnit)>, Wrong> {
    let Some((count, time)) = rate.split_once('/') else {
        return Ok(None);
    };
    let time = time.trim();
    if let Some(unit) = CalendarUnit::ALL.into_iter().find(|it| it.word() == time) {
        return Ok(Some((format!("{count}/{}", unit.rolling()), unit)));
    }
    if time.to_ascii_lowercase().contains("calendar") {
        let message = format!("invalid rate {rate:?}: unknown time {time:?}");
        let help = "write a rate as \"1000/calendar-day\" or \"30000/calendar-month\"";
        return Err(Wrong::new(message, help));
    }
    Ok(None)
}

/// A time zone of the host's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

impl Zone {
    #[must_use]
    pub fn utc() -> Self {
        Self {
            name: UTC.to_owned(),
            zone: TimeZone::UTC,
        }
    }

    /// As in the database: `Europe/Berlin`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the database only where it is needed.
    fn find(text: &str, database: impl FnOnce() -> TimeZoneDatabase) -> Result<Self, Wrong> {
        if text.eq_ignore_ascii_case(UTC) {
            return Ok(Self::utc());
        }
        let database = database();
        if let Ok(zone) = database.get(text)
            && let Some(name) = zone.iana_name().map(str::to_owned)
        {
            return Ok(Self { name, zone });
        }
        let known: Vec<String> = database.available().map(|name| name.to_string()).collect();
        if known.is_empty() {
            let message = format!("time zone {text:?} not found: this host has no time zones");
            let help =
                "install tzdata (`apt install tzdata`, `dnf install tzdata`), or write \"UTC\"";
            return Err(Wrong::new(message, help));
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let nearest = suggestion(text, &known);
        let help = if nearest.starts_with("did you mean") {
            nearest
        } else {
            "write a name of the IANA database as \"Europe/Berlin\", or \"UTC\"; `timedatectl list-timezones` lists them"
                .to_owned()
        };
        Err(Wrong::new(format!("unknown time zone {text:?}"), help))
    }
}

impl Text for Zone {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        // Jiff's own instance keeps for the process that there is no database, and zones for minutes: a reload follows tzdata.
        Self::find(text, TimeZoneDatabase::from_env)
    }

    fn text(&self) -> String {
        self.name.clone()
    }
}

/// A period from its first second to the first one of the next, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Days or months since January 1970.
    pub number: i64,
    pub begin: i64,
    pub end: i64,
}

impl Period {
    #[must_use]
    pub const fn contains(&self, second: i64) -> bool {
        self.begin <= second && second < self.end
    }
}

/// The days or months of a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    pub unit: CalendarUnit,
    pub zone: Zone,
}

impl Calendar {
    /// The period of an instant in seconds since 1970. It begins with the first instant of its first day: at midnight, or
    /// when the clocks go forward over midnight. Clocks that go back over midnight do not begin it again.
    #[must_use]
    pub fn period(&self, second: i64) -> Period {
        let second = second.clamp(SECONDS.0, SECONDS.1);
        let instant = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
        let mut number = self.number(self.zone.zone.to_datetime(instant).date());
        if second >= self.begin(number + 1) {
            number += 1;
        }
        Period {
            number,
            begin: self.begin(number),
            end: self.begin(number + 1),
        }
    }

    /// The number of the period with this date.
    fn number(&self, date: Date) -> i64 {
        match self.unit {
            CalendarUnit::Day => second_of(date, Offset::UTC).div_euclid(SECONDS_PER_DAY),
            CalendarUnit::Month => {
                (i64::from(date.year()) - 1970) * 12 + i64::from(date.month()) - 1
            }
        }
    }

    /// The first day of a period.
    fn first_day(&self, number: i64) -> Date {
        let day = match self.unit {
            CalendarUnit::Day => Timestamp::from_second(number * SECONDS_PER_DAY)
                .map(|instant| Offset::UTC.to_datetime(instant).date()),
            CalendarUnit::Month => Date::new(
                i16::try_from(1970 + number.div_euclid(12)).unwrap_or(i16::MAX),
                number.rem_euclid(12) as i8 + 1,
                1,
            ),
        };
        // Other dates are outside of `SECONDS`.
        day.unwrap_or(Date::MAX)
    }

    /// The first second of a period.
    fn begin(&self, number: i64) -> i64 {
        let (day, zone) = (self.first_day(number), &self.zone.zone);
        let midnight = zone.to_ambiguous_timestamp(day.at(0, 0, 0, 0));
        match midnight.offset() {
            AmbiguousOffset::Unambiguous { offset } => second_of(day, offset),
            // Of two midnights the first.
            AmbiguousOffset::Fold { before, .. } => second_of(day, before),
            // There is no midnight: when the clocks go forward. Read with the later offset, it is before that.
            AmbiguousOffset::Gap { before, after } => {
                let earlier = Timestamp::from_second(second_of(day, after)).unwrap_or_default();
                let change = zone.following(earlier).next();
                change.map_or(second_of(day, before), |change| {
                    change.timestamp().as_second()
                })
            }
        }
    }
}

/// A date's midnight at an offset, in seconds since 1970.
fn second_of(date: Date, offset: Offset) -> i64 {
    let instant = offset.to_timestamp(date.at(0, 0, 0, 0));
    instant.map_or(i64::MAX, Timestamp::as_second)
}

#[cfg(test)]
mod tests;
