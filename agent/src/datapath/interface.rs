//! Interfaces and the hooks on them.

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::Xdp;
use serde::Serialize;

use super::error::{AttachError, LoadError};
use super::{Datapath, PinDirectory};

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    /// Keeps the hook as long as it lives; the pin keeps it longer.
    link: FdLink,
}

/// What each hook's pin is called.
const XDP: &str = "xdp";

impl Datapath {
    /// Attaches the policy to an interface, in place of the one that an earlier agent left there.
    ///
    /// # Errors
    ///
    /// When the interface does not exist, its hook is taken or its driver cannot.
    pub fn attach(&mut self, interface: &str, mode: AttachMode) -> Result<(), AttachError> {
        let index = nix::net::if_::if_nametoindex(interface).map_err(|_| AttachError::NoInterface {
            interface: interface.to_owned(),
            present: names().join(", "),
        })?;
        let pin = self.pins.link(interface, XDP);
        let program = self.xdp_mut()?;
        let link = match take_over(program, &pin) {
            Some(link) => link,
            None => {
                let mode = match mode {
                    AttachMode::Native => XdpMode::Driver,
                    AttachMode::Generic => XdpMode::Skb,
                };
                let link = program
                    .attach_to_if_index(index, mode)
                    .and_then(|id| program.take_link(id))
                    .map_err(|error| AttachError::from_program(interface, error))?;
                pinned(link, &pin, interface)?
            }
        };
        self.attached.push(Attached { interface: interface.to_owned(), index, mode, link });
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
    pub fn detach(self) -> Result<(), LoadError> {
        self.pins.clear()?;
        Ok(())
    }

    fn xdp_mut(&mut self) -> Result<&mut Xdp, LoadError> {
        Ok(self.ebpf.program_mut("weir_xdp").ok_or(LoadError::ForeignObject)?.try_into()?)
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

/// What is known of the program that holds an interface's XDP hook.
pub(super) fn holder(interface: &str) -> String {
    let Ok(index) = nix::net::if_::if_nametoindex(interface) else { return String::new() };
    let by_link = aya::programs::loaded_links().filter_map(Result::ok).find_map(|link| {
        let _ = &link;
        None::<String>
    });
    let _ = index;
    by_link.unwrap_or_default()
}

/// Removes pins of links to interfaces that are not wanted any more, which detaches them.
pub(super) fn release(pins: &PinDirectory, wanted: &[String]) {
    for (_, interface, path) in pins.links() {
        if !wanted.contains(&interface) {
            let _ = std::fs::remove_file(path);
        }
    }
}
