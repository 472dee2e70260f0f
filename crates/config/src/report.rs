//! The errors of a config: all at once, each with its position and a correction.
//!
//! Rendered by `codespan-reporting`: plain text with snippets, maintained, small, and it accepts the byte spans of TOML
//! parsers.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use codespan_reporting::diagnostic::{Diagnostic, Label};
use codespan_reporting::files::{Files, SimpleFile};
use codespan_reporting::term;
use serde::Serialize;

/// A range of bytes in the file.
pub type Span = Range<usize>;

/// An error or a warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub span: Span,
    pub message: String,
    /// The correction.
    pub help: String,
}

/// Why a text is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub message: String,
    /// The correction.
    pub help: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.message, self.help)
    }
}

impl Wrong {
    pub fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            help: help.into(),
        }
    }
}

/// The problems found so far.
#[derive(Debug, Default)]
pub struct Problems {
    /// Errors: the config is invalid.
    pub errors: Vec<Problem>,
    /// Warnings: settings that are probably mistakes.
    pub warnings: Vec<Problem>,
}

impl Problems {
    /// Adds an error.
    pub fn error(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.errors.push(Problem {
            span,
            message: message.into(),
            help: help.into(),
        });
    }

    /// Adds an error of a rule between keys, unless the value there is invalid by itself.
    pub fn conflict(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        if self.errors.iter().all(|problem| problem.span != span) {
            self.error(span, message, help);
        }
    }

    /// Adds a warning.
    pub fn warning(&mut self, span: Span, message: impl Into<String>, help: impl Into<String>) {
        self.warnings.push(Problem {
            span,
            message: message.into(),
            help: help.into(),
        });
    }
}

/// A problem with its line and column, both from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placed {
    pub file: PathBuf,
    pub line: usize,
    /// The column, in characters.
    pub column: usize,
    pub message: String,
    /// The correction.
    pub help: String,
}

impl fmt::Display for Placed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{}:{}:{}: {}; {}",
            self.file.display(),
            self.line,
            self.column,
            self.message,
            self.help
        )
    }
}

/// All errors of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// In the order of the file.
    pub errors: Vec<Placed>,
    text: String,
}

impl Report {
    /// Places and renders the problems.
    #[must_use]
    pub fn new(path: &Path, source: &str, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.span.start);
        let file = SimpleFile::new(path.display().to_string(), source);
        let config = term::Config::default();
        let mut text = String::new();
        for problem in &problems {
            let span = problem.span.start.min(source.len())..problem.span.end.min(source.len());
            let diagnostic = Diagnostic::error()
                .with_message(&problem.message)
                .with_label(Label::primary((), span))
                .with_note(&problem.help);
            if term::emit_to_string(&mut text, &config, &file, &diagnostic).is_err() {
                text.push_str(&problem.message);
                text.push('\n');
            }
        }
        text.truncate(text.trim_end().len());
        Self {
            errors: place(path, source, &problems),
            text,
        }
    }
}

/// Places problems without rendering them.
#[must_use]
pub fn place(path: &Path, source: &str, problems: &[Problem]) -> Vec<Placed> {
    let file = SimpleFile::new("", source);
    problems
        .iter()
        .map(|problem| {
            let location = file.location((), problem.span.start.min(source.len()));
            let (line, column) = location.map_or((1, 1), |location| {
                (location.line_number, location.column_number)
            });
            let (message, help) = (problem.message.clone(), problem.help.clone());
            Placed {
                file: path.to_owned(),
                line,
                column,
                message,
                help,
            }
        })
        .collect()
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors = self.errors.len();
        write!(
            formatter,
            "{}\n\n{errors} error{}; nothing was changed",
            self.text,
            if errors == 1 { "" } else { "s" }
        )
    }
}
