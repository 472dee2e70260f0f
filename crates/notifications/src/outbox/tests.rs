use api::EventKind;
use config::notify::Command;
use config::policy::{NotifyOn, Rate};
use config::schema::OneOrMore;
use serde_json::Value;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn outbox(rate: u64, retry_for: Duration, now: Instant) -> Outbox {
    let config = Notify {
        name: "pager".to_owned(),
        on: OneOrMore(vec![NotifyOn::Ban]),
        command: Some(Command(vec!["/bin/page".to_owned()])),
        webhook: None,
        secret_file: None,
        rate: Rate {
            count: rate,
            per_nanoseconds: MINUTE.as_nanos() as u64,
        },
        timeout: Duration::from_secs(10),
        retry_for,
    };
    Outbox::new(config, "host-1".to_owned(), 7, now)
}

fn ban() -> Arc<Event> {
    Arc::new(Event {
        source: Some("192.0.2.7".to_owned()),
        ..Event::now(EventKind::Banned, 1, String::new())
    })
}

fn failure() -> Failure {
    Failure::retried("no route".to_owned())
}

/// The document of the next step at `now`.
fn attempt(outbox: &mut Outbox, now: Instant) -> Value {
    match outbox.next(now, 0.0) {
        Step::Attempt(body) => serde_json::from_str(&body).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn events_of_one_moment_are_one_notification() {
    let start = Instant::now();
    let mut outbox = outbox(10, MINUTE, start);
    assert_eq!(outbox.next(start, 0.0), Step::Idle);
    assert!(outbox.absorb(&ban(), start));
    assert!(!outbox.absorb(&ban(), start + GATHER / 2));
    assert_eq!(
        outbox.next(start + GATHER / 2, 0.0),
        Step::Wait(start + GATHER)
    );
    let document = attempt(&mut outbox, start + GATHER);
    assert_eq!(document["events"].as_array().unwrap().len(), 2);
    assert_eq!(outbox.delivered(), None);
    assert_eq!(outbox.next(start + MINUTE, 0.0), Step::Idle);
    assert_eq!(outbox.status(start).events_delivered, 2);
}

#[test]
fn a_storm_is_a_bounded_number_of_notifications_that_count_every_event() {
    let start = Instant::now();
    let mut outbox = outbox(5, MINUTE, start);
    let (mut sent, mut named, mut left_out) = (0, 0, 0);
    // 100,000 bans in 100 s, and a minute in which the last of them are sent.
    for tick in 0..1_600u32 {
        let now = start + tick * Duration::from_millis(100);
        if tick < 1_000 {
            for _ in 0..100 {
                outbox.absorb(&ban(), now);
            }
        }
        while let Step::Attempt(body) = outbox.next(now, 0.0) {
            let document: Value = serde_json::from_str(&body).unwrap();
            sent += 1;
            named += document["events"].as_array().unwrap().len() as u64;
            left_out += document["left_out"]["banned"].as_u64().unwrap_or(0);
            outbox.delivered();
        }
    }
    assert_eq!(named + left_out, 100_000);
    // The burst of 5, and 5 a minute.
    assert!((5..=5 + 160 * 5 / 60 + 1).contains(&sent), "{sent}");
    assert!(named <= sent * crate::batch::NAMED as u64);
}

#[test]
fn a_receiver_that_requests_a_later_attempt_gets_none_before() {
    let start = Instant::now();
    let mut outbox = outbox(10, 10 * MINUTE, start);
    outbox.absorb(&ban(), start);
    let now = start + GATHER;
    attempt(&mut outbox, now);
    let failure = Failure {
        retry: Retry::After(2 * MINUTE),
        ..failure()
    };
    outbox.failed(failure, now, 0.0);
    assert_eq!(outbox.next(now, 0.0), Step::Wait(now + 2 * MINUTE));
}

#[test]
fn an_attempt_that_fails_is_repeated_with_the_same_document_and_later_events_wait() {
    let start = Instant::now();
    let mut outbox = outbox(10, 10 * MINUTE, start);
    outbox.absorb(&ban(), start);
    let mut now = start + GATHER;
    let first = attempt(&mut outbox, now);
    assert_eq!(outbox.failed(failure(), now, 0.0), [Change::Failing]);
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        outbox.absorb(&ban(), now);
        let due = now + Duration::from_secs(seconds);
        assert_eq!(outbox.next(now, 0.0), Step::Wait(due));
        now = due;
        assert_eq!(attempt(&mut outbox, now), first);
        assert_eq!(outbox.failed(failure(), now, 0.0), []);
    }
    let status = outbox.status(now);
    let failing = status.failing.unwrap();
    assert_eq!(
        (
            failing.attempts,
            failing.error.as_str(),
            failing.next_attempt_in_seconds
        ),
        (9, "no route", Some(60.0))
    );
    assert_eq!((status.events_waiting, status.failed_attempts), (9, 9));
    now += MINUTE;
    attempt(&mut outbox, now);
    assert_eq!(outbox.delivered(), Some(Change::Recovered(9)));
    let document = attempt(&mut outbox, now);
    assert_ne!(document["id"], first["id"]);
    assert_eq!(
        (
            document["events"].as_array().unwrap().len(),
            &document["undelivered"]
        ),
        (8, &Value::from(0))
    );
    assert_eq!(outbox.status(now).failing, None);
}

#[test]
fn a_notification_is_dropped_and_counted_when_its_time_is_over() {
    let start = Instant::now();
    let mut outbox = outbox(10, Duration::from_secs(5), start);
    outbox.absorb(&ban(), start);
    let mut now = start + GATHER;
    let mut attempts = 0;
    let changes = loop {
        attempt(&mut outbox, now);
        attempts += 1;
        let changes = outbox.failed(failure(), now, 0.0);
        match outbox.next(now, 0.0) {
            Step::Wait(due) => now = due,
            _ => break changes,
        }
    };
    // At 0, 1 and 3 s; the fourth would be at 7 s.
    assert_eq!((attempts, changes), (3, vec![Change::Dropped]));
    outbox.absorb(&ban(), now);
    let document = attempt(&mut outbox, now + GATHER);
    assert_eq!(document["undelivered"], 1);
    assert_eq!(outbox.delivered(), Some(Change::Recovered(3)));
    let status = outbox.status(now);
    assert_eq!(
        (status.delivered, status.dropped, status.events_dropped),
        (1, 1, 1)
    );
}

#[test]
fn a_notification_refused_for_good_is_not_repeated() {
    let start = Instant::now();
    let mut outbox = outbox(10, MINUTE, start);
    outbox.absorb(&ban(), start);
    let now = start + GATHER;
    attempt(&mut outbox, now);
    let refused = Failure {
        reason: "400".to_owned(),
        retry: Retry::Never,
    };
    assert_eq!(
        outbox.failed(refused, now, 0.5),
        [Change::Failing, Change::Dropped]
    );
    assert_eq!(outbox.next(now, 0.0), Step::Idle);
}

#[test]
fn a_day_away_takes_no_more_memory_than_an_hour() {
    let start = Instant::now();
    let mut outbox = outbox(10, 24 * 60 * MINUTE, start);
    outbox.absorb(&ban(), start);
    let now = start + GATHER;
    attempt(&mut outbox, now);
    outbox.failed(failure(), now, 0.0);
    for _ in 0..1_000_000 {
        outbox.absorb(&ban(), now);
    }
    assert_eq!(outbox.batch.events.len(), crate::batch::NAMED);
    assert_eq!(outbox.status(now).events_waiting, 1_000_001);
}
