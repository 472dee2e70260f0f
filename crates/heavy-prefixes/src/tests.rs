//! The summary against the definition, and sampling against exact counts.

use std::collections::{BTreeSet, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use proptest::prelude::*;
use rustix::time::{ClockId, clock_gettime};
use testbed::random::Random;

use super::*;

fn v4(octets: [u8; 4]) -> Ipv6Addr {
    Ipv4Addr::from(octets).to_ipv6_mapped()
}

fn packet(source: Ipv6Addr) -> Sample {
    Sample {
        source,
        packets: 1,
        bytes: 100,
        is_refused: false,
    }
}

fn window(one_in: u32, sources: impl IntoIterator<Item = Ipv6Addr>) -> Window {
    let mut window = Window::new(Duration::from_secs(10), usize::MAX);
    let samples = sources.into_iter().map(packet).collect();
    window.add(Batch {
        samples,
        one_in,
        length: Duration::from_secs(1),
    });
    window
}

fn names(summary: &Summary) -> Vec<String> {
    summary
        .prefixes
        .iter()
        .map(|found| found.prefix.to_string())
        .collect()
}

/// All prefixes around an address, the longest first.
fn around(source: Ipv6Addr) -> Vec<IpNet> {
    match source.to_ipv4_mapped() {
        Some(source) => IPV4_LEVELS
            .map(|length| IpNet::new_assert(source.into(), length).trunc())
            .to_vec(),
        None => IPV6_LEVELS
            .map(|length| IpNet::new_assert(source.into(), length).trunc())
            .to_vec(),
    }
}

/// The definition, in its own words: from the longest prefixes to the shortest, the packets that no heavy prefix before
/// has.
fn by_definition(sources: &[Ipv6Addr], share: f64) -> HashMap<IpNet, (u64, u64)> {
    let mut heavy: HashMap<IpNet, (u64, u64)> = HashMap::new();
    // From the longest on, as counted from its version's first level.
    for depth in 0..IPV6_LEVELS.len() {
        let at_depth: BTreeSet<IpNet> = sources
            .iter()
            .filter_map(|source| around(*source).get(depth).copied())
            .collect();
        let mut found = Vec::new();
        for prefix in at_depth {
            let within = || {
                sources
                    .iter()
                    .filter(|source| around(**source).contains(&prefix))
            };
            let own = within().filter(|source| {
                !around(**source)[..depth]
                    .iter()
                    .any(|inner| heavy.contains_key(inner))
            });
            let (all, own) = (within().count() as u64, own.count() as u64);
            if own > 0 && own as f64 >= share * sources.len() as f64 {
                found.push((prefix, (all, own)));
            }
        }
        heavy.extend(found);
    }
    heavy
}

fn source() -> impl Strategy<Value = Ipv6Addr> {
    // Few values a byte, so that prefixes share packets.
    let small = prop::sample::select(vec![0u8, 1, 2, 255]);
    let v6 = prop::array::uniform8(small.clone()).prop_map(|bytes| {
        let [a, b, c, d, e, f, g, h] = bytes;
        Ipv6Addr::from([0x20, a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 1])
    });
    prop_oneof![3 => prop::array::uniform4(small).prop_map(v4), 1 => v6]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn of_all_packets_the_heavy_prefixes_are_those_of_the_definition(
        sources in prop::collection::vec(source(), 1..150),
        percent in 1u32..60,
    ) {
        let share = f64::from(percent) / 100.0;
        let summary = window(1, sources.clone()).summary(share);
        let expected = by_definition(&sources, share);
        prop_assert_eq!(summary.prefixes.len(), expected.len());
        for found in &summary.prefixes {
            let (all, own) = expected[&found.prefix];
            prop_assert_eq!(found.packets, all);
            prop_assert!((found.own_share * sources.len() as f64 - own as f64).abs() < 1e-6);
            prop_assert_eq!((found.margin, summary.error), (0.0, 0.0));
        }
        // Each packet is counted once, so that there are few rows.
        let shares: f64 = summary.prefixes.iter().map(|found| found.own_share).sum();
        prop_assert!((shares + summary.elsewhere - 1.0).abs() < 1e-9);
        prop_assert!(summary.prefixes.len() as f64 <= 1.0 / share + 1e-9);
    }
}

/// A botnet of 5,000 sources in one /16 with 40 % of the packets, a busy source, and 30,000 sources elsewhere.
fn attack(packets: u64, random: &mut Random) -> Vec<Ipv6Addr> {
    (0..packets)
        .map(|_| match random.below(100) {
            0..40 => {
                let [.., c, d] = (random.below(5_000) as u32)
                    .wrapping_mul(0x9e37_79b1)
                    .to_be_bytes();
                v4([198, 18, c, d])
            }
            40..50 => v4([203, 0, 113, 9]),
            _ => {
                let [a, b, c, d] = (random.below(30_000) as u32)
                    .wrapping_mul(0x85eb_ca6b)
                    .to_be_bytes();
                v4([1 + a % 220, b, c, d])
            }
        })
        .collect()
}

#[test]
fn a_botnet_is_its_prefix_and_a_busy_source_is_itself() {
    let summary = window(64, attack(20_000, &mut Random::new(1))).summary(0.05);
    assert_eq!(names(&summary), ["198.18.0.0/16", "203.0.113.9/32"]);
    let [botnet, busy] = &summary.prefixes[..] else {
        unreachable!()
    };
    assert!(
        (botnet.share - 0.4).abs() < 3.0 * botnet.margin / 1.96 && botnet.sources > 3_000,
        "{botnet:?}"
    );
    assert!(
        (busy.share - 0.1).abs() < 3.0 * busy.margin / 1.96 && busy.sources == 1,
        "{busy:?}"
    );
    assert!((summary.elsewhere - 0.5).abs() < 0.02);
    assert_eq!((summary.packets, summary.samples), (20_000 * 64, 20_000));
}

#[test]
fn a_prefix_is_not_reported_for_its_one_busy_source() {
    let sources = (0..100u8).map(|nth| {
        if nth < 90 {
            v4([192, 0, 2, 1])
        } else {
            v4([192, 0, 2, nth])
        }
    });
    assert_eq!(
        names(&window(1, sources.clone()).summary(0.2)),
        ["192.0.2.1/32"]
    );
    // Without that source it has a tenth.
    let summary = window(1, sources).summary(0.1);
    assert_eq!(names(&summary), ["192.0.2.1/32", "192.0.2.0/24"]);
    assert!((summary.prefixes[1].share, summary.prefixes[1].own_share) == (1.0, 0.1));
}

#[test]
fn few_samples_show_nothing_and_all_packets_of_a_quiet_host_do() {
    let few = (0..15).map(|_| v4([192, 0, 2, 1]));
    assert!(window(2, few.clone()).summary(0.05).prefixes.is_empty());
    assert_eq!(names(&window(1, few).summary(0.05)), ["192.0.2.1/32"]);
    let nothing = Window::new(Duration::from_secs(10), 100).summary(0.05);
    assert_eq!(
        (nothing.prefixes.len(), nothing.packets, nothing.error),
        (0, 0, 0.0)
    );
}

#[test]
fn a_source_of_ipv6_is_its_64_and_each_version_has_its_levels() {
    let own = (0..50u8)
        .map(|nth| Ipv6Addr::from([0x20, 1, 0xd, 0xb8, 0, 1, 0, 0, nth, 0, 0, 0, 0, 0, 0, 1]));
    let spread = (0..50u8)
        .map(|nth| Ipv6Addr::from([0x20, 1, 0xd, 0xb8, 0, 2, nth, 0, 0, 0, 0, 0, 0, 0, 0, 1]));
    let summary = window(1, own.chain(spread)).summary(0.3);
    assert_eq!(names(&summary), ["2001:db8:1::/64", "2001:db8:2::/48"]);
    assert_eq!(
        (
            summary.prefixes[0].sources,
            summary.prefixes[1].sources,
            summary.sources
        ),
        (1, 50, 51)
    );
}

#[test]
fn refusals_bytes_and_merged_packets_are_estimates_of_the_whole() {
    let mut window = Window::new(Duration::from_secs(10), 100);
    let sample = |is_refused| Sample {
        source: v4([192, 0, 2, 1]),
        packets: 3,
        bytes: 300,
        is_refused,
    };
    let samples = (0..40).map(|nth| sample(nth % 4 == 0)).collect();
    window.add(Batch {
        samples,
        one_in: 16,
        length: Duration::from_secs(2),
    });
    let summary = window.summary(0.05);
    let found = &summary.prefixes[0];
    assert_eq!(
        (found.packets, found.bytes, found.refused_packets),
        (1_920, 192_000, 480)
    );
    assert_eq!(
        (summary.packets, summary.bytes, summary.refused_packets),
        (1_920, 192_000, 480)
    );
}

#[test]
fn batches_of_different_rates_weigh_what_they_stand_for() {
    let mut window = window(1, (0..100).map(|_| v4([192, 0, 2, 1])));
    let samples = (0..100).map(|_| packet(v4([198, 51, 100, 1]))).collect();
    window.add(Batch {
        samples,
        one_in: 9,
        length: Duration::from_secs(1),
    });
    let summary = window.summary(0.05);
    assert!((summary.prefixes[0].share, summary.prefixes[1].share) == (0.9, 0.1));
    // 200 samples, but hardly better than the 100 that stand for nine packets each.
    let number: f64 = 1_000.0 * 1_000.0 / (100.0 + 8_100.0);
    assert!((summary.error - 2.0 * (40f64.ln() / (2.0 * number)).sqrt()).abs() < 1e-9);
}

#[test]
fn a_window_is_as_coarse_as_its_smallest_sample_until_it_forgets_that() {
    let mut window = Window::new(Duration::from_secs(2), 1_000);
    assert_eq!(window.one_in(), 1);
    for (one_in, coarsest) in [(1, 1), (9, 9), (1, 9), (1, 1)] {
        window.add(Batch {
            samples: Vec::new(),
            one_in,
            length: Duration::from_secs(1),
        });
        assert_eq!(window.one_in(), coarsest);
    }
}

#[test]
fn a_window_forgets_its_oldest_samples() {
    let mut window = Window::new(Duration::from_secs(10), 1_000);
    for nth in 0..30u8 {
        let samples = (0..10).map(|_| packet(v4([192, 0, 2, nth]))).collect();
        window.add(Batch {
            samples,
            one_in: 1,
            length: Duration::from_secs(1),
        });
    }
    assert_eq!(
        (window.length(), window.samples()),
        (Duration::from_secs(10), 100)
    );
    assert_eq!(window.summary(0.001).sources, 10);
    let samples = (0..2_000).map(|_| packet(v4([192, 0, 2, 99]))).collect();
    window.add(Batch {
        samples,
        one_in: 1,
        length: Duration::from_secs(1),
    });
    assert_eq!((window.length(), window.samples()), (Duration::ZERO, 0));
    window.add(Batch {
        samples: vec![packet(v4([192, 0, 2, 1]))],
        one_in: 1,
        length: Duration::from_secs(1),
    });
    window.clear();
    assert_eq!(window.summary(0.05).samples, 0);
}

/// The share of each prefix.
fn shares(sources: &[Ipv6Addr]) -> HashMap<IpNet, f64> {
    let mut shares = HashMap::new();
    for source in sources {
        for prefix in around(*source) {
            *shares.entry(prefix).or_insert(0.0) += 1.0 / sources.len() as f64;
        }
    }
    shares
}

/// The largest difference over all prefixes of either.
fn largest_difference(exact: &HashMap<IpNet, f64>, estimate: &HashMap<IpNet, f64>) -> f64 {
    let of = |shares: &HashMap<IpNet, f64>, prefix| shares.get(prefix).copied().unwrap_or(0.0);
    let prefixes = exact.keys().chain(estimate.keys());
    prefixes
        .map(|prefix| (of(exact, prefix) - of(estimate, prefix)).abs())
        .fold(0.0, f64::max)
}

/// RHHH's estimate: each sample counts at one random level, and for as many as there are levels. Without the error of its
/// summaries.
fn at_random_levels(sources: &[Ipv6Addr], random: &mut Random) -> HashMap<IpNet, f64> {
    let mut shares = HashMap::new();
    for source in sources {
        let prefixes = around(*source);
        let levels = prefixes.len() as f64;
        *shares
            .entry(prefixes[random.below(prefixes.len() as u64) as usize])
            .or_insert(0.0) += levels / sources.len() as f64;
    }
    shares
}

#[test]
fn shares_are_within_the_stated_error_and_closer_than_those_of_rhhh() {
    let mut random = Random::new(7);
    let packets = attack(20_000, &mut random);
    let exact = shares(&packets);
    let (mut outside, mut off_margin, mut rows) = (0, 0, 0);
    let (mut errors, mut errors_of_rhhh) = (0.0, 0.0);
    const TRIALS: usize = 20;
    for _ in 0..TRIALS {
        let sample: Vec<Ipv6Addr> = packets
            .iter()
            .filter(|_| random.below(8) == 0)
            .copied()
            .collect();
        let summary = window(8, sample.iter().copied()).summary(0.02);
        let difference = largest_difference(&exact, &shares(&sample));
        outside += usize::from(difference > summary.error);
        errors += difference;
        errors_of_rhhh += largest_difference(&exact, &at_random_levels(&sample, &mut random));
        for found in &summary.prefixes {
            rows += 1;
            off_margin += usize::from((found.share - exact[&found.prefix]).abs() > found.margin);
        }
        // Of the definition's prefixes, only those near the threshold may be missing.
        assert!(
            ["198.18.0.0/16", "203.0.113.9/32"]
                .iter()
                .all(|name| names(&summary).contains(&(*name).to_owned()))
        );
    }
    // 5 % of 20 are 1. The bound holds for any distribution, and is wide for this one.
    assert!(
        outside <= 3,
        "{outside} of {TRIALS} samples exceed the error that holds for all prefixes"
    );
    // 5 % of the rows, and six standard deviations more.
    let expected = 0.05 * f64::from(rows);
    assert!(
        (off_margin as f64) < expected + 6.0 * expected.sqrt(),
        "{off_margin} of {rows} rows exceed their margin"
    );
    println!(
        "largest error: {:.4}, of RHHH {:.4}",
        errors / TRIALS as f64,
        errors_of_rhhh / TRIALS as f64
    );
    assert!(errors * 1.5 < errors_of_rhhh, "{errors} {errors_of_rhhh}");
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// 100,000 sources, each seen once: the most that a window has. The bound is for emulated CPUs; the time is printed.
#[test]
fn a_summary_of_a_hundred_thousand_sources_is_fast() {
    let mut random = Random::new(3);
    let sources = (0..100_000).map(|_| v4((random.word() as u32).to_be_bytes()));
    let window = window(64, sources);
    let start = processor_time();
    let summary = window.summary(0.05);
    let time = processor_time() - start;
    println!("a summary of {} sources takes {time:?}", summary.sources);
    assert!(summary.sources > 99_000 && summary.prefixes.is_empty());
    assert!(time < Duration::from_secs(5), "{time:?}");
}
