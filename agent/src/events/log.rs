//! The events the agent remembers, and those who follow them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thiserror::Error;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use super::Event;

/// How many events the agent remembers, and how far a follower may fall behind: some 300 bytes each.
pub const REMEMBERED: usize = 1_024;
/// Who may follow at one time.
pub const MOST_FOLLOWERS: usize = 16;

/// A bounded log. Writing to it never waits.
pub struct EventLog(Mutex<Inner>);

struct Inner {
    recent: VecDeque<Arc<Event>>,
    followers: broadcast::Sender<Arc<Event>>,
}

/// There are as many followers as may be.
#[derive(Debug, Error)]
#[error("{MOST_FOLLOWERS} others follow the events already: end one of them (agent events --follow) first")]
pub struct TooManyFollowers;

impl Default for EventLog {
    fn default() -> Self {
        let (followers, _) = broadcast::channel(REMEMBERED);
        Self(Mutex::new(Inner { recent: VecDeque::with_capacity(REMEMBERED), followers }))
    }
}

impl EventLog {
    /// Remembers an event in place of the oldest, and hands it to those who follow.
    pub fn push(&self, event: Event) {
        let event = Arc::new(event);
        let mut inner = self.lock();
        if inner.recent.len() == REMEMBERED {
            inner.recent.pop_front();
        }
        inner.recent.push_back(Arc::clone(&event));
        // Nobody follows: nobody misses it.
        let _ = inner.followers.send(event);
    }

    /// What is remembered, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Arc<Event>> {
        self.lock().recent.iter().cloned().collect()
    }

    /// The last `count` that are remembered, and all that come.
    ///
    /// # Errors
    ///
    /// When [`MOST_FOLLOWERS`] follow already.
    pub fn follow(&self, count: usize) -> Result<Subscription, TooManyFollowers> {
        let inner = self.lock();
        if inner.followers.receiver_count() >= MOST_FOLLOWERS {
            return Err(TooManyFollowers);
        }
        let skipped = inner.recent.len().saturating_sub(count);
        let backlog = inner.recent.iter().skip(skipped).cloned().collect();
        Ok(Subscription { backlog, coming: inner.followers.subscribe() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave a queue half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of one follower.
pub struct Subscription {
    backlog: VecDeque<Arc<Event>>,
    coming: broadcast::Receiver<Arc<Event>>,
}

impl Subscription {
    /// Waits for the next event. `None` once there will be no more. Dropped while it waits, it has lost nothing.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        if let Some(event) = self.backlog.pop_front() {
            return Some(event);
        }
        match self.coming.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(count)) => Some(missed(count)),
            Err(RecvError::Closed) => None,
        }
    }

    /// The next event, if it is there.
    pub fn try_next(&mut self) -> Option<Arc<Event>> {
        if let Some(event) = self.backlog.pop_front() {
            return Some(event);
        }
        match self.coming.try_recv() {
            Ok(event) => Some(event),
            Err(TryRecvError::Lagged(count)) => Some(missed(count)),
            Err(TryRecvError::Empty | TryRecvError::Closed) => None,
        }
    }
}

fn missed(count: u64) -> Arc<Event> {
    Arc::new(Event::lost(count, "this follower reads more slowly than events come"))
}

#[cfg(test)]
mod tests {
    use super::super::What;
    use super::*;

    fn numbered(count: u64) -> Event {
        Event { time: 0.0, ..Event::now(What::Throttled, count, String::new()) }
    }

    fn counts(events: &[Arc<Event>]) -> Vec<u64> {
        events.iter().map(|event| event.count).collect()
    }

    #[test]
    fn the_log_remembers_the_latest_and_no_more() {
        let log = EventLog::default();
        (0..REMEMBERED as u64 + 10).for_each(|number| log.push(numbered(number)));
        let recent = log.recent();
        assert_eq!((recent.len(), recent[0].count), (REMEMBERED, 10));
    }

    #[test]
    fn who_follows_gets_the_last_ones_and_all_that_come() {
        let log = EventLog::default();
        (0..5).for_each(|number| log.push(numbered(number)));
        let mut follower = log.follow(2).unwrap();
        (5..8).for_each(|number| log.push(numbered(number)));
        let told: Vec<_> = std::iter::from_fn(|| follower.try_next()).collect();
        assert_eq!(counts(&told), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_slow_follower_is_told_how_many_it_missed_and_goes_on_with_the_rest() {
        let log = EventLog::default();
        let mut follower = log.follow(0).unwrap();
        let more = 100;
        (0..(REMEMBERED + more) as u64).for_each(|number| log.push(numbered(number)));
        let told: Vec<_> = std::iter::from_fn(|| follower.try_next()).collect();
        assert_eq!((told[0].verdict, told[0].count), (What::Lost, more as u64));
        assert_eq!((told.len(), told[1].count), (REMEMBERED + 1, more as u64));
    }

    #[test]
    fn followers_are_bounded_and_make_room_when_they_go() {
        let log = EventLog::default();
        let mut followers: Vec<_> = (0..MOST_FOLLOWERS).map(|_| log.follow(0).unwrap()).collect();
        assert!(log.follow(0).is_err());
        followers.pop();
        assert!(log.follow(0).is_ok());
    }
}
