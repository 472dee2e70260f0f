//! The live view of `agent top`.
//!
//! What is typed and what arrives changes [`App`], a state machine that knows neither terminal nor socket; [`draw`] makes a
//! screen of it. Only this file touches the terminal. The agent is asked on a thread of its own, so that keys are heard
//! while it does not answer.

mod app;
mod draw;
#[cfg(test)]
mod tests;

pub use app::{App, Effect};
pub use draw::{Theme, draw};

use std::io;
use std::os::unix::net::UnixStream;
use std::process::exit;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use crossterm::event::{self, Event};
use ratatui::DefaultTerminal;

use crate::control::{Client, ClientError, Request};
use crate::follower::{self, End, Watched};
use crate::stats::{View, ViewQuery};

/// How often the agent is asked.
const PERIOD: Duration = Duration::from_secs(1);
/// How long to wait for a key before looking for an answer.
const GLANCE: Duration = Duration::from_millis(100);
/// How long the view has to end by itself: crossterm reads a terminal that hung up in an endless loop, and writing to one
/// that nobody reads blocks.
const GRACE: Duration = Duration::from_millis(300);

/// The terminal while it is ours: the other screen, and keys as they are typed. As it was when dropped, and on a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    ///
    /// When it cannot be set.
    pub fn take() -> io::Result<Self> {
        // This also has a panic give the terminal back before it says anything.
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Answers to what was asked.
type Answer = Result<View, ClientError>;

/// Shows the view until somebody has seen enough, the terminal hangs up or the agent exits.
///
/// # Errors
///
/// When no agent answers, or the terminal cannot be used.
pub fn run(client: Client, theme: Theme) -> anyhow::Result<()> {
    let mut app = App::default();
    // Who has nothing to show does not take the screen.
    app.arrived(Ok(client.ask(&Request::View { query: app.query() })?));
    let end = watch_for_the_end(&client)?;
    let (questions, asked) = channel();
    let (answered, answers) = channel();
    let asking = client.clone();
    let ask = move || answer(&asking, &asked, &answered);
    thread::Builder::new().name("weir-ask".to_owned()).spawn(ask).context("starting a thread")?;
    let mut screen = Screen::take().context("taking the terminal")?;
    let mut effect = Effect::Redraw;
    while end.get().is_none() {
        match effect {
            Effect::Quit => break,
            Effect::Redraw => {
                screen.0.draw(|frame| draw(frame, &app, theme)).context("drawing")?;
            }
            Effect::Nothing => {}
        }
        effect = step(&mut app, &questions, &answers, &end)?;
    }
    if end.get() == Some(&End::Agent) { Err(client.gone().into()) } else { Ok(()) }
}

/// Why the view has to end, once it has to. Ends the process itself where the view cannot.
fn watch_for_the_end(client: &Client) -> anyhow::Result<Arc<OnceLock<End>>> {
    let (arrived, signals) = UnixStream::pair().context("waiting for signals")?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT, signal_hook::consts::SIGHUP] {
        let arrived = arrived.try_clone().context("waiting for signals")?;
        signal_hook::low_level::pipe::register(signal, arrived).context("waiting for signals")?;
    }
    let end = Arc::new(OnceLock::new());
    let noted = Arc::clone(&end);
    let watched = Watched { signals: Some(signals), agent: client.process() };
    let force = move |reason| {
        let _ = noted.set(reason);
        thread::sleep(GRACE);
        // It may block as the view does.
        thread::spawn(ratatui::restore);
        thread::sleep(GRACE / 3);
        exit(i32::from(reason == End::Agent));
    };
    follower::watch(watched, force).context("starting a thread")?;
    Ok(end)
}

/// Asks if it is time to, and waits a moment for a key or an answer.
fn step(
    app: &mut App,
    questions: &Sender<ViewQuery>,
    answers: &Receiver<Answer>,
    end: &OnceLock<End>,
) -> anyhow::Result<Effect> {
    let now = Instant::now();
    if app.is_due(now, PERIOD) {
        app.asked(now);
        // The thread lives as long as this end.
        let _ = questions.send(app.query());
    }
    let reading = "reading what is typed";
    if event::poll(GLANCE).context(reading)? {
        return Ok(match event::read().context(reading)? {
            Event::Key(key) => app.typed(key),
            Event::Resize(..) => Effect::Redraw,
            _ => Effect::Nothing,
        });
    }
    Ok(match answers.try_recv() {
        Ok(Err(error)) if error.is_gone() => {
            let _ = end.set(End::Agent);
            Effect::Nothing
        }
        Ok(answer) => {
            app.arrived(answer.map_err(|error| error.to_string()));
            Effect::Redraw
        }
        Err(TryRecvError::Empty) => Effect::Nothing,
        Err(TryRecvError::Disconnected) => Effect::Quit,
    })
}

fn answer(client: &Client, asked: &Receiver<ViewQuery>, answered: &Sender<Answer>) {
    for query in asked {
        if answered.send(client.ask(&Request::View { query })).is_err() {
            return;
        }
    }
}
