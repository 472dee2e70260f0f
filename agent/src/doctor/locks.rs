//! Restrictions of the kernel on programs: lockdown, security modules, unprivileged BPF.

use std::fs;
use std::path::Path;

use bpf::lockdown::Lockdown;
use config::policy::{Attach, Config};

use super::check::Check;

/// The parts of the config that do not work under lockdown in its mode `confidentiality`.
fn forbidden(config: &Config) -> Vec<String> {
    let mut forbidden: Vec<String> = config
        .limits
        .iter()
        .filter(|limit| limit.concurrent.is_some())
        .map(|limit| format!("limit `{}` is left out of a start", limit.name))
        .collect();
    if !config.groups.is_empty() {
        forbidden.push("processes of groups are found by scanning, not as they start".to_owned());
    }
    if config.agent.attach == Attach::Generic {
        forbidden.push("generic XDP counts a buffer of merged packets as one packet".to_owned());
    }
    forbidden
}

/// The kernel's lockdown, whose `sys` this is.
pub fn lockdown(config: &Config, sys: &Path) -> Check {
    const NAME: &str = "lockdown";
    match Lockdown::of(sys) {
        Lockdown::None => Check::good(NAME, "none"),
        Lockdown::Integrity => Check::good(NAME, "integrity, under which everything works"),
        Lockdown::Confidentiality => {
            let forbidden = forbidden(config);
            if forbidden.is_empty() {
                let found = "confidentiality: no program may read the kernel's memory, which this config does not require";
                return Check::good(NAME, found);
            }
            Check::limited(
                NAME,
                format!(
                    "confidentiality: no program may read the kernel's memory: {}",
                    forbidden.join("; ")
                ),
                "boot with lockdown=integrity, or leave these out",
            )
        }
    }
}

/// The kernel's security modules.
pub fn modules(sys: &Path) -> Check {
    const NAME: &str = "security modules";
    match fs::read_to_string(sys.join("kernel/security/lsm")) {
        Ok(modules) if modules.contains("selinux") => Check::good(
            NAME,
            format!(
                "{}; SELinux's policy must allow bpf: ausearch -m avc -c agent",
                modules.trim()
            ),
        ),
        Ok(modules) => Check::good(NAME, modules.trim()),
        Err(_) => Check::good(NAME, "unknown: there is no /sys/kernel/security/lsm"),
    }
}

/// Whether users without the capability may load programs.
pub fn unprivileged(proc: &Path) -> Check {
    const NAME: &str = "unprivileged BPF";
    let setting = fs::read_to_string(proc.join("sys/kernel/unprivileged_bpf_disabled"));
    let found = match setting.as_deref().map(str::trim) {
        Ok("0") => "allowed (kernel.unprivileged_bpf_disabled is 0), which Weir does not require",
        Ok(_) => "disabled, which Weir does not require",
        Err(_) => "unknown, and not required by Weir",
    };
    Check::good(NAME, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn lockdown_names_what_of_the_config_will_not_work() {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("kernel/security")).unwrap();
        let of = |modes: &str, more: &str| {
            fs::write(sys.path().join("kernel/security/lockdown"), modes).unwrap();
            let text = format!(
                "[agent]\ninterfaces = [\"eth0\"]\n{more}\n[[limit]]\nname = \"rate\"\nrate = \"1/s\"\n"
            );
            let config = config::parse(Path::new("limits.toml"), &text)
                .unwrap_or_else(|report| panic!("{report}"))
                .config;
            lockdown(&config, sys.path())
        };
        const LOCKED: &str = "none integrity [confidentiality]\n";
        let open = "[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = 5";
        assert_eq!(of("[none] integrity\n", open).verdict, Verdict::Good);
        assert_eq!(of("none [integrity] x\n", open).verdict, Verdict::Good);
        assert_eq!(of(LOCKED, "").verdict, Verdict::Good);
        for (more, named) in [
            (open, "limit `open` is left out"),
            ("attach = \"generic\"", "generic XDP"),
            (
                "[[group]]\nname = \"g\"\nexe = \"/bin/sleep\"\npids = 9",
                "groups are found by scanning",
            ),
        ] {
            let check = of(LOCKED, more);
            assert_eq!(check.verdict, Verdict::Limited);
            assert!(check.found.contains(named), "{}", check.found);
        }
    }

    #[test]
    fn security_modules_and_the_setting_for_users_are_read() {
        let root = tempfile::tempdir().unwrap();
        assert!(modules(root.path()).found.starts_with("unknown"));
        assert!(unprivileged(root.path()).found.starts_with("unknown"));
        fs::create_dir_all(root.path().join("kernel/security")).unwrap();
        fs::create_dir_all(root.path().join("sys/kernel")).unwrap();
        let lsm = root.path().join("kernel/security/lsm");
        fs::write(&lsm, "lockdown,capability,apparmor,bpf").unwrap();
        assert_eq!(
            modules(root.path()).found,
            "lockdown,capability,apparmor,bpf"
        );
        fs::write(&lsm, "capability,selinux").unwrap();
        assert!(modules(root.path()).found.contains("ausearch"));
        let setting = root.path().join("sys/kernel/unprivileged_bpf_disabled");
        fs::write(&setting, "2\n").unwrap();
        assert!(unprivileged(root.path()).found.starts_with("disabled"));
        fs::write(&setting, "0\n").unwrap();
        assert!(unprivileged(root.path()).found.starts_with("allowed"));
    }
}
