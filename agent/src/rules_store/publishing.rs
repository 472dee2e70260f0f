//! A stream of releases in a store, as publishers use it.

use std::thread;

use rollout::board::Report;
use rollout::digest;
use rollout::envelope::digest_of;
use rollout::index::{self, Index};
use rollout::publish::newest;

use super::store::{Found, StoreError};
use super::stream::{Stream, invalid};

/// How often in a row a change of the index has to be found there, and how often it is checked at most.
const SETTLED: u32 = 6;
const MOST_CHECKS: u32 = 40;
/// The most bytes of a host's report.
const LARGEST_REPORT: usize = 64 << 10;

/// The contents of the folder of reports.
#[derive(Debug, PartialEq, Eq)]
pub struct Reports {
    pub of_hosts: Vec<Report>,
    /// The number of other objects there, such as a report that is being written.
    pub skipped: usize,
}

impl Stream {
    /// The reports of all hosts.
    ///
    /// # Errors
    ///
    /// When the store is unavailable, or has no list of them.
    pub fn reports(&mut self) -> Result<Reports, StoreError> {
        let mut reports = Reports {
            of_hosts: Vec::new(),
            skipped: 0,
        };
        for host in self.store.list(&index::reports(&self.name))? {
            let object = match self.store.read(&index::report(&self.name, &host), None) {
                // It may have been removed meanwhile.
                Ok(Found::Missing | Found::Unchanged) => continue,
                Ok(Found::Object(object)) if index::is_host(&host) => Some(object),
                Ok(Found::Object(_)) | Err(StoreError::Invalid { .. }) => None,
                Err(error) => return Err(error),
            };
            let text = object.map(|object| object.text);
            let text = text.filter(|text| text.len() <= LARGEST_REPORT);
            let report = text.and_then(|text| Report::parse(&text).ok());
            match report.filter(|report| report.host == host) {
                Some(report) => reports.of_hosts.push(report),
                None => reports.skipped += 1,
            }
        }
        Ok(reports)
    }

    /// The version of the newest release, by the index; 0 for none.
    ///
    /// # Errors
    ///
    /// When the store is unavailable.
    pub fn head(&mut self) -> Result<u64, StoreError> {
        Ok(self.index()?.map_or(0, |index| index.head))
    }

    /// A release, unverified.
    ///
    /// # Errors
    ///
    /// When the store is unavailable, or does not have it.
    pub fn release(&mut self, version: u64) -> Result<String, StoreError> {
        self.object(&index::release(&self.name, version))
    }

    /// The abort of a version, unverified.
    ///
    /// # Errors
    ///
    /// When the store is unavailable, or does not have it.
    pub fn abort_of(&mut self, version: u64) -> Result<String, StoreError> {
        self.object(&index::abort(&self.name, version))
    }

    /// The versions of all releases, the newest first. The index does not name one whose publisher ended early, or whose
    /// entry another writer replaced.
    ///
    /// # Errors
    ///
    /// When the store is unavailable, or has no list of them.
    pub fn versions(&mut self) -> Result<Vec<u64>, StoreError> {
        let names = self.store.list(&index::releases(&self.name))?;
        let mut versions: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
        versions.sort_unstable_by(|a, b| b.cmp(a));
        Ok(versions)
    }

    /// The aborted versions.
    ///
    /// # Errors
    ///
    /// When the store is unavailable.
    pub fn aborted(&mut self) -> Result<Vec<u64>, StoreError> {
        let index = self.index()?.unwrap_or_default();
        let aborts = index.aborts.into_iter();
        Ok(aborts.map(|abort| abort.version).collect())
    }

    /// Writes a signed release, and makes it the head. Another publisher's release of the version stays.
    ///
    /// # Errors
    ///
    /// When the store is unavailable, or has a release of the version.
    pub fn publish(&mut self, version: u64, object: &str) -> Result<(), StoreError> {
        let name = index::release(&self.name, version);
        let digest = digest_of(object).map_err(|refusal| invalid(&name, &refusal))?;
        self.store.change(&name, &mut |before| match before {
            None => Ok(object.to_owned()),
            Some(_) => Err(StoreError::Contended(name.clone())),
        })?;
        // Another publisher's next version.
        let is_followed = |index: &Index| newest([index.head, version]) > version;
        let is_head = |index: &Index| index.head == version && index.digest == digest;
        self.keep_in_index(
            |index| is_head(index) || is_followed(index),
            |index| {
                if !is_followed(index) {
                    index.publish(version, &digest);
                }
            },
        )
    }

    /// Writes a signed abort.
    ///
    /// # Errors
    ///
    /// When the store is unavailable.
    pub fn abort(&mut self, version: u64, object: &str) -> Result<(), StoreError> {
        self.store
            .write(&index::abort(&self.name, version), object)?;
        let digest = digest(object);
        self.keep_in_index(
            |index| index.has_abort(version, &digest),
            |index| index.abort(version, &digest),
        )
    }

    /// Changes the index, and makes sure that it stays: in some stores, a host that has read the index before the change
    /// replaces it afterwards.
    fn keep_in_index(
        &mut self,
        is_there: impl Fn(&Index) -> bool,
        change: impl Fn(&mut Index),
    ) -> Result<(), StoreError> {
        self.change_index(&change)?;
        let Some(pause) = self.store.settles() else {
            return Ok(());
        };
        let mut found = 0;
        for _ in 0..MOST_CHECKS {
            thread::sleep(pause);
            if self.index()?.as_ref().is_some_and(&is_there) {
                found += 1;
            } else {
                found = 0;
                self.change_index(&change)?;
            }
            if found == SETTLED {
                return Ok(());
            }
        }
        Err(StoreError::Contended(index::index(&self.name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::fs;
    use std::time::Duration;

    use crate::rules_store::store::{Object, Store};
    use crate::rules_store::testing::{Publisher, report, stream};

    /// A store of which a host replaces the index by an earlier one, some checks after each of the first changes.
    struct Forgetful {
        objects: BTreeMap<String, String>,
        earlier: Option<String>,
        /// The changes that are lost, and the reads until then.
        losses: u32,
        reads: u32,
    }

    impl Store for Forgetful {
        fn read(&mut self, name: &str, _: Option<&str>) -> Result<Found, StoreError> {
            self.reads += 1;
            if self.reads == 4
                && let Some(earlier) = self.earlier.take()
            {
                self.objects.insert("web/index".to_owned(), earlier);
            }
            let object = self.objects.get(name).cloned();
            Ok(object.map_or(Found::Missing, |text| {
                Found::Object(Object { text, tag: None })
            }))
        }

        fn write(&mut self, name: &str, text: &str) -> Result<(), StoreError> {
            self.objects.insert(name.to_owned(), text.to_owned());
            Ok(())
        }

        fn change(
            &mut self,
            name: &str,
            change: &mut dyn FnMut(Option<&str>) -> Result<String, StoreError>,
        ) -> Result<(), StoreError> {
            let before = self.objects.get(name).cloned();
            let text = change(before.as_deref())?;
            if name == "web/index" && self.losses > 0 {
                self.losses -= 1;
                self.reads = 0;
                self.earlier = Some(before.unwrap_or_default());
            }
            self.write(name, &text)
        }

        fn settles(&self) -> Option<Duration> {
            Some(Duration::ZERO)
        }

        fn list(&mut self, _: &str) -> Result<Vec<String>, StoreError> {
            Ok(Vec::new())
        }
    }

    fn forgetful(losses: u32) -> Stream {
        let index = Index::default().to_text().unwrap();
        let store = Forgetful {
            objects: BTreeMap::from([("web/index".to_owned(), index)]),
            earlier: None,
            losses,
            reads: 0,
        };
        Stream::of(Box::new(store), "web")
    }

    #[test]
    fn a_head_and_an_abort_stay_although_a_host_replaces_the_index() {
        let mut stream = forgetful(2);
        let object = Publisher::new().release("ann", 1);
        stream.publish(1, &object).unwrap();
        assert_eq!(stream.head(), Ok(1));
        let mut stream = forgetful(2);
        stream.abort(1, "abort").unwrap();
        assert_eq!(stream.aborted(), Ok(vec![1]));
        // One that is lost again and again is reported.
        let lost = forgetful(u32::MAX).abort(1, "abort");
        assert!(matches!(lost, Err(StoreError::Contended(_))), "{lost:?}");
    }

    #[test]
    fn a_version_is_published_once() {
        let folder = tempfile::tempdir().unwrap();
        let publisher = Publisher::new();
        let (first, second) = (publisher.release("ann", 1), publisher.release("bob", 1));
        stream(folder.path()).publish(1, &first).unwrap();
        let refused = stream(folder.path()).publish(1, &second);
        assert!(
            matches!(refused, Err(StoreError::Contended(_))),
            "{refused:?}"
        );
        let mut stream = stream(folder.path());
        assert_eq!((stream.head(), stream.release(1)), (Ok(1), Ok(first)));
    }

    #[test]
    fn a_release_that_no_index_names_is_a_version() {
        let folder = tempfile::tempdir().unwrap();
        let publisher = Publisher::new();
        let mut stream = stream(folder.path());
        stream.publish(1, &publisher.release("ann", 1)).unwrap();
        // A publisher that was killed before it changed the index.
        let killed = publisher.release("ann", 2);
        fs::write(folder.path().join("web/releases/2"), killed).unwrap();
        assert_eq!((stream.head(), stream.versions()), (Ok(1), Ok(vec![2, 1])));
        stream.publish(3, &publisher.release("ann", 3)).unwrap();
        // A slower publisher takes the head from no later version, and from one that is made up.
        stream.publish(4, &publisher.release("ann", 4)).unwrap();
        fs::remove_file(folder.path().join("web/releases/3")).unwrap();
        stream.publish(3, &publisher.release("bob", 3)).unwrap();
        assert_eq!(stream.head(), Ok(4));
        let made_up = |index: &mut Index| index.publish(i64::MAX as u64, "made up");
        stream.change_index(made_up).unwrap();
        stream.publish(5, &publisher.release("ann", 5)).unwrap();
        assert_eq!(stream.head(), Ok(5));
    }

    #[test]
    fn what_is_no_report_of_its_host_is_skipped() {
        let folder = tempfile::tempdir().unwrap();
        let mut stream = stream(folder.path());
        stream.report(&report("a")).unwrap();
        let reports = folder.path().join("web/reports");
        let text = report("a").to_text().unwrap();
        fs::write(reports.join("a.next"), &text).unwrap();
        fs::write(reports.join("b"), &text).unwrap();
        fs::write(reports.join("c"), "rubbish").unwrap();
        fs::write(reports.join("d"), [0xff]).unwrap();
        fs::create_dir(reports.join("e")).unwrap();
        let large = report("f").to_text().unwrap() + "#" + &"x".repeat(LARGEST_REPORT);
        fs::write(reports.join("f"), large).unwrap();
        let expected = Reports {
            of_hosts: vec![report("a")],
            skipped: 6,
        };
        assert_eq!(stream.reports(), Ok(expected));
    }
}
