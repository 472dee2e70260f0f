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
use crate::stats::{InterfaceStatus, Reader, Status};

/// The agent at work.
struct Agent {
    config: Config,
    file: Option<String>,
    image: Image,
    datapath: Mutex<Datapath>,
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
        let pins = PinDirectory::open(&config.agent.pins)?;
        let mut datapath = Datapath::load(&image, pins)?;
        let mode = match config.agent.attach {
            Attach::Generic => AttachMode::Generic,
            Attach::Auto | Attach::Native | Attach::Tc => AttachMode::Native,
        };
        for interface in &interfaces {
            if let Err(error) = datapath.attach(interface, mode) {
                datapath.abandon();
                return Err(error.into());
            }
        }
        datapath.release_others(&interfaces);
        eprintln!("{}", greeting(&config, &interfaces, mode));
        let on_exit = config.agent.on_exit;
        let file = options.config.as_ref().map(|file| file.display().to_string());
        let agent = Arc::new(Agent { config, file, image, datapath: Mutex::new(datapath), started: Instant::now() });
        tokio::select! {
            () = server.serve(Arc::clone(&agent)) => {}
            result = stopped() => result?,
        }
        drop(server);
        if on_exit == OnExit::Detach {
            agent.lock().detach()?;
            eprintln!("stopped; limits are out of force (on_exit = \"detach\")");
        } else {
            eprintln!("stopped; limits stay in force (on_exit = \"keep\"): agent detach takes them out");
        }
        Ok(ExitCode::SUCCESS)
    })
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
    format!(
        "{does} {limits} limit{} on {} ({mode}); control socket {}",
        if limits == 1 { "" } else { "s" },
        interfaces.join(", "),
        config.agent.control.display()
    )
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
    fn lock(&self) -> std::sync::MutexGuard<'_, Datapath> {
        // A panic elsewhere left no half-done change: every change of the datapath is one call.
        self.datapath.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn status(&self, reader: &Reader<'_>) -> Result<Status, crate::datapath::LoadError> {
        let (totals, sources, bypass) = reader.totals()?;
        let interfaces = reader
            .datapath
            .attached()
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
            notes: Vec::new(),
        })
    }
}

impl Handler for Agent {
    fn handle(&self, request: Request) -> Result<serde_json::Value, String> {
        let datapath = self.lock();
        let reader = Reader { config: &self.config, image: &self.image, datapath: &datapath };
        let document = match request {
            Request::Status => self.status(&reader).map(serde_json::to_value),
            Request::Limits => reader.limits().map(serde_json::to_value),
            Request::Top => reader.top().map(serde_json::to_value),
            Request::Show { source } => reader.show(source).map(serde_json::to_value),
            Request::Reset { source } => Ok(serde_json::to_value(Reset { forgotten: reader.reset(source) })),
        };
        document.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
    }
}
