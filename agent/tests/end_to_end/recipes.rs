//! The recipes of docs/RECIPES.md on real traffic.

use std::ffi::OsString;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use testbed::recipes::recipe;
use testbed::tests;
use testbed::trials::Test;

use crate::flows::{Flows, From};
use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    recipe_ssh_passes_five_connections_a_minute,
    recipe_dns_passes_twenty_queries_a_second,
    recipe_web_bounds_connections_and_what_is_sent,
    recipe_vpn_gives_a_client_20_mbit,
    recipe_networks_have_limits_of_their_own,
    recipe_container_gives_an_interface_50_mbit,
    recipe_office_is_exempt,
    recipe_first_steps_refuse_nothing,
    recipe_fail2ban_bans_and_unbans_as_often_as_it_likes,
];

/// Tests that require fail2ban-server, at WEIR_FAIL2BAN.
pub const WITH_FAIL2BAN: &[Test] =
    tests![recipe_fail2ban_itself_bans_and_unbans_what_it_reads_in_a_log,];

/// Whether fail2ban-server is named.
pub fn has_fail2ban() -> bool {
    fail2ban_server().is_some()
}

fn fail2ban_server() -> Option<PathBuf> {
    std::env::var_os("WEIR_FAIL2BAN")
        .map(PathBuf::from)
        .filter(|path| path.exists())
}

/// Tests that require ansible-playbook, at WEIR_ANSIBLE.
pub const WITH_ANSIBLE: &[Test] =
    tests![recipe_ansible_is_idempotent_and_keeps_a_host_from_wrong_configs,];

/// Whether ansible-playbook is named.
pub fn has_ansible() -> bool {
    playbook().is_some()
}

fn playbook() -> Option<PathBuf> {
    std::env::var_os("WEIR_ANSIBLE")
        .map(PathBuf::from)
        .filter(|path| path.exists())
}

/// Starts an agent with a recipe, on this network's interface in place of the recipe's.
fn start<'n>(network: &'n Network, name: &str) -> Agent<'n> {
    let text = recipe(name);
    let tables = text.find("\n[[").map_or(text.len(), |at| at + 1);
    let (agent, rest) = text.split_at(tables);
    let is_kept = |line: &&str| !line.starts_with("[agent]") && !line.starts_with("interfaces");
    let agent: String = agent
        .lines()
        .filter(is_kept)
        .map(|line| format!("{line}\n"))
        .collect();
    network.start(&agent, rest)
}

/// The most packets that a limit passes from a full burst on.
fn most(burst: f64, per_second: f64, since: Instant) -> u64 {
    (burst + per_second * since.elapsed().as_secs_f64()) as u64 + 1
}

fn recipe_networks_have_limits_of_their_own() {
    let network = Network::new();
    network.add_link("weir1", "client1");
    let text = recipe("networks")
        .replace("\"eth0\"", "\"weir0\"")
        .replace("\"wg0\"", "\"weir1\"");
    let tables = text.find("\n[[").unwrap();
    let agent = network.start_on(&["weir0", "weir1"], "", &text[tables..]);
    let names = |source: &str| {
        let shown = agent.json(&["show", source]);
        let limits = shown["limits"].as_array().unwrap();
        limits
            .iter()
            .map(|limit| limit["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names("192.0.2.1"), ["everybody", "tunnel"]);
    assert_eq!(names("10.20.0.1"), ["branch-office", "tunnel"]);
    assert_eq!(names("10.20.99.1"), ["tunnel"]);
    let frame = |source: [u8; 4]| {
        Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4(source, SERVER)
            .udp(5000, 9, &[0; 22])
            .build()
    };
    let began = Instant::now();
    burst(
        &network,
        &[
            frame([192, 0, 2, 1]),
            frame([10, 20, 0, 1]),
            frame([10, 20, 99, 1]),
        ],
        9_000,
    );
    agent.wait_for("all packets", |status| {
        let totals = &status["totals"];
        totals["passed_packets"].as_u64().unwrap() + totals["throttled_packets"].as_u64().unwrap()
            >= 9_000
    });
    let (everybody, office) = (agent.counts("everybody"), agent.counts("branch-office"));
    assert!(
        (1_000..=most(1_000.0, 1_000.0, began)).contains(&everybody.0),
        "{everybody:?}"
    );
    assert_eq!(
        (everybody.0 + everybody.1, office, agent.counts("tunnel")),
        (3_000, (3_000, 0), (0, 0))
    );
}

fn connects(network: &Network, port: u16, patience: Duration) -> bool {
    let address = std::net::SocketAddr::from((SERVER, port));
    network
        .in_client(|| TcpStream::connect_timeout(&address, patience))
        .is_ok()
}

fn recipe_ssh_passes_five_connections_a_minute() {
    let network = Network::new();
    let agent = start(&network, "ssh");
    let _listener =
        network.in_server(|| TcpListener::bind((std::net::Ipv4Addr::from(SERVER), 22)).unwrap());
    let since = Instant::now();
    // Five must pass, whatever time the machine takes.
    let patience = |nth| {
        if nth < 5 {
            Duration::from_secs(30)
        } else {
            Duration::from_millis(500)
        }
    };
    let passed = (0..8)
        .filter(|nth| connects(&network, 22, patience(*nth)))
        .count() as u64;
    assert!(
        (5..=most(5.0, 5.0 / 60.0, since)).contains(&passed),
        "{passed} of 8 connections passed"
    );
    assert!(agent.counts("ssh").1 >= 8 - passed);
}

fn recipe_dns_passes_twenty_queries_a_second() {
    let network = Network::new();
    let agent = start(&network, "dns");
    // A query for the root's name servers.
    let query = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
    let frame = Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, 0, 7], SERVER)
        .udp(5_000, 53, &query)
        .build();
    let since = Instant::now();
    burst(&network, &[frame], 100);
    let (passed, refused) = agent.counts("dns");
    assert!(
        (40..=most(40.0, 20.0, since)).contains(&passed) && passed + refused == 100,
        "{passed} and {refused}"
    );
}

fn recipe_web_bounds_connections_and_what_is_sent() {
    let network = Network::new();
    let agent = start(&network, "web");
    let _listener =
        network.in_server(|| TcpListener::bind((std::net::Ipv4Addr::from(SERVER), 80)).unwrap());
    let since = Instant::now();
    let address = std::net::SocketAddr::from((SERVER, 80));
    let kept: Vec<_> = network.in_client(|| {
        (0..110)
            .filter_map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok())
            .collect()
    });
    let (passed, _) = agent.counts("web-connections");
    assert!(
        (100..=most(100.0, 20.0, since)).contains(&passed),
        "{passed} connections passed"
    );
    assert!(
        agent.counts("web-bytes").0 > 0,
        "the server's replies are counted"
    );
    drop(kept);
}

/// Checks TCP in both directions against a rate in bytes a second: `cargo xtask tcp` measures how near to it TCP comes.
fn measure(network: &Network, rate: f64) {
    for from in [From::Client, From::Server] {
        let flows = Flows {
            from,
            count: 2,
            delay: Duration::ZERO,
            warm_up: Duration::ZERO,
            time: Duration::from_secs(1),
        };
        let measured = flows.measure(network);
        let most = (rate / 4.0).max(262_144.0) + rate * measured.elapsed.as_secs_f64();
        assert!(
            measured.bytes > 0 && measured.bytes as f64 <= most,
            "{flows:?}: {measured:?}"
        );
    }
}

fn recipe_vpn_gives_a_client_20_mbit() {
    let network = Network::new();
    let _agent = start(&network, "vpn");
    measure(&network, 20e6 / 8.0);
}

fn recipe_container_gives_an_interface_50_mbit() {
    let network = Network::new();
    let _agent = start(&network, "container");
    measure(&network, 50e6 / 8.0);
}

fn recipe_office_is_exempt() {
    let network = Network::new();
    let agent = start(&network, "office");
    let from = |source: [u8; 4]| {
        Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4(source, SERVER)
            .udp(5_000, 9_000, &[0; 22])
            .build()
    };
    let since = Instant::now();
    burst(
        &network,
        &[from([198, 51, 100, 7]), from([198, 51, 101, 7])],
        8_000,
    );
    let (passed, refused) = agent.counts("packets");
    assert!(
        passed <= most(1_000.0, 1_000.0, since) && passed + refused == 4_000,
        "{passed} and {refused}"
    );
    assert_eq!(agent.json(&["status"])["bypass"]["never_limit"], 4_000);
    let output = network.command(&["ban", "198.51.100.7"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}

fn recipe_first_steps_refuse_nothing() {
    let network = Network::new();
    let agent = start(&network, "first-steps");
    let frame = Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, 0, 7], SERVER)
        .udp(5_000, 9_000, &[0; 22])
        .build();
    burst(&network, &[frame], 8_000);
    assert_eq!(agent.counts("packets"), (8_000, 0));
    assert_eq!(agent.json(&["status"])["mode"], "observe");
}

/// Runs a shell in which `weir` is the agent under test, and its commands are for this network's agent.
fn shell(network: &Network, script: &str) -> Output {
    Command::new("sh")
        .args(["-c", script])
        .envs(environment(network))
        .output()
        .unwrap()
}

/// The environment in which `weir` is the agent under test, and its commands are for this network's agent.
fn environment(network: &Network) -> [(&'static str, OsString); 2] {
    let folder = network.folder.path();
    testbed::weir_in(folder);
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    [
        ("PATH", path.into()),
        ("WEIR_CONTROL", network.control().into()),
    ]
}

fn recipe_fail2ban_bans_and_unbans_as_often_as_it_likes() {
    let network = Network::new();
    let agent = network.start("never_limit = [\"10.77.0.9\"]", crate::traffic::LIMIT);
    let text = recipe("fail2ban");
    let action = |name: &str, ip: &str, time: &str| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name} = ")))
            .unwrap();
        shell(
            &network,
            &line.replace("<ip>", ip).replace("<bantime>", time),
        )
        .status
        .code()
    };
    let bans = || agent.json(&["bans"]).as_array().unwrap().len();
    for ip in ["10.77.0.7", "2001:db8::7"] {
        for time in ["600", "600", "-1", "-1"] {
            assert_eq!(
                (action("actionban", ip, time), bans()),
                (Some(0), 1),
                "{ip} for {time}"
            );
        }
        for _ in 0..2 {
            assert_eq!(
                (action("actionunban", ip, "600"), bans()),
                (Some(0), 0),
                "{ip}"
            );
        }
    }
    // An exempt address cannot be banned, which fail2ban reports.
    assert_eq!(action("actionban", "10.77.0.9", "600"), Some(1));
}

/// fail2ban with its own config, the recipe and one jail, on a log that the test writes; ended when dropped.
struct Fail2ban<'n> {
    network: &'n Network,
    folder: PathBuf,
    child: Child,
}

impl<'n> Fail2ban<'n> {
    fn start(network: &'n Network) -> Self {
        let (server, folder) = (
            fail2ban_server().unwrap(),
            network.folder.path().join("fail2ban"),
        );
        // As the package lays it out: /usr/bin beside /etc.
        let own = server.ancestors().nth(3).unwrap().join("etc/fail2ban");
        assert!(
            Command::new("cp")
                .arg("-r")
                .arg(own)
                .arg(&folder)
                .status()
                .unwrap()
                .success()
        );
        // The distribution's own jails.
        std::fs::remove_dir_all(folder.join("jail.d")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
        write("action.d/weir.conf", &recipe("fail2ban"));
        write(
            "filter.d/weir.conf",
            "[Definition]\nfailregex = Failed password for .* from <HOST> port\n",
        );
        write("auth.log", "");
        let jail = format!(
            "[DEFAULT]\nbanaction = weir\n[login]\nenabled = true\nfilter = weir\nbackend = polling\nmaxretry = 3\n\
             bantime = 600\nusedns = no\nlogpath = {}\n",
            folder.join("auth.log").display()
        );
        write("jail.local", &jail);
        write(
            "fail2ban.local",
            &format!(
                "[Definition]\nlogtarget = {}\ndbfile = None\n",
                folder.join("log").display()
            ),
        );
        let mut command = Command::new(&server);
        command
            .arg("-f")
            .args(fail2ban_places(&folder))
            .arg("start")
            .envs(environment(network));
        let child = command.spawn().unwrap();
        let started = Self {
            network,
            folder,
            child,
        };
        started.until("ready", || {
            started
                .client(&["status", "login"])
                .contains("Currently banned")
        });
        started
    }

    /// The output of fail2ban-client.
    fn client(&self, arguments: &[&str]) -> String {
        let client = fail2ban_server().unwrap().with_file_name("fail2ban-client");
        let mut command = Command::new(client);
        let output = command
            .args(fail2ban_places(&self.folder))
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    /// Has the address fail to log in as often as the jail allows.
    fn fail(&self, address: &str) {
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
        let line =
            format!("{now} host sshd[7]: Failed password for root from {address} port 4711 ssh2\n");
        let mut file = std::fs::File::options()
            .append(true)
            .open(self.folder.join("auth.log"))
            .unwrap();
        file.write_all(line.repeat(3).as_bytes()).unwrap();
    }

    #[track_caller]
    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(300);
        while !is_so() {
            assert!(
                Instant::now() < deadline,
                "not {what} in time: {}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// (prefix, reason) of each ban of the agent.
    fn bans(&self) -> Vec<(String, String)> {
        let output = self.network.command(&["bans", "--json"]);
        let bans: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        bans.iter()
            .map(|ban| (text(&ban["cidr"]), text(&ban["reason"])))
            .collect()
    }
}

impl Drop for Fail2ban<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fail2ban_places(folder: &Path) -> [OsString; 6] {
    let path = |name: &str| folder.join(name).into_os_string();
    [
        "-c".into(),
        folder.into(),
        "-s".into(),
        path("socket"),
        "-p".into(),
        path("pid"),
    ]
}

fn recipe_fail2ban_itself_bans_and_unbans_what_it_reads_in_a_log() {
    let network = Network::new();
    let _agent = network.start("never_limit = [\"10.77.0.9\"]", crate::traffic::LIMIT);
    let receiver = network.receiver(PORT);
    let mut fail2ban = Fail2ban::start(&network);
    let banned = |cidr: &str| (cidr.to_owned(), "fail2ban: login".to_owned());
    fail2ban.fail("10.77.0.7");
    fail2ban.until("banned", || fail2ban.bans() == [banned("10.77.0.7")]);
    burst(&network, &[udp_from(7), udp_from(8)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (0, 10));
    fail2ban.fail("2001:db8::7");
    fail2ban.until("banned", || {
        fail2ban.bans() == [banned("10.77.0.7"), banned("2001:db8::/64")]
    });
    // An exempt address: fail2ban reports what Weir replies, and goes on.
    fail2ban.fail("10.77.0.9");
    fail2ban.until("reported", || fail2ban.log().contains("is exempt"));
    fail2ban.client(&["set", "login", "unbanip", "10.77.0.7"]);
    fail2ban.until("unbanned", || fail2ban.bans() == [banned("2001:db8::/64")]);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);
    // It lifts its bans as it ends.
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(fail2ban.child.id() as i32),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert!(
        fail2ban.child.wait().unwrap().success(),
        "{}",
        fail2ban.log()
    );
    assert_eq!(fail2ban.bans(), []);
}

fn recipe_ansible_is_idempotent_and_keeps_a_host_from_wrong_configs() {
    let network = Network::new();
    let limit = |rate: &str| format!("[[limit]]\nname = \"packets\"\nrate = {rate:?}\n");
    let text = |limits: &str| {
        let path = network.config("", limits);
        std::fs::read_to_string(path).unwrap()
    };
    let (second, invalid) = (
        text(&limit("2000/s")),
        text("[[limit]]\nname = \"packets\"\nrat = \"1/s\"\n"),
    );
    let agent = network.start("", &limit("1000/s"));
    let folder = network.folder.path();
    std::fs::write(folder.join("tasks.yml"), recipe("ansible")).unwrap();
    std::fs::write(
        folder.join("site.yml"),
        "- hosts: localhost\n  connection: local\n  gather_facts: false\n  tasks:\n    - ansible.builtin.include_tasks: tasks.yml\n",
    )
    .unwrap();
    let run = |config: &str| {
        std::fs::write(folder.join("wanted.toml"), config).unwrap();
        let mut command = Command::new(playbook().unwrap());
        let variables = format!(
            "weir_config={0}/wanted.toml weir_directory={0} weir_agent={1} \
             ansible_python_interpreter={{{{ ansible_playbook_python }}}}",
            folder.display(),
            testbed::weir_in(folder).display()
        );
        command
            .args(["-i", "localhost,", "site.yml", "-e", &variables])
            .current_dir(folder);
        command
            .env("WEIR_CONTROL", network.control())
            .env("ANSIBLE_NOCOLOR", "1")
            .env("HOME", folder);
        let output = command.env_remove("SSH_CONNECTION").output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (is_done, said) = run(&second);
    assert!(is_done && !said.contains("changed=0"), "{said}");
    assert_eq!(agent.limit("packets")["rate"], "2000/s");
    assert_eq!(
        std::fs::read_to_string(folder.join("limits.toml")).unwrap(),
        second
    );
    assert_eq!(
        agent.json(&["status"])["trial"],
        serde_json::Value::Null,
        "it is confirmed"
    );
    let (is_done, said) = run(&second);
    assert!(is_done && said.contains("changed=0"), "{said}");
    let (is_done, said) = run(&invalid);
    assert!(!is_done && said.contains("unknown key"), "{said}");
    assert_eq!(agent.limit("packets")["rate"], "2000/s");
    assert_eq!(
        std::fs::read_to_string(folder.join("limits.toml")).unwrap(),
        second
    );
}
