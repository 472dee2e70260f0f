//! Several hosts and a store, all in memory: whatever is ordered, lost and delayed, all hosts end with the same bans.

use std::collections::{BTreeMap, BTreeSet};

use config::PrefixKey;
use proptest::prelude::*;

use super::entry::{Entry, Kind, MOST};
use super::known_bans::{Change, KnownBans, Lift, PAGE, Reply, Request, Update, Verdict};
use super::outbox::{BanOutbox, Order, OwnBan, Scope};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// All clocks differ: the store's, and those of hosts by their numbers.
const STORE_AHEAD: u64 = 1_700_000_000_000;

/// The script, as a function.
#[derive(Clone, Debug, Default)]
struct Model {
    epoch: u64,
    version: u64,
    most: usize,
    /// Value and version.
    entries: BTreeMap<PrefixKey, (Entry, u64)>,
}

impl Model {
    fn new() -> Self {
        Self {
            epoch: 1,
            most: MOST,
            ..Self::default()
        }
    }

    fn empty(&mut self) {
        *self = Self {
            epoch: self.epoch + 1,
            ..Self::new()
        };
    }

    fn run(&mut self, host: &str, request: &Request, now: u64) -> Reply {
        let clock = STORE_AHEAD + now / MS;
        let from = if request.epoch == self.epoch.to_string() && request.read <= self.version {
            request.read
        } else {
            0
        };
        self.entries
            .retain(|_, (entry, _)| entry.ends == 0 || entry.ends > clock);
        let verdicts = request
            .changes
            .iter()
            .map(|change| self.change(host, change, clock))
            .collect();
        let mut changed: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, (_, version))| *version > from)
            .map(|(prefix, of)| (*prefix, of))
            .collect();
        changed.sort_by_key(|(_, (_, version))| *version);
        let text = |entry: &Entry| {
            let Entry {
                kind,
                ends,
                made,
                host,
                detail,
            } = entry;
            format!("{} {ends} {made} {host} {}", kind.letter(), detail.text())
        };
        let entries = changed
            .iter()
            .take(PAGE)
            .map(|(prefix, (entry, version))| (prefix.to_string(), *version, text(entry)));
        Reply {
            now: clock,
            epoch: self.epoch.to_string(),
            version: self.version,
            from,
            verdicts,
            entries: entries.collect(),
        }
    }

    fn change(&mut self, host: &str, change: &Change, clock: u64) -> Verdict {
        let made = clock.saturating_sub(change.age);
        let known = self
            .entries
            .get(&change.prefix)
            .map(|(entry, _)| entry.clone());
        let is_removal = change.kind == Kind::Removal;
        if let Some(known) = &known
            && known.made > made
            && (is_removal || known.kind == Kind::Removal)
        {
            return Verdict::Late;
        }
        let ends = if is_removal {
            clock
                + 60_000.max(known.as_ref().map_or(0, |known| match known.ends {
                    0 => 7 * 86_400_000,
                    ends => ends.saturating_sub(clock).min(7 * 86_400_000),
                }))
        } else {
            let ends = if change.lasts == 0 {
                0
            } else {
                clock + change.lasts
            };
            let is_longer = |known: &Entry| known.ends == 0 || (ends != 0 && known.ends >= ends);
            if known
                .as_ref()
                .is_some_and(|it| it.kind != Kind::Removal && it.host != host && is_longer(it))
            {
                return Verdict::Shorter;
            }
            if known.is_none() && self.entries.len() >= self.most {
                return Verdict::NoRoom;
            }
            ends
        };
        self.version += 1;
        let entry = Entry {
            kind: change.kind,
            ends,
            made,
            host: host.to_owned(),
            detail: change.detail.clone(),
        };
        self.entries.insert(change.prefix, (entry, self.version));
        Verdict::Stored
    }
}

/// A host with its own bans and those of others.
struct Host {
    name: String,
    known: KnownBans,
    outbox: BanOutbox,
    /// Each with its start.
    own: BTreeMap<PrefixKey, (OwnBan, u64)>,
    foreign: BTreeSet<PrefixKey>,
    /// The lead of this host's clock over the others'.
    ahead: u64,
}

impl Host {
    fn new(nth: u64) -> Self {
        let name = format!("host-{nth}");
        Self {
            known: KnownBans::new(name.clone()),
            name,
            outbox: BanOutbox::default(),
            own: BTreeMap::new(),
            foreign: BTreeSet::new(),
            ahead: nth * 1_000_000 * SECOND,
        }
    }

    fn ban(&mut self, prefix: PrefixKey, seconds: Option<u64>, now: u64) {
        let now = now + self.ahead;
        let until = seconds.map_or(u64::MAX, |seconds| now + seconds * SECOND);
        let ban = OwnBan {
            until,
            is_by_limit: false,
            limit: None,
            owner: None,
            reason: None,
        };
        self.own.insert(prefix, (ban.clone(), now / SECOND));
        self.outbox.push(
            prefix,
            Order {
                at: now as i64,
                ban: Some(ban),
                scope: Scope::All,
            },
        );
    }

    fn unban(&mut self, prefix: PrefixKey, now: u64) {
        self.foreign.remove(&prefix);
        self.lift(prefix, Scope::All, now);
    }

    fn lift(&mut self, prefix: PrefixKey, scope: Scope, now: u64) {
        self.own.remove(&prefix);
        self.outbox.push(
            prefix,
            Order {
                at: (now + self.ahead) as i64,
                ban: None,
                scope,
            },
        );
    }

    fn sync(&mut self, store: &mut Model, now: u64) {
        let clock = now + self.ahead;
        loop {
            let request = self.known.request(self.outbox.take(200), clock);
            let reply = store.run(&self.name, &request, now);
            let update = self.known.replied(&reply, clock);
            self.apply(&update, clock);
            if update.is_whole {
                let own: Vec<_> = self
                    .own
                    .iter()
                    .map(|(prefix, (ban, since))| (*prefix, ban.clone(), *since))
                    .collect();
                let compared = self.known.compare(
                    &own,
                    |prefix| self.outbox.is_waiting(prefix),
                    clock,
                    clock / SECOND,
                );
                self.apply(&compared, clock);
                self.foreign = self.known.others().keys().copied().collect();
            }
            if !update.is_more && self.outbox.is_empty() {
                return;
            }
        }
    }

    fn apply(&mut self, update: &Update, clock: u64) {
        self.outbox.put_back(update.orders.iter().cloned());
        for (prefix, ban) in &update.bans {
            match ban {
                Some(_) => self.foreign.insert(*prefix),
                None => self.foreign.remove(prefix),
            };
        }
        for (prefix, lift) in &update.lifted {
            let own = self.own.get(prefix).filter(|_| lift.is_elsewhere);
            match own {
                Some((ban, _)) => self.outbox.push(
                    *prefix,
                    Order {
                        at: clock as i64,
                        ban: Some(ban.clone()),
                        scope: Scope::All,
                    },
                ),
                None => drop(self.own.remove(prefix)),
            }
        }
    }

    fn restart(&mut self) {
        self.known = KnownBans::new(self.name.clone());
        self.outbox = BanOutbox::default();
    }

    /// Everything that it refuses.
    fn refused(&mut self, now: u64) -> BTreeSet<PrefixKey> {
        let now = now + self.ahead;
        self.known.prune(now);
        self.own.retain(|_, (ban, _)| now < ban.until);
        let others = self.known.others();
        self.foreign.retain(|prefix| others.contains_key(prefix));
        self.own.keys().chain(&self.foreign).copied().collect()
    }
}

fn prefix(last: u8) -> PrefixKey {
    PrefixKey::from(&config::prefix::parse(&format!("192.0.2.{last}")).unwrap())
}

fn hosts(count: u64) -> Vec<Host> {
    (1..=count).map(Host::new).collect()
}

#[test]
fn a_ban_spreads_and_a_removal_by_any_host_undoes_it() {
    let (mut store, mut hosts) = (Model::new(), hosts(3));
    hosts
        .iter_mut()
        .for_each(|host| host.sync(&mut store, SECOND));
    hosts[0].ban(prefix(1), Some(600), 2 * SECOND);
    hosts
        .iter_mut()
        .for_each(|host| host.sync(&mut store, 2 * SECOND));
    assert!(
        hosts
            .iter_mut()
            .all(|host| host.refused(3 * SECOND) == BTreeSet::from([prefix(1)]))
    );
    let shared = &hosts[1].known.others()[&prefix(1)];
    assert_eq!(
        (shared.entry.host.as_str(), shared.until),
        ("host-1", 602 * SECOND + hosts[1].ahead)
    );
    assert!(hosts[0].known.others().is_empty(), "no echo");
    hosts[2].unban(prefix(1), 4 * SECOND);
    for nth in [2, 0, 1] {
        hosts[nth].sync(&mut store, 4 * SECOND);
        assert!(hosts[nth].refused(4 * SECOND).is_empty());
    }
    // A later ban wins over the removal.
    hosts[1].ban(prefix(1), None, 5 * SECOND);
    hosts[1].sync(&mut store, 5 * SECOND);
    hosts[0].sync(&mut store, 5 * SECOND);
    assert!(hosts[0].refused(5 * SECOND).contains(&prefix(1)));
    assert_eq!(store.entries.len(), 1);
}

#[test]
fn a_host_lifts_its_own_ban_and_no_other_hosts() {
    for longer in [0, 1] {
        let (mut store, mut hosts) = (Model::new(), hosts(3));
        let mut sync = |hosts: &mut Vec<Host>, now: u64| {
            for nth in [0, 1, 2, 1, 0, 2] {
                hosts[nth].sync(&mut store, now);
            }
        };
        sync(&mut hosts, SECOND);
        for (nth, host) in hosts.iter_mut().enumerate().take(2) {
            let seconds = if nth == longer { 6_000 } else { 600 };
            host.ban(prefix(1), Some(seconds), 2 * SECOND);
        }
        sync(&mut hosts, 2 * SECOND);
        // The ban of the first host is in the store if it is the longer one.
        let owner = Some("sshd".to_owned());
        hosts[0].lift(prefix(1), Scope::Own { owner }, 4 * SECOND);
        sync(&mut hosts, 4 * SECOND);
        assert!(!hosts[0].own.contains_key(&prefix(1)), "{longer}");
        for host in &mut hosts {
            assert_eq!(
                host.refused(5 * SECOND),
                BTreeSet::from([prefix(1)]),
                "{longer} {}",
                host.name
            );
        }
        // A third host lifts that of the second.
        let scope = Scope::Of {
            host: "host-2".to_owned(),
            owner: None,
        };
        hosts[2].lift(prefix(1), scope, 6 * SECOND);
        sync(&mut hosts, 6 * SECOND);
        for host in &mut hosts {
            assert!(
                host.refused(7 * SECOND).is_empty(),
                "{longer} {}",
                host.name
            );
        }
    }
}

#[test]
fn a_late_ban_is_lifted_by_no_removal_of_another_hosts() {
    for is_read_before in [false, true] {
        for scope in [
            Scope::All,
            Scope::Of {
                host: "host-2".to_owned(),
                owner: None,
            },
        ] {
            let stays = scope != Scope::All;
            let (mut store, mut hosts) = (Model::new(), hosts(3));
            for host in &mut hosts {
                host.sync(&mut store, SECOND);
            }
            hosts[0].ban(prefix(1), Some(600), 2 * SECOND);
            let waiting = hosts[0].outbox.take(1);
            hosts[2].lift(prefix(1), scope, 4 * SECOND);
            hosts[2].sync(&mut store, 4 * SECOND);
            if is_read_before {
                let own = std::mem::take(&mut hosts[0].own);
                hosts[0].sync(&mut store, 5 * SECOND);
                hosts[0].own = own;
            } else {
                hosts[0].known.read_all();
            }
            hosts[0].outbox.put_back(waiting);
            for nth in [0, 1, 2] {
                hosts[nth].sync(&mut store, 60 * SECOND);
            }
            for host in &mut hosts {
                assert_eq!(
                    host.refused(61 * SECOND).contains(&prefix(1)),
                    stays,
                    "{is_read_before} {}",
                    host.name
                );
            }
        }
    }
}

#[test]
fn a_removal_reports_its_age_and_owner() {
    let (mut store, mut hosts) = (Model::new(), hosts(2));
    hosts[0].sync(&mut store, SECOND);
    hosts[1].sync(&mut store, SECOND);
    let scope = Scope::Of {
        host: "host-2".to_owned(),
        owner: Some("sshd".to_owned()),
    };
    hosts[0].lift(prefix(1), scope, 2 * SECOND);
    hosts[0].sync(&mut store, 2 * SECOND);
    let clock = 9 * SECOND + hosts[1].ahead;
    let request = hosts[1].known.request(Vec::new(), clock);
    let reply = store.run("host-2", &request, 9 * SECOND);
    let update = hosts[1].known.replied(&reply, clock);
    let lift = Lift {
        owner: Some("sshd".to_owned()),
        is_elsewhere: false,
        age: 7_000,
    };
    assert_eq!(update.lifted, BTreeMap::from([(prefix(1), lift)]));
}

#[test]
fn of_orders_that_waited_for_the_store_the_later_one_counts() {
    for (banned, removed, is_banned) in [(10, 20, false), (20, 10, true)] {
        for ban_first in [true, false] {
            let (mut store, mut hosts) = (Model::new(), hosts(3));
            hosts
                .iter_mut()
                .for_each(|host| host.sync(&mut store, SECOND));
            hosts[0].ban(prefix(1), None, banned * SECOND);
            hosts[1].unban(prefix(1), removed * SECOND);
            // Whichever arrives first when the store is back.
            let order = if ban_first {
                [0, 1, 2, 0, 1]
            } else {
                [1, 0, 2, 1, 0]
            };
            for nth in order {
                hosts[nth].sync(&mut store, 60 * SECOND);
            }
            for host in &mut hosts {
                assert_eq!(
                    !host.refused(61 * SECOND).is_empty(),
                    is_banned,
                    "{banned} {removed} {ban_first}"
                );
            }
        }
    }
}

#[test]
fn the_longer_ban_stays_and_its_host_may_shorten_it() {
    let (mut store, mut hosts) = (Model::new(), hosts(2));
    hosts[0].ban(prefix(1), Some(600), SECOND);
    hosts[1].ban(prefix(1), Some(60), SECOND);
    for nth in [0, 1, 0] {
        hosts[nth].sync(&mut store, SECOND);
    }
    assert_eq!(hosts[1].known.others()[&prefix(1)].entry.host, "host-1");
    hosts[0].ban(prefix(1), Some(30), 2 * SECOND);
    for nth in [0, 1] {
        hosts[nth].sync(&mut store, 2 * SECOND);
    }
    assert!(store.entries[&prefix(1)].0.ends <= STORE_AHEAD + 32_000);
    // The next comparison publishes the other, which is now the longer one.
    hosts[1].known.read_all();
    for nth in [1, 0] {
        hosts[nth].sync(&mut store, 3 * SECOND);
    }
    assert_eq!(hosts[0].known.others()[&prefix(1)].entry.host, "host-2");
}

#[test]
fn an_emptied_store_gets_all_bans_again_and_no_removed_one() {
    let (mut store, mut hosts) = (Model::new(), hosts(2));
    hosts[0].ban(prefix(1), None, SECOND);
    hosts[0].ban(prefix(2), Some(600), SECOND);
    for nth in [0, 1] {
        hosts[nth].sync(&mut store, SECOND);
    }
    // The first host has not read the removal when the store loses it.
    hosts[1].unban(prefix(1), 5 * SECOND);
    hosts[1].sync(&mut store, 5 * SECOND);
    store.empty();
    // Meanwhile nothing is lifted that its host publishes again.
    hosts[1].sync(&mut store, 10 * SECOND);
    assert_eq!(hosts[1].refused(10 * SECOND), BTreeSet::from([prefix(2)]));
    for nth in [0, 1] {
        hosts[nth].sync(&mut store, 10 * SECOND);
    }
    for host in &mut hosts {
        assert_eq!(host.refused(11 * SECOND), BTreeSet::from([prefix(2)]));
    }
}

#[test]
fn a_restarted_host_publishes_nothing_that_was_removed_meanwhile() {
    let (mut store, mut hosts) = (Model::new(), hosts(2));
    hosts[0].ban(prefix(1), None, 100 * SECOND);
    hosts[0].ban(prefix(2), None, 100 * SECOND);
    for nth in [0, 1] {
        hosts[nth].sync(&mut store, 100 * SECOND);
    }
    hosts[1].unban(prefix(1), 200 * SECOND);
    hosts[1].sync(&mut store, 200 * SECOND);
    hosts[0].restart();
    hosts[0].sync(&mut store, 300 * SECOND);
    assert_eq!(hosts[0].refused(300 * SECOND), BTreeSet::from([prefix(2)]));
    // Without its own memory, it has the ban from the store.
    hosts[0].restart();
    hosts[0].own.clear();
    hosts[0].sync(&mut store, 400 * SECOND);
    assert_eq!(hosts[0].refused(400 * SECOND), BTreeSet::from([prefix(2)]));
}

#[test]
fn bans_beyond_the_stores_room_are_counted_and_published_later() {
    let (mut store, mut hosts) = (Model::new(), hosts(2));
    store.most = 2;
    for last in 1..=3 {
        hosts[0].ban(prefix(last), None, SECOND);
    }
    hosts[0].sync(&mut store, SECOND);
    assert_eq!(
        (hosts[0].known.published(), hosts[0].known.left_out()),
        (2, 1)
    );
    // A removal takes its place until it ends.
    hosts[1].sync(&mut store, SECOND);
    hosts[1].unban(prefix(1), 2 * SECOND);
    hosts[1].sync(&mut store, 2 * SECOND);
    hosts[0].sync(&mut store, 2 * SECOND);
    let later = 10 * 86_400 * SECOND;
    hosts[0].known.read_all();
    hosts[0].sync(&mut store, later);
    assert_eq!(hosts[0].known.left_out(), 0);
    assert!(store.entries.contains_key(&prefix(3)));
}

#[test]
fn garbled_entries_are_counted_and_the_others_apply() {
    let mut known = KnownBans::new("a".to_owned());
    known.request(Vec::new(), SECOND);
    let valid = format!("B 0 {STORE_AHEAD} b {{}}");
    let entries = [
        ("192.0.2.1", valid.as_str()),
        ("192.0.2.2", "rubbish"),
        ("0.0.0.0/0", &valid),
        ("x", &valid),
    ];
    let entries = entries
        .iter()
        .zip(1..)
        .map(|((prefix, text), nth)| ((*prefix).to_owned(), nth, (*text).to_owned()));
    let reply = Reply {
        now: STORE_AHEAD,
        epoch: "e".to_owned(),
        version: 4,
        entries: entries.collect(),
        ..Reply::default()
    };
    assert!(known.replied(&reply, SECOND).is_whole);
    known.compare(&[], |_| false, SECOND, 1);
    assert_eq!((known.others().len(), known.ignored()), (1, 3));
}

#[test]
fn a_host_that_joins_reads_all_pages() {
    let (mut store, mut hosts) = (Model::new(), hosts(2));
    for nth in 0..2_000u32 {
        let prefix = PrefixKey::from(
            &config::prefix::parse(&format!("10.9.{}.{}", nth / 250, nth % 250)).unwrap(),
        );
        hosts[0].ban(prefix, None, SECOND);
    }
    hosts[0].sync(&mut store, SECOND);
    hosts[1].sync(&mut store, SECOND);
    assert_eq!(hosts[1].refused(SECOND).len(), 2_000);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ban(usize, u8, Option<u64>),
    Unban(usize, u8),
    Sync(usize),
    Restart(usize),
    Empty,
    /// A replica without the last changes becomes the master, and the hosts connect to it.
    LagBehind,
    Pass(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let last = 1..5u8;
    prop_oneof![
        4 => (0..3usize, last.clone(), prop::sample::select(vec![None, Some(1), Some(100_000)]))
            .prop_map(|(host, last, time)| Step::Ban(host, last, time)),
        3 => (0..3usize, last).prop_map(|(host, last)| Step::Unban(host, last)),
        8 => (0..3usize).prop_map(Step::Sync),
        1 => (0..3usize).prop_map(Step::Restart),
        1 => Just(Step::Empty),
        1 => Just(Step::LagBehind),
        3 => (1..50u64).prop_map(Step::Pass),
    ]
}

proptest! {
    /// After some syncs, all hosts refuse the same prefixes.
    #[test]
    fn all_hosts_end_with_the_same_bans(steps in prop::collection::vec(step(), 1..60)) {
        let (mut store, mut hosts, mut now) = (Model::new(), hosts(3), 1_000 * SECOND);
        let mut replica = store.clone();
        for step in steps {
            now += 10 * MS;
            match step {
                Step::Ban(host, last, time) => hosts[host].ban(prefix(last), time, now),
                Step::Unban(host, last) => hosts[host].unban(prefix(last), now),
                Step::Sync(host) => hosts[host].sync(&mut store, now),
                Step::Restart(host) => hosts[host].restart(),
                Step::Empty => store.empty(),
                Step::LagBehind => {
                    std::mem::swap(&mut store, &mut replica);
                    for host in &mut hosts {
                        host.known.read_all();
                        let (removals, clock) = (host.known.recent_removals(now + host.ahead), now + host.ahead);
                        assert!(removals.iter().all(|(_, order)| order.at <= clock as i64));
                        host.outbox.put_back(removals);
                    }
                    replica = store.clone();
                }
                Step::Pass(seconds) => {
                    now += seconds * SECOND;
                    replica = store.clone();
                }
            }
        }
        // Short bans have ended.
        now += 5 * SECOND;
        // Bans that the store has lost are dropped after a while.
        for _ in 0..5 {
            now += 30 * SECOND;
            for host in &mut hosts {
                host.known.read_all();
                host.sync(&mut store, now);
            }
        }
        let refused: Vec<_> = hosts.iter_mut().map(|host| host.refused(now)).collect();
        prop_assert_eq!(&refused[0], &refused[1]);
        prop_assert_eq!(&refused[1], &refused[2]);
    }
}
