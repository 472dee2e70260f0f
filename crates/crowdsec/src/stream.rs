//! The document of `/v1/decisions/stream`.

use std::borrow::Cow;

use serde::Deserialize;
use thiserror::Error;

use crate::text::plain;

/// A document that is no stream of decisions.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum StreamError {
    #[error("the reply is no list of decisions: {0}")]
    Json(String),
    /// It is JSON, and neither list is there.
    #[error("the reply is no list of decisions: it has neither \"new\" nor \"deleted\"")]
    Missing,
}

/// One reply of the stream.
#[derive(Debug, Deserialize)]
pub struct StreamPage<'t> {
    /// Decisions in effect that the bouncer has not received yet; on a full pull, all of them.
    #[serde(borrow, default)]
    new: Option<Option<Vec<Decision<'t>>>>,
    /// Decisions that ended.
    #[serde(borrow, default)]
    deleted: Option<Option<Vec<Decision<'t>>>>,
}

/// One decision. Fields that Weir does not need are left out; missing ones count as empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Decision<'t> {
    #[serde(default)]
    pub id: u64,
    /// The origin: `crowdsec`, `cscli`, `CAPI`, `lists`, or a program's name.
    #[serde(borrow, default)]
    pub origin: Cow<'t, str>,
    #[serde(borrow, default)]
    pub scenario: Cow<'t, str>,
    /// `Ip`, `Range`, `Country`, …
    #[serde(borrow, default)]
    pub scope: Cow<'t, str>,
    /// `ban`, `captcha`, …
    #[serde(borrow, default, rename = "type")]
    pub kind: Cow<'t, str>,
    /// The address or range.
    #[serde(borrow, default)]
    pub value: Cow<'t, str>,
    /// The remaining time, as Go writes it.
    #[serde(borrow, default)]
    pub duration: Cow<'t, str>,
    /// Whether it is not to be enforced.
    #[serde(default)]
    pub simulated: Option<bool>,
}

impl<'t> StreamPage<'t> {
    /// Parses a reply.
    ///
    /// # Errors
    ///
    /// When it is no such document.
    pub fn parse(body: &'t [u8]) -> Result<Self, StreamError> {
        let page: Self = serde_json::from_slice(body)
            .map_err(|error| StreamError::Json(plain(&error.to_string())))?;
        if page.new.is_none() && page.deleted.is_none() && !has_lists(body) {
            return Err(StreamError::Missing);
        }
        Ok(page)
    }

    /// The decisions that are new.
    #[must_use]
    pub fn new_decisions(&self) -> &[Decision<'t>] {
        self.new
            .as_ref()
            .and_then(Option::as_deref)
            .unwrap_or_default()
    }

    /// The decisions that ended.
    #[must_use]
    pub fn deleted(&self) -> &[Decision<'t>] {
        self.deleted
            .as_ref()
            .and_then(Option::as_deref)
            .unwrap_or_default()
    }
}

/// Whether either list is there; serde reads `null` and a missing list alike.
fn has_lists(body: &[u8]) -> bool {
    let keys = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(body)
        .unwrap_or_default();
    keys.contains_key("new") || keys.contains_key("deleted")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_page_has_new_and_deleted_decisions() {
        let body = br#"{"deleted":null,"new":[{"duration":"3h59m","id":7,"origin":"cscli","scenario":"manual \"x\"",
            "scope":"Ip","type":"ban","value":"192.0.2.1","uuid":"more","simulated":false}]}"#;
        let page = StreamPage::parse(body).unwrap();
        assert!(page.deleted().is_empty());
        let [decision] = page.new_decisions() else {
            panic!("{page:?}")
        };
        assert_eq!(
            (decision.id, &*decision.scenario, &*decision.value),
            (7, "manual \"x\"", "192.0.2.1")
        );
        for empty in [
            r#"{"new":null,"deleted":null}"#,
            r#"{"new":[]}"#,
            r#"{"deleted":null}"#,
        ] {
            let page = StreamPage::parse(empty.as_bytes()).unwrap();
            assert!(page.new_decisions().is_empty() && page.deleted().is_empty());
        }
    }

    #[test]
    fn rubbish_is_an_error() {
        assert_eq!(StreamPage::parse(b"{}").unwrap_err(), StreamError::Missing);
        assert_eq!(
            StreamPage::parse(br#"{"message":"hello"}"#).unwrap_err(),
            StreamError::Missing
        );
        let deep = "[".repeat(100_000);
        for rubbish in [
            "",
            "null",
            "[]",
            "<html>",
            "{\"new\":",
            "{\"new\":7}",
            "{\"new\":[7]}",
            &deep,
        ] {
            assert!(
                StreamPage::parse(rubbish.as_bytes()).is_err(),
                "{rubbish:.20}"
            );
        }
        // A cut reply, at every byte.
        let whole = br#"{"deleted":[],"new":[{"duration":"3h","id":7,"scope":"Ip","type":"ban","value":"192.0.2.1"}]}"#;
        for end in 0..whole.len() {
            assert!(StreamPage::parse(&whole[..end]).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = StreamPage::parse(&body);
        }
    }
}
