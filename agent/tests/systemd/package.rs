//! The package's life: installed, configured, enabled, upgraded, removed, purged.

use std::fs;
use std::path::Path;

use testbed::tests;

use crate::Test;
use crate::guest::{
    self, CONFIG, configure, file, json, limit, make_network, property, received, run, systemctl,
};

pub const TESTS: &[Test] = tests![a_package_is_installed_enabled_upgraded_removed_and_purged,];

const PINS: &str = "/sys/fs/bpf/weir";
/// The link that `systemctl enable` makes.
const ENABLED: &str = "/etc/systemd/system/multi-user.target.wants/weir.service";

/// Installs or upgrades.
pub fn install(package: &str) {
    let arguments = [
        "install",
        "-y",
        "-o",
        "Dpkg::Options::=--force-confold",
        &file(package),
    ];
    run("apt-get", &arguments);
}

/// Leaves nothing of the package.
pub fn remove() {
    run("dpkg", &["--purge", "weir"]);
}

fn a_package_is_installed_enabled_upgraded_removed_and_purged() {
    make_network();
    install("weir.deb");
    assert_eq!(
        property("weir.service", "ActiveState"),
        "inactive",
        "the package started the service"
    );
    configure(&limit(10));
    systemctl(&["enable", "--now", "weir"]);
    assert!(Path::new(ENABLED).exists(), "not enabled: {ENABLED}");
    assert_eq!(received(2, 30), 10);
    assert_eq!(json(&["limits"])[0]["throttled"]["packets"], 20);

    let before = property("weir.service", "MainPID");
    install("weir-next.deb");
    assert_ne!(
        property("weir.service", "MainPID"),
        before,
        "the upgrade did not restart the agent"
    );
    assert_eq!(property("weir.service", "ActiveState"), "active");
    // The source has nothing left, and another one its own.
    assert_eq!((received(2, 5), received(3, 15)), (0, 10));
    assert!(
        fs::read_to_string(CONFIG).unwrap() == limit(10),
        "the upgrade changed the config"
    );

    run("dpkg", &["--remove", "weir"]);
    assert!(!Path::new(PINS).exists(), "pins are left: {PINS}");
    assert_eq!(received(2, 30), 30);
    assert!(Path::new(CONFIG).exists(), "the removal took the config");
    assert!(
        fs::symlink_metadata(ENABLED).is_err(),
        "removed, yet enabled: {ENABLED}"
    );
    run("dpkg", &["--purge", "weir"]);
    for path in ["/etc/weir", "/run/weir", "/var/lib/weir", PINS] {
        assert!(!Path::new(path).exists(), "purged, yet there is {path}");
    }
    assert!(
        !guest::try_run("getent", &["group", "weir"])
            .status
            .success(),
        "purged, yet there is a group weir"
    );
}
