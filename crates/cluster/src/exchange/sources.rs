//! The sources of a limit on packets in the exchange: what each passed since the last cut is read from the kernel, and
//! what the others passed is charged to its slot.
//!
//! The kernel decides by the state alone. So at each cut, units on behalf of the others are charged for all that passed
//! since the previous one. They are later replaced by the real ones, as for keys of requests.

use std::collections::HashMap;
use std::time::Duration;

use common::counters::gained;
use common::share::Share;
use decide::{Adjustment, Cut, PeerConsumption};

use crate::packets::{Elsewhere, Packets, PacketsError};

#[derive(Clone, Copy, Debug)]
struct Source {
    passed: u64,
    refused: u64,
    used: u64,
    peers: PeerConsumption,
    is_hot: bool,
    is_parted: bool,
}

/// The sources of one limit.
#[derive(Debug, Default)]
pub struct Sources {
    known: HashMap<u64, Source>,
    has_begun: bool,
}

impl Sources {
    /// Cuts off the use of busy sources since the last cut, for a limit with this burst and rate per second. Under a
    /// `share`, the kernel charges a packet as if the other hosts had passed theirs.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read.
    pub fn cut(
        &mut self,
        packets: &dyn Packets,
        (limit, burst, rate): (&str, u64, f64),
        sync: Duration,
        (threshold, share): (f64, Share),
    ) -> Result<Vec<Cut>, PacketsError> {
        let (mut cuts, mut charges, mut known) = (Vec::new(), Vec::new(), HashMap::new());
        for source in packets.busy_sources(limit)? {
            let before = self.known.remove(&source.number);
            // Packets from before the exchange are published as used.
            let start = if self.has_begun {
                (0, 0)
            } else {
                (source.passed, source.refused)
            };
            let (mut passed, mut refused) =
                before.map_or(start, |before| (before.passed, before.refused));
            let mut spent = gained(&mut passed, source.passed);
            let newly_refused = gained(&mut refused, source.refused);
            let mut next = Source {
                passed,
                refused,
                used: source.used,
                peers: before.map_or(PeerConsumption::new(1.0, 0), |before| before.peers),
                is_hot: before.is_some_and(|before| before.is_hot),
                is_parted: before.is_some_and(|before| before.is_parted),
            };
            let is_busy = newly_refused > 0
                || source.used as f64 >= threshold * burst as f64
                || spent as f64 > threshold * rate * sync.as_secs_f64();
            if !next.is_hot && is_busy && spent > 0 {
                spent = spent.max(share.units(source.used));
            }
            next.is_hot |= is_busy;
            if next.is_hot && (spent > 0 || newly_refused > 0) {
                // The kernel charges for others at each cut alone.
                let over = next.peers.others(spent, 1);
                if over > 0 {
                    let units = i64::try_from(over).unwrap_or(i64::MAX);
                    charges.push(Elsewhere {
                        source: source.number,
                        units,
                        ago: sync.as_nanos() as u64,
                    });
                }
                cuts.push(Cut {
                    key: source.number,
                    spent,
                    used: source.used,
                    over,
                    refused: newly_refused,
                    open: 0,
                });
            }
            known.insert(source.number, next);
        }
        // Of sources that the kernel has removed, only those that others publish are kept.
        self.known
            .retain(|_, source| source.is_hot && !source.is_parted);
        self.known.extend(known);
        self.has_begun = true;
        packets.charge_beyond(limit, &charges)?;
        Ok(cuts)
    }

    /// Charges sources with what the other hosts passed. `now` is the cluster's clock, in nanoseconds.
    ///
    /// # Errors
    ///
    /// When the kernel's table cannot be mapped.
    pub fn adjust(
        &mut self,
        packets: &dyn Packets,
        limit: &str,
        adjustments: &[Adjustment],
        now: u64,
    ) -> Result<(), PacketsError> {
        let mut charges = Vec::new();
        for adjustment in adjustments {
            let units = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
            let used = self
                .known
                .get(&adjustment.key)
                .map_or(0, |known| known.used);
            let missing = adjustment.at_least.saturating_sub(used);
            let charge = adjustment.charge.saturating_add(missing);
            let net = units(charge).saturating_sub(units(adjustment.give_back));
            if net != 0 {
                let ago = adjustment.charged_at.map_or(0, |at| now.saturating_sub(at));
                charges.push(Elsewhere {
                    source: adjustment.key,
                    units: net,
                    ago,
                });
            }
            if let Some(source) = self.known.get_mut(&adjustment.key) {
                (source.peers, source.is_hot) = (adjustment.peers, adjustment.is_hot);
                source.is_parted = adjustment.is_parted;
            }
        }
        packets.charge_beyond(limit, &charges)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use decide::EffectiveShare;

    use super::*;
    use crate::member::Usage;
    use crate::packets::BusySource;

    /// A kernel whose only source has these counts of passed packets, one after the other. At 0 it has none.
    struct Kernel(Mutex<Vec<u64>>);

    impl Packets for Kernel {
        fn is_running(&self) -> bool {
            true
        }

        fn demand(&self, _: &str) -> Option<Usage> {
            None
        }

        fn enforce(&self, _: &str, _: EffectiveShare) {}

        fn exchanged(&self) -> Vec<(String, u64, f64)> {
            vec![("packets".to_owned(), 80, 400.0)]
        }

        fn busy_sources(&self, _: &str) -> Result<Vec<BusySource>, PacketsError> {
            let passed = self
                .0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(0);
            let source = BusySource {
                number: 1,
                passed,
                refused: passed,
                used: 80,
            };
            Ok([source].into_iter().filter(|_| passed > 0).collect())
        }

        fn charge_beyond(&self, _: &str, _: &[Elsewhere]) -> Result<(), PacketsError> {
            Ok(())
        }
    }

    /// (spent, refused) of each cut.
    fn cuts(counts: &[u64]) -> Vec<(u64, u64)> {
        cuts_under(counts, Share::WHOLE)
    }

    fn cuts_under(counts: &[u64], share: Share) -> Vec<(u64, u64)> {
        let (kernel, mut sources) = (Kernel(Mutex::new(counts.to_vec())), Sources::default());
        let sync = Duration::from_millis(50);
        let mut cut = |_: &u64| {
            sources
                .cut(&kernel, ("packets", 80, 400.0), sync, (0.1, share))
                .unwrap()
        };
        let of = |cuts: Vec<Cut>| cuts.first().map_or((0, 0), |cut| (cut.spent, cut.refused));
        counts.iter().map(|count| of(cut(count))).collect()
    }

    #[test]
    fn a_count_that_was_read_while_it_grew_is_no_new_source() {
        // The step from 1,390 to 1,410 is completed after the sample was read, and before the rest was.
        let torn = cuts(&[1_370, 1_390, 1_410 - 64, 1_430]);
        assert_eq!(torn[1..], [(20, 20), (0, 0), (40, 40)]);
    }

    #[test]
    fn a_share_that_is_used_up_is_published_as_what_passed() {
        for (hosts, published) in [(1, 80), (4, 20), (8, 20)] {
            let cuts = cuts_under(&[0, 20, 40], Share::one_of(hosts));
            assert_eq!(cuts, [(0, 0), (published, 20), (20, 20)], "{hosts} hosts");
        }
    }

    #[test]
    fn a_source_that_the_kernel_had_removed_counts_on() {
        assert_eq!(
            cuts(&[1_370, 1_390, 100, 120])[1..],
            [(20, 20), (37, 37), (20, 20)]
        );
    }
}
