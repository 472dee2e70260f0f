//! Paths in the source tree.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

/// The source tree and its build results.
pub struct Workspace {
    /// The folder of the workspace's Cargo.toml.
    pub root: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
}

impl Workspace {
    /// The tree that this program belongs to.
    pub fn locate() -> Result<Self> {
        // Cargo sets the variable for `cargo run`; the compiled-in path serves a binary that is called directly.
        let manifest =
            env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
        let root = Path::new(&manifest)
            .parent()
            .with_context(|| {
                format!(
                    "finding the workspace: {} has no parent folder",
                    manifest.display()
                )
            })?
            .to_path_buf();
        let here = env::current_dir().context("reading the current directory")?;
        let target = env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| root.join("target"), |target| here.join(target));
        Ok(Self { root, target })
    }

    /// The cargo that runs this program, called from the root.
    pub fn cargo(&self) -> Command {
        let mut cargo = Command::new(host_cargo());
        cargo
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target);
        cargo
    }

    /// The agent in this folder of the target directory.
    pub fn agent(&self, folder: &str) -> PathBuf {
        self.target.join(folder).join("agent")
    }

    /// The root file of each crate.
    pub fn crate_roots(&self) -> Result<Vec<PathBuf>> {
        let mut roots = Vec::new();
        for folder in [self.root.clone(), self.root.join("crates")] {
            for entry in
                fs::read_dir(&folder).with_context(|| format!("listing {}", folder.display()))?
            {
                let source = entry?.path().join("src");
                let root = ["lib.rs", "main.rs"]
                    .map(|name| source.join(name))
                    .into_iter()
                    .find(|path| path.exists());
                roots.extend(root);
            }
        }
        roots.sort();
        Ok(roots)
    }

    /// The eBPF object of this name that is embedded into the agent.
    pub fn object(&self, name: &str) -> PathBuf {
        self.target.join("bpf").join(format!("{name}.o"))
    }
}

/// A path in the user's cache folder, for things that all trees share.
pub fn cache(name: &str) -> Result<PathBuf> {
    let cache = env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|cache| cache.is_absolute());
    let cache = cache.or_else(|| env::home_dir().map(|home| home.join(".cache")));
    let cache = cache.with_context(|| {
        format!("choosing a folder for {name}: neither XDG_CACHE_HOME nor HOME is set")
    })?;
    Ok(cache.join("weir").join(name))
}

/// The cargo that runs this program.
pub fn host_cargo() -> PathBuf {
    env::var_os("CARGO")
        .unwrap_or_else(|| "cargo".into())
        .into()
}

/// The commit, from git.
pub fn commit() -> String {
    let git =
        |arguments: &[&str]| crate::process::capture(Command::new("git").args(arguments)).ok();
    let head = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_default();
    // Changes of documents do not affect figures.
    let changes = git(&[
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ":!*.md",
        ":!docs",
    ]);
    let is_changed = changes.is_some_and(|said| !said.trim().is_empty());
    let changed = if is_changed {
        ", with changes that are not committed"
    } else {
        ""
    };
    format!("{}{changed}", head.trim())
}

/// The time that packages have: `SOURCE_DATE_EPOCH`, else the commit's, in seconds since 1970.
pub fn commit_time(root: &Path) -> Result<u64> {
    let seconds = match env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => seconds,
        Err(_) => crate::process::capture(
            Command::new("git")
                .args(["log", "-1", "--format=%ct"])
                .current_dir(root),
        )
        .context("reading the commit's time: without git, set SOURCE_DATE_EPOCH")?,
    };
    let seconds = seconds.trim();
    seconds.parse().with_context(|| {
        format!("invalid SOURCE_DATE_EPOCH `{seconds}`: it is a number of seconds since 1970")
    })
}
