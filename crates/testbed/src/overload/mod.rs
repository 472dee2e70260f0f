//! Overloads of servers: what groups of sources send, and how much of it a server of known capacity serves.

mod calm;
mod server;
mod sources;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::network::Network;

pub use calm::{CALM, LATE, Watch};
pub use server::Server;
pub use sources::{BIN, Group, Pace, Sources, Unit, frame};

/// The longest pause that a server's thread makes up for, and the threads of sources.
pub const MADE_UP: Duration = Duration::from_millis(20);

/// A rate that changes while others read it.
struct Rate(AtomicU64);

impl Rate {
    const fn new(per_second: f64) -> Self {
        Self(AtomicU64::new(per_second.to_bits()))
    }

    fn set(&self, per_second: f64) {
        self.0.store(per_second.to_bits(), Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }
}

/// Has a server serve and sources send datagrams while `work` runs. The server goes on for 300 ms, so that it reads what was sent.
pub fn beside<T>(
    network: &Network,
    server: &Server,
    sources: &Sources,
    work: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        scope.spawn(|| server.serve(sources));
        scope.spawn(|| network.in_client(|| sources.send_datagrams(server.port())));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        sources.stop();
        thread::sleep(Duration::from_millis(300));
        server.stop();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
