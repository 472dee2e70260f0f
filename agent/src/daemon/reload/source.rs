//! A config file with its text.

use std::path::Path;
use std::sync::Arc;

use config::ConfigError;
use config::policy::Config;

/// A config with its text. Copies share the config.
#[derive(Clone, Debug)]
pub struct Source {
    pub config: Arc<Config>,
    /// Its text; `None` for the built-in limits.
    pub text: Option<String>,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        Self::parse(path, config::read_text(path)?)
    }

    /// Validates the text of a file.
    ///
    /// # Errors
    ///
    /// When it is invalid.
    pub fn parse(path: &Path, text: String) -> Result<(Self, Vec<String>), ConfigError> {
        let loaded = config::parse(path, &text).map_err(ConfigError::Invalid)?;
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        Ok((
            Self {
                config: Arc::new(loaded.config),
                text: Some(text),
            },
            warnings,
        ))
    }
}
