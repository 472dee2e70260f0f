//! A local API of CrowdSec on loopback, which lies when it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The bouncer's key.
pub const KEY: &str = "the-key-of-the-bouncer";
/// The machine and its password.
pub const MACHINE: (&str, &str) = ("weir-test", "the-password");

/// How the API replies.
#[derive(Clone, Debug, Default)]
pub enum Manner {
    /// As it should.
    #[default]
    Honest,
    /// With this status and text.
    Status(u16, &'static str),
    /// With these bytes instead of a response.
    Bytes(Vec<u8>),
    /// It never replies.
    Silent,
}

/// A decision.
#[derive(Clone, Debug)]
pub struct Decision {
    pub id: u64,
    pub value: String,
    pub scope: &'static str,
    pub kind: &'static str,
    pub ends: Instant,
}

#[derive(Default)]
struct State {
    manner: Manner,
    decisions: Vec<Decision>,
    /// Changes that the next pull of changes reports.
    new: Vec<Decision>,
    deleted: Vec<Decision>,
    next_id: u64,
    full_pulls: u64,
    pulls: u64,
    logins: u64,
    alerts: Vec<Value>,
}

/// The API. It ends when dropped.
pub struct Lapi {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    is_over: Arc<AtomicBool>,
}

impl Lapi {
    /// Listens on loopback in the namespace of the calling thread.
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, state, is_over) = (
            listener.local_addr().unwrap(),
            Arc::default(),
            Arc::default(),
        );
        let lapi = Self {
            address,
            state: Arc::clone(&state),
            is_over: Arc::clone(&is_over),
        };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let (state, is_over) = (Arc::clone(&state), Arc::clone(&is_over));
                let Ok(stream) = stream else { return };
                // A client that goes away is none of a test's business.
                thread::spawn(move || drop(serve(stream, &state, &is_over)));
            }
        });
        lapi
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// From now on it replies like this.
    pub fn behave(&self, manner: Manner) {
        self.state().manner = manner;
    }

    /// Bans an address or range; returns the decision's ID.
    pub fn ban(&self, value: &str, time: Duration) -> u64 {
        self.decide(
            value,
            if value.contains('/') { "Range" } else { "Ip" },
            "ban",
            time,
        )
    }

    /// The same with any scope and type.
    pub fn decide(
        &self,
        value: &str,
        scope: &'static str,
        kind: &'static str,
        time: Duration,
    ) -> u64 {
        let mut state = self.state();
        state.next_id += 1;
        let decision = Decision {
            id: state.next_id,
            value: value.to_owned(),
            scope,
            kind,
            ends: Instant::now() + time,
        };
        state.decisions.push(decision.clone());
        state.new.push(decision);
        state.next_id
    }

    /// Deletes the decisions on a value.
    pub fn delete(&self, value: &str) {
        let mut state = self.state();
        let (gone, left) = state
            .decisions
            .drain(..)
            .partition(|decision| decision.value == value);
        state.decisions = left;
        state.deleted.extend::<Vec<Decision>>(gone);
    }

    /// Loses the changes that no pull has reported yet: the bouncer's set drifts.
    pub fn lose_changes(&self) {
        let mut state = self.state();
        state.new.clear();
        state.deleted.clear();
    }

    /// (pulls of all decisions, pulls of changes) so far.
    pub fn pulls(&self) -> (u64, u64) {
        let state = self.state();
        (state.full_pulls, state.pulls)
    }

    /// The alerts so far.
    pub fn alerts(&self) -> Vec<Value> {
        self.state().alerts.clone()
    }

    /// The logins so far.
    pub fn logins(&self) -> u64 {
        self.state().logins
    }
}

impl Drop for Lapi {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // Wakes the listener; in another namespace it ends with the process.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(100));
    }
}

/// Serves one connection.
fn serve(stream: TcpStream, state: &Mutex<State>, is_over: &AtomicBool) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while !is_over.load(Ordering::Relaxed) {
        let (mut head, mut line) = (Vec::new(), String::new());
        loop {
            line.clear();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                break;
            }
            head.push(line.trim().to_owned());
        }
        let header = |name: &str| {
            head.iter().skip(1).find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name)
                    .then(|| value.trim().to_owned())
            })
        };
        let length = header("content-length")
            .and_then(|length| length.parse().ok())
            .unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let manner = state.lock().unwrap().manner.clone();
        let (status, text) = match manner {
            Manner::Honest => answer(&head[0], &header, &body, state),
            Manner::Status(status, text) => (status, text.to_owned()),
            Manner::Bytes(bytes) => {
                stream.write_all(&bytes)?;
                return Ok(());
            }
            Manner::Silent => {
                while !is_over.load(Ordering::Relaxed)
                    && matches!(state.lock().unwrap().manner, Manner::Silent)
                {
                    thread::sleep(Duration::from_millis(20));
                }
                return Ok(());
            }
        };
        write!(
            stream,
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )?;
    }
    Ok(())
}

fn answer(
    request: &str,
    header: &impl Fn(&str) -> Option<String>,
    body: &[u8],
    state: &Mutex<State>,
) -> (u16, String) {
    let forbidden = (403, r#"{"message":"access forbidden"}"#.to_owned());
    let mut state = state.lock().unwrap();
    let path = request.split(' ').nth(1).unwrap_or_default();
    match path {
        _ if path.starts_with("/v1/decisions/stream?") => {
            if header("x-api-key").as_deref() != Some(KEY) {
                return forbidden;
            }
            let (new, deleted) = (
                std::mem::take(&mut state.new),
                std::mem::take(&mut state.deleted),
            );
            let now = Instant::now();
            if path.contains("startup=true") {
                state.full_pulls += 1;
                state.decisions.retain(|decision| decision.ends > now);
                return (200, page(&state.decisions, &[], now));
            }
            state.pulls += 1;
            (200, page(&new, &deleted, now))
        }
        "/v1/watchers/login" => {
            let login: Value = serde_json::from_slice(body).unwrap();
            if (login["machine_id"].as_str(), login["password"].as_str())
                != (Some(MACHINE.0), Some(MACHINE.1))
            {
                return forbidden;
            }
            state.logins += 1;
            (
                200,
                json!({ "code": 200, "expire": "2100-01-01T00:00:00Z", "token": format!("token-{}", state.logins) })
                    .to_string(),
            )
        }
        "/v1/alerts" => {
            if header("authorization") != Some(format!("Bearer token-{}", state.logins)) {
                return (401, r#"{"message":"token expired"}"#.to_owned());
            }
            let alerts: Vec<Value> = serde_json::from_slice(body).unwrap();
            state.alerts.extend(alerts);
            (201, "[\"1\"]".to_owned())
        }
        _ => (404, "no such page".to_owned()),
    }
}

fn page(new: &[Decision], deleted: &[Decision], now: Instant) -> String {
    let list = |decisions: &[Decision]| -> Value {
        let item = |decision: &Decision| {
            json!({
                "duration": format!("{}ms", decision.ends.saturating_duration_since(now).as_millis()),
                "id": decision.id,
                "origin": "cscli",
                "scenario": "crowdsecurity/test-bf",
                "scope": decision.scope,
                "type": decision.kind,
                "value": decision.value,
            })
        };
        // An empty list is null, as in CrowdSec.
        if decisions.is_empty() {
            Value::Null
        } else {
            decisions.iter().map(item).collect()
        }
    };
    json!({ "new": list(new), "deleted": list(deleted) }).to_string()
}
