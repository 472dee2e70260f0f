//! The configured interfaces on this host.

use std::io;

use api::interface::Placement;
use config::policy::{Config, InterfacePattern, Limit};

use super::device::{self, Interface};
use super::topology::{Device, place, with_ports_of_vrfs};

/// The interfaces of a config on this host, from one list of its devices.
#[derive(Debug, Default)]
pub struct HostLinks {
    /// For each configured interface, where its packets are charged; in the config's order.
    pub placements: Vec<Placement>,
    /// The interfaces that charge packets, in the config's order. Start, reload and changes of the host all use this
    /// list.
    pub enforcing: Vec<Interface>,
    /// Configured names without an interface.
    pub missing: Vec<String>,
    /// Configured patterns that match no interface yet.
    pub unmatched: Vec<String>,
    /// Interfaces that only patterns match, and whose frames limits do not support.
    unsupported: Vec<Interface>,
    /// All devices of the host, by name.
    devices: Vec<Device>,
}

impl HostLinks {
    /// Reads the devices from the kernel.
    ///
    /// # Errors
    ///
    /// When the kernel does not list them.
    pub fn read(config: &Config) -> io::Result<Self> {
        if config.agent.interfaces.is_empty() {
            return Ok(Self::default());
        }
        let mut found = device::interfaces()?;
        found.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let patterns = &config.agent.interfaces;
        let is_there = |pattern: &InterfacePattern| {
            found
                .iter()
                .any(|interface| interface.device.is_named_by(std::slice::from_ref(pattern)))
        };
        let (unmatched, missing): (Vec<_>, Vec<_>) = patterns
            .iter()
            .filter(|pattern| !is_there(pattern))
            .partition(|pattern| pattern.is_pattern());
        let names = |patterns: Vec<&InterfacePattern>| {
            patterns.into_iter().map(ToString::to_string).collect()
        };
        let (unmatched, missing) = (names(unmatched), names(missing));
        let devices: Vec<_> = found
            .iter()
            .map(|interface| interface.device.clone())
            .collect();
        let (wide, names): (Vec<_>, Vec<_>) = patterns
            .iter()
            .cloned()
            .partition(InterfacePattern::is_pattern);
        let unsupported: Vec<_> = found
            .extract_if(.., |Interface { link, device, .. }| {
                link.is_err() && device.is_named_by(&wide) && !device.is_named_by(&names)
            })
            .collect();
        let mut named: Vec<String> = Vec::new();
        for pattern in patterns {
            for interface in found
                .iter()
                .filter(|interface| interface.device.is_named_by(std::slice::from_ref(pattern)))
            {
                if !named.contains(&interface.name) {
                    named.push(interface.name.clone());
                }
            }
        }
        let placements = place(&devices, &with_ports_of_vrfs(&devices, named));
        let enforcing: Vec<&str> = placements
            .iter()
            .filter(|placement| placement.enforces())
            .map(|placement| placement.interface.as_str())
            .collect();
        found.retain(|interface| enforcing.contains(&interface.name.as_str()));
        found.sort_by_key(|interface| enforcing.iter().position(|name| *name == interface.name));
        Ok(Self {
            enforcing: found,
            placements,
            missing,
            unmatched,
            unsupported,
            devices,
        })
    }

    /// Notes for the operator: missing interfaces, and packets of its interfaces to which no limit, or not a limit for
    /// certain interfaces, applies. A pattern may match interfaces that come and go: only that nothing at all is limited is
    /// worth a note.
    #[must_use]
    pub fn notes(&self, limits: &[Limit]) -> Vec<String> {
        let unmatched = self.placements.is_empty().then(|| self.lacking_patterns());
        self.lacking_names()
            .chain(unmatched.into_iter().flatten())
            .chain(self.gaps(limits))
            .collect()
    }

    /// Configured interfaces that this host does not have.
    #[must_use]
    pub fn lacking(&self) -> Vec<String> {
        let unsupported = self.enforcing.iter().filter_map(|interface| {
            let reason = interface.link.as_ref().err()?;
            Some(format!("{} cannot be limited: {reason}", interface.name))
        });
        let none = (self.enforcing.is_empty() && !self.devices.is_empty()).then(|| {
            "no interface of the config exists: no limit on packets would be in effect".to_owned()
        });
        self.lacking_names()
            .chain(unsupported)
            .chain(none)
            .collect()
    }

    /// Configured patterns that match no interface yet, which is no mistake by itself.
    #[must_use]
    pub fn awaited(&self) -> Vec<String> {
        self.lacking_patterns().collect()
    }

    fn available(&self) -> String {
        let names: Vec<&str> = self
            .devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        names.join(", ")
    }

    fn lacking_names(&self) -> impl Iterator<Item = String> {
        let available = self.available();
        self.missing.iter().map(move |name| {
            format!("interface `{name}` not found (available: {available}); it will be attached when it appears")
        })
    }

    fn lacking_patterns(&self) -> impl Iterator<Item = String> {
        let available = self.available();
        self.unmatched.iter().map(move |pattern| {
            format!("no interface matches `{pattern}` yet (available: {available}); one that does is attached when it appears")
        })
    }

    /// Packets of its interfaces to which no limit, or not a limit for certain interfaces, applies.
    pub fn gaps(&self, limits: &[Limit]) -> Vec<String> {
        let gaps = self
            .placements
            .iter()
            .filter_map(|placement| placement.gap.clone());
        let scoped = limits.iter().flat_map(|limit| {
            self.placements
                .iter()
                .filter(|placement| !placement.enforces())
                .filter_map(|it| self.charged_elsewhere(limit, it))
        });
        let mixed = self
            .placements
            .iter()
            .filter_map(|it| self.named_twice(limits, it));
        // One that is down, as the kernel's own `gre0` usually is, has no packets.
        let unsupported = self
            .unsupported
            .iter()
            .filter(|interface| interface.is_up)
            .filter_map(|interface| {
                let reason = interface.link.as_ref().err()?;
                Some(format!(
                    "{} is not limited, though a pattern matches it: {reason}",
                    interface.name
                ))
            });
        gaps.chain(scoped).chain(mixed).chain(unsupported).collect()
    }

    /// Whether one of the patterns matches a name of the interface.
    fn is_named(&self, patterns: &[InterfacePattern], interface: &str) -> bool {
        self.devices
            .iter()
            .filter(|device| device.name == interface)
            .any(|device| device.is_named_by(patterns))
    }

    /// A note if limits name an interface by several of its names: all but those that use the first are not in effect there.
    fn named_twice(&self, limits: &[Limit], placement: &Placement) -> Option<String> {
        let device = self
            .devices
            .iter()
            .find(|device| device.name == placement.interface)?;
        let lists = || {
            limits
                .iter()
                .filter_map(|limit| Some((limit, limit.interfaces.as_ref()?)))
        };
        let is_by = |name: &str, patterns: &[InterfacePattern]| {
            patterns.iter().any(|pattern| pattern.matches(name))
        };
        let first = device
            .names()
            .find(|name| lists().any(|(_, patterns)| is_by(name, patterns)))?;
        let (other, _) = lists().find(|(_, patterns)| {
            !is_by(first, patterns) && device.names().any(|name| is_by(name, patterns))
        })?;
        Some(format!(
            "limit {:?} is not in effect on {}, which other limits call {first}: call it {first} in its interfaces, too",
            other.name, device.name
        ))
    }

    /// A note if the limit is for an interface, but not for those that charge its packets.
    fn charged_elsewhere(&self, limit: &Limit, placement: &Placement) -> Option<String> {
        let patterns = limit.interfaces.as_ref()?;
        let is_named = |name: &str| self.is_named(patterns, name);
        let lacking: Vec<&str> = placement
            .enforced_by
            .iter()
            .map(String::as_str)
            .filter(|name| !is_named(name))
            .collect();
        (is_named(&placement.interface) && !lacking.is_empty()).then(|| {
        let (interface, lacking) = (&placement.interface, lacking.join(", "));
        format!(
            "limit {:?} is not in effect on {interface}, whose packets are charged on {lacking}: add {lacking} to its \
             interfaces",
            limit.name
        )
    })
    }
}
