//! The decision how each process, unit and container of a group is enforced, and why one is not: pure functions.

use config::group::Moving;

use super::place::{Kind, Manager, Place};

/// The facts about a matching process.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'f> {
    pub place: &'f Place,
    pub manager: Manager,
    pub moving: Moving,
    /// The other processes of its unit or container.
    pub others: Others,
    pub role: Role,
    /// The restrictions that the process would lose by leaving, as text.
    pub restrictions: &'f [String],
}

/// The role of a process in its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// One of several processes.
    Worker,
    /// The process by which systemd tracks the unit.
    Main,
    /// Unknown until the unit has started: a process that forks may become either.
    Starting,
}

/// The other processes of a unit or container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None, or all belong to the same group.
    Same,
    /// This many do not.
    Differ(usize),
}

/// How a process is enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Its unit or container is limited as a whole; nothing is moved.
    InPlace,
    /// It is moved into a transient scope in this slice.
    Scope {
        /// The slice's name.
        slice: String,
    },
    /// It is moved into a cgroup of Weir.
    Own,
    /// It stays, and is not enforced.
    Stay(Reason),
}

/// The reason why a process is not enforced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It shares a login session with others.
    Session { session: String, slice: String },
    /// Other processes of its unit or container do not match.
    Shared {
        name: String,
        others: usize,
        key: &'static str,
    },
    /// systemd tracks the service by this process.
    Main { unit: String },
    /// The service has not started yet.
    Starting { unit: String },
    /// A move would lift restrictions.
    Restricted(Vec<String>),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Session { session, slice } => write!(
                formatter,
                "belongs to the login session {session}, which logind ends if it is moved: limit its slice in place (slice = {slice:?})"
            ),
            Self::Shared { name, others, key } => write!(
                formatter,
                "belongs to {name} with {others} processes that do not match: limit all of it ({key}), or take it out (move = true)"
            ),
            Self::Main { unit } => write!(
                formatter,
                "is the main process of {unit}, which systemd would consider stopped: limit all of it (unit = {unit:?})"
            ),
            Self::Starting { unit } => {
                write!(
                    formatter,
                    "belongs to {unit}, which is starting: it is moved once that is active"
                )
            }
            Self::Restricted(restrictions) => write!(
                formatter,
                "would lose by being moved: {}; limit it in place (unit, container or cgroup), or set move = \"force\"",
                restrictions.join(", ")
            ),
        }
    }
}

/// Decides how one process is enforced.
///
/// - Processes of a login session, main processes of a service and those of a starting service are never moved.
/// - A unit or container of which every process matches is limited in place.
/// - A process leaves its unit or container only if the config allows it.
/// - No move lifts a restriction unless it is forced.
#[must_use]
pub fn decide(facts: &Facts<'_>) -> Decision {
    let place = facts.place;
    let is_managed = place.kind != Kind::Plain;
    if is_managed && facts.others == Others::Same {
        return Decision::InPlace;
    }
    if let Kind::Session(session) = &place.kind {
        return Decision::Stay(Reason::Session {
            session: session.clone(),
            slice: place.slice.clone(),
        });
    }
    if is_managed && facts.moving == Moving::Never {
        let others = match facts.others {
            Others::Same => 0,
            Others::Differ(others) => others,
        };
        let key = match place.kind {
            Kind::Container(_) => "container",
            Kind::UserManager(_) => "slice",
            _ => "unit",
        };
        return Decision::Stay(Reason::Shared {
            name: place.name().to_owned(),
            others,
            key,
        });
    }
    if is_managed {
        let unit = place.name().to_owned();
        match facts.role {
            Role::Worker => {}
            Role::Main => return Decision::Stay(Reason::Main { unit }),
            Role::Starting => return Decision::Stay(Reason::Starting { unit }),
        }
    }
    if !facts.restrictions.is_empty() && facts.moving != Moving::Force {
        return Decision::Stay(Reason::Restricted(facts.restrictions.to_vec()));
    }
    match facts.manager {
        Manager::Systemd => Decision::Scope {
            slice: place.slice.clone(),
        },
        Manager::None => Decision::Own,
    }
}

/// The result of comparing a group's limit with an existing one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merge {
    /// There is no other limit: set the group's.
    Set,
    /// The existing limit is at most as high, and stays.
    Lower,
    /// The existing limit is higher.
    Higher,
}

/// Compares the existing limit, if any, with the group's.
#[must_use]
pub fn merge(theirs: Option<u64>, ours: u64) -> Merge {
    match theirs {
        None => Merge::Set,
        Some(theirs) if theirs <= ours => Merge::Lower,
        Some(_) => Merge::Higher,
    }
}

/// The cgroups that a process leaves: its own and those above, except those above `to` as well, and except the root.
#[must_use]
pub fn left_cgroups<'p>(from: &'p str, to: &str) -> Vec<&'p str> {
    let stays = |prefix: &&str| !super::place::is_within(to, prefix);
    super::place::prefixes(from).filter(stays).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: &str = "/system.slice/a.service";
    const SESSION: &str = "/user.slice/user-1000.slice/session-2.scope";
    const MANAGER: &str = "/user.slice/user-1000.slice/user@1000.service/app.slice/b.service";

    fn decision(
        path: &str,
        manager: Manager,
        moving: Moving,
        others: Others,
        restrictions: &[&str],
    ) -> Decision {
        let restrictions: Vec<String> =
            restrictions.iter().map(|text| (*text).to_owned()).collect();
        let place = Place::of(path, manager);
        decide(&Facts {
            place: &place,
            manager,
            moving,
            others,
            role: Role::Worker,
            restrictions: &restrictions,
        })
    }

    fn container() -> String {
        format!("/system.slice/docker-{}.scope", "a".repeat(64))
    }

    #[test]
    fn a_unit_or_container_that_matches_as_a_whole_is_limited_in_place() {
        for moving in [Moving::Never, Moving::Unrestricted, Moving::Force] {
            for path in [SERVICE, SESSION, &container()] {
                let decided = decision(
                    path,
                    Manager::Systemd,
                    moving,
                    Others::Same,
                    &["memory.max"],
                );
                assert_eq!(decided, Decision::InPlace, "{path} {moving:?}");
            }
        }
    }

    #[test]
    fn a_session_is_never_moved() {
        for moving in [Moving::Never, Moving::Unrestricted, Moving::Force] {
            let decided = decision(SESSION, Manager::Systemd, moving, Others::Differ(3), &[]);
            assert!(
                matches!(decided, Decision::Stay(Reason::Session { .. })),
                "{decided:?}"
            );
        }
    }

    #[test]
    fn workers_leave_their_service_only_if_the_config_says_so() {
        let of = |moving| decision(SERVICE, Manager::Systemd, moving, Others::Differ(2), &[]);
        let Decision::Stay(reason) = of(Moving::Never) else {
            panic!()
        };
        let text = reason.to_string();
        assert!(
            text.contains("a.service with 2 processes") && text.contains("move = true"),
            "{text}"
        );
        let scope = Decision::Scope {
            slice: "system.slice".to_owned(),
        };
        assert_eq!(of(Moving::Unrestricted), scope);
        assert_eq!(of(Moving::Force), scope);
    }

    #[test]
    fn no_move_lifts_a_restriction_unless_it_is_forced() {
        for path in [SERVICE, MANAGER, &container(), "/a"] {
            let of = |moving| {
                decision(
                    path,
                    Manager::Systemd,
                    moving,
                    Others::Differ(1),
                    &["memory.max 64 MiB"],
                )
            };
            for moving in [Moving::Never, Moving::Unrestricted] {
                assert!(matches!(of(moving), Decision::Stay(_)), "{path} {moving:?}");
            }
            assert!(
                matches!(of(Moving::Force), Decision::Scope { .. }),
                "{path}"
            );
        }
        let Decision::Stay(reason) = decision(
            "/a",
            Manager::None,
            Moving::Unrestricted,
            Others::Same,
            &["memory.max 64 MiB"],
        ) else {
            panic!()
        };
        assert!(reason.to_string().contains("memory.max 64 MiB"), "{reason}");
    }

    #[test]
    fn processes_of_nobodys_unit_are_moved_as_ever() {
        assert_eq!(
            decision("/", Manager::None, Moving::Never, Others::Same, &[]),
            Decision::Own
        );
        assert_eq!(
            decision("/a/b", Manager::None, Moving::Never, Others::Differ(1), &[]),
            Decision::Own
        );
        let root = Decision::Scope {
            slice: "-.slice".to_owned(),
        };
        assert_eq!(
            decision("/", Manager::Systemd, Moving::Never, Others::Same, &[]),
            root
        );
    }

    #[test]
    fn the_lower_limit_holds() {
        assert_eq!(merge(None, 5), Merge::Set);
        assert_eq!(merge(Some(5), 5), Merge::Lower);
        assert_eq!(merge(Some(4), 5), Merge::Lower);
        assert_eq!(merge(Some(6), 5), Merge::Higher);
    }

    #[test]
    fn cgroups_above_both_are_not_left() {
        assert_eq!(
            left_cgroups(
                "/system.slice/a.service/x",
                "/system.slice/weir-g.system.scope"
            ),
            ["/system.slice/a.service", "/system.slice/a.service/x"]
        );
        assert_eq!(left_cgroups("/a/b", "/weir/g"), ["/a", "/a/b"]);
        assert_eq!(left_cgroups("/", "/weir/g"), [""; 0]);
        assert_eq!(left_cgroups("/weirdo", "/weir"), ["/weirdo"]);
    }
}
