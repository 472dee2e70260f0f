//! A recording of a terminal as an animated SVG: each frame is shown from its instant to that of the next one.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

/// The columns of the terminal; longer lines are wrapped.
pub const COLUMNS: usize = 100;
/// The size of a character, in pixels.
const WIDTH: f64 = 7.8;
const LINE: f64 = 18.0;
const MARGIN: f64 = 16.0;
/// The height of the bar above the first line.
const BAR: f64 = 28.0;
/// The time of the last frame.
const END: Duration = Duration::from_secs(8);

const STYLE: &str = "\
text { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace; font-size: 13px; \
fill: #d7dde4; white-space: pre }
.typed { fill: #8fd18f }
.frame { visibility: hidden }
.last { visibility: visible }
@media (prefers-reduced-motion: reduce) { .frame { animation: none !important } }
";

/// Frames of a run, in the order of their instants.
pub struct Recording {
    start: Instant,
    frames: Vec<(Duration, Vec<String>)>,
}

impl Recording {
    /// Without frames; time is counted from now on.
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
            frames: Vec::new(),
        }
    }

    /// Adds what the terminal shows now.
    pub fn add(&mut self, lines: &[String]) {
        let wrapped = lines.iter().flat_map(|line| wrapped(line)).collect();
        self.frames.push((self.start.elapsed(), wrapped));
    }

    /// Writes the SVG.
    pub fn write(&self, path: &Path, title: &str) -> Result<()> {
        fs::write(path, self.svg(title)).with_context(|| format!("writing {}", path.display()))
    }

    fn svg(&self, title: &str) -> String {
        let rows = self.frames.iter().map(|(_, lines)| lines.len()).max();
        let width = COLUMNS as f64 * WIDTH + 2.0 * MARGIN;
        let height = rows.unwrap_or(1) as f64 * LINE + BAR + 2.0 * MARGIN;
        let first = self.frames.first().map_or(Duration::ZERO, |(at, _)| *at);
        let length = self.frames.last().map_or(Duration::ZERO, |(at, _)| *at) + END - first;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-labelledby=\"title\">\n<title id=\"title\">{}</title>\n<style>\n{STYLE}",
            escaped(title)
        );
        let percent = |at: Duration| 100.0 * (at - first).as_secs_f64() / length.as_secs_f64();
        for (nth, (at, _)) in self.frames.iter().enumerate() {
            let from = percent(*at);
            let to = self
                .frames
                .get(nth + 1)
                .map_or(100.0, |(at, _)| percent(*at));
            // A hidden frame between two steps would flicker: each step ends where the next one begins.
            let before = if nth == 0 {
                ""
            } else {
                "0% { visibility: hidden } "
            };
            let after = if to < 100.0 {
                format!(" {to:.2}% {{ visibility: hidden }}")
            } else {
                String::new()
            };
            let _ = writeln!(
                svg,
                "@keyframes frame{nth} {{ {before}{from:.2}% {{ visibility: visible }}{after} 100% {{ visibility: {} }} }}\n\
                 .frame{nth} {{ animation: frame{nth} {:.1}s step-end infinite }}",
                if to < 100.0 { "hidden" } else { "visible" },
                length.as_secs_f64()
            );
        }
        let _ = write!(
            svg,
            "</style>\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#161b22\"/>\n\
             <circle cx=\"20\" cy=\"16\" r=\"5\" fill=\"#e0655c\"/><circle cx=\"38\" cy=\"16\" r=\"5\" fill=\"#dfb14f\"/>\
             <circle cx=\"56\" cy=\"16\" r=\"5\" fill=\"#63b35f\"/>\n"
        );
        for (nth, (_, lines)) in self.frames.iter().enumerate() {
            let last = if nth + 1 == self.frames.len() {
                " last"
            } else {
                ""
            };
            let _ = writeln!(svg, "<g class=\"frame frame{nth}{last}\">");
            for (row, line) in lines.iter().enumerate() {
                svg.push_str(&text_of(line, BAR + MARGIN + (row as f64 + 0.7) * LINE));
            }
            svg.push_str("</g>\n");
        }
        svg.push_str("</svg>\n");
        svg
    }
}

/// A line of text at a height; nothing for an empty one.
fn text_of(line: &str, y: f64) -> String {
    let trimmed = line.trim_start();
    if trimmed.is_empty() {
        return String::new();
    }
    let count = |text: &str| text.chars().count() as f64;
    let x = MARGIN + (count(line) - count(trimmed)) * WIDTH;
    let class = if trimmed.starts_with("$ ") {
        " class=\"typed\""
    } else {
        ""
    };
    // Columns are in line whatever font the reader has.
    format!(
        "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{:.1}\" lengthAdjust=\"spacingAndGlyphs\">{}</text>\n",
        count(trimmed) * WIDTH,
        escaped(trimmed)
    )
}

fn wrapped(line: &str) -> Vec<String> {
    let letters: Vec<char> = line.trim_end().chars().collect();
    if letters.is_empty() {
        return vec![String::new()];
    }
    letters
        .chunks(COLUMNS)
        .map(|part| part.iter().collect())
        .collect()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(frames: &[(u64, &[&str])]) -> String {
        let mut recording = Recording::start();
        for (seconds, lines) in frames {
            let lines = lines.iter().flat_map(|line| wrapped(line)).collect();
            recording
                .frames
                .push((Duration::from_secs(*seconds), lines));
        }
        recording.svg("a <run>")
    }

    #[test]
    fn each_frame_is_shown_until_the_next_one() {
        let svg = recorded(&[
            (1, &["$ weir limits"]),
            (3, &["$ weir limits", "<=20 & more"]),
        ]);
        assert!(
            svg.contains("<title id=\"title\">a &lt;run&gt;</title>"),
            "{svg}"
        );
        assert!(
            svg.contains("frame0 { 0.00% { visibility: visible } 20.00% { visibility: hidden }")
        );
        assert!(
            svg.contains("frame1 { 0% { visibility: hidden } 20.00% { visibility: visible } 100%")
        );
        assert!(
            svg.contains("frame1 10.0s step-end") && svg.contains(">&lt;=20 &amp; more</text>")
        );
        assert_eq!(svg.matches("class=\"typed\"").count(), 2);
        assert!(svg.contains("class=\"frame frame1 last\""));
    }

    #[test]
    fn long_lines_are_wrapped_and_spaces_kept_by_place() {
        let line = "x".repeat(COLUMNS + 3);
        let svg = recorded(&[(0, &[line.as_str(), "  b"])]);
        assert!(
            svg.contains(">xxx</text>") && svg.contains("x=\"31.6\""),
            "{svg}"
        );
    }
}
