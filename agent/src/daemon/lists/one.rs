//! One list and its content.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::event::seconds_since_1970;
use api::list::ListStatus;
use config::policy::{BanList, GeoKey, ListSource};
use geo::Database;
use host::StateDirectory;
use host::backoff::Backoff;
use lists::{Copy, Listed, Origin, Parsed, dated, parse, shrinks_too_much};

use super::source::{Content, Failure};
use crate::files::Fingerprint;
use crate::geo::Databases;

/// The pause after the first failure of a URL. The longest is the list's interval.
const FIRST_PAUSE: Duration = Duration::from_secs(10);

/// A list. Copies share the prefixes.
#[derive(Clone)]
pub(super) struct One {
    pub list: BanList,
    /// In order; what is in effect.
    pub prefixes: Arc<Vec<Listed>>,
    /// `None` until it has been read.
    pub origin: Option<Origin>,
    pub problem: Option<String>,
    pub note: Option<String>,
    pub due: Instant,
    pub is_fetching: bool,
    failures: u32,
    /// The earliest attempt that the server allows.
    not_before: Option<Instant>,
    file: Option<Fingerprint>,
    /// The databases of the content.
    databases: Vec<Arc<Database>>,
}

/// A valid content, and its ETag and date.
type Accepted = (Parsed, Option<String>, Option<String>);

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing.
    Unchanged,
    /// The content.
    Updated,
    /// The list fails, and did not before or for another reason.
    Failed,
}

impl One {
    /// With the last valid copy, if there is one.
    pub fn new(list: BanList, state: &StateDirectory) -> Self {
        let (copy, note) = match Copy::read(state, &list.name) {
            Ok(copy) => (copy, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let (origin, prefixes) = copy.map_or((None, Vec::new()), |copy| {
            (Some(copy.origin), copy.prefixes)
        });
        let mut one = Self {
            list,
            prefixes: Arc::new(prefixes),
            origin,
            problem: None,
            note,
            due: Instant::now(),
            is_fetching: false,
            failures: 0,
            not_before: None,
            file: None,
            databases: Vec::new(),
        };
        if let (ListSource::Url(_), Some(origin)) = (one.list.source(), one.valid_origin()) {
            // The clock may have been set since.
            let age = now()
                .saturating_sub(origin.checked)
                .min(one.list.every.as_secs());
            one.due += one.list.every - Duration::from_secs(age);
        }
        one
    }

    /// The same list with another definition.
    pub fn redefine(&mut self, list: BanList) {
        let before = (
            self.list.source(),
            &self.list.format,
            self.list.allow_shrink,
        );
        if (list.source(), &list.format, list.allow_shrink) != before {
            (self.file, self.failures, self.is_fetching) = (None, 0, false);
            self.not_before = self
                .not_before
                .filter(|_| list.source() == self.list.source());
            self.databases.clear();
            self.due = Instant::now();
        }
        let due = self.due.min(Instant::now() + list.every);
        self.due = self.not_before.map_or(due, |earliest| due.max(earliest));
        self.list = list;
    }

    /// The origin of the content, if it is from the present source.
    pub fn valid_origin(&self) -> Option<&Origin> {
        self.origin
            .as_ref()
            .filter(|origin| origin.source == source_of(&self.list))
    }

    /// Reads the list's file.
    pub fn read(&mut self, path: &Path, state: &StateDirectory) -> Outcome {
        let known = self.file.filter(|_| self.valid_origin().is_some());
        let read = super::source::read(path, known);
        let content = read.map(|(content, file)| {
            self.file = Some(file);
            content
        });
        self.take_up(content.map_err(Failure::from), state)
    }

    /// Takes the prefixes of its networks and countries from the databases.
    pub fn look_up(
        &mut self,
        keys: &[GeoKey],
        databases: &Databases,
        state: &StateDirectory,
    ) -> Outcome {
        let next = databases.of(keys).inspect_err(|_| self.databases.clear());
        let content = next.map(|next| {
            let is_known = self.valid_origin().is_some()
                && next.len() == self.databases.len()
                && next
                    .iter()
                    .zip(&self.databases)
                    .all(|(next, known)| Arc::ptr_eq(next, known));
            self.databases = next;
            if is_known {
                Content::Unchanged
            } else {
                Content::Prefixes(databases.of_list(keys))
            }
        });
        self.take_up(content.map_err(Failure::from), state)
    }

    /// Takes up the result of a reading, unless it is invalid.
    pub fn take_up(
        &mut self,
        content: Result<Content, Failure>,
        state: &StateDirectory,
    ) -> Outcome {
        self.not_before = None;
        let checked = content.and_then(|content| Ok(self.checked(content, state)?));
        match checked {
            Ok(is_updated) => {
                self.failures = 0;
                self.problem = None;
                self.due = Instant::now() + self.list.every;
                if is_updated {
                    Outcome::Updated
                } else {
                    Outcome::Unchanged
                }
            }
            Err(Failure {
                why: problem,
                retry_after,
            }) => {
                self.failures = self.failures.saturating_add(1);
                let pause = Backoff::new(FIRST_PAUSE, self.list.every).pause(self.failures);
                let now = Instant::now();
                self.not_before = retry_after.map(|after| now + after);
                self.due = (now + pause).max(self.not_before.unwrap_or(now));
                // A file that is as it was fails as before.
                let is_known = self.problem.as_ref() == Some(&problem);
                self.problem = Some(problem);
                if is_known {
                    Outcome::Unchanged
                } else {
                    Outcome::Failed
                }
            }
        }
    }

    /// The content that a first reading would put in effect, and why it is not the source's. Writes nothing.
    pub fn at_start(list: &BanList, state: &StateDirectory) -> (Arc<Vec<Listed>>, Option<String>) {
        let mut one = Self::new(list.clone(), state);
        let content = match list.source() {
            ListSource::File(path) => super::source::read(&path, None).map(|(content, _)| content),
            ListSource::Url(_) if one.origin.is_some() => Ok(Content::Unchanged),
            ListSource::Url(_) => Err("it has not been fetched yet".to_owned()),
            ListSource::Geo(_) => Err("its prefixes are in the databases of [geo]".to_owned()),
        };
        match content.and_then(|content| one.accepted(content)) {
            Ok(Some((parsed, _, _))) => (Arc::new(one.dated(&parsed)), None),
            Ok(None) => (one.prefixes, None),
            Err(problem) => (one.prefixes, Some(problem)),
        }
    }

    fn dated(&self, parsed: &Parsed) -> Vec<Listed> {
        dated(
            &parsed.prefixes,
            &self.prefixes,
            now().try_into().unwrap_or(u32::MAX),
        )
    }

    /// Checks a content; `None` if it is the present one.
    fn accepted(&mut self, content: Content) -> Result<Option<Accepted>, String> {
        let (parsed, etag, last_modified) = match content {
            Content::Unchanged => {
                // A file that has not changed has the same problem.
                if let (Some(problem), ListSource::File(_) | ListSource::Geo(_)) =
                    (&self.problem, self.list.source())
                {
                    return Err(problem.clone());
                }
                if let Some(origin) = &mut self.origin {
                    origin.checked = now();
                }
                return Ok(None);
            }
            Content::Text {
                bytes,
                etag,
                last_modified,
            } => (
                parse(&bytes, &self.list.format).map_err(|error| error.to_string())?,
                etag,
                last_modified,
            ),
            Content::Prefixes(prefixes) => (
                Parsed {
                    prefixes,
                    ..Parsed::default()
                },
                None,
                None,
            ),
        };
        let (before, after) = (self.prefixes.len(), parsed.prefixes.len());
        if self.valid_origin().is_some()
            && !self.list.allow_shrink
            && shrinks_too_much(before, after)
        {
            return Err(format!(
                "it shrank from {before} to {after} prefixes; if that is intended, set allow_shrink = true"
            ));
        }
        Ok(Some((parsed, etag, last_modified)))
    }

    /// Takes up a valid content; returns whether it differs from the present one.
    fn checked(&mut self, content: Content, state: &StateDirectory) -> Result<bool, String> {
        let Some((parsed, etag, last_modified)) = self.accepted(content)? else {
            return Ok(false);
        };
        let now = now();
        let prefixes = self.dated(&parsed);
        let is_updated = prefixes != *self.prefixes;
        let updated = self
            .origin
            .as_ref()
            .filter(|_| !is_updated)
            .map_or(now, |origin| origin.updated);
        let origin = Origin {
            source: source_of(&self.list),
            updated,
            checked: now,
            etag,
            last_modified,
        };
        // In effect regardless, until the agent ends.
        let written = Copy::write(state, &self.list.name, &origin, &prefixes);
        self.note = written
            .err()
            .map(|error| error.to_string())
            .or_else(|| parsed.note());
        self.origin = Some(origin);
        self.prefixes = Arc::new(prefixes);
        Ok(is_updated)
    }

    /// The list in `weir status`.
    pub fn status(&self, prefixes: u64, throttled_packets: u64) -> ListStatus {
        let ago = |then: u64| (seconds_since_1970() - then as f64).max(0.0);
        ListStatus {
            name: self.list.name.clone(),
            source: self.list.source().shown(),
            action: self.list.action.to_string(),
            prefixes,
            throttled_packets,
            updated_seconds_ago: self.origin.as_ref().map(|origin| ago(origin.updated)),
            checked_seconds_ago: self.origin.as_ref().map(|origin| ago(origin.checked)),
            next_in_seconds: self
                .due
                .saturating_duration_since(Instant::now())
                .as_secs_f64(),
            problem: self.problem.clone(),
            note: self.note.clone(),
        }
    }
}

/// Changes with the reading of formats: a copy of an earlier version is then read again from its source.
const READING: u32 = 2;

/// Identifies the source of a copy.
fn source_of(list: &BanList) -> String {
    format!("{:?} {:?} {READING}", list.source(), list.format)
}

/// Seconds since 1970.
fn now() -> u64 {
    seconds_since_1970() as u64
}

#[cfg(test)]
mod tests {
    use config::policy::{ListAction, ListFormat};
    use config::schema::{HttpUrl, Text as _};

    use super::*;

    fn url(text: &str) -> HttpUrl {
        HttpUrl::parse(text, &BanList::URL).unwrap()
    }

    fn list(allow_shrink: bool) -> BanList {
        BanList {
            name: "a".to_owned(),
            file: None,
            url: Some(url("http://192.0.2.1/")),
            asn: Vec::new(),
            country: Vec::new(),
            format: ListFormat::Plain,
            every: Duration::from_secs(3600),
            action: ListAction::Ban,
            allow_shrink,
        }
    }

    fn text(text: &str) -> Result<Content, Failure> {
        Ok(Content::Text {
            bytes: text.as_bytes().to_vec(),
            etag: Some("\"e\"".to_owned()),
            last_modified: None,
        })
    }

    #[test]
    fn a_list_that_shrinks_by_more_than_half_is_not_taken_up_unless_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        let mut one = One::new(list(false), &state);
        assert_eq!(
            one.take_up(text("192.0.2.1\n192.0.2.2\n192.0.2.3\n"), &state),
            Outcome::Updated
        );
        assert_eq!(one.take_up(text("192.0.2.1\n"), &state), Outcome::Failed);
        let problem = one.problem.clone().unwrap();
        assert_eq!(
            problem,
            "it shrank from 3 to 1 prefixes; if that is intended, set allow_shrink = true"
        );
        assert_eq!(one.prefixes.len(), 3);
        assert_eq!(
            one.take_up(text("192.0.2.1\n"), &state),
            Outcome::Unchanged,
            "reported once"
        );
        one.redefine(list(true));
        assert_eq!(one.take_up(text("192.0.2.1\n"), &state), Outcome::Updated);
        assert_eq!((one.prefixes.len(), one.problem.as_ref()), (1, None));
    }

    #[test]
    fn a_server_that_requests_a_later_attempt_gets_none_before() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        let mut one = One::new(list(false), &state);
        let hour = Duration::from_secs(3600);
        let slow = || Failure {
            why: "status 429".to_owned(),
            retry_after: Some(2 * hour),
        };
        let before = Instant::now();
        assert_eq!(one.take_up(Err(slow()), &state), Outcome::Failed);
        assert!(one.due >= before + 2 * hour && one.due <= Instant::now() + 2 * hour);
        // A reload changes nothing about it, unless the source is another one.
        one.redefine(list(false));
        assert!(one.due >= before + 2 * hour);
        one.redefine(list(true));
        assert!(one.due >= before + 2 * hour);
        one.redefine(BanList {
            url: Some(url("http://192.0.2.2/")),
            ..list(true)
        });
        assert!(one.due <= Instant::now());
        assert_eq!(one.take_up(Err(slow()), &state), Outcome::Unchanged);
        assert_eq!(one.take_up(text("192.0.2.1\n"), &state), Outcome::Updated);
        assert!(one.due <= Instant::now() + hour);
    }

    #[test]
    fn failures_keep_the_content_and_the_copy_outlives_the_agent() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateDirectory::at(folder.path());
        let mut one = One::new(list(false), &state);
        assert_eq!(
            one.take_up(text("192.0.2.1\n192.0.2.2\n"), &state),
            Outcome::Updated
        );
        for wrong in [
            Err(Failure::from("the server is away".to_owned())),
            text("<html>\n<body>\n"),
        ] {
            assert_eq!(one.take_up(wrong, &state), Outcome::Failed);
            assert!(one.due <= Instant::now() + 4 * FIRST_PAUSE);
        }
        let before = one.prefixes.clone();
        let next = One::new(list(false), &state);
        assert_eq!(next.prefixes, before);
        assert_eq!(next.valid_origin().unwrap().etag.as_deref(), Some("\"e\""));
        // It was checked just now.
        assert!(next.due > Instant::now() + Duration::from_secs(3000));
        let elsewhere = BanList {
            url: Some(url("http://192.0.2.2/")),
            ..list(false)
        };
        let next = One::new(elsewhere, &state);
        assert!(next.valid_origin().is_none() && next.due <= Instant::now());
        assert_eq!(
            next.prefixes, before,
            "until the other source has been read"
        );
    }
}
