//! `--html FILE`: a page beside the text, or instead of it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::exit::usage;
use super::print::Print;
use crate::page::{Destination, PageError};

/// The page's destination, if there is one, or the exit status of wrong usage; `read` are the files that are read.
pub(super) fn destination(
    html: Option<&Path>,
    read: &[&PathBuf],
    print: Print,
) -> anyhow::Result<Result<Option<Destination>, ExitCode>> {
    let Some(path) = html else {
        return Ok(Ok(None));
    };
    let read: Vec<&Path> = read.iter().map(|path| path.as_path()).collect();
    match Destination::new(path, &read) {
        Ok(Destination::Standard) if print == Print::Json => Ok(Err(usage(
            &"--html - conflicts with --json: both print to standard output; name a file with --html FILE",
        ))),
        Ok(destination) => Ok(Ok(Some(destination))),
        Err(error @ PageError::IsRead { .. }) => Ok(Err(usage(&error))),
        Err(error) => Err(error.into()),
    }
}

/// Whether the page takes the place of the text on standard output.
pub(super) fn is_instead(destination: Option<&Destination>) -> bool {
    matches!(destination, Some(Destination::Standard))
}
