//! Tables for people. Drawn by `tabled`: it knows the width of what is not ASCII, and is kept.

use std::time::Duration;

use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Alignment, Style};

use crate::human;
pub use crate::human::number;

/// A table with a heading; the columns from `numbers` on are numbers, and aligned to the right.
pub fn render<const N: usize>(
    heading: [&str; N],
    numbers: usize,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut builder = Builder::default();
    builder.push_record(heading);
    for row in rows {
        builder.push_record(row);
    }
    let mut table = builder.build();
    table.with(Style::blank());
    if numbers < N {
        table.modify(Columns::new(numbers..), Alignment::right());
    }
    table.to_string().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Two columns: what it is, and its value.
pub fn pairs<const N: usize>(rows: [(&str, String); N]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, value)| format!("{name:width$}  {value}")).collect::<Vec<_>>().join("\n")
}

/// Seconds as a person reads them.
pub fn seconds(value: f64) -> String {
    match value {
        value if value <= 0.0 => "-".to_owned(),
        value if value < 1.0 => format!("{:.0} ms", value * 1e3),
        value if value < 120.0 => format!("{value:.1} s"),
        value => human::time(Duration::from_secs(value as u64)),
    }
}
