//! A config file with its text.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{self, Path};
use std::sync::Arc;

use api::status::LeftOut;
use config::ConfigError;
use config::policy::{Config, Limit};

/// A config with its text. Copies share the config.
#[derive(Clone, Debug)]
pub struct Source {
    /// Without the limits that are left out.
    pub config: Arc<Config>,
    /// Its text; `None` for the built-in limits.
    pub text: Option<String>,
    /// The limits of the text that a start left out, since the kernel cannot enforce them.
    pub left_out: Vec<LeftOut>,
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
                left_out: Vec::new(),
            },
            warnings,
        ))
    }

    /// The same without the limits that count open connections; `None` if there are none.
    #[must_use]
    pub fn without_connections(&self, reason: &str) -> Option<Self> {
        let counts = |limit: &&Limit| limit.concurrent.is_some();
        let left_out = self
            .config
            .limits
            .iter()
            .filter(counts)
            .map(|limit| LeftOut {
                limit: limit.name.clone(),
                reason: reason.to_owned(),
            });
        let left_out: Vec<LeftOut> = left_out.collect();
        if left_out.is_empty() {
            return None;
        }
        let mut config = Config::clone(&self.config);
        config.limits.retain(|limit| limit.concurrent.is_none());
        Some(Self {
            config: Arc::new(config),
            text: self.text.clone(),
            left_out: [self.left_out.clone(), left_out].concat(),
        })
    }
}

/// Whether two paths name one file, over symbolic and hard links. A missing file is only equal by its path.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        _ => path::absolute(one).ok() == path::absolute(other).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_the_same_file_and_copies_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = at("limits.toml");
        fs::write(&own, "").unwrap();
        fs::hard_link(&own, at("hard.toml")).unwrap();
        std::os::unix::fs::symlink("limits.toml", at("symbolic.toml")).unwrap();
        fs::copy(&own, at("copy.toml")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for same in [
            "limits.toml",
            "hard.toml",
            "symbolic.toml",
            "folder/../limits.toml",
        ] {
            assert!(is_same_file(&own, &at(same)), "{same}");
            assert!(is_same_file(&at(same), &own), "{same}");
        }
        for other in ["copy.toml", "missing.toml", "folder"] {
            assert!(!is_same_file(&own, &at(other)), "{other}");
        }
        fs::remove_file(&own).unwrap();
        assert!(is_same_file(&own, &own));
        assert!(!is_same_file(&own, &at("hard.toml")));
        assert!(is_same_file(
            Path::new("missing.toml"),
            &path::absolute("missing.toml").unwrap()
        ));
    }
}
