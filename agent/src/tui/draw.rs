//! Draws the screen.

use api::heavy_prefixes::HeavyPrefixes;
use cgroup::GroupStatus;
use config::human;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, Wrap};

use super::app::{App, Motion, Typing};
use super::fair;
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
pub(super) const HELP: &str = "\
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
    let has_blocks = glyphs == Glyphs::Blocks;
    let minute = u16::from(has_blocks && area.height >= TALL);
    let fair = if area.height < TALL {
        Vec::new()
    } else {
        let look = fair::Look {
            width: area.width.into(),
            has_blocks,
            alarm: alarm(Some(1.0), theme),
        };
        fair::lines(&view.status.fair, usize::from(area.height) / 6, look)
    };
    let levels = fair.len() as u16;
    let room = usize::from(area.height.saturating_sub(4 + minute + levels)) / 2;
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
    let heights = [2, minute, limits as u16, levels, groups as u16].map(Constraint::Length);
    let [head, minute, limits, levels, groups, sources, foot] =
        Layout::vertical([&heights[..], &[Constraint::Min(2), Constraint::Length(1)]].concat())
            .areas(area);
    let heading = heading(app, view, theme).into_iter();
    let heading: Vec<Line<'_>> = heading.map(|line| fitted(line, head.width)).collect();
    frame.render_widget(Paragraph::new(heading), head);
    let all = fitted(last_minute(app, minute.width, theme), minute.width);
    frame.render_widget(Paragraph::new(all), minute);
    frame.render_widget(limit_table(app, view, limits, theme, glyphs), limits);
    let fair = fair.into_iter().map(|line| fitted(line, levels.width));
    frame.render_widget(Paragraph::new(fair.collect::<Vec<_>>()), levels);
    frame.render_widget(group_table(app, view, groups), groups);
    if app.is_by_prefix() {
        frame.render_widget(prefix_table(app, view, sources.width, theme), sources);
    } else {
        frame.render_widget(source_table(app, view, sources.width, theme), sources);
    }
    let (line, style) = footing(app, theme);
    frame.render_widget(Paragraph::new(fitted(line, foot.width)).style(style), foot);
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
fn last_minute<'v>(app: &App, width: u16, theme: Theme) -> Line<'v> {
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
    Line::from(vec![
        Span::raw(format!(
            "last 60 s  passed {}  throttled ",
            part(|flow| flow.passed)
        )),
        Span::styled(part(throttled), alarm(Some(all.highest(throttled)), theme)),
    ])
}

/// The columns that fit into `all`, without some in the order of `dropped`: a column is whole, or left out.
fn fitting(all: u16, widths: &[u16], dropped: &[usize]) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..widths.len()).collect();
    let needed =
        |columns: &[usize]| -> u16 { columns.iter().map(|nth| widths[*nth] + 1).sum::<u16>() - 1 };
    for drop in dropped {
        if needed(&columns) <= all {
            break;
        }
        columns.retain(|nth| nth != drop);
    }
    columns
}

/// A line without the words that do not fit as a whole.
fn fitted(line: Line<'_>, width: u16) -> Line<'_> {
    let mut left = usize::from(width);
    if line.width() <= left {
        return line;
    }
    let mut spans = Vec::new();
    for span in line.spans {
        let columns = span.width();
        if columns < left {
            left -= columns;
            spans.push(span);
            continue;
        }
        let whole: String = span
            .content
            .split_inclusive(' ')
            .scan(left, |left, word| {
                *left = left.checked_sub(Span::raw(word.trim_end()).width())?;
                *left = left.saturating_sub(word.len() - word.trim_end().len());
                Some(word)
            })
            .collect();
        spans.push(Span::styled(whole, span.style));
        break;
    }
    Line::from(spans).style(line.style)
}

/// The shape of a table.
struct Shape<'s> {
    heading: &'s [&'static str],
    widths: &'s [u16],
    /// The first column of numbers.
    numbers: usize,
    /// The columns that are left out where there is no room, the first one first.
    dropped: &'s [usize],
}

/// A table as wide as `all`.
fn table<'r>(
    all: u16,
    Shape {
        heading,
        widths,
        numbers,
        dropped,
    }: Shape<'_>,
    rows: Vec<Vec<Cell<'r>>>,
) -> Table<'r> {
    let columns = fitting(all, widths, dropped);
    let aligned = |nth: usize, text: &'static str| {
        let line = Line::from(text);
        Cell::from(if nth >= numbers {
            line.alignment(Alignment::Right)
        } else {
            line
        })
    };
    let heading = columns.iter().map(|nth| aligned(*nth, heading[*nth]));
    // The first column gets the remaining width.
    let constraints = columns.iter().map(|nth| match nth {
        0 => Constraint::Min(widths[0]),
        nth => Constraint::Length(widths[*nth]),
    });
    let constraints: Vec<Constraint> = constraints.collect();
    let rows = rows.into_iter().map(|cells| {
        let kept = cells
            .into_iter()
            .enumerate()
            .filter(|(nth, _)| columns.contains(nth))
            .map(|(_, cell)| cell);
        Row::new(kept)
    });
    Table::new(rows, constraints)
        .header(Row::new(heading).style(REVERSED))
        .column_spacing(1)
}

/// The width of a table's first column.
fn first_width(all: u16, widths: &[u16], dropped: &[usize]) -> usize {
    let others: u16 = fitting(all, widths, dropped)[1..]
        .iter()
        .map(|nth| widths[*nth] + 1)
        .sum();
    usize::from(all.saturating_sub(others).max(widths[0]))
}

fn number<'r>(text: String) -> Cell<'r> {
    Cell::from(Line::from(text).alignment(Alignment::Right))
}

const LIMIT_WIDTHS: [u16; 6] = [14, 18, 7, 9, 11, 13];
/// Load, rate, keys, passed, throttled.
const LIMIT_DROPPED: [usize; 5] = [5, 1, 2, 3, 4];
/// The limit, passed in all, passed a second, throttled in all, throttled a second.
const SOURCE_DROPPED: [usize; 5] = [1, 4, 2, 5, 3];

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
    let name = first_width(area.width, &widths, &LIMIT_DROPPED);
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
    let shape = Shape {
        heading: &heading,
        widths: &widths,
        numbers: 2,
        dropped: &LIMIT_DROPPED,
    };
    table(area.width, shape, rows)
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
    let level = || {
        let fair = view.status.fair.iter();
        let mut of_limit = fair.filter(|fair| fair.limit == definition.name);
        of_limit.next()?.level
    };
    let rate_of_key = view.allowed_per_second.get(&definition.name).copied();
    let allowed = rate_of_key
        .or_else(level)
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

fn group_table<'v>(app: &App, view: &'v View, area: Rect) -> Table<'v> {
    let rows = view
        .groups
        .iter()
        .take(usize::from(area.height).saturating_sub(1))
        .map(|group| group_row(app, group))
        .collect();
    let memory = view.groups.iter().map(|group| memory_text(group).len());
    let memory = memory.max().unwrap_or(0).max(18) as u16;
    let shape = Shape {
        heading: &[
            "GROUP",
            "PROCESSES",
            "CPU",
            "MEMORY",
            "HELD BACK",
            "PRESSURE",
        ],
        widths: &[14, 9, 13, memory, 10, 9],
        numbers: 1,
        dropped: &[5, 4, 1, 2, 3],
    };
    table(area.width, shape, rows)
}

/// What is used, and the most where there is one.
fn of(used: String, most: Option<String>) -> String {
    match most {
        Some(most) => format!("{used} of {most}"),
        None => used,
    }
}

fn memory_text(group: &GroupStatus) -> String {
    of(
        human::size(group.memory.current_bytes),
        group.memory.max_bytes.map(human::size),
    )
}

fn group_row<'v>(app: &App, group: &'v GroupStatus) -> Vec<Cell<'v>> {
    let percent = |value: f64| format!("{value:.0}%");
    let cpu = app.cpu(&group.name).map_or_else(|| "-".to_owned(), percent);
    vec![
        Cell::from(if group.frozen {
            format!("{} (frozen)", group.name)
        } else {
            group.name.clone()
        }),
        number(group.pids.len().to_string()),
        number(of(cpu, group.cpu.max_percent.map(percent))),
        number(memory_text(group)),
        number(format!("{:.1} s", group.cpu.throttled_seconds)),
        number(group.pressure.cpu.map_or_else(|| "-".to_owned(), percent)),
    ]
}

fn source_table<'v>(app: &App, view: &'v View, width: u16, theme: Theme) -> Table<'v> {
    // A wide screen has room for long names of sources and limits.
    let widths = [16, if width < 120 { 14 } else { 40 }, 9, 11, 9, 9];
    let names = [
        first_width(width, &widths, &SOURCE_DROPPED),
        usize::from(widths[1]),
    ];
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
    let shape = Shape {
        heading: &heading,
        widths: &widths,
        numbers: 2,
        dropped: &SOURCE_DROPPED,
    };
    table(width, shape, rows)
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

fn prefix_table<'v>(app: &App, view: &'v View, width: u16, theme: Theme) -> Table<'v> {
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
    let shape = Shape {
        heading: &[
            "PREFIX",
            "OWN",
            "SHARE",
            "PACKETS/s",
            "THROTTLED/s",
            "SOURCES",
        ],
        widths: &[20, 7, 7, 9, 11, 9],
        numbers: 1,
        dropped: &[5, 1, 3, 2, 4],
    };
    table(width, shape, rows.collect())
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

/// The last line, and its style.
fn footing<'v>(app: &'v App, theme: Theme) -> (Line<'v>, Style) {
    match app.typing() {
        Typing::Filter { text, wrong: None } => {
            let line = format!(
                "only sources in: {text}_   (Enter takes it, nothing means all, Esc leaves)"
            );
            (line.into(), Style::new())
        }
        Typing::Filter {
            text,
            wrong: Some(wrong),
        } => (
            format!("only sources in: {text}_   {wrong}").into(),
            theme.style(Color::Red),
        ),
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
                let text = format!("q quit  x sources  ? help   {}", sampled_text(sampled));
                return (text.into(), REVERSED);
            }
            let text = format!("q quit  s sort  / filter  p pause  ? help   by {order}: {what}");
            (text.into(), REVERSED)
        }
    }
}

fn help(frame: &mut Frame<'_>, area: Rect) {
    const WIDTH: u16 = 70;
    let lines = HELP.lines().count() as u16;
    let (width, height) = if area.width < WIDTH {
        // Lines are wrapped.
        (area.width, area.height)
    } else {
        (WIDTH, (lines + 2).min(area.height))
    };
    let middle = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    frame.render_widget(Clear, middle);
    frame.render_widget(
        Paragraph::new(HELP)
            .wrap(Wrap { trim: false })
            .block(Block::bordered().title(" keys ")),
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
