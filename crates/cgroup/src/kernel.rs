//! The kernel programs of process groups: each group's network, and process starts.
//!
//! They are a separate object from the one for limits on packets, with separate maps. Links, states and counters of a
//! group's network are pinned, so that they stay in effect without an agent, and the next agent continues them.

use std::error::Error;

use aya::{Ebpf, EbpfLoader};
use bpf::objects::GROUPS;
use bpf::{is_kernel_too_old, kernel_release};

use super::error::GroupsError;

pub fn load(loader: &mut EbpfLoader<'_>) -> Result<Ebpf, GroupsError> {
    if GROUPS.is_empty() {
        return Err(wrong(
            "loading the programs for groups",
            "this agent was built without them: use cargo xtask build",
        ));
    }
    loader
        .load(GROUPS)
        .map_err(|error| kernel("loading the programs for groups", &error))
}

pub fn foreign() -> GroupsError {
    wrong(
        "loading the programs for groups",
        "the eBPF object in this binary is not that of this agent",
    )
}

/// The error for a program that the kernel rejects.
pub fn refused(what: &str, error: &(dyn Error + 'static)) -> GroupsError {
    if is_kernel_too_old() {
        return wrong(
            what,
            &format!(
                "Linux {} is too old for it: install 5.15 or newer",
                kernel_release()
            ),
        );
    }
    kernel(what, error)
}

/// The error with all causes: aya's errors name a system call, and their causes the reason.
pub fn kernel(what: &str, error: &(dyn Error + 'static)) -> GroupsError {
    let mut reason = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        reason = format!("{reason}: {error}");
        cause = error.source();
    }
    GroupsError::Kernel {
        what: what.to_owned(),
        reason,
    }
}

pub fn wrong(what: &str, reason: &str) -> GroupsError {
    GroupsError::Kernel {
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}
