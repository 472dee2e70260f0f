//! The kernel, privileges, file systems and cgroups.

use std::fs;
use std::path::Path;

use api::request::Request;
use api::status::{LeftOut, Status};
use caps::{CapSet, Capability};
use cgroup::{Controller, Enforcement, GroupStatus, Tree, Version};
use config::group::Group;
use config::policy::Config;
use datapath::connections::unsupported;
use datapath::{is_kernel_too_old, kernel_release, translations};
use host::PROGRAM;
use host::syn_cookies as cookies;

use super::check::{Check, Needed};
use super::locks;
use crate::daemon::{FairNote, fair_notes};
use crate::server::control::Client;

/// All checks that do not concern a specific interface.
pub fn checks(config: &Config) -> Vec<Check> {
    let on_packets = Needed::from(!config.limits.is_empty());
    let on_groups = Needed::from(!config.groups.is_empty());
    let uses_bpf = Needed::from(on_packets == Needed::Yes || on_groups == Needed::Yes);
    let mut checks = vec![
        kernel(uses_bpf),
        capabilities(uses_bpf),
        locks::lockdown(config, Path::new("/sys")),
        locks::modules(Path::new("/sys")),
        locks::unprivileged(Path::new("/proc")),
        btf(on_groups),
        connections(Needed::from(
            config.limits.iter().any(|limit| limit.concurrent.is_some()),
        )),
        jit(),
        bpffs(&config.agent.pins, uses_bpf),
        Check::good(
            "memlock",
            "not needed: since Linux 5.11 the memory of BPF is charged to the cgroup",
        ),
    ];
    checks.extend(syn_cookies(config));
    checks.extend(translated_ports(config));
    checks.extend(cgroups(config, on_groups));
    checks.extend(left_out(config));
    checks.extend(fair_limits(config));
    checks.push(control_group());
    checks
}

fn kernel(uses_bpf: Needed) -> Check {
    let release = kernel_release();
    if is_kernel_too_old() {
        return Check::lacking(
            uses_bpf,
            "kernel",
            release,
            "Weir needs Linux 5.15 or newer: install a newer kernel",
        );
    }
    if bpf::is_untested(&release) {
        let fix = format!(
            "none is needed if {PROGRAM} check and a trial pass; else install a newer kernel"
        );
        return Check::limited("kernel", format!("{release}: {}", bpf::TESTED), fix);
    }
    Check::good("kernel", release)
}

fn capabilities(uses_bpf: Needed) -> Check {
    const NEEDED: [Capability; 3] = [
        Capability::CAP_BPF,
        Capability::CAP_NET_ADMIN,
        Capability::CAP_PERFMON,
    ];
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    // The capability from which the two newer ones were split.
    let has_all = has(Capability::CAP_SYS_ADMIN) && has(Capability::CAP_NET_ADMIN);
    let missing: Vec<String> = NEEDED
        .iter()
        .filter(|capability| !has(**capability) && !has_all)
        .map(ToString::to_string)
        .collect();
    if missing.is_empty() {
        return Check::good("capabilities", "CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON");
    }
    let found = format!("this user lacks {}", missing.join(", "));
    Check::lacking(
        uses_bpf,
        "capabilities",
        found,
        format!("run as root: sudo {PROGRAM} doctor"),
    )
}

fn btf(on_groups: Needed) -> Check {
    const PATH: &str = "/sys/kernel/btf/vmlinux";
    if Path::new(PATH).exists() {
        return Check::good("BTF", PATH);
    }
    let found =
        format!("there is no {PATH}: processes of groups are found by scanning, not as they start");
    Check::lacking(
        on_groups,
        "BTF",
        found,
        "use a kernel with CONFIG_DEBUG_INFO_BTF=y",
    )
}

/// For limits whose sources prove their address by cookies; `None` without any.
fn syn_cookies(config: &Config) -> Option<Check> {
    const NAME: &str = "SYN cookies";
    if !config.proves_by_cookies() {
        return None;
    }
    let setting = cookies::SETTING;
    Some(match cookies::current() {
        None => Check::missing(
            NAME,
            "the kernel has none: prove has no effect",
            "use a kernel with CONFIG_SYN_COOKIES=y, or leave out prove",
        ),
        Some(0) => Check::missing(
            NAME,
            format!("{setting} is 0: prove has no effect"),
            format!("sysctl {setting}=1"),
        ),
        Some(value) => Check::good(NAME, format!("{setting} is {value}")),
    })
}

fn connections(needed: Needed) -> Check {
    match unsupported(Path::new("/sys")) {
        None => Check::good("connections", "open connections can be counted"),
        Some(why) => Check::lacking(
            needed,
            "connections",
            why,
            "use such a kernel, or leave out limits with concurrent",
        ),
    }
}

/// Ports whose connections netfilter sends elsewhere; `None` if it makes no difference to the config.
fn translated_ports(config: &Config) -> Option<Check> {
    const NAME: &str = "translated ports";
    if !translations::matter(config) {
        return None;
    }
    let read = translations::by_rules();
    let notes = translations::notes(config, &read.translations(), &read.unknown);
    Some(if notes.is_empty() {
        Check::good(
            NAME,
            "none of limits with prove, concurrent or rate = \"fair\"",
        )
    } else {
        Check::limited(
            NAME,
            notes.join("; "),
            "docs/guides/prove.md: Limits; docs/guides/fair.md: Signals",
        )
    })
}

fn jit() -> Check {
    const PATH: &str = "/proc/sys/net/core/bpf_jit_enable";
    match fs::read_to_string(PATH).as_deref().map(str::trim) {
        Ok("0") => Check::limited(
            "JIT",
            "off: every packet costs many times as much",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Ok(_) => Check::good("JIT", "on"),
        Err(_) => Check::good(
            "JIT",
            "unknown here (another network namespace, or a kernel that always compiles)",
        ),
    }
}

fn bpffs(pins: &Path, uses_bpf: Needed) -> Check {
    use nix::sys::statfs::{BPF_FS_MAGIC, statfs};
    use nix::sys::statvfs::{FsFlags, statvfs};
    const USUAL: &str = "/sys/fs/bpf";
    // The directory is created when it is needed.
    let Some(place) = pins.ancestors().find(|place| place.exists()) else {
        return Check::lacking(
            uses_bpf,
            "bpffs",
            format!("there is no {}", pins.display()),
            mount(),
        );
    };
    if !statfs(place).is_ok_and(|it| it.filesystem_type() == BPF_FS_MAGIC) {
        let found = format!("{} is not in a BPF file system", pins.display());
        let fix = if pins.starts_with(USUAL) {
            mount()
        } else {
            format!("set [agent] pins to a path below {USUAL}")
        };
        return Check::lacking(uses_bpf, "bpffs", found, fix);
    }
    if statvfs(place).is_ok_and(|it| it.flags().contains(FsFlags::ST_RDONLY)) {
        let found = format!("the BPF file system of {} is read-only", pins.display());
        return Check::lacking(
            uses_bpf,
            "bpffs",
            found,
            format!("mount -o remount,rw {USUAL}"),
        );
    }
    Check::good("bpffs", place.display().to_string())
}

fn mount() -> String {
    "mount -t bpf bpf /sys/fs/bpf".to_owned()
}

fn cgroups(config: &Config, on_groups: Needed) -> Vec<Check> {
    const SHOWN: [(Controller, &str); 5] = [
        (Controller::Cpu, "cpu"),
        (Controller::Memory, "memory"),
        (Controller::Io, "io"),
        (Controller::Pids, "pids"),
        (Controller::Cpuset, "cpuset"),
    ];
    let is_v1 = |tree: &Tree| {
        let mut controllers = SHOWN.iter();
        controllers.any(|(controller, _)| tree.version(*controller) == Some(Version::V1))
    };
    let tree = match Tree::detect(Path::new("/proc"), &config.agent.cgroup) {
        Ok(tree) => tree,
        Err(error) => {
            let fix = "mount -t cgroup2 cgroup2 /sys/fs/cgroup";
            return vec![Check::lacking(on_groups, "cgroups", error.to_string(), fix)];
        }
    };
    let found: Vec<String> = SHOWN
        .iter()
        .map(|(controller, name)| match tree.version(*controller) {
            Some(Version::V1) => format!("{name} (v1)"),
            Some(Version::V2) => name.to_string(),
            None => format!("no {name}"),
        })
        .collect();
    let place = if tree.unified("").is_some() {
        ""
    } else {
        "no unified hierarchy, which network limits need; "
    };
    let version = match (tree.unified(""), is_v1(&tree)) {
        (Some(_), false) => "version 2",
        (Some(_), true) => "versions 1 and 2",
        (None, _) => "version 1",
    };
    let found = format!(
        "{version}: {place}{}, below {}",
        found.join(", "),
        tree.parent()
    );
    let mut checks = vec![Check::good("cgroups", found)];
    let lacking = cgroup::lacking(config);
    if lacking.is_empty() && on_groups == Needed::Yes {
        checks.extend(enforced(config));
    }
    checks.extend(lacking.into_iter().map(|why| {
        let fix =
            "boot with systemd.unified_cgroup_hierarchy=1, or take the limit out of the group";
        Check::missing("groups", why, fix)
    }));
    checks
}

/// The limits that the running agent left out at its start.
fn left_out(config: &Config) -> Vec<Check> {
    let status = Client::new(&config.agent.control).ask::<Status>(&Request::Status);
    let left_out = status.map(|status| status.left_out).unwrap_or_default();
    let check = |one: &LeftOut| {
        Check::missing(
            "limits",
            one.to_string(),
            format!("use a kernel that can, or write a rate; then {PROGRAM} reload"),
        )
    };
    left_out.iter().map(check).collect()
}

/// Fair limits as the running agent enforces them, and their signals; none without an agent or a fair limit.
fn fair_limits(config: &Config) -> Vec<Check> {
    let status = Client::new(&config.agent.control).ask::<Status>(&Request::Status);
    let Some(status) = status.ok().filter(|status| !status.fair.is_empty()) else {
        return Vec::new();
    };
    of_fair(&status)
}

pub(super) fn of_fair(status: &Status) -> Vec<Check> {
    const NAME: &str = "fair limits";
    let notes = fair_notes(status);
    if notes.is_empty() {
        let sockets: usize = status.fair.iter().map(|fair| fair.signals.len()).sum();
        let sockets = if sockets == 1 {
            "1 socket".to_owned()
        } else {
            format!("{sockets} sockets")
        };
        return vec![Check::good(
            NAME,
            format!("queues and drops of {sockets} are read"),
        )];
    }
    let check = |note: FairNote| {
        let is_needed = Needed::from(note.is_failure);
        Check::lacking(is_needed, NAME, note.found, note.fix)
    };
    notes.into_iter().map(check).collect()
}

/// The groups' enforcement by the running agent, since this process may have privileges that a service lacks. Without
/// an agent, only the host is checked.
fn enforced(config: &Config) -> Vec<Check> {
    let Ok(groups) = Client::new(&config.agent.control).ask::<Vec<GroupStatus>>(&Request::Groups)
    else {
        return vec![Check::good(
            "groups",
            "this host has what they need; no agent runs that enforces them",
        )];
    };
    let check = |wanted: &Group| {
        let found = groups.iter().find(|group| group.name == wanted.name);
        let name = &wanted.name;
        match found {
            None => Check::missing(
                "groups",
                format!("{name}: the running agent does not enforce it"),
                format!("{PROGRAM} reload, then {PROGRAM} status for what is wrong"),
            ),
            Some(group) if group.enforcement == Enforcement::Full => Check::good(
                "groups",
                format!("{name}: enforced on {}", count(group.members.len())),
            ),
            Some(group) => {
                let how = if group.enforcement == Enforcement::None {
                    "not"
                } else {
                    "partly"
                };
                let found = format!("{name}: {how} enforced: {}", group.notes.join("; "));
                Check::limited(
                    "groups",
                    found,
                    format!("{PROGRAM} groups lists what is not enforced, and why"),
                )
            }
        }
    };
    config.groups.iter().map(check).collect()
}

fn count(members: usize) -> String {
    match members {
        0 => "nothing yet: nothing matches".to_owned(),
        1 => "1 unit, container or cgroup".to_owned(),
        more => format!("{more} units, containers or cgroups"),
    }
}

fn control_group() -> Check {
    match nix::unistd::Group::from_name("weir") {
        Ok(Some(_)) => Check::good(
            "group weir",
            "its members may query the agent (status, limits, top, show)",
        ),
        _ => Check::limited(
            "group weir",
            "not found: only root may query the agent",
            "groupadd --system weir, then usermod -aG weir USER",
        ),
    }
}
