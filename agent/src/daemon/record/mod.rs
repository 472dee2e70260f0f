//! `weir record`: how the rates of sources are distributed, while the agent runs.
//!
//! The kernel programs count packets of each source in parts of a second, before their verdict. A [`Recorder`] takes the
//! parts that are over, summarises them as [`crate::suggest::Collector`] does packets of a capture, and writes a
//! [`RecordFile`].

mod file;
mod recorder;
mod recording;
mod sampling;

pub use file::{RecordFile, RecordFileError, is_recording, note};
pub use recorder::Recorder;
