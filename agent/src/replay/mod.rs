//! `weir replay`: a config evaluated over captured packets, in user space, by the code that enforces it.
//!
//! [`capture`] reads packets, [`Clock`] converts their times to the kernel's clock, [`Local`] determines their
//! direction, and an [`Evaluation`] runs `common::program` on a table in memory. The size of the table depends on
//! `max_sources`, not on the length of the capture.

pub mod capture;
mod captures;
mod clock;
mod comparison;
mod copies;
mod direction;
mod evaluation;
mod frame;
mod notes;
mod page;
mod program;
mod refused;
mod report;
mod table;
mod timeline;

pub use captures::{Outcome, Progress, ReadCapture, read, replay};
pub use clock::{Clock, ClockTroubles};
pub use comparison::Comparison;
pub use direction::Local;
pub use evaluation::{Evaluated, Evaluation, Tally};
pub use frame::CapturedFrame;
pub use page::replay_page;
pub(crate) use page::{captured, captures};
pub use program::{MemoryProgram, Verdict};
pub use report::{
    CaptureReport, ClassReport, ComparisonReport, ConfigReport, DifferingSource, LimitReport,
    Report, SourceReport,
};
pub use table::{Table, TableMemory};
pub use timeline::TimelineDocument;
