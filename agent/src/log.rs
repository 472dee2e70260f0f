//! The agent's log: lines on standard error, each with its level.
//!
//! As text, if standard error is the journal, each line starts with systemd's `<N>` (sd-daemon(3)), so that `journalctl
//! -p` and colours work. Otherwise errors and warnings start with their level. As JSON, each event is one line.
//!
//! A message is a complete sentence. Fields repeat its values for programs, so text includes them only at level debug.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::SystemTime;

use clap::ValueEnum;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The least important level that is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Events that need attention, such as attacks.
    Warn,
    /// Changes: start, stop, reloads, trials, bans, interfaces.
    #[default]
    Info,
    /// Details, and messages of libraries.
    Debug,
}

/// The format of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line: `level`, `time`, `target`, `message`, `fields`.
    Json,
}

impl From<LogLevel> for Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
        }
    }
}

/// Starts to write lines of this and more important levels. Once per process.
pub fn start(level: LogLevel, format: LogFormat) {
    let form = match format {
        LogFormat::Json => Form::Json,
        LogFormat::Text if is_journal() => Form::Journal,
        LogFormat::Text => Form::Plain,
    };
    let lines = tracing_subscriber::fmt()
        .with_max_level(Level::from(level))
        .with_writer(std::io::stderr);
    // A second call has no effect.
    if lines.with_ansi(false).event_format(form).try_init().is_ok() {
        std::panic::set_hook(Box::new(|panic| {
            tracing::error!("{}", panicked(panic, &Backtrace::capture()));
        }));
    }
}

/// The report of a panic, which the default hook would print outside of the log.
fn panicked(panic: &dyn fmt::Display, backtrace: &Backtrace) -> String {
    let thread = thread::current();
    let text = format!(
        "thread {} {panic}; report it as a bug",
        thread.name().unwrap_or("without a name")
    );
    if backtrace.status() == BacktraceStatus::Captured {
        format!("{text}\n{backtrace}")
    } else {
        text
    }
}

/// Reports the error that ends the process: in the log, if it has been started.
#[expect(clippy::print_stderr, reason = "verbs have no log")]
pub fn fatal(error: &str) {
    if tracing::dispatcher::has_been_set() {
        tracing::error!("{error}");
    } else {
        eprintln!("error: {error}");
    }
}

/// Whether standard error is the journal, by the device and inode in systemd's JOURNAL_STREAM.
fn is_journal() -> bool {
    let Ok(named) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let Ok(file) = std::fs::metadata("/proc/self/fd/2") else {
        return false;
    };
    named == format!("{}:{}", file.dev(), file.ino())
}

/// The message and fields of an event.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

impl Fields {
    fn add(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(message)) => self.message = message,
            (name, value) => drop(self.others.insert(name.to_owned(), value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }
}

impl Fields {
    /// An event as text.
    fn text(self, level: Level) -> String {
        let mut text = self.message;
        if level >= Level::DEBUG {
            for (name, value) in &self.others {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                let _ = write!(text, " {name}={value}");
            }
        }
        text
    }
}

/// An event as JSON, with its line end.
fn object(
    level: Level,
    target: &str,
    time: SystemTime,
    Fields { message, others }: Fields,
) -> String {
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG | Level::TRACE => "debug",
    };
    let time = humantime::format_rfc3339_millis(time).to_string();
    let object = serde_json::json!({"level": level, "time": time, "target": target, "message": message, "fields": others});
    format!("{object}\n")
}

/// How a line shows its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Journal,
    Plain,
    Json,
}

impl Form {
    /// The lines of an event.
    fn lines(self, level: Level, text: &str) -> String {
        let mut lines = String::new();
        let word = match level {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "",
            Level::DEBUG | Level::TRACE => "debug",
        };
        // Reports of a config's errors have their own prefix.
        if self == Self::Plain && !word.is_empty() && !text.starts_with(word) {
            let _ = write!(lines, "{word}: ");
        }
        for line in text.lines() {
            if self == Self::Journal {
                let priority = match level {
                    Level::ERROR => 3,
                    Level::WARN => 4,
                    Level::INFO => 6,
                    Level::DEBUG | Level::TRACE => 7,
                };
                let _ = write!(lines, "<{priority}>");
            }
            lines.push_str(line);
            lines.push('\n');
        }
        lines
    }
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let mut fields = Fields::default();
        event.record(&mut fields);
        match self {
            Self::Json => writer.write_str(&object(level, target, SystemTime::now(), fields)),
            Self::Journal | Self::Plain => {
                writer.write_str(&self.lines(level, &fields.text(level)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_journal_has_its_priority() {
        for (level, priority) in [
            (Level::ERROR, 3),
            (Level::WARN, 4),
            (Level::INFO, 6),
            (Level::DEBUG, 7),
        ] {
            assert_eq!(
                Form::Journal.lines(level, "one\ntwo"),
                format!("<{priority}>one\n<{priority}>two\n")
            );
        }
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let fields = Fields {
            message: "two\nlines \"quoted\"".to_owned(),
            others: [("count".to_owned(), 3.into())].into_iter().collect(),
        };
        let line = object(Level::WARN, "weir::live", SystemTime::UNIX_EPOCH, fields);
        assert_eq!(line.matches('\n').count(), 1);
        let expected = serde_json::json!({
            "level": "warn", "time": "1970-01-01T00:00:00.000Z", "target": "weir::live",
            "message": "two\nlines \"quoted\"", "fields": {"count": 3},
        });
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
    }

    #[test]
    fn a_plain_line_names_what_needs_attention_once() {
        assert_eq!(
            Form::Plain.lines(Level::ERROR, "it failed"),
            "error: it failed\n"
        );
        assert_eq!(
            Form::Plain.lines(Level::ERROR, "error: in line 3\n  | x"),
            "error: in line 3\n  | x\n"
        );
        assert_eq!(
            Form::Plain.lines(Level::WARN, "a note"),
            "warning: a note\n"
        );
        assert_eq!(Form::Plain.lines(Level::INFO, "it is so"), "it is so\n");
        assert_eq!(Form::Plain.lines(Level::DEBUG, "detail"), "debug: detail\n");
    }

    #[test]
    fn fields_follow_the_message_at_level_debug() {
        let others = [
            ("limit".to_owned(), "web".into()),
            ("rate".to_owned(), 3.into()),
        ]
        .into_iter()
        .collect();
        let fields = || Fields {
            message: "it is so".to_owned(),
            others: Map::clone(&others),
        };
        assert_eq!(fields().text(Level::DEBUG), "it is so limit=web rate=3");
        for level in [Level::ERROR, Level::WARN, Level::INFO] {
            assert_eq!(fields().text(level), "it is so");
        }
    }

    #[test]
    fn a_panic_is_reported_with_its_thread() {
        let report = thread::Builder::new()
            .name("weir-worker".to_owned())
            .spawn(|| {
                panicked(
                    &"panicked at x.rs:1:2:\nno such row",
                    &Backtrace::disabled(),
                )
            })
            .unwrap();
        assert_eq!(
            report.join().unwrap(),
            "thread weir-worker panicked at x.rs:1:2:\nno such row; report it as a bug"
        );
    }
}
