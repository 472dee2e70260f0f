//! The config and the control socket of a command line.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::socket::{control_socket, default_config, variable};
use crate::cli::arguments::{ConfigFile, Options};
use crate::server::control::Client;

pub use super::socket::DEFAULT_CONFIG;

/// No config, or two.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum OptionsError {
    /// One by position and another by `--config`.
    #[error("{positional} and --config {option} both name a config: name one of them")]
    TwoConfigs { positional: String, option: String },
    /// No config was named or found.
    #[error(
        "missing config: name one with --config FILE or in WEIR_CONFIG, or create {DEFAULT_CONFIG}"
    )]
    NoConfig,
    /// A config that `--config` names cannot be read.
    #[error("{0}")]
    Unreadable(String),
}

impl Options {
    /// The first existing one of the positional argument, `--config`, WEIR_CONFIG and the default path.
    pub fn config_file(&self, positional: &ConfigFile) -> Result<Option<PathBuf>, OptionsError> {
        let named = self.named_config(positional.file.as_deref())?;
        Ok(named.or_else(default_config))
    }

    /// The first existing one of the positional argument, `--config` and WEIR_CONFIG.
    pub fn named_config(&self, positional: Option<&Path>) -> Result<Option<PathBuf>, OptionsError> {
        let named = match (positional, self.config.as_deref()) {
            (Some(positional), Some(option)) if positional != option => {
                let (positional, option) = (
                    positional.display().to_string(),
                    option.display().to_string(),
                );
                return Err(OptionsError::TwoConfigs { positional, option });
            }
            (positional, option) => positional.or(option).map(Path::to_owned),
        };
        Ok(named.or_else(|| variable("WEIR_CONFIG")))
    }

    /// Checks that the file that `--config` names can be read, for verbs that only take the control socket from it.
    pub fn readable_config(&self) -> Result<(), OptionsError> {
        match &self.config {
            Some(file) => config::read_text(file)
                .map(drop)
                .map_err(|error| OptionsError::Unreadable(error.to_string())),
            None => Ok(()),
        }
    }

    /// The same for verbs that require a config.
    pub fn required_config(&self, positional: &ConfigFile) -> Result<PathBuf, OptionsError> {
        self.config_file(positional)?.ok_or(OptionsError::NoConfig)
    }

    /// The control socket by `--control`, WEIR_CONTROL, the config's `[agent] control` or the default path.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        control_socket(self.control.clone(), self.config.clone())
    }

    /// A client of the running agent.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(&self.control_socket())
    }
}

#[cfg(test)]
mod tests {
    use config::DEFAULT_SOCKET;

    use super::*;

    #[test]
    fn a_config_has_one_name() {
        let positional = |file: &str| ConfigFile {
            file: Some(file.into()),
        };
        let options = Options {
            config: Some("a.toml".into()),
            ..Options::default()
        };
        assert_eq!(
            options.config_file(&positional("a.toml")),
            Ok(Some("a.toml".into()))
        );
        assert_eq!(
            options.config_file(&ConfigFile::default()),
            Ok(Some("a.toml".into()))
        );
        assert_eq!(
            options
                .config_file(&positional("b.toml"))
                .map_err(|error| error.to_string()),
            Err("b.toml and --config a.toml both name a config: name one of them".to_owned())
        );
        assert_eq!(
            Options::default().config_file(&positional("b.toml")),
            Ok(Some("b.toml".into()))
        );
    }

    #[test]
    fn the_control_socket_is_the_one_that_the_config_names_even_if_the_config_is_invalid() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("limits.toml");
        std::fs::write(&file, "[agent]\ncontrol = \"/run/other.sock\"\nmode = 7\n").unwrap();
        let options = Options {
            config: Some(file.clone()),
            ..Options::default()
        };
        assert_eq!(options.control_socket(), Path::new("/run/other.sock"));
        let named = Options {
            control: Some("/run/named.sock".into()),
            ..options
        };
        assert_eq!(named.control_socket(), Path::new("/run/named.sock"));
        std::fs::write(&file, "[agent]\ncontrol = 7\n[[").unwrap();
        let options = Options {
            config: Some(file),
            ..Options::default()
        };
        assert_eq!(options.control_socket(), Path::new(DEFAULT_SOCKET));
    }
}
