//! One check of the host.

use serde::Serialize;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It is as required.
    Good,
    /// It works with restrictions, or it is missing but this config does not use it.
    Limited,
    /// The config requires it.
    Missing,
}

/// One check of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: String,
    pub verdict: Verdict,
    pub found: String,
    /// The fix: a command where there is one.
    pub fix: Option<String>,
}

impl Check {
    pub(super) fn good(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            verdict: Verdict::Good,
            found: found.into(),
            fix: None,
        }
    }

    pub(super) fn limited(
        name: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            verdict: Verdict::Limited,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    pub(super) fn missing(
        name: impl Into<String>,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            verdict: Verdict::Missing,
            found: found.into(),
            fix: Some(fix.into()),
        }
    }

    /// A failed check: missing if it is needed, else limited.
    pub(super) fn lacking(
        is_needed: Needed,
        name: &str,
        found: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        match is_needed {
            Needed::Yes => Self::missing(name, found, fix),
            Needed::No => Self::limited(name, found, fix),
        }
    }
}

/// Whether the config needs the checked feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needed {
    Yes,
    No,
}

impl From<bool> for Needed {
    fn from(is_needed: bool) -> Self {
        if is_needed { Self::Yes } else { Self::No }
    }
}
