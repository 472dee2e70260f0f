//! The view on a terminal: queries the agent, reads keys and draws until it ends.

use std::io;
use std::process::exit;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use api::request::Request;
use crossterm::event::{self, Event};
use ratatui::DefaultTerminal;

use super::app::{App, Effect};
use super::draw::{Glyphs, Theme, draw};
use crate::follower::{self, End, Watched};
use crate::server::control::{Client, ClientError};
use crate::stats::{View, ViewQuery};

/// The interval of queries.
const PERIOD: Duration = Duration::from_secs(1);
/// How long to wait for a key before checking for a reply.
const GLANCE: Duration = Duration::from_millis(100);
/// How long the view may take to end by itself: crossterm reads a terminal that hung up in an endless loop, and writing
/// to one without a reader blocks.
const GRACE: Duration = Duration::from_millis(300);

/// The terminal in raw mode on the alternate screen; restored on drop and on a panic.
pub struct Screen(DefaultTerminal);

impl Screen {
    /// Initialises the terminal.
    ///
    /// # Errors
    ///
    /// When that fails.
    pub fn take() -> io::Result<Self> {
        // Its panic hook restores the terminal before it prints.
        ratatui::try_init().map(Self)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// The reply to a query.
type Answer = Result<View, ClientError>;

/// Shows the view until the user quits, the terminal hangs up or the agent exits.
///
/// # Errors
///
/// When no agent replies, or the terminal cannot be used.
pub fn run(client: Client, (theme, glyphs): (Theme, Glyphs), mut app: App) -> anyhow::Result<()> {
    // The first query, before the screen is changed.
    app.arrived(Ok(client.ask(&Request::View { query: app.query() })?));
    let end = watch_for_the_end(&client)?;
    let (sender, queries) = channel();
    let (answered, answers) = channel();
    let asking = client.clone();
    let ask = move || answer(&asking, &queries, &answered);
    thread::Builder::new()
        .name("weir-ask".to_owned())
        .spawn(ask)
        .context("starting a thread")?;
    let mut screen = Screen::take().context("initialising the terminal")?;
    let mut effect = Effect::Redraw;
    while end.get().is_none() {
        match effect {
            Effect::Quit => break,
            Effect::Redraw => {
                screen
                    .0
                    .draw(|frame| draw(frame, &app, theme, glyphs))
                    .context("drawing")?;
            }
            Effect::Nothing => {}
        }
        effect = step(&mut app, &sender, &answers, &end)?;
    }
    if end.get() == Some(&End::Agent) {
        Err(client.gone().into())
    } else {
        Ok(())
    }
}

/// The reason why the view must end, once set. Ends the process itself if the view is blocked.
fn watch_for_the_end(client: &Client) -> anyhow::Result<Arc<OnceLock<End>>> {
    let signals = follower::signals().context("waiting for signals")?;
    let end = Arc::new(OnceLock::new());
    let noted = Arc::clone(&end);
    let watched = Watched {
        signals: Some(signals),
        agent: client.process(),
    };
    let force = move |reason| {
        let _ = noted.set(reason);
        thread::sleep(GRACE);
        // It may block like the view.
        thread::spawn(ratatui::restore);
        thread::sleep(GRACE / 3);
        exit(i32::from(reason == End::Agent));
    };
    follower::watch(watched, force).context("starting a thread")?;
    Ok(end)
}

/// Queries the agent if it is due, and waits briefly for a key or a reply.
fn step(
    app: &mut App,
    sender: &Sender<ViewQuery>,
    answers: &Receiver<Answer>,
    end: &OnceLock<End>,
) -> anyhow::Result<Effect> {
    let now = Instant::now();
    if app.is_due(now, PERIOD) {
        app.queried(now);
        // The thread runs as long as the receiver exists.
        let _ = sender.send(app.query());
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

fn answer(client: &Client, queries: &Receiver<ViewQuery>, answered: &Sender<Answer>) {
    for query in queries {
        if answered.send(client.ask(&Request::View { query })).is_err() {
            return;
        }
    }
}
