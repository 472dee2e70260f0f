//! The name of this program.

use std::ffi::OsStr;
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::sync::LazyLock;

/// The name by which this program was called, for commands in messages: packages install `weir`, and `agent` as a link to it.
pub const PROGRAM: Program = Program;

/// See [`PROGRAM`].
#[derive(Clone, Copy, Debug)]
pub struct Program;

impl Program {
    /// `weir`, or `agent` for every other name of the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        static NAME: LazyLock<&str> =
            LazyLock::new(|| called_by(std::env::args_os().next().as_deref()));
        &NAME
    }
}

impl Display for Program {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        to.pad(self.name())
    }
}

fn called_by(path: Option<&OsStr>) -> &'static str {
    let file = path.and_then(|path| Path::new(path).file_name());
    if file.is_some_and(|name| name == "weir") {
        "weir"
    } else {
        "agent"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_that_of_the_file_called() {
        for (path, name) in [
            (Some("weir"), "weir"),
            (Some("/usr/bin/weir"), "weir"),
            (Some("target/debug/agent"), "agent"),
            (Some("./agent.old"), "agent"),
            (Some(""), "agent"),
            (None, "agent"),
        ] {
            assert_eq!(called_by(path.map(OsStr::new)), name, "{path:?}");
        }
    }
}
