//! The agent as its operator sees it: how long a start takes, a reload, a look at a million sources, and a replay.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::flood::{frame, send};
use crate::network::{INTERFACE, Lane, Sender};
use crate::policies::{Bucket, REFUSING, USUAL, limit, limits_elsewhere, prefixes};
use crate::programs::{Harness, Order};
use testbed::measure::Series;
use testbed::process::memory;

const PART: &str = "agent";
/// The agent's path, from `cargo xtask bench`.
pub const AGENT: &str = "WEIR_AGENT";
const MILLION: u64 = 1_000_000;
/// Limits and prefixes of a config that is read again.
const RELOADED: [(u32, u32); 5] = [(1, 0), (100, 0), (1_000, 0), (10_000, 0), (10_000, 100_000)];
/// Configs of an agent that starts.
const STARTED: [(Directions, (u32, u32), &str); 3] = [
    (Directions::Ingress, RELOADED[0], "start, limits: 1"),
    (
        Directions::Both,
        RELOADED[0],
        "start, limits: 1 of ingress and 1 of egress",
    ),
    (
        Directions::Ingress,
        RELOADED[4],
        "start, limits: 10000, prefixes: 100000",
    ),
];
/// The command that lists the heaviest sources.
pub const TOP: [&str; 2] = ["top", "--once"];
const PATIENCE: Duration = Duration::from_secs(120);

/// An agent in a lane, ended when dropped.
pub struct Agent<'l> {
    lane: &'l Lane,
    child: Child,
    folder: tempfile::TempDir,
    program: PathBuf,
}

/// Measures what has `only` in its name.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    let agent = program(AGENT)?;
    let mut series = Vec::new();
    for (of, size, case) in STARTED {
        if case.contains(only) {
            let lane = sender.lane()?;
            series.push(Series::new(PART, case, "weir", "ms").with(starts(
                (&lane, &agent),
                rounds,
                &of.policy(size),
            )?));
        }
    }
    let classes = [RELOADED[0], RELOADED[4]].map(|size| (Changed::Class, size));
    for (changed, (count, prefix_count)) in RELOADED
        .map(|size| (Changed::Burst, size))
        .into_iter()
        .chain(classes)
    {
        let what = match changed {
            Changed::Burst => "reload",
            Changed::Class => "reload of a class",
        };
        let case = match prefix_count {
            0 => format!("{what}, limits: {count}"),
            _ => format!("{what}, limits: {count}, prefixes: {prefix_count}"),
        };
        if case.contains(only) {
            let lane = sender.lane()?;
            let samples = reloads((&lane, &agent), rounds, changed, (count, prefix_count))?;
            series.push(Series::new(PART, case, "weir", "ms").with(samples));
        }
    }
    let case = "top of a million sources";
    if case.contains(only) {
        let lane = sender.lane()?;
        let agent = Agent::with_a_million_sources(&lane, &agent)?;
        let samples: Result<_> = (0..rounds).map(|_| agent.timed(&TOP)).collect();
        series.push(Series::new(PART, case, "weir", "ms").with(samples?));
    }
    series.extend(crate::replay::run(PART, &agent, rounds, only)?);
    Ok(series)
}

/// The path in an environment variable that `cargo xtask bench` sets.
pub fn program(variable: &str) -> Result<PathBuf> {
    let program = std::env::var_os(variable)
        .with_context(|| format!("{variable} is not set: run `cargo xtask bench`"))?;
    Ok(program.into())
}

/// The change that a reload puts in effect.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// The burst of the first limit, for which programs are loaded.
    Burst,
    /// A source of a class, which changes in place.
    Class,
}

/// Where an agent that starts has limits.
#[derive(Clone, Copy)]
enum Directions {
    Ingress,
    Both,
}

impl Directions {
    fn policy(self, size: (u32, u32)) -> String {
        let more = match self {
            Self::Ingress => String::new(),
            Self::Both => limit("b", USUAL, "direction = \"egress\""),
        };
        policy(Changed::Burst, size, 0) + &more
    }
}

/// A policy that is another one in each round, so that there is something to reload.
pub fn policy(changed: Changed, (count, prefix_count): (u32, u32), round: usize) -> String {
    let [of_burst, of_class] =
        [Changed::Burst, Changed::Class].map(|of| if of == changed { round as u64 } else { 0 });
    let class = format!(
        "[[class]]\nname = \"changing\"\nsources = [\"192.0.2.{}\"]\nmultiplier = 7\n",
        of_class % 256
    );
    let limits = limit(
        "a",
        Bucket {
            burst: 1_000 + of_burst,
            ..USUAL
        },
        "",
    ) + &limits_elsewhere(count - 1);
    limits + &class + &prefixes(prefix_count)
}

fn reloads(
    (lane, program): (&Lane, &Path),
    rounds: usize,
    changed: Changed,
    size: (u32, u32),
) -> Result<Vec<f64>> {
    let agent = Agent::start((lane, program), &policy(changed, size, 0))?;
    let mut samples = Vec::new();
    for round in 1..=rounds {
        agent.configure(&policy(changed, size, round))?;
        samples.push(agent.timed(&["reload"])?);
    }
    Ok(samples)
}

/// Milliseconds from the start of the process until it reports that limits are in effect.
fn starts((lane, program): (&Lane, &Path), rounds: usize, tables: &str) -> Result<Vec<f64>> {
    let start = |_| {
        let start = Instant::now();
        let mut agent = Agent::spawn((lane, program), tables, Stdio::piped())?;
        let reports = agent
            .child
            .stderr
            .take()
            .context("the agent's standard error")?;
        let is_ready = |line: &std::io::Result<String>| {
            line.as_ref()
                .is_ok_and(|line| line.starts_with("enforcing "))
        };
        ensure!(
            BufReader::new(reports).lines().any(|line| is_ready(&line)),
            "the agent ended at its start"
        );
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    (0..rounds).map(start).collect()
}

impl<'l> Agent<'l> {
    fn spawn((lane, program): (&'l Lane, &Path), tables: &str, reports: Stdio) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(program);
        command
            .arg("--config")
            .arg(folder.path().join("limits.toml"))
            .stderr(reports)
            .stdout(Stdio::null());
        write_config(&folder, lane, tables)?;
        let child = lane
            .inside(|| command.spawn())?
            .context("starting the agent")?;
        Ok(Self {
            lane,
            child,
            folder,
            program: program.to_owned(),
        })
    }

    /// An agent with a million sources, each of which was refused once.
    pub fn with_a_million_sources(lane: &'l Lane, program: &Path) -> Result<Self> {
        // Each one is remembered for an hour.
        let agent = Self::start((lane, program), &limit("a", REFUSING, ""))?;
        let mut harness = Harness::load(lane.from_index)?;
        harness.walk(Order::Orderly, MILLION)?;
        // The first packet of each passes, and the second one is refused.
        send(&harness, &frame(), 2 * MILLION as u32)?;
        let status: Value = serde_json::from_slice(&agent.said(&["status", "--json"])?)
            .context("reading the status")?;
        let tracked = status["sources"]["tracked"].as_u64().unwrap_or(0);
        ensure!(
            tracked > MILLION * 98 / 100,
            "of a million sources, {tracked} are in the table"
        );
        Ok(agent)
    }

    pub fn start((lane, program): (&'l Lane, &Path), tables: &str) -> Result<Self> {
        let mut agent = Self::spawn((lane, program), tables, Stdio::null())?;
        let deadline = Instant::now() + PATIENCE;
        while agent.timed(&["status"]).is_err() {
            if let Some(status) = agent.child.try_wait()? {
                bail!("the agent ended with {status}");
            }
            ensure!(
                Instant::now() < deadline,
                "the agent did not answer within {PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(agent)
    }

    pub fn configure(&self, tables: &str) -> Result<()> {
        write_config(&self.folder, self.lane, tables)
    }

    /// Milliseconds that a command takes, from its start to its end.
    pub fn timed(&self, verb: &[&str]) -> Result<f64> {
        let start = Instant::now();
        self.said(verb)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Its memory in bytes.
    pub fn resident(&self) -> u64 {
        memory(self.child.id(), "VmRSS")
    }

    /// A command's output.
    fn said(&self, verb: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new(&self.program);
        command
            .args(verb)
            .arg("--control")
            .arg(self.folder.path().join("control.sock"));
        let output = command.output().context("starting the agent")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "agent {}: {}",
            verb.join(" "),
            said.trim()
        );
        Ok(output.stdout)
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(pins(self.lane));
    }
}

fn pins(lane: &Lane) -> PathBuf {
    PathBuf::from("/sys/fs/bpf").join(&lane.namespace)
}

fn write_config(folder: &tempfile::TempDir, lane: &Lane, tables: &str) -> Result<()> {
    let control = folder.path().join("control.sock");
    let state = folder.path().join("state");
    let agent = format!(
        "[agent]\ninterfaces = [{INTERFACE:?}]\ncontrol = {control:?}\nstate_dir = {state:?}\npins = {:?}\n",
        pins(lane)
    );
    std::fs::write(folder.path().join("limits.toml"), agent + tables).context("writing limits.toml")
}
