//! `demo`: shows the agent between two network namespaces.

use std::fs::File;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sched::{CloneFlags, setns};

use super::build::{self, Profile};
use super::setup;
use crate::process;
use crate::recording::{COLUMNS, Recording};
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Show the agent at work between two network namespaces; ends by itself.
#[derive(clap::Args)]
pub struct Arguments {
    /// Also write what is printed into this file, as an animated SVG: docs/images/demo.svg is made so.
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

const CLIENT: &str = "weir-demo-client";
const SERVER: &str = "weir-demo-server";
const CONFIG: &str = "config/limits.demo.toml";
const CONTROL: &str = "/run/weir-demo/control.sock";
/// The agent's state; counters of an earlier run are none of this one's.
const STATE: &str = "/run/weir-demo/state";
const PORT: u16 = 9000;
const SERVER_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const POLITE: Source = Source {
    name: "well-behaved",
    address: Ipv4Addr::new(10, 78, 0, 2),
    per_millisecond: 0.5,
};
const GREEDY: Source = Source {
    name: "greedy",
    address: Ipv4Addr::new(10, 78, 0, 3),
    per_millisecond: 20.0,
};
/// The rate in the demo's config.
const RATE: f64 = 1_000.0;
const BURST: f64 = 1_000.0;
/// The duration of the traffic.
const TRAFFIC: Duration = Duration::from_secs(12);
/// The interval at which the counters are printed.
const EVERY: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
struct Source {
    name: &'static str,
    address: Ipv4Addr,
    per_millisecond: f64,
}

/// The packets of one source, with the time from before the first to after the last.
struct Sent {
    packets: u64,
    time: Duration,
}

/// Sets up, builds, shows how the agent limits a greedy source and not another one, and ends.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "making network namespaces and loading BPF programs needs root: run as root"
    );
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Debug)?;
    super::test::mount_bpffs();
    let _network = Network::new()?;
    if Path::new(STATE).exists() {
        std::fs::remove_dir_all(STATE).with_context(|| format!("removing {STATE}"))?;
    }
    let mut screen = Screen::start();
    screen.print(&format!(
        "two network namespaces, joined by a veth pair; the agent runs in {SERVER}\n\
         $ weir --config {CONFIG}"
    ));
    let agent = Agent::start(&built.agent, &workspace.root.join(CONFIG))?;

    let receiver = inside(SERVER, || UdpSocket::bind((SERVER_ADDRESS, PORT)))??;
    nix::sys::socket::setsockopt(
        &receiver,
        nix::sys::socket::sockopt::RcvBufForce,
        &(16 << 20),
    )?;
    screen.print(&format!(
        "sending for {} s: {} at {:.0} packets/s, {} at {:.0} packets/s\n\
         the limit is {RATE:.0}/s a source, burst {BURST:.0}",
        TRAFFIC.as_secs(),
        POLITE.name,
        POLITE.per_millisecond * 1e3,
        GREEDY.name,
        GREEDY.per_millisecond * 1e3
    ));
    screen.keep();
    let (polite, greedy, received) = thread::scope(|scope| {
        let receiving = scope.spawn(|| receive(&receiver));
        let senders =
            [POLITE, GREEDY].map(|source| scope.spawn(move || inside(CLIENT, || send(source))));
        let start = Instant::now();
        while start.elapsed() < TRAFFIC {
            thread::sleep(EVERY.min(TRAFFIC.saturating_sub(start.elapsed())));
            screen.replace();
            screen.print(&agent.shown(&["limits"])?);
            screen.print(&agent.shown(&["top", "--once"])?);
            screen.keep();
        }
        let [polite, greedy] =
            senders.map(|sender| sender.join().unwrap_or_else(|_| bail!("a sender panicked")));
        let received = receiving
            .join()
            .map_err(|_| anyhow::anyhow!("the receiver panicked"))?;
        anyhow::Ok((polite??, greedy??, received?))
    })?;
    drop(agent);
    let result = evaluate(&polite, &greedy, received)?;
    screen.print(&result);
    screen.keep();
    if let Some(file) = &arguments.record {
        let title = "Weir limits a greedy source, and not a well-behaved one";
        screen.recording.write(file, title)?;
        println!("wrote {}", file.display());
    }
    Ok(())
}

/// The screen of the terminal: lines that stay, and tables that are replaced.
struct Screen {
    lines: Vec<String>,
    /// The number of lines before the tables.
    head: Option<usize>,
    recording: Recording,
}

impl Screen {
    fn start() -> Self {
        Self {
            lines: Vec::new(),
            head: None,
            recording: Recording::start(),
        }
    }

    fn print(&mut self, text: &str) {
        println!("{text}");
        self.lines.extend(text.lines().map(str::to_owned));
    }

    /// Removes the last tables from the recording.
    fn replace(&mut self) {
        let head = *self.head.get_or_insert(self.lines.len());
        self.lines.truncate(head);
    }

    /// Makes a frame of all lines.
    fn keep(&mut self) {
        self.recording.add(&self.lines);
    }
}

/// Describes the result; fails if it differs from the config.
fn evaluate(
    polite: &Sent,
    greedy: &Sent,
    [polite_received, greedy_received]: [u64; 2],
) -> Result<String> {
    let allowed = BURST + RATE * greedy.time.as_secs_f64();
    let off = 100.0 * (greedy_received as f64 - allowed) / allowed;
    let arrived = format!(
        "\n{} {}: {} of {} packets arrived in {:.2} s; burst + rate × time is {allowed:.0} ({off:+.2} %)\n\
         {} {}: {} of {} packets arrived",
        GREEDY.name,
        GREEDY.address,
        greedy_received,
        greedy.packets,
        greedy.time.as_secs_f64(),
        POLITE.name,
        POLITE.address,
        polite_received,
        polite.packets
    );
    ensure!(
        off.abs() <= 2.0,
        "the greedy source's limit was not enforced within 2 %:{arrived}"
    );
    ensure!(
        polite_received == polite.packets,
        "the well-behaved source lost packets:{arrived}"
    );
    Ok(arrived + "\nthe greedy source was held to its limit, the well-behaved one lost nothing")
}

/// Sends evenly, in batches of a millisecond.
fn send(source: Source) -> Result<Sent> {
    let socket = UdpSocket::bind((source.address, 0))
        .with_context(|| format!("binding to {}", source.address))?;
    let start = Instant::now();
    let mut packets = 0u64;
    while start.elapsed() < TRAFFIC {
        let due = (start.elapsed().as_secs_f64() * 1e3 * source.per_millisecond) as u64 + 1;
        while packets < due {
            socket
                .send_to(&[0; 22], (SERVER_ADDRESS, PORT))
                .context("sending")?;
            packets += 1;
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(Sent {
        packets,
        time: start.elapsed(),
    })
}

/// Counts the packets from both sources, until none has arrived for a while after the traffic's end.
fn receive(socket: &UdpSocket) -> Result<[u64; 2]> {
    let deadline = Instant::now() + TRAFFIC;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut counts = [0; 2];
    let mut buffer = [0; 64];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((_, from)) if from.ip() == POLITE.address => counts[0] += 1,
            Ok((_, from)) if from.ip() == GREEDY.address => counts[1] += 1,
            Ok(_) => {}
            Err(_) if Instant::now() < deadline => {}
            Err(_) => return Ok(counts),
        }
    }
}

/// Runs `work` on a thread inside a namespace.
fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).with_context(|| format!("opening {path}"))?;
    thread::scope(|scope| {
        let thread = scope.spawn(move || {
            setns(&file, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {path}"))?;
            Ok(work())
        });
        thread
            .join()
            .unwrap_or_else(|_| bail!("the thread in {namespace} panicked"))
    })
}

/// The two namespaces, removed when dropped.
struct Network;

impl Network {
    fn new() -> Result<Self> {
        remove();
        let network = Self;
        let ip = |arguments: &str| process::run(Command::new("ip").args(arguments.split(' ')));
        ip(&format!("netns add {CLIENT}"))?;
        ip(&format!("netns add {SERVER}"))?;
        ip(&format!(
            "link add weir0 netns {SERVER} type veth peer name client0 netns {CLIENT}"
        ))?;
        ip(&format!(
            "-n {SERVER} addr add {SERVER_ADDRESS}/24 dev weir0"
        ))?;
        for source in [POLITE, GREEDY] {
            ip(&format!(
                "-n {CLIENT} addr add {}/24 dev client0",
                source.address
            ))?;
        }
        ip(&format!("-n {SERVER} link set weir0 up"))?;
        ip(&format!("-n {CLIENT} link set client0 up"))?;
        Ok(network)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    for namespace in [CLIENT, SERVER] {
        if Path::new("/run/netns").join(namespace).exists() {
            let _ = Command::new("ip")
                .args(["netns", "del", namespace])
                .status();
        }
    }
}

/// The agent, stopped when dropped; it then detaches its limits.
struct Agent<'a> {
    program: &'a Path,
    child: Child,
}

impl<'a> Agent<'a> {
    fn start(program: &'a Path, config: &Path) -> Result<Self> {
        let spawn = || {
            Command::new(program)
                .arg("--config")
                .arg(config)
                .stdin(Stdio::null())
                .spawn()
        };
        let child =
            inside(SERVER, spawn)?.with_context(|| format!("starting {}", program.display()))?;
        let mut agent = Self { program, child };
        let deadline = Instant::now() + Duration::from_secs(30);
        while !agent
            .command(&["status"])
            .output()
            .is_ok_and(|output| output.status.success())
        {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent ended with {status}");
            }
            ensure!(
                Instant::now() < deadline,
                "the agent did not answer on {CONTROL} within 30 s"
            );
            thread::sleep(Duration::from_millis(50));
        }
        Ok(agent)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.program);
        command
            .arg0("weir")
            .args(arguments)
            .args(["--control", CONTROL])
            .env("COLUMNS", COLUMNS.to_string());
        command
    }

    /// A command, and what it prints.
    fn shown(&self, arguments: &[&str]) -> Result<String> {
        let printed = process::capture(&mut self.command(arguments))?;
        let printed = printed.trim_end();
        Ok(format!("\n$ weir {}\n{printed}", arguments.join(" ")))
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().cast_signed());
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let _ = self.child.wait();
    }
}
