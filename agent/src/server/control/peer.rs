//! The permissions of a client's user.

use api::request::Request;
use tokio::net::UnixStream;

use crate::ban_owner;
use crate::daemon::events::Follower;

/// The longest request, in bytes.
const LONGEST_REQUEST: u64 = 256 * 1024;
/// The longest request of a client that may make changes: it may contain a config's text.
const LONGEST_CHANGE: u64 = 32 * 1024 * 1024;

/// The client's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The superuser.
    Root,
    /// The user that runs the agent, if that is not root.
    Own,
    /// Another user with access to the socket.
    Other,
}

impl Peer {
    pub(super) fn of(stream: &UnixStream) -> Self {
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == 0 => Self::Root,
            Ok(peer) if peer.uid() == nix::unistd::geteuid().as_raw() => Self::Own,
            _ => Self::Other,
        }
    }

    pub(super) const fn follower(self) -> Follower {
        match self {
            Self::Root | Self::Own => Follower::Operator,
            Self::Other => Follower::Member,
        }
    }

    /// The longest request of this user, in bytes.
    pub(super) const fn longest_request(self) -> u64 {
        match self {
            Self::Root | Self::Own => LONGEST_CHANGE,
            Self::Other => LONGEST_REQUEST,
        }
    }

    /// The request with what this user may cause: a user who may not ban has no source banned by `escalate`, either. A
    /// ban without an owner is this user's.
    pub(super) fn restricted(self, mut request: Request) -> Request {
        match &mut request {
            Request::Decide { question } => {
                question.bans_nobody = self == Self::Other;
                question.forces_nothing = self == Self::Other;
            }
            Request::Ban { orders } => {
                for order in orders {
                    order.owner.get_or_insert_with(|| self.name());
                }
            }
            Request::Allow { owner, .. } => {
                owner.get_or_insert_with(|| self.name());
            }
            Request::Unban { user, .. } => {
                user.get_or_insert_with(|| self.name());
            }
            _ => {}
        }
        request
    }

    /// The owner of its bans. The database of users may be slow, so it is not asked.
    fn name(self) -> String {
        match self {
            Self::Root => ban_owner::ROOT.to_owned(),
            Self::Own | Self::Other => format!("uid {}", nix::unistd::geteuid()),
        }
    }

    /// Checks whether this user may make the request.
    pub(super) fn check(self, request: &Request) -> Result<(), String> {
        if self == Self::Other && !request.only_asks() {
            return Err(
                "this command changes the agent's state, which requires root: run it with sudo"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
