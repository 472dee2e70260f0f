//! A stream of releases in a store, as hosts use it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use config::policy::{RulesAddress, RulesStore};
use rollout::board::Report;
use rollout::brief;
use rollout::envelope::digest_of;
use rollout::host::{self, Reply};
use rollout::index::{self, Index};

use super::folder::Folder;
use super::http::Http;
use super::redis::Redis;
use super::store::{Found, Store, StoreError};

/// The newest aborts that a host reads, and the most bytes of each: the index that names them is not signed.
const MOST_ABORTS: usize = 16;
const LARGEST_ABORT: usize = 64 << 10;
/// The most bytes of an index. It takes about ninety times as much to parse it: 90 MiB.
const LARGEST_INDEX: usize = 1 << 20;
/// One at a time is parsed, of all streams.
static PARSING: Mutex<()> = Mutex::new(());
/// The bytes that reports leave free in it for aborts.
const RESERVED: usize = 64 << 10;

/// One stream of a store.
pub struct Stream {
    pub(super) store: Box<dyn Store>,
    pub(super) name: String,
    /// The tag of the index that was read last, and the index.
    last: Option<(Option<String>, Index)>,
    /// The release that was read last, while it is the index's: a host that refuses it does not read it again.
    release: Option<(String, String)>,
    /// The aborts of the index that have been read, by version, with their digests in the index.
    aborts: BTreeMap<u64, (String, String)>,
}

impl Stream {
    /// A stream; nothing is connected yet.
    #[must_use]
    pub fn open(address: &RulesAddress) -> Self {
        Self::of(open(address), &address.stream)
    }

    pub(super) fn of(store: Box<dyn Store>, name: &str) -> Self {
        Self {
            store,
            name: name.to_owned(),
            last: None,
            release: None,
            aborts: BTreeMap::new(),
        }
    }

    /// Reads what a host decides by: one request, unless there is something new. `known` is the digest of the release that
    /// the host has.
    ///
    /// # Errors
    ///
    /// When the store is unavailable or incomplete.
    pub fn read(&mut self, host: &str, known: Option<&str>) -> Result<Reply, StoreError> {
        let Some(index) = self.index()? else {
            return Ok(Reply {
                head: host::Head::Missing,
                aborts: Vec::new(),
                board: Index::default().board(host),
            });
        };
        let head = match index.head {
            0 => host::Head::Missing,
            _ if known == Some(&index.digest) => {
                self.release = None;
                host::Head::Unchanged
            }
            version => host::Head::Is(self.head_object(version, &index.digest)?),
        };
        Ok(Reply {
            head,
            aborts: self.aborts(&index)?,
            board: index.board(host),
        })
    }

    /// The newest release, whose digest the index has. One with another digest may be replaced, and is read again.
    fn head_object(&mut self, version: u64, digest: &str) -> Result<String, StoreError> {
        if let Some((of, object)) = &self.release
            && of == digest
        {
            return Ok(object.clone());
        }
        let object = self.object(&index::release(&self.name, version))?;
        let is_it = digest_of(&object).is_ok_and(|of| of == digest);
        self.release = is_it.then(|| (digest.to_owned(), object.clone()));
        Ok(object)
    }

    pub(super) fn index(&mut self) -> Result<Option<Index>, StoreError> {
        let name = index::index(&self.name);
        let tag = self.last.as_ref().and_then(|(tag, _)| tag.as_deref());
        match self.store.read(&name, tag)? {
            Found::Missing => self.last = None,
            Found::Unchanged => {}
            Found::Object(object) => {
                self.last = Some((object.tag, parse(&name, &object.text)?));
            }
        }
        Ok(self.last.as_ref().map(|(_, index)| index.clone()))
    }

    pub(super) fn object(&mut self, name: &str) -> Result<String, StoreError> {
        match self.store.read(name, None)? {
            Found::Object(object) => Ok(object.text),
            Found::Missing | Found::Unchanged => Err(StoreError::Missing(name.to_owned())),
        }
    }

    /// The newest aborts. One that is missing or no abort is an empty text, which hosts refuse.
    fn aborts(&mut self, index: &Index) -> Result<Vec<String>, StoreError> {
        let newest = index.aborts.iter().rev().take(MOST_ABORTS);
        let newest: BTreeMap<u64, &str> = newest
            .map(|abort| (abort.version, abort.digest.as_str()))
            .collect();
        // A publisher may have replaced an abort that hosts refuse.
        self.aborts
            .retain(|version, (digest, _)| newest.get(version).copied() == Some(digest));
        let mut is_one_wrong = false;
        for (version, digest) in newest {
            if self.aborts.contains_key(&version) {
                continue;
            }
            match self.object(&index::abort(&self.name, version)) {
                Ok(abort) if abort.len() <= LARGEST_ABORT => {
                    self.aborts.insert(version, (digest.to_owned(), abort));
                }
                Ok(_) | Err(StoreError::Missing(_) | StoreError::Invalid { .. }) => {
                    is_one_wrong = true;
                }
                Err(error) => return Err(error),
            }
        }
        let read = self.aborts.values().map(|(_, abort)| abort.clone());
        Ok(read.chain(is_one_wrong.then(String::new)).collect())
    }

    /// Replaces a host's report. The index gets it if other hosts decide by it.
    ///
    /// # Errors
    ///
    /// When the store is unavailable, or does not let the host write.
    pub fn report(&mut self, report: &Report) -> Result<(), StoreError> {
        let name = index::report(&self.name, &report.host);
        let text = report.to_text().map_err(|error| invalid(&name, &error))?;
        self.store.write(&name, &text)?;
        let last = self.last.as_ref();
        let is_in_index = last.is_some_and(|(_, index)| index.has_report_of(&report.host));
        if report.counts || is_in_index {
            self.write_index(LARGEST_INDEX - RESERVED, |index| index.report(report))?;
        }
        Ok(())
    }

    pub(super) fn change_index(&mut self, change: impl Fn(&mut Index)) -> Result<(), StoreError> {
        self.write_index(LARGEST_INDEX, change)
    }

    fn write_index(&mut self, most: usize, change: impl Fn(&mut Index)) -> Result<(), StoreError> {
        let name = index::index(&self.name);
        self.store.change(&name, &mut |before| {
            let mut index = before
                .map(|text| parse(&name, text))
                .transpose()?
                .unwrap_or_default();
            change(&mut index);
            let text = index.to_text().map_err(|error| invalid(&name, &error))?;
            if text.len() > most {
                return Err(invalid(
                    &name,
                    &"it is full: it has too many reports or aborts",
                ));
            }
            Ok(text)
        })
    }
}

fn open(address: &RulesAddress) -> Box<dyn Store> {
    match &address.store {
        RulesStore::Folder(path) => Box::new(Folder::new(path)),
        RulesStore::Http(url) => Box::new(Http::new(url)),
        RulesStore::S3(url) => Box::new(Http::s3(url)),
        RulesStore::Redis(url) => Box::new(Redis::new(url)),
    }
}

fn parse(name: &str, text: &str) -> Result<Index, StoreError> {
    if text.len() > LARGEST_INDEX {
        return Err(invalid(name, &"it is larger than 1 MiB"));
    }
    let _one = PARSING.lock().unwrap_or_else(PoisonError::into_inner);
    Index::parse(text).map_err(|refusal| invalid(name, &refusal))
}

pub(super) fn invalid(name: &str, reason: &dyn std::fmt::Display) -> StoreError {
    StoreError::Invalid {
        name: name.to_owned(),
        // A parser's error may repeat a line of the store.
        reason: brief(&reason.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use rollout::board::Progress;

    use crate::rules_store::testing::{Publisher, report, stream};

    #[test]
    fn a_host_reads_the_head_and_then_only_what_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        let reply = stream.read("a", None).unwrap();
        assert_eq!(reply.head, host::Head::Missing);
        let object = Publisher::new().release("ann", 1);
        stream.publish(1, &object).unwrap();
        let reply = stream.read("a", None).unwrap();
        assert_eq!(reply.head, host::Head::Is(object.clone()));
        let known = digest_of(&object).unwrap();
        let reply = stream.read("a", Some(&known)).unwrap();
        assert_eq!(reply.head, host::Head::Unchanged);
        // A release that the index has and the store lost.
        fs::remove_file(folder.path().join("web/releases/1")).unwrap();
        let lost = stream.read("a", None).map(|_| ());
        assert_eq!(lost, Err(StoreError::Missing("web/releases/1".to_owned())));
    }

    #[test]
    fn a_host_reads_a_bounded_part_of_the_aborts_that_the_index_names() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        stream.abort(1, "abort 1").unwrap();
        assert_eq!(stream.read("a", None).unwrap().aborts, ["abort 1"]);
        let made_up = |index: &mut Index| (2..1_000).for_each(|version| index.abort(version, "d"));
        stream.change_index(made_up).unwrap();
        for version in 2..1_000 {
            let path = folder.path().join(format!("web/aborts/{version}"));
            if version >= 984 {
                fs::write(path, format!("abort {version}")).unwrap();
            }
        }
        let aborts = stream.read("a", None).unwrap().aborts;
        assert_eq!(aborts.len(), MOST_ABORTS);
        assert_eq!(aborts.last().unwrap(), "abort 999");
        assert_eq!(stream.aborts.len(), MOST_ABORTS);
        let another = |index: &mut Index| index.abort(1_000, "d");
        stream.change_index(another).unwrap();
        let large = "x".repeat(LARGEST_ABORT + 1);
        fs::write(folder.path().join("web/aborts/1000"), large).unwrap();
        // One that is too large is refused, and so is a missing one; the others are read.
        let read = |stream: &mut Stream| stream.read("a", None).unwrap().aborts;
        let of_15 = [&aborts[1..], &[String::new()]].concat();
        assert_eq!(read(&mut stream), of_15);
        fs::remove_file(folder.path().join("web/aborts/1000")).unwrap();
        assert_eq!(read(&mut stream), of_15);
        // An abort that replaces another one is read.
        for abort in ["abort 1000", "of another key"] {
            stream.abort(1_000, abort).unwrap();
            assert_eq!(read(&mut stream)[15], abort);
        }
    }

    #[test]
    fn a_release_that_a_host_refuses_is_read_once_and_again_when_it_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        let object = Publisher::new().release("ann", 1);
        stream.publish(1, &object).unwrap();
        let head = |stream: &mut Stream| stream.read("a", None).unwrap().head;
        let file = folder.path().join("web/releases/1");
        let cut = &object[..object.len() - 9];
        for (in_store, read) in [(cut, cut), (&object, &object), (cut, &object)] {
            fs::write(&file, in_store).unwrap();
            assert_eq!(head(&mut stream), host::Head::Is(read.to_owned()));
        }
    }

    #[test]
    fn the_reason_of_an_invalid_index_is_short() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        fs::create_dir(folder.path().join("web")).unwrap();
        let line = "x".repeat(LARGEST_INDEX - 1);
        fs::write(folder.path().join("web/index"), line).unwrap();
        let error = stream.read("a", None).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().len() < 2_000,
            "{}",
            error.to_string().len()
        );
    }

    #[test]
    fn an_index_does_not_grow_until_it_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        let first = |index: &mut Index| index.abort(1, "d");
        stream.change_index(first).unwrap();
        let large = |index: &mut Index| index.digest = "x".repeat(LARGEST_INDEX);
        let refused = stream.change_index(large).unwrap_err();
        assert!(matches!(refused, StoreError::Invalid { .. }), "{refused}");
        assert_eq!(stream.aborted(), Ok(vec![1]));
        // Reports leave room for aborts.
        let full = |index: &mut Index| index.digest = "x".repeat(LARGEST_INDEX - RESERVED - 100);
        stream.change_index(full).unwrap();
        let mut counted = report(&"x".repeat(64));
        counted.counts = true;
        assert!(stream.report(&counted).is_err());
        stream.abort(2, "abort").unwrap();
        assert_eq!(stream.aborted(), Ok(vec![1, 2]));
        // A larger index of another writer is not parsed.
        let text = format!("head = 1\ndigest = \"\"\n#{}\n", "x".repeat(LARGEST_INDEX));
        fs::write(folder.path().join("web/index"), text).unwrap();
        assert!(matches!(stream.aborted(), Err(StoreError::Invalid { .. })));
    }

    #[test]
    fn others_read_a_report_by_which_they_decide() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        let object = Publisher::new().release("ann", 1);
        stream.publish(1, &object).unwrap();
        let mut report = Report {
            version: 1,
            digest: digest_of(&object).unwrap(),
            progress: Progress::Held,
            counts: true,
            ..report("a")
        };
        stream.report(&report).unwrap();
        assert_eq!(stream.read("b", None).unwrap().board.held, 1);
        assert_eq!(stream.reports().unwrap().of_hosts, [report.clone()]);
        // One that does not count any more leaves the index.
        report.counts = false;
        stream.report(&report).unwrap();
        assert_eq!(stream.read("b", None).unwrap().board.held, 0);
        assert_eq!(stream.reports().unwrap().of_hosts, [report]);
    }
}
