//! Published ports of containers: a process listens on the host's port, and netfilter sends the connections elsewhere.

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::peer::{PORT, in_flood, limit, listen};
use crate::prove::{network, proofs};
use crate::resets::Backend;
use crate::support::{Agent, Network, SERVER, SERVER6, run};

const PUBLISHED: u16 = 8080;
const HOOKS: [&str; 2] = ["native", "tc"];
const RATE: &str = "rate = \"1000/s\"\n";
const PATIENCE: Duration = Duration::from_secs(20);
/// A firewall's rule: only a SYN begins a connection.
const BY_SYNS: &str = "tcp flags & (syn | ack) != syn ct state new drop";

/// A server in a container, or at another port of the host, and the process that listens in the host for nobody.
struct Published<'n> {
    network: &'n Network,
    container: Option<Backend>,
    server: TcpListener,
    idle: TcpListener,
    address: IpAddr,
}

impl<'n> Published<'n> {
    fn new(network: &'n Network, rule: &str) -> Self {
        let published = Self::at(network, SERVER.into(), Some(Backend::behind(network)));
        use_rules(network, "", rule);
        published
    }

    fn at(network: &'n Network, address: IpAddr, container: Option<Backend>) -> Self {
        let server = container.as_ref().map_or_else(
            || listen(network, PORT),
            |container| {
                let server = container.listen();
                // As every host does: the flood, which reaches it, fills its queue.
                container.use_cookies("1");
                server
            },
        );
        server.set_nonblocking(false).unwrap();
        let idle = listen(network, PUBLISHED);
        Self {
            network,
            container,
            server,
            idle,
            address,
        }
    }

    fn start(&self, attach: &str, more: &str) -> Agent<'n> {
        self.start_for(&[PUBLISHED], attach, more)
    }

    fn start_for(&self, ports: &[u16], attach: &str, more: &str) -> Agent<'n> {
        let limits = limit(more).replace("[80]", &format!("{ports:?}"));
        self.network.start(&format!("attach = {attach:?}"), &limits)
    }

    /// Of so many clients, those that receive the byte with which the container's server greets each.
    fn greeted(&self, clients: usize) -> usize {
        self.greeted_at(PUBLISHED, clients)
    }

    fn greeted_at(&self, port: u16, clients: usize) -> usize {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for stream in self.server.incoming() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let _ = stream.unwrap().write_all(b"x");
                }
            });
            let greeted = (0..clients).filter(|_| self.greets(port)).count();
            is_over.store(true, Ordering::Relaxed);
            match &self.container {
                Some(container) => container.wake(),
                None => drop(
                    self.network
                        .in_server(|| TcpStream::connect(("127.0.0.1", PORT))),
                ),
            }
            greeted
        })
    }

    fn greets(&self, port: u16) -> bool {
        let to = SocketAddr::new(self.address, port);
        self.network.in_client(|| {
            let Ok(mut client) = TcpStream::connect_timeout(&to, PATIENCE) else {
                return false;
            };
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.read_exact(&mut [0]).is_ok()
        })
    }
}

impl Drop for Published<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert!(
                self.idle.accept().is_err(),
                "nobody reaches the host's listener"
            );
        }
    }
}

/// Replaces all rules by one of the chain for destinations, and what its table has besides.
fn use_rules(network: &Network, besides: &str, rule: &str) {
    use_rules_of("ip", network, besides, rule);
}

fn use_rules_of(family: &str, network: &Network, besides: &str, rule: &str) {
    let rules = format!(
        "flush ruleset\ntable {family} nat {{\n {besides}\n chain prerouting {{ type nat hook prerouting priority \
         dstnat;\n {rule};\n }}\n}}\n"
    );
    network.in_server(|| network.use_rules(&rules));
}

/// Has a program of the host translate the published port: to the container, or to this host's own server.
fn translate(network: &Network, program: &str, is_ipv6: bool, is_redirect: bool) {
    let (family, container) = if is_ipv6 {
        ("ip6", "[fd78::2]:80")
    } else {
        ("ip", "10.78.0.2:80")
    };
    if program == "nft" {
        let action = if is_redirect {
            "redirect to :80".to_owned()
        } else {
            format!("dnat to {container}")
        };
        let rule = format!("tcp dport {PUBLISHED} {action}");
        use_rules_of(family, network, "", &rule);
        return;
    }
    let program = program.replacen("ip", family, 1);
    let [target, option, to] = if is_redirect {
        ["REDIRECT", "--to-ports", "80"]
    } else {
        ["DNAT", "--to-destination", container]
    };
    let rule =
        format!("-w -t nat -A PREROUTING -p tcp --dport {PUBLISHED} -j {target} {option} {to}");
    network.in_server(|| run(&program, &rule.split(' ').collect::<Vec<_>>()));
}

fn use_cookies(network: &Network, value: &str) {
    network.in_server(|| fs::write("/proc/sys/net/ipv4/tcp_syncookies", value).unwrap());
}

fn names_the_port(agent: &Agent<'_>) -> bool {
    names(agent, &PUBLISHED.to_string())
}

fn names(agent: &Agent<'_>, ports: &str) -> bool {
    let notes = agent.json(&["status"])["notes"].to_string();
    notes.contains(&format!("prove has no effect on port {ports}:"))
}

fn check_and_doctor_say(network: &Network, note: &str) {
    let config = network.folder.path().join("limits.toml");
    let config = config.to_str().unwrap();
    for verb in [&["check", config][..], &["doctor", "--config", config]] {
        let output = network.command(verb);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(said.contains(note), "{verb:?}: {said}");
    }
}

/// As the rules say, before the first connection: with cookies for every connection, and in a flood of forged SYNs.
pub fn clients_of_a_published_port_connect_in_a_flood_and_without() {
    for attach in HOOKS {
        for prove in ["true", "\"always\""] {
            let network = network("2", attach);
            let rule = format!("tcp dport {PUBLISHED} dnat to 10.78.0.2:80");
            let published = Published::new(&network, &rule);
            let agent = published.start(attach, &format!("{RATE}prove = {prove}"));
            let case = format!("{attach}, prove = {prove}");
            // A program that lists the rules is ended after 2 s, and asked again at the next turn.
            agent.wait_for("the port", |_| names_the_port(&agent));
            assert_eq!(published.greeted(6), 6, "{case}");
            let greeted = in_flood(&network, PUBLISHED, || published.greeted(6));
            assert_eq!(greeted, 6, "in a flood, {case}");
            assert_eq!(published.greeted(4), 4, "after the flood, {case}");
            assert!(names_the_port(&agent), "{case}");
            let events = agent.lines(&["events", "--json"]);
            let of_port = |event: &&serde_json::Value| {
                event["verdict"] == "unproven" && event["port"] == PUBLISHED
            };
            assert_eq!(events.iter().filter(of_port).count(), 1, "{events:?}");
            // A reload forgets nothing.
            assert_eq!(agent.json(&["reload"])["ok"], true);
            assert_eq!(published.greeted(2), 2, "after a reload, {case}");
        }
    }
}

/// By each program that makes rules, for both IP versions, to a container and to another port of the host.
pub fn clients_connect_by_whatever_their_port_is_translated() {
    for program in ["nft", "iptables-nft", "iptables-legacy"] {
        for (address, is_ipv6) in [(SERVER.into(), false), (SERVER6.into(), true)] {
            for is_redirect in [false, true] {
                let network = network("1", "tc");
                let container = (!is_redirect).then(|| Backend::behind(&network));
                let published = Published::at(&network, address, container);
                translate(&network, program, is_ipv6, is_redirect);
                let agent = published.start("tc", &format!("{RATE}prove = \"always\""));
                let case = format!("{program}, {address}, redirect: {is_redirect}");
                agent.wait_for("the port", |_| names_the_port(&agent));
                assert_eq!(published.greeted(4), 4, "{case}");
                assert!(names_the_port(&agent), "{case}");
            }
        }
    }
}

/// Rules of many forms, which come and go while the agent runs.
pub fn a_port_is_left_alone_while_a_rule_of_any_form_translates_it() {
    let network = network("1", "tc");
    let published = Published::new(&network, "accept");
    let agent = published.start("tc", &format!("{RATE}prove = true"));
    assert!(!names_the_port(&agent));
    let web = "chain web { dnat to 10.78.0.2; }";
    let forms = [
        ("", "tcp dport 8080 redirect to :80"),
        ("", "tcp dport { 81, 8000-8100 } dnat to 10.78.0.2:80"),
        ("", "dnat to tcp dport map { 8080 : 10.78.0.2 }"),
        (
            "",
            "dnat to ip daddr . tcp dport map { 10.77.0.1 . 8080 : 10.78.0.2 }",
        ),
        (web, "tcp dport vmap { 8080 : jump web }"),
        (
            web,
            "ip daddr . tcp dport vmap { 10.77.0.1 . 8080 : goto web }",
        ),
        (
            "set ports { type inet_service; flags interval; elements = { 81, 8080-8081 } }",
            "tcp dport @ports dnat to 10.78.0.2:80",
        ),
        (
            "set open { type ipv4_addr . inet_service; elements = { 10.77.0.1 . 8080 } }",
            "ip daddr . tcp dport @open dnat to 10.78.0.2:80",
        ),
        (
            "map to { type inet_service : ipv4_addr; elements = { 8080 comment \"web\" : 10.78.0.2 } }",
            "dnat to tcp dport map @to",
        ),
        // As systemd publishes the ports of its containers.
        (
            "map to { type inet_proto . inet_service : ipv4_addr . inet_service; \
             elements = { tcp . 8080 : 10.78.0.2 . 80, udp . 8081 : 10.78.0.2 . 80 } }",
            "fib daddr type local dnat ip to meta l4proto . th dport map @to",
        ),
    ];
    for (besides, rule) in forms {
        use_rules(&network, besides, rule);
        agent.wait_for(rule, |status| {
            names_the_port(&agent) && !status["notes"].to_string().contains("may be unknown")
        });
        use_rules(&network, "", "accept");
        agent.wait_for("no rule", |_| !names_the_port(&agent));
    }
}

/// A container's connections are not among this host's sockets, so that a limit here counts none of them, and says so.
pub fn a_limit_on_open_connections_says_that_it_counts_none_of_a_published_port() {
    let network = network("1", "tc");
    let rule = format!("tcp dport {PUBLISHED} dnat to 10.78.0.2:80");
    let published = Published::new(&network, &rule);
    let agent = published.start("tc", "concurrent = 3");
    assert_eq!(published.greeted(1), 1);
    let note = format!("counts no connections to port {PUBLISHED}:");
    agent.wait_for("the note", |status| {
        status["notes"].to_string().contains(&note)
    });
    check_and_doctor_say(&network, &note);
}

/// A rule that names no port is no reason to prove nothing anywhere: a port is left alone once a connection was translated.
pub fn a_published_port_is_learnt_from_its_connections() {
    let network = network("1", "tc");
    let published = Published::new(&network, "ip protocol tcp dnat to 10.78.0.2:80");
    let agent = published.start("tc", &format!("{RATE}prove = true"));
    assert!(!names_the_port(&agent));
    let why = "ports that netfilter sends elsewhere, as to a container, may be unknown: a rule of netfilter names no ports";
    agent.wait_for("the note", |status| {
        status["notes"].to_string().contains(why)
    });
    check_and_doctor_say(&network, "names no ports");
    assert_eq!(published.greeted(1), 1);
    agent.wait_for("the port", |_| names_the_port(&agent));
    use_cookies(&network, "2");
    assert_eq!(published.greeted(6), 6);
}

/// A cookie that the container does not know ends each connection before it could be listed; also while a flood opens
/// connections to a port that is known.
pub fn a_published_port_is_learnt_from_a_connection_that_fails() {
    let network = network("1", "tc");
    let published = Published::new(&network, "ip protocol tcp dnat to 10.78.0.2:80");
    let other = PUBLISHED + 1;
    let _idle = listen(&network, other);
    let always = format!("{RATE}prove = \"always\"");
    let agent = published.start_for(&[PUBLISHED, other], "tc", &always);
    agent.wait_for("the note", |status| {
        status["notes"].to_string().contains("may be unknown")
    });
    assert!(!names_the_port(&agent));
    assert_eq!(published.greeted(1), 0);
    agent.wait_for("the port", |_| names_the_port(&agent));
    assert_eq!(published.greeted(6), 6);
    in_flood(&network, PUBLISHED, || {
        assert_eq!(published.greeted_at(other, 1), 0);
        let both = format!("{PUBLISHED}, {other}");
        agent.wait_for("the other port", |_| names(&agent, &both));
    });
    assert_eq!(published.greeted_at(other, 6), 6);
}

/// A firewall that lets connections begin by SYNs only drops what follows an answer that it has not seen.
pub fn proven_connections_that_a_firewall_drops_are_reported() {
    let network = network("1", "tc");
    let server = listen(&network, PORT);
    let agent = network.start(
        "attach = \"tc\"",
        &limit(&format!("{RATE}prove = \"always\"")),
    );
    let firewall = |rule: &str| {
        let rules = format!(
            "flush ruleset\ntable inet filter {{\n chain input {{ type filter hook input priority 0;\n {rule};\n }}\n}}\n"
        );
        network.in_server(|| network.use_rules(&rules));
    };
    let connect = || {
        let to = SocketAddr::from((SERVER, PORT));
        let connect = |_| TcpStream::connect_timeout(&to, PATIENCE).unwrap();
        network.in_client(|| (0..12).map(connect).collect::<Vec<_>>())
    };
    let connect_and_accept = || {
        let clients = connect();
        let accepted = Cell::new(0);
        agent.wait_for("the connections", |_| {
            let more = std::iter::from_fn(|| server.accept().ok()).count();
            accepted.set(accepted.get() + more);
            accepted.get() == clients.len()
        });
    };
    let is_noted = || {
        let notes = agent.json(&["status"])["notes"].to_string();
        notes.contains("ACKs that proved their source's address")
    };
    firewall("accept");
    connect_and_accept();
    firewall(BY_SYNS);
    // The first comparison may include connections from before the rule.
    let clients = RefCell::new(Vec::new());
    agent.wait_for("the note", |_| {
        clients.borrow_mut().extend(connect());
        is_noted()
    });
    assert!(server.accept().is_err());
    let events = agent.lines(&["events", "--json"]);
    let is_unopened = |event: &&serde_json::Value| event["verdict"] == "unopened";
    assert_eq!(events.iter().filter(is_unopened).count(), 1, "{events:?}");
    firewall("accept");
    agent.wait_for("no note", |_| {
        connect_and_accept();
        !is_noted()
    });
    // Such a firewall sees the SYN of a source that has proven its address by a reset.
    network.config(
        "attach = \"tc\"",
        &limit(&format!("{RATE}prove = \"reset\"")),
    );
    network.told(&["reload"]);
    firewall(BY_SYNS);
    connect_and_accept();
    assert!(proofs(&agent, "resets_accepted") > 0);
}
