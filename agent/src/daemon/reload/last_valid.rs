//! The last valid config, for a service that is started with an invalid one.
//!
//! A service manager stops the agent before it starts the next one, so an error in the file would leave the host
//! without an agent. The next agent puts this copy in effect instead, and reports that in its status, `weir status`
//! and its log.

use std::env;
use std::path::{Path, PathBuf};

use super::source::Source;
use crate::daemon::state::{StateDirectory, StateError};

const NAME: &str = "last-valid.toml";

/// The copy, in the service's state directory.
#[derive(Debug)]
pub struct LastValid(StateDirectory);

impl LastValid {
    /// `None` without a service manager: then a person reads the error and corrects the file.
    #[must_use]
    pub fn of_service() -> Option<Self> {
        let folders = env::var_os("STATE_DIRECTORY")?;
        let folder = env::split_paths(&folders)
            .next()
            .filter(|folder| folder.is_absolute())?;
        Some(Self::at(&folder))
    }

    fn at(folder: &Path) -> Self {
        Self(StateDirectory::at(folder))
    }

    /// The copy's path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.file(NAME)
    }

    /// Saves the text of a config in effect.
    ///
    /// # Errors
    ///
    /// When the state directory cannot be written.
    pub fn keep(&self, text: &str) -> Result<(), StateError> {
        if config::read_text(&self.path()).is_ok_and(|kept| kept == text) {
            return Ok(());
        }
        self.0.replace(NAME, &[text.as_bytes()])
    }

    /// Reads the copy; `None` if there is none that is valid for this version.
    #[must_use]
    pub fn read(&self, file: &Path) -> Option<Source> {
        let text = config::read_text(&self.path()).ok()?;
        // Paths in it are relative to the config file.
        let loaded = config::parse(file, &text).or_else(|_| config::parse(file, &in_utc(&text)));
        let loaded = loaded.ok()?;
        Some(Source::new(loaded.config, Some(text)))
    }
}

/// The text with days and months in UTC: the host may have lost a time zone since, and every limit with it.
fn in_utc(text: &str) -> String {
    let line = |line: &str| {
        let key = line.split_once('=').map(|(key, _)| key.trim());
        if key == Some("time_zone") {
            "time_zone = \"UTC\"\n".to_owned()
        } else {
            format!("{line}\n")
        }
    };
    text.lines().map(line).collect()
}

/// Saves the text for a service that is started with an invalid config. Returns a note if that fails.
#[must_use]
pub fn keep_as_last_valid(source: &Source) -> Option<String> {
    let kept = LastValid::of_service()?.keep(source.text.as_deref()?);
    kept.err().map(|error| {
        format!("saving the config in effect failed: {error}; a start with an invalid config cannot use it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str =
        "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nrate = \"10/s\"\n";

    #[test]
    fn the_copy_is_read_as_it_was_kept_and_only_while_it_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let copy = LastValid::at(folder.path());
        let file = Path::new("/etc/weir/limits.toml");
        assert!(copy.read(file).is_none());
        copy.keep(VALID).unwrap();
        copy.keep(VALID).unwrap();
        assert_eq!(copy.read(file).unwrap().text.as_deref(), Some(VALID));
        let of_a_lost_zone = format!(
            "{VALID}[[limit]]\nname = \"b\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"10/calendar-day\"\n\
             time_zone = \"Lost/Zone\"\n"
        );
        copy.keep(&of_a_lost_zone).unwrap();
        let read = copy.read(file).unwrap();
        assert_eq!(
            (read.config.limits.len(), read.config.decide.limits.len()),
            (1, 1)
        );
        assert_eq!(read.text, Some(of_a_lost_zone));
        copy.keep("[agent]\nfrom_a_newer_version = 1\n").unwrap();
        assert!(copy.read(file).is_none());
    }
}
