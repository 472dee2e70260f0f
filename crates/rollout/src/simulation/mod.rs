//! A thousand hosts with the real state machine on one store, on simulated clocks.
//!
//! The promises, and their adversaries in this world:
//!
//! | promise | who breaks it |
//! |---|---|
//! | bad rules reach canaries only | a follower that counts time, or takes silence for health; a canary that fails while it cannot reach the store |
//! | bad rules are back within one check | a canary without the store |
//! | a bake is never shortened | clocks that are set, forwards and back; an agent that hangs |
//! | no older rules than seen | a store that replays, was restored, is empty; a host that reboots meanwhile |
//! | one document a version | two publishers at once; hosts that compare versions only |
//! | some host is a canary | shares of few hosts |
//! | all within 10 s of the bake's end | hosts that read just before it |
//! | one request a host and `every` | reports besides reads |
//! | one trial at a time on a host | two streams with the same canaries |
//! | good rules arrive at last | a store that lost the reports; canaries that are switched off |
//!
//! `naive` has hosts that lack one idea each, and shows that the world notices.

mod naive;
mod publishing;
mod scenarios;
mod store;
mod streams;
mod world;
