//! The comparison of a release with the files that its commit gives here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::sums;

/// The result for a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Identical,
    /// The hashes of the release's file and of the built one.
    Differs {
        released: String,
        built: String,
    },
    /// Built, and not in the release.
    Missing,
    /// In the release, and not built.
    Unknown,
    /// A signature, which only its key can make.
    Signature,
}

impl Outcome {
    /// Whether a release with it can be trusted to come from its commit.
    pub fn is_accepted(&self) -> bool {
        matches!(self, Self::Identical | Self::Signature)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Identical => formatter.write_str("identical"),
            Self::Differs { released, built } => {
                write!(formatter, "differs    released {released}, built {built}")
            }
            Self::Missing => formatter.write_str("missing    built here, and not in the release"),
            Self::Unknown => formatter.write_str("unknown    in the release, and not built here"),
            Self::Signature => {
                formatter.write_str("signature  not compared: check it with its key")
            }
        }
    }
}

/// Compares two folders by the hashes of their files. The result has each file of both.
pub fn compare(
    released: &BTreeMap<String, String>,
    built: &BTreeMap<String, String>,
) -> BTreeMap<String, Outcome> {
    let names: BTreeSet<&String> = released.keys().chain(built.keys()).collect();
    let outcomes = names.into_iter().map(|name| {
        let outcome = match (released.get(name), built.get(name)) {
            _ if name != sums::SUMS && sums::is_about_others(name) => Outcome::Signature,
            (Some(released), Some(built)) if released == built => Outcome::Identical,
            (Some(released), Some(built)) => Outcome::Differs {
                released: released.clone(),
                built: built.clone(),
            },
            (Some(_), None) => Outcome::Unknown,
            (None, _) => Outcome::Missing,
        };
        (name.clone(), outcome)
    });
    outcomes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = |&(name, hash): &(&str, &str)| (name.to_owned(), hash.to_owned());
        files.iter().map(own).collect()
    }

    #[test]
    fn each_file_of_both_folders_has_an_outcome() {
        let released = files(&[("a", "1"), ("b", "2"), ("d", "4"), ("SHA256SUMS.sig", "5")]);
        let built = files(&[("a", "1"), ("b", "3"), ("c", "4")]);
        let outcomes = compare(&released, &built);
        let accepted = |name: &str| outcomes[name].is_accepted();
        assert!(accepted("a") && accepted("SHA256SUMS.sig"));
        assert!(!accepted("b") && !accepted("c") && !accepted("d"));
        assert_eq!(outcomes["b"].to_string(), "differs    released 2, built 3");
        assert_eq!(outcomes["c"], Outcome::Missing);
        assert_eq!(outcomes["d"], Outcome::Unknown);
    }

    #[test]
    fn a_list_that_differs_is_no_signature() {
        let released = files(&[("SHA256SUMS", "1")]);
        let built = files(&[("SHA256SUMS", "2")]);
        assert!(!compare(&released, &built)["SHA256SUMS"].is_accepted());
    }
}
