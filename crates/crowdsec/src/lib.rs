//! CrowdSec's local API (LAPI) from the side of a bouncer and of a machine: reads the stream of decisions, keeps the set
//! of decisions in effect, and writes alerts.

mod alert;
mod decisions;
mod duration;
mod lapi;
mod stream;
mod text;

pub use alert::{Alert, Machine};
pub use decisions::{Decisions, Effect, Ignored, SavedDecision, Update};
pub use duration::{LONGEST, go_duration};
pub use lapi::{Bouncer, LapiError, Pull};
pub use stream::{Decision, StreamError, StreamPage};
