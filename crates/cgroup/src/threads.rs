//! Threads for work that may block. A host without free process IDs or memory starts none: the caller tries again later.

use std::thread::Builder;

use super::error::GroupsError;

#[cfg(test)]
std::thread_local! {
    /// Whether this thread starts no others, as on a host without free process IDs.
    pub static NONE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A thread with a name. In a test, the host may have no memory for its stack.
pub fn named(name: &str) -> Builder {
    let builder = Builder::new().name(name.to_owned());
    #[cfg(test)]
    if NONE.get() {
        return builder.stack_size(1 << 60);
    }
    builder
}

/// Starts a thread that does `work`.
///
/// # Errors
///
/// When the host refuses the thread.
pub fn start(name: &'static str, work: impl FnOnce() + Send + 'static) -> Result<(), GroupsError> {
    let started = named(name).spawn(work);
    started
        .map(drop)
        .map_err(|source| GroupsError::Thread { name, source })
}
