//! One stream of rules that the host follows: its decisions, its store, its trial and its state on disk.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use api::rules::RulesStatus;
use config::policy::{FleetRules, Followed, PublicKeyText, RulesAddress};
use host::{PROGRAM, StateDirectory};
use rollout::health::Unhealthy;
use rollout::host::{CHECK, Clock, Host, Input, Output, Rules, Saved};
use rollout::keyring::Keyring;
use rollout::rules::Rights;

use super::handle::{FollowerId, Returned, Rollout};
use super::health::{Baseline, History};
use super::notes::{Totals, document};
use super::requests::{self, Sent};
use super::saved;
use super::settings::{keyring, settings};
use crate::daemon::Agent;

/// How long a request to the store may take until the store counts as unavailable.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pause before a change that another one prevents, or a save, is tried again.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Rules that wait for their trial.
pub(super) struct Trying {
    pub rules: Rules,
    /// Since when; the follower that has waited for longest is the next one.
    pub since: Instant,
    pub due: Instant,
}

impl Trying {
    /// Rules that may be tried at once.
    pub fn now(rules: Rules) -> Self {
        let since = Instant::now();
        Self {
            rules,
            since,
            due: since,
        }
    }
}

/// State that the followers of a host share.
pub(super) struct Common {
    pub fleet: FleetRules,
    pub directory: StateDirectory,
    pub history: History,
    pub began: Instant,
}

impl Common {
    fn clock(&self) -> Clock {
        Clock {
            wall: SystemTime::now(),
            monotonic: self.began.elapsed(),
        }
    }
}

/// A return to earlier rules, when it is tried next, and how often and why it has failed.
pub(super) struct Returning {
    pub rules: Option<Rules>,
    pub due: Instant,
    pub failures: u32,
    pub reason: Option<String>,
}

pub(super) struct Follower {
    pub id: FollowerId,
    rules: RulesAddress,
    public_keys: Vec<PublicKeyText>,
    rights: Rights,
    keyring: Keyring,
    pub host: Host,
    store: Sender<Sent>,
    /// When the request was sent that has no reply yet, and whether that was reported.
    in_flight: Option<(Instant, bool)>,
    pub trying: Option<Trying>,
    /// When the trial of the agent ends, by which it is known again.
    pub trial_ends: Option<Instant>,
    /// Rules to return to, where that was not possible yet.
    pub returning: Option<Returning>,
    /// How this follower has changed what is in effect.
    pub change: Returned,
    /// Why the state could not be saved; nothing begins or is confirmed then.
    pub not_saved: Option<String>,
    next_save: Instant,
    pub baseline: Option<Baseline>,
    pub next_check: Instant,
    totals: Totals,
    /// Why reports cannot be written.
    not_written: Option<String>,
    /// Notes that stay.
    notes: Vec<String>,
}

impl Follower {
    pub fn new(
        id: FollowerId,
        followed: &Followed<'_>,
        common: &Common,
        rollout: &Arc<Rollout>,
    ) -> io::Result<Self> {
        let mut notes = Vec::new();
        let (saved, lost) = saved::read(&common.directory, &followed.rules.stream);
        notes.extend(lost);
        let keyring = keyring(followed.public_keys, &mut notes);
        notes.iter().for_each(|note| tracing::error!("{note}"));
        let settings = settings(&common.fleet, followed);
        Ok(Self {
            id,
            rules: followed.rules.clone(),
            public_keys: followed.public_keys.to_vec(),
            rights: settings.rights.clone(),
            keyring,
            host: Host::new(settings, saved, common.clock()),
            store: requests::start(followed.rules, &common.fleet.node, id, rollout)?,
            in_flight: None,
            trying: None,
            trial_ends: None,
            returning: None,
            change: Returned::Unchanged,
            not_saved: None,
            next_save: common.began,
            baseline: None,
            next_check: common.began,
            totals: Totals::default(),
            not_written: None,
            notes,
        })
    }

    pub fn stream(&self) -> &str {
        &self.rules.stream
    }

    pub fn is_baking(&self) -> bool {
        self.host.is_baking()
    }

    /// How this follower has changed what is in effect since the last call.
    pub fn take_change(&mut self) -> Returned {
        mem::replace(&mut self.change, Returned::Unchanged)
    }

    /// Takes what a reload has changed of the stream. `next` is the number of a follower with another store.
    pub fn follow(
        &mut self,
        agent: &Arc<Agent>,
        common: &Common,
        followed: &Followed<'_>,
        next: FollowerId,
        rollout: &Arc<Rollout>,
    ) -> io::Result<()> {
        let rights = Rights::of(&common.fleet, followed);
        let has_other_keys = followed.public_keys != self.public_keys;
        if has_other_keys {
            self.notes.clear();
            self.keyring = keyring(followed.public_keys, &mut self.notes);
            self.public_keys = followed.public_keys.to_vec();
        }
        if has_other_keys || rights != self.rights {
            self.host.set_rights(rights.clone());
            self.rights = rights;
            self.step(agent, common, Input::TrustChanged);
        }
        if *followed.rules != self.rules {
            self.store = requests::start(followed.rules, &common.fleet.node, next, rollout)?;
            self.rules = followed.rules.clone();
            self.id = next;
            self.in_flight = None;
        }
        Ok(())
    }

    /// When something is due.
    pub fn wake_at(&self, common: &Common) -> Instant {
        let now = Instant::now();
        let mut at = if self.in_flight.is_none() {
            common.began + self.host.next_at()
        } else {
            now + PATIENCE
        };
        if self.host.is_baking() {
            at = at.min(self.next_check);
        }
        let trying = self.trying.iter().map(|trying| trying.due);
        let returning = self.returning.iter().map(|returning| returning.due);
        let saving = self.not_saved.iter().map(|_| self.next_save);
        trying.chain(returning).chain(saving).fold(at, Instant::min)
    }

    /// The store has replied.
    pub fn replied(&mut self, agent: &Arc<Agent>, common: &Common, input: Input) {
        self.in_flight = None;
        if let Input::StoreFailed(reason) = &input {
            self.totals.store_failed(reason.clone());
        } else {
            self.totals.store_replied();
            if matches!(input, Input::Reported(_)) {
                self.not_written = None;
            }
        }
        self.step(agent, common, input);
    }

    /// The store has replied, and does not take this host's report.
    pub fn not_written(
        &mut self,
        agent: &Arc<Agent>,
        common: &Common,
        input: Input,
        reason: String,
    ) {
        self.in_flight = None;
        self.totals.store_replied();
        if self.not_written.as_ref() != Some(&reason) {
            let stream = self.stream();
            tracing::error!("this host's reports to {stream} are not written: {reason}");
            self.not_written = Some(reason);
        }
        self.step(agent, common, input);
    }

    /// Somebody else ended the trial of a version.
    pub fn ended(&mut self, agent: &Arc<Agent>, common: &Common, version: u64, reason: String) {
        // Another version may be on trial by now.
        let on_trial = self.host.on_trial().map(|rules| rules.version);
        if on_trial == Some(version) {
            self.step(agent, common, Input::Tried(Err(reason)));
        }
        self.confirmed_again(agent);
    }

    /// The rules on trial were merged into another file, or with other rules.
    pub fn file_changed(&mut self, agent: &Arc<Agent>, common: &Common) {
        self.step(agent, common, Input::FileChanged);
    }

    /// Since when its rules wait for nothing but the trials of others.
    pub fn waits_since(&self) -> Option<Instant> {
        let is_ready = self.returning.is_none() && self.not_saved.is_none();
        let trying = self.trying.as_ref().filter(|_| is_ready);
        trying.map(|trying| trying.since)
    }

    /// Does the due work. `is_next`: no other follower has waited for a trial for longer.
    pub fn work(&mut self, agent: &Arc<Agent>, common: &Common, is_next: bool) {
        let now = Instant::now();
        if self.not_saved.is_some() && now >= self.next_save {
            self.save(common);
        }
        if let Some(returning) = self.returning.take_if(|returning| now >= returning.due) {
            self.return_to(agent, returning.rules, returning.failures);
        }
        if let Some(trying) = self.trying.take_if(|trying| now >= trying.due) {
            if is_next {
                self.try_rules(agent, common, trying);
            } else {
                self.wait(agent, common, trying);
            }
        }
        if self.host.is_baking() && Instant::now() >= self.next_check {
            self.next_check = Instant::now() + CHECK;
            let health = match &mut self.baseline {
                Some(baseline) => baseline.check(agent, &common.fleet),
                None => Err(Unhealthy::Unreadable(
                    "they were not read when the trial began".to_owned(),
                )),
            };
            self.step(agent, common, Input::Health(health));
        }
        match self.in_flight {
            None => self.request(agent, common),
            Some((since, false)) if since.elapsed() >= PATIENCE => {
                self.in_flight = Some((since, true));
                let reason = format!("no reply within {} s", PATIENCE.as_secs());
                self.totals.store_failed(reason.clone());
                self.step(agent, common, Input::StoreFailed(reason));
            }
            Some(_) => {}
        }
    }

    fn request(&mut self, agent: &Arc<Agent>, common: &Common) {
        let Some(request) = self.host.take_request(common.clock()) else {
            return;
        };
        let known = self.host.known().map(str::to_owned);
        if self.store.send((request, known)).is_ok() {
            self.in_flight = Some((Instant::now(), false));
            return;
        }
        let reason = requests::ENDED.to_owned();
        self.totals.store_failed(reason.clone());
        self.step(agent, common, Input::StoreFailed(reason));
    }

    /// Processes an input, and carries out what follows.
    pub fn step(&mut self, agent: &Arc<Agent>, common: &Common, input: Input) {
        let outputs = self.host.step(input, &self.keyring, common.clock());
        let mut outputs = VecDeque::from(outputs);
        while let Some(output) = outputs.pop_front() {
            match output {
                Output::Save => self.save(common),
                Output::Try(rules) => self.trying = Some(Trying::now(rules)),
                Output::Confirm => self.confirm(agent, common),
                Output::RollBack(rules) => {
                    self.baseline = None;
                    self.trying = None;
                    self.return_to(agent, rules, 0);
                }
                Output::Merge => self.merged(agent, common),
                Output::Event(event) => {
                    let stream = &self.rules.stream;
                    self.totals.happened(&event, stream, agent.events());
                }
            }
        }
    }

    pub fn save(&mut self, common: &Common) {
        self.write(common, &self.host.saved().clone());
    }

    /// Returns whether it is on disk.
    pub fn write(&mut self, common: &Common, saved: &Saved) -> bool {
        let stream = self.stream();
        let written = saved::write(&common.directory, stream, saved);
        let failed = written.err().map(|error| error.to_string());
        if let Some(reason) = failed.as_ref().filter(|_| self.not_saved != failed) {
            tracing::error!("saving the rules of {stream} failed, and is tried again: {reason}");
        }
        self.not_saved = failed;
        self.next_save = Instant::now() + PAUSE;
        self.not_saved.is_none()
    }

    /// The agent ends in order, or the host does not follow the stream any more.
    pub fn leave(&mut self, common: &Common) {
        if self.host.ends() || self.not_saved.is_some() {
            self.save(common);
        }
    }

    /// Whether a change of the rules in effect has not been possible yet.
    pub fn is_waiting(&self) -> bool {
        self.trying.is_some() || self.returning.is_some()
    }

    /// The version in effect; 0 without any rules of the stream.
    fn version_in_effect(&self, agent: &Agent) -> u64 {
        let rules = agent.rules_in_effect(self.stream());
        rules.map_or(0, |rules| rules.version)
    }

    /// Has reports name the version that is in effect.
    pub fn note_version(&mut self, agent: &Agent) {
        let version = self.version_in_effect(agent);
        self.host.has_in_effect(version);
    }

    /// Its document in `weir status`, and its notes.
    pub fn status(&self, agent: &Arc<Agent>) -> (RulesStatus, Vec<String>) {
        let failures = [
            self.totals.failure.as_ref(),
            self.not_written.as_ref(),
            self.not_saved.as_ref(),
        ];
        let error = failures.into_iter().flatten().next().cloned();
        let stream = self.stream();
        let status = RulesStatus {
            version: self.version_in_effect(agent),
            replaced: agent.replaced_rules(stream),
            error: error.clone(),
            ..document(&self.rules, &self.rights, &self.host.report(), &self.totals)
        };
        let mut notes = self.notes.clone();
        notes.extend(error.map(|error| format!("rules of {stream}: {error}")));
        let (version, expected) = (status.version, self.host.in_effect());
        let expected = expected.map_or(0, |rules| rules.version);
        if let Some(trying) = self.trying.as_ref().filter(|_| self.not_saved.is_none()) {
            let version = trying.rules.version;
            notes.push(format!(
                "version {version} of {stream} waits for the end of another trial"
            ));
        }
        let returning = self.returning.as_ref();
        if let Some(reason) = returning.and_then(|returning| returning.reason.as_ref()) {
            notes.push(format!(
                "version {version} of {stream} stays in effect until that before can be put in effect again: {reason}"
            ));
        }
        if expected != version && !self.is_waiting() {
            notes.push(format!(
                "version {expected} of {stream} does not go with this host's file, and is not in effect: correct the file, and run {PROGRAM} reload"
            ));
        }
        (status, notes)
    }
}
