//! The remembered events, and their followers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use host::PROGRAM;
use thiserror::Error;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};

use api::Event;
pub use host::descriptors::MOST_FOLLOWERS;

/// The number of events that the agent remembers, and how far a follower may lag behind: some 300 bytes each.
pub const REMEMBERED: usize = 1_024;

/// Receives every event, when it is pushed. Must not wait: whoever pushes has other work.
pub trait Observer: Send + Sync {
    fn observe(&self, event: &Arc<Event>);
}

/// A bounded log. Writing to it never waits.
pub struct EventLog {
    inner: Mutex<Inner>,
    observer: Option<Arc<dyn Observer>>,
}

struct Inner {
    recent: VecDeque<Arc<Event>>,
    followers: broadcast::Sender<Arc<Event>>,
    /// One clone is owned by each follower: root's, and all others'.
    places: [Arc<()>; 2],
}

/// The follower's user: members of the group weir cannot use up root's places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follower {
    /// Root, or the user that runs the agent.
    Operator,
    /// Any other user.
    Member,
}

/// The maximum number of followers is reached.
#[derive(Debug, Error)]
#[error(
    "{MOST_FOLLOWERS} clients follow events, which is the maximum: end one of them ({PROGRAM} events --follow) first"
)]
pub struct TooManyFollowers;

impl Default for EventLog {
    fn default() -> Self {
        let (followers, _) = broadcast::channel(REMEMBERED);
        let places = [(); 2].map(Arc::new);
        let inner = Mutex::new(Inner {
            recent: VecDeque::with_capacity(REMEMBERED),
            followers,
            places,
        });
        Self {
            inner,
            observer: None,
        }
    }
}

impl EventLog {
    /// A log with an observer.
    #[must_use]
    pub fn observed_by(observer: Arc<dyn Observer>) -> Self {
        Self {
            observer: Some(observer),
            ..Self::default()
        }
    }

    /// Stores an event in place of the oldest, and sends it to all followers.
    pub fn push(&self, event: Event) {
        let event = Arc::new(event);
        let mut inner = self.lock();
        if inner.recent.len() == REMEMBERED {
            inner.recent.pop_front();
        }
        inner.recent.push_back(Arc::clone(&event));
        // Fails only without followers.
        let _ = inner.followers.send(Arc::clone(&event));
        drop(inner);
        if let Some(observer) = &self.observer {
            observer.observe(&event);
        }
    }

    /// The remembered events, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Arc<Event>> {
        self.lock().recent.iter().cloned().collect()
    }

    /// The last `count` remembered events, then all new ones.
    ///
    /// # Errors
    ///
    /// When [`MOST_FOLLOWERS`] of the same kind follow already.
    pub fn follow(
        &self,
        count: usize,
        follower: Follower,
    ) -> Result<Subscription, TooManyFollowers> {
        let inner = self.lock();
        let place = &inner.places[follower as usize];
        if Arc::strong_count(place) > MOST_FOLLOWERS {
            return Err(TooManyFollowers);
        }
        let skipped = inner.recent.len().saturating_sub(count);
        let backlog = inner.recent.iter().skip(skipped).cloned().collect();
        Ok(Subscription {
            backlog,
            coming: inner.followers.subscribe(),
            _place: Arc::clone(place),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere cannot leave the queue half changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The events of one follower.
pub struct Subscription {
    backlog: VecDeque<Arc<Event>>,
    coming: broadcast::Receiver<Arc<Event>>,
    _place: Arc<()>,
}

impl Subscription {
    /// Waits for the next event; `None` once there will be no more. Dropping the future while it waits loses no event.
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

    /// The next event, if one is available.
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
    Arc::new(Event::lost(
        count,
        "this client reads more slowly than events arrive",
    ))
}

#[cfg(test)]
mod tests {
    use api::EventKind;

    use super::*;

    fn numbered(count: u64) -> Event {
        Event {
            time: 0.0,
            ..Event::now(EventKind::Throttled, count, String::new())
        }
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
    fn an_observer_receives_every_event() {
        struct Counting(std::sync::atomic::AtomicU64);
        impl Observer for Counting {
            fn observe(&self, event: &Arc<Event>) {
                self.0
                    .fetch_add(event.count, std::sync::atomic::Ordering::Relaxed);
            }
        }
        let observer = Arc::new(Counting(0.into()));
        let log = EventLog::observed_by(Arc::clone(&observer) as Arc<dyn Observer>);
        (0..2 * REMEMBERED as u64).for_each(|_| log.push(numbered(3)));
        assert_eq!(
            observer.0.load(std::sync::atomic::Ordering::Relaxed),
            6 * REMEMBERED as u64
        );
    }

    #[test]
    fn a_follower_receives_the_last_events_and_all_new_ones() {
        let log = EventLog::default();
        (0..5).for_each(|number| log.push(numbered(number)));
        let mut follower = log.follow(2, Follower::Operator).unwrap();
        (5..8).for_each(|number| log.push(numbered(number)));
        let told: Vec<_> = std::iter::from_fn(|| follower.try_next()).collect();
        assert_eq!(counts(&told), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn a_slow_follower_receives_the_number_of_missed_events() {
        let log = EventLog::default();
        let mut follower = log.follow(0, Follower::Operator).unwrap();
        let more = 100;
        (0..(REMEMBERED + more) as u64).for_each(|number| log.push(numbered(number)));
        let told: Vec<_> = std::iter::from_fn(|| follower.try_next()).collect();
        assert_eq!(
            (told[0].verdict, told[0].count),
            (EventKind::Lost, more as u64)
        );
        assert_eq!((told.len(), told[1].count), (REMEMBERED + 1, more as u64));
    }

    #[test]
    fn followers_are_bounded_and_make_room_when_they_go() {
        let log = EventLog::default();
        let mut followers: Vec<_> = (0..MOST_FOLLOWERS)
            .map(|_| log.follow(0, Follower::Member).unwrap())
            .collect();
        assert!(log.follow(0, Follower::Member).is_err());
        assert!(
            log.follow(0, Follower::Operator).is_ok(),
            "others cannot keep root out"
        );
        followers.pop();
        assert!(log.follow(0, Follower::Member).is_ok());
    }
}
