//! All checks for a config.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use config::policy::{Config, Notify, NotifyTarget};
use datapath::connections::unsupported;
use datapath::host_links::HostLinks;
use datapath::translations::{self, Unknown};
use datapath::{lacking_for_shape, topology};
use serde::Serialize;

use super::check::{Check, Verdict};
use super::host;
use super::interfaces::{self, shapes};

/// All checks for a config.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether the host has everything that the config requires.
    pub ok: bool,
    pub host: Vec<Check>,
    pub interfaces: Vec<interfaces::Interface>,
}

/// Checks this host for a config. Changes nothing.
#[must_use]
pub fn examine(config: &Config) -> Report {
    let host = host::checks(config);
    let interfaces = interfaces::examine(config);
    let all = host
        .iter()
        .chain(interfaces.iter().flat_map(|interface| &interface.checks));
    let ok = all
        .into_iter()
        .all(|check| check.verdict != Verdict::Missing);
    Report {
        ok,
        host,
        interfaces,
    }
}

/// The first limit with `concurrent`, on a kernel that cannot count connections.
fn lacking_for_connections(config: &Config, sys: &Path) -> Option<String> {
    let limit = config
        .limits
        .iter()
        .find(|limit| limit.concurrent.is_some())?;
    let why = unsupported(sys)?;
    Some(format!(
        "limit `{}` has concurrent, which is not supported here: {why}; write a rate instead",
        limit.name
    ))
}

/// A program or file of a `[[notify]]` that this host does not have.
fn lacking_for_notify(notify: &Notify) -> Option<String> {
    let (file, what) = match notify.target() {
        NotifyTarget::Command(command) => (command.first()?.into(), "command"),
        NotifyTarget::Webhook { secret_file, .. } => (secret_file?, "secret_file"),
    };
    let is_there = file.metadata().is_ok_and(|found| {
        found.is_file() && (what == "secret_file" || found.permissions().mode() & 0o111 != 0)
    });
    (!is_there).then(|| {
        format!(
            "notify {:?}: {what} `{}` not found, or no file for it",
            notify.name,
            file.display()
        )
    })
}

/// The features that the config requires and this host lacks, found without privileges; for `check`.
#[must_use]
pub fn lacking(config: &Config) -> Vec<String> {
    let mut lacking = Vec::new();
    // If the devices cannot be listed, there are none here.
    lacking.extend(HostLinks::read(config).unwrap_or_default().lacking());
    if !config.limits.is_empty() && !std::path::Path::new("/sys/fs/bpf").exists() {
        lacking
            .push("/sys/fs/bpf not found: limits on packets require a kernel with BPF".to_owned());
    }
    lacking.extend(lacking_for_connections(config, Path::new("/sys")));
    if translations::matter(config) {
        let read = translations::by_rules();
        // Only root can read the rules: for others, nothing can be told.
        let unknown = if nix::unistd::geteuid().is_root() {
            read.unknown.clone()
        } else {
            Unknown::default()
        };
        lacking.extend(translations::notes(config, &read.translations(), &unknown));
    }
    if shapes(config) {
        let devices = topology::devices().unwrap_or_default();
        let held = devices
            .iter()
            .filter(|device| device.is_named_by(&config.agent.interfaces));
        lacking.extend(held.filter_map(|device| lacking_for_shape(&device.name, &config.limits)));
    }
    lacking.extend(cgroup::lacking(config));
    lacking.extend(config.notify.iter().filter_map(lacking_for_notify));
    lacking
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_btf_tracepoints_lacks_what_concurrent_requires() {
        let sys = tempfile::tempdir().unwrap();
        let of = |lines: &str| {
            let text =
                format!("[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"open\"\n{lines}\n");
            config::parse(Path::new("limits.toml"), &text)
                .unwrap()
                .config
        };
        let lacking =
            lacking_for_connections(&of("unit = \"connections\"\nconcurrent = 50"), sys.path())
                .unwrap();
        assert!(
            lacking.starts_with("limit `open` has concurrent") && lacking.contains("BTF"),
            "{lacking}"
        );
        assert_eq!(
            lacking_for_connections(&of("rate = \"5/s\""), sys.path()),
            None
        );
    }
}
