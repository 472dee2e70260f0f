//! Bounds-checked access to the frames of each hook.

mod copied;
mod reads;
mod tc;
mod writable;
mod xdp;

pub use copied::CopiedFrame;
pub use tc::TcFrame;
pub use writable::Writable;
pub use xdp::XdpFrame;
