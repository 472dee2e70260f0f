//! A store whose time of day is set while hosts hold leases.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::fleet::{Host, KEYS};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::failover::{fleet, measured};
use crate::redis::Redis;

pub const TESTS: &[Test] = tests![
    a_store_whose_clock_steps_by_nearly_a_lease_grants_nothing_twice,
    windows_go_on_while_the_stores_clock_is_an_hour_behind,
];

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

/// The hosts' clock goes on from where it was, at its own pace: a window ends, and one that begins passes its count.
fn windows_go_on_while_the_stores_clock_is_an_hour_behind() {
    let folder = tempfile::tempdir().unwrap();
    let ahead = folder.path().join("ahead");
    std::fs::write(&ahead, 0i64.to_ne_bytes()).unwrap();
    let redis = Redis::start_by(preloaded(folder.path(), &ahead).to_str().unwrap(), &[]);
    let limit = format!("{KEYS}\nrate = \"100/5s\"\nalgorithm = \"fixed-window\"");
    let host = Host::start("one", &format!("store = {:?}", redis.url()), &limit);
    host.until(PATIENCE, "joined", |cluster| {
        cluster["limits"][0]["share_from"] == "keys"
    });
    // A store whose clock is set forward has lost its keys, until the host's next request.
    let clock = || {
        let start = Instant::now();
        loop {
            let clock = redis.cli(&["hget", "weir:{weir}:keys", "#clock"]);
            if let Ok(clock) = clock.trim().parse::<u64>() {
                return clock;
            }
            assert!(start.elapsed() < PATIENCE);
            thread::sleep(Duration::from_millis(10));
        }
    };
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(&ahead)
        .unwrap();
    let set = |milliseconds: i64| file.write_all_at(&milliseconds.to_ne_bytes(), 0).unwrap();
    let mut asker = host.connect();
    // An exchange sets it: its next value, and an instant before that, which is when the value before was last read.
    let changed = || {
        let begun = Instant::now();
        let mut before = (begun, clock());
        loop {
            let next = (Instant::now(), clock());
            if next.1 != before.1 {
                return (before.0, next.1);
            }
            assert!(begun.elapsed() < PATIENCE);
            before = next;
        }
    };
    let (start, before) = changed();
    set(-3_600_000);
    let mut passed = 0;
    // Parts of two windows at least.
    while passed < 200 {
        assert!(
            start.elapsed() < PATIENCE,
            "{passed} in {:?}",
            start.elapsed()
        );
        passed += asker.ask(50);
        thread::sleep(Duration::from_millis(20));
    }
    let on_clock = changed().1 - before;
    let elapsed = start.elapsed();
    eprintln!("{passed} in {elapsed:?}, {on_clock} us on the hosts' clock");
    assert!(Duration::from_micros(on_clock) <= elapsed + Duration::from_secs(1));
    let windows = on_clock / 5_000_000 + 2;
    assert!(passed <= 100 * windows, "{passed} in {on_clock} us");
    // Forward again: the clock has the store's, and does not jump.
    set(0);
    let synced = clock();
    while clock() < synced + 1_000_000 {
        assert!(start.elapsed() < 2 * PATIENCE);
        thread::sleep(Duration::from_millis(20));
    }
    let on_clock = Duration::from_micros(clock() - before);
    assert!(
        on_clock <= start.elapsed() + Duration::from_secs(1),
        "{on_clock:?} in {:?}",
        start.elapsed()
    );
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
