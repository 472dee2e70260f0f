//! Proxies as Envoy is, under random requests, delays and ends of streams.

mod proxy;

use std::collections::HashMap;

use api::decide::Question;
use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_response::bucket_action;
use rls::envoy::service::rate_limit_quota::v3::rate_limit_quota_usage_reports::BucketQuotaUsage;
use rls::envoy::service::rate_limit_quota::v3::{BucketId, RateLimitQuotaUsageReports};
use rls::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};

use super::buckets::{Name, Pool};
use super::stream::Stream;
use crate::Engine;
use crate::tests::engine;
use proxy::{Assignment, Proxy, id, reports};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
const STEP: u64 = 10 * MILLISECOND;
/// The beginning of the clock.
const START: u64 = 1_000 * SECOND;

fn limit_of_users(rest: &str) -> Engine {
    engine(&format!(
        "[[limit]]\nname = \"users\"\nscope = \"request\"\nkey = [\"user\"]\n{rest}\n"
    ))
}

/// The remaining units of the user.
fn remaining(engine: &Engine, now: u64) -> i64 {
    let question = Question {
        limit: "users".to_owned(),
        key: [("user".to_owned(), "alice".to_owned())].into(),
        peek: true,
        ..Question::default()
    };
    engine.decide(&question, now).unwrap().remaining
}

/// A reproducible sequence (xorshift, Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end.max(1)
    }
}

/// Proxies that report each second, `requests` of each in a step; how many each has passed.
fn run(
    engine: &Engine,
    proxies: &mut [Proxy],
    seconds: u64,
    mut requests: impl FnMut(usize, u64) -> u64,
    mut each: impl FnMut(&mut [Proxy], u64),
) -> Vec<u64> {
    for step in 0..seconds * SECOND / STEP {
        let now = START + step * STEP;
        for (nth, proxy) in proxies.iter_mut().enumerate() {
            for _ in 0..requests(nth, now) {
                proxy.request(engine, now);
            }
            // Each at another moment of the second.
            if (now + nth as u64 * 7 * STEP).is_multiple_of(SECOND) {
                proxy.report(engine, now, 5 * STEP);
            }
        }
        each(proxies, now);
    }
    proxies.iter().map(|proxy| proxy.passed).collect()
}

#[test]
fn proxies_pass_no_more_than_the_limit() {
    // With the allowance after a pause, and the units of a second.
    for (rest, burst, per_second) in [
        ("rate = \"100/s\"\nburst = 200", 200, 100),
        ("rate = \"20/s\"\nburst = 20", 20, 20),
        ("rate = \"500/h\"\nalgorithm = \"fixed-window\"", 500, 0),
        ("rate = \"500/h\"\nalgorithm = \"sliding-log\"", 500, 0),
        ("rate = \"500/h\"\nalgorithm = \"sliding-window\"", 500, 0),
    ] {
        let mut in_all = 0;
        for seed in 1..=40 {
            let engine = limit_of_users(rest);
            let mut random = Random(0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(seed));
            let mut proxies: Vec<Proxy> =
                (0..=random.below(3)).map(|_| Proxy::new(&engine)).collect();
            for step in 0..4_000 {
                let now = START + step * STEP;
                for proxy in &mut proxies {
                    // Busy and quiet times of 5 s.
                    let is_busy = (step / 500 + seed).is_multiple_of(2);
                    for _ in 0..random.below(if is_busy { 8 } else { 2 }) {
                        proxy.request(&engine, now);
                    }
                    match random.below(2_000) {
                        0 => proxy.reconnect(&engine),
                        1..21 => proxy.report(&engine, now, random.below(19) * STEP),
                        _ => {}
                    }
                }
                let passed: u64 = proxies.iter().map(|proxy| proxy.passed).sum();
                let most = burst + per_second * (now - START) / SECOND;
                assert!(
                    passed <= most,
                    "{rest}: seed {seed}: {passed} of {most} after {} ms",
                    (now - START) / MILLISECOND
                );
            }
            in_all += proxies.iter().map(|proxy| proxy.passed).sum::<u64>();
        }
        println!(
            "{rest}: {} of {} on average",
            in_all / 40,
            burst + 40 * per_second
        );
        assert!(
            in_all / 40 >= (burst + 40 * per_second) / 3,
            "{rest}: {in_all}"
        );
    }
}

#[test]
fn a_busy_proxy_passes_the_rate() {
    let engine = limit_of_users("rate = \"100/s\"\nburst = 100");
    let mut proxies = [Proxy::new(&engine)];
    let passed = run(&engine, &mut proxies, 60, |_, _| 5, |_, _| {});
    assert!((5_700..=6_100).contains(&passed[0]), "{passed:?}");
}

#[test]
fn flooded_proxies_share_and_one_below_its_part_loses_nothing() {
    let engine = limit_of_users("rate = \"300/s\"\nburst = 600");
    let mut proxies = [0; 3].map(|_| Proxy::new(&engine));
    // The third one has 50 requests a second.
    let requests = |nth, now: u64| if nth < 2 { 20 } else { now / STEP % 2 };
    let passed = run(&engine, &mut proxies, 60, requests, |_, _| {});
    let all: u64 = passed.iter().sum();
    assert!((16_000..=18_600).contains(&all), "{passed:?}");
    assert!(passed[2] >= 2_900, "{passed:?}");
    assert!(passed[0].abs_diff(passed[1]) < all / 10, "{passed:?}");
}

#[test]
fn units_of_an_idle_bucket_return_and_it_is_abandoned() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    let mut proxies = [Proxy::new(&engine)];
    proxies[0].allows_unassigned = true;
    let mut most = 0;
    let requests = |_, now: u64| u64::from(now < START + 20 * STEP);
    run(&engine, &mut proxies, 70, requests, |_, now| {
        most = most.max(1_000 - remaining(&engine, now));
    });
    assert_eq!(proxies[0].passed, 20);
    assert!(!proxies[0].is_known, "abandoned");
    let name = Name::new("shop", &id("alice").bucket);
    let end = START + 70 * SECOND;
    let pool = Pool {
        units: 50,
        remaining: 980,
        now: end,
    };
    let part = engine.quota_buckets.part(&name, 1, 0, pool);
    assert_eq!(part, 50, "nothing is left of it");
    assert_eq!(remaining(&engine, START + 70 * SECOND), 980);
    assert!(most <= 120, "a tenth besides what passed: {most}");
    assert_eq!(
        engine.limits[0]
            .counters
            .passed
            .load(std::sync::atomic::Ordering::Relaxed),
        20
    );
}

#[test]
fn requests_without_an_assignment_are_charged() {
    let engine = limit_of_users("rate = \"10/day\"\nalgorithm = \"fixed-window\"");
    let mut proxy = Proxy::new(&engine);
    proxy.allows_unassigned = true;
    let usage = BucketQuotaUsage {
        bucket_id: Some(id("alice")),
        num_requests_allowed: 30,
        num_requests_denied: 0,
    };
    let reply = proxy
        .stream
        .reply(&engine, reports(vec![usage]), START)
        .unwrap();
    proxy.take(reply.bucket_action[0].bucket_action.unwrap(), START);
    assert_eq!(proxy.assignment, Assignment::DenyAll);
    assert_eq!(remaining(&engine, START), 0);
}

/// The proxy may still spend the grant before.
#[test]
fn a_report_that_may_precede_an_assignment_returns_nothing() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    let mut stream = Stream::new(engine.quota_buckets.clone()).unwrap();
    let mut report = |allowed, denied, now| {
        let usage = BucketQuotaUsage {
            bucket_id: Some(id("alice")),
            num_requests_allowed: allowed,
            num_requests_denied: denied,
        };
        stream.reply(&engine, reports(vec![usage]), now).unwrap();
        1_000 - remaining(&engine, now)
    };
    assert_eq!(report(1, 0, START), 26, "1, and half of a twentieth");
    let both = report(20, 5, START + SECOND);
    assert_eq!(both, 76, "and a twentieth");
    for at in [1, 50, 100, 199] {
        assert_eq!(report(0, 0, START + SECOND + at * MILLISECOND), both);
    }
    assert_eq!(report(3, 0, START + 2 * SECOND), 76 - 2);
}

#[test]
fn a_bucket_without_an_enforced_limit_passes() {
    for (limits, expected) in [
        (
            "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"other\"]\nrate = \"1/day\"\n",
            "no limit",
        ),
        (
            "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1/day\"\naction = \"observe\"\n",
            "observed",
        ),
        (
            "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\ndomain = \"x\"\nrate = \"1/day\"\n",
            "another domain",
        ),
    ] {
        let engine = engine(limits);
        let mut proxies = [Proxy::new(&engine)];
        proxies[0].allows_unassigned = true;
        let passed = run(&engine, &mut proxies, 3, |_, _| 1, |_, _| {});
        assert_eq!(passed, [300], "{expected}");
        assert_eq!(proxies[0].assignment, Assignment::AllowAll, "{expected}");
    }
}

#[test]
fn a_domain_is_required_and_stays() {
    let engine = limit_of_users("rate = \"1/day\"");
    let mut stream = Stream::new(engine.quota_buckets.clone()).unwrap();
    let of = |domain: &str| RateLimitQuotaUsageReports {
        domain: domain.to_owned(),
        bucket_quota_usages: Vec::new(),
    };
    let mut error = |domain: &str| {
        let reply = stream.reply(&engine, of(domain), START);
        reply.map_err(|status| status.message().to_owned()).err()
    };
    assert_eq!(error("").unwrap(), "missing domain in the first report");
    assert_eq!(error("shop"), None);
    assert_eq!(error(""), None);
    assert_eq!(
        error("other").unwrap(),
        "domain changes from \"shop\" to \"other\": open another stream for it"
    );
}

#[test]
fn buckets_without_room_are_charged_abandoned_and_reported() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    // With the name and what a bucket takes besides: 1 MiB.
    let long = vec![b'x'; (1 << 20) - 1_024 - 96 - "shop".len() - "user".len() - 1];
    let usage = |bucket: HashMap<String, Vec<u8>>, allowed| BucketQuotaUsage {
        bucket_id: Some(BucketId { bucket }),
        num_requests_allowed: allowed,
        num_requests_denied: 0,
    };
    let mut stream = Stream::new(engine.quota_buckets.clone()).unwrap();
    for nth in 0..64_u8 {
        let mut value = long.clone();
        value.push(nth);
        let usage = usage(HashMap::from([("user".to_owned(), value)]), 1);
        stream.reply(&engine, reports(vec![usage]), START).unwrap();
    }
    let reply = |user, allowed, now| {
        let mut stream = Stream::new(engine.quota_buckets.clone()).unwrap();
        let usage = usage(id(user).bucket, allowed);
        let reply = stream.reply(&engine, reports(vec![usage]), now).unwrap();
        reply.bucket_action.last().unwrap().bucket_action.unwrap()
    };
    let abandon = bucket_action::BucketAction::AbandonAction(Default::default());
    assert_eq!(reply("alice", 5, START), abandon);
    assert_eq!(remaining(&engine, START), 995);
    let note = engine.notes().last().unwrap();
    assert!(
        note.starts_with("no room for 1 buckets of quota streams"),
        "{note}"
    );
    // While the limit has nothing left, the bucket is refused.
    let bucket_action::BucketAction::QuotaAssignmentAction(action) = reply("alice", 995, START)
    else {
        panic!("not refused");
    };
    let strategy = action.rate_limit_strategy.unwrap().strategy;
    let deny = Strategy::BlanketRule(BlanketRule::DenyAll.into());
    assert_eq!(strategy, Some(deny));
    // The room is free again when the assignments of an ended stream have ended.
    drop(stream);
    engine.sweep(START + 60 * SECOND - 1);
    assert_eq!(reply("bob", 1, START + 60 * SECOND - 1), abandon);
    engine.sweep(START + 60 * SECOND);
    assert_ne!(reply("bob", 1, START + 60 * SECOND), abandon);
}

/// The proxy has lost its units; the same assignment would be a new one.
#[test]
fn units_return_when_their_assignment_has_ended() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    let mut proxy = Proxy::new(&engine);
    proxy.request(&engine, START);
    assert_eq!(remaining(&engine, START), 975);
    proxy.receive(START);
    let late = START + 61 * SECOND;
    proxy.receive(late);
    assert_eq!(proxy.assignment, Assignment::None);
    proxy.request(&engine, late);
    proxy.report(&engine, late, 0);
    assert_eq!(
        remaining(&engine, late),
        1_000 - 2,
        "for one refused request"
    );
    proxy.receive(late);
    assert_eq!(proxy.assignment, Assignment::Tokens { left: 2, of: 2 });
}

/// Envoy keeps its tokens over ends of streams.
#[test]
fn an_assignment_of_a_new_stream_is_a_new_one() {
    for seconds in [1, 8] {
        let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
        let mut proxy = Proxy::new(&engine);
        let mut last = 0;
        for step in 0..200 * seconds {
            let now = START + step * STEP;
            // After most of the first grant.
            if step == 20 {
                proxy.report(&engine, now, 0);
                proxy.reconnect(&engine);
            }
            if proxy.request(&engine, now) {
                last = now;
            }
            if step % 100 == 99 {
                proxy.report(&engine, now, 5 * STEP);
            }
        }
        let end = START + 200 * seconds * STEP;
        assert!(
            end - last < 2 * SECOND,
            "refused for {} s",
            (end - last) / SECOND
        );
        assert!(proxy.passed >= 30, "{}", proxy.passed);
    }
}

/// A proxy that reports fewer requests than it passed has nothing left when it refuses.
#[test]
fn a_proxy_that_refuses_has_spent_its_grant() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    let mut proxy = Proxy::new(&engine);
    proxy.request(&engine, START);
    proxy.receive(START + SECOND);
    // The report of what it spends is lost.
    let Assignment::Tokens { left, .. } = &mut proxy.assignment else {
        panic!("{:?}", proxy.assignment);
    };
    *left = 0;
    let passes = (1..=4).map(|second| {
        let now = START + second * SECOND;
        proxy.report(&engine, now, 0);
        proxy.request(&engine, now + STEP)
    });
    assert_eq!(passes.collect::<Vec<_>>(), [false, true, true, true]);
}

#[test]
fn several_limits_of_a_bucket_are_charged_together() {
    let engine = engine(
        "[[limit]]\nname = \"users\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1000/day\"\nalgorithm = \"fixed-window\"\n\
         [[limit]]\nname = \"shop\"\nscope = \"request\"\nkey = [\"user\"]\ndomain = \"shop\"\nrate = \"60/day\"\nalgorithm = \"fixed-window\"\n",
    );
    let mut proxies = [Proxy::new(&engine)];
    let passed = run(&engine, &mut proxies, 40, |_, _| 1, |_, _| {});
    assert_eq!(passed, [60]);
    assert_eq!(remaining(&engine, START + 40 * SECOND), 940);
}

#[test]
fn many_proxies_have_a_tenth_or_one_unit_each() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    let mut proxies: Vec<Proxy> = (0..64).map(|_| Proxy::new(&engine)).collect();
    for proxy in &mut proxies {
        proxy.request(&engine, START);
    }
    let held = 1_000 - remaining(&engine, START);
    assert!((100..=164).contains(&held), "{held}");
    assert!(
        Stream::new(engine.quota_buckets.clone()).is_err(),
        "a 65th stream"
    );
    proxies.pop();
    assert!(Stream::new(engine.quota_buckets.clone()).is_ok());
}

/// Each stream is charged a part of what is left.
#[test]
fn streams_that_end_at_once_take_a_tenth_and_one_unit_each() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    for nth in 0..20 {
        let mut proxy = Proxy::new(&engine);
        proxy.request(&engine, START + nth * SECOND);
    }
    let used = 1_000 - remaining(&engine, START + 20 * SECOND);
    assert!((100..=120).contains(&used), "{used}");
}

#[test]
fn a_report_charges_at_most_the_whole_allowance() {
    let engine = limit_of_users("rate = \"1000/day\"\nalgorithm = \"fixed-window\"");
    let mut stream = Stream::new(engine.quota_buckets.clone()).unwrap();
    let usage = BucketQuotaUsage {
        bucket_id: Some(id("alice")),
        num_requests_allowed: u64::MAX,
        num_requests_denied: u64::MAX,
    };
    let usages = vec![usage.clone(), usage];
    stream.reply(&engine, reports(usages), START).unwrap();
    assert_eq!(remaining(&engine, START), -1_000);
}

#[test]
fn exempt_clients_and_keys_without_room_have_their_own_rules() {
    let limit = "[[limit]]\nname = \"users\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1000/day\"\nalgorithm = \"fixed-window\"\n\
                 on_full = \"share\"\n[decide]\nmax_keys = 1\n";
    let engine = engine(limit);
    let mut stream = Stream::new(engine.quota_buckets.clone()).unwrap();
    let mut of = |user: &str| {
        let usage = BucketQuotaUsage {
            bucket_id: Some(id(user)),
            num_requests_allowed: 0,
            num_requests_denied: 3,
        };
        let reply = stream.reply(&engine, reports(vec![usage]), START).unwrap();
        match reply.bucket_action.last().unwrap().bucket_action.unwrap() {
            bucket_action::BucketAction::QuotaAssignmentAction(action) => {
                match action.rate_limit_strategy.unwrap().strategy.unwrap() {
                    Strategy::TokenBucket(tokens) => tokens.max_tokens,
                    Strategy::BlanketRule(_) => 0,
                }
            }
            bucket_action::BucketAction::AbandonAction(_) => panic!("abandoned"),
        }
    };
    assert_eq!(of("alice"), 25);
    assert_eq!(of("bob"), 3, "without room: no more than its requests");
}
