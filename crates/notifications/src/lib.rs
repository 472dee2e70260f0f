//! Commands and webhooks that receive events: `[[notify]]`.
//!
//! ```text
//! EventLog::push → Notifier (observer) → Outbox of each [[notify]] → its thread → command or webhook
//! ```
//!
//! An [`Outbox`](outbox::Outbox) decides what is sent and when; it has no clock and does nothing itself. A storm of events
//! costs one short lock for each of them: an outbox names a few of a kind, and counts the others. Whoever pushes an event
//! never waits for a receiver.

mod batch;
mod command;
mod document;
mod notifier;
mod outbox;
mod subject;
mod target;
mod webhook;

pub use notifier::Notifier;
pub use subject::subject;
