//! `weir suggest`: suggests limits for captured traffic, with their basis.
//!
//! [`Collector`] summarises packets as [`Traffic`], [`decide`] derives a [`Decision`], and [`limits_toml`] formats it:
//! all without I/O. [`capture`] reads captures.

pub mod capture;
mod classes;
mod collect;
mod decide;
mod gap;
mod limit;
mod page;
mod report;
mod saved;
mod text;
mod traffic;
mod window;

pub use classes::{LARGEST_MULTIPLIER, SuggestedClass};
pub use collect::Collector;
pub use decide::{Decision, LEAST_SECONDS, SuggestError, decide};
pub use limit::{Basis, LEAST_SOURCES, Lacking, Pace, SuggestedLimit, Together, WindowBasis};
pub use page::{LimitPlots, limit_plots, suggest_page};
pub use report::SuggestReport;
pub use saved::SavedCollector;
pub use text::{Refusal, limits_toml, read_once};
pub use traffic::{
    Counts, Service, ServiceTraffic, SourceTraffic, Traffic, Transport, Unit, WINDOWS,
};
