//! Files in place of /proc/stat and /proc/pressure/cpu: an agent sees CPUs that are idle or busy as a test says.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

/// The interval at which time passes in the files: shorter than any that the agent samples in.
const INTERVAL: Duration = Duration::from_millis(5);

/// CPUs that are idle until they are said to be busy.
pub struct HostCpus {
    folder: TempDir,
    is_busy: Arc<AtomicBool>,
}

impl HostCpus {
    pub fn idle() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
        std::fs::write(folder.path().join("cpu"), pressure).unwrap();
        let mut times = Times {
            stat: OpenOptions::new()
                .create_new(true)
                .write(true)
                .open(folder.path().join("stat"))
                .unwrap(),
            busy: 0,
            idle: 0,
        };
        times.write();
        let is_busy = Arc::new(AtomicBool::new(false));
        let weak = Arc::downgrade(&is_busy);
        thread::spawn(move || {
            while let Some(is_busy) = weak.upgrade() {
                times.advance(is_busy.load(Ordering::Relaxed));
                thread::sleep(INTERVAL);
            }
        });
        Self { folder, is_busy }
    }

    /// From now on, others use all CPUs.
    pub fn become_busy(&self) {
        self.is_busy.store(true, Ordering::Relaxed);
    }

    /// Runs `start` where it and the processes that it starts see these CPUs.
    pub fn seen_by<T: Send>(&self, start: impl FnOnce() -> T + Send) -> T {
        let seen = || {
            // Only this thread and what it starts see the mounts.
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            for (file, place) in [("stat", "/proc/stat"), ("cpu", "/proc/pressure/cpu")] {
                if Path::new(place).exists() {
                    let file = self.folder.path().join(file);
                    mount(Some(&file), place, none, MsFlags::MS_BIND, none).unwrap();
                }
            }
            start()
        };
        thread::scope(|scope| scope.spawn(seen).join().unwrap())
    }
}

/// The first line of /proc/stat.
struct Times {
    stat: File,
    busy: u64,
    idle: u64,
}

impl Times {
    fn advance(&mut self, is_busy: bool) {
        *if is_busy {
            &mut self.busy
        } else {
            &mut self.idle
        } += 1;
        self.write();
    }

    fn write(&mut self) {
        // In place and of one length: whoever reads it meanwhile finds a whole line.
        let line = format!("cpu  {:012} 0 0 {:012} 0 0 0 0 0 0\n", self.busy, self.idle);
        self.stat.write_all_at(line.as_bytes(), 0).unwrap();
    }
}
