//! Envoy between a client and a small server, all on loopback.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The variable that names the program; `cargo xtask integration` sets it.
pub const PROGRAM: &str = "WEIR_ENVOY";
/// For Envoy to start, or to see that the agent is there again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The verdict on requests without a reply from the rate limit service.
#[derive(Clone, Copy)]
pub enum WhenAway {
    Pass,
    Refuse,
}

impl WhenAway {
    const ALL: [Self; 2] = [Self::Pass, Self::Refuse];

    const fn listener(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Refuse => "refuse",
        }
    }
}

/// A running Envoy, killed when dropped.
pub struct Envoy {
    child: Child,
    admin: String,
    listeners: HashMap<String, String>,
    _folder: tempfile::TempDir,
}

impl Envoy {
    /// In front of a server of its own, asking the service at `grpc` about these routes. Requests that are not answered
    /// within `timeout` are passed by one listener and refused by the other.
    pub fn start(grpc: &str, timeout: &str, routes: Vec<Value>) -> Self {
        let listeners = WhenAway::ALL.iter();
        let listeners = listeners.map(|when| {
            let filter = filter_of_limits(*when, timeout);
            listener(*when, ("envoy.filters.http.ratelimit", filter), &routes)
        });
        Self::launch(grpc, listeners.collect())
    }

    /// With another filter, for all paths.
    pub fn start_with_filter(grpc: &str, filter: (&str, Value)) -> Self {
        let routes = [json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream"}})];
        Self::launch(grpc, vec![listener(WhenAway::Refuse, filter, &routes)])
    }

    fn launch(grpc: &str, listeners: Vec<Value>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (config, admin) = (
            folder.path().join("envoy.json"),
            folder.path().join("admin"),
        );
        let document = json!({
            "admin": {"address": address("127.0.0.1:0")},
            "static_resources": {
                "listeners": listeners,
                "clusters": [cluster("upstream", &upstream(), false), cluster("ratelimit", grpc, true)],
            },
        });
        std::fs::write(&config, document.to_string()).unwrap();
        let mut child = Command::new(std::env::var_os(PROGRAM).unwrap())
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "-l",
                "error",
                "-c",
            ])
            .arg(&config)
            .arg("--admin-address-path")
            .arg(&admin)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let admin = wait_for("Envoy to start", || {
            assert!(child.try_wait().unwrap().is_none(), "Envoy ended");
            std::fs::read_to_string(&admin)
                .ok()
                .filter(|text| !text.is_empty())
        });
        let mut envoy = Self {
            child,
            admin,
            listeners: HashMap::new(),
            _folder: folder,
        };
        wait_for("Envoy to be ready", || {
            let ready = Client::connect(&envoy.admin).get("/ready", &[]);
            (ready.status == 200).then_some(())
        });
        let document = Client::connect(&envoy.admin)
            .get("/listeners?format=json", &[])
            .body;
        let document: Value = serde_json::from_str(&document).unwrap();
        for listener in document["listener_statuses"].as_array().unwrap() {
            let at = &listener["local_address"]["socket_address"];
            let at = format!("{}:{}", at["address"].as_str().unwrap(), at["port_value"]);
            envoy
                .listeners
                .insert(listener["name"].as_str().unwrap().to_owned(), at);
        }
        envoy
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// A client of the listener that refuses what was not answered, so that no test passes without an answer.
    pub fn client(&self) -> Client {
        self.client_of(WhenAway::Refuse)
    }

    pub fn client_of(&self, when: WhenAway) -> Client {
        Client::connect(&self.listeners[when.listener()])
    }

    /// The sum of Envoy's counters whose names end so.
    pub fn counter(&self, end: &str) -> u64 {
        let stats = Client::connect(&self.admin).get("/stats", &[]).body;
        let values = stats
            .lines()
            .filter_map(|line| line.split_once(": "))
            .filter(|(name, _)| name.ends_with(end));
        values.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Looks until there is something.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} for {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A route for a path, and what Envoy asks about it.
pub fn route(path: &str, rate_limits: Value) -> Value {
    json!({"match": {"prefix": path}, "route": {"cluster": "upstream", "rate_limits": rate_limits}})
}

/// A route whose limits are those of the filter, which alone knows all of their fields.
pub fn route_of_filter(path: &str, rate_limits: Value) -> Value {
    let kind = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";
    json!({
        "match": {"prefix": path},
        "route": {"cluster": "upstream"},
        "typed_per_filter_config": {"envoy.filters.http.ratelimit": {"@type": kind, "rate_limits": rate_limits}},
    })
}

/// An entry that is always the same.
pub fn generic(key: &str, value: &str) -> Value {
    json!({"generic_key": {"descriptor_key": key, "descriptor_value": value}})
}

/// An entry with a header's value; without the header there is no descriptor.
pub fn header(name: &str, key: &str) -> Value {
    json!({"request_headers": {"header_name": name, "descriptor_key": key}})
}

/// The client's address.
pub fn remote_address() -> Value {
    json!({"remote_address": {}})
}

fn filter_of_limits(when: WhenAway, timeout: &str) -> Value {
    json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
        "domain": "shop",
        "timeout": timeout,
        "failure_mode_deny": matches!(when, WhenAway::Refuse),
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "ratelimit"}},
        },
    })
}

fn listener(when: WhenAway, (name, filter): (&str, Value), routes: &[Value]) -> Value {
    let manager = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    let router =
        json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"});
    json!({
        "name": when.listener(),
        "address": address("127.0.0.1:0"),
        "filter_chains": [{"filters": [{
            "name": "http",
            "typed_config": {
                "@type": manager,
                "stat_prefix": when.listener(),
                "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
                "http_filters": [
                    {"name": name, "typed_config": filter},
                    {"name": "envoy.filters.http.router", "typed_config": router},
                ],
            },
        }]}],
    })
}

fn cluster(name: &str, at: &str, is_http2: bool) -> Value {
    let endpoint = json!({"lb_endpoints": [{"endpoint": {"address": address(at)}}]});
    let mut cluster = json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [endpoint]},
    });
    if is_http2 {
        let options = json!({
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        });
        let key = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        cluster["typed_extension_protocol_options"] = json!({ key: options });
    }
    cluster
}

fn address(at: &str) -> Value {
    let (address, port) = at.rsplit_once(':').unwrap();
    json!({"socket_address": {"address": address, "port_value": port.parse::<u16>().unwrap()}})
}

/// A server that answers every request with nothing, until the tests end; where it listens.
fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let _ = stream.set_nodelay(true);
                let mut reader = BufReader::new(stream);
                while head(&mut reader).is_some_and(|lines| !lines.is_empty()) {
                    let answer = b"HTTP/1.1 200 OK\r\nx-upstream: yes\r\ncontent-length: 0\r\n\r\n";
                    if reader.get_mut().write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    at
}

/// One connection of a client's.
pub struct Client(BufReader<TcpStream>);

/// The response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Whether the server behind Envoy answered.
    pub fn is_passed(&self) -> bool {
        self.status == 200 && self.header("x-upstream") == "yes"
    }
}

impl Client {
    fn connect(at: &str) -> Self {
        let stream = TcpStream::connect(at).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// The headers' characters are sent as a byte each, in ISO 8859-1.
    pub fn get(&mut self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: weir\r\n");
        headers
            .iter()
            .for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
        request.push_str("\r\n");
        let bytes: Vec<u8> = request
            .chars()
            .map(|character| u8::try_from(character).unwrap())
            .collect();
        self.0.get_mut().write_all(&bytes).unwrap();
        let lines = head(&mut self.0).expect("Envoy replies");
        let status = lines[0].split(' ').nth(1).unwrap().parse().unwrap();
        let pairs = lines[1..].iter().filter_map(|line| line.split_once(": "));
        let headers: HashMap<String, String> = pairs
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        let body = match headers
            .get("content-length")
            .and_then(|length| length.parse().ok())
        {
            Some(length) => self.exactly(length),
            None if headers.contains_key("transfer-encoding") => self.chunks(),
            None => String::new(),
        };
        Reply {
            status,
            headers,
            body,
        }
    }

    fn exactly(&mut self, length: usize) -> String {
        let mut body = vec![0; length];
        std::io::Read::read_exact(&mut self.0, &mut body).unwrap();
        String::from_utf8(body).unwrap()
    }

    fn chunks(&mut self) -> String {
        let mut body = String::new();
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let length = usize::from_str_radix(line.trim(), 16).unwrap();
            body.push_str(self.exactly(length + 2).strip_suffix("\r\n").unwrap());
            if length == 0 {
                return body;
            }
        }
    }
}

/// The lines of a head, without their ends; `None` when there is no more.
fn head(reader: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => return Some(lines),
            text => lines.push(text.to_owned()),
        }
    }
}
