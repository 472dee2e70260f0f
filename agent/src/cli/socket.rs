//! The running agent's control socket.

use std::env;
use std::path::{Path, PathBuf};

use config::DEFAULT_SOCKET;

/// The config of the packaged service, and the default.
pub const DEFAULT_CONFIG: &str = "/etc/weir/limits.toml";

/// The socket `control`, or by WEIR_CONTROL, the config's `[agent] control` or the default path. The config is `config`, or by
/// WEIR_CONFIG or the default path.
///
/// A config in WEIR_CONFIG or at the default path that this user cannot read, or any that is invalid, does not prevent a
/// command from reaching the agent.
pub fn control_socket(control: Option<PathBuf>, config: Option<PathBuf>) -> PathBuf {
    let of_config = || {
        let config = config.or_else(|| variable("WEIR_CONFIG"));
        config
            .or_else(default_config)
            .and_then(|file| control_in(&file))
    };
    control
        .or_else(|| variable("WEIR_CONTROL"))
        .or_else(of_config)
        .unwrap_or_else(|| DEFAULT_SOCKET.into())
}

/// A path in an environment variable.
pub fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name)
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// The default config, where it exists.
pub fn default_config() -> Option<PathBuf> {
    Some(PathBuf::from(DEFAULT_CONFIG)).filter(|path| path.exists())
}

fn control_in(file: &Path) -> Option<PathBuf> {
    Some(config::paths(&config::read_text(file).ok()?).control)
}
