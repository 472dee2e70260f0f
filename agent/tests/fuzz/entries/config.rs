//! Texts of limits.toml.

use std::path::Path;

/// A text is valid and compiles, or each of its errors has a place within it.
pub fn config(text: &str) {
    match ::config::parse(Path::new("limits.toml"), text) {
        // A valid config compiles, or the error has a reason.
        Ok(loaded) => {
            let _ = datapath::compile::plan(&loaded.config);
        }
        Err(report) => {
            assert!(!report.errors.is_empty(), "{text}");
            let count = text.lines().count().max(1);
            for error in &report.errors {
                assert!(
                    error.line >= 1 && error.line <= count + 1 && error.column >= 1,
                    "{text}\n{error:?}"
                );
            }
            let _ = report.to_string();
        }
    }
}
