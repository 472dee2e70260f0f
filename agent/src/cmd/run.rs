//! `agent --config limits.toml`: holds the host to it until told to stop.

use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use common::packet::Direction;
use tokio::signal::unix::{SignalKind, signal};

use super::USAGE;
use crate::cli::Run;
use crate::compile::{Image, compile};
use crate::config::policy::{Attach, Config, Mode, OnExit};
use crate::config::{self, ssh};
use crate::control::{Handler, Request, Reset, Server};
use crate::datapath::{AttachMode, Datapath, PinDirectory, default_route_interfaces, interface_names};
use crate::groups::Keeper;
use crate::stats::{InterfaceStatus, Reader, Status};

/// The agent at work.
struct Agent {
    config: Config,
    file: Option<String>,
    image: Image,
    /// `None` if the config has groups only.
    datapath: Option<Mutex<Datapath>>,
    groups: Keeper,
    started: Instant,
}

pub fn run(options: &Run) -> anyhow::Result<ExitCode> {
    let Some(config) = configuration(options)? else { return Ok(ExitCode::from(USAGE)) };
    let image = match compile(&config, Direction::Ingress) {
        Ok(image) => image,
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
        let mode = match config.agent.attach {
            Attach::Generic => AttachMode::Generic,
            Attach::Auto | Attach::Native | Attach::Tc => AttachMode::Native,
        };
        let has_packets = !interfaces.is_empty() || config.groups.is_empty();
        let datapath = if has_packets { Some(hold(&config, &image, &interfaces, mode)?) } else { None };
        // Groups stand by themselves: what befalls them is told in `status`, and packets are held all the same.
        let groups = Keeper::start(&config);
        eprintln!("{}", greeting(&config, &interfaces, mode));
        let on_exit = config.agent.on_exit;
        let file = options.config.as_ref().map(|file| file.display().to_string());
        for note in groups.notes() {
            eprintln!("note: {note}");
        }
        let datapath = datapath.map(Mutex::new);
        let keeper = groups.clone();
        let agent = Arc::new(Agent { config, file, image, datapath, groups, started: Instant::now() });
        tokio::select! {
            () = server.serve(Arc::clone(&agent)) => {}
            () = keeper.keep_filled() => {}
            result = stopped() => result?,
        }
        drop(server);
        for problem in keeper.stop(on_exit) {
            eprintln!("error: {problem}");
        }
        if on_exit == OnExit::Detach {
            agent.lock().map_or(Ok(()), |datapath| datapath.detach())?;
            eprintln!("stopped; limits are out of force (on_exit = \"detach\")");
        } else {
            eprintln!("stopped; limits stay in force (on_exit = \"keep\"): agent detach takes them out");
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Loads the limits on packets and attaches them; nothing is left attached if that fails.
fn hold(config: &Config, image: &Image, interfaces: &[String], mode: AttachMode) -> anyhow::Result<Datapath> {
    let mut datapath = Datapath::load(image, PinDirectory::open(&config.agent.pins)?)?;
    for interface in interfaces {
        if let Err(error) = datapath.attach(interface, mode) {
            datapath.abandon();
            return Err(error.into());
        }
    }
    datapath.release_others(interfaces);
    Ok(datapath)
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

fn greeting(config: &Config, interfaces: &[String], mode: AttachMode) -> String {
    let limits = config.limits.len();
    let does = match config.agent.mode {
        Mode::Enforce => "enforcing",
        Mode::Observe => "observing",
    };
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    let groups = match config.groups.len() {
        0 => String::new(),
        count => format!("; holding {count} process group{}", plural(count)),
    };
    let packets = match interfaces {
        [] => "no limit on packets".to_owned(),
        names => format!("{does} {limits} limit{} on {} ({mode})", plural(limits), names.join(", ")),
    };
    format!("{packets}{groups}; control socket {}", config.agent.control.display())
}

/// Until SIGINT or SIGTERM.
async fn stopped() -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

impl Agent {
    fn lock(&self) -> Option<std::sync::MutexGuard<'_, Datapath>> {
        // A panic elsewhere left no half-done change: every change of the datapath is one call.
        self.datapath.as_ref().map(|datapath| datapath.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// `reader` is `None` if no packets are held.
    fn status(&self, reader: Option<&Reader<'_>>) -> Result<Status, crate::datapath::LoadError> {
        let (totals, sources, bypass) = reader.map(Reader::totals).transpose()?.unwrap_or_default();
        let interfaces = reader
            .map_or(&[][..], |reader| reader.datapath.attached())
            .iter()
            .map(|attached| InterfaceStatus { name: attached.interface.clone(), attach: attached.mode })
            .collect();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mode: self.config.agent.mode.to_string(),
            uptime_seconds: self.started.elapsed().as_secs(),
            config: self.file.clone(),
            interfaces,
            totals,
            sources,
            bypass,
            groups: self.groups.names(),
            notes: self.groups.notes(),
        })
    }
}

impl Handler for Agent {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        let datapath = self.lock();
        let reader = datapath.as_deref().map(|datapath| Reader { config: &self.config, image: &self.image, datapath });
        let document = match (request, &reader) {
            (Request::Status, reader) => self.status(reader.as_ref()).map(serde_json::to_value),
            (Request::Groups, _) => Ok(serde_json::to_value(self.groups.statuses())),
            (Request::Emergency { group, what }, _) => Ok(serde_json::to_value(self.groups.emergency(group, what)?)),
            (Request::Limits, Some(reader)) => reader.limits().map(serde_json::to_value),
            (Request::Top, Some(reader)) => reader.top().map(serde_json::to_value),
            (Request::Show { source }, Some(reader)) => reader.show(source).map(serde_json::to_value),
            (Request::Reset { source }, Some(reader)) => {
                Ok(serde_json::to_value(Reset { forgotten: reader.reset(source) }))
            }
            (Request::Limits | Request::Top, None) => Ok(Ok(serde_json::json!([]))),
            (Request::Show { .. } | Request::Reset { .. }, None) => {
                return Err("the config in force has no limits on packets, so nothing is known of sources".to_owned());
            }
        };
        document.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}
