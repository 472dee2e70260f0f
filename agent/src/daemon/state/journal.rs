//! The bans that were made and lifted since the last save, so that a killed agent loses no owner.
//!
//! A file of one line a change, which a thread appends: no order waits for a disk that hangs. The kernel has the bans
//! themselves. Before a snapshot of the state the file is set aside, and deleted after that is saved. Changes are
//! numbered, and the saved state has the number of the last one that it includes: no change is lost or applied twice,
//! whenever an agent ends and however often the host reboots before the first save.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use config::{PrefixKey, prefix};
use datapath::bans::{BanKey, By, Held, Owner, Why};
use host::read;
use host::{Moment, StateDirectory};
use serde::{Deserialize, Serialize};

use super::file::Saved;

const NAME: &str = "bans";
/// The changes before the snapshot that is being saved.
const BEFORE: &str = "bans.before";
/// The largest file: beyond it, the owners of changes since the last save are lost with a kill.
const LARGEST: u64 = 16 << 20;
/// The most changes that wait for the thread.
const WAITING: usize = 8_192;
/// How long a client waits for the file.
const PATIENCE: Duration = Duration::from_secs(1);

/// The journal of a running agent.
#[derive(Debug)]
pub struct BanJournal {
    commands: SyncSender<Command>,
    /// This boot's ID.
    boot: String,
    /// The number of the last change.
    last: AtomicU64,
}

/// A recorded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// One more than that of the change before; 0 in files of earlier versions.
    pub number: u64,
    /// Its instant. Of a change without a number, only the boot is known.
    pub at: Moment,
    pub key: BanKey,
    /// The ban, on the clocks of that boot; `None` if it was lifted.
    pub held: Option<Held>,
}

#[derive(Debug)]
enum Command {
    Append(Box<Line>),
    /// Sets the changes up to this one aside.
    Rotate(u64),
    /// Deletes them, unless the file has later ones too.
    Forget(u64),
    /// Replies with the reason if a change could not be written.
    Flush(SyncSender<Option<String>>),
}

/// A change.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    /// The boot whose clocks the line's instants are on.
    boot: String,
    /// As [`Recorded::number`].
    #[serde(default)]
    number: u64,
    /// As [`Moment::monotonic`].
    #[serde(default)]
    monotonic: u64,
    /// As [`Moment::wall`].
    #[serde(default)]
    wall: u64,
    prefix: String,
    is_by_limit: bool,
    name: Option<String>,
    interface_id: u64,
    /// The ban's end; `None` if it is lifted.
    until: Option<u64>,
    since: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    began: Option<i64>,
    text: Option<String>,
}

impl BanJournal {
    /// A journal in this directory, after the change with the number `last`.
    ///
    /// # Errors
    ///
    /// When the thread cannot be started.
    pub fn start(directory: StateDirectory, last: u64) -> io::Result<Self> {
        let (sender, commands) = sync_channel(WAITING);
        thread::Builder::new()
            .name("weir-bans".to_owned())
            .spawn(move || run(&directory, &commands))?;
        Ok(Self {
            commands: sender,
            boot: Moment::now().boot,
            last: AtomicU64::new(last),
        })
    }

    /// Records that a ban on this host was made, or lifted with `None`.
    pub fn record(&self, key: &BanKey, held: Option<&Held>) {
        if !key.owner.by.is_own() {
            return;
        }
        let why = held.and_then(|held| held.why.as_ref());
        let at = Moment::of_boot(&self.boot);
        let line = Line {
            boot: at.boot,
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            monotonic: at.monotonic,
            wall: at.wall,
            prefix: key.prefix.to_string(),
            is_by_limit: key.owner.by == By::Limit,
            name: key.owner.name.as_ref().map(ToString::to_string),
            interface_id: key.interface_id,
            until: held.map(|held| held.until),
            since: held.map_or(0, |held| held.since),
            began: held.and_then(|held| held.began),
            text: why.map(|why| why.text.to_string()),
        };
        // While the disk hangs, a kill loses owners, and no order waits.
        let _ = self.commands.try_send(Command::Append(Box::new(line)));
    }

    /// Begins a snapshot of the state, which has all changes before it. Returns the number of the last one.
    pub fn begin_save(&self) -> u64 {
        let number = self.last.load(Ordering::Relaxed);
        let _ = self.commands.try_send(Command::Rotate(number));
        number
    }

    /// Forgets the changes up to this one, which are saved, unless a snapshot with later ones has begun: then they stay
    /// until that is saved.
    pub fn saved(&self, number: u64) {
        let _ = self.commands.try_send(Command::Forget(number));
    }

    /// Waits until all changes are in the file, or for a second if the disk hangs.
    ///
    /// # Errors
    ///
    /// The reason, if the latest changes are not in the file.
    pub fn flush(&self) -> Result<(), String> {
        let (done, is_done) = sync_channel(1);
        let hangs = || "the disk hangs".to_owned();
        self.commands
            .try_send(Command::Flush(done))
            .map_err(|_| hangs())?;
        match is_done.recv_timeout(PATIENCE) {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            Err(_) => Err(hangs()),
        }
    }
}

/// Executes commands until the journal is dropped.
fn run(directory: &StateDirectory, commands: &Receiver<Command>) {
    let (mut failure, mut last) = (None, 0);
    while let Ok(first) = commands.recv() {
        let mut lines = Vec::new();
        let mut flushed = Vec::new();
        let mut is_changed = false;
        let mut result: io::Result<()> = Ok(());
        for command in std::iter::once(first).chain(commands.try_iter()) {
            is_changed |= !matches!(command, Command::Flush(_));
            match command {
                Command::Append(line) => {
                    result =
                        result.and(serde_json::to_writer(&mut lines, &line).map_err(Into::into));
                    lines.push(b'\n');
                }
                Command::Rotate(number) => {
                    last = number;
                    result = result.and(append(directory, NAME, &std::mem::take(&mut lines)));
                    result = result.and(rotate(directory));
                }
                Command::Forget(number) if number < last => {}
                Command::Forget(_) => result = result.and(remove(directory, BEFORE)),
                Command::Flush(done) => flushed.push(done),
            }
        }
        result = result.and(append(directory, NAME, &lines));
        if is_changed {
            let error = result.err().map(|error| error.to_string());
            if let (Some(error), None) = (&error, &failure) {
                tracing::warn!(
                    "writing the journal of bans failed: {error}; a kill loses the owners of new bans"
                );
            }
            failure = error;
        }
        for done in flushed {
            let _ = done.try_send(failure.clone());
        }
    }
}

fn append(directory: &StateDirectory, name: &str, lines: &[u8]) -> io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(directory.file(name))?;
    // A line that a full disk cut off ends before the next one.
    let lines = [b"\n", lines].concat();
    if file.metadata()?.len() + lines.len() as u64 > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    file.write_all(&lines)
}

/// Moves all changes to the file of those before the snapshot.
fn rotate(directory: &StateDirectory) -> io::Result<()> {
    let (path, before) = (directory.file(NAME), directory.file(BEFORE));
    if !path.exists() {
        return Ok(());
    }
    if !before.exists() {
        return fs::rename(path, before);
    }
    // The last save failed.
    let changes = read::read(&path, LARGEST).map_err(io::Error::other)?;
    append(directory, BEFORE, &changes)?;
    fs::remove_file(path)
}

fn remove(directory: &StateDirectory, name: &str) -> io::Result<()> {
    match fs::remove_file(directory.file(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Deletes the journal: its changes are saved.
///
/// # Errors
///
/// When a file cannot be deleted.
pub(super) fn clear(directory: &StateDirectory) -> io::Result<()> {
    remove(directory, BEFORE).and(remove(directory, NAME))
}

/// The changes in their order. Lines that a power failure cut off are ignored.
#[must_use]
pub(super) fn read(directory: &StateDirectory) -> Vec<Recorded> {
    let texts =
        [BEFORE, NAME].map(|name| read::read(&directory.file(name), LARGEST).unwrap_or_default());
    let lines = texts
        .iter()
        .flat_map(|text| text.split(|byte| *byte == b'\n'));
    lines
        .filter_map(|line| serde_json::from_slice::<Line>(line).ok())
        .filter_map(Line::parse)
        .collect()
}

/// The number of the last change that was saved or recorded.
#[must_use]
pub(super) fn last(saved: Option<&Saved>, changes: &[Recorded]) -> u64 {
    let recorded = changes.iter().map(|change| change.number).max();
    recorded
        .max(saved.map(|saved| saved.journaled))
        .unwrap_or(0)
}

impl Line {
    fn parse(self) -> Option<Recorded> {
        let by = if self.is_by_limit {
            By::Limit
        } else {
            By::Operator
        };
        let key = BanKey {
            prefix: PrefixKey::from(&prefix::parse(&self.prefix).ok()?),
            owner: Owner {
                by,
                name: self.name.as_deref().map(Into::into),
            },
            interface_id: self.interface_id,
        };
        let why = self.text.map(|text| Why {
            text: text.into(),
            ..Why::default()
        });
        let held = self.until.map(|until| Held {
            until,
            since: self.since,
            began: self.began,
            why,
        });
        let at = Moment {
            boot: self.boot,
            monotonic: self.monotonic,
            wall: self.wall,
        };
        Some(Recorded {
            number: self.number,
            at,
            key,
            held,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn journal() -> (tempfile::TempDir, StateDirectory, BanJournal) {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let journal = BanJournal::start(directory.clone(), 40).unwrap();
        (folder, directory, journal)
    }

    fn key(last: u8, name: &str) -> BanKey {
        let prefix = config::policy::Prefix::of_address([192, 0, 2, last].into());
        BanKey::new(PrefixKey::from(&prefix), Owner::named(By::Operator, name))
    }

    fn held(until: u64) -> Held {
        Held {
            until,
            since: 7,
            began: Some(-3),
            why: Some(Why {
                text: "scan".into(),
                ..Why::default()
            }),
        }
    }

    /// The recorded changes, without their instants.
    fn changes(directory: &StateDirectory) -> Vec<(u64, BanKey, Option<Held>)> {
        let changes = read(directory).into_iter();
        changes
            .map(|change| (change.number, change.key, change.held))
            .collect()
    }

    #[test]
    fn changes_are_numbered_and_forgotten_when_they_are_saved() {
        let (_folder, directory, journal) = journal();
        assert_eq!(changes(&directory), [], "there is none");
        journal.record(&key(1, "recidive"), Some(&held(200)));
        journal.record(&key(2, "sshd"), None);
        journal.record(&BanKey::of(key(4, "").prefix, By::CrowdSec), Some(&held(9)));
        journal.flush().unwrap();
        let both = [
            (41, key(1, "recidive"), Some(held(200))),
            (42, key(2, "sshd"), None),
        ];
        assert_eq!(changes(&directory), both);
        let now = Moment::now();
        for Recorded { at, .. } in read(&directory) {
            assert!(at.boot == now.boot && at.monotonic <= now.monotonic && at.wall <= now.wall);
        }
        // A snapshot that fails, another change, and one that is saved.
        assert_eq!(journal.begin_save(), 42);
        journal.record(&key(1, "sshd"), None);
        let second = journal.begin_save();
        journal.record(&key(5, "sshd"), Some(&held(1)));
        journal.flush().unwrap();
        assert_eq!(changes(&directory).len(), 4);
        journal.saved(second);
        journal.flush().unwrap();
        let last = (44, key(5, "sshd"), Some(held(1)));
        assert_eq!(changes(&directory), [last]);
        let third = journal.begin_save();
        journal.saved(third);
        journal.flush().unwrap();
        assert!(!directory.file(NAME).exists() && !directory.file(BEFORE).exists());
    }

    #[test]
    fn a_line_that_was_cut_off_is_ignored() {
        let (_folder, directory, journal) = journal();
        journal.record(&key(1, "sshd"), Some(&held(100)));
        journal.record(&key(2, "sshd"), Some(&held(100)));
        journal.flush().unwrap();
        let text = fs::read(directory.file(NAME)).unwrap();
        // Without its last line end, the last line is whole.
        for length in 0..text.len() - 1 {
            fs::write(directory.file(NAME), &text[..length]).unwrap();
            assert!(read(&directory).len() < 2, "{length}");
        }
    }

    #[test]
    fn a_change_that_cannot_be_written_is_an_error_until_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(&folder.path().join("none"));
        let journal = BanJournal::start(directory.clone(), 0).unwrap();
        assert_eq!(journal.flush(), Ok(()));
        journal.record(&key(1, "sshd"), Some(&held(100)));
        let error = journal.flush().unwrap_err();
        assert!(error.contains("No such file"), "{error}");
        assert_eq!(journal.flush(), Err(error));
        fs::create_dir(folder.path().join("none")).unwrap();
        journal.record(&key(2, "sshd"), Some(&held(100)));
        assert_eq!(journal.flush(), Ok(()));
    }

    #[test]
    fn a_line_after_a_cut_off_one_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        for name in [NAME, BEFORE] {
            let torn = r#"{"boot":"a","prefix":"192.0.2.9/32","is_by"#;
            fs::write(directory.file(name), torn).unwrap();
        }
        let journal = BanJournal::start(directory.clone(), 0).unwrap();
        journal.record(&key(1, "sshd"), Some(&held(100)));
        journal.flush().unwrap();
        let first = [(1, key(1, "sshd"), Some(held(100)))];
        assert_eq!(changes(&directory), first);
        journal.begin_save();
        journal.flush().unwrap();
        assert_eq!(changes(&directory), first);
    }

    #[test]
    fn a_saved_snapshot_keeps_the_changes_of_a_later_one() {
        let (_folder, directory, journal) = journal();
        let first = journal.begin_save();
        journal.record(&key(1, "sshd"), Some(&held(100)));
        let second = journal.begin_save();
        journal.saved(first);
        journal.flush().unwrap();
        assert_eq!(changes(&directory), [(41, key(1, "sshd"), Some(held(100)))]);
        journal.saved(second);
        journal.flush().unwrap();
        assert_eq!(changes(&directory), []);
    }

    #[test]
    fn a_line_of_an_earlier_version_has_no_number() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let line = r#"{"boot":"a","prefix":"192.0.2.1/32","is_by_limit":false,"name":"sshd","interface_id":0,"until":100,"since":7,"text":"scan"}"#;
        fs::write(directory.file(NAME), line).unwrap();
        let held = Held {
            began: None,
            ..held(100)
        };
        assert_eq!(changes(&directory), [(0, key(1, "sshd"), Some(held))]);
        assert_eq!(read(&directory)[0].at.boot, "a");
    }
}
