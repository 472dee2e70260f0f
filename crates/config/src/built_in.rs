//! The limits of an agent without a config.

use super::policy::{
    Action, AgentConfig, Algorithm, Config, Decide, Direction, Geo, InterfacePattern, Key, Limit,
    Mode, OnExit, OnFull, ProtocolFilter, Rate, RateSpec, Throttle, Unit,
};

impl Config {
    /// The limits of `agent run` without a config: generous, on these interfaces, with mode `observe`.
    #[must_use]
    pub fn built_in(interfaces: &[String]) -> Self {
        let limit = |name: &str, unit: Unit, per_second: u64, burst: u64| Limit {
            name: name.to_owned(),
            direction: Direction::Ingress,
            protocol: ProtocolFilter::Any,
            ports: None,
            key: Key::Source,
            ipv4_prefix: 32,
            ipv6_prefix: 64,
            unit,
            rates: RateSpec {
                algorithm: Algorithm::TokenBucket,
                rate: Rate::per_second(per_second),
                rate_text: format!("{per_second}/s"),
                burst,
                tiers: Vec::new(),
            },
            concurrent: None,
            levels: Vec::new(),
            throttle: Throttle::Hard,
            action: Action::Drop,
            on_full: OnFull::Share,
            escalate: None,
            cluster: None,
            sources: None,
            prove: None,
            interfaces: None,
        };
        Self {
            agent: AgentConfig {
                interfaces: interfaces.iter().cloned().map(InterfacePattern).collect(),
                mode: Mode::Observe,
                on_exit: OnExit::Detach,
                ..AgentConfig::default()
            },
            geo: Geo::default(),
            classes: Vec::new(),
            ban_lists: Vec::new(),
            groups: Vec::new(),
            limits: vec![
                limit("packets-per-source", Unit::Packets, 10_000, 20_000),
                limit("connections-per-source", Unit::Connections, 200, 1_000),
            ],
            decide: Decide::default(),
            cluster: None,
            notify: Vec::new(),
            crowdsec: None,
        }
    }
}
