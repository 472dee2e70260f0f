//! The addresses of the SSH sessions from which commands came: their file in the state directory, since a service that is
//! started again has no session of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use host::{StateDirectory, StateError};

const NAME: &str = "operators";
/// The largest file that is read.
const LARGEST: u64 = 64 << 10;
/// An address is removed so many seconds after its last command.
const KEPT: u64 = 7 * 86_400;
/// The most addresses; of more, the earliest are removed.
const MOST: usize = 64;

/// Each address with the time of its last command, in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operators(BTreeMap<IpAddr, u64>);

impl Operators {
    /// Reads the file; with a note on a damaged one.
    pub fn read(directory: &StateDirectory) -> (Self, Option<String>) {
        let parse = |text: &[u8]| serde_json::from_slice(text).map_err(|error| error.to_string());
        match directory.read(NAME, LARGEST, parse) {
            Ok(saved) => (Self(saved.unwrap_or_default()), None),
            Err(damaged) => (
                Self::default(),
                Some(format!(
                    "{damaged}; addresses of SSH sessions are exempt again after a command from them"
                )),
            ),
        }
    }

    /// Adds the address of a command.
    pub fn add(&mut self, address: IpAddr, now: u64) {
        self.0.insert(address, now);
        // A time ahead is of a clock that was set back.
        self.0.values_mut().for_each(|at| *at = (*at).min(now));
        self.0.retain(|_, at| is_recent(*at, now));
        while self.0.len() > MOST {
            let earliest = self.0.iter().min_by_key(|(_, at)| **at);
            let Some(address) = earliest.map(|(address, _)| *address) else {
                return;
            };
            self.0.remove(&address);
        }
    }

    /// Replaces the file.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        let text = serde_json::to_vec(&self.0).unwrap_or_default();
        directory.replace(NAME, &[&text])
    }

    /// The addresses with a recent command.
    #[must_use]
    pub fn addresses(&self, now: u64) -> BTreeSet<IpAddr> {
        let recent = self.0.iter().filter(|(_, at)| is_recent(**at, now));
        recent.map(|(address, _)| *address).collect()
    }
}

/// Also at a boot with a clock that is not set yet.
const fn is_recent(at: u64, now: u64) -> bool {
    now.saturating_sub(at) < KEPT
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn addresses_outlive_the_agent_until_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let mut operators = Operators::default();
        operators.add(address(1), NOW);
        operators.add(address(2), NOW + 3_600);
        operators.write(&directory).unwrap();
        let read = |now| {
            let (operators, note) = Operators::read(&directory);
            assert_eq!(note, None);
            operators.addresses(now)
        };
        assert_eq!(read(NOW + 3_600), [address(1), address(2)].into());
        assert_eq!(read(NOW + KEPT), [address(2)].into());
        assert_eq!(read(NOW + KEPT + 3_600), BTreeSet::new());
        // A clock that is behind, until it is set.
        assert_eq!(read(0), [address(1), address(2)].into());
        let (mut operators, _) = Operators::read(&directory);
        operators.add(address(3), NOW);
        assert_eq!(operators.addresses(NOW + KEPT), BTreeSet::new());
    }

    #[test]
    fn the_last_addresses_are_kept_and_a_damaged_file_is_reported() {
        let mut operators = Operators::default();
        for last in 0..=u8::MAX {
            operators.add(address(last), NOW + u64::from(last));
        }
        let kept = operators.addresses(NOW + 300);
        assert_eq!(kept.len(), MOST);
        assert!(kept.contains(&address(u8::MAX)) && !kept.contains(&address(0)));
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(NAME), "{").unwrap();
        let (operators, note) = Operators::read(&StateDirectory::at(folder.path()));
        assert_eq!(operators, Operators::default());
        assert!(note.unwrap().contains("operators"));
    }
}
