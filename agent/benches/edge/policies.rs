//! The policies that are measured, as a limits.toml.

use std::fmt::Write as _;

/// One packet each so long, so many at once at most: the same for Weir and the alternatives.
#[derive(Clone, Copy)]
pub struct Bucket {
    /// As in a config.
    pub rate: &'static str,
    pub burst: u64,
    pub emission_ns: u64,
}

impl Bucket {
    /// For the minimal limiter.
    pub const fn tolerance_ns(self) -> u64 {
        self.emission_ns * (self.burst - 1)
    }
}

/// Passes every packet of one source, whose state never decays while it is measured.
pub const HOT: Bucket = Bucket {
    rate: "1000000/s",
    burst: 1_000_000_000,
    emission_ns: 1_000,
};
/// The same for each of a thousand sources or more.
pub const WARM: Bucket = Bucket {
    rate: "1000/s",
    burst: 1_000_000,
    emission_ns: 1_000_000,
};
/// The same for each of a hundred thousand or more.
pub const SLOW: Bucket = Bucket {
    rate: "10/s",
    burst: 1_000_000,
    emission_ns: 100_000_000,
};
/// The same for each of a million, each of which has a packet now and then.
pub const SLOWEST: Bucket = Bucket {
    rate: "1/min",
    burst: 10_000,
    emission_ns: 60_000_000_000,
};
/// The operator's config.
pub const USUAL: Bucket = Bucket {
    rate: "1000/s",
    burst: 1_000,
    emission_ns: 1_000_000,
};
/// Refuses all but the first packet.
pub const REFUSING: Bucket = Bucket {
    rate: "1/h",
    burst: 1,
    emission_ns: 3_600_000_000_000,
};

/// A policy of these tables, for a million sources.
pub fn policy(tables: &str) -> String {
    policy_for(1_000_000, tables)
}

/// For what `protect` detects by default: a gateway, and two addresses of the host. A look-up costs the same, whatever the exemption.
const EXEMPT: &str = "never_limit = [\"192.168.7.1\", \"192.168.7.2\", \"fe80::1\"]\n";

/// A policy of these tables, for so many sources, with the addresses that an agent exempts by default.
pub fn policy_for(max_sources: u32, tables: &str) -> String {
    format!("{}{tables}", agent(max_sources, EXEMPT))
}

/// The same without exempt addresses.
pub fn policy_without_exempt(tables: &str) -> String {
    format!("{}{tables}", agent(1_000_000, ""))
}

fn agent(max_sources: u32, more: &str) -> String {
    format!("[agent]\ninterfaces = [\"lo\"]\nmax_sources = {max_sources}\n{more}")
}

/// One limit, with whatever else it says.
pub fn limit(name: &str, bucket: Bucket, more: &str) -> String {
    format!(
        "[[limit]]\nname = \"{name}\"\nrate = \"{}\"\nburst = {}\n{more}\n",
        bucket.rate, bucket.burst
    )
}

/// So many limits on every packet.
pub fn limits(count: usize, bucket: Bucket) -> String {
    (0..count)
        .map(|nth| limit(&format!("limit-{nth}"), bucket, ""))
        .collect()
}

/// One limit on every packet, of another algorithm than the token bucket.
pub fn algorithm(name: &str, rate: &str) -> String {
    format!("[[limit]]\nname = \"a\"\nrate = \"{rate}\"\nalgorithm = \"{name}\"\n")
}

/// One limit of so many rates at once.
pub fn tiers(rates: usize, bucket: Bucket) -> String {
    let tiers: Vec<String> = (1..rates)
        .map(|nth| format!("\"{}0000000000/day\"", 90 + nth))
        .collect();
    limit("a", bucket, &format!("tiers = [{}]", tiers.join(", ")))
}

/// One limit with so many levels.
pub fn levels(count: usize, bucket: Bucket) -> String {
    const LEVELS: [&str; 3] = [
        "{ prefix = \"24/48\", factor = 1.5 }",
        "{ prefix = \"16/32\", factor = 1.8 }",
        "{ key = \"all\", factor = 2 }",
    ];
    limit(
        "a",
        bucket,
        &format!("levels = [{}]", LEVELS[..count].join(", ")),
    )
}

/// So many limits on other ports than the packet's.
pub fn limits_elsewhere(count: u32) -> String {
    (0..count).fold(String::new(), |mut text, nth| {
        let _ = write!(
            text,
            "[[limit]]\nname = \"port-{nth}\"\nrate = \"{}/s\"\nports = [{}]\n",
            nth + 1,
            nth + 1_000
        );
        text
    })
}

/// So many prefixes in two classes.
pub fn prefixes(count: u32) -> String {
    let mut text = String::new();
    for (class, multiplier) in [("first", 2), ("second", 5)] {
        let _ = write!(
            text,
            "[[class]]\nname = \"{class}\"\nmultiplier = {multiplier}\nsources = ["
        );
        for nth in (0..count).filter(|nth| (nth % 2 == 0) == (class == "first")) {
            // Three of four /24s of 10.0.0.0/7, where the packets come from too.
            let [a, b, c, _] =
                (0x0a00_0000 | (nth.wrapping_mul(0x9e37_79b1) % (1 << 17)) << 8).to_be_bytes();
            let _ = write!(text, "\"{a}.{b}.{c}.0/24\", ");
        }
        text.push_str("]\n");
    }
    text
}
