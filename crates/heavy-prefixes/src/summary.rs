//! The heavy prefixes of a window.

use ipnet::IpNet;

use crate::hierarchy::Version;
use crate::sample::Batch;

/// Of a sample, a prefix needs as many packets of its own: fewer say little about its share.
const LEAST_SAMPLES: u64 = 16;
/// The probability with which [`Summary::error`] holds for all prefixes is 1 less this.
const DOUBT: f64 = 0.05;
/// 95 % of a normal distribution are within so many standard deviations.
const DEVIATIONS: f64 = 1.96;

/// A prefix with a large share of the packets.
#[derive(Clone, Debug, PartialEq)]
pub struct HeavyPrefix {
    pub prefix: IpNet,
    /// Its share of all packets, from 0 to 1.
    pub share: f64,
    /// The same without the heavy prefixes within it.
    pub own_share: f64,
    /// With a probability of 95 %, `share` differs by at most this from its share of all packets. 0 if all were sampled.
    pub margin: f64,
    /// An estimate of its packets.
    pub packets: u64,
    /// An estimate of their bytes.
    pub bytes: u64,
    /// An estimate of those that were refused.
    pub refused_packets: u64,
    /// The sources among its samples: it has at least as many.
    pub sources: u64,
}

/// The heavy prefixes of a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// The largest own share first.
    pub prefixes: Vec<HeavyPrefix>,
    /// The share of all other packets.
    pub elsewhere: f64,
    /// With a probability of 95 %, no share of any prefix differs by more than this from its share of all packets. 0 if all
    /// were sampled.
    pub error: f64,
    pub samples: u64,
    /// An estimate of all packets.
    pub packets: u64,
    /// An estimate of their bytes.
    pub bytes: u64,
    /// An estimate of those that were refused.
    pub refused_packets: u64,
    /// The sources among the samples.
    pub sources: u64,
}

/// The packets of a prefix.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    samples: u64,
    packets: u64,
    bytes: u64,
    refused_packets: u64,
    sources: u64,
}

impl Counts {
    fn plus(self, other: Self) -> Self {
        Self {
            samples: self.samples + other.samples,
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            refused_packets: self.refused_packets + other.refused_packets,
            sources: self.sources + other.sources,
        }
    }
}

/// A prefix of one level.
#[derive(Clone, Copy, Debug)]
struct Node {
    address: u128,
    all: Counts,
    /// Without heavy prefixes within it.
    own: Counts,
}

impl Node {
    fn plus(self, other: Self) -> Self {
        Self {
            all: self.all.plus(other.all),
            own: self.own.plus(other.own),
            ..self
        }
    }
}

impl Summary {
    pub(crate) fn of<'b>(batches: impl Iterator<Item = &'b Batch> + Clone, share: f64) -> Self {
        let is_complete = batches.clone().all(|batch| batch.one_in <= 1);
        let leaves = Version::ALL.map(|version| sources(batches.clone(), version));
        let all = leaves
            .iter()
            .flatten()
            .fold(Counts::default(), |sum, leaf| sum.plus(leaf.all));
        let number = effective_samples(batches);
        // Dvoretzky, Kiefer and Wolfowitz, with the constant of Massart (1990): the bound is on the distribution function of
        // addresses, and a prefix is the difference of two of its values.
        let error = if is_complete || number == 0.0 {
            0.0
        } else {
            2.0 * ((2.0 / DOUBT).ln() / (2.0 * number)).sqrt()
        };
        let packets = all.packets.max(1) as f64;
        let is_heavy = |own: Counts| {
            (is_complete || own.samples >= LEAST_SAMPLES)
                && own.packets > 0
                && own.packets as f64 >= share * packets
        };
        let mut prefixes = Vec::new();
        let mut rest = 0;
        for (version, mut nodes) in Version::ALL.into_iter().zip(leaves) {
            for &length in version.levels() {
                nodes
                    .iter_mut()
                    .for_each(|node| node.address = version.mask(node.address, length));
                merge(&mut nodes);
                for node in nodes.iter_mut().filter(|node| is_heavy(node.own)) {
                    let all_share = node.all.packets as f64 / packets;
                    let deviation = (all_share * (1.0 - all_share) / number.max(1.0))
                        .max(0.0)
                        .sqrt();
                    prefixes.push(HeavyPrefix {
                        prefix: version.prefix(node.address, length),
                        share: all_share,
                        own_share: node.own.packets as f64 / packets,
                        margin: if is_complete {
                            0.0
                        } else {
                            DEVIATIONS * deviation
                        },
                        packets: node.all.packets,
                        bytes: node.all.bytes,
                        refused_packets: node.all.refused_packets,
                        sources: node.all.sources,
                    });
                    node.own = Counts::default();
                }
            }
            rest += nodes.iter().map(|node| node.own.packets).sum::<u64>();
        }
        prefixes.sort_by(|a, b| {
            b.own_share
                .total_cmp(&a.own_share)
                .then_with(|| a.prefix.cmp(&b.prefix))
        });
        Self {
            prefixes,
            elsewhere: rest as f64 / packets,
            error: error.min(1.0),
            samples: all.samples,
            packets: all.packets,
            bytes: all.bytes,
            refused_packets: all.refused_packets,
            sources: all.sources,
        }
    }
}

/// The sources of a version, ordered by their addresses.
fn sources<'b>(batches: impl Iterator<Item = &'b Batch>, version: Version) -> Vec<Node> {
    let length = version.levels()[0];
    let mut nodes: Vec<Node> = batches
        .flat_map(|batch| {
            batch
                .samples
                .iter()
                .map(move |sample| (sample, u64::from(batch.one_in.max(1))))
        })
        .filter(|(sample, _)| Version::of(sample.source) == version)
        .map(|(sample, one_in)| {
            let packets = u64::from(sample.packets) * one_in;
            let counts = Counts {
                samples: 1,
                packets,
                bytes: u64::from(sample.bytes) * one_in,
                refused_packets: if sample.is_refused { packets } else { 0 },
                sources: 1,
            };
            Node {
                address: version.mask(sample.source.into(), length),
                all: counts,
                own: counts,
            }
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.address);
    merge(&mut nodes);
    nodes
        .iter_mut()
        .for_each(|node| (node.all.sources, node.own.sources) = (1, 1));
    nodes
}

/// Adds up neighbours with the same address.
fn merge(nodes: &mut Vec<Node>) {
    nodes.dedup_by(|later, first| {
        let is_same = later.address == first.address;
        if is_same {
            *first = first.plus(*later);
        }
        is_same
    });
}

/// The number of samples of one packet each, at one rate, that would be as exact (Kish, 1965).
fn effective_samples<'b>(batches: impl Iterator<Item = &'b Batch>) -> f64 {
    let weights = batches.flat_map(|batch| {
        batch
            .samples
            .iter()
            .map(move |sample| f64::from(sample.packets) * f64::from(batch.one_in.max(1)))
    });
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), weight| {
        (sum + weight, squares + weight * weight)
    });
    if squares > 0.0 {
        sum * sum / squares
    } else {
        0.0
    }
}
