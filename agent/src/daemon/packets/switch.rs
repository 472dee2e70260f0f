//! Replaces a policy without loading programs, if only rules and prefixes differ: each program has two banks of them.

use std::sync::Arc;

use config::policy::Config;
use datapath::compile::Plan;
use datapath::{LoadError, memory};

use super::change::{LastPackets, enforcing};
use super::in_effect::InEffect;

impl InEffect {
    /// Whether the policy differs from this one in rules and prefixes only, and is for the interfaces of this one.
    pub(super) fn can_switch_to(&self, config: &Config, plan: &Plan) -> bool {
        // Without them, loading reports why.
        let Ok(devices) = enforcing(config) else {
            return false;
        };
        let shared = |config: &Config| {
            config
                .limits
                .iter()
                .map(|limit| limit.cluster)
                .collect::<Vec<_>>()
        };
        config.agent.attach == self.config.agent.attach
            && shared(config) == shared(&self.config)
            && self.ingress.can_switch_to(&plan.ingress, &devices)
            && match (&self.egress, &plan.egress) {
                (Some(egress), Some(image)) => egress.can_switch_to(image, &devices),
                (None, None) => true,
                _ => false,
            }
    }

    /// Puts such a policy in effect. Returns notes for the operator.
    ///
    /// # Errors
    ///
    /// When a map cannot be written; then this policy stays in effect.
    pub(super) fn switch_to(
        &mut self,
        config: Arc<Config>,
        plan: Plan,
    ) -> Result<Vec<String>, LoadError> {
        let (footprint, notes) = (
            memory::footprint(&config, &plan),
            plan.note(&config).into_iter().collect::<Vec<_>>(),
        );
        self.last_packets.wait();
        self.ingress.write_other_bank(&plan.ingress)?;
        if let (Some(egress), Some(image)) = (&mut self.egress, &plan.egress) {
            egress.write_other_bank(image)?;
        }
        let before = self.ingress.switch_to(plan.ingress)?;
        if let (Some(egress), Some(image)) = (&mut self.egress, plan.egress)
            && let Err(error) = egress.switch_to(image)
        {
            self.ingress.switch_to(before)?;
            return Err(error);
        }
        self.last_packets = LastPackets::until_now();
        self.footprint = footprint;
        self.end_escalation();
        let noted: Vec<String> = notes.clone();
        Ok(self.go_on_with(config, notes, noted))
    }
}
