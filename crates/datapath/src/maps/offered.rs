//! The ring of packets that fair rules sample.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use common::fair::Offered;

use super::size::OFFERED_BYTES;
use crate::error::LoadError;

/// The most records that wait for one rule's reader. More are lost.
const MOST_WAITING: usize = 1 << 14;
/// The most records of one call, as many as the ring holds with their headers: a flood fills it while it is read.
const MOST_AT_ONCE: usize = OFFERED_BYTES as usize / (Offered::LENGTH + 8);

/// A policy's ring, which the readers of several limits share.
pub(crate) struct OfferedRing(Mutex<Inner>);

struct Inner {
    ring: RingBuf<MapData>,
    /// Records for other readers, by their rule's row of counters.
    waiting: BTreeMap<u32, Vec<Offered>>,
}

impl OfferedRing {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let ring = RingBuf::try_from(ebpf.take_map("OFFERED").ok_or(LoadError::ForeignObject)?)?;
        Ok(Self(Mutex::new(Inner {
            ring,
            waiting: BTreeMap::new(),
        })))
    }

    /// Takes the records of the rules with these rows of counters.
    pub(crate) fn drain(&self, counters: &[u32], mut each: impl FnMut(Offered)) {
        // After a panic elsewhere, some records are missing.
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Inner { ring, waiting } = &mut *inner;
        for counter in counters {
            let records = waiting.remove(counter).into_iter().flatten();
            records.for_each(&mut each);
        }
        for _ in 0..MOST_AT_ONCE {
            let Some(bytes) = ring.next() else {
                break;
            };
            let Some(record) = Offered::from_bytes(&bytes) else {
                continue;
            };
            if counters.contains(&record.counter) {
                each(record);
                continue;
            }
            let records = waiting.entry(record.counter).or_default();
            if records.len() < MOST_WAITING {
                records.push(record);
            }
        }
    }
}
