//! Lines of fair limits: level and cause, level over time, and the sources above it.

use std::time::Duration;

use api::fair::{FairSource, FairStatus, cause};
use config::human;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

use super::levels::{bounds_text, sparkline, whole};

/// The columns for a limit's name.
const LONGEST_NAME: usize = 24;
/// The columns of a level over time: at most, and at least.
const CELLS: [usize; 2] = [60, 8];

/// How lines are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub width: usize,
    /// Whether there are block elements, for the level over time.
    pub has_blocks: bool,
    /// Of names of limits with a level.
    pub alarm: Style,
}

/// At most `most` lines: two of each limit with a level, and one of those that had one in the last minutes. The last one
/// counts limits for which there is no room.
#[must_use]
pub fn lines(limits: &[FairStatus], most: usize, look: Look) -> Vec<Line<'static>> {
    let limiting = limits.iter().filter(|fair| fair.level.is_some());
    let ended = limits
        .iter()
        .filter(|fair| fair.level.is_none() && fair.history.bounds().is_some());
    let blocks: Vec<Vec<Line<'static>>> = limiting
        .chain(ended)
        .map(|fair| {
            let first = level_line(fair, look);
            std::iter::once(first).chain(sources_line(fair)).collect()
        })
        .collect();
    let needed: usize = blocks.iter().map(Vec::len).sum();
    if needed <= most {
        return blocks.into_iter().flatten().collect();
    }
    let mut lines = Vec::new();
    let mut left = blocks.len();
    for block in blocks {
        if lines.len() + block.len() >= most {
            break;
        }
        lines.extend(block);
        left -= 1;
    }
    let limits = if left == 1 { "limit" } else { "limits" };
    lines.push(Line::from(format!("and {left} more fair {limits}")));
    lines
}

/// The level, its cause, and the level of the last minutes as far as there is room.
fn level_line(fair: &FairStatus, look: Look) -> Line<'static> {
    let name = human::cut(&human::printable(&fair.limit), LONGEST_NAME);
    let style = fair.level.map_or_else(Style::new, |_| look.alarm);
    let now = match fair.level {
        Some(level) => {
            let lasts = lasts(fair).map_or_else(String::new, |time| format!(" for {time}"));
            let held_by = cause(fair.held_by.as_deref());
            format!("  level {}/s{lasts}: {held_by}", whole(level))
        }
        None => "  no level now".to_owned(),
    };
    let steps = fair.history.level.len();
    let seconds = steps as u64 * fair.history.step_seconds;
    let bounds = bounds_text(&fair.history).unwrap_or_default();
    let over_time = format!(" {}, {bounds}", human::time(Duration::from_secs(seconds)));
    let used = human::columns(&name) + human::columns(&now) + human::columns(&over_time) + 2;
    let cells = look.width.saturating_sub(used).min(CELLS[0]).min(steps);
    let mut spans = vec![Span::styled(name, style), Span::raw(now)];
    if look.has_blocks && cells >= CELLS[1] {
        let shown = sparkline(&fair.history, cells);
        spans.push(Span::raw(format!("  {shown}{over_time}")));
    }
    Line::from(spans)
}

/// How long the overload lasts.
fn lasts(fair: &FairStatus) -> Option<String> {
    let seconds = fair.history.ended? - fair.since?;
    let seconds = Duration::try_from_secs_f64(seconds.round()).ok()?;
    (!seconds.is_zero()).then(|| human::time(seconds))
}

/// The sources above the level.
fn sources_line(fair: &FairStatus) -> Option<Line<'static>> {
    fair.level?;
    let of = |source: &FairSource| format!("{} {}/s", source.source, whole(source.refused));
    let named: Vec<String> = fair.heaviest.iter().map(of).collect();
    let most = if named.is_empty() {
        String::new()
    } else {
        format!("; most refused: {}", named.join(", "))
    };
    Some(Line::from(format!(
        "  at least {} of {} sampled sources above it{most}",
        human::number(fair.sources_above),
        human::number(fair.sources)
    )))
}
