//! Clients of a listener, in a bounded number of places. When all are taken, a new client gets the place of the one that has been idle for
//! the longest time, whose connection is closed: clients that connect and send no request keep nobody out.

use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::sleep;

/// The pause after `accept` fails, most likely because file descriptors are used up.
const WHEN_REFUSED: Duration = Duration::from_millis(100);

/// A source of connections.
pub trait Accept {
    type Stream;
    /// Accepts a connection.
    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<Self::Stream>>;
}

impl Accept for TcpListener {
    type Stream = TcpStream;

    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<TcpStream>> {
        let (stream, _) = ready!(self.poll_accept(context))?;
        // A reply is one small segment. If this fails, replies are only slower.
        let _ = stream.set_nodelay(true);
        Poll::Ready(Ok(stream))
    }
}

impl Accept for UnixListener {
    type Stream = UnixStream;

    fn poll(&self, context: &mut Context<'_>) -> Poll<io::Result<UnixStream>> {
        self.poll_accept(context).map_ok(|(stream, _)| stream)
    }
}

/// Accepts connections, up to `most` at a time. Where all of them are busy, a new one waits.
pub async fn accept<L: Accept>(listener: L, most: usize, mut take: impl FnMut(Client<L::Stream>)) {
    let places = Places::new(most);
    loop {
        match poll_fn(|context| listener.poll(context)).await {
            Ok(stream) => take(Client::new(stream, places.take().await)),
            Err(_) => sleep(WHEN_REFUSED).await,
        }
    }
}

/// Smaller numbers are the turns at which clients became idle. Added to those of clients that leave a reply unread: those that have sent no
/// request make room first, so that no flood of them ends a slow transfer.
const UNREAD: u64 = 1 << 62;
/// Not read from yet: its request may have arrived.
const NEW: u64 = u64::MAX;
/// Its request is being evaluated.
const BUSY: u64 = u64::MAX - 1;
/// Its reply is not sent yet.
const REPLYING: u64 = u64::MAX - 2;
/// It must make room.
const CLOSED: u64 = u64::MAX - 3;

/// The state of a client.
#[derive(Debug)]
struct Place {
    id: u64,
    state: AtomicU64,
    /// Wakes the client's task, so that it ends.
    waker: Mutex<Option<Waker>>,
}

/// The places of a listener, or of one kind of its clients.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: Mutex<HashMap<u64, Arc<Place>>>,
    /// Increases with each client that becomes idle.
    turn: AtomicU64,
    /// Whether a new client waits for a place.
    is_wanted: AtomicBool,
    /// A client has left, or while its place is wanted, become idle or sent its first request.
    changed: Notify,
}

impl Places {
    /// `most` places.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self(Arc::new(Shared {
            most,
            taken: Mutex::default(),
            turn: AtomicU64::new(0),
            is_wanted: AtomicBool::new(false),
            changed: Notify::new(),
        }))
    }

    /// A place, once there is one.
    async fn take(&self) -> Activity {
        let mut is_closing = false;
        loop {
            let changed = self.0.changed.notified();
            if let Attempt::Taken(activity) = self.try_take(&mut is_closing) {
                return activity;
            }
            changed.await;
        }
    }

    /// A place, once there is one; `None` if requests of all clients are being evaluated or replied to.
    pub async fn take_unless_busy(&self) -> Option<Activity> {
        let mut is_closing = false;
        loop {
            let changed = self.0.changed.notified();
            match self.try_take(&mut is_closing) {
                Attempt::Taken(activity) => return Some(activity),
                Attempt::AllBusy => return None,
                Attempt::Wait => changed.await,
            }
        }
    }

    /// Takes a free place, or begins to close an idle client unless one `is_closing`.
    fn try_take(&self, is_closing: &mut bool) -> Attempt {
        let shared = &self.0;
        let mut taken = locked(&shared.taken);
        if taken.len() < shared.most {
            shared.is_wanted.store(false, Ordering::SeqCst);
            let place = Arc::new(Place {
                id: shared.turn.fetch_add(1, Ordering::SeqCst),
                state: AtomicU64::new(NEW),
                waker: Mutex::default(),
            });
            taken.insert(place.id, Arc::clone(&place));
            return Attempt::Taken(Activity {
                place,
                places: Arc::clone(shared),
            });
        }
        // Before the states are read: a client that becomes idle afterwards notifies.
        shared.is_wanted.store(true, Ordering::SeqCst);
        if *is_closing {
            return Attempt::Wait;
        }
        match close_one(&taken) {
            Closing::Begun => {
                *is_closing = true;
                Attempt::Wait
            }
            Closing::Undecided => Attempt::Wait,
            Closing::AllBusy => Attempt::AllBusy,
        }
    }
}

/// The result of [`Places::try_take`].
enum Attempt {
    Taken(Activity),
    /// A client is about to make room, or to show whether it is idle.
    Wait,
    AllBusy,
}

/// The result of [`close_one`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    /// An idle client is being closed.
    Begun,
    /// A new client may turn out to have sent no request.
    Undecided,
    /// No client is idle.
    AllBusy,
}

/// Closes the client that has been idle for the longest time, if one is idle.
fn close_one(taken: &HashMap<u64, Arc<Place>>) -> Closing {
    loop {
        let state = |place: &Arc<Place>| (place.state.load(Ordering::SeqCst), Arc::clone(place));
        let states: Vec<(u64, Arc<Place>)> = taken.values().map(state).collect();
        let is_any_new = states.iter().any(|(state, _)| *state == NEW);
        let idle = states.into_iter().filter(|(state, _)| *state < CLOSED);
        let Some((turn, place)) = idle.min_by_key(|(turn, _)| *turn) else {
            return if is_any_new {
                Closing::Undecided
            } else {
                Closing::AllBusy
            };
        };
        if turn >= UNREAD && is_any_new {
            return Closing::Undecided;
        }
        if place.change(turn, CLOSED) {
            let waker = locked(&place.waker).take();
            waker.into_iter().for_each(Waker::wake);
            return Closing::Begun;
        }
    }
}

impl Shared {
    fn remove(&self, place: &Place) {
        locked(&self.taken).remove(&place.id);
        self.changed.notify_one();
    }
}

impl Place {
    fn change(&self, from: u64, to: u64) -> bool {
        let changed = self
            .state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
        changed.is_ok()
    }

    /// Changes the state, unless the client must make room; returns the previous one.
    fn set(&self, to: u64) -> u64 {
        let change = |state| (state != CLOSED).then_some(to);
        let (Ok(before) | Err(before)) =
            self.state
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
        before
    }

    fn check(&self) -> io::Result<()> {
        if self.state.load(Ordering::SeqCst) != CLOSED {
            return Ok(());
        }
        let reason = "closed to make room for another client";
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason))
    }

    /// Remembers the task that waits for the client.
    fn wait(&self, context: &Context<'_>) -> io::Result<()> {
        let mut waker = locked(&self.waker);
        if !waker
            .as_ref()
            .is_some_and(|known| known.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
        drop(waker);
        // It may have been closed before there was a waker.
        self.check()
    }
}

/// What a server does for a client. A client is idle while its server waits for a request, or for it to read a reply.
#[derive(Clone, Debug)]
pub struct Activity {
    place: Arc<Place>,
    places: Arc<Shared>,
}

impl Activity {
    /// A whole request has arrived and is being evaluated: its client keeps the place.
    pub fn begin(&self) {
        self.works(BUSY);
    }

    /// The reply is ready: the client is idle again once it is sent.
    pub fn reply(&self) {
        self.works(REPLYING);
    }

    /// The client stays connected without a place: its server counts it elsewhere.
    pub fn leave(&self) {
        self.place.set(BUSY);
        self.places.remove(&self.place);
    }

    fn works(&self, state: u64) {
        if self.place.set(state) == NEW {
            self.notify();
        }
    }

    /// Notifies the new client that waits for a place.
    fn notify(&self) {
        if self.places.is_wanted.load(Ordering::SeqCst) {
            self.places.changed.notify_one();
        }
    }

    /// `after` is added to its turn.
    fn becomes_idle(&self, from: u64, after: u64) {
        if self.place.state.load(Ordering::SeqCst) != from {
            return;
        }
        let turn = after + self.places.turn.fetch_add(1, Ordering::SeqCst);
        if self.place.change(from, turn) {
            self.notify();
        }
    }

    /// The client reads its reply again.
    fn resumes(&self) {
        let state = self.place.state.load(Ordering::SeqCst);
        if (UNREAD..CLOSED).contains(&state) {
            self.place.change(state, REPLYING);
        }
    }
}

/// A connection with a place, which is free when this is dropped.
#[derive(Debug)]
pub struct Client<S> {
    stream: S,
    activity: Activity,
}

impl<S> Client<S> {
    /// A connection in the place of `activity`.
    pub const fn new(stream: S, activity: Activity) -> Self {
        Self { stream, activity }
    }

    /// For the server of this connection.
    pub fn activity(&self) -> Activity {
        self.activity.clone()
    }

    /// While a write is pending, the server waits for the client to read.
    fn written<T>(
        &self,
        context: &Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_pending() {
            self.activity.place.wait(context)?;
            self.activity.becomes_idle(REPLYING, UNREAD);
        } else {
            self.activity.resumes();
        }
        written
    }
}

impl Client<UnixStream> {
    /// The user of the process that connected.
    pub fn user(&self) -> Option<u32> {
        self.stream.peer_cred().ok().map(|peer| peer.uid())
    }
}

impl<S> Drop for Client<S> {
    fn drop(&mut self) {
        let Activity { place, places } = &self.activity;
        places.remove(place);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Client<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.activity.place.check()?;
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if read.is_pending() {
            self.activity.place.wait(context)?;
            self.activity.becomes_idle(NEW, 0);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Client<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.activity.place.check()?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.activity.place.check()?;
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        let flushed = self.written(context, flushed);
        if flushed.is_ready() {
            self.activity.becomes_idle(REPLYING, 0);
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.written(context, shut)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change under a lock is one operation: a panic elsewhere leaves it whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
