//! The record of a build: what another one needs to make the same files.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::compile::Speed;
use super::source::Source;
use super::target::Target;

/// The file `weir-VERSION-build.json`.
#[derive(Serialize, Deserialize)]
pub struct BuildInfo {
    pub version: String,
    pub commit: String,
    /// The hash of git's tree, which is the commit's unless there were changes.
    pub tree: String,
    /// The time of all files, in seconds since 1970.
    pub source_date_epoch: u64,
    /// The architectures of the programs.
    pub architectures: Vec<String>,
    /// Whether the programs are optimized as for a release.
    pub is_optimized: bool,
    /// Names and versions of the programs that made the files.
    pub tools: BTreeMap<String, String>,
}

impl BuildInfo {
    /// Describes a build.
    pub fn new(
        version: &str,
        source: &Source,
        speed: Speed,
        targets: &[&Target],
        tools: BTreeMap<String, String>,
    ) -> Self {
        Self {
            version: version.to_owned(),
            commit: source.commit.clone(),
            tree: source.tree.clone(),
            source_date_epoch: source.time,
            architectures: targets
                .iter()
                .map(|target| target.architecture.to_owned())
                .collect(),
            is_optimized: speed == Speed::Full,
            tools,
        }
    }

    /// The name of the file for a version.
    pub fn name(version: &str) -> String {
        format!("weir-{version}-build.json")
    }

    /// The file's text.
    pub fn text(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self).context("writing the record of the build")?;
        Ok(text + "\n")
    }

    /// Reads a file's text.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).context("reading the record of the build")
    }

    /// The targets of the architectures.
    pub fn targets(&self) -> Result<Vec<&'static Target>> {
        let architectures = self.architectures.iter();
        architectures.map(|name| Target::find(name)).collect()
    }

    /// How fast the build was.
    pub fn speed(&self) -> Speed {
        if self.is_optimized {
            Speed::Full
        } else {
            Speed::Quick
        }
    }

    /// Tools of which this build and another one have different versions.
    pub fn other_tools(&self, other: &Self) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> =
            self.tools.keys().chain(other.tools.keys()).collect();
        let version = |info: &Self, name: &str| {
            info.tools
                .get(name)
                .cloned()
                .unwrap_or_else(|| "none".to_owned())
        };
        names
            .into_iter()
            .filter_map(|name| {
                let (own, others) = (version(self, name), version(other, name));
                (own != others).then(|| format!("{name}: {others} there, {own} here"))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(tools: &[(&str, &str)]) -> BuildInfo {
        BuildInfo {
            version: "1.2.3".to_owned(),
            commit: "c0ffee".to_owned(),
            tree: "7ee".to_owned(),
            source_date_epoch: 7,
            architectures: vec!["aarch64".to_owned()],
            is_optimized: true,
            tools: tools
                .iter()
                .map(|&(name, version)| (name.to_owned(), version.to_owned()))
                .collect(),
        }
    }

    #[test]
    fn tools_of_other_versions_are_named() {
        let here = with(&[("rustc", "1.96"), ("zig", "0.15"), ("gzip", "1.12")]);
        let there = with(&[("rustc", "1.95"), ("zig", "0.15")]);
        assert_eq!(
            here.other_tools(&there),
            [
                "gzip: none there, 1.12 here",
                "rustc: 1.95 there, 1.96 here"
            ]
        );
    }

    #[test]
    fn a_record_is_read_as_written() {
        let text = with(&[("rustc", "1.96")]).text().unwrap();
        let read = BuildInfo::parse(&text).unwrap();
        assert_eq!(read.text().unwrap(), text);
        assert!(read.speed() == Speed::Full);
        assert_eq!(read.targets().unwrap()[0].go, "arm64");
    }
}
