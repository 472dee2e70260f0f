//! A ban of a prefix: its owner, its end and its reason.

use std::sync::Arc;

use common::ban::Ban;
use config::PrefixKey;

/// A prefix and an owner, who has one ban of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BanKey {
    pub prefix: PrefixKey,
    pub owner: Owner,
    /// The last 64 bits of the IPv6 address that was named instead of its /64; 0 for the prefix itself.
    pub interface_id: u64,
}

/// The owner of a ban.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    pub by: By,
    /// The user or program, or the limit. `None` for CrowdSec and other hosts, and where it is not known.
    pub name: Option<Arc<str>>,
}

/// One owner's ban of a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its end, in nanoseconds of the monotonic clock.
    pub until: u64,
    /// Its start, in seconds since 1970; 0 if it is not known.
    pub since: u64,
    /// Its start, in nanoseconds since boot (`CLOCK_BOOTTIME`), which no change of the wall clock affects; negative if it is
    /// from before the boot, `None` if it is not known.
    pub began: Option<i64>,
    /// Its reason, if it is known.
    pub why: Option<Why>,
}

/// The reason of a ban.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Why {
    /// The operator's text, the limit's, or the scenario of a decision by CrowdSec.
    pub text: Arc<str>,
    /// The ID of CrowdSec's decision.
    pub decision: Option<u64>,
    /// The host that made it, if that is another one, and the owner there.
    pub host: Option<(Arc<str>, Owner)>,
}

/// The author of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum By {
    /// A user or a program, by `weir ban`.
    Operator,
    /// A limit with `escalate`.
    Limit,
    /// A decision of CrowdSec's local API.
    CrowdSec,
    /// Another host of the cluster.
    Host,
}

impl By {
    /// Every author.
    pub const ALL: [Self; 4] = [Self::Operator, Self::Limit, Self::CrowdSec, Self::Host];
    /// The authors on this host: see [`Ban::own_until`].
    pub const OWN: [Self; 2] = [Self::Operator, Self::Limit];
    /// The authors elsewhere, whose bans do not apply to exceptions.
    pub const ELSEWHERE: [Self; 2] = [Self::CrowdSec, Self::Host];

    /// Whether it is on this host.
    #[must_use]
    pub fn is_own(self) -> bool {
        Self::OWN.contains(&self)
    }

    /// Whether its bans do not apply to exceptions.
    #[must_use]
    pub fn is_elsewhere(self) -> bool {
        Self::ELSEWHERE.contains(&self)
    }

    /// The author of [`Ban::own_until`].
    #[must_use]
    pub const fn of(ban: &Ban) -> Self {
        if ban.is_by_limit() {
            Self::Limit
        } else {
            Self::Operator
        }
    }
}

impl Owner {
    /// An author without a name.
    #[must_use]
    pub const fn unnamed(by: By) -> Self {
        Self { by, name: None }
    }

    #[must_use]
    pub fn named(by: By, name: &str) -> Self {
        Self {
            by,
            name: Some(name.into()),
        }
    }
}

impl BanKey {
    /// An owner's ban of a whole prefix.
    #[must_use]
    pub const fn new(prefix: PrefixKey, owner: Owner) -> Self {
        Self {
            prefix,
            owner,
            interface_id: 0,
        }
    }

    /// The ban of a prefix by an author who has one without a name.
    #[must_use]
    pub const fn of(prefix: PrefixKey, by: By) -> Self {
        Self::new(prefix, Owner::unnamed(by))
    }

    /// The first key that a ban of this prefix may have.
    pub(super) const fn first(prefix: PrefixKey) -> Self {
        Self::of(prefix, By::Operator)
    }
}
