//! What has to be so after a boot, before anybody logs in.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::Test;
use crate::guest::{INTERFACE, configure, json, limit, property, received, run, said, systemctl, try_run, within};
use crate::package::install;

pub const TESTS: &[Test] = &[
    ("limits_are_in_effect_before_the_network_is_up", before_the_network),
    ("no_ordering_cycle_of_cloud_init_firewalld_or_ifupdown_leads_over_weir", no_cycle),
    ("an_interface_that_comes_long_after_boot_is_limited", late_interface),
];

const UNITS: &str = "/etc/systemd/system";
/// Unit files of packages that are not installed: of these, only the ordering counts.
const FOREIGN: &str = "/usr/lib/weir-tests/units";
/// Makes the host's interface, as a driver would, and leaves it down.
const DRIVER: &str = "[Unit]\nDefaultDependencies=no\nBefore=weir.service\n[Service]\nType=oneshot\n\
    RemainAfterExit=yes\nExecStart=/bin/sh -c 'ip netns add client && ip link add weir0 type veth peer name client0 \
    netns client'\n";
/// Sets it up, as whatever configures networks does.
const NETWORK: &str = "[Unit]\nDefaultDependencies=no\nAfter=network-pre.target test-driver.service\n\
    Before=network.target\nWants=network.target network-pre.target\n[Service]\nType=oneshot\nRemainAfterExit=yes\n\
    ExecStart=/bin/sh -c 'ip addr add 10.77.0.1/24 dev weir0 && ip link set weir0 up && ip -n client link set client0 \
    up'\n";
const LATE: &str = "[Service]\nExecStart=/bin/sh -c 'sleep 20; ip link add late0 type veth peer name late1'\n";

/// What the next boot is to find.
pub fn prepare() {
    install("weir.deb");
    configure(&limit(10).replace("\"weir0\"", "\"weir0\", \"late0\""));
    for (name, text) in [("driver", DRIVER), ("network", NETWORK), ("late", LATE)] {
        fs::write(format!("{UNITS}/test-{name}.service"), text).unwrap();
        systemctl(&["add-wants", "multi-user.target", &format!("test-{name}.service")]);
    }
    for entry in fs::read_dir(FOREIGN).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !path.is_file() || name.contains('@') {
            continue;
        }
        fs::copy(&path, format!("{UNITS}/{name}")).unwrap();
        if name.ends_with(".service") {
            let drop_in = format!("{UNITS}/{name}.d");
            fs::create_dir_all(&drop_in).unwrap();
            // Their programs are not here.
            let text = "[Service]\nType=oneshot\nRemainAfterExit=yes\nBusName=\nExecStart=\nExecStart=/bin/true\n\
                ExecStartPre=\nExecStartPost=\nExecStop=\nExecReload=\n";
            fs::write(format!("{drop_in}/nothing.conf"), text).unwrap();
        }
        if !name.contains("hotplug") {
            systemctl(&["add-wants", "multi-user.target", &name]);
        }
    }
    systemctl(&["daemon-reload"]);
    systemctl(&["enable", "weir"]);
}

/// Microseconds after the kernel's start.
fn activated(unit: &str) -> u64 {
    property(unit, "ActiveEnterTimestampMonotonic").parse().unwrap()
}

fn before_the_network() {
    within(Duration::from_secs(120), "weir.service is active", || property("weir.service", "ActiveState") == "active");
    let (weir, pre, network) =
        (activated("weir.service"), activated("network-pre.target"), activated("network.target"));
    assert!(0 < weir && weir <= pre && pre <= network, "weir {weir}, network-pre {pre}, network {network}");
    assert!(weir <= activated("test-network.service"));
    assert_eq!(received(2, 30), 10);
}

fn no_cycle() {
    for unit in ["cloud-init-local.service", "cloud-init.target", "firewalld.service", "networking.service"] {
        assert!(Path::new(UNITS).join(unit).exists(), "{unit} is not there");
    }
    // firewalld and cloud-init have a cycle between themselves; none may lead over Weir.
    let grep = "--grep=ordering cycle|Found dependency|to break";
    let cycles = said(&try_run("journalctl", &["--boot", "--no-pager", "--output=cat", grep]));
    assert!(!cycles.contains("weir"), "{cycles}");
}

fn late_interface() {
    let attached = || {
        let status = json(&["status"]);
        let state = |name: &str| {
            let interfaces = status["interfaces"].as_array().unwrap();
            let found = interfaces.iter().find(|interface| interface["name"] == name);
            found.map_or(String::new(), |found| found["state"].as_str().unwrap_or_default().to_owned())
        };
        (state(INTERFACE), state("late0"))
    };
    within(Duration::from_secs(180), "late0 is there", || Path::new("/sys/class/net/late0").exists());
    run("ip", &["link", "set", "late0", "up"]);
    run("ip", &["link", "set", "late1", "up"]);
    within(Duration::from_secs(30), "late0 is attached", || attached().1 == "attached");
    assert_eq!(attached().0, "attached");
}
