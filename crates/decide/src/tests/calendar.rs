//! Limits whose rate is by the calendar.

use config::calendar::Calendar;

use super::*;

const HOUR: u64 = 3_600 * SECOND;
const ZONES: [&str; 4] = [
    "Europe/Berlin",
    "America/Havana",
    "Pacific/Apia",
    "Asia/Kathmandu",
];

/// An engine with both of its clocks.
struct Host {
    engine: Engine,
    wall: Arc<AtomicU64>,
    now: u64,
}

fn text(rate: &str, lines: &str) -> String {
    format!(
        "[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\nrate = \"{rate}\"\n{lines}\n"
    )
}

fn wall(utc: &str) -> u64 {
    let (date, time) = utc.split_once(' ').unwrap();
    let numbers = |text: &str, by: char| -> Vec<i64> {
        text.split(by)
            .map(|number| number.parse().unwrap())
            .collect()
    };
    let [year, month, day] = numbers(date, '-')[..] else {
        panic!("{utc}");
    };
    let [hour, minute, second] = numbers(time, ':')[..] else {
        panic!("{utc}");
    };
    // Days since 1970 of the proleptic Gregorian calendar (Hinnant, days_from_civil).
    let year = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = (year % 400) * 365 + (year % 400) / 4 - (year % 400) / 100 + of_year;
    let days = year / 400 * 146_097 + of_era - 719_468;
    (days * 86_400 + hour * 3_600 + minute * 60 + second) as u64 * SECOND
}

impl Host {
    fn new(text: &str, utc: &str) -> Self {
        Self::of(engine(text), wall(utc))
    }

    fn of(engine: Engine, at: u64) -> Self {
        let wall = Arc::new(AtomicU64::new(at));
        Self {
            engine: engine.by_wall(&wall),
            wall,
            now: 1_000_000 * SECOND,
        }
    }

    fn pass_time(&mut self, nanoseconds: u64) {
        self.now += nanoseconds;
        self.wall.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// The time passes until this instant.
    fn wait_until(&mut self, utc: &str) {
        let nanoseconds = wall(utc) - self.wall.load(Ordering::Relaxed);
        self.pass_time(nanoseconds);
    }

    /// The wall clock alone is set.
    fn set(&self, utc: &str) {
        self.wall.store(wall(utc), Ordering::Relaxed);
    }

    fn decide(&self, question: &Question) -> Answer {
        self.engine.decide(question, self.now).unwrap()
    }

    fn remaining(&self, user: &str) -> i64 {
        self.decide(&peek(user)).remaining
    }

    /// The units of a user that pass one after another.
    fn passed(&self, user: &str) -> u64 {
        (0..1_000)
            .take_while(|_| self.decide(&ask(user, 1)).allowed)
            .count() as u64
    }

    fn calendar(&self) -> Calendar {
        self.engine.limits[0].policy.calendar.clone().unwrap()
    }
}

fn peek(user: &str) -> Question {
    Question {
        peek: true,
        ..ask(user, 1)
    }
}

fn berlin(lines: &str) -> String {
    text(
        "10/calendar-day",
        &format!("time_zone = \"Europe/Berlin\"\n{lines}"),
    )
}

#[test]
fn a_day_ends_at_local_midnight_and_the_reply_says_when() {
    let mut host = Host::new(&berlin(""), "2026-10-24 20:00:00");
    let first = host.decide(&ask("alice", 4));
    assert_eq!((first.remaining, first.reset_after_seconds), (6, 7_200.0));
    host.wait_until("2026-10-24 21:59:59");
    assert!(host.decide(&ask("alice", 6)).allowed);
    let refused = host.decide(&ask("alice", 1));
    assert_eq!(
        (
            refused.allowed,
            refused.remaining,
            refused.retry_after_seconds
        ),
        (false, 0, Some(1.0))
    );
    let headers = (headers::limit(&refused), headers::retry_after(&refused));
    assert_eq!(
        headers,
        ("\"credits\";r=0;t=1".to_owned(), Some("1".to_owned()))
    );
    host.pass_time(SECOND - 1);
    let refused = host.decide(&ask("alice", 1));
    assert_eq!(refused.retry_after_seconds, Some(1e-9));
    host.pass_time(1);
    // The day of 25 hours.
    let next = host.decide(&ask("alice", 10));
    assert_eq!(
        (next.allowed, next.reset_after_seconds),
        (true, 25.0 * 3_600.0)
    );
    host.wait_until("2026-10-25 22:59:59");
    assert!(!host.decide(&ask("alice", 1)).allowed);
    host.wait_until("2026-10-25 23:00:00");
    assert_eq!(host.passed("alice"), 10);
    let never = host.decide(&ask("bob", 11));
    assert_eq!((never.allowed, never.retry_after_seconds), (false, None));
    let unused = host.decide(&peek("bob"));
    assert_eq!((unused.remaining, unused.reset_after_seconds), (10, 0.0));
}

/// Over a year of hours, each period passes its count and no more.
#[test]
fn every_day_and_month_of_a_year_passes_its_count() {
    for zone in ZONES {
        for (rate, count) in [("5/calendar-day", 5), ("100/calendar-month", 100)] {
            let zone = format!("time_zone = \"{zone}\"");
            let mut host = Host::new(&text(rate, &zone), "2011-06-30 23:30:00");
            let calendar = host.calendar();
            let mut passed: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
            for hour in 0..24 * 366 {
                let number = calendar.period((wall_of(&host) / SECOND) as i64).number;
                let counts = passed.entry(number).or_default();
                counts.0 += u64::from(host.decide(&ask("alice", 1)).allowed);
                counts.1 += 1;
                host.pass_time(HOUR);
                if hour % 97 == 0 {
                    host.engine.sweep(host.now);
                }
            }
            let inner = passed.len() - 2;
            for (number, (passed, _)) in passed.iter().skip(1).take(inner) {
                assert_eq!(*passed, count, "{zone} {rate} {number}");
            }
            assert!(
                passed
                    .values()
                    .all(|(passed, asked)| *passed == count.min(*asked))
            );
            host.engine.sweep(host.now);
            assert!(
                host.engine.limits[0].stores[0].keys() <= 2,
                "old periods are removed"
            );
        }
    }
}

fn wall_of(host: &Host) -> u64 {
    host.wall.load(Ordering::Relaxed)
}

#[test]
fn a_clock_that_is_set_over_midnight_again_and_again_passes_no_more() {
    let mut host = Host::new(&berlin(""), "2026-06-10 21:59:00");
    let mut passed = 0;
    for _ in 0..20 {
        passed += host.passed("alice");
        host.pass_time(SECOND);
        host.set("2026-06-10 22:00:01");
        passed += host.passed("alice");
        host.set("2026-06-10 21:59:30");
    }
    assert_eq!(passed, 20, "ten of each day");
    // Far away and back.
    for far in [
        "1970-01-01 00:00:00",
        "2038-01-20 00:00:00",
        "2500-12-31 00:00:00",
    ] {
        host.set(far);
        assert_eq!(host.passed("alice"), 10, "{far}");
        host.set("2026-06-10 21:59:30");
        assert_eq!(host.passed("alice"), 0, "{far}");
    }
    // A wrong clock is set back by ten hours: the day takes as many more.
    let mut host = Host::new(&berlin(""), "2026-06-10 22:00:00");
    assert_eq!(host.passed("bob"), 10);
    host.set("2026-06-10 12:00:00");
    assert_eq!(host.passed("bob"), 10);
    for _ in 0..33 {
        host.pass_time(HOUR);
        assert_eq!(host.passed("bob"), 0);
    }
    host.pass_time(HOUR);
    assert_eq!(host.passed("bob"), 10);
}

#[test]
fn tiers_begin_anew_with_the_day() {
    let mut host = Host::new(&berlin("tiers = [\"4/h\"]"), "2026-06-10 21:30:00");
    assert_eq!(host.passed("alice"), 4);
    let refused = host.decide(&ask("alice", 1));
    assert_eq!((refused.tier, refused.tier_remaining), (1, 0));
    assert_eq!(refused.retry_after_seconds, Some(1_800.0));
    host.pass_time(HOUR / 2);
    assert_eq!(host.passed("alice"), 4);
    let refused = host.decide(&ask("alice", 1));
    // Counting makes windows slightly longer.
    assert_eq!(refused.retry_after_seconds.map(f64::floor), Some(3_600.0));
    for left in [4, 2] {
        host.pass_time(HOUR + SECOND);
        assert_eq!(host.passed("alice"), left);
    }
    let refused = host.decide(&ask("alice", 1));
    let rest = 22.0 * 3_600.0 - 2.0;
    assert_eq!((refused.tier, refused.retry_after_seconds), (0, Some(rest)));
}

#[test]
fn a_debt_ends_with_the_day_and_a_late_refund_adds_nothing() {
    let mut host = Host::new(&berlin(""), "2026-06-10 21:00:00");
    let force = Question {
        charge: Some(ChargeMode::Force),
        ..ask("alice", 500)
    };
    let forced = host.decide(&force);
    assert_eq!(
        (forced.remaining, forced.reset_after_seconds),
        (-490, 3_600.0)
    );
    let refund = Question {
        cost: Some(-495),
        ..ask("alice", 0)
    };
    assert_eq!(host.decide(&refund).remaining, 5);
    host.wait_until("2026-06-10 22:00:00");
    assert_eq!(host.decide(&refund).remaining, 10);
    assert_eq!(host.passed("alice"), 10);
}

#[test]
fn a_reservation_is_settled_in_its_own_day() {
    for (settled, left) in [(Some(3), 7), (Some(9), 1), (None, 10)] {
        let mut host = Host::new(&berlin(""), "2026-06-10 21:59:50");
        let reserve = Question {
            reserve: Some("60s".parse().unwrap()),
            ..ask("alice", 6)
        };
        let id = host.decide(&reserve).reservation.unwrap();
        assert_eq!(host.remaining("alice"), 4);
        host.wait_until("2026-06-10 22:00:10");
        assert!(host.decide(&ask("alice", 1)).allowed);
        let settle = Question {
            commit: settled.map(|_| id.clone()),
            release: settled.is_none().then_some(id),
            cost: settled,
            ..Question::default()
        };
        let reply = host.decide(&settle);
        // The client's allowance is that of today.
        let rest = 24.0 * 3_600.0 - 10.0;
        assert_eq!(
            (reply.remaining, reply.reset_after_seconds),
            (9, rest),
            "{settled:?}"
        );
        assert_eq!(host.remaining("alice"), 9, "{settled:?}");
        host.set("2026-06-10 21:59:59");
        assert_eq!(host.remaining("alice"), left, "{settled:?}");
    }
}

#[test]
fn a_reservation_that_expires_after_midnight_returns_nothing_to_the_new_day() {
    let mut host = Host::new(&berlin(""), "2026-06-10 21:59:50");
    let reserve = Question {
        reserve: Some("30s".parse().unwrap()),
        on_expiry: Some(OnExpiry::Release),
        ..ask("alice", 6)
    };
    assert!(host.decide(&reserve).reservation.is_some());
    host.wait_until("2026-06-10 22:00:05");
    assert_eq!(host.passed("alice"), 10);
    host.wait_until("2026-06-10 22:01:00");
    assert_eq!(host.passed("alice"), 0);
    assert_eq!(host.engine.open_reservations(), 0);
}

#[test]
fn reservations_of_a_key_are_bounded_over_midnight() {
    let decide = "[decide]\nmax_reservations_per_key = 2\n";
    let mut host = Host::new(&(decide.to_owned() + &berlin("")), "2026-06-10 21:59:50");
    let reserve = Question {
        reserve: Some("60s".parse().unwrap()),
        ..ask("alice", 1)
    };
    host.decide(&reserve);
    host.wait_until("2026-06-10 22:00:00");
    host.decide(&reserve);
    let third = host.engine.decide(&reserve, host.now);
    assert!(matches!(
        third,
        Err(DecideError::ReservationsOfKeyFull { most: 2 })
    ));
}

#[test]
fn use_survives_a_restart_on_the_same_day_in_any_time_zone() {
    let restart = |host: &Host, text: &str, utc: &str| {
        let saved = host.engine.save(host.now);
        let mut next = Host::of(engine(text), wall(utc));
        let away = wall(utc).saturating_sub(wall_of(host));
        let then = host.now + away;
        next.engine.resume(&saved, then, next.now);
        next
    };
    let first = Host::new(&berlin(""), "2026-06-10 08:00:00");
    assert!(first.decide(&ask("alice", 7)).allowed);
    let same = restart(&first, &berlin(""), "2026-06-10 21:59:59");
    assert_eq!(same.remaining("alice"), 3);
    let next = restart(&same, &berlin(""), "2026-06-10 22:00:00");
    assert_eq!(next.passed("alice"), 10);
    // Its clock is back at the day before, whose use was saved, too.
    let back = restart(&next, &berlin(""), "2026-06-10 21:00:00");
    assert_eq!(back.passed("alice"), 3);
    let elsewhere = text("10/calendar-day", "time_zone = \"Asia/Tokyo\"");
    assert_eq!(
        restart(&first, &elsewhere, "2026-06-10 12:00:00").remaining("alice"),
        3
    );
    for other in [
        text("10/calendar-month", ""),
        text("10/day", "algorithm = \"fixed-window\""),
    ] {
        let other = restart(&first, &other, "2026-06-10 12:00:00");
        assert_eq!(other.remaining("alice"), 10);
    }
}

#[test]
fn a_reload_keeps_the_use_of_the_day_and_resets_another_kind_of_period() {
    let config = |text: &str| {
        let loaded = config::parse(Path::new("limits.toml"), text);
        loaded.unwrap_or_else(|report| panic!("{report}")).config
    };
    let mut host = Host::new(&berlin(""), "2026-06-10 08:00:00");
    assert!(host.decide(&ask("alice", 7)).allowed);
    let tokyo = "time_zone = \"Asia/Tokyo\"";
    for (text, left) in [
        (berlin(""), 3),
        (text("20/calendar-day", tokyo), 13),
        (text("5/calendar-day", tokyo), -2),
        (text("20/calendar-day", ""), 13),
        (text("20/calendar-month", ""), 20),
        (text("20/day", "algorithm = \"fixed-window\""), 20),
        (text("20/calendar-day", ""), 20),
    ] {
        let (next, moves) = host.engine.after(&config(&text)).unwrap();
        moves.carry_out(host.now);
        host.engine = next;
        assert_eq!(host.remaining("alice"), left, "{text}");
    }
}

#[test]
fn threads_share_one_allowance_while_midnight_passes() {
    let host = Host::new(&text("1000/calendar-day", ""), "2026-06-10 23:59:59");
    let (before, after) = (wall("2026-06-10 23:59:59"), wall("2026-06-11 00:00:00"));
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for turn in 0..2_000u64 {
                    host.wall
                        .store([before, after][(turn / 7 % 2) as usize], Ordering::Relaxed);
                    let answer = host.decide(&ask("alice", 1));
                    passed.fetch_add(u64::from(answer.allowed), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(passed.into_inner(), 2_000);
}

#[test]
fn keys_without_room_share_an_allowance_of_each_day() {
    let full = "[decide]\nmax_keys = 64\n".to_owned() + &berlin("");
    let mut host = Host::new(&full, "2026-06-10 21:00:00");
    let store = Arc::clone(&host.engine.limits[0].stores[0]);
    let mut users = (0..).map(|user: u32| user.to_string());
    while store.keys() < 64 && store.without_room.load(Ordering::Relaxed) == 0 {
        host.decide(&ask(&users.next().unwrap(), 1));
    }
    while store.without_room.load(Ordering::Relaxed) == 0 {
        host.decide(&ask(&users.next().unwrap(), 1));
    }
    let mut more = || users.by_ref().take(50).collect::<Vec<_>>();
    let mut passed = |host: &Host| {
        let allowed = |user: &String| host.decide(&ask(user, 1)).allowed;
        more().iter().filter(|user| allowed(user)).count()
    };
    assert_eq!(passed(&host), 9);
    host.wait_until("2026-06-10 22:00:00");
    assert_eq!(passed(&host), 10);
    host.set("2026-06-10 21:59:59");
    assert_eq!(passed(&host), 0);
    host.set("2026-06-10 22:00:01");
    assert_eq!(passed(&host), 0);
}

#[test]
fn wildcards_share_a_day_and_sources_are_reset() {
    let api = "[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\", \"path=/api/*\"]\nover = [\"path\"]\n\
               rate = \"10/calendar-day\"\n";
    let mut host = Host::new(api, "2026-06-10 23:00:00");
    let ask_path = |path: &str| {
        let mut question = ask("alice", 4);
        question.key.insert("path".to_owned(), path.to_owned());
        question
    };
    assert_eq!(host.decide(&ask_path("/api/a")).remaining, 6);
    assert_eq!(host.decide(&ask_path("/api/b")).remaining, 2);
    host.pass_time(HOUR);
    assert_eq!(host.decide(&ask_path("/api/c")).remaining, 6);

    let by_source = text("2/calendar-month", "").replace("\"user\"", "\"source\"");
    let host = Host::new(&by_source, "2026-06-30 23:00:00");
    let mut question = from("192.0.2.1", ask("", 2));
    question.key.clear();
    assert!(host.decide(&question).allowed && !host.decide(&question).allowed);
    let shown = host
        .engine
        .requests_of("192.0.2.1".parse().unwrap(), host.now);
    assert_eq!(shown[0].retry_after_seconds, Some(3_600.0));
    let prefix = config::prefix::parse("192.0.2.1").unwrap_or_else(|_| panic!("valid"));
    assert_eq!(
        host.engine.reset_sources(&prefix, None),
        Ok((Some(1), Vec::new()))
    );
    assert!(host.decide(&question).allowed);
}

/// States in files are found by it.
#[test]
fn a_period_of_a_key_has_the_same_fingerprint_in_every_version() {
    let words = ["calendar-day", "calendar-month"].map(|unit| {
        let mut host = Host::new(&text(&format!("5/{unit}"), ""), "2026-06-10 08:00:00");
        host.engine.fingerprints = Fingerprints::under([7, 8]);
        let charge = host.engine.charge(&ask("alice", 1)).unwrap();
        assert_ne!(charge.key, charge.named);
        (charge.named.word(), charge.key.word())
    });
    let alice = 8_689_588_911_414_939_786;
    assert_eq!(
        words,
        [
            (alice, 14_712_098_822_131_277_519),
            (alice, 13_530_951_874_493_029_009)
        ]
    );
}

#[test]
fn headers_name_the_quota_without_a_length() {
    let host = Host::new(&berlin("tiers = [\"4/h\"]"), "2026-06-10 08:00:00");
    assert_eq!(
        host.engine.limits[0].policy_headers[0],
        "\"credits\";q=10;qu=\"credits\", \"credits-2\";q=4;w=3600;qu=\"credits\""
    );
    let charge = host.engine.charge(&ask("alice", 1)).unwrap();
    let quota = host.engine.quota(&charge).unwrap();
    assert_eq!((quota.count, quota.per_nanoseconds), (10, 24 * HOUR));
}
