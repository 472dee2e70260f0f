//! The thread that reads the samples.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::stream::{StreamSettings, Streamed};
use datapath::{LoadError, StreamRings};
use heavy_prefixes::{Batch, Sample};
use host::backoff::Backoff;
use host::monotonic_nanoseconds;

use super::super::packets::Packets;
use super::rate;
use super::watch::{Watch, lock};

/// The interval at which the rings are read. A ring of 64 KiB has room for 1,638 samples, and a CPU has 200.
const PERIOD: Duration = Duration::from_millis(50);
/// The pause after rings could not be made, during which changes of the policy do not wait for the next try.
const RETRY: Backoff = Backoff::steady(Duration::from_secs(1));
/// How long samples are taken after the last query.
const LINGER: Duration = Duration::from_secs(5);
/// When the kernel programs stop if the agent does not go on.
const LEASE: Duration = Duration::from_secs(10);
/// The time before its end at which a lease is renewed: a write to a map.
const RENEWAL: Duration = Duration::from_secs(5);

/// The settings of a sample, from now on.
pub(super) fn settings(one_in: u32) -> StreamSettings {
    StreamSettings {
        until: monotonic_nanoseconds() + LEASE.as_nanos() as u64,
        one_in,
        unused: 0,
    }
}

/// The work of the thread.
pub(super) struct Running {
    packets: Packets,
    watch: Arc<Mutex<Watch>>,
    /// In effect.
    settings: StreamSettings,
    /// Those of the policy in effect.
    rings: Option<Arc<StreamRings>>,
    last: Instant,
    /// Whether the sample once had its size: those before are small, and each of their packets stands for many.
    is_settled: bool,
    /// Why the rings cannot be read; logged once.
    failure: Option<String>,
    /// When the rings of a new policy are tried next, after a failure.
    retry_at: Option<Instant>,
}

impl Running {
    pub(super) fn new(packets: Packets, watch: Arc<Mutex<Watch>>, rings: Arc<StreamRings>) -> Self {
        let settings = settings(rate::FIRST);
        Self {
            packets,
            watch,
            settings,
            rings: Some(rings),
            last: Instant::now(),
            is_settled: false,
            failure: None,
            retry_at: None,
        }
    }

    pub(super) fn run(mut self) {
        loop {
            thread::sleep(PERIOD);
            let (samples, lost) = self.read();
            let (found, length) = (samples.len() as u64 + lost, self.last.elapsed());
            self.last = Instant::now();
            let one_in = rate::next(self.settings.one_in, found);
            {
                let shared = Arc::clone(&self.watch);
                let mut watch = lock(&shared);
                if watch.requested_at.elapsed() >= LINGER {
                    // With the lock, so that a query starts either before or after.
                    watch.is_running = false;
                    watch.window.clear();
                    self.end();
                    return;
                }
                self.is_settled |= one_in == self.settings.one_in;
                if lost == 0 && self.is_settled {
                    batches(samples, self.settings.one_in, length)
                        .into_iter()
                        .for_each(|batch| watch.window.add(batch));
                } else if lost > 0 {
                    // The rest would be no random sample: rings of busy CPUs are full first.
                    watch.lost += lost;
                }
            }
            let is_old = self.settings.until < monotonic_nanoseconds() + RENEWAL.as_nanos() as u64;
            self.follow(if one_in != self.settings.one_in || is_old {
                settings(one_in)
            } else {
                self.settings
            });
        }
    }

    fn read(&mut self) -> (Vec<Streamed>, u64) {
        let read = self
            .rings
            .as_ref()
            .map_or_else(|| Ok(Default::default()), |rings| rings.drain());
        read.unwrap_or_else(|error| {
            self.fail(&error);
            Default::default()
        })
    }

    /// Puts settings in effect, in another policy if there is one.
    fn follow(&mut self, settings: StreamSettings) {
        if self.retry_at.is_some_and(|at| at > Instant::now()) {
            return;
        }
        self.retry_at = None;
        let rings = match self
            .packets
            .load_full()
            .map(|packets| packets.try_stream(settings))
        {
            Some(Some(Ok(rings))) => {
                self.settings = settings;
                Some(rings)
            }
            Some(Some(Err(error))) => {
                self.retry_at = Some(Instant::now() + RETRY.pause(1));
                self.fail(&error);
                return;
            }
            // The policy is being changed: its rings stay.
            Some(None) => return,
            None => None,
        };
        let is_same = match (&self.rings, &rings) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            // Its last samples are 50 ms of ten seconds.
            self.rings.iter().for_each(|old| old.close());
            self.rings = rings;
        }
    }

    fn end(&mut self) {
        if let Some(packets) = self.packets.load_full()
            && let Err(error) = packets.stream(StreamSettings::default())
        {
            tracing::warn!(
                "ending the sample in the kernel failed: {error}; it ends after {LEASE:?}"
            );
        }
        self.rings.take().iter().for_each(|rings| rings.close());
    }

    /// Logs it once.
    fn fail(&mut self, error: &LoadError) {
        let error = error.to_string();
        if self.failure.as_ref() != Some(&error) {
            tracing::warn!("{error}; it is tried again");
            self.failure = Some(error);
        }
    }
}

/// The samples of a period. Those from before the last change of the rate are a batch of their own, without time.
fn batches(samples: Vec<Streamed>, one_in: u32, length: Duration) -> Vec<Batch> {
    let mut by_rate = BTreeMap::from([(one_in, Vec::new())]);
    for sample in samples {
        by_rate.entry(sample.one_in).or_default().push(Sample {
            source: Ipv6Addr::from(sample.source().octets()),
            packets: sample.packets,
            bytes: sample.bytes,
            is_refused: sample.is_refused != 0,
        });
    }
    let length = |rate: u32| {
        if rate == one_in {
            length
        } else {
            Duration::ZERO
        }
    };
    by_rate
        .into_iter()
        .map(|(rate, samples)| Batch {
            samples,
            one_in: rate,
            length: length(rate),
        })
        .collect()
}
