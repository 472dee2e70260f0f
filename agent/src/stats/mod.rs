//! The documents behind `status`, `limits`, `top` and `show`, read from the kernel's maps.

mod counted;
mod key_text;
mod reader;
pub mod samples;
pub mod source_count;

pub use api::limit::{ClassShare, Count, LevelStatus, LimitDefinition, LimitStatus, WaitingStatus};
pub use api::source::{
    BanHolder, BanStatus, BansRow, LastRefused, OpenConnection, Precision, SourceLimit,
    SourceRequests, SourceStatus, TopRow,
};
pub use api::status::{
    BypassStatus, InterfaceState, InterfaceStatus, ProofStatus, SourcesStatus, Status, Totals,
};
pub use api::view::{LiveDocument, MOST_BANS, MOST_SOURCES, Sort, SourceLoad, View, ViewQuery};
pub use counted::{Baseline, Counted, CountedDocument, name_at, names, of_limit, rows};
pub use host::monotonic_nanoseconds;
pub(crate) use key_text::{key_text, prefix_of};
pub use reader::{Extent, Live, Reader, ResetError, ResetSources};
pub(crate) use reader::{bypass_status, holder, owner_text};
