//! Attaches a policy to the hooks of interfaces.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use api::interface::AttachMode;
use aya::programs::ProgramError;
use bpf::link::{self, Link as BpfLink};
use common::packet::{Direction, Link};
use config::policy::Attach;

use crate::datapath::Datapath;
use crate::devices::device::{self, Interface};
use crate::devices::names::names;
use crate::devices::sent;
use crate::error::{AttachError, LoadError};
use crate::hooks::attached::Attached;
use crate::hooks::hook::{Hook, HookOf};
use crate::hooks::pins::HookPins;
use crate::hooks::traffic_control;
use crate::hooks::trouble::Trouble;
use crate::programs::Entry;

/// How long the kernel may take to detach a link after its last reference was dropped, by an `rm` of its pin or the end
/// of its agent.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);
pub(crate) const RELEASE_POLL: Duration = Duration::from_millis(5);

/// The effect of a change on an interface. A change does all steps of one kind before those of the next, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Attach to an interface without a program of Weir. This can fail, and is slow.
    New,
    /// Attach to another hook.
    Hook,
    /// Replace the program of the hook.
    Program,
}

impl Datapath {
    /// Attaches the policy to an interface at once, replacing the previous one. Returns a note for the operator.
    ///
    /// # Errors
    ///
    /// When the interface does not exist, another program has its hook, or its driver lacks XDP.
    pub fn attach(
        &mut self,
        interface: &str,
        attach: Attach,
    ) -> Result<Option<String>, AttachError> {
        let device = found(interface)?;
        self.attach_at(&device, attach, &self.pins.hooks())?;
        Ok(self
            .attached
            .iter()
            .find(|attached| attached.index == device.index)
            .and_then(|it| it.note.clone()))
    }

    /// Attaches the policy to an interface as part of a change, which [`PinDirectory::commit`] puts in effect and
    /// [`PinDirectory::roll_back`] undoes. An interface whose own state prevents it is attached later:
    /// [`Datapath::follow`] tries again.
    ///
    /// # Errors
    ///
    /// As [`Datapath::attach`], but for those of the interface's state.
    pub fn attach_in_change(
        &mut self,
        device: &Interface,
        attach: Attach,
    ) -> Result<(), AttachError> {
        match self.attach_at(device, attach, &HookPins::at(self.pins.next())) {
            Err(error) if error.is_of_the_interface() => {
                // The interface may be as it should be by the end of the change.
                self.attach_later(device, &error);
                Ok(())
            }
            attached => attached,
        }
    }

    /// Leaves an interface that could not be attached to [`Datapath::follow`], which tries again.
    pub fn attach_later(&mut self, device: &Interface, error: &AttachError) {
        self.troubles.push(Trouble::new(device, error, None));
    }

    pub(crate) fn attach_at(
        &mut self,
        device: &Interface,
        attach: Attach,
        to: &HookPins,
    ) -> Result<(), AttachError> {
        let link = frames(device)?;
        // Before this policy's program evaluates its first packet there.
        self.number_interface(device)?;
        if self.direction() == Direction::Egress {
            return self.attach_tc(device, link, to, None);
        }
        let name = &device.name;
        match (attach, link) {
            (Attach::Native | Attach::Generic, Link::RawIp) => Err(AttachError::NoEthernet {
                interface: name.clone(),
            }),
            (Attach::Generic, Link::Ethernet) => {
                let is_known = self.settings.buffer_layout.is_known();
                let note = (!is_known).then(|| {
                    format!(
                        "{name} counts a buffer of merged packets as one packet: generic XDP reads their number through \
                         BTF, which this kernel lacks or lockdown forbids; use attach = \"tc\""
                    )
                });
                self.attach_xdp(device, Hook::XdpGeneric, to, note)
            }
            (Attach::Native, Link::Ethernet) => self.attach_xdp(device, Hook::Xdp, to, None),
            (Attach::Tc, _) => self.attach_tc(device, link, to, None),
            (Attach::Auto, Link::RawIp) => {
                let note =
                    format!("{name} uses traffic control: its frames have no Ethernet header");
                self.attach_tc(device, link, to, Some(note))
            }
            (Attach::Auto, Link::Ethernet) if self.settings.mark_in_use != 0 => {
                let note = format!("{name} uses traffic control: XDP cannot mark packets");
                self.attach_tc(device, link, to, Some(note))
            }
            (Attach::Auto, Link::Ethernet) if device.is_bond => {
                let note = format!(
                    "{name} uses traffic control: with XDP on a bond the kernel rejects new members; for XDP, configure \
                     its members instead"
                );
                self.attach_tc(device, link, to, Some(note))
            }
            (Attach::Auto, Link::Ethernet) if self.replies_by_traffic_control(device) => {
                let note = format!(
                    "{name} uses traffic control: a veth's peer receives what XDP sends only if it has a program, too"
                );
                self.attach_tc(device, link, to, Some(note))
            }
            (Attach::Auto, Link::Ethernet) => match self.attach_xdp(device, Hook::Xdp, to, None) {
                Err(reason) if reason.is_of_the_hook() => {
                    let note = format!("{name} uses traffic control, which is slower: {reason}");
                    self.attach_tc(device, link, to, Some(note))
                }
                attached => attached,
            },
        }
    }

    /// Whether the policy's replies on a device leave by traffic control unless the config has another hook. The driver drops
    /// what XDP sends on a veth whose peer has no program, or queues it without delivery; and the peer may change at any
    /// time.
    fn replies_by_traffic_control(&self, device: &Interface) -> bool {
        self.replies() && device.is_veth()
    }

    /// Whether XDP is not tried on a device.
    fn avoids_xdp(&self, device: &Interface) -> bool {
        self.settings.mark_in_use != 0 || device.is_bond || self.replies_by_traffic_control(device)
    }

    fn attach_xdp(
        &mut self,
        device: &Interface,
        hook: Hook,
        to: &HookPins,
        note: Option<String>,
    ) -> Result<(), AttachError> {
        let (other, mode) = match hook {
            Hook::XdpGeneric => (Hook::Xdp, AttachMode::Generic),
            _ => (Hook::XdpGeneric, AttachMode::Native),
        };
        self.detach_other_mode(
            device,
            HookOf {
                hook: other,
                index: device.index,
            },
            to,
        )?;
        self.attach_hook(
            device,
            Link::Ethernet,
            Entry::Xdp,
            HookOf {
                hook,
                index: device.index,
            },
            mode,
            to,
            note,
        )
    }

    /// Detaches the program of the other mode of XDP, since an interface has one hook for both. A program of traffic
    /// control enforces the limits until the change is complete.
    fn detach_other_mode(
        &mut self,
        device: &Interface,
        other: HookOf,
        to: &HookPins,
    ) -> Result<(), AttachError> {
        let Ok(link) = BpfLink::open(&self.pins.hooks().link(other)) else {
            return Ok(());
        };
        if link.info().is_ok_and(|info| info.interface != device.index) {
            return Ok(());
        }
        let of = HookOf {
            hook: Hook::TcIngress,
            index: device.index,
        };
        if to.folder() != self.pins.path() && !self.pins.hooks().all().contains(&of) {
            self.prepare(Entry::Tc)?;
            let program = self.entry(Entry::Tc)?;
            let bridge = to.bridge();
            bpf::create_directory(bridge.folder()).map_err(LoadError::from)?;
            self.place(device, of, program.as_fd(), &bridge)?;
        }
        link.detach()
            .map_err(|error| AttachError::from_xdp(&device.name, error))
    }

    fn attach_tc(
        &mut self,
        device: &Interface,
        link: Link,
        to: &HookPins,
        note: Option<String>,
    ) -> Result<(), AttachError> {
        let entry = match link {
            Link::Ethernet => Entry::Tc,
            Link::RawIp => Entry::TcIp,
        };
        let hook = match self.direction() {
            Direction::Ingress => Hook::TcIngress,
            Direction::Egress => Hook::TcEgress,
        };
        self.attach_hook(
            device,
            link,
            entry,
            HookOf {
                hook,
                index: device.index,
            },
            AttachMode::Tc,
            to,
            note,
        )
    }

    #[expect(clippy::too_many_arguments, reason = "what an attachment consists of")]
    fn attach_hook(
        &mut self,
        device: &Interface,
        frames: Link,
        entry: Entry,
        of: HookOf,
        mode: AttachMode,
        to: &HookPins,
        note: Option<String>,
    ) -> Result<(), AttachError> {
        self.prepare(entry)?;
        let program = self.entry(entry)?;
        let link = self.place(device, of, program.as_fd(), to)?;
        let program = link::program_id(program.as_fd())
            .map_err(|error| AttachError::pin(&device.name, &error))?;
        self.attached
            .retain(|attached| attached.index != device.index);
        let interface = device.name.clone();
        let unsent = sent::lost(&interface);
        self.attached.push(Attached {
            interface,
            names: device.device.names().map(str::to_owned).collect(),
            index: device.index,
            mode,
            frames,
            of,
            program,
            note,
            link,
            lost: None,
            unsent,
        });
        Ok(())
    }

    /// Attaches a program to a hook: replaces Weir's program there, or creates a link that is pinned in `to`.
    fn place(
        &self,
        device: &Interface,
        of: HookOf,
        program: BorrowedFd<'_>,
        to: &HookPins,
    ) -> Result<Option<BpfLink>, AttachError> {
        // First: from here on, the program on the hook is found by this pin.
        to.pin_program(of, program)?;
        let placed = self.place_pinned(device, of, program, to);
        if placed.is_err() && !self.pins.hooks().link(of).exists() {
            // A pin that stays is harmless: its hook has no program.
            let _ = link::remove(&to.program(of));
        }
        placed
    }

    fn place_pinned(
        &self,
        device: &Interface,
        of: HookOf,
        program: BorrowedFd<'_>,
        to: &HookPins,
    ) -> Result<Option<BpfLink>, AttachError> {
        let name = device.name.as_str();
        let Some(target) = of.hook.target() else {
            return match traffic_control::put_filter(&self.pins, of, program) {
                Ok(()) => Ok(None),
                Err(error) => Err(AttachError::from_tc(name, error)),
            };
        };
        let fail = |error| match of.hook {
            Hook::Xdp | Hook::XdpGeneric => AttachError::from_xdp(name, error),
            Hook::TcIngress | Hook::TcEgress => AttachError::from_tc(name, error),
        };
        if let Ok(link) = BpfLink::open(&self.pins.hooks().link(of))
            && link.info().is_ok_and(|info| info.interface == of.index)
        {
            match link.update(program) {
                Ok(()) => return Ok(Some(link)),
                // It was detached, or its interface removed, meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::ENOLINK) => {}
                // The link exists, and keeps its program.
                Err(error) => return Err(fail(error)),
            }
        }
        // Outside of a change, `follow` retries. A change waits once for all interfaces, of which others may have many.
        let is_change = to.folder() != self.pins.path();
        let may_be_released = || {
            let released_by = || Instant::now() + RELEASE_TIMEOUT;
            is_change && Instant::now() < *self.released_by.get_or_init(released_by)
        };
        let link = loop {
            match BpfLink::create(program, of.index, target).map_err(fail) {
                Err(AttachError::Taken { .. }) if may_be_released() => {
                    thread::sleep(RELEASE_POLL);
                }
                created => break created?,
            }
        };
        let pin = to.link(of);
        // A pin of a removed interface.
        link::remove(&pin)
            .and_then(|()| link.pin(&pin))
            .map_err(|error| AttachError::pin(name, &error))?;
        Ok(Some(link))
    }

    /// The descriptor of a prepared entry point.
    fn entry(&self, entry: Entry) -> Result<OwnedFd, AttachError> {
        let program = self.entry_point(entry)?.as_fd().try_clone_to_owned();
        Ok(program.map_err(|error| LoadError::Program(ProgramError::IOError(error)))?)
    }

    /// Lets the kernel verify the program for an interface in advance, so that attaching is fast.
    ///
    /// # Errors
    ///
    /// When the kernel rejects it, or the interface's frames are of a type that is not supported.
    pub fn prepare_for(&mut self, device: &Interface, attach: Attach) -> Result<(), AttachError> {
        let is_tc = self.direction() == Direction::Egress
            || attach == Attach::Tc
            || self.settings.mark_in_use != 0
            || attach == Attach::Auto && self.avoids_xdp(device);
        let entry = match &device.link {
            Ok(Link::RawIp) => Entry::TcIp,
            Ok(Link::Ethernet) if is_tc => Entry::Tc,
            Ok(Link::Ethernet) => Entry::Xdp,
            // Attaching reports it.
            Err(_) => return Ok(()),
        };
        Ok(self.prepare(entry)?)
    }

    /// The step with which this interface is attached.
    #[must_use]
    pub fn step(&self, device: &Interface, attach: Attach) -> Step {
        let hook = match (self.direction(), attach, &device.link) {
            (Direction::Egress, ..) => Hook::TcEgress,
            (_, Attach::Generic, _) => Hook::XdpGeneric,
            (_, Attach::Native, _) => Hook::Xdp,
            (_, Attach::Auto, Ok(Link::Ethernet)) if !self.avoids_xdp(device) => Hook::Xdp,
            _ => Hook::TcIngress,
        };
        let hooks = self.pins.hooks().all();
        let is_in_use = |of: &HookOf| {
            let is_of_it = of.index == device.index && of.hook.direction() == self.direction();
            is_of_it && self.has_program(*of)
        };
        let wanted = HookOf {
            hook,
            index: device.index,
        };
        if hooks.contains(&wanted) && self.has_program(wanted) {
            Step::Program
        } else if hooks.iter().any(is_in_use) {
            Step::Hook
        } else {
            Step::New
        }
    }

    /// Whether the kernel has a program of Weir's on a pinned hook: others may have taken it off.
    fn has_program(&self, of: HookOf) -> bool {
        if of.hook.target().is_none() {
            return traffic_control::filter(&self.pins, of).is_ok_and(|program| program.is_some());
        }
        BpfLink::open(&self.pins.hooks().link(of))
            .and_then(|link| link.info())
            .is_ok_and(|info| info.interface == of.index)
    }

    /// Opens the links again after a rollback.
    pub fn reopen(&mut self) {
        for attached in &mut self.attached {
            attached.link = BpfLink::open(&self.pins.hooks().link(attached.of)).ok();
        }
    }

    /// The attached hooks.
    #[must_use]
    pub fn attached(&self) -> &[Attached] {
        &self.attached
    }

    /// Detaches all programs and removes all pins.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn detach(&self) -> Result<(), LoadError> {
        self.pins.clear()?;
        Ok(())
    }
}

/// The interface of a name.
pub(crate) fn found(interface: &str) -> Result<Interface, AttachError> {
    let devices = device::interfaces().map_err(LoadError::Interfaces)?;
    let found = devices.into_iter().find(|device| device.name == interface);
    found.ok_or_else(|| AttachError::NoInterface {
        interface: interface.to_owned(),
        present: names().join(", "),
    })
}

/// The header of its frames.
fn frames(device: &Interface) -> Result<Link, AttachError> {
    let link = device.link.clone();
    link.map_err(|source| AttachError::Unsupported {
        interface: device.name.clone(),
        source,
    })
}
