//! The packet engine: limits on packets in the kernel, and requests about them.

mod bans;
mod change;
mod counts;
mod decisions;
mod engine;
mod escalation;
mod in_effect;
mod interfaces;
mod lifted_bans;
mod proving;
mod refusal_counts;
mod saved_bans;
mod shared_bans;
mod status;
mod switch;

pub use change::Purpose;
pub use counts::restored_at;
pub use decisions::DecisionBans;
pub use engine::{Evaluated, PERIOD, PacketEngine, Packets};
pub use lifted_bans::Whose;
pub use proving::Proving;
