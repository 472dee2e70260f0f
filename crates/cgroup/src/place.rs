//! Classifies a cgroup by its path: a unit of systemd, a login session, a container.
//!
//! Pure functions of paths, as systemd.unit(5), logind, the container runtimes and the kubelet name cgroups.

/// The manager of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A login session, which logind ends when it loses its processes.
    Session(String),
    /// Below the service manager of a user.
    UserManager(String),
    /// A container, by its ID.
    Container(String),
    /// A unit of systemd other than a slice.
    Unit(String),
    /// None of these: a slice, the root, or a cgroup that another program created.
    Plain,
}

/// The classification of a process's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The manager.
    pub kind: Kind,
    /// The cgroup of the session, container or unit; for [`Kind::Plain`] the process's own.
    pub cgroup: String,
    /// The innermost slice above it; `-.slice` is the root.
    pub slice: String,
}

/// Whether systemd manages the host's cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    Systemd,
    /// Other programs, or none.
    None,
}

/// The length of container IDs.
const ID_DIGITS: usize = 64;
const UNIT_ENDINGS: [&str; 6] = [".service", ".scope", ".socket", ".mount", ".swap", ".slice"];

impl Place {
    /// Classifies the cgroup at `path`, relative to the root of its hierarchy.
    #[must_use]
    pub fn of(path: &str, manager: Manager) -> Self {
        Self::with(path, manager, |_| true)
    }

    /// The same where only some cgroups with the name of a container are one: users choose the names of theirs.
    #[must_use]
    pub fn with(path: &str, manager: Manager, is_container: impl Fn(&str) -> bool) -> Self {
        let mut slice = "-.slice";
        let mut kind = None;
        for prefix in prefixes(path) {
            let name = unit_name(last(prefix));
            if let Some(id) = container_id(name).filter(|_| is_container(prefix)) {
                // A container may be inside a unit, such as a node agent's; never the reverse.
                let kind = Kind::Container(id.to_owned());
                return Self {
                    kind,
                    cgroup: prefix.to_owned(),
                    slice: slice.to_owned(),
                };
            }
            if manager == Manager::Systemd && kind.is_none() {
                if name.ends_with(".slice") {
                    slice = name;
                } else if is_unit(name) {
                    kind = Some((unit_kind(name, slice), prefix));
                }
            }
        }
        let (kind, cgroup) = kind.unwrap_or((Kind::Plain, path));
        Self {
            kind,
            cgroup: cgroup.to_owned(),
            slice: slice.to_owned(),
        }
    }

    /// The cgroup of the slice; empty for the root.
    #[must_use]
    pub fn slice_cgroup(&self) -> &str {
        let end = |prefix: &&str| unit_name(last(prefix)) == self.slice;
        prefixes(&self.cgroup).filter(end).last().unwrap_or("")
    }

    /// The name in `weir groups`.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Session(unit) | Kind::UserManager(unit) | Kind::Unit(unit) => unit,
            Kind::Container(_) | Kind::Plain => &self.cgroup,
        }
    }
}

fn unit_kind(name: &str, slice: &str) -> Kind {
    let in_user_slice = slice.starts_with("user-");
    if in_user_slice && name.starts_with("session-") && name.ends_with(".scope") {
        Kind::Session(name.to_owned())
    } else if in_user_slice && name.starts_with("user@") {
        Kind::UserManager(name.to_owned())
    } else {
        Kind::Unit(name.to_owned())
    }
}

/// Every cgroup from below the root to `path`, the outermost first.
pub fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    let path = path.trim_end_matches('/');
    let inner = path
        .char_indices()
        .skip(1)
        .filter(|(_, c)| *c == '/')
        .map(|(at, _)| &path[..at]);
    inner.chain((!path.is_empty()).then_some(path))
}

/// The last component of a path.
#[must_use]
pub fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Whether `path` is `above` or below it.
#[must_use]
pub fn is_within(path: &str, above: &str) -> bool {
    path.strip_prefix(above)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The unit of a cgroup with this name. systemd prefixes an underscore to names that look like the kernel's files, as
/// memory.service does, and to names that start with one.
#[must_use]
pub fn unit_name(name: &str) -> &str {
    name.strip_prefix('_').unwrap_or(name)
}

/// Whether systemd uses a cgroup of this name for a unit.
#[must_use]
pub fn is_unit(name: &str) -> bool {
    UNIT_ENDINGS
        .iter()
        .any(|ending| name.len() > ending.len() && name.ends_with(ending))
}

/// The unit that the system's manager has at `path`; cgroups below a unit are not its own.
#[must_use]
pub fn managed_unit(path: &str) -> Option<&str> {
    below_slices(path).filter(|name| is_unit(name))
}

/// The name of the cgroup at `path`, as [`unit_name`] returns it, if only slices are above it. They belong to root.
#[must_use]
pub fn below_slices(path: &str) -> Option<&str> {
    let above_are_slices = prefixes(path)
        .filter(|prefix| *prefix != path)
        .all(|prefix| prefix.ends_with(".slice"));
    above_are_slices.then(|| unit_name(last(path)))
}

/// The ID in the name of a container's cgroup: `docker-ID.scope`, `libpod-ID.scope`, `cri-containerd-ID.scope`, or the
/// ID alone. `libpod-conmon-ID.scope` is that of a container's monitor.
#[must_use]
pub fn container_id(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let start = name
        .len()
        .checked_sub(ID_DIGITS)
        .filter(|start| name.is_char_boundary(*start))?;
    let (runtime, id) = name.split_at(start);
    let is_id = id
        .bytes()
        .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_runtime = runtime.is_empty() || (runtime.ends_with('-') && !runtime.contains("conmon"));
    (is_id && is_runtime).then_some(id)
}

/// The pod of a container, as `pod` and its unique ID.
#[must_use]
pub fn pod(path: &str) -> Option<String> {
    prefixes(path).find_map(|prefix| {
        let name = last(prefix);
        let name = name.strip_suffix(".slice").unwrap_or(name);
        let id = &name[name.rfind("pod")? + 3..];
        let is_pods = path.starts_with("/kubepods") || path.contains("/kubepods");
        // systemd's driver writes underscores, since dashes separate levels of slices.
        (is_pods && id.len() >= 32).then(|| format!("pod{}", id.replace('_', "-")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(digit: char) -> String {
        digit.to_string().repeat(ID_DIGITS)
    }

    #[test]
    fn a_path_shows_the_manager_of_its_processes() {
        let (docker, podman) = (id('a'), id('b'));
        let unit = |name: &str| Kind::Unit(name.to_owned());
        for (path, kind, cgroup, slice) in [
            ("/", Kind::Plain, "/", "-.slice"),
            (
                "/system.slice",
                Kind::Plain,
                "/system.slice",
                "system.slice",
            ),
            ("/init.scope", unit("init.scope"), "/init.scope", "-.slice"),
            (
                "/system.slice/_io.service",
                unit("io.service"),
                "/system.slice/_io.service",
                "system.slice",
            ),
            (
                "/system.slice/a.service/sub/x.service",
                unit("a.service"),
                "/system.slice/a.service",
                "system.slice",
            ),
            (
                "/system.slice/system-getty.slice/getty@tty1.service",
                unit("getty@tty1.service"),
                "/system.slice/system-getty.slice/getty@tty1.service",
                "system-getty.slice",
            ),
            (
                "/user.slice/user-1000.slice/session-2.scope",
                Kind::Session("session-2.scope".to_owned()),
                "/user.slice/user-1000.slice/session-2.scope",
                "user-1000.slice",
            ),
            (
                "/user.slice/user-1000.slice/user@1000.service/app.slice/b.service",
                Kind::UserManager("user@1000.service".to_owned()),
                "/user.slice/user-1000.slice/user@1000.service",
                "user-1000.slice",
            ),
            (
                &format!("/system.slice/docker-{docker}.scope"),
                Kind::Container(docker.clone()),
                &format!("/system.slice/docker-{docker}.scope"),
                "system.slice",
            ),
            (
                &format!("/machine.slice/libpod-{podman}.scope/container/inner"),
                Kind::Container(podman.clone()),
                &format!("/machine.slice/libpod-{podman}.scope"),
                "machine.slice",
            ),
            (
                &format!("/machine.slice/libpod-conmon-{podman}.scope"),
                unit(&format!("libpod-conmon-{podman}.scope")),
                &format!("/machine.slice/libpod-conmon-{podman}.scope"),
                "machine.slice",
            ),
            (
                &format!("/system.slice/kubelet.service/kubepods/burstable/pod1/{docker}"),
                Kind::Container(docker.clone()),
                &format!("/system.slice/kubelet.service/kubepods/burstable/pod1/{docker}"),
                "system.slice",
            ),
        ] {
            let expected = Place {
                kind,
                cgroup: cgroup.to_owned(),
                slice: slice.to_owned(),
            };
            assert_eq!(Place::of(path, Manager::Systemd), expected, "{path}");
        }
        // Without systemd, a unit-like name is just a name.
        assert_eq!(
            Place::of("/system.slice/a.service", Manager::None).kind,
            Kind::Plain
        );
        assert_eq!(
            Place::of(&format!("/docker/{docker}"), Manager::None).kind,
            Kind::Container(docker)
        );
    }

    #[test]
    fn a_slice_has_the_cgroup_of_its_name() {
        let of = |path| Place::of(path, Manager::Systemd).slice_cgroup().to_owned();
        assert_eq!(
            of("/user.slice/user-0.slice/session-1.scope"),
            "/user.slice/user-0.slice"
        );
        assert_eq!(of("/init.scope"), "");
    }

    #[test]
    fn a_unit_is_managed_where_only_slices_are_above_it() {
        assert_eq!(managed_unit("/system.slice/a.service"), Some("a.service"));
        assert_eq!(
            managed_unit("/system.slice/_memory.service"),
            Some("memory.service")
        );
        assert_eq!(
            managed_unit("/user.slice/user-1000.slice"),
            Some("user-1000.slice")
        );
        assert_eq!(
            managed_unit("/user.slice/user-1.slice/user@1.service/app.slice"),
            None
        );
        assert_eq!(managed_unit("/system.slice/a.service/b.service"), None);
        assert_eq!(managed_unit("/a"), None);
    }

    #[test]
    fn pods_are_named_alike_under_both_drivers() {
        let uid = "6d0b4a24-55a4-4b0b-8f50-1e2f3a4b5c6d";
        let under = uid.replace('-', "_");
        for path in [
            format!("/kubepods/burstable/pod{uid}/{}", id('c')),
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{under}.slice/cri-containerd-{}.scope",
                id('c')
            ),
        ] {
            assert_eq!(pod(&path), Some(format!("pod{uid}")), "{path}");
        }
        assert_eq!(pod("/system.slice/podman.service"), None);
        assert_eq!(pod(&format!("/system.slice/podcast-{under}.service")), None);
    }
}
