//! `agent --config limits.toml`: holds the host to it until told to stop.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use super::{USAGE, requests};
use crate::applications::Agent;
use crate::cli::Run;
use crate::compile;
use crate::config::policy::{Config, Mode, OnExit};
use crate::config::{self, ssh};
use crate::control::Server;
use crate::datapath::{PinDirectory, default_route_interfaces, interface_names};
use crate::service::{PERIOD, Service};

pub fn run(options: &Run) -> anyhow::Result<ExitCode> {
    let Some(config) = configuration(options)? else { return Ok(ExitCode::from(USAGE)) };
    if requests::are_all(&config) {
        return requests::run(config, options);
    }
    let plan = match compile::plan(&config) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let interfaces = interfaces(&config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    runtime.block_on(async {
        // First of all, so that a second agent touches nothing.
        let server = Server::bind(&config.agent.control)?;
        let pins = PinDirectory::open(&config.agent.pins)?;
        let (applications, orders) = requests::start(&config)?;
        let file = options.config.as_ref().map(|file| file.display().to_string());
        let introduction = introduction(&config);
        let service = Arc::new(Service::start(config, file, plan, &pins, &interfaces)?);
        let on: Vec<String> = service.modes().into_iter().map(|(name, mode)| format!("{name} ({mode})")).collect();
        eprintln!("{} on {}", introduction, on.join(", "));
        for note in service.notes() {
            eprintln!("note: {note}");
        }
        requests::greet(&applications);
        let agent = Arc::new(Agent::new(Arc::clone(&service), applications));
        orders.carry_out(Arc::clone(&service));
        tokio::select! {
            () = server.serve(agent) => {}
            () = keep_up(&service) => {}
            result = stopped() => result?,
        }
        drop(server);
        match service.leave()? {
            OnExit::Detach => eprintln!("stopped; limits are out of force (on_exit = \"detach\")"),
            OnExit::Keep => {
                eprintln!("stopped; limits stay in force (on_exit = \"keep\"): agent detach takes them out");
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Does from time to time what has to be done.
async fn keep_up(service: &Service) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_failing = false;
    loop {
        ticks.tick().await;
        let result = service.tick();
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

fn introduction(config: &Config) -> String {
    let limits = config.limits.len();
    let does = match config.agent.mode {
        Mode::Enforce => "enforcing",
        Mode::Observe => "observing",
    };
    let plural = if limits == 1 { "" } else { "s" };
    format!("{does} {limits} limit{plural}, control socket {},", config.agent.control.display())
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
