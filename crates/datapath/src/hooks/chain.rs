//! Programs of others that see an interface's packets before Weir's by traffic control. One that does not hand a packet
//! on, as most that return `TC_ACT_OK` do, leaves it without limits.

use bpf::link;

use crate::devices::device;
use crate::devices::features::{AttachedProgram, Owner};
use crate::hooks::attached::Attached;
use crate::hooks::hook::Hook;
use crate::hooks::traffic_control::is_at_our_place;

impl Attached {
    /// The programs before it in the kernel's order; none if it is not there itself.
    fn ahead(&self) -> Vec<AttachedProgram> {
        let at = match self.of.hook {
            Hook::Xdp | Hook::XdpGeneric => return Vec::new(),
            Hook::TcIngress => "ingress",
            Hook::TcEgress => "egress",
        };
        if let Some(target) = self.of.hook.target() {
            let chain = link::chain(self.index, target).unwrap_or_default();
            let ahead = before(chain, |id| *id == self.program).into_iter();
            return ahead.map(|id| AttachedProgram::new(id, at)).collect();
        }
        let filters = device::filters(self.index, self.of.hook.direction()).unwrap_or_default();
        before(filters, is_at_our_place)
            .into_iter()
            .filter_map(|filter| {
                Some(AttachedProgram::named(
                    filter.program?,
                    Some(&filter.name),
                    at,
                ))
            })
            .collect()
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

/// The programs before Weir's own.
fn before<P>(mut programs: Vec<P>, is_own: impl Fn(&P) -> bool) -> Vec<P> {
    let own = programs.iter().position(is_own);
    programs.truncate(own.unwrap_or(0));
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_before_weirs_own_are_listed_in_order() {
        let listed = |chain: &[u32]| before(chain.to_vec(), |id| *id == 7);
        assert_eq!(listed(&[3, 5, 7, 9]), [3, 5]);
        assert!(listed(&[7, 9]).is_empty());
        assert!(listed(&[3, 5]).is_empty(), "its own is not there");
    }
}
