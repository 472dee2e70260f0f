//! The script that the store runs, and the function that is its model: the same answers to the same requests.

use std::collections::BTreeMap;

use cluster::ledger::{Acknowledged, Claim, Ledger, Report, ZoneShare};
use cluster::store::SCRIPT;
use cluster::zones::claim;
use common::share::Share;
use testbed::random::Random;
use testbed::tests;
use testbed::trials::Test;

use crate::redis::Redis;

pub const TESTS: &[Test] = tests![the_scripts_and_their_model_answer_alike,];

/// The script with a clock that is given, in place of the store's.
fn with_given_clock() -> String {
    assert_eq!(SCRIPT.matches("redis.call('TIME')").count(), 1);
    SCRIPT.replace("redis.call('TIME')", "{ARGV[14], ARGV[15]}")
}

/// The script of claims with a clock that is given as two keys.
fn claims_with_given_clock() -> String {
    assert_eq!(claim::SCRIPT.matches("redis.call('TIME')").count(), 1);
    claim::SCRIPT.replace("redis.call('TIME')", "{KEYS[2], KEYS[3]}")
}

/// A claim of one of three hosts, mostly with a share that follows the one of `sequence`.
fn claim(random: &mut Random, at: u64, sequence: u64) -> Claim {
    let share = (random.below(4) > 0).then(|| ZoneShare {
        sequence: (sequence + 2).saturating_sub(random.below(3)),
        share: random.below(Share::PARTS + 1),
        ends: at + random.below(5_000),
        alone: random.below(Share::PARTS + 1),
        grows: at + random.below(9_000),
        zones: 1 + random.below(4),
        member: format!("zone one/{}.1", random.below(9)),
        epoch: 1_700_000_000_000_000 + random.below(3),
    });
    Claim {
        host: format!("host {}/1", random.below(3)),
        lasts: [0, 40, 2_500][random.below(3) as usize],
        lease: 1_000,
        has_seen: random.below(2) == 0,
        share,
    }
}

fn the_scripts_and_their_model_answer_alike() {
    let redis = Redis::start(&[]);
    let client = redis_client(&redis);
    let mut connection = client.get_connection().unwrap();
    let script = ::redis::Script::new(&with_given_clock());
    let claims = ::redis::Script::new(&claims_with_given_clock());
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let mut ledger = Ledger::default();
        let mut micros = 1_700_000_000_000_000;
        let mut applied: BTreeMap<u64, u64> = BTreeMap::new();
        let mut epoch = 0;
        let in_zone = seed % 2 == 1;
        let mut written = 0;
        let mut granted: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
        let units = [1, 3, 8, 100, 999, 1_000_000, 2_000_000_000][seed as usize % 7];
        for sequence in 1..=1_500u64 {
            // Mostly some milliseconds on; now and then a long way, or back.
            match random.below(200) {
                0 => micros += 3_000_000 + random.below(5_000_000),
                1 => micros -= random.below(10_000_000),
                _ => micros += random.below(40_000),
            }
            if in_zone && random.below(4) == 0 {
                let claim = claim(&mut random, micros / 1_000, written);
                let lead = ledger.claim(micros, &claim);
                let told = claims
                    .key(format!("{{{seed}}}ledger"))
                    .key(micros / 1_000_000)
                    .key(micros % 1_000_000)
                    .arg(&claim.host)
                    .arg(&claim::arguments(&claim)[..])
                    .invoke(&mut connection)
                    .unwrap();
                let told = claim::parse(told).unwrap();
                assert_eq!(told, lead, "claim before request {sequence} of {seed}");
                written = lead.before.map_or(0, |before| before.sequence);
                if let Some(share) = claim.share.filter(|_| lead.leads) {
                    written = share.sequence;
                }
            }
            let host = random.below(9);
            let report = Report {
                host: format!("host {host}/{seed}"),
                // An older one, at times.
                sequence: if random.below(50) == 0 {
                    sequence.saturating_sub(9).max(1)
                } else {
                    sequence
                },
                applied: if random.below(20) == 0 {
                    random.below(Share::PARTS)
                } else {
                    applied.get(&host).copied().unwrap_or(0)
                },
                demand: match random.below(5) {
                    0 => 0,
                    1 => random.below(4_000 * Share::PARTS),
                    _ => random.below(2 * Share::PARTS),
                },
                units,
                lease: 1_000,
                epoch: match random.below(300) {
                    0 => 5,
                    1..50 => 0,
                    _ => epoch,
                },
                leaves: random.below(60) == 0,
                replaces: (random.below(40) == 0)
                    .then(|| format!("host {}/{seed}", random.below(9))),
                grant: granted.get(&host).filter(|_| random.below(4) > 0).map(
                    |(sequence, at, asked)| Acknowledged {
                        sequence: *sequence,
                        at: *at,
                        elapsed: if random.below(20) == 0 {
                            0
                        } else {
                            (micros / 1_000).saturating_sub(*asked)
                        },
                    },
                ),
                in_zone,
            };
            let grant = ledger.lease(micros, &report);
            let told: Vec<u64> = script
                .key(format!("{{{seed}}}ledger"))
                .key(format!("{{{seed}}}ends"))
                .arg(&report.host)
                .arg(
                    &[
                        report.sequence,
                        report.applied,
                        report.demand,
                        report.units,
                        report.lease,
                        report.epoch,
                    ][..],
                )
                .arg(u8::from(report.leaves))
                .arg(report.replaces.as_deref().unwrap_or_default())
                .arg(
                    &report
                        .grant
                        .map_or([0; 3], |grant| [grant.sequence, grant.at, grant.elapsed])[..],
                )
                .arg(u8::from(report.in_zone))
                .arg(&[micros / 1_000_000, micros % 1_000_000][..])
                .invoke(&mut connection)
                .unwrap();
            match grant {
                None => assert_eq!(told, [report.sequence], "request {sequence} of {seed}"),
                Some(grant) => {
                    let quiet = u64::from(grant.is_quiet);
                    let expected = [
                        grant.share,
                        grant.hosts,
                        grant.epoch,
                        quiet,
                        grant.held,
                        grant.demand,
                        grant.target,
                        grant.at,
                        grant.all,
                        grant.zones,
                    ];
                    assert_eq!(told, expected, "request {sequence} of {seed}: {report:?}");
                    applied.insert(host, grant.share);
                    granted.insert(host, (report.sequence, grant.at, micros / 1_000));
                    epoch = grant.epoch;
                }
            }
        }
        let stored: BTreeMap<String, String> = ::redis::cmd("HGETALL")
            .arg(format!("{{{seed}}}ledger"))
            .query(&mut connection)
            .unwrap();
        let stored: Vec<(String, String)> = stored
            .into_iter()
            .filter_map(|(field, entry)| Some((field.strip_prefix("n:")?.to_owned(), entry)))
            .collect();
        assert_eq!(stored, ledger.entries().collect::<Vec<_>>(), "{seed}");
        assert!(!stored.is_empty());
        let keeps: i64 = ::redis::cmd("PTTL")
            .arg(format!("{{{seed}}}ledger"))
            .query(&mut connection)
            .unwrap();
        assert!(
            (1..=60_000).contains(&keeps),
            "a ledger that nobody asks for is forgotten: {keeps}"
        );
    }
}

fn redis_client(redis: &Redis) -> ::redis::Client {
    ::redis::Client::open(redis.url()).unwrap()
}
