//! Interfaces and the hooks on them.

use aya::programs::Xdp;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use serde::{Deserialize, Serialize};

use super::Datapath;
use super::error::{AttachError, LoadError};

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// In the driver.
    Native,
    /// By the kernel for any driver: as slow as what comes after it.
    Generic,
}

/// A hook that is ours.
#[derive(Debug)]
pub struct Attached {
    /// The interface's name.
    pub interface: String,
    /// Its index.
    pub index: u32,
    /// How.
    pub mode: AttachMode,
    /// Whether this agent attached it, and not one before.
    is_new: bool,
    /// Keeps the hook as long as it lives; the pin keeps it longer.
    #[expect(dead_code, reason = "held for what dropping it does")]
    link: FdLink,
}

impl std::fmt::Display for AttachMode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
        })
    }
}

impl AttachMode {
    /// What the hook's pin is called: a link does not tell its mode, and `status` has to.
    const fn hook(self) -> &'static str {
        match self {
            Self::Native => "xdp",
            Self::Generic => "xdpgeneric",
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Native => Self::Generic,
            Self::Generic => Self::Native,
        }
    }
}

impl Datapath {
    /// Attaches the policy to an interface, in place of the one that an earlier agent left there.
    ///
    /// # Errors
    ///
    /// When the interface does not exist, its hook is taken or its driver cannot.
    pub fn attach(&mut self, interface: &str, mode: AttachMode) -> Result<(), AttachError> {
        let index = nix::net::if_::if_nametoindex(interface)
            .map_err(|_| AttachError::NoInterface { interface: interface.to_owned(), present: names().join(", ") })?;
        let pin = self.pins.link(interface, mode.hook());
        // An interface has one XDP hook. Only where the operator asked for another mode is there a gap.
        let _ = std::fs::remove_file(self.pins.link(interface, mode.other().hook()));
        let program = self.xdp_mut()?;
        let (link, is_new) = match take_over(program, &pin) {
            Some(link) => (link, false),
            None => {
                let mode = match mode {
                    AttachMode::Native => XdpMode::Driver,
                    AttachMode::Generic => XdpMode::Skb,
                };
                let link = program
                    .attach_to_if_index(index, mode)
                    .and_then(|id| program.take_link(id))
                    .map_err(|error| AttachError::from_program(interface, error))?;
                (pinned(link, &pin, interface)?, true)
            }
        };
        self.attached.push(Attached { interface: interface.to_owned(), index, mode, is_new, link });
        Ok(())
    }

    /// What is attached.
    #[must_use]
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// Takes everything out of the kernel.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn detach(&self) -> Result<(), LoadError> {
        self.pins.clear()?;
        Ok(())
    }

    /// Undoes what this agent did: what an earlier one left in force stays.
    pub fn abandon(self) {
        for attached in self.attached.iter().filter(|attached| attached.is_new) {
            let _ = std::fs::remove_file(self.pins.link(&attached.interface, attached.mode.hook()));
        }
        self.pins.clear_unless_linked();
    }

    /// Detaches from interfaces that an earlier agent held and this one does not.
    pub fn release_others(&self, wanted: &[String]) {
        for (_, interface, path) in self.pins.links() {
            if !wanted.contains(&interface) {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// The link that an earlier agent pinned, now with our program: replaced at once, so that no packet slips through.
fn take_over(program: &mut Xdp, pin: &std::path::Path) -> Option<FdLink> {
    let link = PinnedLink::from_pin(pin).ok()?;
    let link = XdpLink::try_from(FdLink::from(link)).ok()?;
    let link = program.attach_to_link(link).and_then(|id| program.take_link(id)).ok();
    if link.is_none() {
        // The interface it was for is gone, and with it the link: its name is free for a new one.
        let _ = std::fs::remove_file(pin);
    }
    FdLink::try_from(link?).ok()
}

fn pinned(link: XdpLink, pin: &std::path::Path, interface: &str) -> Result<FdLink, AttachError> {
    let fail = |reason: String| AttachError::Pin { interface: interface.to_owned(), reason };
    let link = FdLink::try_from(link).map_err(|error| fail(error.to_string()))?;
    Ok(link.pin(pin).map_err(|error| fail(error.to_string()))?.into())
}

/// Names of this host's interfaces.
#[must_use]
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = nix::net::if_::if_nameindex()
        .map(|list| list.iter().map(|interface| interface.name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort();
    names
}

/// The interfaces of the default routes.
///
/// # Errors
///
/// When the routing table cannot be read, or has no default route.
pub fn default_route_interfaces() -> std::io::Result<Vec<String>> {
    // Destination and mask of an IPv4 default route are both 0; IPv6's is ::/0 and its last column the interface.
    let ipv4 = std::fs::read_to_string("/proc/net/route")?;
    let ipv6 = std::fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default();
    let mut names: Vec<String> = ipv4
        .lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            matches!(columns.get(1..8)?, ["00000000", .., "00000000"]).then(|| columns[0].to_owned())
        })
        .chain(ipv6.lines().filter_map(|line| {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let is_default = columns.first()?.bytes().all(|digit| digit == b'0') && *columns.get(1)? == "00";
            columns.last().filter(|name| is_default && **name != "lo").map(|name| (*name).to_owned())
        }))
        .collect();
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err(std::io::Error::other("this host has no default route: name the interfaces in a config"));
    }
    Ok(names)
}
