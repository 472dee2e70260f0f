//! Interfaces and the hooks on them.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::xdp::{XdpLink, XdpMode};
use aya::programs::{SchedClassifier, Xdp};
use common::packet::{Direction, Link};
use common::rule::{Action, Cost, Rule};
use serde::{Deserialize, Serialize};

use super::error::{AttachError, LoadError};
use super::pins::{Holder, Hook};
use super::traffic_control::TcHold;
use super::{Datapath, Entry, device, traffic_control};
use crate::config::policy::{self, Attach, Limit, Unit};

/// A link that was let go of without being told to, by an `rm` of its pin or the end of its agent, leaves its hook when the
/// kernel gets round to it, which is soon and not at once.
pub(super) const LETTING_GO: Duration = Duration::from_secs(1);
pub(super) const A_MOMENT: Duration = Duration::from_millis(5);

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// In the driver.
    Native,
    /// By the kernel for any driver: as slow as what comes after it.
    Generic,
    /// In the network stack, by traffic control.
    Tc,
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
    hook: Hook,
    holder: Holder,
    /// Whether this agent attached it, and not one before.
    is_new: bool,
    /// Keeps the hook as long as it lives; the pin keeps it longer.
    #[expect(dead_code, reason = "held for what dropping it does")]
    link: Option<FdLink>,
}

impl std::fmt::Display for AttachMode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
        })
    }
}

impl Datapath {
    /// Attaches the policy to an interface, in place of the one that an earlier agent left there. Returns what an
    /// operator should know of it.
    ///
    /// # Errors
    ///
    /// When the interface does not exist, its hook is taken or its driver cannot.
    pub fn attach(&mut self, interface: &str, attach: Attach) -> Result<Option<String>, AttachError> {
        let (index, link) = found(interface)?;
        if self.direction() == Direction::Egress {
            self.attach_tc(interface, index, link)?;
            return Ok(None);
        }
        match (attach, link) {
            (Attach::Native | Attach::Generic, Link::RawIp) => {
                return Err(AttachError::NoEthernet { interface: interface.to_owned() });
            }
            (Attach::Generic, Link::Ethernet) => {
                self.attach_xdp(interface, index, XdpMode::Skb)?;
                if !self.settings.buffer_layout.is_known() {
                    return Ok(Some(format!(
                        "{interface} counts a buffer of merged packets as one packet: generic XDP reads their number \
                         through BTF, which this kernel lacks or lockdown forbids; use attach = \"tc\""
                    )));
                }
            }
            (Attach::Native, Link::Ethernet) => self.attach_xdp(interface, index, XdpMode::Driver)?,
            (Attach::Tc, _) => self.attach_tc(interface, index, link)?,
            (Attach::Auto, Link::RawIp) => {
                self.attach_tc(interface, index, link)?;
                return Ok(Some(format!("{interface} is held by traffic control: its frames have no Ethernet header")));
            }
            (Attach::Auto, Link::Ethernet) if self.settings.mark_in_use != 0 => {
                self.attach_tc(interface, index, link)?;
                return Ok(Some(format!("{interface} is held by traffic control: XDP cannot mark packets")));
            }
            (Attach::Auto, Link::Ethernet) => match self.attach_xdp(interface, index, XdpMode::Driver) {
                Err(reason) if reason.is_of_the_hook() => {
                    self.attach_tc(interface, index, link)?;
                    return Ok(Some(format!("{interface} is held by traffic control, which costs more: {reason}")));
                }
                attached => attached?,
            },
        }
        Ok(None)
    }

    fn attach_xdp(&mut self, interface: &str, index: u32, mode: XdpMode) -> Result<(), AttachError> {
        self.prepare(Entry::Xdp)?;
        let (mode, hook, other, told) = match mode {
            XdpMode::Skb => (mode, Hook::XdpGeneric, Hook::Xdp, AttachMode::Generic),
            _ => (XdpMode::Driver, Hook::Xdp, Hook::XdpGeneric, AttachMode::Native),
        };
        let pin = self.pins.hook(interface, hook, Holder::Link);
        // An interface has one XDP hook. Only where the operator asked for another mode is there a gap.
        let _ = crate::link::release(&self.pins.hook(interface, other, Holder::Link));
        let program: &mut Xdp = self.program(Entry::Xdp)?;
        let (link, is_new) = match take_over(program, &pin) {
            Some(link) => (link, false),
            None => {
                let deadline = Instant::now() + LETTING_GO;
                let link = loop {
                    let attached = program.attach_to_if_index(index, mode).and_then(|id| program.take_link(id));
                    match attached.map_err(|error| AttachError::from_program(interface, error)) {
                        Err(AttachError::Taken { .. }) if Instant::now() < deadline => thread::sleep(A_MOMENT),
                        attached => break attached?,
                    }
                };
                let link = FdLink::try_from(link).map_err(|error| AttachError::pin(interface, &error))?;
                (pinned(link, &pin, interface)?, true)
            }
        };
        self.attached.push(Attached {
            interface: interface.to_owned(),
            index,
            mode: told,
            hook,
            holder: Holder::Link,
            is_new,
            link: Some(link),
        });
        Ok(())
    }

    fn attach_tc(&mut self, interface: &str, index: u32, link: Link) -> Result<(), AttachError> {
        let entry = match link {
            Link::Ethernet => Entry::Tc,
            Link::RawIp => Entry::TcIp,
        };
        self.prepare(entry)?;
        let direction = self.direction();
        let hook = match direction {
            Direction::Ingress => Hook::TcIngress,
            Direction::Egress => Hook::TcEgress,
        };
        let holder = if traffic_control::has_tcx() { Holder::Link } else { Holder::Filter };
        let pin = self.pins.hook(interface, hook, holder);
        let program: &mut SchedClassifier = self.program(entry)?;
        let (held, is_new) = traffic_control::attach(program, interface, direction, &pin)
            .map_err(|error| AttachError::from_tc(interface, error))?;
        let link = match held {
            TcHold::Link(link) if is_new => Some(pinned(link, &pin, interface)?),
            TcHold::Link(link) => Some(link),
            TcHold::Filter => None,
        };
        self.attached.push(Attached {
            interface: interface.to_owned(),
            index,
            mode: AttachMode::Tc,
            hook,
            holder,
            is_new,
            link,
        });
        Ok(())
    }

    /// Has the kernel verify what an interface will be attached to, so that attaching waits for nothing.
    ///
    /// # Errors
    ///
    /// When the kernel refuses, or there is no such interface.
    pub fn prepare_for(&mut self, interface: &str, attach: Attach) -> Result<(), AttachError> {
        let (_, link) = found(interface)?;
        let is_tc = self.direction() == Direction::Egress || attach == Attach::Tc || self.settings.mark_in_use != 0;
        let entry = match link {
            Link::RawIp => Entry::TcIp,
            Link::Ethernet if is_tc => Entry::Tc,
            Link::Ethernet => Entry::Xdp,
        };
        Ok(self.prepare(entry)?)
    }

    /// Takes its hooks again from a policy that was to follow.
    pub fn attach_again(&mut self, attach: Attach) {
        for attached in std::mem::take(&mut self.attached) {
            // What cannot be had again is held by the policy that failed, or by none: the failure is what is told.
            let _ = self.attach(&attached.interface, attach);
        }
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
        for held in self.pins.hooks() {
            let is_ours = |attached: &&Attached| attached.is_new && attached.holds(held.hook, &held.interface);
            if self.attached.iter().any(|attached| is_ours(&attached)) {
                // What cannot be undone is taken over by the next agent; the failure itself is what is told.
                let _ = held.release();
            }
        }
        self.pins.clear_unless_linked();
    }

    /// What should be known of how packets leave, as things are now.
    #[must_use]
    pub fn queueing_notes(&self) -> Vec<String> {
        if self.settings.shape_in_use == 0 {
            return Vec::new();
        }
        let longest = self.image.rules.iter().map(longest_queue).max().unwrap_or(0);
        self.attached
            .iter()
            .filter_map(|attached| spacing_obstacle(&attached.interface, attached.index, longest))
            .collect()
    }
}

/// A full Ethernet frame: what most of a long queue of bytes is made of.
const FULL_FRAME: u64 = 1_514;

/// Packets that wait at most under a rule that shapes.
fn longest_queue(rule: &Rule) -> u64 {
    match rule.action {
        action if action != Action::Shape as u8 => 0,
        _ if rule.cost == Cost::Bytes as u8 => rule.most.div_ceil(FULL_FRAME),
        _ => rule.most,
    }
}

/// Why an interface does not space out what it sends, if it does not.
fn spacing_obstacle(interface: &str, index: u32, longest_queue: u64) -> Option<String> {
    let queueing = device::queueing(index).unwrap_or_default();
    let kinds: Vec<&str> = queueing.iter().map(|queueing| queueing.kind.as_str()).collect();
    let is_fair = kinds.contains(&"fq") && kinds.iter().all(|kind| matches!(*kind, "fq" | "mq"));
    if is_fair {
        return flow_obstacle(interface, &queueing, longest_queue);
    }
    let present = if kinds.is_empty() { "none".to_owned() } else { kinds.join(", ") };
    Some(format!(
        "{interface} does not space packets out, since its queueing discipline is {present} and not fq: what is above \
         a limit that shapes is still dropped; for spacing, tc qdisc replace dev {interface} root fq"
    ))
}

/// Why `fq` drops what a limit's queue holds, if it does. It drops without a word to the limit, which has counted the packet
/// as passed.
fn flow_obstacle(interface: &str, queueing: &[device::Queueing], longest_queue: u64) -> Option<String> {
    let least = queueing.iter().filter_map(|queueing| queueing.flow_limit).min()?;
    (u64::from(least) < longest_queue).then(|| {
        let is_multiqueue = queueing.iter().any(|queueing| queueing.kind == "mq");
        let place = if is_multiqueue { "parent MQ:QUEUE" } else { "root" };
        format!(
            "fq on {interface} drops packets of a flow that has {least} waiting, and a limit that shapes lets {longest_queue} \
             wait: lower its burst, or run tc qdisc replace dev {interface} {place} fq flow_limit {longest_queue} limit {}",
            longest_queue.saturating_mul(10).max(10_000)
        )
    })
}

/// What an interface lacks for limits that shape.
#[must_use]
pub fn lacking_for_shape(interface: &str, limits: &[Limit]) -> Option<String> {
    let index = nix::net::if_::if_nametoindex(interface).ok()?;
    let shaped = limits.iter().filter(|limit| limit.action == policy::Action::Shape);
    let longest = shaped.map(|limit| match limit.unit {
        Unit::Bytes => limit.burst.div_ceil(FULL_FRAME),
        _ => limit.burst,
    });
    spacing_obstacle(interface, index, longest.max().unwrap_or(0))
}

impl Attached {
    fn holds(&self, hook: Hook, interface: &str) -> bool {
        self.hook == hook && self.interface == interface
    }
}

/// The index of an interface, and what its frames begin with.
pub(super) fn found(interface: &str) -> Result<(u32, Link), AttachError> {
    let index = nix::net::if_::if_nametoindex(interface)
        .map_err(|_| AttachError::NoInterface { interface: interface.to_owned(), present: names().join(", ") })?;
    let link = device::link(index).map_err(|source| AttachError::NoLink { interface: interface.to_owned(), source })?;
    Ok((index, link))
}

/// Detaches what an earlier agent held and none of these does.
pub fn release_others(in_force: &[&Datapath]) {
    for held in in_force.first().map(|datapath| datapath.pins.hooks()).unwrap_or_default() {
        let is_wanted = in_force
            .iter()
            .flat_map(|datapath| &datapath.attached)
            .any(|attached| attached.holds(held.hook, &held.interface) && attached.holder == held.holder);
        if !is_wanted {
            // A pin that stays is found by the next agent; the limits of this one are in force.
            let _ = held.release();
        }
    }
}

/// The link that an earlier agent pinned, now with our program: replaced at once, so that no packet slips through.
fn take_over(program: &mut Xdp, pin: &Path) -> Option<FdLink> {
    let link = PinnedLink::from_pin(pin).ok()?;
    let link = XdpLink::try_from(FdLink::from(link)).ok()?;
    let link = program.attach_to_link(link).and_then(|id| program.take_link(id)).ok();
    if link.is_none() {
        // The interface it was for is gone, and with it the link: its name is free for a new one.
        let _ = crate::link::release(pin);
    }
    FdLink::try_from(link?).ok()
}

fn pinned(link: FdLink, pin: &Path, interface: &str) -> Result<FdLink, AttachError> {
    Ok(link.pin(pin).map_err(|error| AttachError::pin(interface, &error))?.into())
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
