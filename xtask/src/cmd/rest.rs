//! `rest`: measures the idle cost of the agent.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};

use super::build::{self, Profile};
use super::setup;
use super::test::mount_bpffs;
use crate::process;
use crate::tools::{Detail, Group};
use crate::workspace::Workspace;

/// Measure what the agent costs while nothing happens, and fail if that is more than it may be.
#[derive(clap::Args)]
pub struct Arguments {
    /// For how many seconds to look.
    #[arg(long, default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

/// The default duration of the measurement, in seconds.
pub const SECONDS: u64 = 20;
/// The capacity of the table of sources.
pub const SOURCES: u32 = 100_000;
/// The agent's memory limit, in bytes.
const MOST_RESIDENT: u64 = 30 << 20;
/// The agent's CPU limit.
const MOST_CPU: CpuLimit = CpuLimit {
    share: 0.005,
    of_reference: 1.0,
};
/// The same with a cluster, whose store it queries ten times a second, and with groups.
const MOST_CPU_TOGETHER: CpuLimit = CpuLimit {
    share: 0.02,
    of_reference: 4.0,
};
/// How often the reference thread wakes up.
const REFERENCE_PERIOD: Duration = Duration::from_millis(20);
/// The memory limit then, in bytes.
const MOST_RESIDENT_TOGETHER: u64 = 40 << 20;
/// The timeout until the limits are in effect.
const PATIENCE: Duration = Duration::from_secs(60);
/// The pause after the queries, before the measurement.
const SETTLE: Duration = Duration::from_secs(2);

/// The agent's work besides limits on packets and on requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// Nothing.
    Nothing,
    /// Both limits are shared through a store on loopback, and there is a group.
    ClusterAndGroups,
}

/// The CPU time that the agent may use. A wake-up costs a multiple on a slow or busy machine, so that a share of a CPU
/// alone would measure the machine: the agent may use the larger of both.
#[derive(Clone, Copy, Debug)]
struct CpuLimit {
    /// As a share of one CPU.
    share: f64,
    /// As a multiple of the time of a thread that wakes up every [`REFERENCE_PERIOD`] meanwhile to read a file of /proc.
    of_reference: f64,
}

impl CpuLimit {
    fn holds(self, figures: Figures) -> bool {
        figures.cpu < self.share.max(self.of_reference * figures.reference)
    }
}

impl fmt::Display for CpuLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} % of one CPU or {} times the reference",
            100.0 * self.share,
            self.of_reference
        )
    }
}

/// The measurements.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// Resident bytes, including pages shared with the kernel's maps.
    pub resident: u64,
    /// The share of one CPU.
    pub cpu: f64,
    /// The same of the reference thread, see [`CpuLimit::of_reference`].
    pub reference: f64,
}

impl fmt::Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = self.resident as f64 / f64::from(1 << 20);
        let (cpu, reference) = (100.0 * self.cpu, 100.0 * self.reference);
        write!(
            formatter,
            "{mebibytes:.1} MiB resident, {cpu:.2} % of one CPU (reference: {reference:.2} %)"
        )
    }
}

/// Prints the figures.
pub fn run(arguments: &Arguments) -> Result<()> {
    let workspace = Workspace::locate()?;
    let toolchain = setup::ensure(Group::Test, Detail::Changes)?;
    let built = build::all(&workspace, &toolchain, Profile::Dist)?;
    for (beside, and, most_cpu, most_resident) in [
        (Beside::Nothing, "", MOST_CPU, MOST_RESIDENT),
        (
            Beside::ClusterAndGroups,
            ", a cluster and a group",
            MOST_CPU_TOGETHER,
            MOST_RESIDENT_TOGETHER,
        ),
    ] {
        let figures = measure(&built.agent, Duration::from_secs(arguments.seconds), beside)?;
        println!("at rest, with a table for {SOURCES} sources{and}: {figures}");
        ensure!(
            figures.resident < most_resident,
            "the agent may have {} MiB resident at most",
            most_resident >> 20
        );
        ensure!(
            most_cpu.holds(figures),
            "the agent may use {most_cpu} at most at rest"
        );
    }
    println!("rest: 4 passed, 0 failed");
    Ok(())
}

/// Runs an agent with all its timers, sends every query that reads the table, and then leaves it idle.
pub fn measure(agent: &Path, time: Duration, beside: Beside) -> Result<Figures> {
    ensure!(
        nix::unistd::geteuid().is_root(),
        "measuring the agent takes root, for namespaces and BPF"
    );
    mount_bpffs();
    let place = Place::new()?;
    let _store = (beside == Beside::ClusterAndGroups)
        .then(|| place.store())
        .transpose()?;
    let mut running = place.start(agent, beside)?;
    let ask = |verb: &[&str]| {
        process::capture(
            Command::new(agent)
                .args(verb)
                .arg("--control")
                .arg(place.control()),
        )
    };
    let deadline = Instant::now() + PATIENCE;
    while ask(&["status"]).is_err() {
        if let Some(status) = running.0.try_wait().context("waiting for the agent")? {
            bail!("the agent ended with {status}");
        }
        ensure!(
            Instant::now() < deadline,
            "the agent's limits were not in effect within {} s",
            PATIENCE.as_secs()
        );
        thread::sleep(Duration::from_millis(50));
    }
    for verb in [
        &["limits"][..],
        &["top", "--once"],
        &["status"],
        &["groups"],
    ] {
        ask(verb)?;
    }
    while beside == Beside::ClusterAndGroups
        && !ask(&["status", "--json"])?.contains("\"share_from\": \"lease\"")
    {
        ensure!(
            Instant::now() < deadline,
            "no share was leased within {} s",
            PATIENCE.as_secs()
        );
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(SETTLE);
    let pid = running.0.id();
    let reference = thread::spawn(move || reference(time));
    let (before, started) = (cpu_seconds(pid)?, Instant::now());
    thread::sleep(time);
    let cpu = (cpu_seconds(pid)? - before) / started.elapsed().as_secs_f64();
    let reference = reference
        .join()
        .map_err(|_| anyhow::anyhow!("the reference thread panicked"))??;
    Ok(Figures {
        resident: resident(pid)?,
        cpu,
        reference,
    })
}

/// The share of one CPU of a thread that wakes up every [`REFERENCE_PERIOD`] to read a file of /proc.
fn reference(time: Duration) -> Result<f64> {
    let used = || {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).context("reading the CPU time of a thread")
    };
    let (before, started) = (used()?, Instant::now());
    while started.elapsed() < time {
        thread::sleep(REFERENCE_PERIOD);
        fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    }
    Ok(Duration::from(used()? - before).as_secs_f64() / started.elapsed().as_secs_f64())
}

/// A namespace with two interfaces, and a folder; removed when dropped.
struct Place {
    name: String,
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Result<Self> {
        let name = format!("weir-t{}-rest", std::process::id());
        let place = Self {
            name,
            folder: tempfile::tempdir().context("making a folder")?,
        };
        let ip =
            |arguments: &[&str]| process::capture(Command::new("ip").args(arguments)).map(drop);
        ip(&["netns", "add", &place.name])?;
        ip(&[
            "-n",
            &place.name,
            "link",
            "add",
            "weir0",
            "type",
            "veth",
            "peer",
            "name",
            "weir1",
        ])?;
        for interface in ["lo", "weir0", "weir1"] {
            ip(&["-n", &place.name, "link", "set", interface, "up"])?;
        }
        Ok(place)
    }

    fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    fn pins(&self) -> PathBuf {
        Path::new("/sys/fs/bpf").join(&self.name)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("store.sock")
    }

    /// A store on a Unix socket, which network namespaces do not hide.
    fn store(&self) -> Result<Running> {
        let mut command = Command::new("redis-server");
        command
            .args([
                "--port",
                "0",
                "--save",
                "",
                "--appendonly",
                "no",
                "--unixsocket",
            ])
            .arg(self.socket());
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting redis-server")?;
        Ok(Running(child))
    }

    fn start(&self, agent: &Path, beside: Beside) -> Result<Running> {
        let (cluster, together) = match beside {
            Beside::Nothing => (String::new(), ""),
            Beside::ClusterAndGroups => (
                format!(
                    "[cluster]\nstore = \"unix://{}\"\n[[group]]\nname = \"batch\"\n\
                     match = [{{ exe = \"/nonexistent\" }}]\npids = 10\n",
                    self.socket().display()
                ),
                "cluster = true\n",
            ),
        };
        let config = self.folder.path().join("limits.toml");
        let text = format!(
            "[agent]\ninterfaces = [\"weir0\"]\non_exit = \"detach\"\nmax_sources = {SOURCES}\n\
             metrics = \"127.0.0.1:9464\"\ncontrol = {:?}\npins = {:?}\nstate_dir = {:?}\ncgroup = {:?}\n{cluster}\
             [decide]\nhttp = \"127.0.0.1:9465\"\n\
             [[limit]]\nname = \"packets\"\nrate = \"1000/s\"\nthrottle = {{ elastic = {{ up_to = 2.0 }} }}\n{together}\
             [[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\nrate = \"10/s\"\n{together}",
            self.control(),
            self.pins(),
            self.folder.path().join("state"),
            self.name
        );
        fs::write(&config, text).with_context(|| format!("writing {}", config.display()))?;
        let mut command = Command::new("nsenter");
        // nsenter executes the agent, so that the measured process is the agent's.
        command
            .arg(format!("--net=/run/netns/{}", self.name))
            .arg(agent)
            .arg("--config")
            .arg(&config);
        let child = command
            .stderr(Stdio::null())
            .spawn()
            .context("starting the agent")?;
        Ok(Running(child))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // `cargo xtask cleanup` finds what remains.
        let _ = fs::remove_dir_all(self.pins());
        let _ = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
    }
}

/// An agent, stopped when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        if nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).is_err() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// The CPU time of a process in seconds.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    // The name in parentheses may contain anything; user and system time are the 12th and 13th field after it.
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_whitespace().collect())
        .unwrap_or_default();
    let ticks = |nth: usize| fields.get(nth).and_then(|field| field.parse::<u64>().ok());
    let ticks = ticks(11).zip(ticks(12)).map(|(user, system)| user + system);
    // The kernel reports hundredths of a second on every architecture.
    Ok(ticks.with_context(|| format!("reading {path}: {text}"))? as f64 / 100.0)
}

/// The resident memory of a process, in bytes.
fn resident(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kibibytes.with_context(|| format!("reading VmRSS in {path}"))? * 1024)
}
