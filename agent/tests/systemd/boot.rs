//! What has to be so after a boot, before anybody logs in.

use std::time::Duration;

use crate::Test;
use crate::guest::{configure, limit, property, systemctl, within};
use crate::package::install;

pub const TESTS: &[Test] = &[("the_agent_starts_at_boot", starts)];

/// What the next boot is to find.
pub fn prepare() {
    install("weir.deb");
    configure(&limit(10));
    systemctl(&["enable", "weir"]);
}

fn starts() {
    within(Duration::from_secs(120), "weir.service is active", || property("weir.service", "ActiveState") == "active");
}
