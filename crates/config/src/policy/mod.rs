//! A validated config: its types exclude invalid states.

mod at_levels;
mod config;
mod geo;
mod multiplier;

pub use common::limiter::Rate;
pub use common::packet::Direction;

pub use self::config::{Config, PrefixService};
pub use self::geo::{Country, GeoKey, GeoKind, Networks};
pub use self::multiplier::Multiplier;
pub use crate::agent::{
    AgentConfig, DEFAULT_PINS, DEFAULT_SOCKET, DEFAULT_SOURCES, DEFAULT_STATE, InterfacePattern,
    LivePage, MOST_SOURCES, Protect,
};
pub use crate::ban_list::{BanList, Column, ListAction, ListFormat, ListSource};
pub use crate::check_headers::{CheckHeaders, HeaderName};
pub use crate::class::{Class, Service, class_name, class_of};
pub use crate::cluster::{Cluster, StoreUrl, Zone};
pub use crate::crowdsec::{CrowdSec, Machine, Secret};
pub use crate::decide::{Decide, Endpoint};
pub use crate::escalate::Escalate;
pub use crate::fair::{Fair, Signal};
pub use crate::fleet::{FleetRules, Followed};
pub use crate::fleet_stream::{PublicKeyText, RulesAddress, RulesStore};
pub use crate::fleet_team::FleetTeam;
pub use crate::geo::Geo;
pub use crate::levels::{Level, LevelKey};
pub use crate::limit::Limit;
pub use crate::limit_action::{Action, Mark, Throttle};
pub use crate::limit_scope::{LimitInterfaces, LimitSources, SourcePrefix};
pub use crate::notify::{Notify, NotifyTarget, WebhookUrl};
pub use crate::over::Over;
pub use crate::ports::PortSet;
pub use crate::prefix::Prefix;
pub use crate::rates::{RateSpec, Tier};
pub use crate::request::RequestCost;
pub use crate::request_key::{EntryValue, KeyEntry, RequestKey};
pub use crate::request_limit::RequestLimit;
pub use crate::value_pattern::ValuePattern;
pub use crate::words::{
    Attach, ClusterMode, Key, Mode, NotifyOn, OnExit, OnFull, ProtocolFilter, Prove,
    RequestEnforcement, RequestProtocol, RequestUnit, Shield, Unit, WhenStoreIsDown,
};
pub use common::limiter::Algorithm;
