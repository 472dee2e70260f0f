//! Each interface: how it can be attached, and what stands in the way.

use serde::Serialize;

use super::{Check, shapes};
use crate::config::policy::{Attach, Config};
use crate::datapath::{DeviceFacts, default_route_interfaces, device_facts, interface_names, lacking_for_shape};

/// One interface.
#[derive(Clone, Debug, Serialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// What it and the kernel tell of it.
    #[serde(flatten)]
    pub facts: DeviceFacts,
    /// What that means.
    pub checks: Vec<Check>,
}

/// A page less what the kernel keeps for itself: what most drivers take in one buffer.
const MTU_OF_ONE_BUFFER: u32 = 3_498;

/// The config's interfaces, or without any those of the default route.
pub fn examine(config: &Config) -> Vec<Interface> {
    let present = interface_names();
    let mut interfaces = Vec::new();
    let mut names: Vec<String> = Vec::new();
    for pattern in &config.agent.interfaces {
        let before = names.len();
        names.extend(present.iter().filter(|name| pattern.matches(name)).cloned());
        if names.len() == before {
            let found = format!("there is none; this host has {}", present.join(", "));
            let check = Check::missing("interface", found, "correct [agent] interfaces");
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
            let mut checks = checks(&name, &facts, config.agent.attach);
            if shapes(config) {
                checks.push(spacing(&name, config));
            }
            Interface { name, facts, checks }
        }
        Err(error) => {
            let check = Check::missing("interface", format!("the kernel does not tell: {error}"), "run as root");
            Interface { name, facts: DeviceFacts::default(), checks: vec![check] }
        }
    }));
    interfaces
}

/// What the facts mean for a way of attaching.
pub(super) fn checks(name: &str, facts: &DeviceFacts, attach: Attach) -> Vec<Check> {
    let mut checks = vec![hook(name, facts, attach)];
    let is_native = matches!(attach, Attach::Auto | Attach::Native);
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
    for other in facts.tcx.iter().filter(|program| !program.is_ours()) {
        checks.push(Check::good("TCX", format!("{other} is in the chain too, and stays where it is")));
    }
    if facts.clsact {
        checks.push(Check::good("clsact", "there is a discipline for programs already; its filters stay"));
    }
    checks
}

/// Where limits on what comes in can be attached.
fn hook(name: &str, facts: &DeviceFacts, attach: Attach) -> Check {
    let off = |at: &str| {
        let mode = match at {
            "native" => "xdpdrv",
            "generic" => "xdpgeneric",
            _ => "xdpoffload",
        };
        format!("ip link set dev {name} {mode} off, if nobody needs it")
    };
    match (attach, &facts.xdp) {
        (Attach::Tc, _) => Check::good("hook", "traffic control, as the config asks for"),
        (_, Some(program)) if program.is_ours() => {
            Check::good("hook", format!("held by Weir: {program}; the next agent with the same pins takes it over"))
        }
        (Attach::Auto, Some(program)) => {
            let found =
                format!("XDP is held by {program}; the agent will use traffic control, which costs more a packet");
            Check::limited("hook", found, off(program.at))
        }
        (_, Some(program)) => Check::missing(
            "hook",
            format!("XDP is held by {program}"),
            format!("{}; or set attach = \"auto\", which uses traffic control", off(program.at)),
        ),
        (Attach::Generic, None) => Check::limited(
            "hook",
            "generic XDP, as the config asks for: slower than traffic control would be",
            "set attach = \"auto\"",
        ),
        (_, None) => match (facts.native_xdp, attach) {
            (Some(true), _) => Check::good("hook", "native XDP"),
            (Some(false), Attach::Native) => Check::missing(
                "hook",
                "the driver does not do native XDP",
                "set attach = \"auto\", which uses traffic control then",
            ),
            (Some(false), _) => Check::limited(
                "hook",
                "the driver does not do native XDP; the agent will use traffic control, which costs more a packet",
                "a network card whose driver does native XDP",
            ),
            (None, _) => Check::good(
                "hook",
                "free; whether the driver does native XDP is seen when it is tried (kernels from 6.3 on tell before)",
            ),
        },
    }
}

fn spacing(name: &str, config: &Config) -> Check {
    match lacking_for_shape(name, &config.limits) {
        None => Check::good("spacing", "fq: packets leave at the times that limits give them"),
        Some(why) => Check::limited(
            "spacing",
            why,
            format!("tc qdisc replace dev {name} root fq, with a flow_limit where one is named"),
        ),
    }
}
