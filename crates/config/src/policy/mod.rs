//! A validated config: its types exclude invalid states.

mod at_levels;
mod config;
mod escalate;
mod geo;
mod level;
mod limit;
mod multiplier;
mod ports;
mod rate_spec;
mod request_limit;
mod sources;

pub use common::limiter::Rate;
pub use common::packet::Direction;

pub use self::config::Config;
pub use self::escalate::Escalate;
pub use self::geo::{Country, GeoKey, GeoKind, Networks};
pub use self::level::{Level, LevelKey};
pub use self::limit::{Action, Limit, Mark, Throttle};
pub use self::multiplier::Multiplier;
pub use self::ports::PortSet;
pub use self::rate_spec::{RateSpec, Tier};
pub use self::request_limit::{RequestEnforcement, RequestLimit, RequestUnit};
pub use self::sources::{LimitSources, SourcePrefix};
pub use crate::agent::{
    AgentConfig, DEFAULT_PINS, DEFAULT_SOCKET, DEFAULT_SOURCES, DEFAULT_STATE, InterfacePattern,
    LivePage, MOST_SOURCES, Protect,
};
pub use crate::ban_list::{BanList, Column, ListAction, ListFormat, ListSource};
pub use crate::class::{Class, Service, class_name, class_of};
pub use crate::cluster::{Cluster, StoreUrl};
pub use crate::crowdsec::{CrowdSec, Machine, Secret};
pub use crate::decide::{Decide, Endpoint};
pub use crate::geo::Geo;
pub use crate::notify::{Notify, NotifyTarget, WebhookUrl};
pub use crate::prefix::Prefix;
pub use crate::request::RequestCost;
pub use crate::request_key::{EntryValue, KeyEntry};
pub use crate::words::{
    Attach, ClusterMode, Key, Mode, NotifyOn, OnExit, OnFull, ProtocolFilter, Prove, Shield, Unit,
    WhenStoreIsDown,
};
pub use common::limiter::Algorithm;
