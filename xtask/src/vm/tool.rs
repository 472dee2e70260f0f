//! Programs of the system.

use std::io::{Seek as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// A program of the system, which `tools` has installed.
pub fn tool(name: &str) -> Result<PathBuf> {
    process::find(name).with_context(|| format!("{name} is not in PATH"))
}

/// Decompresses bytes with a program. Its complaints about data after the compressed stream are ignored.
pub fn decompress(program: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut input = tempfile::tempfile().context("making a temporary file")?;
    input
        .write_all(bytes)
        .and_then(|()| input.rewind())
        .context("writing a temporary file")?;
    let mut command = Command::new(tool(program)?);
    command
        .args(["--decompress", "--stdout"])
        .stdin(Stdio::from(input));
    let output = command
        .output()
        .with_context(|| format!("starting {program}"))?;
    if output.stdout.is_empty() {
        bail!(
            "{program} unpacked nothing: {}",
            String::from_utf8_lossy(&output.stderr).trim_end()
        );
    }
    Ok(output.stdout)
}
