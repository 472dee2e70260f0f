//! Limiters of the sources before the server.

use std::process::Command;

use testbed::network::{Agent, Network};

use crate::envoy::Envoy;
use crate::nginx;
use crate::rows::Server;

/// The port of the UDP server.
pub const UDP_PORT: u16 = 9000;
const LIMIT: &str = "server";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limiter {
    Fair,
    /// Weir, with a number.
    Fixed,
    /// A meter for each source, with the same number.
    Nftables,
    /// Envoy's adaptive concurrency, which does not distinguish sources.
    Envoy,
    Nothing,
}

impl Limiter {
    const ALL: [Self; 5] = [
        Self::Fair,
        Self::Fixed,
        Self::Nftables,
        Self::Envoy,
        Self::Nothing,
    ];

    /// As it stands in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fair => "Weir, fair",
            Self::Fixed => "Weir, best number",
            Self::Nftables => "nftables, best number",
            Self::Envoy => "Envoy, adaptive concurrency",
            Self::Nothing => "no limit",
        }
    }

    /// Those for a server: Envoy limits HTTP.
    pub fn all_for(server: Server) -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter();
        all.filter(move |limiter| (*limiter, server) != (Self::Envoy, Server::Udp))
    }

    /// Why it cannot be measured here.
    pub fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Envoy => std::env::var_os(crate::envoy::PROGRAM)
                .is_none()
                .then_some("Envoy is not installed: `cargo xtask integration` provides it"),
            Self::Nftables => Command::new("nft")
                .arg("--version")
                .output()
                .is_err()
                .then_some("nft is not installed"),
            _ => None,
        }
    }

    /// Puts it in effect before a server, with so many units a second for each source where it needs a number.
    pub fn start<'n>(self, network: &'n Network, server: Server, number: f64) -> InEffect<'n> {
        // As a fair limit has it: a second, within these bounds.
        let most = match server {
            Server::Udp => 50.0,
            Server::Nginx => 10.0,
        };
        let burst = number.clamp(5.0, most).round();
        let weir = |rate: &str| {
            let (protocol, port, unit) = match server {
                Server::Udp => ("udp", UDP_PORT, "packets"),
                Server::Nginx => ("tcp", nginx::PORT, "connections"),
            };
            let limit = format!(
                "[[limit]]\nname = \"{LIMIT}\"\nprotocol = \"{protocol}\"\nports = [{port}]\nunit = \"{unit}\"\n{rate}\n"
            );
            InEffect::Weir(network.start("", &limit))
        };
        // Of few units a second, the parts matter.
        let per_minute = (number * 60.0).round();
        match self {
            Self::Fair => weir("rate = \"fair\""),
            Self::Fixed => weir(&format!("rate = \"{per_minute}/min\"\nburst = {burst}")),
            Self::Nftables => {
                let packets = match server {
                    Server::Udp => format!("udp dport {UDP_PORT}"),
                    Server::Nginx => {
                        format!("tcp dport {} tcp flags & (syn | ack) == syn", nginx::PORT)
                    }
                };
                let rules = format!(
                    "table ip bench {{\nset sources {{\ntype ipv4_addr\nflags dynamic\nsize 65536\ntimeout 1h\n}}\n\
                     chain hold {{\ntype filter hook input priority 0; policy accept;\n\
                     {packets} update @sources {{ ip saddr limit rate over {per_minute}/minute burst {burst} packets }} counter drop\n}}\n}}\n"
                );
                network.in_server(|| network.use_rules(&rules));
                InEffect::Nftables(network)
            }
            Self::Envoy => InEffect::Envoy(Envoy::start(network)),
            Self::Nothing => InEffect::Nothing,
        }
    }
}

/// A limiter in effect, until it is dropped; nftables' rules go with the namespace.
pub enum InEffect<'n> {
    Weir(Agent<'n>),
    Nftables(&'n Network),
    Envoy(#[expect(dead_code, reason = "held for what dropping it does")] Envoy),
    Nothing,
}

impl InEffect<'_> {
    /// The units that it has refused so far, if it counts them.
    pub fn refused(&self) -> Option<u64> {
        match self {
            Self::Weir(agent) => Some(agent.counts(LIMIT).1),
            Self::Nftables(network) => {
                let list = || {
                    Command::new("nft")
                        .args(["list", "table", "ip", "bench"])
                        .output()
                };
                let output = network.in_server(list).unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                let (_, rest) = text.split_once("counter packets ")?;
                rest.split(' ').next()?.parse().ok()
            }
            Self::Envoy(_) => None,
            Self::Nothing => Some(0),
        }
    }

    pub fn agent(&self) -> Option<&Agent<'_>> {
        match self {
            Self::Weir(agent) => Some(agent),
            _ => None,
        }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        match self {
            Self::Envoy(_) => crate::envoy::PORT,
            _ => nginx::PORT,
        }
    }
}
