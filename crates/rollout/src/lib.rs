//! The rules of a fleet: signed releases in a store, tried on a few hosts, followed by the others, rolled back by
//! themselves. Without I/O, so that agent, command line and simulation call the same code.
//!
//! # Model
//!
//! A *stream* is a place in the store ([`index`]), with one newest release, its *head*. A publisher signs a release of rules
//! ([`document`], [`publish`]) with the next version. Each host reads the head every `every`, verifies it ([`host`],
//! [`refusal`]), and is a canary or not ([`canary`]). A canary begins at once: it merges the rules into its own file ([`merge`]), puts them in effect
//! on trial, and checks its health ([`health`]) every second for the bake. If a check fails, it rolls them back and reports that. If
//! all pass, it keeps the rules and reports that. The other hosts begin when the canaries have held ([`board`]), with a bake
//! of their own. [`overview`] counts them. No host leads, and none waits for the store with what is in effect.
//!
//! A host may follow several streams: the fleet's, and those of teams, which set limits with a prefix ([`rules`]). Each has a
//! state machine of its own. The agent tries the rules of one stream at a time.
//!
//! # What holds
//!
//! | promise | who would break it | why it holds |
//! |---|---|---|
//! | A team sets nothing but its own limits | a publisher with a team's key | names, tables and numbers are checked against the host's file, in a release and again when it is merged |
//! | Only signed rules count | the store, or who writes to it | signatures over all of a document; its kind, stream and version are signed |
//! | No host returns to older rules than it has seen, except by its own rollback or a signed abort | a store that replays, or was restored | the highest accepted version is saved before the trial |
//! | Two documents of one version are never both kept by hosts that read both | two publishers at once | neither is begun, a trial ends, and the conflict stops the version for all others |
//! | Bad rules reach at most the canaries | a follower that trusts time, or a silent store | others begin only when canaries have reported that they held, and none that it failed |
//! | Bad rules are back within one check | waiting for the store, or for the bake's end | the host decides by its own health |
//! | Some host is a canary | a share of few hosts | the publisher counts hosts: `max(1, ⌊share · hosts⌋)` |
//! | A bake is never shortened | a wall clock that is set | time is that between checks on the monotonic clock, at most 2 s each |
//! | Rules in effect never expire | a wall clock that is set | expiry concerns only hosts that have not begun |
//! | One request a host and `every` | reports besides reads | a report takes the place of a read |
//!
//! "Bad" is what a health check of the bake finds. Rules that turn bad later reach all hosts.
//!
//! # Bounds
//!
//! - Canaries: of the hosts that had reported when the release was signed, exactly `max(1, ⌊share · hosts⌋)`. Of hosts that
//!   appear later, each with the same probability.
//! - With a bake of at least 4 · `every`, all hosts that reach the store have the rules in effect within `every` of the last
//!   canary's report, if the clocks of hosts agree to a twentieth of `every`, and within 2 · `every` otherwise. A shorter bake
//!   may take 3 · `every` longer.
//! - With several streams, rules of one wait for the bake of another on the same host.
//! - An abort is carried out within 2 · `every`, since a report may take the place of a read.
//! - If a canary that began ends without a report, the others are enough when they are more than those that are still on
//!   trial, after 2 · `every` + 1 s.
//! - If no canary begins, nobody does; after 6 · `every` this is an event.
//! - A host renews its report every hour. Nothing removes the reports of hosts that are gone: publishers count them among the
//!   hosts until somebody deletes `reports/HOST`.
//! - A host whose agent ends during the bake begins a second time, and then reports a failure.
//! - A host whose state is lost takes any release that has not expired. A release that has expired reaches no new host.
//! - A host that was away while a release selected it, and that the present one does not select, keeps its rules. Roles that
//!   are released separately have a stream each.
//!
//! # Trust
//!
//! Reports are not signed, and each report says itself whether it counts. Who can write to the store, such as any of its hosts,
//! can
//!
//! - stop releases, by a report of a failure;
//! - pretend that canaries have held: with more forged reports than real canaries on trial, others begin 2 · `every` + 1 s after
//!   they first read one. It need not withhold any report. Each host still has its own bake;
//! - make more hosts canaries, by forged reports of many hosts before a release is signed. The publisher prints the number of
//!   hosts, which shows it;
//! - withhold a release or an abort, and make publishers skip up to 1,000 versions with a report.
//!
//! It cannot put rules in effect that no publisher signed.

pub mod board;
pub mod canary;
pub mod document;
pub mod envelope;
pub mod health;
pub mod host;
pub mod index;
pub mod key;
pub mod keyring;
pub mod merge;
pub mod overview;
pub mod publish;
pub mod refusal;
pub mod rules;
pub mod sign;
mod text;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use text::{brief, digest};
