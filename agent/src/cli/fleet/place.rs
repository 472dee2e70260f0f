//! The stream that a command is about, and why it cannot be used.

use std::path::PathBuf;

use config::ConfigError;
use config::policy::RulesAddress;

use crate::cli::arguments::{ConfigFile, FleetPlace, Options};
use crate::rules_store::Stream;

/// A verb did not do its work.
pub(super) enum FleetError {
    /// By its arguments; nothing was changed.
    Usage(String),
    /// By the config or the rules: errors with their positions; nothing was changed.
    Invalid(String),
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for FleetError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

pub(super) fn wrong(error: impl std::fmt::Display) -> FleetError {
    FleetError::Usage(error.to_string())
}

pub(super) fn invalid(error: impl std::fmt::Display) -> FleetError {
    FleetError::Invalid(error.to_string())
}

/// The stream that `--to` names, or the config.
pub(super) fn stream(
    place: &FleetPlace,
    options: &Options,
) -> Result<(RulesAddress, Stream), FleetError> {
    let address = match &place.place {
        Some(address) => RulesAddress::parse(address)
            .map_err(|wrong| FleetError::Usage(format!("{}: {}", wrong.message, wrong.help)))?,
        None => {
            let file: Option<PathBuf> =
                options.config_file(&ConfigFile::default()).map_err(wrong)?;
            let file = file.ok_or_else(|| wrong("missing store: name it with --to ADDRESS, or a config that has it with --config FILE"))?;
            let loaded = config::load(&file).map_err(|error| match error {
                ConfigError::Read(_) => wrong(error),
                ConfigError::Invalid(report) => invalid(report),
            })?;
            let rules = loaded.config.fleet.and_then(|fleet| fleet.rules);
            rules.ok_or_else(|| {
                let file = file.display();
                wrong(format!(
                    "{file} has no [fleet] rules: name the store with --to ADDRESS"
                ))
            })?
        }
    };
    let stream = Stream::open(&address);
    Ok((address, stream))
}
