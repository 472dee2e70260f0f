use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cgroup::GroupStatus;
use config::policy::LivePage;
use serde::Serialize;

use super::exposition::tests::documents;
use super::server::Timeouts;
use super::{Documents, Exporter};
use crate::daemon::AgentDocuments;
use crate::stats::{
    BanHolder, BansRow, Extent, LimitStatus, MOST_BANS, Precision, SourceLoad, Status, TopRow,
    View, ViewQuery, monotonic_nanoseconds,
};

/// Replies with ever more packets.
#[derive(Default)]
struct Busy {
    packets: AtomicU64,
    /// Requests for counters, and for sources.
    counted: AtomicU64,
    viewed: AtomicU64,
}

impl Busy {
    fn documents(&self) -> Documents {
        documents(self.packets.fetch_add(1, Ordering::Relaxed))
    }
}

impl AgentDocuments for Busy {
    fn status(&self, extent: Extent) -> Result<Status, String> {
        if extent == Extent::Counters {
            self.counted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.documents().status)
    }

    fn limits(&self, extent: Extent) -> Result<Vec<LimitStatus>, String> {
        let mut limits = self.documents().limits;
        if extent == Extent::Counters {
            limits.iter_mut().for_each(|limit| limit.keys = 0);
        }
        Ok(limits)
    }

    fn groups(&self) -> Vec<GroupStatus> {
        self.documents().groups
    }

    fn bans(&self) -> Result<Vec<BansRow>, String> {
        Ok(vec![ban(); 300])
    }

    fn view(&self, query: &ViewQuery) -> Result<View, String> {
        self.viewed.fetch_add(1, Ordering::Relaxed);
        let Documents {
            mut status,
            mut limits,
            groups,
        } = self.documents();
        status.sources.tracked = 77;
        limits[0].keys = 7;
        let source = SourceLoad {
            row: top_row(),
            passed_per_second: Some(1.5),
            throttled_per_second: None,
        };
        Ok(View {
            status,
            limits,
            groups,
            sources: vec![source; query.most],
            matching: 500,
            ..View::default()
        })
    }
}

fn json(document: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(document).unwrap()
}

fn top_row() -> TopRow {
    TopRow {
        source: "192.0.2.7".to_owned(),
        limit: "<img src=x onerror=alert(1)>".to_owned(),
        level: None,
        sources: None,
        passed_packets: 5,
        passed_precision: Precision::Sampled,
        throttled_packets: 6,
        would_throttle_packets: 0,
        last_throttled_seconds_ago: Some(0.5),
    }
}

fn ban() -> BansRow {
    let holder = BanHolder {
        expires_in_seconds: None,
        origin: "operator".to_owned(),
        reason: Some("</script><script>alert(1)</script>".to_owned()),
        since: None,
        owner: "root".to_owned(),
        ..BanHolder::default()
    };
    BansRow {
        ban: holder.of("198.51.100.0/24".to_owned()),
        throttled_packets: 9,
    }
}

/// Without timeouts, only clients that are closed make room: 300 that send nothing, half a head, or read nothing more after a reply.
#[test]
fn idle_clients_delay_no_scrape() {
    const IDLE: usize = 300;
    let mut exporter = Exporter::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let never = Duration::from_secs(1_000_000);
    exporter.timeouts = Timeouts {
        head: never,
        connection: never,
    };
    let address = exporter.address();
    exporter
        .start(Arc::new(Busy::default()), LivePage::Nowhere)
        .unwrap();
    let connect = |text: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        stream
    };
    let texts = [
        "",
        "GET /metrics HTTP/1.1\r\nx: ",
        "GET /other HTTP/1.1\r\nhost: weir\r\n\r\n",
    ];
    let idle: Vec<TcpStream> = (0..IDLE).map(|nth| connect(texts[nth % 3])).collect();
    let mut honest = connect("GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n");
    let mut page = String::new();
    honest.read_to_string(&mut page).unwrap();
    assert!(page.contains("weir_build_info"), "{page}");
    let is_open = |mut stream: &TcpStream| {
        stream.set_nonblocking(true).unwrap();
        loop {
            match stream.read(&mut [0; 4_096]) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
    };
    let open = idle.iter().filter(|stream| is_open(stream)).count();
    assert!(
        open < host::descriptors::places().metrics,
        "{open} are open"
    );
}

/// A server on this address, whose port the system chooses.
fn served(on: &str, live: LivePage) -> (SocketAddr, Arc<Busy>) {
    let exporter = Exporter::bind(on.parse().unwrap()).unwrap();
    let (mut address, busy) = (exporter.address(), Arc::new(Busy::default()));
    exporter.start(Arc::clone(&busy), live).unwrap();
    if address.ip().is_unspecified() {
        address.set_ip([127, 0, 0, 1].into());
    }
    (address, busy)
}

fn get_as(address: SocketAddr, path: &str, host: &str) -> String {
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
    )
}

fn status(reply: &str) -> u16 {
    reply
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok())
        .unwrap_or_else(|| panic!("no status: {reply}"))
}

fn exchange(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    exchange(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n"),
    )
}

#[test]
fn a_scrape_is_answered_and_a_wrong_request_has_a_fix() {
    let exporter = Exporter::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = exporter.address();
    exporter
        .start(Arc::new(Busy::default()), LivePage::Loopback)
        .unwrap();
    let page = get(address, "/metrics");
    assert!(
        page.starts_with("HTTP/1.1 200 OK\r\n") && page.contains("text/plain; version=0.0.4"),
        "{page}"
    );
    assert!(
        page.contains("\nweir_build_info{version=\"1.2.3\"} 1\n"),
        "{page}"
    );
    assert!(get(address, "/other").starts_with("HTTP/1.1 404"));
    assert!(
        exchange(
            address,
            "POST /metrics HTTP/1.1\r\nHost: weir\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .starts_with("HTTP/1.1 405")
    );
    assert!(exchange(address, "nonsense\r\n\r\n").starts_with("HTTP/1.1 400"));
}

#[test]
fn scrapers_that_hang_hold_up_nobody() {
    let exporter = Exporter::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = exporter.address();
    exporter
        .start(Arc::new(Busy::default()), LivePage::Loopback)
        .unwrap();
    // More than there are places: some send nothing, some half a request, some never read the reply.
    let hung: Vec<TcpStream> = (0..90)
        .map(|nth| {
            let mut stream = TcpStream::connect(address).unwrap();
            match nth % 3 {
                0 => {}
                1 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap(),
                _ => {
                    let path = if nth % 2 == 0 {
                        "/metrics"
                    } else {
                        "/live.json"
                    };
                    let ask = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
                    stream.write_all(ask.repeat(100).as_bytes()).unwrap();
                }
            }
            stream
        })
        .collect();
    let started = Instant::now();
    assert!(get(address, "/metrics").contains("weir_build_info"));
    assert_eq!(status(&get_as(address, "/live.json", "localhost")), 200);
    // They are disconnected after their timeout; the rest is for a busy machine.
    assert!(
        started.elapsed() < Duration::from_secs(25),
        "{:?}",
        started.elapsed()
    );
    drop(hung);
}

#[test]
fn every_reply_of_the_live_page_has_the_headers_that_protect_it() {
    let (address, _) = served("127.0.0.1:0", LivePage::Loopback);
    for (path, host, wanted, kind) in [
        ("/", "127.0.0.1", 200, "text/html; charset=utf-8"),
        ("/live.json", "127.0.0.1", 200, "application/json"),
        ("/", "evil.example", 403, "text/plain; charset=utf-8"),
    ] {
        let reply = get_as(address, path, host);
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert_eq!(status(&reply), wanted, "{reply}");
        assert!(!body.is_empty());
        let head = head.to_lowercase();
        for line in [
            &format!("content-type: {kind}"),
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "x-frame-options: deny",
            "cross-origin-resource-policy: same-origin",
            "connection: close",
        ] {
            assert!(head.lines().any(|of| of == line), "no {line:?} in {head}");
        }
        let policy = head
            .lines()
            .find(|line| line.starts_with("content-security-policy: "))
            .unwrap();
        for part in [
            "default-src 'none'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "script-src 'sha256-",
            "style-src 'sha256-",
        ] {
            assert!(policy.contains(part), "no {part:?} in {policy}");
        }
        assert!(
            !policy.contains("unsafe") && !policy.contains('*') && !head.contains("access-control"),
            "{head}"
        );
    }
}

#[test]
fn the_live_page_is_read_only() {
    let (address, busy) = served("127.0.0.1:0", LivePage::Loopback);
    for path in ["/", "/live.json"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let reply = exchange(
                address,
                &format!(
                    "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                ),
            );
            assert!(
                status(&reply) == 405 && reply.to_lowercase().contains("\r\nallow: get, head\r\n"),
                "{reply}"
            );
        }
        let reply = exchange(
            address,
            &format!("HEAD {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
        );
        assert!(
            status(&reply) == 200 && reply.ends_with("\r\n\r\n"),
            "{reply}"
        );
    }
    assert!(busy.counted.load(Ordering::Relaxed) <= 1);
    assert_eq!(status(&get_as(address, "/other", "127.0.0.1")), 404);
}

#[test]
fn a_request_that_names_another_host_is_refused() {
    let names = LivePage::Everywhere(vec!["weir.example.org".to_owned()]);
    let (address, busy) = served("127.0.0.1:0", names);
    let port = address.port();
    let own = [
        "127.0.0.1",
        "[::1]",
        "192.0.2.1",
        "localhost",
        "LocalHost",
        "localhost.",
        "weir.example.org",
        "Weir.Example.org",
    ];
    for host in own
        .iter()
        .flat_map(|host| [(*host).to_owned(), format!("{host}:{port}")])
    {
        assert_eq!(status(&get_as(address, "/", &host)), 200, "{host}");
    }
    let asked = busy.counted.load(Ordering::Relaxed);
    for host in [
        "evil.example",
        "weir.example.org.evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "evil.example:127.0.0.1",
        "1",
        "",
        "localhost evil.example",
    ] {
        for path in ["/", "/live.json"] {
            let reply = get_as(address, path, host);
            assert!(matches!(status(&reply), 400 | 403), "{host}: {reply}");
        }
    }
    let reply = get_as(address, "/live.json", "evil.example");
    assert!(
        reply.contains("live = [\"weir.example.org\"]"),
        "it says what to do: {reply}"
    );
    for request in [
        "GET /live.json HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        "GET /live.json HTTP/1.1\r\nConnection: close\r\n\r\n",
        "GET /live.json HTTP/1.0\r\n\r\n",
        "GET http://evil.example/live.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET http://127.0.0.1/live.json HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ] {
        let reply = exchange(address, request);
        assert!(matches!(status(&reply), 400 | 403), "{request}: {reply}");
    }
    assert_eq!(
        busy.counted.load(Ordering::Relaxed),
        asked,
        "nothing was read for them"
    );
    // Prometheus scrapes by any name.
    assert_eq!(status(&get(address, "/metrics")), 200);
}

#[test]
fn beyond_loopback_the_live_page_is_served_only_where_the_config_says_so() {
    for (on, live, wanted, help) in [
        ("0.0.0.0:0", LivePage::Loopback, 404, "live = true"),
        ("0.0.0.0:0", LivePage::Everywhere(Vec::new()), 200, ""),
        ("127.0.0.1:0", LivePage::Loopback, 200, ""),
        ("127.0.0.1:0", LivePage::Nowhere, 404, "live = false"),
    ] {
        let (address, busy) = served(on, live.clone());
        for path in ["/", "/live.json"] {
            let reply = get_as(address, path, "127.0.0.1");
            assert!(
                status(&reply) == wanted && reply.contains(help),
                "{on} {live:?}: {reply}"
            );
        }
        assert_eq!(
            busy.counted.load(Ordering::Relaxed) == 0,
            wanted == 404,
            "{on} {live:?}"
        );
        assert_eq!(status(&get(address, "/metrics")), 200);
    }
}

#[test]
fn many_viewers_cost_as_much_as_one() {
    let (address, busy) = served("127.0.0.1:0", LivePage::Loopback);
    let began = Instant::now();
    let ask = move || thread::spawn(move || get_as(address, "/live.json", "localhost"));
    let viewers: Vec<_> = (0..40).map(|_| ask()).collect();
    for viewer in viewers {
        assert_eq!(status(&viewer.join().unwrap()), 200);
    }
    // One for each 900 ms that began.
    let most = began.elapsed().as_millis() as u64 / 900 + 1;
    let (counted, viewed) = (
        busy.counted.load(Ordering::Relaxed),
        busy.viewed.load(Ordering::Relaxed),
    );
    assert!(
        (1..=most).contains(&counted) && (1..=most).contains(&viewed),
        "{counted} and {viewed} for 40, at most {most}"
    );
    thread::sleep(Duration::from_secs(2));
    assert_eq!(
        busy.counted.load(Ordering::Relaxed),
        counted,
        "nothing is read while nobody watches"
    );
}

#[test]
fn the_live_document_is_composed_of_the_documents_of_the_commands() {
    let (address, busy) = served("127.0.0.1:0", LivePage::Loopback);
    let now = || monotonic_nanoseconds() as f64 / 1e9;
    let before = now();
    let reply = get_as(address, "/live.json", "localhost");
    let found: serde_json::Value =
        serde_json::from_str(reply.split_once("\r\n\r\n").unwrap().1).unwrap();
    let keys = |of: &serde_json::Value| {
        of.as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<BTreeSet<_>>()
    };
    let status = busy.status(Extent::Whole).unwrap();
    let limits = busy.limits(Extent::Whole).unwrap();
    assert_eq!(keys(&found["status"]), keys(&json(&status)));
    assert_eq!(keys(&found["limits"][0]), keys(&json(&limits[0])));
    assert_eq!(keys(&found["groups"][0]), keys(&json(&busy.groups()[0])));
    assert_eq!(found["bans"][0], json(&ban()));
    let mut source = json(&top_row());
    source["passed_per_second"] = 1.5.into();
    source["throttled_per_second"] = serde_json::Value::Null;
    assert_eq!(found["sources"][0], source);
    let lengths =
        ["limits", "groups", "bans", "sources"].map(|part| found[part].as_array().unwrap().len());
    assert_eq!(lengths, [2, 1, MOST_BANS, 100]);
    assert_eq!(found["matching"], 500);
    let at = found["at_seconds"].as_f64().unwrap();
    assert!((before..=now()).contains(&at), "{at}");
    // From the table of sources, which is read less often.
    assert_eq!(
        (
            &found["status"]["sources"]["tracked"],
            &found["limits"][0]["keys"]
        ),
        (&77.into(), &7.into())
    );
}

#[test]
fn a_port_in_use_is_an_error() {
    let first = Exporter::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let said = Exporter::bind(first.address()).unwrap_err().to_string();
    assert!(
        said.contains(&first.address().to_string())
            && said.contains("another program listens there"),
        "{said}"
    );
}
