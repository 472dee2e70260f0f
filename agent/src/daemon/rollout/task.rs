//! The thread that decides about rules: signals for the followers of streams, and what one of them means for the others.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use config::policy::FleetRules;
use host::StateDirectory;

use super::follower::{Common, Follower};
use super::handle::{Ending, FollowerId, Returned, Rollout, Signal};
use super::health::History;
use crate::daemon::Agent;

/// How long the thread waits at most.
const LONGEST: Duration = Duration::from_secs(60);

/// Starts to follow the streams, if the agent's config has `[fleet]`.
pub fn start(agent: &Arc<Agent>) {
    let rollout = Arc::clone(&agent.rollout);
    let Some(task) = Task::new(agent, Arc::clone(&rollout)) else {
        return;
    };
    let started = thread::Builder::new()
        .name("weir-rules".to_owned())
        .spawn(move || task.run());
    if let Err(error) = started {
        let note = format!(
            "starting the thread weir-rules failed: {error}; the rules of the fleet stay as they are until the agent is restarted"
        );
        tracing::error!("{note}");
        rollout.note(note);
    }
}

struct Task {
    agent: Weak<Agent>,
    rollout: Arc<Rollout>,
    common: Common,
    /// In the order of `[fleet]`.
    followers: Vec<Follower>,
    next: FollowerId,
    /// Streams that are not followed, since a thread could not be started.
    notes: Vec<String>,
}

impl Task {
    /// The task of the agent's config; `None` without `[fleet]`.
    fn new(agent: &Arc<Agent>, rollout: Arc<Rollout>) -> Option<Self> {
        let (fleet, state) = {
            let live = agent.changing().live();
            let config = live.config();
            (config.fleet.clone()?, config.agent.state_dir.clone())
        };
        let mut task = Self {
            agent: Arc::downgrade(agent),
            rollout,
            common: Common {
                fleet: fleet.clone(),
                directory: StateDirectory::at(&state),
                history: History::default(),
                began: Instant::now(),
            },
            followers: Vec::new(),
            next: 0,
            notes: Vec::new(),
        };
        task.follow(agent, fleet);
        task.publish(agent);
        Some(task)
    }

    /// Runs until the agent is stopping.
    fn run(mut self) {
        let _ending = Ending(Arc::clone(&self.rollout));
        if let Some(agent) = self.agent.upgrade() {
            // A start leaves out all rules where the kernel refuses those of one stream.
            for follower in &mut self.followers {
                follower.confirmed_again(&agent);
            }
        }
        while let Ok(signal) = self.rollout.next(self.wake_at()) {
            // It ends with the agent.
            let Some(agent) = self.agent.upgrade() else {
                break;
            };
            if let Some(signal) = signal {
                self.signalled(&agent, signal);
            }
            self.work(&agent);
            for follower in &mut self.followers {
                follower.note_version(&agent);
            }
            self.publish(&agent);
        }
        for follower in &mut self.followers {
            follower.leave(&self.common);
        }
    }

    fn wake_at(&self) -> Instant {
        let followers = self.followers.iter();
        let due = followers.map(|follower| follower.wake_at(&self.common));
        let longest = Instant::now() + LONGEST;
        due.min().map_or(longest, |due| due.min(longest))
    }

    fn signalled(&mut self, agent: &Arc<Agent>, signal: Signal) {
        let common = &self.common;
        let mut followers = self.followers.iter_mut();
        match signal {
            // Replies to a follower that has left are nothing to the others.
            Signal::Store(id, input) => {
                if let Some(follower) = followers.find(|follower| follower.id == id) {
                    follower.replied(agent, common, *input);
                }
            }
            Signal::NotWritten(id, input, reason) => {
                if let Some(follower) = followers.find(|follower| follower.id == id) {
                    follower.not_written(agent, common, *input, reason);
                }
            }
            Signal::Ended {
                stream,
                version,
                reason,
            } => {
                if let Some(follower) = followers.find(|follower| follower.stream() == stream) {
                    follower.ended(agent, common, version, reason);
                }
            }
            Signal::Reloaded => {
                let fleet = agent.changing().live().config().fleet.clone();
                // A reload neither adds nor removes `[fleet]`.
                if let Some(fleet) = fleet {
                    self.follow(agent, fleet);
                }
                self.file_changed(agent);
                for follower in &mut self.followers {
                    follower.confirmed_again(agent);
                }
            }
        }
    }

    /// Follows the streams of `[fleet]`: those that were followed, and new ones. Others leave.
    fn follow(&mut self, agent: &Arc<Agent>, fleet: FleetRules) {
        self.common.fleet = fleet.clone();
        self.notes.clear();
        let mut before = std::mem::take(&mut self.followers);
        for followed in fleet.streams() {
            let stream = &followed.rules.stream;
            self.next += 1;
            let known = before.iter().position(|one| one.stream() == stream);
            let started = match known.map(|nth| before.remove(nth)) {
                Some(mut follower) => {
                    let followed =
                        follower.follow(agent, &self.common, &followed, self.next, &self.rollout);
                    // It goes on with the store that it has.
                    self.followers.push(follower);
                    followed
                }
                None => Follower::new(self.next, &followed, &self.common, &self.rollout)
                    .map(|follower| self.followers.push(follower)),
            };
            if let Err(error) = started {
                let note = format!(
                    "starting the thread weir-rules-store failed: {error}; the rules of {stream} stay as they are until the next reload"
                );
                tracing::error!("{note}");
                self.notes.push(note);
            }
        }
        for mut gone in before {
            gone.leave(&self.common);
        }
    }

    /// Does the due work.
    fn work(&mut self, agent: &Arc<Agent>) {
        if !self.followers.iter().any(Follower::is_baking) {
            self.common.history.sample(agent);
        }
        let waiting = self.followers.iter().filter_map(Follower::waits_since);
        let first = waiting.min();
        for follower in &mut self.followers {
            let is_next = follower.waits_since() == first;
            follower.work(agent, &self.common, is_next);
        }
        let changes = self.followers.iter_mut().map(Follower::take_change);
        let changes: Vec<Returned> = changes.collect();
        if changes.contains(&Returned::BesideATrial) {
            self.file_changed(agent);
        }
        // Rules that did not go with those of another stream may go with its present ones.
        if changes.iter().any(|change| *change != Returned::Unchanged) {
            for (follower, change) in self.followers.iter_mut().zip(&changes) {
                if *change == Returned::Unchanged {
                    follower.confirmed_again(agent);
                }
            }
            let mut changes = self.followers.iter_mut().map(Follower::take_change);
            if changes.any(|change| change == Returned::BesideATrial) {
                self.file_changed(agent);
            }
        }
    }

    /// Begins the bake of the rules on trial again, which were merged with others.
    fn file_changed(&mut self, agent: &Arc<Agent>) {
        for follower in &mut self.followers {
            follower.file_changed(agent, &self.common);
        }
    }

    fn publish(&self, agent: &Arc<Agent>) {
        let statuses = self.followers.iter().map(|one| one.status(agent));
        let (statuses, notes): (Vec<_>, Vec<_>) = statuses.unzip();
        let notes = [self.notes.clone(), notes.concat()].concat();
        self.rollout.publish(statuses, notes);
    }
}
