//! One run of `exchange.lua`: its keys, arguments and reply.

use std::time::Duration;

use decide::{LastReset, ResetKey};
use redis::Value;

use super::peer::{News, PeerHost};
use super::reset_log::{ResetNews, encode_name, parse};
use super::use_log::{Changes, MOST_KEYS, Name, PAGE_BYTES, Writes, decode_entry};
use crate::member::Terms;

/// The script that the store runs.
pub const SCRIPT: &str = include_str!("exchange.lua");

/// The store's keys of a cluster.
pub(super) fn keys(cluster: &str) -> [String; 6] {
    [
        "keys",
        "hosts",
        "use:1",
        "use:1:versions",
        "use:1:ends",
        "resets:1",
    ]
    .map(|key| format!("weir:{{{cluster}}}:{key}"))
}

/// What one host sends.
pub(super) struct Request<'a> {
    pub(super) host: &'a str,
    pub(super) sync: Duration,
    /// The store's clock at the last read.
    pub(super) read: u64,
    /// The secret of keys, in case the store has none, and whether this host had it before.
    pub(super) secret: ([u64; 2], bool),
    /// Of this request, and of the last one with a reply.
    pub(super) sequences: (u64, u64),
    pub(super) publication: &'a [u8],
    pub(super) leaves: bool,
    /// The epoch of the use, in case the store has none, and the version of the resets, if these change them.
    pub(super) epoch: String,
    pub(super) writes: &'a Writes,
    /// The version at the last read, and the resets that the store lacks.
    pub(super) resets: (&'a str, &'a [(ResetKey, LastReset)]),
}

impl Request<'_> {
    pub(super) fn arguments(&self) -> Vec<Vec<u8>> {
        let number = |number: u64| number.to_string().into_bytes();
        let mut arguments = vec![
            self.host.as_bytes().to_vec(),
            number(Terms::lease_for(self.sync).as_micros() as u64),
            number(self.read),
            format!("{:016x}{:016x}", self.secret.0[0], self.secret.0[1]).into_bytes(),
            self.publication.to_vec(),
            number(u64::from(self.leaves)),
            number(self.sync.as_micros() as u64),
            self.epoch.clone().into_bytes(),
            number(self.writes.version),
            number(self.writes.page as u64),
            number(PAGE_BYTES as u64),
            number(MOST_KEYS as u64),
            number(u64::from(self.writes.restores)),
            number(u64::from(self.secret.1)),
            number(self.sequences.0),
            number(self.sequences.1),
            self.resets.0.as_bytes().to_vec(),
            number(self.resets.1.len() as u64),
        ];
        for (key, reset) in self.resets.1 {
            arguments.extend([encode_name(*key), number(reset.era), number(reset.at)]);
        }
        for row in &self.writes.rows {
            arguments.extend([
                row.name.encode(),
                number(row.order[0]),
                number(row.order[1]),
                number(row.life),
                row.state.clone(),
            ]);
        }
        arguments
    }
}

/// What it receives.
pub(super) struct Reply {
    /// The hosts' secret of keys.
    pub(super) secret: [u64; 2],
    pub(super) news: News,
    pub(super) changes: Changes,
    pub(super) resets: ResetNews,
    /// Whether the store has been in use for less than a lease.
    pub(super) is_new: bool,
}

impl Reply {
    /// Parses the script's result.
    ///
    /// `version`: of the resets in the request.
    pub(super) fn parse(result: Value, version: &str) -> Option<Self> {
        type Hosts = Vec<(String, String)>;
        type Publications = Vec<(String, Vec<u8>)>;
        type Keys = Vec<(String, Vec<u8>, Vec<u8>)>;
        type Parts = (
            String,
            String,
            Hosts,
            Publications,
            Vec<String>,
            String,
            String,
            String,
            Keys,
            Vec<String>,
            String,
            Vec<(Vec<u8>, String)>,
        );
        let parts: Parts = redis::from_redis_value(result).ok()?;
        let (now, secret, hosts, publications, terms, epoch, use_version, restored, keys, flags) = (
            parts.0, parts.1, parts.2, parts.3, parts.4, parts.5, parts.6, parts.7, parts.8,
            parts.9,
        );
        let mut flags = flags.iter().map(|flag| flag == "1");
        let (is_new, has_lost, has_more) = (flags.next()?, flags.next()?, flags.next()?);
        let word = |text: Option<&str>| u64::from_str_radix(text?, 16).ok();
        let hosts = hosts.into_iter().zip(terms).map(|((name, at), terms)| {
            Some(PeerHost {
                name,
                at: at.parse::<f64>().ok()? as u64,
                sync: terms
                    .split_once(' ')
                    .and_then(|(_, sync)| sync.parse().ok())
                    .unwrap_or(0),
            })
        });
        let news = News {
            now: now.parse().ok()?,
            hosts: hosts.collect::<Option<_>>()?,
            publications,
        };
        let until = match keys.last() {
            Some((version, ..)) if has_more => Some(version.parse().ok()?),
            _ => None,
        };
        // Entries of another version are skipped.
        let keys = keys
            .into_iter()
            .filter_map(|(_, name, entry)| Some((Name::decode(&name)?, decode_entry(&entry)?)));
        let changes = Changes {
            epoch,
            has_lost,
            version: use_version.parse().ok()?,
            restored: restored.parse().ok()?,
            until,
            keys: keys.collect(),
        };
        let (resets_version, all_resets) = (parts.10, parts.11);
        let all = (resets_version != version).then(|| {
            let all = all_resets.iter();
            all.filter_map(|(name, entry)| parse(name, entry)).collect()
        });
        let secret = [word(secret.get(..16))?, word(secret.get(16..))?];
        Some(Self {
            secret,
            news,
            changes,
            resets: ResetNews {
                version: resets_version,
                all,
            },
            is_new,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use decide::{KeyUse, LastResets};
    use testbed::redis::{Redis, obstacle};

    use super::super::reset_log::ResetLog;
    use super::super::use_log::{LEAST_LIFE, PAGE, UseLog};
    use super::*;

    const SYNC: Duration = Duration::from_millis(100);

    /// New with each request of all hosts.
    static EPOCHS: AtomicU64 = AtomicU64::new(0);

    fn used(_: u64, key: u64) -> Option<(u64, KeyUse)> {
        let used = KeyUse {
            key,
            order: [1, key],
            life: 100 * LEAST_LIFE,
            words: vec![key],
        };
        Some((9, used))
    }

    fn store() -> Option<Redis> {
        if let Some(reason) = obstacle() {
            eprintln!("skipped: {reason}");
            return None;
        }
        Some(Redis::start(&[]))
    }

    /// One host with the script on a redis-server.
    struct Host {
        connection: redis::Connection,
        uses: UseLog,
        resets: ResetLog,
        last: Arc<LastResets>,
        secret: [u64; 2],
        sequence: u64,
    }

    impl Host {
        fn new(redis: &Redis) -> Self {
            let client = redis::Client::open(redis.url()).unwrap();
            Self {
                connection: client.get_connection().unwrap(),
                uses: UseLog::default(),
                resets: ResetLog::default(),
                last: Arc::default(),
                secret: [1, 2],
                sequence: 0,
            }
        }

        /// Exchanges once, at `at` syncs; returns the keys of the reply.
        fn exchange(&mut self, at: u64) -> Vec<u64> {
            self.sequence += 1;
            let sync = SYNC.as_nanos() as u64;
            let writes = self
                .uses
                .writes((at * sync, sync), false, |_, _| true, used);
            let resets = self.resets.writes(&self.last);
            let request = Request {
                host: "a",
                sync: SYNC,
                read: 0,
                secret: (self.secret, false),
                sequences: (self.sequence, self.sequence - 1),
                publication: &[],
                leaves: false,
                epoch: EPOCHS.fetch_add(1, Ordering::Relaxed).to_string(),
                writes: &writes,
                resets: (self.resets.version(), &resets),
            };
            let mut command = redis::cmd("EVAL");
            command.arg(SCRIPT).arg(6).arg(&keys("weir"));
            let reply = command
                .arg(request.arguments())
                .query(&mut self.connection)
                .unwrap();
            let Reply {
                changes, resets, ..
            } = Reply::parse(reply, self.resets.version()).unwrap();
            let mut last = LastResets::clone(&self.last);
            last.extend(self.resets.replied(resets));
            self.last = Arc::new(last);
            let keys: Vec<u64> = changes.keys.iter().map(|(name, _)| name.key).collect();
            if self.uses.replied(&changes) {
                self.uses.lost(1, (0..KEYS).collect());
            }
            keys
        }

        fn reset(&mut self, key: u64, era: u64, at: u64) {
            let mut last = LastResets::clone(&self.last);
            let key = ResetKey { limit: 1, key };
            last.insert(key, LastReset { era, at });
            self.last = Arc::new(last);
        }
    }

    /// (key, era, time) of each reset that a new host reads.
    fn stored(redis: &Redis) -> Vec<(u64, u64, u64)> {
        let mut new = Host::new(redis);
        new.exchange(0);
        let last = new.last.iter();
        let last = last.map(|(key, reset)| (key.key, reset.era, reset.at));
        let mut last: Vec<_> = last.collect();
        last.sort_unstable();
        last
    }

    #[test]
    fn the_store_has_the_last_reset_of_each_key() {
        let Some(redis) = store() else {
            return;
        };
        let (mut one, mut other) = (Host::new(&redis), Host::new(&redis));
        one.reset(7, 0, 10);
        other.reset(7, 0, 9);
        other.reset(8, 0, 1);
        for host in [&mut one, &mut other] {
            host.exchange(0);
        }
        let both = vec![(7, 0, 10), (8, 0, 1)];
        assert_eq!(stored(&redis), both);
        one.exchange(0);
        assert_eq!(one.last, other.last);
        // Nothing is written while nothing changes.
        let [.., resets] = keys("weir");
        let version = || redis.cli(&["hget", &resets, "#version"]);
        let before = version();
        one.exchange(0);
        other.exchange(0);
        assert_eq!(version(), before);
        // The store loses them, and the hosts that know them write them again.
        redis.cli(&["del", &resets]);
        (0..2).for_each(|_| drop(one.exchange(0)));
        assert_eq!(stored(&redis), both);
        assert_ne!(version(), before, "the other host reads it");
        // A whole limit ends the era of its keys, also of those that follow late.
        one.reset(0, 0, 2);
        one.reset(9, 2, 1);
        one.exchange(0);
        let after = vec![(0, 0, 2), (9, 2, 1)];
        assert_eq!(stored(&redis), after);
        other.reset(8, 0, 5);
        other.exchange(0);
        assert_eq!(stored(&redis), after);
        let life: i64 = redis.cli(&["pttl", &resets]).parse().unwrap();
        assert!(life > 80 * 86_400_000, "{life}");
    }

    /// As one that was of another cluster, or away while the store lost everything: their keys mean nothing here.
    #[test]
    fn resets_of_a_host_with_another_secret_are_not_stored() {
        let Some(redis) = store() else {
            return;
        };
        let (mut one, mut other) = (Host::new(&redis), Host::new(&redis));
        one.reset(7, 0, 10);
        one.exchange(0);
        other.secret = [3, 4];
        other.reset(0, 0, 99);
        other.reset(8, 99, 99);
        other.exchange(0);
        assert_eq!(stored(&redis), [(7, 0, 10)]);
        // The fleet has another secret, and those of before are none of its keys.
        redis.cli(&["hset", "weir:{weir}:keys", "#secret", &"5".repeat(32)]);
        assert_eq!(stored(&redis), []);
    }

    /// More than two pages.
    const KEYS: u64 = 2 * PAGE as u64 + 100;

    /// A store without memory, or another program, may remove one of the keys of the use and no other.
    #[test]
    fn a_lost_part_of_the_use_is_read_and_written_again() {
        let Some(redis) = store() else {
            return;
        };
        let mut host = Host::new(&redis);
        // The first reply may be of a store that lacks the keys of the run before.
        (0..20).for_each(|_| drop(host.exchange(100)));
        let [_, _, used, versions, ends, _] = keys("weir");
        assert_eq!(redis.cli(&["zcard", &versions]), KEYS.to_string());
        // Without the hash, the versions are left to read.
        for (lost, most) in [(&used, 3), (&versions, 1), (&ends, 1)] {
            redis.cli(&["del", lost]);
            host.exchange(100);
            assert!(host.uses.is_behind(), "{lost}: the epoch is another one");
            let pages = (1..20).find(|_| {
                host.exchange(100);
                !host.uses.is_behind()
            });
            assert_eq!(pages, Some(most), "{lost}: requests until all is read");
            (0..20).for_each(|_| drop(host.exchange(100)));
            let mut other = Host::new(&redis);
            let mut read: Vec<u64> = (0..4).flat_map(|_| other.exchange(0)).collect();
            read.sort_unstable();
            assert!(
                read.into_iter().eq(0..KEYS),
                "{lost}: a new host reads all use"
            );
        }
        // Use that has ended is not lost. The other host had the name of this one, whose last request seems to be lost.
        (0..20).for_each(|_| drop(host.exchange(100)));
        assert!(!host.uses.is_behind());
        let end = "for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do \
            if name:sub(1, 2) ~= 'h:' then redis.call('ZADD', KEYS[1], 1, name) end end";
        redis.cli(&["eval", end, "1", &ends]);
        for _ in 0..10 {
            host.exchange(100);
            assert!(!host.uses.is_behind(), "the epoch is the same");
        }
        assert_eq!(redis.cli(&["zcard", &versions]), "0");
    }
}
