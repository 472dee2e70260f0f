//! The interfaces of the policy in effect.

use datapath::host_links::HostLinks;
use datapath::{AttachMode, Datapath, Interface, LoadError, OwnAddresses, Turn};

use super::engine::PacketEngine;
use super::in_effect::InEffect;
use crate::stats::{InterfaceState, InterfaceStatus};

impl PacketEngine {
    /// The interfaces of the config to which no program is attached; patterns that match none only if nothing is attached.
    #[must_use]
    pub fn waits_for(&self) -> Vec<String> {
        let interfaces = self.lock().interfaces().unwrap_or_default();
        let is_attached = |one: &InterfaceStatus| one.state == InterfaceState::Attached;
        let is_anywhere = interfaces.iter().any(is_attached);
        let is_awaited = |one: &InterfaceStatus| match one.state {
            InterfaceState::Attached => false,
            InterfaceState::Unmatched => !is_anywhere,
            _ => true,
        };
        let awaited = interfaces.into_iter().filter(is_awaited);
        awaited.map(|one| one.name).collect()
    }
}

impl InEffect {
    pub(super) fn interface_notes(&self) -> Vec<String> {
        let mut notes = match HostLinks::read(&self.config) {
            Ok(host) => host.notes(&self.config.limits),
            Err(error) => vec![format!("reading this host's interfaces failed: {error}")],
        };
        for note in self.datapaths().flat_map(Datapath::interface_notes) {
            // Both directions usually have the same.
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        notes
    }

    /// The current state of each interface of the config, from the kernel.
    pub(super) fn interfaces(&self) -> Result<Vec<InterfaceStatus>, LoadError> {
        let HostLinks {
            placements,
            enforcing,
            missing,
            unmatched,
            ..
        } = HostLinks::read(&self.config).map_err(LoadError::Interfaces)?;
        let plain = |name, attach, state| InterfaceStatus {
            name,
            attach,
            state,
            enforced_by: Vec::new(),
            reason: None,
        };
        let mut interfaces: Vec<_> = enforcing
            .into_iter()
            .map(|device| {
                let (attach, state) = self.state_of(&device);
                plain(device.name, attach, state)
            })
            .collect();
        for covered in placements {
            if covered.enforces() {
                continue;
            }
            let is_attached = |name: &String| {
                interfaces
                    .iter()
                    .any(|on| on.name == *name && on.state == InterfaceState::Attached)
            };
            let is_enforced = covered.enforced_by.iter().all(is_attached);
            let state = if is_enforced {
                InterfaceState::Attached
            } else {
                InterfaceState::Detached
            };
            let (enforced_by, reason) = (covered.enforced_by, covered.reason);
            interfaces.push(InterfaceStatus {
                enforced_by,
                reason,
                ..plain(covered.interface, None, state)
            });
        }
        interfaces.extend(
            missing
                .into_iter()
                .map(|name| plain(name, None, InterfaceState::Missing)),
        );
        interfaces.extend(
            unmatched
                .into_iter()
                .map(|name| plain(name, None, InterfaceState::Unmatched)),
        );
        Ok(interfaces)
    }

    fn state_of(&self, device: &Interface) -> (Option<AttachMode>, InterfaceState) {
        let on_it: Vec<_> = self
            .datapaths()
            .map(|datapath| datapath.in_effect_on(device))
            .collect();
        let attach = on_it.iter().flatten().next().map(|attached| attached.mode);
        let trouble = self
            .datapaths()
            .find_map(|datapath| datapath.trouble_on(device.index));
        let state = match trouble {
            _ if on_it.iter().all(Option::is_some) => InterfaceState::Attached,
            Some(trouble) if trouble.is_down() => InterfaceState::Down,
            Some(_) => InterfaceState::Failed,
            None => InterfaceState::Detached,
        };
        (attach, state)
    }

    pub(super) fn follow_interfaces(&mut self, is_changed: bool) -> Result<Vec<Turn>, LoadError> {
        let is_due = !self.unreported.is_empty() || self.datapaths().any(Datapath::needs_a_look);
        if !is_changed && !is_due {
            return Ok(Vec::new());
        }
        let HostLinks {
            enforcing, missing, ..
        } = HostLinks::read(&self.config).map_err(LoadError::Interfaces)?;
        let mut turns: Vec<Turn> = Vec::new();
        for datapath in std::iter::once(&mut self.ingress).chain(&mut self.egress) {
            for turn in datapath.follow(&enforcing, self.config.agent.attach) {
                // Both directions usually report the same.
                if !turns.iter().any(|known| {
                    (&known.interface, known.is_attached) == (&turn.interface, turn.is_attached)
                }) {
                    turns.push(turn);
                }
            }
        }
        let mut all = std::mem::take(&mut self.unreported);
        all.extend(turns);
        for name in missing.iter().filter(|name| !self.missing.contains(name)) {
            if !all.iter().any(|turn| turn.interface == *name) {
                let reason =
                    "interface not found: it was removed, or is not there yet; it will be attached when it appears"
                        .to_owned();
                all.push(Turn {
                    interface: name.clone(),
                    is_attached: false,
                    reason,
                });
            }
        }
        self.missing = missing;
        Ok(all)
    }

    /// Updates the addresses from which the kernel programs reply.
    pub(super) fn follow_addresses(&mut self) -> Result<(), LoadError> {
        let mut replying: Vec<&mut Datapath> = std::iter::once(&mut self.ingress)
            .chain(&mut self.egress)
            .filter(|datapath| datapath.replies())
            .collect();
        if replying.is_empty() {
            return Ok(());
        }
        let own = OwnAddresses::read().map_err(LoadError::Addresses)?;
        replying
            .iter_mut()
            .try_for_each(|datapath| datapath.set_own(own.clone()))
    }
}
