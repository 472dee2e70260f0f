use std::fs;

use jiff::civil::DateTime;
use proptest::prelude::*;

use super::*;

/// Zones whose clocks change at midnight, over it, by a whole day, or not at all.
const ZONES: [&str; 11] = [
    "UTC",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Pacific/Apia",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "America/Scoresbysund",
];

fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
    let zone = Zone::find(zone, || jiff::tz::db().clone())
        .unwrap_or_else(|wrong| panic!("{}", wrong.message));
    Calendar { unit, zone }
}

fn second(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_second()
}

fn local(zone: &str, second: i64) -> DateTime {
    let zone = TimeZone::get(zone).unwrap();
    zone.to_datetime(Timestamp::from_second(second).unwrap())
}

/// The definition: years and months, or days, of the latest date that a clock on the wall has shown.
fn dates(unit: CalendarUnit, zone: &TimeZone, seconds: impl Iterator<Item = i64>) -> Vec<Date> {
    let date = |second| {
        zone.to_datetime(Timestamp::from_second(second).unwrap())
            .date()
    };
    let first = |date: Date| match unit {
        CalendarUnit::Day => date,
        CalendarUnit::Month => date.first_of_month(),
    };
    let latest = |latest: &mut Date, second| {
        *latest = first(date(second)).max(*latest);
        Some(*latest)
    };
    seconds.scan(Date::MIN, latest).collect()
}

/// Two days from `begin` on, by quarters of an hour and a minute later: clocks change at quarters, or at 0:01.
fn follow(unit: CalendarUnit, name: &str, begin: i64) {
    let calendar = calendar(unit, name);
    let zone = TimeZone::get(name).unwrap();
    let begin = begin.div_euclid(900) * 900;
    let quarters = |days: std::ops::Range<i64>| {
        let quarters = 96 * days.start..96 * days.end;
        quarters.flat_map(|quarter| [0, 60].map(|second| quarter * 900 + second))
    };
    // A clock that went back over midnight has shown the later date before.
    let earlier = quarters(-1..0).count();
    let seconds = quarters(-1..2).map(|offset| begin + offset);
    let offsets = quarters(0..2);
    let dates = dates(unit, &zone, seconds).split_off(earlier);
    let mut last: Option<Period> = None;
    for (offset, date) in offsets.zip(dates) {
        let (second, period) = (begin + offset, calendar.period(begin + offset));
        assert!(period.contains(second), "{name} {second}: {period:?}");
        assert_eq!(
            calendar.first_day(period.number),
            date,
            "{name} {second}: {period:?}"
        );
        if last == Some(period) {
            continue;
        }
        let number = |second| calendar.period(second).number;
        for inside in [period.begin, period.end - 1] {
            assert_eq!(number(inside), period.number, "{name} {second} {inside}");
        }
        let (before, after) = (number(period.begin - 1), number(period.end));
        assert!(
            before < period.number && period.number < after,
            "{name} {second}: {before}, {period:?}, {after}"
        );
        let length = (period.end - period.begin) as u64 * 1_000_000_000;
        assert!(
            length < unit.kept_nanoseconds(),
            "{name} {second}: {period:?}"
        );
        if let Some(last) = last {
            assert_eq!(last.end, period.begin, "{name} {second}");
        }
        last = Some(period);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn periods_are_those_of_a_clock_on_the_wall(
        zone in 0..ZONES.len(),
        // Not in January 1970, which has no period before it.
        begin in 33 * SECONDS_PER_DAY..4_000_000_000i64,
    ) {
        follow(CalendarUnit::Day, ZONES[zone], begin);
        follow(CalendarUnit::Month, ZONES[zone], begin);
    }
}

#[test]
fn periods_are_right_around_every_change_of_the_clocks() {
    for name in ZONES {
        let zone = TimeZone::get(name).unwrap();
        let from = Timestamp::from_second(3 * SECONDS_PER_DAY).unwrap();
        let until = Timestamp::from_second(2_000_000_000).unwrap();
        let changes = zone.following(from).map(|change| change.timestamp());
        let mut seen = 0;
        for change in changes.take_while(|change| *change < until) {
            follow(
                CalendarUnit::Day,
                name,
                change.as_second() - SECONDS_PER_DAY / 2,
            );
            seen += 1;
        }
        assert!(seen > 0 || name == "UTC", "{name}");
    }
}

#[test]
fn days_have_as_many_hours_as_their_clocks_show() {
    for (zone, at, begin, hours) in [
        (
            "Europe/Berlin",
            "2026-03-29T12:00:00Z",
            "2026-03-29T00:00:00",
            23.0,
        ),
        (
            "Europe/Berlin",
            "2026-10-25T12:00:00Z",
            "2026-10-25T00:00:00",
            25.0,
        ),
        (
            "Europe/Berlin",
            "2026-11-28T22:59:59Z",
            "2026-11-28T00:00:00",
            24.0,
        ),
        (
            "Asia/Kathmandu",
            "2026-01-01T18:15:00Z",
            "2026-01-02T00:00:00",
            24.0,
        ),
        // Midnight did not exist: the day began at one.
        (
            "America/Sao_Paulo",
            "2018-11-04T12:00:00Z",
            "2018-11-04T01:00:00",
            23.0,
        ),
        // At midnight the clocks went back to 23:00 of the day before.
        (
            "America/Sao_Paulo",
            "2018-02-18T02:30:00Z",
            "2018-02-17T00:00:00",
            25.0,
        ),
        // Midnight existed twice.
        (
            "America/Havana",
            "2025-11-02T12:00:00Z",
            "2025-11-02T00:00:00",
            25.0,
        ),
        // A minute after midnight the clocks went back to 23:01: the day had begun.
        (
            "America/St_Johns",
            "2006-10-29T02:45:00Z",
            "2006-10-29T00:00:00",
            25.0,
        ),
        // The day before was the 29th.
        (
            "Pacific/Apia",
            "2011-12-30T10:00:00Z",
            "2011-12-31T00:00:00",
            24.0,
        ),
        (
            "Pacific/Apia",
            "2011-12-30T09:59:59Z",
            "2011-12-29T00:00:00",
            24.0,
        ),
        (
            "Australia/Lord_Howe",
            "2026-04-05T00:00:00Z",
            "2026-04-05T00:00:00",
            24.5,
        ),
        ("UTC", "2028-02-29T23:59:59Z", "2028-02-29T00:00:00", 24.0),
    ] {
        let period = calendar(CalendarUnit::Day, zone).period(second(at));
        let found = (period.end - period.begin) as f64 / 3_600.0;
        let begin: DateTime = begin.parse().unwrap();
        assert_eq!(
            (local(zone, period.begin), found),
            (begin, hours),
            "{zone} {at}"
        );
    }
}

#[test]
fn months_begin_on_the_first_at_local_midnight() {
    for (zone, at, begin, end) in [
        (
            "UTC",
            "2028-02-10T00:00:00Z",
            "2028-02-01T00:00:00Z",
            "2028-03-01T00:00:00Z",
        ),
        (
            "UTC",
            "2026-12-31T23:59:59Z",
            "2026-12-01T00:00:00Z",
            "2027-01-01T00:00:00Z",
        ),
        (
            "Europe/Berlin",
            "2026-02-28T23:00:00Z",
            "2026-02-28T23:00:00Z",
            "2026-03-31T22:00:00Z",
        ),
        (
            "Europe/Berlin",
            "2026-10-31T22:59:59Z",
            "2026-09-30T22:00:00Z",
            "2026-10-31T23:00:00Z",
        ),
        (
            "Asia/Kathmandu",
            "2026-05-01T00:00:00Z",
            "2026-04-30T18:15:00Z",
            "2026-05-31T18:15:00Z",
        ),
    ] {
        let period = calendar(CalendarUnit::Month, zone).period(second(at));
        assert_eq!(
            (period.begin, period.end),
            (second(begin), second(end)),
            "{zone} {at}"
        );
    }
}

#[test]
fn a_clock_that_was_never_set_has_a_period() {
    for unit in CalendarUnit::ALL {
        let calendar = calendar(unit, "Pacific/Apia");
        for far in [i64::MIN, -1, i64::MAX] {
            let period = calendar.period(far);
            assert!(period.begin < period.end, "{far}: {period:?}");
        }
    }
}

#[test]
fn a_host_without_time_zones_knows_utc_and_says_what_to_install() {
    let none = TimeZoneDatabase::none();
    let directory = tempfile::tempdir().unwrap();
    let empty = TimeZoneDatabase::from_dir(directory.path());
    for database in std::iter::once(none).chain(empty) {
        assert_eq!(Zone::find("utc", || database.clone()), Ok(Zone::utc()));
        let wrong = Zone::find("Europe/Berlin", || database.clone()).unwrap_err();
        assert!(
            wrong.message.contains("this host has no time zones"),
            "{}",
            wrong.message
        );
        assert!(wrong.help.contains("apt install tzdata"), "{}", wrong.help);
    }
}

#[test]
fn a_name_is_looked_up_and_never_opened_as_a_path() {
    let directory = tempfile::tempdir().unwrap();
    let zones = directory.path().join("zones");
    fs::create_dir(&zones).unwrap();
    for copy in [zones.join("Known"), directory.path().join("Secret")] {
        fs::copy("/usr/share/zoneinfo/Europe/Berlin", copy).unwrap();
    }
    let find = |text: &str| Zone::find(text, || TimeZoneDatabase::from_dir(&zones).unwrap());
    assert_eq!(find("known").map(|zone| zone.name), Ok("Known".to_owned()));
    for path in [
        "../Secret",
        "./Known",
        directory.path().join("Secret").to_str().unwrap(),
    ] {
        let wrong = find(path).unwrap_err();
        assert!(
            wrong.message.contains("unknown time zone"),
            "{path}: {}",
            wrong.message
        );
    }
}

#[test]
fn a_misspelt_zone_is_corrected() {
    let help = |text| {
        Zone::find(text, TimeZoneDatabase::from_env)
            .unwrap_err()
            .help
    };
    assert_eq!(help("Europe/Berln"), "did you mean \"Europe/Berlin\"?");
    assert!(help("+02:00").contains("a name of the IANA database"));
    assert!(help("").contains("a name of the IANA database"));
    let found = Zone::find("europe/berlin", TimeZoneDatabase::from_env).unwrap();
    assert_eq!(found.name(), "Europe/Berlin");
}
