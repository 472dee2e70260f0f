//! The words of `on` and the kinds of events.

use api::EventKind;
use config::policy::NotifyOn;

/// The word in `on` that selects a kind of event; `None` if none does.
#[must_use]
pub const fn subject(kind: EventKind) -> Option<NotifyOn> {
    match kind {
        EventKind::Banned => Some(NotifyOn::Ban),
        EventKind::WouldBan => Some(NotifyOn::WouldBan),
        EventKind::Attack | EventKind::AttackEnded => Some(NotifyOn::Attack),
        EventKind::Overload | EventKind::OverloadEnded | EventKind::FairReleased => {
            Some(NotifyOn::Overload)
        }
        EventKind::TrialRolledBack | EventKind::TrialRollbackFailed => Some(NotifyOn::TrialFailed),
        EventKind::Attached | EventKind::Detached => Some(NotifyOn::Interface),
        EventKind::StoreDown | EventKind::StoreUp => Some(NotifyOn::StoreDown),
        EventKind::CrowdsecDown | EventKind::CrowdsecUp => Some(NotifyOn::CrowdsecDown),
        EventKind::ListFailed => Some(NotifyOn::ListFailed),
        EventKind::GeoFailed => Some(NotifyOn::GeoFailed),
        EventKind::LeftOut
        | EventKind::LimitLifted
        | EventKind::Unopened
        | EventKind::Unproven
        | EventKind::Unserved => Some(NotifyOn::NotEnforced),
        EventKind::RulesStopped
        | EventKind::RulesRefused
        | EventKind::RulesStalled
        | EventKind::RulesStoreDown
        | EventKind::RulesStoreUp => Some(NotifyOn::Rules),
        EventKind::KeysFull => Some(NotifyOn::KeysFull),
        EventKind::OomKill => Some(NotifyOn::OomKill),
        EventKind::Throttled => Some(NotifyOn::Throttled),
        EventKind::WouldThrottle
        | EventKind::ListUpdated
        | EventKind::GeoUpdated
        | EventKind::Protected
        | EventKind::RulesTried
        | EventKind::RulesConfirmed
        | EventKind::Lost => None,
    }
}
