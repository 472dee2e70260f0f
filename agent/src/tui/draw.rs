//! Draws the screen.

use api::heavy_prefixes::HeavyPrefixes;
use cgroup::GroupStatus;
use config::human;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use super::app::{App, Motion, Typing};
use super::history::Flow;
use crate::stats::{LimitStatus, Sort, SourceLoad, View};

/// Whether colours are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// There is.
    Colour,
    /// Bold and reversed only.
    Plain,
}

impl Theme {
    /// Without colours if NO_COLOR is set and not empty (no-color.org).
    #[must_use]
    pub fn of_environment() -> Self {
        if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) {
            Self::Plain
        } else {
            Self::Colour
        }
    }

    fn style(self, colour: Color) -> Style {
        match self {
            Self::Colour => Style::new().fg(colour),
            Self::Plain => Style::new(),
        }
    }
}

/// Which characters the terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Block elements: sparklines are drawn.
    Blocks,
    /// No sparklines.
    Letters,
}

impl Glyphs {
    /// By the locale's character set, and the terminal: the Linux console has few block elements.
    #[must_use]
    pub fn of_environment() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(set)
            .unwrap_or_default()
            .to_ascii_lowercase();
        let is_console =
            variable("TERM").is_some_and(|terminal| matches!(terminal.as_str(), "linux" | "dumb"));
        let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
        if is_utf8 && !is_console {
            Self::Blocks
        } else {
            Self::Letters
        }
    }
}

/// The least height of a screen with a line of sparklines.
const TALL: u16 = 16;
/// The least width of a screen with sparklines of each limit.
const WIDE: u16 = 130;
/// The columns for the name of an attacked limit.
const LONGEST_ATTACKED: usize = 24;
const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);
const HELP: &str = "\
 t  throttled now first      T  throttled in all first
 b  busiest now first        B  busiest in all first
 s  the next order           arrows, PgUp, PgDn, Home, End  scroll
 /  only sources in a prefix (10.0.0.0/8, 2001:db8::1)   c  all
 p  pause and go on          q, Esc, Ctrl-C  quit
 x  prefixes from which many packets come, and sources again

 Of a limit, LOAD is what passes of what its keys are allowed.
 A source is known once it was refused, or has passed 64 packets.";

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, app: &App, theme: Theme, glyphs: Glyphs) {
    let area = frame.area();
    let Some(view) = app.view() else { return };
    // Sources get the remaining lines, at least half.
    let minute = u16::from(glyphs == Glyphs::Blocks && area.height >= TALL);
    let room = usize::from(area.height.saturating_sub(4 + minute)) / 2;
    let groups = if view.groups.is_empty() {
        0
    } else {
        1 + view.groups.len().min(room / 3)
    };
    let limits = if view.limits.is_empty() {
        0
    } else {
        1 + view.limits.len().min(room.saturating_sub(groups + 1))
    };
    let heights = [2, minute, limits as u16, groups as u16].map(Constraint::Length);
    let [head, minute, limits, groups, sources, foot] =
        Layout::vertical([&heights[..], &[Constraint::Min(2), Constraint::Length(1)]].concat())
            .areas(area);
    frame.render_widget(Paragraph::new(heading(app, view, theme)), head);
    frame.render_widget(last_minute(app, minute.width, theme), minute);
    frame.render_widget(limit_table(app, view, limits, theme, glyphs), limits);
    frame.render_widget(group_table(app, view, usize::from(groups.height)), groups);
    if app.is_by_prefix() {
        frame.render_widget(prefix_table(app, view, theme), sources);
    } else {
        frame.render_widget(source_table(app, view, sources.width, theme), sources);
    }
    frame.render_widget(footing(app, theme), foot);
    if *app.typing() == Typing::Help {
        help(frame, area);
    }
}

fn heading<'v>(app: &'v App, view: &'v View, theme: Theme) -> Text<'v> {
    let status = &view.status;
    let shown = status
        .interfaces
        .iter()
        .filter(|on| on.enforced_by.is_empty());
    let interfaces: Vec<String> = shown.map(ToString::to_string).collect();
    let uptime = human::time(std::time::Duration::from_secs(status.uptime_seconds));
    let mut first = vec![
        Span::styled("weir", BOLD),
        format!("  {}  {}  up {uptime}", status.mode, interfaces.join(", ")).into(),
    ];
    if app.motion() == Motion::Paused {
        first.insert(
            1,
            Span::styled("  PAUSED", theme.style(Color::Yellow).patch(BOLD)),
        );
    }
    if let Some(attack) = status.attacks.first() {
        let others = status.attacks.len() - 1;
        let more = if others > 0 {
            format!(" and {others} more")
        } else {
            String::new()
        };
        let limit = human::cut(&human::printable(&attack.limit), LONGEST_ATTACKED);
        let text = format!("  ATTACK on {limit}{more}");
        first.insert(1, Span::styled(text, theme.style(Color::Red).patch(BOLD)));
    }
    let second = match app.trouble() {
        Some(trouble) => Line::styled(
            format!("NO ANSWER, trying on: {trouble}"),
            theme.style(Color::Red).patch(REVERSED),
        ),
        None => {
            let (sources, totals) = (&status.sources, &status.totals);
            Line::from(format!(
                "passed {}  throttled {}  sources {} of {}  evicted {}  bans {}",
                compact(totals.passed_packets as f64),
                compact(totals.throttled_packets as f64),
                compact(sources.tracked as f64),
                compact(sources.capacity as f64),
                compact(sources.evicted as f64),
                compact(status.bans as f64),
            ))
        }
    };
    Text::from(vec![Line::from(first), second])
}

/// Sparklines of all packets, each with the highest rate of the minute.
fn last_minute<'v>(app: &App, width: u16, theme: Theme) -> Paragraph<'v> {
    // The rest of the line, for both.
    const TEXTS: usize = "last 60 s  passed  <100000/s  throttled  <100000/s".len();
    let cells = (usize::from(width).saturating_sub(TEXTS) / 2).min(60);
    let all = app.history().all();
    let part = |of: fn(&Flow) -> f64| {
        let highest = all.highest(of);
        format!(
            "{} {:<8}",
            all.sparkline(cells, highest, of),
            format!("≤{}/s", compact(highest))
        )
    };
    let throttled: fn(&Flow) -> f64 = |flow| flow.throttled;
    Paragraph::new(Line::from(vec![
        Span::raw(format!(
            "last 60 s  passed {}  throttled ",
            part(|flow| flow.passed)
        )),
        Span::styled(part(throttled), alarm(Some(all.highest(throttled)), theme)),
    ]))
}

/// A table whose columns from `numbers` on are numbers.
fn table<'r>(
    heading: &[&'static str],
    widths: &[u16],
    numbers: usize,
    rows: Vec<Vec<Cell<'r>>>,
) -> Table<'r> {
    let aligned = |nth: usize, text: &'static str| {
        let line = Line::from(text);
        Cell::from(if nth >= numbers {
            line.alignment(Alignment::Right)
        } else {
            line
        })
    };
    let heading = heading
        .iter()
        .enumerate()
        .map(|(nth, text)| aligned(nth, text));
    // The first column gets the remaining width.
    let first = std::iter::once(Constraint::Min(widths[0]));
    let widths = first.chain(widths[1..].iter().map(|width| Constraint::Length(*width)));
    Table::new(rows.into_iter().map(Row::new), widths)
        .header(Row::new(heading).style(REVERSED))
        .column_spacing(1)
}

/// The width of a table's first column.
fn first_width(all: u16, widths: &[u16]) -> usize {
    let others: u16 = widths[1..].iter().map(|width| width + 1).sum();
    usize::from(all.saturating_sub(others).max(widths[0]))
}

fn number<'r>(text: String) -> Cell<'r> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

const LIMIT_WIDTHS: [u16; 6] = [14, 18, 7, 9, 11, 13];

fn limit_table<'v>(
    app: &App,
    view: &'v View,
    area: Rect,
    theme: Theme,
    glyphs: Glyphs,
) -> Table<'v> {
    let shown = usize::from(area.height).saturating_sub(1);
    let mut widths = LIMIT_WIDTHS.to_vec();
    let mut heading = vec!["LIMIT", "RATE", "KEYS", "PASSED/s", "THROTTLED/s", "LOAD"];
    // Sparklines of a limit leave room for its name.
    let cells = if glyphs == Glyphs::Blocks && area.width >= WIDE {
        ((area.width - 100) / 2).min(30)
    } else {
        0
    };
    if cells > 0 {
        widths.extend([cells; 2]);
        heading.extend(["PASSED, 60 s", "THROTTLED, 60 s"]);
    }
    let name = first_width(area.width, &widths);
    let hidden = view.limits.len().saturating_sub(shown);
    let mut rows: Vec<Vec<Cell<'v>>> = view
        .limits
        .iter()
        .map(|limit| limit_row(app, view, limit, (name, cells), theme))
        .collect();
    if hidden > 0 && shown > 0 {
        // Limits with the most refusals come first.
        let mut order: Vec<usize> = (0..rows.len()).collect();
        let refused = |nth: &usize| {
            app.flow(&view.limits[*nth].definition.name)
                .unwrap_or_default()
                .throttled
        };
        order.sort_by(|a, b| refused(b).total_cmp(&refused(a)));
        order.truncate(shown - 1);
        rows = order
            .into_iter()
            .map(|nth| limit_row(app, view, &view.limits[nth], (name, cells), theme))
            .collect();
        rows.push(vec![Cell::from(format!("and {} more", hidden + 1))]);
    }
    table(&heading, &widths, 2, rows)
}

/// A row with `name` columns for the name, and `cells` for each sparkline.
fn limit_row<'v>(
    app: &App,
    view: &View,
    limit: &'v LimitStatus,
    (name, cells): (usize, u16),
    theme: Theme,
) -> Vec<Cell<'v>> {
    let definition = &limit.definition;
    let flow = app.flow(&definition.name);
    let throttled = flow.map(|flow| flow.throttled);
    let allowed = view
        .allowed_per_second
        .get(&definition.name)
        .map(|rate| rate * limit.keys.max(1) as f64);
    let load = flow
        .zip(allowed)
        .filter(|(_, allowed)| *allowed > 0.0)
        .map(|(flow, allowed)| flow.passed / allowed);
    let mut row = vec![
        Cell::from(human::cut(&definition.name, name)),
        Cell::from(format!("{} {}", definition.rate, definition.unit)),
        number(compact(limit.keys as f64)),
        number(rate(flow.map(|flow| flow.passed))),
        number(rate(throttled)).style(alarm(throttled, theme)),
        number(load.map_or_else(|| "-".to_owned(), bar)),
    ];
    if let Some(flows) = app.history().limit(&definition.name).filter(|_| cells > 0) {
        let [passed, throttled]: [fn(&Flow) -> f64; 2] =
            [|flow| flow.passed, |flow| flow.throttled];
        // One scale, so that both can be compared.
        let highest = flows.highest(passed).max(flows.highest(throttled));
        let spark = |of| number(flows.sparkline(cells.into(), highest, of));
        row.extend([
            spark(passed),
            spark(throttled).style(alarm(Some(flows.highest(throttled)), theme)),
        ]);
    }
    row
}

fn group_table<'v>(app: &App, view: &'v View, height: usize) -> Table<'v> {
    let rows = view
        .groups
        .iter()
        .take(height.saturating_sub(1))
        .map(|group| group_row(app, group))
        .collect();
    table(
        &[
            "GROUP",
            "PROCESSES",
            "CPU",
            "MEMORY",
            "HELD BACK",
            "PRESSURE",
        ],
        &[14, 9, 13, 18, 10, 9],
        1,
        rows,
    )
}

fn group_row<'v>(app: &App, group: &'v GroupStatus) -> Vec<Cell<'v>> {
    let percent = |value: f64| format!("{value:.0}%");
    let cpu = app.cpu(&group.name).map_or_else(|| "-".to_owned(), percent);
    let of = |used: String, most: Option<String>| {
        most.map_or_else(|| used.clone(), |most| format!("{used} of {most}"))
    };
    vec![
        Cell::from(if group.frozen {
            format!("{} (frozen)", group.name)
        } else {
            group.name.clone()
        }),
        number(group.pids.len().to_string()),
        number(of(cpu, group.cpu.max_percent.map(percent))),
        number(of(
            human::size(group.memory.current_bytes),
            group.memory.max_bytes.map(human::size),
        )),
        number(format!("{:.1} s", group.cpu.throttled_seconds)),
        number(group.pressure.cpu.map_or_else(|| "-".to_owned(), percent)),
    ]
}

fn source_table<'v>(app: &App, view: &'v View, width: u16, theme: Theme) -> Table<'v> {
    // A wide screen has room for long names of sources and limits.
    let widths = [16, if width < 120 { 14 } else { 40 }, 9, 11, 9, 9];
    let names = [first_width(width, &widths), usize::from(widths[1])];
    let is_observing = view.status.mode == "observe";
    let rows = view
        .sources
        .iter()
        .skip(app.scroll())
        .map(|source| source_row(source, names, theme))
        .collect();
    let heading = if is_observing {
        [
            "SOURCE",
            "LIMIT",
            "PASSED/s",
            "WOULD THR/s",
            "PASSED",
            "WOULD THR",
        ]
    } else {
        [
            "SOURCE",
            "LIMIT",
            "PASSED/s",
            "THROTTLED/s",
            "PASSED",
            "THROTTLED",
        ]
    };
    table(&heading, &widths, 2, rows)
}

fn source_row<'v>(source: &'v SourceLoad, names: [usize; 2], theme: Theme) -> Vec<Cell<'v>> {
    let row = &source.row;
    let throttled = row.throttled_packets + source.row.would_throttle_packets;
    vec![
        Cell::from(human::cut(&row.source_text(), names[0])),
        Cell::from(human::cut(&row.limit_text(), names[1])),
        number(rate(source.passed_per_second)),
        number(rate(source.throttled_per_second)).style(alarm(source.throttled_per_second, theme)),
        number(format!(
            "{}{}",
            row.passed_precision.mark(),
            compact(row.passed_packets as f64)
        )),
        number(compact(throttled as f64)),
    ]
}

fn prefix_table<'v>(app: &App, view: &'v View, theme: Theme) -> Table<'v> {
    let rows = view
        .prefixes
        .iter()
        .flat_map(|found| &found.prefixes)
        .skip(app.scroll());
    let rows = rows.map(|found| {
        vec![
            Cell::from(found.prefix.as_str()),
            number(percent(found.own_share)),
            number(percent(found.share)),
            number(compact(found.packets_per_second)),
            number(compact(found.throttled_per_second))
                .style(alarm(Some(found.throttled_per_second), theme)),
            number(format!(">={}", compact(found.sources as f64))),
        ]
    });
    table(
        &[
            "PREFIX",
            "OWN",
            "SHARE",
            "PACKETS/s",
            "THROTTLED/s",
            "SOURCES",
        ],
        &[20, 7, 7, 9, 11, 9],
        1,
        rows.collect(),
    )
}

/// What rows of prefixes are based on.
fn sampled_text(found: &HeavyPrefixes) -> String {
    let of = if found.one_in > 1 {
        format!(", 1 in {}", compact(found.one_in.into()))
    } else {
        String::new()
    };
    format!(
        "{} packets of {:.0} s{of}; {} elsewhere",
        compact(found.samples as f64),
        found.seconds,
        percent(found.elsewhere)
    )
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

fn footing<'v>(app: &'v App, theme: Theme) -> Paragraph<'v> {
    match app.typing() {
        Typing::Filter { text, wrong: None } => Paragraph::new(format!(
            "only sources in: {text}_   (Enter takes it, nothing means all, Esc leaves)"
        )),
        Typing::Filter {
            text,
            wrong: Some(wrong),
        } => Paragraph::new(format!("only sources in: {text}_   {wrong}"))
            .style(theme.style(Color::Red)),
        Typing::Commands | Typing::Help => {
            let order = match app.sort() {
                Sort::ThrottledRate => "throttled/s",
                Sort::PassedRate => "passed/s",
                Sort::Throttled => "throttled",
                Sort::Passed => "passed",
            };
            let matching = app.view().map_or(0, |view| view.matching);
            let matching = compact(matching as f64);
            let what = match app.within() {
                Some(within) => format!("{matching} in {within}"),
                None => format!("{matching} sources"),
            };
            if let Some(sampled) = app
                .view()
                .and_then(|view| view.prefixes.as_ref())
                .filter(|_| app.is_by_prefix())
            {
                return Paragraph::new(format!(
                    "q quit  x sources  ? help   {}",
                    sampled_text(sampled)
                ))
                .style(REVERSED);
            }
            Paragraph::new(format!(
                "q quit  s sort  / filter  p pause  ? help   by {order}: {what}"
            ))
            .style(REVERSED)
        }
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    let lines = HELP.lines().count() as u16;
    let (width, height) = (70.min(area.width), (lines + 2).min(area.height));
    let middle = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, middle);
    frame.render_widget(
        Paragraph::new(HELP).block(Block::bordered().title(" keys ")),
        middle,
    );
}

/// The style for current refusals.
fn alarm(throttled: Option<f64>, theme: Theme) -> Style {
    if throttled.is_some_and(|rate| rate > 0.0) {
        theme.style(Color::Red).patch(BOLD)
    } else {
        Style::new()
    }
}

fn rate(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), compact)
}

/// A number in about five characters.
fn compact(value: f64) -> String {
    match value {
        value if value < 0.05 => "0".to_owned(),
        value if value < 9.95 && value.fract() > 0.0 => format!("{value:.1}"),
        value if value < 99_999.5 => format!("{value:.0}"),
        value if value < 999_950.0 => format!("{:.0}k", value / 1e3),
        value if value < 999_950_000.0 => format!("{:.1}M", value / 1e6),
        value => format!("{:.1}G", value / 1e9),
    }
}

/// A share as a bar and a number; above 100 % if classes are allowed more.
fn bar(share: f64) -> String {
    const CELLS: usize = 8;
    let filled = ((share * CELLS as f64).round() as usize).min(CELLS);
    format!(
        "{}{} {:>3.0}%",
        "#".repeat(filled),
        ".".repeat(CELLS - filled),
        (share * 100.0).min(999.0)
    )
}
