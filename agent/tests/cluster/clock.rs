//! A store whose time of day is set while hosts hold leases.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::failover::{fleet, measured};
use crate::redis::Redis;

pub const TESTS: &[Test] =
    tests![a_store_whose_clock_steps_by_nearly_a_lease_grants_nothing_twice,];

/// Why the store's clock cannot be set here, if it cannot.
pub fn obstacle() -> Option<&'static str> {
    let found = Command::new("cc")
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        None
    } else {
        Some("there is no C compiler `cc`")
    }
}

/// Forward by 0.5, 0.95 and 1.5 leases of a second again and again, then back.
fn a_store_whose_clock_steps_by_nearly_a_lease_grants_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let ahead = folder.path().join("ahead");
    std::fs::write(&ahead, 0i64.to_ne_bytes()).unwrap();
    let redis = Redis::start_by(preloaded(folder.path(), &ahead).to_str().unwrap(), &[]);
    let fleet = fleet(&format!("store = {:?}", redis.url()));
    let time_of_day = || {
        redis
            .cli(&["time"])
            .lines()
            .next()
            .unwrap()
            .parse::<i64>()
            .unwrap()
    };
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&ahead)
        .unwrap();
    let set = |milliseconds: i64| file.write_all_at(&milliseconds.to_ne_bytes(), 0).unwrap();
    let before = time_of_day();
    set(3_600_000);
    assert!(
        (3_590..3_700).contains(&(time_of_day() - before)),
        "the store's clock was not set"
    );
    set(0);
    for step in [500, 950, 1_500, -950] {
        let outcome = measured(
            &format!("a clock that steps by {step} ms"),
            &fleet,
            Duration::from_secs(5),
            || {
                let start = Instant::now();
                let mut ahead = 0;
                while start.elapsed() < Duration::from_millis(4_500) {
                    thread::sleep(Duration::from_millis(1_300));
                    ahead += step;
                    set(ahead);
                }
            },
        );
        assert!(outcome.error() <= 0.1, "{step}: {outcome:?}");
    }
    for host in &fleet {
        host.until(PATIENCE, "leased", |cluster| {
            cluster["limits"][0]["share_from"] == "lease"
        });
    }
}

/// A program that runs the store's server with that clock.
fn preloaded(folder: &Path, ahead: &Path) -> std::path::PathBuf {
    let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
    std::fs::write(&source, include_str!("clock.c")).unwrap();
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(&source)
        .status()
        .unwrap();
    assert!(built.success());
    let program = folder.join("redis");
    let text = format!(
        "#!/bin/sh\nexport WEIR_CLOCK_AHEAD={} LD_PRELOAD={}\nexec {} \"$@\"\n",
        ahead.display(),
        library.display(),
        crate::redis::program()
    );
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program
}
