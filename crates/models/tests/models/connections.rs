//! Reservations of connections: `common::connections`.

use std::sync::Arc;

use common::connections::{self, Attempt, Pending, conclude, reserve};
use common::key::Key;
use common::rule::{Cost, Rule};
use common::throttle::Cell;
use loom::sync::atomic::Ordering::SeqCst;
use models::{Cpu, Memory, Work, cpus, explore};

/// A window of reservations.
const NOW: u64 = 100;

/// A limit of open connections.
fn rule(group: u16, most: u64) -> Rule {
    Rule {
        group,
        most,
        cost: Cost::Open as u8,
        ..Rule::EMPTY
    }
}

fn key(group: u32) -> Key {
    Key {
        group,
        ..Key::default()
    }
}

/// A SYN under all rules: whether it is admitted.
fn syn(memory: &Memory, window: u64) -> bool {
    let cpu = Cpu::at(memory, window);
    let mut attempt = Attempt::default();
    let admission = reserve(&cpu, &mut attempt, u32::MAX);
    if admission.refusing().is_none() {
        conclude(&cpu, &attempt, true);
        return true;
    }
    false
}

/// A reserved connection is established, as by the program on the tracepoint.
fn establish(memory: &Memory, group: u32, made: u64, now: u64) {
    let count_up = || {
        memory.open(&key(group)).fetch_add(1, SeqCst);
        true
    };
    let pending = || Some(memory.pending(&key(group)));
    connections::establish(count_up, pending, made as u32, now as u32);
}

/// The connections that are counted: open ones, and reservations in effect.
fn counted(memory: &Memory, group: u32, now: u64) -> u64 {
    let pending = Pending(memory.pending(&key(group)).load()).at(now as u32);
    memory.open(&key(group)).load(SeqCst) + pending.count()
}

/// Runs SYNs while a reservation of window `made` becomes an open connection; returns how many were admitted.
fn beside_an_establishment(memory: &Arc<Memory>, made: u64, syns: &[u64]) -> u64 {
    let mut works: Vec<Work<Memory, bool>> = vec![Box::new(move |memory| {
        establish(memory, 0, made, NOW);
        false
    })];
    for window in syns.iter().copied() {
        works.push(Box::new(move |memory| syn(memory, window)));
    }
    cpus(memory, works).into_iter().map(u64::from).sum()
}

/// One place, which is reserved and becomes an open connection: a SYN beside it finds it either way.
#[test]
fn a_reservation_that_becomes_open_is_missed_by_no_syn() {
    explore("one place, one SYN", 4, || {
        let memory = Arc::new(Memory::connections(vec![rule(0, 1)]));
        assert!(syn(&memory, NOW));
        let admitted = beside_an_establishment(&memory, NOW, &[NOW]);
        assert_eq!(admitted, 0, "the place is in use");
        assert_eq!(counted(&memory, 0, NOW), 1);
    });
}

/// Two places, one of them reserved, becomes open while two SYNs race for the other. The count of reservations may go
/// down and up again between two readings of one CPU.
#[test]
fn a_count_that_comes_back_to_its_value_hides_no_connection() {
    explore("two places, two SYNs", 2, || {
        let memory = Arc::new(Memory::connections(vec![rule(0, 2)]));
        assert!(syn(&memory, NOW));
        let admitted = beside_an_establishment(&memory, NOW, &[NOW, NOW]);
        assert!(admitted <= 1, "{admitted} admitted for one place");
        assert_eq!(counted(&memory, 0, NOW), 1 + admitted, "nothing is left");
    });
}

/// CPUs at both sides of the end of a window: one of them drops the reservations that have expired, while the other ends
/// one of them.
#[test]
fn reservations_that_expire_take_no_other_with_them() {
    explore("the end of a window", 3, || {
        let memory = Arc::new(Memory::connections(vec![rule(0, 3)]));
        assert!(syn(&memory, NOW - 2) && syn(&memory, NOW));
        let admitted = beside_an_establishment(&memory, NOW - 2, &[NOW + 1]);
        assert_eq!(admitted, 1);
        let counted = counted(&memory, 0, NOW + 1);
        assert_eq!(counted, 3, "one is open, two are reserved");
    });
}

/// The second limit refuses: the reservation under the first one ends, and a later SYN has its place.
#[test]
fn a_refused_connection_leaves_no_reservation() {
    explore("two limits, two SYNs", 3, || {
        let memory = Arc::new(Memory::connections(vec![rule(0, 2), rule(1, 1)]));
        let works: Vec<Work<Memory, bool>> = vec![
            Box::new(|memory| syn(memory, NOW)),
            Box::new(|memory| syn(memory, NOW)),
        ];
        let admitted: u64 = cpus(&memory, works).into_iter().map(u64::from).sum();
        assert_eq!(admitted, 1, "the first of both has the place");
        assert_eq!([counted(&memory, 0, NOW), counted(&memory, 1, NOW)], [1; 2]);
    });
}
