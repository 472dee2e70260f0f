//! `weir suggest --json`.

use serde::Serialize;

use super::classes::SuggestedClass;
use super::decide::Decision;
use super::limit::{Basis, Lacking, SuggestedLimit, Together};
use super::text::Refusal;
use super::traffic::{Service, Traffic, Unit};
use crate::replay::CaptureReport;

/// The document.
#[derive(Clone, Debug, Serialize)]
pub struct SuggestReport {
    /// The captures, in the order given.
    pub captures: Vec<CaptureReport>,
    /// The time from the first packet to the last.
    pub seconds: f64,
    /// Incoming packets that limits would count.
    pub packets: u64,
    /// Limits by source.
    pub limits: Vec<LimitRow>,
    /// Classes of heavy sources.
    pub classes: Vec<SuggestedClass>,
    /// Limits for all sources together, which are comments in the config.
    pub together: Vec<Together>,
    /// Services without a limit.
    pub lacking: Vec<Lacking>,
    /// Notes for the operator.
    pub notes: Vec<String>,
    /// limits.toml; `null` if there is too little data.
    pub config: Option<String>,
    /// Why there is no config.
    pub error: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct LimitRow {
    /// Its name in the config.
    pub name: String,
    /// Protocol and port.
    #[serde(flatten)]
    pub service: Service,
    pub unit: Unit,
    /// The rate as in configs.
    pub rate: String,
    /// The burst in units.
    pub burst: u64,
    pub basis: Basis,
    /// A replay's refusals by this limit; `null` without a replay.
    pub replayed: Option<Refusal>,
}

impl LimitRow {
    fn of(limit: &SuggestedLimit, refusals: Option<&[Refusal]>) -> Self {
        let name = limit.name();
        Self {
            service: limit.service,
            unit: limit.unit,
            rate: limit.rate.to_string(),
            burst: limit.burst,
            basis: limit.basis.clone(),
            replayed: refusals
                .and_then(|refusals| refusals.iter().find(|refusal| refusal.limit == name))
                .cloned(),
            name,
        }
    }
}

impl SuggestReport {
    /// For these captures; `notes` are those about reading them.
    #[must_use]
    pub fn new(captures: Vec<CaptureReport>, traffic: &Traffic, notes: Vec<String>) -> Self {
        Self {
            captures,
            seconds: traffic.seconds,
            packets: traffic.packets,
            limits: Vec::new(),
            classes: Vec::new(),
            together: Vec::new(),
            lacking: Vec::new(),
            notes,
            config: None,
            error: None,
        }
    }

    /// Adds a decision, its config, and the refusals of a replay.
    pub fn decided(&mut self, decision: Decision, config: String, refusals: Option<&[Refusal]>) {
        self.limits = decision
            .limits
            .iter()
            .map(|limit| LimitRow::of(limit, refusals))
            .collect();
        (self.classes, self.together, self.lacking) =
            (decision.classes, decision.together, decision.lacking);
        self.notes.extend(decision.notes);
        self.config = Some(config);
    }
}
