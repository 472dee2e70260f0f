//! `weir import`: rules of other limiters as limits.toml.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use host::PROGRAM;
use host::read::{argument_name, read_argument};
use host::replace::{Survives, replace};
use serde::Serialize;

use super::exit::usage;
use super::print::Print;
use crate::cli::arguments::Import as Question;
use crate::import::{self, Import, LeftOut, ListFile, MOST_BYTES, Options};

/// The permissions of a new list, less the umask.
const MODE: u32 = 0o666;

/// An import as JSON.
#[derive(Serialize)]
struct Document<'i> {
    config: &'i str,
    limits: usize,
    ban_lists: usize,
    exempt: usize,
    lists: Vec<List<'i>>,
    not_carried_over: &'i BTreeMap<String, LeftOut>,
}

#[derive(Serialize)]
struct List<'i> {
    name: &'i str,
    file: &'i Path,
    prefixes: usize,
    /// Whether the file has been written.
    written: bool,
}

pub fn import(question: &Question, print: Print) -> anyhow::Result<ExitCode> {
    if let Some(directory) = question
        .lists
        .as_deref()
        .filter(|directory| !import::is_plain(directory))
    {
        return Ok(usage(&format!(
            "--lists {}: write an absolute path without quotes and backslashes",
            directory.display()
        )));
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:@*?".contains(c);
    if let Some(name) = question
        .interfaces
        .iter()
        .find(|name| name.is_empty() || !name.chars().all(is_plain))
    {
        return Ok(usage(&format!(
            "--interface {name:?}: write the name of an interface, such as eth0"
        )));
    }
    let standard_input = [PathBuf::from("-")];
    let files = if question.files.is_empty() {
        &standard_input[..]
    } else {
        &question.files
    };
    let inputs = match read(files) {
        Ok(inputs) => inputs,
        Err(error) => return Ok(usage(&error)),
    };
    let options = Options {
        format: question.from,
        interfaces: question.interfaces.clone(),
        lists: question.lists.clone(),
    };
    let import = match import::import(&inputs, &options) {
        Ok(import) => import,
        Err(error) => return Ok(usage(&error)),
    };
    if let Some(directory) = &question.lists {
        write(directory, &import.lists)?;
    }
    let document = Document {
        config: &import.config,
        limits: import.limits,
        ban_lists: import.ban_lists,
        exempt: import.exempt,
        lists: import
            .lists
            .iter()
            .map(|list| shown(list, question.lists.is_some()))
            .collect(),
        not_carried_over: &import.not_carried_over,
    };
    print.document(&document, |document| print!("{}", document.config))?;
    let Import {
        limits,
        ban_lists,
        exempt,
        ..
    } = import;
    if limits + ban_lists + exempt == 0 {
        eprintln!("error: nothing was carried over: the comments of the config have the reasons");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(list: &ListFile, written: bool) -> List<'_> {
    List {
        name: &list.name,
        file: &list.path,
        prefixes: list.prefixes.len(),
        written,
    }
}

/// Reads all inputs, as far as they are not too large together.
fn read(files: &[PathBuf]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut left = MOST_BYTES;
    let mut inputs = Vec::new();
    for path in files {
        let name = argument_name(path);
        let bytes = read_argument(path, left).map_err(|error| {
            if error.is_too_large() {
                let most = MOST_BYTES >> 20;
                format!("{name}: the input is larger than {most} MiB; import parts of it")
            } else {
                error.to_string()
            }
        })?;
        left -= bytes.len() as u64;
        inputs.push((name, bytes));
    }
    Ok(inputs)
}

/// Writes the files of ban lists, each as a whole.
fn write(directory: &Path, lists: &[ListFile]) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("making {} failed", directory.display()))?;
    for list in lists {
        // A power failure must not leave an empty list in the place of one that bans.
        let written = replace(&list.path, MODE, Survives::PowerLoss, |file| {
            let mut file = io::BufWriter::new(file);
            writeln!(file, "# {}, by {PROGRAM} import", list.name)?;
            for prefix in &list.prefixes {
                writeln!(file, "{prefix}")?;
            }
            file.flush()
        });
        written.with_context(|| format!("writing {} failed", list.path.display()))?;
    }
    Ok(())
}
