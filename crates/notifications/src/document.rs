//! The JSON document of a notification.

use std::collections::BTreeMap;

use api::Event;
use config::human;
use serde::Serialize;

use crate::batch::Batch;

/// The most events that `text` lists.
const LISTED: usize = 5;

/// The document on a command's standard input and in a webhook's body.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    /// The same in each attempt, so that a receiver can recognise a repetition.
    pub id: &'a str,
    /// When the document was made, in seconds since 1970.
    pub time: f64,
    pub host: &'a str,
    /// The name of the `[[notify]]`.
    pub notify: &'a str,
    /// A summary for people, of one line per event.
    pub text: String,
    /// A few events of each kind, oldest first.
    pub events: Vec<&'a Event>,
    /// By verdict: bans, or events of other kinds, that are not in `events`.
    pub left_out: &'a BTreeMap<&'static str, u64>,
    /// Notifications that were dropped since the last delivered one, because they could not be delivered.
    pub undelivered: u64,
}

impl<'a> Document<'a> {
    pub fn new(
        id: &'a str,
        time: f64,
        host: &'a str,
        notify: &'a str,
        batch: &'a Batch,
        undelivered: u64,
    ) -> Self {
        let (text, events) = (
            text(host, batch),
            batch.events.iter().map(|event| &**event).collect(),
        );
        Self {
            id,
            time,
            host,
            notify,
            text,
            events,
            left_out: &batch.left_out,
            undelivered,
        }
    }

    /// A document without events, by which an operator tests the receiver.
    pub fn test(
        id: &'a str,
        time: f64,
        host: &'a str,
        notify: &'a str,
        nothing: &'a Batch,
    ) -> Self {
        Self {
            text: format!("weir on {host}: a test of notify {notify:?}"),
            ..Self::new(id, time, host, notify, nothing, 0)
        }
    }

    /// The JSON text. Its types cannot fail to serialise.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The `text` of a document.
fn text(host: &str, batch: &Batch) -> String {
    let mut lines: Vec<String> = batch
        .events
        .iter()
        .take(LISTED)
        .map(|event| line(event))
        .collect();
    let unlisted = batch.events.len().saturating_sub(LISTED);
    if unlisted > 0 {
        lines.push(format!("and {unlisted} more events"));
    }
    lines.extend(
        batch
            .left_out
            .iter()
            .map(|(kind, count)| format!("and {} more: {kind}", human::number(*count))),
    );
    match &lines[..] {
        [one] => format!("weir on {host}: {one}"),
        _ => format!("weir on {host}:\n{}", lines.join("\n")),
    }
}

fn line(event: &Event) -> String {
    let about = [
        event.source.as_ref(),
        event.limit.as_ref(),
        event.group.as_ref(),
    ];
    let about: Vec<&str> = about.into_iter().flatten().map(String::as_str).collect();
    let subject = if about.is_empty() {
        String::new()
    } else {
        format!(" {}", about.join(", "))
    };
    human::printable(
        &format!("{}{subject}: {}", event.verdict.name(), event.reason).replace('\n', " "),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use api::EventKind;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_document_names_events_and_counts_the_others() {
        let mut batch = Batch::default();
        let event = Event {
            source: Some("192.0.2.7".to_owned()),
            limit: Some("web".to_owned()),
            time: 1_763_718_281.5,
            ..Event::now(EventKind::Banned, 1, "for 10 min".to_owned())
        };
        batch.add(&Arc::new(event));
        batch.add(&Arc::new(Event::now(
            EventKind::Banned,
            99,
            "others".to_owned(),
        )));
        let document = Document::new("8f-1", 1_763_718_282.0, "host-1", "pager", &batch, 2).json();
        let mut document: Value = serde_json::from_str(&document).unwrap();
        let events = document["events"].take();
        assert_eq!(
            (&events[0]["verdict"], &events[0]["source"]),
            (&json!("banned"), &json!("192.0.2.7"))
        );
        assert_eq!(
            document,
            json!({
                "id": "8f-1", "time": 1_763_718_282.0, "host": "host-1", "notify": "pager", "events": null,
                "text": "weir on host-1:\nbanned 192.0.2.7, web: for 10 min\nand 99 more: banned",
                "left_out": { "banned": 99 }, "undelivered": 2,
            })
        );
    }

    #[test]
    fn the_text_of_one_event_is_one_line_without_control_characters() {
        let mut batch = Batch::default();
        batch.add(&Arc::new(Event::now(
            EventKind::StoreDown,
            3,
            "no\u{1b}[2J\nreply".to_owned(),
        )));
        let text = text("host-1", &batch);
        assert!(text.starts_with("weir on host-1: store-down: no"), "{text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
