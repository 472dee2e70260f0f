//! Made-up sources, of some networks and of all, before a limit that has levels of networks and of all sources together.

use super::judge::{Figures, judge};
use super::scenarios::{START, beside_polite, heavy, made_up};
use super::sources::{Block, Kind, STEP};
use super::world::{Log, Scenario, Server, run};
use super::{means, means_of};
use crate::{Failure, Tier};

/// The tiers that had a level, in turn; `None` while nothing is refused.
fn tiers(log: &Log) -> Vec<Option<Tier>> {
    let mut tiers: Vec<_> = log
        .reports
        .iter()
        .map(|(_, report)| report.level.map(|level| level.tier()))
        .collect();
    tiers.dedup();
    tiers
}

/// Seconds from the onset until networks have a level.
fn until_networks(log: &Log) -> f64 {
    let of_networks = log
        .reports
        .iter()
        .find(|(_, report)| report.level.is_some_and(|level| level.network.is_some()));
    of_networks.unwrap().0 - START
}

#[test]
fn made_up_sources_of_some_networks_are_limited_as_networks() {
    for (name, server, kind) in [
        ("udp", Server::Udp, Kind::MadeUp),
        ("udp, 2,000/s", Server::SlowUdp, Kind::MadeUp),
        ("udp, 2,000/s, in turn", Server::SlowUdp, Kind::InTurn),
    ] {
        let mut scenario = made_up(server, Some(|k| k / 250));
        scenario.blocks[1].kind = kind;
        let name = format!("{name}: 100,000 made up in 400 networks");
        let figures = means_of(3, &name, &scenario, "polite");
        assert!(
            figures.polite >= 99.0 && figures.used >= 99.5,
            "{figures:?}"
        );
        assert!(figures.after <= 0.0 && figures.off <= 5.0, "{figures:?}");
        let log = run(&scenario, 1);
        let after = until_networks(&log);
        println!("{name}: networks have a level after {after:.1} s");
        assert!(after <= 0.7, "{after}");
        // There and back, once.
        let expected = [None, Some(Tier::Sources), Some(Tier::Networks), None];
        assert_eq!(tiers(&log), expected);
    }
}

/// The default least level is a tenth of what each polite source sends, which the level of sources falls to before
/// networks have one.
#[test]
fn a_least_level_below_polite_sources_costs_them_the_onset() {
    let scenario = Scenario {
        least: 0.000_1,
        end: 12.0,
        ..made_up(Server::Udp, Some(|k| k / 250))
    };
    let scenario = lasting(scenario, 12.0);
    let log = run(&scenario, 1);
    let polite = |from: f64, to: f64| {
        let part = &log.entries[(from / STEP) as usize..(to / STEP) as usize];
        let sum = |of: fn(&super::world::Entry) -> f64| part.iter().map(of).sum::<f64>();
        100.0 * sum(|entry| entry.good[0]) / sum(|entry| entry.offered[0])
    };
    let seconds: Vec<f64> = (0..9)
        .map(|second| polite(START + f64::from(second), START + f64::from(second) + 1.0))
        .collect();
    println!("udp: made up in 400 networks, least level 1/s: polite by second {seconds:.1?}");
    assert!(
        seconds[3..].iter().all(|polite| *polite >= 95.0),
        "{seconds:?}"
    );
    let expected = [None, Some(Tier::Sources), Some(Tier::Networks), None];
    assert_eq!(tiers(&log), expected);
}

/// The same with an attack until `end`.
fn lasting(scenario: Scenario, end: f64) -> Scenario {
    let blocks = scenario.blocks.into_iter().map(|block| Block {
        end: if block.start > 0.0 { end } else { block.end },
        ..block
    });
    Scenario {
        blocks: blocks.collect(),
        end,
        ..scenario
    }
}

/// Nothing tells a newcomer from a made-up source: the capacity's share of what is offered passes.
#[test]
fn made_up_sources_of_all_networks_are_not_told_from_newcomers() {
    let scenario = made_up(Server::Udp, None);
    let figures = means_of(3, "udp: 100,000 made up everywhere", &scenario, "polite");
    assert!((5.0..20.0).contains(&figures.polite), "{figures:?}");
    assert!(figures.used >= 95.0 && figures.off <= 5.0, "{figures:?}");
    let log = run(&lasting(scenario, 15.0), 1);
    let expected = [
        None,
        Some(Tier::Sources),
        Some(Tier::Networks),
        Some(Tier::All),
        None,
    ];
    assert_eq!(tiers(&log), expected);
}

/// The rule of all sources together cannot help either: as [`Tier::Sources`] alone.
#[test]
fn a_level_of_networks_that_made_up_sources_are_below_is_released() {
    let scenario = Scenario {
        widest: Tier::Networks,
        ..lasting(made_up(Server::Udp, None), 20.0)
    };
    let log = run(&scenario, 1);
    let mut reports = log.reports.iter();
    let failed = reports.find(|(_, report)| report.failure == Some(Failure::WithoutEffect));
    let after = failed.unwrap().0 - START;
    assert!((10.0..15.0).contains(&after), "{after}");
}

/// Each source may have what its network may have, and no more.
#[test]
fn heavy_sources_beside_made_up_ones_are_limited_as_their_networks() {
    let made_up = Block {
        kind: Kind::MadeUp,
        network: Some(|k| k / 250),
        ..Block::between("made up", 100_000, 0.5, START, 12.0)
    };
    let scenario = beside_polite(
        Server::Udp,
        vec![heavy(Server::Udp, 5.0, 12.0), made_up],
        12.0,
    );
    let Figures {
        polite, used, off, ..
    } = means_of(
        3,
        "udp: five heavy sources, 100,000 made up in 400 networks",
        &scenario,
        "polite",
    );
    assert!(polite >= 95.0 && used >= 95.0 && off <= 5.0, "{polite}");
    // Five of 455 networks.
    let log = run(&scenario, 1);
    let steady = &log.entries[(START / STEP) as usize + 300..(12.0 / STEP) as usize];
    let share = steady.iter().map(|entry| entry.passed[1]).sum::<f64>()
        / steady
            .iter()
            .map(|entry| entry.passed.iter().sum::<f64>())
            .sum::<f64>();
    println!("udp: five heavy sources have {share:.3} of what passes");
    assert!(share < 0.03, "{share}");
}

/// Polite sources in a network of made-up ones have its share: nothing tells them from these.
#[test]
fn polite_sources_in_attacking_networks_pay_with_them() {
    let of_network: fn(usize) -> usize = |k| k / 250;
    let mut scenario = made_up(Server::Udp, Some(of_network));
    // Ten of them beside the first attackers.
    let neighbours = Block {
        network: Some(|k| 50 + k),
        ..Block::always("neighbours", 10, 10.0)
    };
    scenario.blocks.push(neighbours);
    let log = run(&scenario, 1);
    let of = |name| judge(&scenario, name, &log).polite;
    let (polite, neighbours) = (of("polite"), of("neighbours"));
    println!("udp: made up in 400 networks: polite {polite:.1}, in these networks {neighbours:.1}");
    assert!(polite >= 95.0, "{polite}");
}

/// Levels of networks change nothing where sources alone can be limited.
#[test]
fn networks_have_no_level_where_sources_alone_suffice() {
    for times in [2.0, 10.0] {
        let block = Block {
            network: Some(|_| 7),
            ..heavy(Server::Udp, times, 9.0)
        };
        let scenario = beside_polite(Server::Udp, vec![block], 9.0);
        let figures = means(
            &format!("udp: five sources of one network, {times} times"),
            &scenario,
            "polite",
        );
        assert!(
            figures.polite >= 99.0 && figures.used >= 95.0,
            "{figures:?}"
        );
        let log = run(&scenario, 1);
        assert_eq!(tiers(&log), [None, Some(Tier::Sources), None]);
    }
}
