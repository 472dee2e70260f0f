//! `agent --config limits.toml`: holds the host to it until told to stop.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use arc_swap::ArcSwapOption;
use tokio::signal::unix::{SignalKind, signal};

use super::USAGE;
use crate::applications::{self, Agent, Packets};
use crate::cluster::{self, InForce, Past};
use crate::compile::{self, Plan};
use crate::config::policy::{Config, Mode, OnExit};
use crate::config::{self, ConfigError, ssh};
use crate::control::Server;
use crate::datapath::{PinDirectory, default_route_interfaces};
use crate::events::{EventLog, Feed};
use crate::groups::Keeper;
use crate::live::{self, LastValid, Live, Record, Source};
use crate::memory;
use crate::metrics::Exporter;
use crate::protect;
use crate::service::{PERIOD, Service};
use crate::state::{Keeping, Restore, StateDirectory};
use crate::supervisor::Supervisor;

/// How long a service whose start failed waits before it ends: the service manager starts it again at once, so that a
/// killed agent is soon back.
const PAUSE: Duration = Duration::from_secs(4);

pub fn run(file: Option<&Path>) -> anyhow::Result<ExitCode> {
    memory::keep_little();
    let mut stage = Stage::Starting;
    let result = run_until_stopped(file, &mut stage);
    if let (Err(error), Stage::Starting, true) = (&result, stage, Supervisor.is_there()) {
        Supervisor.failed(&format!("{error:#}"));
        thread::sleep(PAUSE);
    }
    result
}

#[derive(Clone, Copy)]
enum Stage {
    Starting,
    Running,
}

fn run_until_stopped(file: Option<&Path>, stage: &mut Stage) -> anyhow::Result<ExitCode> {
    let Some(Configured { source, seen, invalid }) = configuration(file)? else { return Ok(ExitCode::from(USAGE)) };
    let protected = protect::of(&source.config, &BTreeSet::new());
    let config = protect::applied(&source.config, &protected);
    let plan = match compile::plan(&config) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let interfaces = live::interfaces(&config).context("reading this host's interfaces")?;
    let file = file.map(Path::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        // First of all, so that a second agent touches nothing.
        let server = Server::bind(&config.agent.control)?;
        // From here on, neither is the end of the agent.
        let stopped = stopped()?;
        let hang_up = signal(SignalKind::hangup()).context("waiting for SIGHUP")?;
        let exporter = config.agent.metrics.map(Exporter::bind).transpose()?;
        let directory = StateDirectory::at(&config.agent.state_dir);
        let _lock = directory.lock()?;
        let past = Past::read(&directory);
        let shares = cluster::first_shares(&config, &past);
        let (requests, orders) = applications::start(&config, &shares)?;
        let (state, restore) = Keeping::open(directory);
        let state = Arc::new(state);
        state.notes().iter().for_each(|note| eprintln!("note: {note}"));
        let packets = hold_packets(&config, file.as_deref(), plan, &interfaces, restore.as_ref(), shares)?;
        drop(restore);
        // Groups stand by themselves: what befalls them is told in `status`, and packets are held all the same.
        let groups = Keeper::start(&config);
        let packets: Packets = Arc::new(ArcSwapOption::new(packets));
        let shared = cluster::shared(&config, &packets, &requests.current());
        let events = Arc::new(EventLog::default());
        let cluster = cluster::Keeper::start(&config, shared, &past, Arc::clone(&events))?;
        let in_force = introduce(&config, packets.load().as_deref(), &requests, &groups);
        for protected in &protected {
            eprintln!("never throttled: {}, {}", protected.address, protected.why);
        }
        orders.carry_out(Arc::clone(&packets), Arc::clone(&events));
        let feed = Feed::new(Arc::clone(&events), Arc::clone(&packets), groups.clone());
        let kept = if invalid.is_none() { source.keep_as_last_valid() } else { None };
        kept.iter().for_each(|note| eprintln!("note: {note}"));
        let mut live = Live::new(source, seen, protected);
        let status = match (&file, invalid) {
            (Some(file), Some(errors)) => {
                live.start_failed(file, errors);
                format!("{} IS INVALID, the last valid config is in effect: {in_force}", file.display())
            }
            _ => in_force,
        };
        let agent =
            Agent::new(file, live, Arc::clone(&packets), requests, groups.clone(), cluster, events, Arc::clone(&state));
        let agent = Arc::new(agent);
        // The thread sleeps on after the agent's end, and must not keep its sockets.
        let saved = Arc::downgrade(&agent);
        state.start(move || saved.upgrade()?.snapshot());
        if let Some(exporter) = exporter {
            eprintln!("metrics on http://{}/metrics", exporter.address());
            exporter.start(Arc::clone(&agent))?;
        }
        // What reading the config and loading the policy took.
        memory::trim();
        let supervisor = Supervisor;
        supervisor.ready(&status);
        *stage = Stage::Running;
        tokio::select! {
            () = server.serve(Arc::clone(&agent)) => {}
            () = supervisor.keep_alive() => {}
            () = keep_up(&packets) => {}
            () = live::follow_interfaces(Arc::clone(&agent)) => {}
            () = groups.keep_filled() => {}
            () = feed.run() => {}
            () = live::changes(Arc::clone(&agent), hang_up) => {}
            () = stopped => {}
        }
        supervisor.stopping();
        drop(server);
        agent.close_lines();
        state.close(agent.snapshot().as_ref());
        let on_exit = agent.changing().live().config().agent.on_exit;
        for problem in groups.stop(on_exit) {
            eprintln!("error: {problem}");
        }
        if let Some(packets) = packets.load_full() {
            packets.leave()?;
        }
        // Nothing passes any more by what is given back.
        agent.stop_cluster();
        match on_exit {
            OnExit::Detach => eprintln!("stopped; limits are out of force (on_exit = \"detach\")"),
            OnExit::Keep => {
                eprintln!("stopped; limits stay in force (on_exit = \"keep\"): agent detach takes them out");
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Puts the limits on packets in force, unless the config is for other things only.
fn hold_packets(
    config: &Config,
    file: Option<&Path>,
    plan: Plan,
    interfaces: &[String],
    restore: Option<&Restore>,
    shares: HashMap<String, InForce>,
) -> anyhow::Result<Option<Arc<Service>>> {
    if !applications::holds_packets(config) {
        return Ok(None);
    }
    let pins = PinDirectory::open(&config.agent.pins)?;
    let file = file.map(|file| file.display().to_string());
    Ok(Some(Arc::new(Service::start(config.clone(), file, plan, pins, interfaces, restore, shares)?)))
}

/// Does from time to time what has to be done for packets.
async fn keep_up(packets: &Packets) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        ticks.tick().await;
        let Some(packets) = packets.load_full() else { continue };
        let result = packets.tick();
        // Told once: the limits are in force all the same.
        if let (Err(error), false) = (&result, is_failing) {
            eprintln!("keeping bans and elastic limits up to date failed: {error}");
        }
        is_failing = result.is_err();
    }
}

/// The config to start with.
struct Configured {
    source: Source,
    /// The text of the file, which is not that of `source` after a trial that was not confirmed.
    seen: Option<String>,
    /// Why the file is not in effect, and the last valid config is.
    invalid: Option<Vec<String>>,
}

/// Reads the config, or takes the built-in one; `None` if it is invalid or declined, which has been printed.
fn configuration(file: Option<&Path>) -> anyhow::Result<Option<Configured>> {
    let Some(file) = file else {
        let interfaces = default_route_interfaces().context("finding the interfaces of the default route")?;
        let names = interfaces.join(", ");
        if io::stdin().is_terminal() && !agrees(&format!("no config: observe {names} with built-in limits? [y/N] "))? {
            return Ok(None);
        }
        eprintln!("no config: observing {names} with built-in limits, refusing nothing");
        let source = Source { config: Config::built_in(&interfaces), text: None };
        return Ok(Some(Configured { source, seen: None, invalid: None }));
    };
    let (source, warnings) = match Source::read(file) {
        Ok(read) => read,
        Err(error) => {
            eprintln!("{error}");
            return Ok(last_valid(file, &error));
        }
    };
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    let seen = source.text.clone();
    let source = before_the_trial(file, source);
    if let Some(warning) = config::ssh_warning(&source.config, ssh::client()) {
        eprintln!("warning: {warning}");
    }
    Ok(Some(Configured { source, seen, invalid: None }))
}

fn agrees(question: &str) -> anyhow::Result<bool> {
    eprint!("{question}");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("reading the answer from the terminal")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The last valid config in place of an invalid file, where a service manager started the agent.
fn last_valid(file: &Path, error: &ConfigError) -> Option<Configured> {
    let copy = LastValid::of_service()?;
    let source = copy.read(file)?;
    eprintln!(
        "error: {} is invalid: the last valid config, {}, is in effect; correct the file, then run agent reload",
        file.display(),
        copy.path().display()
    );
    Some(Configured { source, seen: None, invalid: Some(error.to_string().lines().map(str::to_owned).collect()) })
}

/// What was in force before, if the config is one that was on trial when an earlier agent ended, and was not confirmed.
fn before_the_trial(file: &Path, source: Source) -> Source {
    let agent = &source.config.agent;
    let record = match Record::read(agent) {
        Ok(Some(record)) => record,
        Ok(None) => return source,
        Err(error) => {
            eprintln!("warning: {error}");
            return source;
        }
    };
    if record.tried != source.text {
        // The file is another one by now, or never was what was tried: reading it is rolling back.
        if let Err(error) = Record::forget(agent) {
            eprintln!("warning: {error}");
        }
        return source;
    }
    let Some(text) = record.before else { return source };
    let config = match config::parse(file, &text) {
        Ok(loaded) => loaded.config,
        Err(report) => {
            eprintln!(
                "warning: {} was on trial and not confirmed, but this version cannot read the config before it: the file is in effect\n{report}",
                file.display()
            );
            return source;
        }
    };
    eprintln!(
        "warning: {} was on trial and not confirmed: the config before it is in force; agent reload puts the file in force",
        file.display()
    );
    Source { config, text: Some(text) }
}

/// Says what is in force, and what should be known of it; returns the first in one line.
fn introduce(config: &Config, packets: Option<&Service>, requests: &crate::decide::Service, groups: &Keeper) -> String {
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let does = match config.agent.mode {
        Mode::Enforce => "enforcing",
        Mode::Observe => "observing",
    };
    let mut parts = Vec::new();
    match packets {
        Some(packets) => {
            let on: Vec<String> = packets.modes().into_iter().map(|(name, mode)| format!("{name} ({mode})")).collect();
            let count = config.limits.len();
            parts.push(format!("{does} {count} limit{} on {}", plural(count), on.join(", ")));
        }
        None => parts.push("no limit on packets".to_owned()),
    }
    if let count @ 1.. = config.decide.limits.len() {
        parts.push(format!("{does} {count} limit{} on requests", plural(count)));
    }
    if let count @ 1.. = config.groups.len() {
        parts.push(format!("holding {count} process group{}", plural(count)));
    }
    if let Some(cluster) = &config.cluster {
        let stores: Vec<String> = cluster.store.iter().map(ToString::to_string).collect();
        parts.push(format!("keeping limits with other hosts as {} through {}", cluster.node, stores.join(", ")));
    }
    let in_force = parts.join("; ");
    eprintln!("{in_force}; control socket {}", config.agent.control.display());
    for endpoint in requests.endpoints() {
        eprintln!("deciding {endpoint}");
    }
    for note in packets.map(Service::notes).unwrap_or_default().into_iter().chain(groups.notes()) {
        eprintln!("note: {note}");
    }
    in_force
}

/// Until SIGINT or SIGTERM, from when this is called.
pub(super) fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
