//! Output formats.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Print {
    /// As a table for people.
    Table,
    /// As one JSON document.
    Json,
}

impl From<bool> for Print {
    fn from(json: bool) -> Self {
        if json { Self::Json } else { Self::Table }
    }
}

impl Print {
    /// Prints a document as JSON, or as text by `table`.
    pub(super) fn document<T: Serialize>(
        self,
        document: &T,
        table: impl FnOnce(&T),
    ) -> anyhow::Result<()> {
        match self {
            Self::Json => println!("{}", serde_json::to_string_pretty(document)?),
            Self::Table => table(document),
        }
        Ok(())
    }

    /// Writes one of several documents: a line of JSON or text.
    pub(super) fn line<T: Serialize>(
        self,
        out: &mut impl Write,
        document: &T,
        text: impl FnOnce(&T) -> String,
    ) -> io::Result<()> {
        match self {
            Self::Json => writeln!(out, "{}", serde_json::to_string(document)?),
            Self::Table => writeln!(out, "{}", text(document)),
        }
    }
}

/// The exit status after the last line. A reader that closes the pipe, such as `head`, is no error.
pub(super) fn written(result: io::Result<()>) -> anyhow::Result<ExitCode> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Appends a packet's properties to a line.
pub(super) fn append<'a>(text: &mut String, parts: impl IntoIterator<Item = &'a String>) {
    for part in parts {
        text.push_str(", ");
        text.push_str(part);
    }
}
