//! `agent --config limits.toml`: holds the host to it until told to stop.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::USAGE;
use crate::applications::{self, Agent};
use crate::cli::Run;
use crate::cluster;
use crate::compile::{self, Plan};
use crate::config::policy::{Config, Mode, OnExit};
use crate::config::{self, ssh};
use crate::control::Server;
use crate::datapath::{PinDirectory, default_route_interfaces, interface_names};
use crate::events::{EventLog, Feed};
use crate::groups::Keeper;
use crate::metrics::Exporter;
use crate::service::{PERIOD, Service};
use crate::supervisor::Supervisor;

pub fn run(options: &Run) -> anyhow::Result<ExitCode> {
    let Some(config) = configuration(options)? else { return Ok(ExitCode::from(USAGE)) };
    let plan = match compile::plan(&config) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let interfaces = interfaces(&config)?;
    let file = options.config.as_ref().map(|file| file.display().to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        // First of all, so that a second agent touches nothing.
        let server = Server::bind(&config.agent.control)?;
        let exporter = config.agent.metrics.map(Exporter::bind).transpose()?;
        let (requests, orders) = applications::start(&config)?;
        let packets = hold_packets(&config, file.clone(), plan, &interfaces)?;
        // Groups stand by themselves: what befalls them is told in `status`, and packets are held all the same.
        let groups = Keeper::start(&config);
        let shared = cluster::shared(&config, packets.as_ref(), &requests.shared_engine());
        let cluster = cluster::Keeper::start(&config, shared)?.map(Arc::new);
        let in_force = introduce(&config, packets.as_deref(), &requests, &groups);
        let on_exit = config.agent.on_exit;
        let events = Arc::new(EventLog::default());
        if let Some(packets) = &packets {
            orders.carry_out(Arc::clone(packets), Arc::clone(&events));
        }
        let feed = Feed::new(Arc::clone(&events), packets.clone(), groups.clone());
        let agent =
            Arc::new(Agent::new(config, file, packets.clone(), requests, groups.clone(), cluster.clone(), events));
        if let Some(exporter) = exporter {
            eprintln!("metrics on http://{}/metrics", exporter.address());
            exporter.start(Arc::clone(&agent))?;
        }
        let supervisor = Supervisor;
        supervisor.ready(&in_force);
        tokio::select! {
            () = server.serve(agent) => {}
            () = supervisor.keep_alive() => {}
            () = keep_up(packets.as_deref()) => {}
            () = groups.keep_filled() => {}
            () = feed.run() => {}
            result = stopped() => result?,
        }
        supervisor.stopping();
        drop(server);
        for problem in groups.stop(on_exit) {
            eprintln!("error: {problem}");
        }
        if let Some(packets) = packets {
            packets.leave()?;
        }
        // Nothing passes any more by what is given back.
        if let Some(cluster) = cluster {
            cluster.stop();
        }
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
    file: Option<String>,
    plan: Plan,
    interfaces: &[String],
) -> anyhow::Result<Option<Arc<Service>>> {
    let has_others = !config.groups.is_empty() || !config.decide.limits.is_empty();
    if interfaces.is_empty() && has_others {
        return Ok(None);
    }
    let pins = PinDirectory::open(&config.agent.pins)?;
    Ok(Some(Arc::new(Service::start(config.clone(), file, plan, &pins, interfaces)?)))
}

/// Does from time to time what has to be done for packets.
async fn keep_up(packets: Option<&Service>) {
    let Some(packets) = packets else { return std::future::pending().await };
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        ticks.tick().await;
        let result = packets.tick();
        // Told once: the limits are in force all the same.
        if let (Err(error), false) = (&result, is_failing) {
            eprintln!("keeping bans and elastic limits up to date failed: {error}");
        }
        is_failing = result.is_err();
    }
}

/// Reads the config, or takes the built-in one; `None` if it is wrong, which has been told.
fn configuration(options: &Run) -> anyhow::Result<Option<Config>> {
    let Some(file) = &options.config else {
        let interfaces = default_route_interfaces().context("finding the interfaces of the default route")?;
        eprintln!("no config: observing on {} with built-in limits, throttling nothing", interfaces.join(", "));
        return Ok(Some(Config::built_in(&interfaces)));
    };
    match config::load(file) {
        Ok(loaded) => {
            for warning in &loaded.warnings {
                eprintln!("warning: {warning}");
            }
            if let Some(warning) = config::ssh_warning(&loaded.config, ssh::client()) {
                eprintln!("warning: {warning}");
            }
            Ok(Some(loaded.config))
        }
        Err(error) => {
            eprintln!("{error}");
            Ok(None)
        }
    }
}

/// The interfaces that the config's patterns name.
fn interfaces(config: &Config) -> anyhow::Result<Vec<String>> {
    let present = interface_names();
    let mut interfaces = Vec::new();
    for pattern in &config.agent.interfaces {
        let matching: Vec<&String> = present.iter().filter(|name| pattern.matches(name)).collect();
        anyhow::ensure!(
            !matching.is_empty(),
            "there is no interface {pattern} on this host; it has {}: correct [agent] interfaces",
            present.join(", ")
        );
        for name in matching {
            if !interfaces.contains(name) {
                interfaces.push(name.clone());
            }
        }
    }
    Ok(interfaces)
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

/// Until SIGINT or SIGTERM.
pub(super) async fn stopped() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}
