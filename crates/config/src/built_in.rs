//! The limits of an agent without a config.

use super::fair::LimitRate;
use super::policy::{
    AgentConfig, Config, Decide, Geo, InterfacePattern, Limit, Mode, OnExit, RateSpec, Unit,
};
use super::rates::{Burst, RateText};

impl Config {
    /// The limits of `weir run` without a config: generous, on these interfaces, with mode `observe`.
    #[must_use]
    pub fn built_in(interfaces: &[String]) -> Self {
        let limit = |name: &str, unit: Unit, per_second: u64, burst: u64| {
            let rates = RateSpec::per_second(per_second, burst);
            Limit {
                rate: Some(LimitRate(RateText(rates.rate_text.clone()))),
                burst: Some(Burst::Number(burst)),
                unit,
                rates,
                ..Limit::with(name.to_owned())
            }
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
            fleet: None,
        }
    }
}
