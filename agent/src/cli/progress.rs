//! The progress of reading captures.

use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};

use super::table::number;
use crate::replay::Progress;

/// A progress bar on standard error, if that is a terminal.
pub fn progress_bar(captures: &[PathBuf]) -> ProgressBar {
    let is_sized = captures
        .iter()
        .all(|path| path.metadata().is_ok_and(|metadata| metadata.is_file()));
    let template = if is_sized {
        "{bar:40} {percent:>3} %  {bytes}/{total_bytes}  {msg}, {eta} left"
    } else {
        "{spinner} {bytes}  {msg}"
    };
    let bar = ProgressBar::new(0);
    bar.set_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    );
    bar
}

pub fn advance(bar: &ProgressBar, progress: Progress) {
    if let Some(length) = progress.length {
        bar.set_length(length);
    }
    bar.set_position(progress.bytes);
    bar.set_message(format!("{} packets", number(progress.packets)));
}
