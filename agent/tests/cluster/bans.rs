//! Bans that two hosts share, by every kind of store.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use cluster::StoreUsers;
use cluster::bans::{
    Applied, BanOutbox, BanSharer, HostBans, HostBansError, Lift, Order, OwnBan, Scope, SharedBan,
};
use config::{PrefixKey, prefix};
use host::clock::monotonic_nanoseconds;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::failover::Guarded;
use crate::redis::Redis;
use crate::stores::two_nodes;

pub const TESTS: &[Test] = tests![
    bans_are_shared_by_a_single_store,
    bans_are_shared_by_a_cluster_of_stores,
    bans_are_shared_before_and_after_a_sentinel_changes_the_master,
];

const HOUR: u64 = 3_600_000_000_000;

/// The bans of a host without a kernel.
#[derive(Default)]
struct Bans {
    outbox: Mutex<Option<Arc<BanOutbox>>>,
    own: Mutex<BTreeMap<PrefixKey, OwnBan>>,
    others: Mutex<BTreeMap<PrefixKey, SharedBan>>,
}

impl HostBans for Bans {
    fn report_to(&self, outbox: Option<&Arc<BanOutbox>>) -> bool {
        std::mem::replace(&mut *self.outbox.lock().unwrap(), outbox.cloned()).is_none()
    }

    fn own(&self, most: usize) -> Vec<(PrefixKey, OwnBan, u64)> {
        self.own
            .lock()
            .unwrap()
            .iter()
            .map(|(prefix, ban)| (*prefix, ban.clone(), 0))
            .take(most)
            .collect()
    }

    fn change(
        &self,
        bans: &BTreeMap<PrefixKey, Option<SharedBan>>,
        lifted: &BTreeMap<PrefixKey, Lift>,
    ) -> Result<Applied, HostBansError> {
        let mut others = self.others.lock().unwrap();
        for (prefix, ban) in bans {
            match ban {
                Some(ban) => drop(others.insert(*prefix, ban.clone())),
                None => drop(others.remove(prefix)),
            }
        }
        self.own
            .lock()
            .unwrap()
            .retain(|prefix, _| !lifted.contains_key(prefix));
        Ok(Applied::default())
    }

    fn set(&self, bans: &BTreeMap<PrefixKey, SharedBan>) -> Result<Applied, HostBansError> {
        self.others.lock().unwrap().clone_from(bans);
        Ok(Applied::default())
    }
}

struct Host {
    bans: Arc<Bans>,
    sharer: BanSharer,
}

impl Host {
    /// `store` is what `[cluster]` says of it.
    fn join(node: &str, store: &str) -> Self {
        let text = format!(
            "[agent]\ninterfaces = [\"eth0\"]\n[cluster]\n{store}\nnode = {node:?}\nshare_bans = true\n\
             [[limit]]\nname = \"a\"\nrate = \"10/s\"\n"
        );
        let config = config::parse(Path::new("limits.toml"), &text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config;
        let bans = Arc::<Bans>::default();
        let known: Arc<dyn HostBans> = Arc::clone(&bans) as _;
        let sharer = BanSharer::start(&config, known, &Arc::default(), &StoreUsers::default())
            .unwrap()
            .unwrap();
        let host = Self { bans, sharer };
        wait("the first comparison", || {
            let (status, _) = host.sharer.status();
            status
                .bans
                .is_some_and(|bans| bans.compared_seconds_ago.is_some())
        });
        host
    }

    fn order(&self, address: &str, ban: Option<OwnBan>) {
        let prefix = key(address);
        match &ban {
            Some(ban) => drop(self.bans.own.lock().unwrap().insert(prefix, ban.clone())),
            None => drop(self.bans.own.lock().unwrap().remove(&prefix)),
        }
        let outbox = self.bans.outbox.lock().unwrap().clone().unwrap();
        outbox.push(
            prefix,
            Order {
                at: monotonic_nanoseconds() as i64,
                ban,
                scope: Scope::All,
            },
        );
    }

    fn ban(&self, address: &str) {
        let until = monotonic_nanoseconds() + HOUR;
        self.order(
            address,
            Some(OwnBan {
                until,
                is_by_limit: false,
                limit: None,
                owner: None,
                reason: None,
            }),
        );
    }

    fn has(&self, address: &str) -> bool {
        self.bans.others.lock().unwrap().contains_key(&key(address))
    }

    fn bans_itself(&self, address: &str) -> bool {
        self.bans.own.lock().unwrap().contains_key(&key(address))
    }
}

fn key(address: &str) -> PrefixKey {
    PrefixKey {
        address: prefix::mapped(address.parse::<IpAddr>().unwrap()),
        length: 128,
    }
}

/// Two hosts with a store: each has the other's ban, a third that joins has both, and any host lifts one.
fn share(store: &str) -> [Host; 2] {
    let [a, b] = ["a", "b"].map(|node| Host::join(node, store));
    a.ban("203.0.113.7");
    b.ban("2001:db8::7");
    wait("the ban on the other host", || {
        b.has("203.0.113.7") && a.has("2001:db8::7")
    });
    let c = Host::join("c", store);
    assert!(c.has("203.0.113.7") && c.has("2001:db8::7"));
    b.order("203.0.113.7", None);
    wait("the removal on every host", || {
        !a.bans_itself("203.0.113.7") && !c.has("203.0.113.7")
    });
    assert!(a.has("2001:db8::7") && c.has("2001:db8::7"));
    [a, b]
}

fn bans_are_shared_by_a_single_store() {
    let redis = Redis::start(&[]);
    share(&format!("store = {:?}", redis.url()));
}

fn bans_are_shared_by_a_cluster_of_stores() {
    let nodes = two_nodes();
    share(&format!("store = {:?}", nodes[0].url()));
}

fn bans_are_shared_before_and_after_a_sentinel_changes_the_master() {
    let mut store = Guarded::start();
    let [a, b] = share(&store.config());
    store.master.kill();
    // While there is no master, bans wait for the next one.
    a.ban("203.0.113.8");
    store.wait_for_the_replica();
    b.ban("203.0.113.9");
    wait("the bans through the next master", || {
        b.has("203.0.113.8") && a.has("203.0.113.9")
    });
    assert!(a.has("2001:db8::7"));
    let c = Host::join("c", &store.config());
    wait("the bans on a host that joins later", || {
        ["203.0.113.8", "203.0.113.9"]
            .iter()
            .all(|address| c.has(address))
    });
}
