//! Metrics as Prometheus scrapes them, and the dashboard and alerts that are made of them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use api::fair::FairStatus;
use api::notification::NotificationStatus;
use cgroup::GroupStatus;
use cgroup::account::IoStatus;
use cluster::ClusterStatus;
use cluster::status::ClusterLimitStatus;
use promql_parser::parser::{self, Expr};
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use weir::server::metrics::{Documents, Exposition};
use weir::stats::Status;

use crate::support::{Network, run};
use crate::traffic::{LIMIT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_scrape_has_the_commands_counters_and_all_of_dashboard_and_alerts,
    a_metrics_port_in_use_is_an_error_and_nothing_is_changed,
    limits_are_in_effect_before_the_addresses_of_metrics_and_decisions_exist,
    a_scraper_that_hangs_stalls_neither_packets_nor_commands,
    the_live_document_has_the_figures_of_the_commands,
];

pub const METRICS: &str = "metrics = \"127.0.0.1:9464\"";

pub fn get(network: &Network) -> String {
    let (head, page) = exchange(
        network,
        "GET /metrics HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n",
    );
    assert!(
        head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"),
        "{head}"
    );
    page
}

/// The document of the live page.
fn live(network: &Network) -> Value {
    let (head, document) = exchange(
        network,
        "GET /live.json HTTP/1.1\r\nHost: 127.0.0.1:9464\r\n\r\n",
    );
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    serde_json::from_str(&document).unwrap()
}

/// Sends a request, and returns the head and the body of the reply.
fn exchange(network: &Network, request: &str) -> (String, String) {
    network.in_server(|| {
        let mut stream = TcpStream::connect("127.0.0.1:9464").unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(300)))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    })
}

fn the_live_document_has_the_figures_of_the_commands() {
    let network = Network::new();
    let rest = format!(
        "{}\n{}",
        LIMIT.replace("1000/s", "1/h"),
        LIMIT.replace("packets", "udp").replace("1000/s", "1/day")
    );
    let agent = network.start(&format!("{METRICS}\nmax_sources = 1000"), &rest);
    burst(&network, &[udp_from(7), udp_from(8)], 400);
    network.told(&["ban", "10.77.0.9", "--reason", "by hand"]);
    let found = live(&network);
    for part in ["limits", "groups", "bans"] {
        assert_eq!(found[part], agent.json(&[part]), "{part}");
    }
    assert_eq!(found["limits"][0]["keys"], 2, "{found}");
    let status = agent.json(&["status"]);
    for (key, value) in status.as_object().unwrap() {
        // These change by themselves.
        if !matches!(key.as_str(), "uptime_seconds" | "bypass" | "memory") {
            assert_eq!(found["status"][key], *value, "{key}");
        }
    }
    let top = agent.json(&["top", "--once"]);
    let rows = top.as_array().unwrap();
    assert_eq!(
        (
            found["sources"].as_array().unwrap().len(),
            &found["matching"]
        ),
        (rows.len(), &rows.len().into())
    );
    for row in found["sources"].as_array().unwrap() {
        let same = rows
            .iter()
            .find(|same| same["source"] == row["source"] && same["limit"] == row["limit"]);
        let same = same.unwrap_or_else(|| panic!("no {row} in {top}"));
        for key in [
            "passed_packets",
            "passed_precision",
            "throttled_packets",
            "would_throttle_packets",
        ] {
            assert_eq!(row[key], same[key], "{key} of {row}");
        }
    }
}

fn samples(page: &str) -> Vec<prometheus_parse::Sample> {
    prometheus_parse::Scrape::parse(page.lines().map(|line| Ok(line.to_owned())))
        .unwrap()
        .samples
}

pub fn value(page: &str, name: &str, labels: &[(&str, &str)]) -> f64 {
    let found = samples(page).into_iter().find(|sample| {
        sample.metric == name
            && labels
                .iter()
                .all(|(label, value)| sample.labels.get(label) == Some(value))
    });
    match found
        .unwrap_or_else(|| panic!("no {name} with {labels:?} in\n{page}"))
        .value
    {
        prometheus_parse::Value::Counter(value) | prometheus_parse::Value::Gauge(value) => value,
        other => panic!("{name} is {other:?}"),
    }
}

fn a_scrape_has_the_commands_counters_and_all_of_dashboard_and_alerts() {
    let network = Network::new();
    let cgroup = format!("weir-t{}-m", std::process::id());
    let agent = format!("{METRICS}\ncgroup = {cgroup:?}\non_exit = \"detach\"");
    let rest = format!(
        "{}\n[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\nrate = \"1/h\"\nburst = 2\n\
         [[group]]\nname = \"batch\"\nmatch = [{{ exe = \"/nonexistent\" }}]\ncpu = {{ max = \"50%\" }}\n\
         memory = {{ max = \"64MiB\" }}\n",
        LIMIT.replace("1000/s", "1/h")
    );
    let agent = network.start(&agent, &rest);
    burst(&network, &[udp_from(7)], 150);
    for _ in 0..3 {
        network.told(&["decide", "--limit", "credits", "--key", "user=alice"]);
    }
    network.told(&["ban", "10.77.0.9"]);
    let page = get(&network);
    let packets = |verdict| {
        value(
            &page,
            "weir_limit_packets_total",
            &[("limit", "packets"), ("verdict", verdict)],
        )
    };
    let (passed, throttled) = agent.counts("packets");
    assert_eq!(
        (packets("passed"), packets("throttled")),
        (passed as f64, throttled as f64)
    );
    assert_eq!((passed, throttled), (100, 50));
    let decisions = |verdict| {
        value(
            &page,
            "weir_decisions_total",
            &[("limit", "credits"), ("verdict", verdict)],
        )
    };
    assert_eq!((decisions("allowed"), decisions("refused")), (2.0, 1.0));
    assert_eq!(value(&page, "weir_bans", &[]), 1.0);
    assert_eq!(value(&page, "weir_sources_tracked", &[]), 1.0);
    assert_eq!(
        value(
            &page,
            "weir_interface_info",
            &[("interface", "weir0"), ("attach", "native")]
        ),
        1.0
    );
    assert!(
        !page.contains("10.77.0"),
        "an address is in the metrics:\n{page}"
    );
    assert!(value(&page, "process_resident_memory_bytes", &[]) > 0.0);
    // Nothing goes down.
    let later = get(&network);
    for sample in samples(&page) {
        if let prometheus_parse::Value::Counter(before) = sample.value {
            let labels: Vec<(&str, &str)> = sample
                .labels
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect();
            assert!(
                value(&later, &sample.metric, &labels) >= before,
                "{} went down",
                sample.metric
            );
        }
    }
    let mut present: BTreeSet<String> = samples(&page)
        .into_iter()
        .map(|sample| sample.metric)
        .collect();
    // A group that has touched no disk has none of these, and not every machine has a disk, a cluster or an overload.
    present.extend(
        samples(&of_what_a_machine_may_lack())
            .into_iter()
            .map(|sample| sample.metric),
    );
    for (place, query) in queries() {
        let expression =
            parser::parse(&query).unwrap_or_else(|error| panic!("{place}: {error}: {query}"));
        let mut names = BTreeSet::new();
        selectors(&expression, &mut names);
        assert!(!names.is_empty(), "{place} asks for nothing: {query}");
        for name in names {
            // Prometheus makes this one itself, of every scrape.
            assert!(
                name == "up" || present.contains(&name),
                "{place} uses {name}, which is not in a scrape"
            );
        }
    }
    agent.stop(nix::sys::signal::Signal::SIGTERM);
}

/// The metrics of a group that has used a disk, of a limit that many hosts share, of a fair limit in an overload, and of
/// notifications.
fn of_what_a_machine_may_lack() -> String {
    let io = vec![IoStatus {
        device: "vda".to_owned(),
        read_bytes: 1,
        write_bytes: 2,
    }];
    let group = GroupStatus {
        name: "batch".to_owned(),
        io,
        ..GroupStatus::default()
    };
    let cluster = ClusterStatus {
        last_answer_seconds_ago: Some(0.1),
        limits: vec![ClusterLimitStatus {
            name: "a".to_owned(),
            ..ClusterLimitStatus::default()
        }],
        ..ClusterStatus::default()
    };
    let notifications = vec![NotificationStatus {
        name: "page".to_owned(),
        ..NotificationStatus::default()
    }];
    let fair = vec![FairStatus {
        level: Some(20.0),
        capacity: Some(100.0),
        ..FairStatus::default()
    }];
    let status = Status {
        cluster: Some(cluster),
        fair,
        notifications,
        ..Status::default()
    };
    let documents = Documents {
        status,
        groups: vec![group],
        ..Documents::default()
    };
    Exposition::new().unwrap().text(&documents).unwrap()
}

/// Every query of the dashboard and of the alerts, with where it stands.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value =
        serde_json::from_str(include_str!("../../../config/grafana/weir.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(
            panel["type"] == "row" || panel["targets"].as_array().is_some_and(|it| !it.is_empty()),
            "{title}"
        );
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = target["expr"]
                .as_str()
                .unwrap()
                .replace("$__rate_interval", "5m");
            queries.push((format!("panel {title}"), query));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if let Some(query) = variable["query"]["query"].as_str() {
            let metric = query
                .strip_prefix("label_values(")
                .unwrap()
                .split(',')
                .next()
                .unwrap();
            queries.push((format!("variable {}", variable["name"]), metric.to_owned()));
        }
    }
    let rules: Value =
        serde_norway::from_str(include_str!("../../../config/prometheus/weir.rules.yml")).unwrap();
    let mut alerts = 0;
    for group in rules["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap() {
            let name = rule["alert"].as_str().unwrap();
            assert!(
                rule["annotations"]["summary"].is_string()
                    && rule["labels"]["severity"].is_string(),
                "{name}"
            );
            queries.push((
                format!("alert {name}"),
                rule["expr"].as_str().unwrap().to_owned(),
            ));
            alerts += 1;
        }
    }
    assert!(
        alerts >= 10 && queries.len() > 30,
        "{alerts} alerts, {} queries",
        queries.len()
    );
    queries
}

/// The metrics that an expression selects.
fn selectors(expression: &Expr, names: &mut BTreeSet<String>) {
    match expression {
        Expr::VectorSelector(selector) => names.extend(selector.name.clone()),
        Expr::MatrixSelector(selector) => names.extend(selector.vs.name.clone()),
        Expr::Aggregate(aggregate) => selectors(&aggregate.expr, names),
        Expr::Unary(unary) => selectors(&unary.expr, names),
        Expr::Paren(paren) => selectors(&paren.expr, names),
        Expr::Subquery(subquery) => selectors(&subquery.expr, names),
        Expr::Binary(binary) => {
            selectors(&binary.lhs, names);
            selectors(&binary.rhs, names);
        }
        Expr::Call(call) => call
            .args
            .args
            .iter()
            .for_each(|argument| selectors(argument, names)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

fn a_metrics_port_in_use_is_an_error_and_nothing_is_changed() {
    let network = Network::new();
    let taken = network.in_server(|| TcpListener::bind("127.0.0.1:9464").unwrap());
    let config = network.config(METRICS, LIMIT);
    let output = network.run_to_end(&config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("127.0.0.1:9464") && said.contains("another program listens there"),
        "{said}"
    );
    assert!(
        !network.has_pins() && !network.has_program() && !network.control().exists(),
        "something was touched"
    );
    drop(taken);
}

/// The service starts before the network.
fn limits_are_in_effect_before_the_addresses_of_metrics_and_decisions_exist() {
    const LATER: [&str; 3] = ["10.99.0.1:9464", "10.99.0.1:8080", "[fd99::1]:8081"];
    let [metrics, http, grpc] = LATER;
    let network = Network::new();
    let request =
        "[[limit]]\nname = \"users\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1/h\"\n";
    let decide = format!("[decide]\nhttp = \"{http}\"\ngrpc = \"{grpc}\"\n");
    let limit = LIMIT.replace("1000/s", "1/h");
    let agent = network.start(
        &format!("metrics = \"{metrics}\""),
        &format!("{limit}{request}{decide}"),
    );
    assert_eq!(
        agent.json(&["status"])["interfaces"][0]["state"],
        "attached"
    );
    let connect = || network.in_server(|| LATER.map(|address| TcpStream::connect(address).is_ok()));
    assert_eq!(connect(), [false; 3]);
    for address in ["10.99.0.1/32", "fd99::1/128"] {
        let add = ["-n", network.server(), "addr", "add", address, "dev", "lo"];
        run("ip", &add);
    }
    assert_eq!(connect(), [true; 3]);
    let (said, _) = agent.stop(nix::sys::signal::Signal::SIGTERM);
    assert!(
        said.contains("metrics: 10.99.0.1 is not an address of this host yet")
            && said.contains("[decide] grpc: fd99::1 is not an address of this host yet"),
        "{said}"
    );
}

fn a_scraper_that_hangs_stalls_neither_packets_nor_commands() {
    let network = Network::new();
    let agent = network.start(METRICS, &LIMIT.replace("1000/s", "1/h"));
    let scrapers: Vec<TcpStream> = network.in_server(|| {
        let ask = "GET /metrics HTTP/1.1\r\nHost: weir\r\n\r\n".repeat(200);
        let one = |nth| {
            let mut stream = TcpStream::connect("127.0.0.1:9464").unwrap();
            match nth % 3 {
                0 => {}
                1 => stream.write_all(b"GET /met").unwrap(),
                // Asks for megabytes, and reads nothing of them.
                _ => stream.write_all(ask.as_bytes()).unwrap(),
            }
            stream
        };
        (0..80).map(one).collect()
    });
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (100, 50));
    // Those that hang are sent away after their time, and there is room again.
    assert!(get(&network).contains("weir_build_info"));
    drop(scrapers);
}
