//! The application's health endpoint, requested while rules are on trial.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use config::policy::FleetRules;
use http_client::{Bounds, Client, shown};
use rollout::health::{CHECK, Probe};

const BOUNDS: Bounds = Bounds {
    timeout: Duration::from_secs(2),
    body: 1 << 20,
    redirects: 0,
};

/// A thread that requests the endpoint until it is dropped.
pub(super) struct Application {
    probe: Arc<Mutex<Probe>>,
    is_over: Arc<AtomicBool>,
}

impl Application {
    pub(super) fn start(fleet: &FleetRules) -> Self {
        let started = Self {
            probe: Arc::new(Mutex::new(Probe::Unused)),
            is_over: Arc::default(),
        };
        let Some(url) = fleet.health.as_ref().map(|url| url.reveal().to_owned()) else {
            return started;
        };
        set(&started.probe, Probe::Running);
        let (probe, is_over) = (Arc::clone(&started.probe), Arc::clone(&started.is_over));
        let thread = thread::Builder::new().name("weir-health".to_owned());
        let spawned = thread.spawn(move || {
            let _ending = Ending(&probe);
            let client = Client::new(BOUNDS);
            while !is_over.load(Ordering::Relaxed) {
                let began = Instant::now();
                set(&probe, request(&client, &url));
                thread::sleep(CHECK.saturating_sub(began.elapsed()));
            }
        });
        if let Err(error) = spawned {
            let failed = format!("starting the thread weir-health failed: {error}");
            set(&started.probe, Probe::Fails(failed));
        }
        started
    }

    pub(super) fn probe(&self) -> Probe {
        let probe = self.probe.lock().unwrap_or_else(PoisonError::into_inner);
        probe.clone()
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Leaves no last result behind a thread that has ended by a panic.
struct Ending<'p>(&'p Mutex<Probe>);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let ended = "the thread weir-health has ended by an internal error";
            set(self.0, Probe::Fails(ended.to_owned()));
        }
    }
}

fn set(probe: &Mutex<Probe>, now: Probe) {
    *probe.lock().unwrap_or_else(PoisonError::into_inner) = now;
}

fn request(client: &Client, url: &str) -> Probe {
    match client.get(url, &[]) {
        Ok(response) if response.is_success() => Probe::Works,
        Ok(response) => Probe::Fails(format!(
            "{} replied with status {}",
            shown(url),
            response.status
        )),
        Err(error) => Probe::Fails(format!("{}: {error}", shown(url))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_a_failure() {
        let probe = Arc::new(Mutex::new(Probe::Works));
        let of_thread = Arc::clone(&probe);
        let thread = thread::spawn(move || {
            let _ending = Ending(&of_thread);
            panic!("for the test");
        });
        assert!(thread.join().is_err());
        let probe = probe.lock().unwrap();
        assert!(matches!(&*probe, Probe::Fails(reason) if reason.contains("weir-health")));
    }
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;

    #[test]
    fn a_status_of_success_works_and_another_one_fails() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/healthz", server.local_addr().unwrap());
        let served = thread::spawn(move || {
            for status in ["200 OK", "503 Service Unavailable"] {
                let (mut stream, _) = server.accept().unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while !lines.next().unwrap().unwrap().is_empty() {}
                let end = "content-length: 0\r\nconnection: close\r\n\r\n";
                write!(stream, "HTTP/1.1 {status}\r\n{end}").unwrap();
            }
        });
        let client = Client::new(BOUNDS);
        assert_eq!(request(&client, &url), Probe::Works);
        let Probe::Fails(reason) = request(&client, &url) else {
            panic!("it works");
        };
        assert!(reason.contains("status 503"), "{reason}");
        served.join().unwrap();
        assert!(matches!(request(&client, &url), Probe::Fails(_)));
    }
}
