//! The memory of a policy at rest.

use api::memory::Footprint;
use config::policy::{ClusterMode, Config};

use super::kernel;
use crate::compile::Plan;

const MIB: u64 = 1 << 20;

/// The agent with a small config: its heap with what the allocator keeps of a reload, stacks and page tables.
pub(super) const AGENT: u64 = 13 * MIB;
/// The agent's memory for each limit, and for each prefix: in the config it started with, and in the one in effect.
const PER_LIMIT: u64 = 8192;
const PER_PREFIX: u64 = 512;
/// The same for each prefix of a network: the database, and a search tree in both directions' policies.
const PER_NETWORK: u64 = 192;
/// The agent's memory for each key that a host of the cluster publishes (`exchange::series` in the crate `cluster`), and
/// the number of hosts for which it is predicted.
const PER_EXCHANGED_KEY: u64 = 2048;
const EXCHANGING_HOSTS: u64 = 4;
/// During loading: the object with its BTF.
const LOADING: u64 = 34 * MIB;
/// During loading: the kernel's verifier, for each rule that can apply to one packet.
const VERIFYING: u64 = 4 * MIB;
/// During reading and compiling, the config takes this multiple of its final memory in addition.
const COMPILING: u64 = 1;

/// Predicts the memory of a policy on this host.
#[must_use]
pub fn footprint(config: &Config, plan: &Plan) -> Footprint {
    let cpus = aya::util::nr_cpus().map_or(1, |cpus| cpus as u64);
    let of_classes = config.classes.iter().map(|class| class.sources.len());
    let of_limits = config
        .limits
        .iter()
        .flat_map(|limit| &limit.sources)
        .map(|sources| sources.all().count());
    let prefixes =
        (of_classes.chain(of_limits).sum::<usize>() + config.agent.never_banned().count()) as u64;
    let networks = config.geo.networks.len() as u64;
    let own =
        config.limits.len() as u64 * PER_LIMIT + prefixes * PER_PREFIX + networks * PER_NETWORK;
    let images = || std::iter::once(&plan.ingress).chain(&plan.egress);
    // Both directions are verified at the same time.
    let most_rules: u64 = images()
        .map(|image| u64::from(image.settings.most_rules))
        .sum();
    Footprint {
        table: kernel::table(&plan.ingress.settings),
        policy: images().map(|image| kernel::policy(image, cpus)).sum(),
        agent: AGENT + own + exchange(config),
        copy: kernel::copy(&plan.ingress.settings),
        loading: LOADING + VERIFYING * most_rules + COMPILING * own,
    }
}

/// The memory of busy keys that hosts exchange.
fn exchange(config: &Config) -> u64 {
    let of_packets = config.limits.iter().map(|limit| limit.cluster);
    let of_requests = config.decide.limits.iter().map(|limit| limit.cluster);
    let has_keys = of_packets
        .chain(of_requests)
        .any(|mode| mode == Some(ClusterMode::Keys));
    let cluster = config.cluster.as_ref().filter(|_| has_keys);
    cluster.map_or(0, |cluster| {
        EXCHANGING_HOSTS * cluster.max_hot_keys * PER_EXCHANGED_KEY
    })
}
