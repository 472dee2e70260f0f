//! limits.toml(5), from the reference of the keys.

use std::io;

use clap_mangen::roff::{Inline, Roff, bold, roman};
use config::reference::TABLES;
use config::schema::{Key, inner_keys};
use host::PROGRAM;

use crate::cli::as_called::as_called;

const DESCRIPTION: [&str; 2] = [
    "Weir enforces the limits in /etc/weir/limits.toml, or in the file that --config names. It is TOML. Every size, rate \
     and time has a unit; an unknown key is an error that names the nearest known key. `weir check` validates a file \
     and prints what it would enforce; `weir schema` prints a JSON Schema for editors.",
    "Sizes are in powers of 1000 (`kB`, `MB`, `GB`, `TB`) or of 1024 (`KiB`, `MiB`, `GiB`, `TiB`). Times are in `ms`, `s`, \
     `min`, `h`, `day`, `week` or `month` (30 days).",
];

/// The page, in roff.
///
/// # Errors
///
/// When it cannot be written.
pub fn page() -> io::Result<Vec<u8>> {
    let mut roff = Roff::new();
    roff.control("TH", ["LIMITS.TOML", "5", "", "Weir", "Weir"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman("limits.toml - limits that Weir enforces on a host")]);
    roff.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        roff.control("PP", []);
        roff.text(inline(paragraph));
    }
    for table in TABLES {
        let variant = table
            .variant
            .map(|variant| format!(" with {}", variant.condition))
            .unwrap_or_default();
        roff.control("SH", [format!("{}{variant}", table.heading).as_str()]);
        roff.text(inline(table.summary));
        for key in table.keys {
            entry(&mut roff, key);
        }
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.control("nf", []);
        for line in table.example.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        roff.control("RE", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold(PROGRAM.name()), roman("(1)")]);
    let mut page = Vec::new();
    roff.to_writer(&mut page)?;
    Ok(page)
}

/// A key, followed by the keys of its table, indented.
fn entry(roff: &mut Roff, key: &Key) {
    roff.control("TP", []);
    roff.text([bold(key.name)]);
    roff.text(inline(key.text));
    roff.control("br", []);
    let change = if key.needs_restart {
        " A change requires a restart."
    } else {
        ""
    };
    roff.text(inline(&format!(
        "Type: {}. Default: {}.{change}",
        key.type_in_words(),
        key.default.description()
    )));
    let inner = inner_keys(&key.kind);
    if !inner.is_empty() {
        roff.control("RS", []);
        inner.iter().for_each(|key| entry(roff, key));
        roff.control("RE", []);
    }
}

/// Text in backticks becomes bold.
fn inline(text: &str) -> Vec<Inline> {
    as_called(text)
        .split('`')
        .enumerate()
        .map(|(nth, part)| {
            if nth % 2 == 1 {
                bold(part)
            } else {
                roman(part)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_key_of_every_table() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        for table in TABLES {
            let keys = table
                .keys
                .iter()
                .flat_map(|key| std::iter::once(key).chain(inner_keys(&key.kind)));
            for key in keys {
                assert!(
                    page.contains(&format!("\\fB{}\\fR", key.name)),
                    "{} {}",
                    table.heading,
                    key.name
                );
            }
        }
        assert!(!page.contains('`'));
    }
}
