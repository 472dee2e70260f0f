//! Puts a config in effect, and works until the agent is stopped.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use std::time::Duration;

use anyhow::Context;
use api::event::seconds_since_1970;
use arc_swap::ArcSwapOption;
use cgroup::GroupManager;
use cluster::{EffectiveShare, Past};
use config::human;
use config::policy::{Config, OnExit};
use datapath::PinDirectory;
use datapath::compile::{self, Plan};
use datapath::memory;
use host::PROGRAM;
use host::load::HostRoom;
use notifications::Notifier;
use tokio::signal::unix::{SignalKind, signal};

use super::configured::{Configured, NotInEffect};
use crate::allowances;
use crate::daemon::crowdsec::{Bouncer, Parts};
use crate::daemon::events::{EventLog, Feed, Observer};
use crate::daemon::packets::{PERIOD, PacketEngine, Packets};
use crate::daemon::record::Recorder;
use crate::daemon::reload::{self, Live, Source};
use crate::daemon::rollout;
use crate::daemon::state::{Keeping, Restore, StateDirectory};
use crate::daemon::{self, Agent};
use crate::geo::Databases;
use crate::operators::Operators;
use crate::protect::{self, Found};
use crate::server::control::Server;
use crate::server::metrics::Exporter;
use crate::supervisor::Supervisor;

/// How long a stop waits for a change of limits in progress: a service has 30 s.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a stop waits for other threads at its end.
const THREADS_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
pub(super) enum Stage {
    Starting,
    Running,
}

/// Enforces a config until the agent is stopped.
pub(super) fn enforce(
    file: Option<&Path>,
    configured: Configured,
    databases: Databases,
    stage: &mut Stage,
) -> anyhow::Result<ExitCode> {
    let Configured {
        source,
        seen,
        not_in_effect,
        ended_trial,
        raises_limits,
    } = configured;
    // Names are resolved later: a start does not wait for them.
    let found = Found::default().read_again(&source.config);
    let state_directory = StateDirectory::at(&source.config.agent.state_dir);
    let now = seconds_since_1970() as u64;
    let (operators, unreadable) = Operators::read(&state_directory);
    let detected = protect::of(&source.config, &operators.addresses(now), &found);
    let (applied, overlaps) = databases.applied(&source.config);
    let (mut allowances, lost) = allowances::read(&state_directory, now);
    unreadable
        .iter()
        .chain(&lost)
        .for_each(|note| tracing::warn!("{note}"));
    allowances.retain(|allowance| raises_limits || allowance.times.is_none());
    let (applied, lowered) = allowances::applied_where_possible(applied, &mut allowances);
    lowered.iter().for_each(|note| tracing::warn!("{note}"));
    let config = Arc::new(protect::applied(applied, &detected));
    let plan = compile::plan(&config)?;
    let file = file.map(Path::to_owned);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    let ended = runtime.block_on(async {
        // First of all, so that a second agent changes nothing.
        let server = Server::bind(&config.agent.control)?;
        // From here on, signals no longer kill the process.
        let stopped = stopped()?;
        let hang_up = signal(SignalKind::hangup()).context("waiting for SIGHUP")?;
        let exporter = config.agent.metrics.map(Exporter::bind).transpose()?;
        let directory = StateDirectory::at(&config.agent.state_dir);
        let _lock = directory.lock()?;
        let past = Past::read(&directory);
        let shares = cluster::first_shares(&config, &past);
        let (state, restore) = Keeping::open(directory);
        let state = Arc::new(state);
        state.notes().iter().for_each(|note| tracing::warn!("{note}"));
        let (requests, orders) = daemon::start(&config, &shares, restore.as_ref())?;
        let packets = hold_packets(&config, plan, restore.as_ref(), shares)?;
        if let Some(packets) = &packets {
            packets.record_bans_in(state.journal());
        }
        if let (Some(packets), Some(restore)) = (&packets, &restore) {
            packets.take_up_escalations(restore);
        }
        // Errors of groups are reported in `status`; limits on packets apply regardless.
        let groups = GroupManager::start(&config);
        let packets: Packets = Arc::new(ArcSwapOption::new(packets));
        let notifier = Arc::new(Notifier::start(&config));
        let events = Arc::new(EventLog::observed_by(Arc::clone(&notifier) as Arc<dyn Observer>));
        let fleet = daemon::fleet(&packets, &events);
        fleet.share_limits(&config, &requests.current())?;
        // Before it, this host does not know what others have used.
        fleet.joined().await;
        requests.serve();
        let in_effect = introduce(&source, packets.load().as_deref(), &requests, &groups);
        reload::report_left_out(&events, &source.left_out);
        protect::exempt(&source.config.agent.never_limit, &detected).iter().for_each(|line| tracing::info!("{line}"));
        allowances.iter().for_each(|one| tracing::info!("{}: {} ({})", allowances::effect(one.times), one.cidr, allowances::terms(one)));
        let parts = Parts {
            packets: Arc::clone(&packets),
            events: Arc::clone(&events),
            directory: StateDirectory::at(&config.agent.state_dir),
        };
        let crowdsec = Arc::new(Bouncer::start(config.crowdsec.as_ref(), parts));
        // After the exceptions from its bans have been restored.
        fleet.share_bans(&config)?;
        orders.carry_out(Arc::clone(&packets), Arc::clone(&events), Arc::clone(&crowdsec));
        let for_room = requests.current();
        let feed = Feed::new(Arc::clone(&events), Arc::clone(&packets), requests.current(), groups.clone());
        let (attacks, for_cookies) = (feed.attacks(), feed.attacks());
        let (for_translations, for_openings) = (Arc::clone(&events), Arc::clone(&events));
        let kept = if not_in_effect.is_none() { reload::keep_as_last_valid(&source) } else { None };
        kept.iter().for_each(|note| tracing::warn!("{note}"));
        databases.missing().iter().chain(&overlaps).for_each(|warning| tracing::warn!("{warning}"));
        reload::report_changes(&events, &databases.changes(&Databases::default()));
        let mut live = Live::new(source, seen, (found, detected, allowances), operators, databases);
        if let Some(ended) = ended_trial {
            ended.report(&config.agent, file.as_deref(), &events, &mut live);
        }
        let status = match (&file, not_in_effect) {
            (Some(file), Some(NotInEffect { why, errors })) => {
                live.start_failed(file, errors);
                format!("{} {why}, the last valid config is in effect: {in_effect}", file.display())
            }
            _ => in_effect,
        };
        let lists = daemon::lists::start(&config, live.databases(), Arc::clone(&packets), Arc::clone(&events));
        let agent = Agent::new(
            file,
            live,
            Arc::clone(&packets),
            requests,
            groups.clone(),
            fleet,
            Arc::clone(&crowdsec),
            (events, notifier, attacks),
            Arc::clone(&state),
            lists,
            Recorder::new(Arc::clone(&packets), StateDirectory::at(&config.agent.state_dir)),
        );
        agent.park(restore.as_ref());
        drop(restore);
        let agent = Arc::new(agent);
        // The thread may outlive the agent, and must not keep its sockets.
        let saved = Arc::downgrade(&agent);
        state.start(move || saved.upgrade()?.snapshot());
        if let Some(exporter) = exporter {
            tracing::info!("metrics on http://{}/metrics", exporter.address());
            if config.agent.live.is_served_on(exporter.address().ip()) {
                tracing::info!("live page on http://{}/", exporter.address());
            }
            exporter.start(Arc::clone(&agent), config.agent.live.clone())?;
        }
        rollout::start(&agent);
        // Memory from reading the config and loading the policy.
        memory::trim();
        let supervisor = Supervisor;
        supervisor.ready(&status);
        *stage = Stage::Running;
        tokio::select! {
            () = server.serve(Arc::clone(&agent)) => {}
            () = supervisor.keep_alive() => {}
            () = keep_up(&packets, &for_room) => {}
            () = daemon::syn_cookies::run(&packets, for_cookies, for_openings, StateDirectory::at(&config.agent.state_dir)) => {}
            () = daemon::translations::run(&packets, for_translations) => {}
            () = reload::follow_interfaces(Arc::clone(&agent)) => {}
            () = reload::follow_protected(Arc::clone(&agent)) => {}
            () = reload::follow_allowances(Arc::clone(&agent)) => {}
            () = groups.keep_filled() => {}
            () = feed.run() => {}
            () = reload::changes(Arc::clone(&agent), hang_up) => {}
            () = reload::follow_databases(Arc::clone(&agent)) => {}
            () = agent.tracer().run() => {}
            () = stopped => {}
        }
        supervisor.stopping();
        drop(server);
        agent.rollout().close();
        let changed = Arc::clone(&agent);
        let closing = tokio::task::spawn_blocking(move || changed.changing().close());
        if tokio::time::timeout(CHANGE_TIMEOUT, closing).await.is_err() {
            tracing::warn!("a change of limits is still in progress after {}: stopping without it", human::time(CHANGE_TIMEOUT));
        }
        agent.notifier().stop();
        agent.close_lines();
        crowdsec.close();
        agent.recorder().close();
        state.close(agent.snapshot().as_ref());
        let on_exit = agent.changing().live().config().agent.on_exit;
        for problem in groups.stop(on_exit) {
            tracing::error!("{problem}");
        }
        let proving = packets.load_full().and_then(|packets| packets.proving());
        daemon::syn_cookies::leave(&StateDirectory::at(&config.agent.state_dir), proving.as_ref(), on_exit);
        if let Some(packets) = packets.load_full() {
            packets.leave()?;
        }
        // No packet passes under a returned share any more.
        agent.fleet().stop();
        let is_in_kernel = packets.load().is_some() || !agent.changing().live().config().groups.is_empty();
        tracing::info!("{}", stopped_line(on_exit, is_in_kernel));
        Ok(ExitCode::SUCCESS)
    });
    // A thread that hangs, such as one that reads a file of a dead server, does not keep the process.
    runtime.shutdown_timeout(THREADS_TIMEOUT);
    ended
}

/// The last line of the log. Limits on requests end with the process; those on packets and groups are in the kernel.
fn stopped_line(on_exit: OnExit, is_in_kernel: bool) -> String {
    match (on_exit, is_in_kernel) {
        (_, false) => "stopped; limits on requests are no longer in effect".to_owned(),
        (OnExit::Detach, true) => {
            "stopped; limits are no longer in effect (on_exit = \"detach\")".to_owned()
        }
        (OnExit::Keep, true) => {
            format!(
                "stopped; limits stay in effect (on_exit = \"keep\"): {PROGRAM} detach removes them"
            )
        }
    }
}

/// Enforces the limits on packets, unless the config has none.
fn hold_packets(
    config: &Arc<Config>,
    plan: Plan,
    restore: Option<&Restore>,
    shares: HashMap<String, EffectiveShare>,
) -> anyhow::Result<Option<Arc<PacketEngine>>> {
    if !daemon::holds_packets(config) {
        return Ok(None);
    }
    let pins = PinDirectory::open(&config.agent.pins)?;
    Ok(Some(Arc::new(PacketEngine::start(
        Arc::clone(config),
        plan,
        pins,
        restore,
        shares,
    )?)))
}

/// Does the periodic work of the packet engine, and tells elastic limits whether the host has resources to spare.
async fn keep_up(packets: &Packets, requests: &decide::Current) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut is_failing = false;
    let mut room = HostRoom::default();
    loop {
        ticks.tick().await;
        memory::tick();
        // Before the packet engine, which may be busy with a reload.
        let requests = requests.load();
        let has_room = requests.is_elastic().then(|| room.sample());
        requests.set_room(has_room == Some(true));
        drop(requests);
        let Some(packets) = packets.load_full() else {
            continue;
        };
        let result = packets.tick(|| has_room.unwrap_or_else(|| room.sample()));
        // Logged once: the limits stay in effect.
        if let (Err(error), false) = (&result, is_failing) {
            tracing::error!(
                "updating bans and elastic limits in the kernel failed: {error}; it is tried again twice a second"
            );
        }
        is_failing = result.is_err();
    }
}

/// Logs what is in effect and its notes; returns the former in one line.
fn introduce(
    source: &Source,
    packets: Option<&PacketEngine>,
    requests: &decide::Service,
    groups: &GroupManager,
) -> String {
    let in_effect = reload::in_effect(source, packets);
    tracing::info!(
        "{in_effect}; control socket {}",
        source.config.agent.control.display()
    );
    for endpoint in requests.endpoints() {
        tracing::info!("deciding {endpoint}");
    }
    for note in packets
        .map(PacketEngine::notes)
        .unwrap_or_default()
        .into_iter()
        .chain(groups.notes())
    {
        tracing::warn!("{note}");
    }
    in_effect
}

/// Completes at SIGINT or SIGTERM, from this call on.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_in_effect_only_where_the_kernel_has_them() {
        assert!(!stopped_line(OnExit::Keep, false).contains("stay"));
        assert!(stopped_line(OnExit::Keep, true).contains("limits stay in effect"));
        assert!(stopped_line(OnExit::Detach, true).contains("no longer in effect"));
    }
}
