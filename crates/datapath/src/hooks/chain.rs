//! Programs of others that see an interface's packets before Weir's by traffic control. One that does not hand a packet
//! on, as most that return `TC_ACT_OK` do, leaves it without limits.

use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;

use crate::devices::device;
use crate::devices::features::{AttachedProgram, Owner};
use crate::hooks::attached::Attached;
use crate::hooks::hook::{Hook, has_tcx};
use crate::hooks::traffic_control::is_at_our_place;

impl Attached {
    /// The programs before it; none where the kernel cannot be asked.
    fn ahead(&self) -> Vec<AttachedProgram> {
        let (side, at) = match self.of.hook {
            Hook::Xdp | Hook::XdpGeneric => return Vec::new(),
            Hook::TcIngress => (TcAttachType::Ingress, "ingress"),
            Hook::TcEgress => (TcAttachType::Egress, "egress"),
        };
        if has_tcx() {
            let chain = SchedClassifier::query_tcx(&self.interface, side);
            let programs = chain.map(|(_, programs)| programs).unwrap_or_default();
            return before(
                programs,
                |program| program.id() == self.program,
                |program| AttachedProgram::named(program.id(), program.name_as_str(), at),
            );
        }
        let filters = device::filters(self.index, self.of.hook.direction()).unwrap_or_default();
        let filters = filters
            .into_iter()
            .filter(|filter| filter.program.is_some());
        before(filters, is_at_our_place, |filter| {
            AttachedProgram::named(
                filter.program.unwrap_or_default(),
                Some(filter.name.as_str()),
                at,
            )
        })
    }

    /// A note on the programs before it.
    pub(crate) fn ahead_note(&self) -> Option<String> {
        let others: Vec<String> = self
            .ahead()
            .iter()
            .filter(|program| program.owner != Owner::Weir)
            .map(ToString::to_string)
            .collect();
        (!others.is_empty()).then(|| {
            format!(
                "on {} {} comes before Weir: packets that it does not hand on (TCX_NEXT, TC_ACT_UNSPEC) have no limits",
                self.interface,
                others.join(" and ")
            )
        })
    }
}

/// What comes before Weir's own, in the kernel's order.
fn before<P, T>(
    programs: impl IntoIterator<Item = P>,
    is_own: impl Fn(&P) -> bool,
    shown: impl Fn(&P) -> T,
) -> Vec<T> {
    programs
        .into_iter()
        .take_while(|program| !is_own(program))
        .map(|program| shown(&program))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_before_weirs_own_are_listed_in_order() {
        let listed = |chain: &[u32]| before(chain.to_vec(), |id| *id == 7, |id| *id);
        assert_eq!(listed(&[3, 5, 7, 9]), [3, 5]);
        assert!(listed(&[7, 9]).is_empty());
    }
}
