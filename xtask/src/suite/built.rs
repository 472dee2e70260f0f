//! The programs that `cargo test --no-run` builds, from its JSON.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// A program with tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestProgram {
    /// The target's name; a crate and a file in the `tests` of another may share one.
    pub target: String,
    /// Whether the target is a file or folder in `tests`, rather than the tests in a crate's sources.
    pub is_integration: bool,
    /// The target's root file.
    pub source: PathBuf,
    /// The package's folder, in which cargo runs the program.
    pub folder: PathBuf,
    pub path: PathBuf,
}

/// Builds with a `cargo test` that has its other arguments, and returns every program with tests.
pub fn build(cargo: &mut Command) -> Result<Vec<TestProgram>> {
    cargo.args(["--no-run", "--message-format=json-render-diagnostics"]);
    let output = cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    if !output.status.success() {
        bail!("building the tests failed: {}", output.status);
    }
    let messages = String::from_utf8(output.stdout).context("reading what cargo built")?;
    let programs = programs(&messages);
    ensure!(
        !programs.is_empty(),
        "cargo named no test program in what it printed"
    );
    Ok(programs)
}

/// The programs with tests among cargo's messages, one a line.
fn programs(messages: &str) -> Vec<TestProgram> {
    messages
        .lines()
        .filter_map(|line| program(&serde_json::from_str(line).ok()?))
        .collect()
}

fn program(message: &Value) -> Option<TestProgram> {
    if message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    Some(TestProgram {
        target: target["name"].as_str()?.to_owned(),
        is_integration: target["kind"].as_array()?.iter().any(|kind| kind == "test"),
        source: target["src_path"].as_str()?.into(),
        folder: Path::new(message["manifest_path"].as_str()?)
            .parent()?
            .to_owned(),
        path: message["executable"].as_str()?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_with_tests() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"kind":["lib"],"name":"kernel","src_path":"/w/agent/src/lib.rs"},"profile":{"test":false},"executable":null}
{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"kind":["bin"],"name":"agent","src_path":"/w/agent/src/main.rs"},"profile":{"test":false},"executable":"/target/agent"}
{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"kind":["lib"],"name":"kernel","src_path":"/w/agent/src/lib.rs"},"profile":{"test":true},"executable":"/target/kernel-1"}
{"reason":"compiler-artifact","manifest_path":"/w/agent/Cargo.toml","target":{"kind":["test"],"name":"kernel","src_path":"/w/agent/tests/kernel/main.rs"},"profile":{"test":true},"executable":"/target/kernel-2"}
{"reason":"build-finished","success":true}"#;
        let found = programs(messages);
        let shown: Vec<_> = found
            .iter()
            .map(|one| (one.is_integration, one.path.to_str().unwrap()))
            .collect();
        assert_eq!(
            shown,
            [(false, "/target/kernel-1"), (true, "/target/kernel-2")]
        );
        assert_eq!(
            (found[1].target.as_str(), found[1].folder.to_str()),
            ("kernel", Some("/w/agent"))
        );
    }
}
