//! The pages from nothing to an enforced limit, typed as they are into a guest that has never had the package.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use testbed::documents::Page;
use testbed::tests;

use crate::Test;
use crate::guest::{
    CLIENT, INTERFACE, SERVER, add_client, file, in_client, json, make_network, property, said,
    try_run, within,
};
use crate::package::remove;

pub const THOROUGH: &[Test] = tests![
    the_page_on_ssh_leads_from_nothing_to_a_limit,
    the_page_on_a_web_server_leads_from_nothing_to_a_limit,
    the_page_on_dns_leads_from_nothing_to_a_limit,
    the_page_on_a_game_server_leads_from_nothing_to_a_limit,
    the_page_on_an_api_leads_from_nothing_to_a_limit,
    the_page_on_a_shared_machine_leads_from_nothing_to_a_limit,
];

/// The address of the host where a page has another one send to it.
const DOCUMENTED: &str = "192.0.2.10";
const GREEDY: &str = "10.77.0.2";
const FOLDER: &str = "/etc/weir";
/// How long a refused connection is waited for.
const REFUSED: Duration = Duration::from_millis(20);

/// A page's text, at the time of the build.
macro_rules! page {
    ($name:literal) => {
        Page {
            path: concat!("docs/start/first/", $name, ".md").to_owned(),
            text: include_str!(concat!("../../../docs/start/first/", $name, ".md")).to_owned(),
        }
    };
}

/// The limit of a page that a source exceeds first.
struct First {
    limit: &'static str,
    burst: f64,
    per_second: f64,
    /// More than the limit passes in the time that sending them takes.
    flood: usize,
    send: fn(usize),
}

fn connect(port: u16, times: usize) {
    let server = SocketAddr::from((SERVER.parse::<std::net::Ipv4Addr>().unwrap(), port));
    in_client(|| (0..times).for_each(|_| drop(TcpStream::connect_timeout(&server, REFUSED))));
}

fn send_to(port: u16, times: usize) {
    in_client(|| {
        let socket = UdpSocket::bind((GREEDY, 0)).unwrap();
        for _ in 0..times {
            // A query for the root's name servers. Nobody listens, which the packet after may report.
            let query = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
            let _ = socket.send_to(&query, (SERVER, port));
        }
    });
}

/// Types the loop of the page on SSH on the other host.
fn log_in(_times: usize) {
    let commands = page!("ssh").commands();
    let is_for_it = |text: &str| text.contains(DOCUMENTED);
    let mut loops = commands.iter().filter(|one| is_for_it(&one.text));
    let text = loops.next().unwrap().text.replace(DOCUMENTED, SERVER);
    assert_eq!(loops.next(), None);
    let _sshd = TcpListener::bind((SERVER, 22)).unwrap();
    let printed = said(&try_run(
        "ip",
        &["netns", "exec", CLIENT, "bash", "-c", &text],
    ));
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines.len() >= 8 && lines.contains(&"open"), "{printed}");
}

fn the_page_on_ssh_leads_from_nothing_to_a_limit() {
    leads_to_a_limit(
        &page!("ssh"),
        &First {
            limit: "ssh",
            burst: 5.0,
            per_second: 5.0 / 60.0,
            flood: 8,
            send: log_in,
        },
    );
}

fn the_page_on_a_web_server_leads_from_nothing_to_a_limit() {
    leads_to_a_limit(
        &page!("web-server"),
        &First {
            limit: "web-connections",
            burst: 100.0,
            per_second: 10.0,
            flood: 400,
            send: |times| connect(80, times),
        },
    );
}

fn the_page_on_dns_leads_from_nothing_to_a_limit() {
    leads_to_a_limit(
        &page!("dns"),
        &First {
            limit: "queries",
            burst: 40.0,
            per_second: 20.0,
            flood: 2_000,
            send: |times| send_to(53, times),
        },
    );
}

fn the_page_on_a_game_server_leads_from_nothing_to_a_limit() {
    leads_to_a_limit(
        &page!("game-server"),
        &First {
            limit: "players",
            burst: 400.0,
            per_second: 200.0,
            flood: 3_000,
            send: |times| send_to(27_015, times),
        },
    );
}

fn the_page_on_an_api_leads_from_nothing_to_a_limit() {
    leads_to_a_limit(
        &page!("api"),
        &First {
            limit: "connections",
            burst: 100.0,
            per_second: 20.0,
            flood: 400,
            send: |times| connect(443, times),
        },
    );
}

fn the_page_on_a_shared_machine_leads_from_nothing_to_a_limit() {
    let page = page!("shared-machine");
    from_nothing(&page);
    try_run("useradd", &["batch"]);
    let commands = page.commands();
    let starts_a_job = |text: &str| text.starts_with("systemd-run") && !text.contains("iperf3");
    let job = commands.iter().find(|one| starts_a_job(&one.text));
    let job = &job.unwrap().text;
    for command in &commands {
        match command.text.as_str() {
            text if text == job => drop(typed(text)),
            "weir confirm" => {
                typed(job);
                within(Duration::from_secs(60), "a job has one CPU", || {
                    cpus_of_jobs().contains(&"100000 100000\n".to_owned())
                });
                assert!(typed("weir groups").contains("jobs"));
                typed("weir confirm");
            }
            // The loop's other line needs another host.
            text if is_of_the_package(text) => drop(typed(text)),
            _ => {}
        }
    }
    is_undone(&page);
}

/// The CPU limits of all processes of the page's user.
fn cpus_of_jobs() -> Vec<String> {
    let pids = String::from_utf8(try_run("pgrep", &["-u", "batch"]).stdout).unwrap();
    let limit = |pid: &str| {
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let path = cgroup.trim().strip_prefix("0::")?.to_owned();
        fs::read_to_string(format!("/sys/fs/cgroup{path}/cpu.max")).ok()
    };
    pids.lines().filter_map(limit).collect()
}

/// Types the page's commands, from the package's installation to its removal.
fn leads_to_a_limit(page: &Page, first: &First) {
    from_nothing(page);
    let mut is_enforced = false;
    for command in page.commands() {
        match command.text.as_str() {
            "weir limits" => {
                first.is_limited(is_enforced);
                let printed = typed("weir limits");
                assert!(printed.contains(first.limit), "{printed}");
                is_enforced = true;
            }
            text if is_of_the_package(text) => drop(typed(text)),
            // They are for another host, or are no part of the way: archives, certificates, nginx.
            _ => {}
        }
    }
    assert!(is_enforced);
    is_undone(page);
}

/// Whether a page's command is one that its reader types on the host, after the installation.
fn is_of_the_package(text: &str) -> bool {
    let is_elsewhere = text.contains(DOCUMENTED) || text.starts_with("nginx");
    let starts = [
        "weir ",
        "sed ",
        "mv ",
        "systemctl enable",
        "systemctl disable",
    ];
    !is_elsewhere && starts.iter().any(|start| text.starts_with(start))
}

/// A host without Weir on which the page's package is installed and its config is written.
fn from_nothing(page: &Page) {
    remove();
    for folder in [FOLDER, "/var/lib/weir"] {
        assert!(!Path::new(folder).exists(), "{folder} is left");
    }
    make_network();
    add_client(GREEDY);
    fs::copy(file("weir.deb"), "/root/weir_0.1.0-1_amd64.deb").unwrap();
    let commands = page.commands();
    let install = commands
        .iter()
        .find(|one| one.text.starts_with("apt install"));
    let install = install
        .unwrap()
        .text
        .replace("apt install", "apt install -y");
    succeeds(&install, "/root");
    assert_eq!(property("weir.service", "ActiveState"), "inactive");
    let blocks = page.blocks();
    let files = blocks.iter().filter_map(|block| {
        let (_, name) = block.marks.split_once("toml file=")?;
        Some((Path::new(FOLDER).join(name), &block.text))
    });
    let mut written = 0;
    for (path, text) in files {
        fs::write(path, text.replace("eth0", INTERFACE)).unwrap();
        written += 1;
    }
    assert!(written > 0, "{} has no config", page.path);
}

/// The last command, which stands in a sentence.
fn is_undone(page: &Page) {
    assert!(
        page.spans()
            .iter()
            .any(|(_, text)| text == "apt purge weir")
    );
    succeeds("apt purge -y weir", "/root");
    for path in [FOLDER, "/var/lib/weir", "/sys/fs/bpf/weir", "/usr/bin/weir"] {
        assert!(!Path::new(path).exists(), "{path} is left");
    }
}

/// Types a command in the folder of configs, and returns what it prints.
fn typed(text: &str) -> String {
    succeeds(text, FOLDER)
}

fn succeeds(text: &str, folder: &str) -> String {
    let mut shell = Command::new("bash");
    let output = shell
        .args(["-c", text])
        .current_dir(folder)
        .output()
        .unwrap();
    assert!(output.status.success(), "{text}: {}", said(&output));
    said(&output)
}

impl First {
    /// Sends more than the limit allows.
    fn is_limited(&self, is_enforced: bool) {
        let before = self.counts();
        let since = Instant::now();
        (self.send)(self.flood);
        let most = self.burst + self.per_second * since.elapsed().as_secs_f64() + 1.0;
        let after = self.counts();
        let (passed, refused) = (after.0 - before.0, after.1 - before.1);
        if is_enforced {
            assert!(passed as f64 <= most, "{passed} of at most {most}");
            assert!(refused > 0 || (self.flood as f64) <= most, "{refused}");
        } else {
            assert_eq!(refused, 0);
            assert!(passed > 0);
        }
    }

    /// Packets or connections that passed, and that were refused.
    fn counts(&self) -> (u64, u64) {
        let limits = json(&["limits"]);
        let limits = limits.as_array().unwrap();
        let limit = limits.iter().find(|limit| limit["name"] == self.limit);
        let limit = limit.unwrap();
        let packets = |kind: &str| limit[kind]["packets"].as_u64().unwrap();
        (packets("passed"), packets("throttled"))
    }
}
