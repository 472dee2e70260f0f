//! The limits with `cluster = "keys"`.

use config::policy::{ClusterMode, Config};

/// The names of a config's limits whose keys are exchanged.
pub fn limits(config: &Config) -> impl Iterator<Item = &str> {
    let packets = config
        .limits
        .iter()
        .map(|limit| (&limit.name, limit.cluster));
    let all = packets.chain(
        config
            .decide
            .limits
            .iter()
            .map(|limit| (&limit.name, limit.cluster)),
    );
    all.filter(|(_, mode)| *mode == Some(ClusterMode::Keys))
        .map(|(name, _)| name.as_str())
}

/// Whether a config has such limits.
pub(super) fn has_keys(config: &Config) -> bool {
    limits(config).next().is_some()
}
