//! Replies to queries, and starts the thread.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use api::heavy_prefixes::{HeavyPrefix, HeavyPrefixes, SHARES, WRONG_SHARE};
use common::stream::StreamSettings;
use heavy_prefixes::{Summary, Window};

use super::super::packets::Packets;
use super::rate;
use super::running::{Running, settings};
use super::watch::{Watch, lock};

/// The time of the samples: as long as the eye follows a rate.
const SPAN: Duration = Duration::from_secs(10);
/// The most samples, of 32 bytes each.
const MOST: usize = 100_000;

/// The heavy prefixes, for those who ask.
pub struct PrefixWatcher {
    packets: Packets,
    watch: Arc<Mutex<Watch>>,
}

impl PrefixWatcher {
    /// For the programs of `packets`.
    #[must_use]
    pub fn new(packets: Packets) -> Self {
        let window = Window::new(SPAN, MOST);
        let watch = Watch {
            window,
            requested_at: Instant::now(),
            is_running: false,
            lost: 0,
        };
        Self {
            packets,
            watch: Arc::new(Mutex::new(watch)),
        }
    }

    /// The prefixes with at least a share of the packets of their own. Sampling starts with the first query, whose reply has
    /// none.
    ///
    /// # Errors
    ///
    /// The error for the client: the share is invalid, there is no limit on packets, or the kernel refuses the sample.
    pub fn summary(&self, share: f64) -> Result<HeavyPrefixes, String> {
        if !SHARES.contains(&share) {
            return Err(WRONG_SHARE.to_owned());
        }
        let mut watch = lock(&self.watch);
        watch.requested_at = Instant::now();
        if !watch.is_running {
            self.start(&mut watch)?;
        }
        Ok(document(&watch, share))
    }

    fn start(&self, watch: &mut Watch) -> Result<(), String> {
        let packets = self.packets.load_full();
        let packets = packets
            .ok_or("this command requires a limit on packets, and the config in effect has none")?;
        watch.window.clear();
        watch.lost = 0;
        let rings = packets
            .stream(settings(rate::FIRST))
            .map_err(|error| error.to_string())?;
        // Those of an earlier watch.
        let _ = rings.drain();
        let running = Running::new(
            Arc::clone(&self.packets),
            Arc::clone(&self.watch),
            Arc::clone(&rings),
        );
        let thread = thread::Builder::new()
            .name("weir-prefixes".to_owned())
            .spawn(move || running.run());
        if let Err(error) = thread {
            // If this fails, too, the kernel programs end by themselves.
            let _ = packets.stream(StreamSettings::default());
            rings.close();
            return Err(format!(
                "nothing is sampled: starting a thread failed: {error}"
            ));
        }
        watch.is_running = true;
        Ok(())
    }
}

fn document(watch: &Watch, share: f64) -> HeavyPrefixes {
    let Summary {
        prefixes,
        elsewhere,
        error,
        samples,
        packets,
        bytes,
        refused_packets,
        sources,
    } = watch.window.summary(share);
    let seconds = watch.window.length().as_secs_f64();
    let rate = |count: u64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    let prefixes = prefixes
        .into_iter()
        .map(|found| HeavyPrefix {
            prefix: found.prefix.to_string(),
            share: found.share,
            own_share: found.own_share,
            margin: found.margin,
            packets_per_second: rate(found.packets),
            bytes_per_second: rate(found.bytes),
            throttled_per_second: rate(found.refused_packets),
            sources: found.sources,
        })
        .collect();
    HeavyPrefixes {
        seconds,
        one_in: watch.window.one_in(),
        samples,
        lost: watch.lost,
        least_share: share,
        error,
        packets_per_second: rate(packets),
        bytes_per_second: rate(bytes),
        throttled_per_second: rate(refused_packets),
        sources,
        elsewhere,
        prefixes,
    }
}
