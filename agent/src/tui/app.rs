//! The state of the screen and the effect of keys, without a terminal, a socket or a clock.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use api::heavy_prefixes::SHARE;
use config::prefix;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::history::{Flow, History};
use crate::stats::{MOST_SOURCES, Sort, View, ViewQuery};

/// The effect of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No visible change.
    Nothing,
    /// Redraw.
    Redraw,
    /// End.
    Quit,
}

/// The input mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Typing {
    #[default]
    Commands,
    /// Input of the prefix to filter by.
    Filter {
        /// The text so far.
        text: String,
        /// Why it was rejected.
        wrong: Option<String>,
    },
    /// The help is shown; any key closes it.
    Help,
}

/// Whether the view updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Motion {
    /// Once a second.
    #[default]
    Live,
    /// It stands still.
    Paused,
}

/// The state of the view.
#[derive(Debug, Default)]
pub struct App {
    view: Option<View>,
    flows: HashMap<String, Flow>,
    history: History,
    cpu: HashMap<String, f64>,
    sort: Sort,
    within: Option<String>,
    /// The least share of a prefix; `None`: the rows are sources.
    prefixes: Option<f64>,
    typing: Typing,
    motion: Motion,
    trouble: Option<String>,
    scroll: usize,
    queried_at: Option<Instant>,
    is_waiting: bool,
    /// Set by a key that changes the query: the reply is shown even while paused.
    is_wanted: bool,
}

impl App {
    /// With the first order.
    #[must_use]
    pub fn sorted(sort: Sort) -> Self {
        Self {
            sort,
            ..Self::default()
        }
    }

    /// With prefixes that have at least this share of the packets, or with sources.
    #[must_use]
    pub fn by_prefix(self, prefixes: Option<f64>) -> Self {
        Self { prefixes, ..self }
    }

    /// The query for the agent.
    #[must_use]
    pub fn query(&self) -> ViewQuery {
        ViewQuery {
            sort: self.sort,
            within: self.within.clone(),
            most: MOST_SOURCES,
            prefixes: self.prefixes,
        }
    }

    /// Whether to query the agent now: once per `period`, and at once after a key changed the query.
    #[must_use]
    pub fn is_due(&self, now: Instant, period: Duration) -> bool {
        if self.is_waiting {
            return false;
        }
        let is_time = self
            .queried_at
            .is_none_or(|at| now.duration_since(at) >= period);
        self.is_wanted || (is_time && self.motion == Motion::Live)
    }

    /// Records a query.
    pub fn queried(&mut self, now: Instant) {
        self.queried_at = Some(now);
        self.is_waiting = true;
    }

    /// Processes a reply or an error.
    pub fn arrived(&mut self, answer: Result<View, String>) {
        self.is_waiting = false;
        match answer {
            Ok(view) => {
                self.trouble = None;
                // A reply to a query from before the pause must not change a paused view.
                if self.motion == Motion::Live || std::mem::take(&mut self.is_wanted) {
                    self.is_wanted = false;
                    self.show(view);
                }
            }
            Err(reason) => {
                self.is_wanted = false;
                self.trouble = Some(reason);
            }
        }
    }

    fn show(&mut self, view: View) {
        self.flows.clear();
        self.cpu.clear();
        if let Some(before) = &self.view {
            let seconds = view.at_seconds - before.at_seconds;
            if seconds < 0.0 {
                // The host was started again.
                self.history = History::default();
            }
            if seconds > 0.0 {
                let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
                for limit in &view.limits {
                    let name = &limit.definition.name;
                    let Some(old) = before
                        .limits
                        .iter()
                        .find(|old| old.definition.name == *name)
                    else {
                        continue;
                    };
                    let of = |count: crate::stats::Count| {
                        if limit.definition.unit == "bytes" {
                            count.bytes
                        } else {
                            count.packets
                        }
                    };
                    let flow = Flow {
                        passed: rate(of(limit.passed), of(old.passed)),
                        throttled: rate(of(limit.throttled), of(old.throttled))
                            + rate(of(limit.would_throttle), of(old.would_throttle)),
                    };
                    self.flows.insert(name.clone(), flow);
                }
                let (now, then) = (&view.status.totals, &before.status.totals);
                let all = Flow {
                    passed: rate(now.passed_packets, then.passed_packets),
                    throttled: rate(now.throttled_packets, then.throttled_packets),
                };
                self.history
                    .add(before.at_seconds, view.at_seconds, all, &self.flows);
                for group in &view.groups {
                    let Some(old) = before.groups.iter().find(|old| old.name == group.name) else {
                        continue;
                    };
                    let used = (group.cpu.usage_seconds - old.cpu.usage_seconds).max(0.0);
                    self.cpu.insert(group.name.clone(), 100.0 * used / seconds);
                }
            }
        }
        self.view = Some(view);
        self.scroll_to(self.scroll);
    }

    pub fn typed(&mut self, key: KeyEvent) -> Effect {
        if key.kind == KeyEventKind::Release {
            return Effect::Nothing;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') {
                Effect::Quit
            } else {
                Effect::Nothing
            };
        }
        match &mut self.typing {
            Typing::Commands => self.command(key.code),
            Typing::Help => {
                self.typing = Typing::Commands;
                Effect::Redraw
            }
            Typing::Filter { text, wrong } => {
                *wrong = None;
                match key.code {
                    KeyCode::Char(letter) if !letter.is_control() && text.len() < 64 => {
                        text.push(letter);
                    }
                    KeyCode::Backspace => drop(text.pop()),
                    KeyCode::Esc => self.typing = Typing::Commands,
                    KeyCode::Enter => self.take_filter(),
                    _ => {}
                }
                Effect::Redraw
            }
        }
    }

    fn command(&mut self, key: KeyCode) -> Effect {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Effect::Quit,
            KeyCode::Char('s') => self.sort_by(next(self.sort)),
            KeyCode::Char('t') => self.sort_by(Sort::ThrottledRate),
            KeyCode::Char('b') => self.sort_by(Sort::PassedRate),
            KeyCode::Char('T') => self.sort_by(Sort::Throttled),
            KeyCode::Char('B') => self.sort_by(Sort::Passed),
            KeyCode::Char('x') => {
                self.prefixes = if self.prefixes.is_some() {
                    None
                } else {
                    Some(SHARE)
                };
                self.scroll = 0;
                self.is_wanted = true;
            }
            KeyCode::Char('/' | 'f') => {
                self.typing = Typing::Filter {
                    text: self.within.clone().unwrap_or_default(),
                    wrong: None,
                };
            }
            KeyCode::Char('c') => self.filter(None),
            KeyCode::Char('p' | ' ') => {
                self.motion = match self.motion {
                    Motion::Live => Motion::Paused,
                    Motion::Paused => Motion::Live,
                };
            }
            KeyCode::Char('?' | 'h') => self.typing = Typing::Help,
            KeyCode::Down | KeyCode::Char('j') => self.scroll_to(self.scroll + 1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll_to(self.scroll.saturating_sub(1)),
            KeyCode::PageDown => self.scroll_to(self.scroll + 10),
            KeyCode::PageUp => self.scroll_to(self.scroll.saturating_sub(10)),
            KeyCode::Home => self.scroll_to(0),
            KeyCode::End => self.scroll_to(usize::MAX),
            _ => return Effect::Nothing,
        }
        Effect::Redraw
    }

    fn sort_by(&mut self, sort: Sort) {
        self.sort = sort;
        self.scroll = 0;
        self.is_wanted = true;
    }

    fn filter(&mut self, within: Option<String>) {
        self.within = within;
        self.scroll = 0;
        self.is_wanted = true;
    }

    fn take_filter(&mut self) {
        let Typing::Filter { text, wrong } = &mut self.typing else {
            return;
        };
        let typed = text.trim().to_owned();
        if !typed.is_empty()
            && let Err(why) = prefix::parse(&typed)
        {
            *wrong = Some(format!("{}: {}", why.message, why.help));
            return;
        }
        self.typing = Typing::Commands;
        self.filter((!typed.is_empty()).then_some(typed));
    }

    fn scroll_to(&mut self, line: usize) {
        let lines = self
            .view
            .as_ref()
            .map_or(0, |view| match (self.prefixes, &view.prefixes) {
                (Some(_), found) => found.as_ref().map_or(0, |found| found.prefixes.len()),
                (None, _) => view.sources.len(),
            });
        self.scroll = line.min(lines.saturating_sub(1));
    }

    /// The displayed document.
    #[must_use]
    pub fn view(&self) -> Option<&View> {
        self.view.as_ref()
    }

    /// The flow of a limit; `None` before the second document.
    #[must_use]
    pub fn flow(&self, limit: &str) -> Option<Flow> {
        self.flows.get(limit).copied()
    }

    /// The flows of the last minute.
    #[must_use]
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// A group's CPU usage in percent of one CPU; `None` before the second document.
    #[must_use]
    pub fn cpu(&self, group: &str) -> Option<f64> {
        self.cpu.get(group).copied()
    }

    /// The order of sources.
    #[must_use]
    pub const fn sort(&self) -> Sort {
        self.sort
    }

    /// Whether the rows are prefixes.
    #[must_use]
    pub const fn is_by_prefix(&self) -> bool {
        self.prefixes.is_some()
    }

    /// The prefix that filters sources.
    #[must_use]
    pub fn within(&self) -> Option<&str> {
        self.within.as_deref()
    }

    /// The input mode.
    #[must_use]
    pub const fn typing(&self) -> &Typing {
        &self.typing
    }

    /// Whether the view updates.
    #[must_use]
    pub const fn motion(&self) -> Motion {
        self.motion
    }

    /// The last error.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The index of the first visible source.
    #[must_use]
    pub const fn scroll(&self) -> usize {
        self.scroll
    }
}

fn next(sort: Sort) -> Sort {
    match sort {
        Sort::ThrottledRate => Sort::PassedRate,
        Sort::PassedRate => Sort::Throttled,
        Sort::Throttled => Sort::Passed,
        Sort::Passed => Sort::ThrottledRate,
    }
}
