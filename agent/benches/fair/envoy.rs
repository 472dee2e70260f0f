//! Envoy with adaptive concurrency before nginx.

use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use testbed::network::{Network, SERVER};
use testbed::wait::until;

use crate::clients;
use crate::nginx::{BACKLOG, BEHIND};

/// The variable that names the program; `cargo xtask bench` sets it.
pub const PROGRAM: &str = "WEIR_ENVOY";
pub const PORT: u16 = 8090;
/// More connections and requests than come.
const UNLIMITED: u32 = 1 << 20;
/// Requests by which it measures the least time of a reply.
const MEASURED: u32 = 50;

/// A running Envoy, killed when dropped.
pub struct Envoy(Child);

impl Envoy {
    /// Starts one in the server's namespace, and waits until it listens.
    pub fn start(network: &Network) -> Self {
        let config = network.folder.path().join("envoy.json");
        std::fs::write(&config, config_of().to_string()).unwrap();
        let mut command = Command::new(std::env::var_os(PROGRAM).unwrap());
        command
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "-l",
                "off",
                "-c",
            ])
            .arg(&config)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut envoy = Self(network.in_server(|| command.spawn()).unwrap());
        until("Envoy to listen", || {
            assert!(envoy.0.try_wait().unwrap().is_none(), "Envoy ended");
            let connect = || TcpStream::connect((Ipv4Addr::from(SERVER), PORT));
            network.in_server(connect).ok()
        });
        // Its first requests measure the least time of a reply; it refuses others beside them.
        let at = SocketAddrV4::new(SERVER.into(), PORT);
        network.in_client(|| (0..MEASURED).for_each(|_| clients::get(at).unwrap()));
        envoy
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The gradient controller with the intervals of Envoy's manual, and updates as often as a fair limit's.
fn config_of() -> Value {
    let kind = |name: &str| format!("type.googleapis.com/envoy.extensions.filters.{name}");
    let adaptive = json!({
        "@type": kind("http.adaptive_concurrency.v3.AdaptiveConcurrency"),
        "gradient_controller_config": {
            "sample_aggregate_percentile": {"value": 90},
            "concurrency_limit_params": {"concurrency_update_interval": "0.1s"},
            "min_rtt_calc_params": {"jitter": {"value": 10}, "interval": "60s", "request_count": MEASURED},
        },
    });
    let routes = json!([{"match": {"prefix": "/"}, "route": {"cluster": "nginx"}}]);
    let manager = json!({
        "@type": kind("network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [
            {"name": "envoy.filters.http.adaptive_concurrency", "typed_config": adaptive},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": kind("http.router.v3.Router")}},
        ],
    });
    let listener = json!({
        "name": "bench",
        "address": address(&Ipv4Addr::from(SERVER).to_string(), PORT),
        "tcp_backlog_size": BACKLOG,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    });
    let limits = json!({
        "max_connections": UNLIMITED, "max_pending_requests": UNLIMITED, "max_requests": UNLIMITED,
    });
    let endpoint = json!({"endpoint": {"address": address("127.0.0.1", BEHIND)}});
    let cluster = json!({
        "name": "nginx",
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [limits]},
        "load_assignment": {"cluster_name": "nginx", "endpoints": [{"lb_endpoints": [endpoint]}]},
    });
    json!({"static_resources": {"listeners": [listener], "clusters": [cluster]}})
}

fn address(host: &str, port: u16) -> Value {
    json!({"socket_address": {"address": host, "port_value": port}})
}
