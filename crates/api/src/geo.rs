//! Databases of networks and countries in `weir status --json`.

use serde::{Deserialize, Serialize};

/// A database of `[geo]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeoStatus {
    /// Its key: `asn` or `country`.
    pub database: String,
    pub file: String,
    /// Prefixes in effect, of the networks and countries that the config names, or of all networks.
    pub prefixes: u64,
    /// When its publisher built it, in seconds since 1970; `null` if it has never been read.
    pub built: Option<u64>,
    /// Why the file is not in use; `null` if it is.
    pub problem: Option<String>,
}
