//! Each interface: how programs can be attached, and obstacles.

use config::policy::{Action, Attach, Config, Direction};
use datapath::{
    AttachedProgram, DeviceFacts, LostReplies, Owner, default_route_interfaces, device_facts,
    lacking_for_shape, topology,
};
use host::PROGRAM;
use serde::Serialize;

use super::check::Check;

#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    pub name: String,
    /// Its properties.
    #[serde(flatten)]
    pub facts: DeviceFacts,
    /// The checks of these properties.
    pub checks: Vec<Check>,
}

/// The largest MTU that most drivers support in one buffer: a page without the kernel's part.
const MTU_OF_ONE_BUFFER: u32 = 3_498;

/// The config's interfaces, or those of the default route.
pub fn examine(config: &Config) -> Vec<Interface> {
    // If the devices cannot be listed, there are none here.
    let devices = topology::devices().unwrap_or_default();
    let mut present: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    present.sort_unstable();
    let mut interfaces = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for pattern in &config.agent.interfaces {
        let before = names.len();
        let named = devices
            .iter()
            .filter(|device| device.is_named_by(std::slice::from_ref(pattern)));
        names.extend(named.map(|device| device.name.clone()));
        if names.len() == before {
            let available = present.join(", ");
            let check = if pattern.is_pattern() {
                Check::limited(
                    "interface",
                    format!("no interface matches yet; this host has {available}"),
                    "none is needed if one appears later, which is then attached; else correct [agent] interfaces",
                )
            } else {
                Check::missing(
                    "interface",
                    format!("there is none; this host has {available}"),
                    "correct [agent] interfaces; if it appears later, it is then attached",
                )
            };
            interfaces.push(Interface {
                name: pattern.to_string(),
                facts: DeviceFacts::default(),
                checks: vec![check],
            });
        }
    }
    if config.agent.interfaces.is_empty() {
        names = default_route_interfaces().unwrap_or_default();
    }
    names.sort();
    names.dedup();
    interfaces.extend(names.into_iter().map(|name| match device_facts(&name) {
        Ok(facts) => {
            let mut checks = checks(&name, &facts, config);
            checks.extend(replies(&name, &facts, config));
            if shapes(config) {
                checks.push(spacing(&name, config));
            }
            Interface {
                name,
                facts,
                checks,
            }
        }
        Err(error) => {
            let check = Check::missing(
                "interface",
                format!("reading the interface failed: {error}"),
                "run as root",
            );
            Interface {
                name,
                facts: DeviceFacts::default(),
                checks: vec![check],
            }
        }
    }));
    interfaces
}

/// The checks of the properties for a config.
pub(super) fn checks(name: &str, facts: &DeviceFacts, config: &Config) -> Vec<Check> {
    let attach = config.agent.attach;
    let by_traffic_control = avoids_xdp(facts, config);
    let mut checks = vec![by_traffic_control.map_or_else(
        || hook(facts, attach),
        |reason| Check::good("hook", format!("traffic control: {reason}")),
    )];
    let is_native = matches!(attach, Attach::Auto | Attach::Native) && by_traffic_control.is_none();
    if is_native && facts.lro == Some(true) {
        checks.push(Check::limited(
            "LRO",
            "on: most drivers refuse native XDP while it is",
            format!("ethtool -K {name} lro off"),
        ));
    }
    if is_native && facts.gro_hardware == Some(true) && facts.native_xdp_fragments != Some(true) {
        checks.push(Check::limited(
            "GRO-HW",
            "on: some drivers refuse native XDP while it is",
            format!("ethtool -K {name} rx-gro-hw off"),
        ));
    }
    if let Some(mtu) = facts.mtu
        && is_native
        && mtu > MTU_OF_ONE_BUFFER
        && facts.native_xdp == Some(true)
        && facts.native_xdp_fragments == Some(false)
    {
        checks.push(Check::limited(
            "MTU",
            format!("{mtu}: this driver runs native XDP on frames in one buffer only"),
            format!("ip link set dev {name} mtu 1500"),
        ));
    }
    for (place, other) in facts.tcx.iter().enumerate() {
        if other.owner != Owner::Other {
            continue;
        }
        let direction = if other.at == "egress" {
            Direction::Egress
        } else {
            Direction::Ingress
        };
        let is_limited = config
            .limits
            .iter()
            .any(|limit| limit.direction == direction);
        let own = facts
            .tcx
            .iter()
            .position(|program| program.owner == Owner::Weir && program.at == other.at);
        // Weir will be first on ingress and last on egress.
        let is_before = is_limited && own.map_or(direction == Direction::Egress, |own| place < own);
        checks.push(if is_before {
            Check::limited(
                "TCX",
                format!(
                    "{other} comes before Weir: packets that it does not hand on have no limits"
                ),
                "have it return TCX_NEXT (-1) for packets that pass",
            )
        } else {
            Check::good(
                "TCX",
                format!("{other} is in the chain too, and stays where it is"),
            )
        });
    }
    if facts.clsact {
        checks.push(Check::good(
            "clsact",
            "there is a discipline for programs already; its filters stay",
        ));
    }
    checks
}

/// Why the agent uses traffic control with `attach = "auto"`, whatever the driver has.
fn avoids_xdp(facts: &DeviceFacts, config: &Config) -> Option<&'static str> {
    if config.agent.attach != Attach::Auto {
        return None;
    }
    let is_marked = config.limits.iter().any(|limit| {
        limit.direction == Direction::Ingress && matches!(limit.action, Action::Mark(_))
    });
    match facts.driver.as_deref() {
        _ if is_marked => Some("XDP cannot mark packets"),
        Some("bonding") => Some("with XDP on a bond the kernel rejects new members"),
        Some("veth") if replies_to_packets(config) => {
            Some("a veth's peer receives what XDP sends only if it has a program, too")
        }
        _ => None,
    }
}

/// Whether a limit has refused packets, or SYNs, answered.
fn replies_to_packets(config: &Config) -> bool {
    config.limits.iter().any(|limit| {
        (limit.action == Action::Reject || limit.proves()) && limit.direction == Direction::Ingress
    })
}

/// The hook for ingress limits.
fn hook(facts: &DeviceFacts, attach: Attach) -> Check {
    let owner =
        |program: &AttachedProgram| format!("find its owner: bpftool prog show id {}", program.id);
    match (
        attach,
        facts.xdp.as_ref().map(|program| (program, program.owner)),
    ) {
        (Attach::Tc, _) => Check::good("hook", "traffic control, as configured"),
        (_, Some((program, Owner::Weir))) => Check::good(
            "hook",
            format!("used by Weir: {program}; the next agent with the same pins takes it over"),
        ),
        (_, Some((program, Owner::Hidden))) => Check::limited(
            "hook",
            format!("used by {program}; no conflict if it is Weir's"),
            format!("run as root, which reads the name: sudo {PROGRAM} doctor"),
        ),
        (Attach::Auto, Some((program, Owner::Other))) => Check::limited(
            "hook",
            format!(
                "XDP is used by {program}; the agent will use traffic control, which costs more a packet"
            ),
            owner(program),
        ),
        (_, Some((program, Owner::Other))) => Check::missing(
            "hook",
            format!("XDP is used by {program}"),
            format!(
                "set attach = \"auto\", which uses traffic control; or {}",
                owner(program)
            ),
        ),
        (Attach::Generic, None) => Check::limited(
            "hook",
            "generic XDP, as configured: slower than traffic control",
            "set attach = \"auto\"",
        ),
        (_, None) => match (facts.native_xdp, attach) {
            (Some(true), _) => Check::good("hook", "native XDP"),
            (Some(false), Attach::Native) => Check::missing(
                "hook",
                "the driver has no native XDP",
                "set attach = \"auto\", which uses traffic control then",
            ),
            (Some(false), _) => Check::limited(
                "hook",
                "the driver has no native XDP; the agent will use traffic control, which costs more a packet",
                "a network card whose driver does native XDP",
            ),
            (None, _) => Check::good(
                "hook",
                "free; the driver's support of native XDP is unknown until the agent attaches (reported from Linux 6.3 on)",
            ),
        },
    }
}

/// Whether replies to refused packets arrive, if the config has such replies.
fn replies(name: &str, facts: &DeviceFacts, config: &Config) -> Option<Check> {
    let answers = replies_to_packets(config);
    let is_veth = facts.driver.as_deref() == Some("veth");
    match (config.agent.attach, facts.peer_receives_xdp) {
        _ if !(answers && is_veth) => None,
        (Attach::Auto, _) => Some(Check::good(
            "replies",
            "they leave by traffic control, since this is a veth",
        )),
        (Attach::Tc | Attach::Generic, _) => None,
        (Attach::Native, Some(true)) => Some(Check::good(
            "replies",
            format!(
                "the veth's peer has an XDP program, or only GRO, with which replies are lost: {PROGRAM} status reports it then"
            ),
        )),
        (Attach::Native, Some(false)) => {
            let lost = LostReplies(name);
            Some(Check::limited("replies", lost.found(), LostReplies::FIX))
        }
        (Attach::Native, None) => Some(Check::limited(
            "replies",
            "this kernel does not report whether the veth's peer receives what XDP sends (Linux 6.5 does)",
            LostReplies::FIX,
        )),
    }
}

fn spacing(name: &str, config: &Config) -> Check {
    match lacking_for_shape(name, &config.limits) {
        None => Check::good(
            "spacing",
            "fq: packets leave at the times that limits give them",
        ),
        Some(why) => Check::limited(
            "spacing",
            why,
            format!("tc qdisc replace dev {name} root fq, with a flow_limit where one is named"),
        ),
    }
}

/// Whether a limit delays packets.
pub(super) fn shapes(config: &Config) -> bool {
    config
        .limits
        .iter()
        .any(|limit| limit.action == Action::Shape)
}
