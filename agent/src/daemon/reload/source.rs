//! A config file with its text.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{self, Path};
use std::sync::Arc;

use api::status::LeftOut;
use config::ConfigError;
use config::policy::{Config, FleetRules, Limit};
use rollout::host::Rules;
use rollout::merge::{Part, Replaced, merge};
use rollout::rules::Rights;

/// A config with its text. Copies share the config.
#[derive(Clone, Debug)]
pub struct Source {
    /// Without the limits that are left out.
    pub config: Arc<Config>,
    /// The text of the host's own file; `None` for the built-in limits.
    pub text: Option<String>,
    /// The limits of the text that a start left out, since the kernel cannot enforce them.
    pub left_out: Vec<LeftOut>,
    /// The rules of streams in the config, which are not in the text.
    pub rules: StreamRules,
    /// Those that the text replaces.
    pub replaced: Arc<[Replaced]>,
}

/// The rules of streams, by stream.
pub type StreamRules = BTreeMap<String, Arc<Rules>>;

impl Source {
    /// A config that is its text.
    #[must_use]
    pub fn new(config: Config, text: Option<String>) -> Self {
        Self {
            config: Arc::new(config),
            text,
            left_out: Vec::new(),
            rules: StreamRules::new(),
            replaced: Arc::default(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is invalid.
    pub fn read(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        Self::parse(path, config::read_text(path)?)
    }

    /// Validates the text of a file.
    ///
    /// # Errors
    ///
    /// When it is invalid.
    pub fn parse(path: &Path, text: String) -> Result<(Self, Vec<String>), ConfigError> {
        let loaded = config::parse(path, &text).map_err(ConfigError::Invalid)?;
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        Ok((Self::new(loaded.config, Some(text)), warnings))
    }

    /// Validates the text of a file together with rules. Those of streams that it does not follow are left out.
    ///
    /// # Errors
    ///
    /// When the text is invalid, by itself or with the rules.
    pub fn with_rules(
        path: &Path,
        text: String,
        rules: &StreamRules,
    ) -> Result<(Self, Vec<String>), ConfigError> {
        // Its errors have their lines in the file.
        let (own, warnings) = Self::parse(path, text)?;
        match own.merged(path, rules)? {
            Some(merged) => Ok(merged),
            None => Ok((own, warnings)),
        }
    }

    /// The same with the rules that go with it, for a start: one stream must not take the others out of effect. Returns the
    /// streams that are left out, and why.
    #[must_use]
    pub fn with_rules_where_possible(
        self,
        path: &Path,
        rules: &StreamRules,
    ) -> (Self, Vec<(String, ConfigError)>) {
        let fleet = self.config.fleet.clone();
        let (mut source, mut added) = (self, StreamRules::new());
        let mut left_out = Vec::new();
        for followed in fleet.iter().flat_map(FleetRules::streams) {
            let stream = &followed.rules.stream;
            let Some(of_stream) = rules.get(stream) else {
                continue;
            };
            added.insert(stream.clone(), Arc::clone(of_stream));
            match source.merged(path, &added) {
                Ok(Some((with_rules, _))) => source = with_rules,
                Ok(None) => {}
                Err(error) => {
                    added.remove(stream);
                    left_out.push((stream.clone(), error));
                }
            }
        }
        (source, left_out)
    }

    /// The text with rules of the streams that it follows; `None` without such rules.
    fn merged(
        &self,
        path: &Path,
        rules: &StreamRules,
    ) -> Result<Option<(Self, Vec<String>)>, ConfigError> {
        let (Some(fleet), Some(text)) = (&self.config.fleet, &self.text) else {
            return Ok(None);
        };
        let followed = fleet.streams().filter_map(|followed| {
            let stream = &followed.rules.stream;
            let rules = rules.get(stream)?;
            Some((stream, Rights::of(fleet, &followed), rules))
        });
        let followed: Vec<_> = followed.collect();
        if followed.is_empty() {
            return Ok(None);
        }
        let versions = followed.iter();
        let versions = versions.map(|(stream, _, rules)| version_of(stream, rules));
        let versions: Vec<String> = versions.collect();
        let name = format!("{} with {}", path.display(), versions.join(", "));
        let path = Path::new(&name);
        let parts = followed.iter().map(|(stream, rights, rules)| Part {
            stream,
            rights,
            texts: &rules.texts,
        });
        let merged = merge(path, text, parts).map_err(ConfigError::Invalid)?;
        let loaded = config::parse(path, &merged.text).map_err(ConfigError::Invalid)?;
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        let rules = followed.into_iter();
        let rules = rules.map(|(stream, _, rules)| (stream.clone(), Arc::clone(rules)));
        let source = Self {
            config: Arc::new(loaded.config),
            replaced: merged.replaced.into(),
            rules: rules.collect(),
            ..self.clone()
        };
        Ok(Some((source, warnings)))
    }

    /// The same without the limits that count open connections; `None` if there are none.
    #[must_use]
    pub fn without_connections(&self, reason: &str) -> Option<Self> {
        let counts = |limit: &&Limit| limit.concurrent.is_some();
        let left_out = self
            .config
            .limits
            .iter()
            .filter(counts)
            .map(|limit| LeftOut {
                limit: limit.name.clone(),
                reason: reason.to_owned(),
            });
        let left_out: Vec<LeftOut> = left_out.collect();
        if left_out.is_empty() {
            return None;
        }
        let mut config = Config::clone(&self.config);
        config.limits.retain(|limit| limit.concurrent.is_none());
        Some(Self {
            config: Arc::new(config),
            left_out: [self.left_out.clone(), left_out].concat(),
            ..self.clone()
        })
    }
}

/// The name of the rules of a stream: `version 3 of web`.
pub fn version_of(stream: &str, rules: &Rules) -> String {
    format!("version {} of {stream}", rules.version)
}

/// Whether two paths name one file, over symbolic and hard links. A missing file is only equal by its path.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    match (identity(one), identity(other)) {
        (Some(one), Some(other)) => one == other,
        _ => path::absolute(one).ok() == path::absolute(other).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(texts: &[(&str, &str)]) -> StreamRules {
        let of = |(stream, text): &(&str, &str)| {
            let rules = serde_json::json!({
                "version": 3, "digest": "d", "key": [0, 1, 2, 3, 4, 5, 6, 7],
                "texts": { "rules.toml": text },
            });
            let rules = serde_json::from_value(rules).unwrap();
            ((*stream).to_owned(), Arc::new(rules))
        };
        texts.iter().map(of).collect()
    }

    const OWN: &str = "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n";
    const FLEET: &str = "[fleet]\nrules = \"/srv/web\"\n\
                         public_keys = [\"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\"]\n";
    const TEAM: &str = "[[fleet.team]]\nrules = \"/srv/search\"\nprefix = \"s-\"\nlimits = 1\n\
                        public_keys = [\"RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3\"]\n";

    fn limit(name: &str, rate: &str) -> String {
        format!("[[limit]]\nname = {name:?}\nrate = {rate:?}\n")
    }

    fn limits(source: &Source) -> Vec<String> {
        let limits = source.config.limits.iter();
        limits
            .map(|limit| format!("{} {}", limit.name, limit.rate_text()))
            .collect()
    }

    fn with(own: &str, rules: &StreamRules) -> Result<Source, String> {
        let read = Source::with_rules(Path::new("limits.toml"), own.to_owned(), rules);
        read.map(|(source, _)| source)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_hosts_file_replaces_rules_of_the_fleet() {
        let of_fleet = limit("a", "2/s") + &limit("b", "3/s");
        let rules = rules(&[("web", &of_fleet)]);
        let own = format!("{OWN}{FLEET}");
        let source = with(&own, &rules).unwrap();
        assert_eq!(limits(&source), ["a 1/s", "b 3/s"]);
        let replaced: Vec<&str> = source
            .replaced
            .iter()
            .map(|one| one.name.as_str())
            .collect();
        assert_eq!(replaced, ["a"]);
        assert_eq!(source.text, Some(own));
        assert_eq!(source.rules, rules);
        // Without [fleet], rules are nothing to it.
        let source = with(OWN, &rules).unwrap();
        assert_eq!(limits(&source), ["a 1/s"]);
        assert_eq!(source.rules, StreamRules::new());
    }

    #[test]
    fn rules_leave_with_the_stream_that_the_file_does_not_follow() {
        let (of_fleet, of_team) = (limit("b", "2/s"), limit("s-a", "3/s"));
        let rules = rules(&[("search", &of_team), ("web", &of_fleet)]);
        for (file, expected) in [
            (
                format!("{OWN}{FLEET}{TEAM}"),
                &["a 1/s", "b 2/s", "s-a 3/s"][..],
            ),
            (format!("{OWN}{FLEET}"), &["a 1/s", "b 2/s"]),
            (format!("{OWN}{TEAM}"), &["a 1/s", "s-a 3/s"]),
            (OWN.to_owned(), &["a 1/s"]),
        ] {
            let source = with(&file, &rules).unwrap();
            assert_eq!(limits(&source), expected, "{file}");
            assert_eq!(source.rules.len(), expected.len() - 1);
        }
        // The prefix of a team is its own from the reload on.
        let taken = self::rules(&[("web", &of_team)]);
        let error = with(&format!("{OWN}{FLEET}{TEAM}"), &taken).unwrap_err();
        assert!(error.contains("has the prefix \"s-\" of a team"), "{error}");
    }

    #[test]
    fn a_start_has_the_rules_of_all_streams_that_go_with_it() {
        let own = format!("{OWN}{FLEET}{TEAM}");
        let start = |of_fleet: &str, of_team: &str| {
            let path = Path::new("limits.toml");
            let (source, _) = Source::parse(path, own.clone()).unwrap();
            let rules = rules(&[("web", of_fleet), ("search", of_team)]);
            let (source, left_out) = source.with_rules_where_possible(path, &rules);
            let left_out: Vec<String> = left_out.into_iter().map(|(stream, _)| stream).collect();
            (limits(&source), left_out.join(","))
        };
        let (good, bad) = (limit("b", "2/s"), limit("b", "x"));
        let (of_team, many) = (
            limit("s-a", "3/s"),
            limit("s-a", "3/s") + &limit("s-b", "3/s"),
        );
        for (of_fleet, of_team, expected, left_out) in [
            (&good, &of_team, &["a 1/s", "b 2/s", "s-a 3/s"][..], ""),
            (&bad, &of_team, &["a 1/s", "s-a 3/s"], "web"),
            (&good, &many, &["a 1/s", "b 2/s"], "search"),
            (&bad, &many, &["a 1/s"], "web,search"),
        ] {
            let (limits, found) = start(of_fleet, of_team);
            assert_eq!(limits, expected);
            assert_eq!(found, left_out);
        }
    }

    #[test]
    fn an_error_names_the_file_or_the_rules() {
        let error = |own: &str, of_fleet: &str| {
            with(&format!("{own}{FLEET}"), &rules(&[("web", of_fleet)])).unwrap_err()
        };
        let of_file = error("[agent]\ninterface = 1\n", "");
        assert!(of_file.contains("limits.toml:2"), "{of_file}");
        let of_rules = error(OWN, &limit("b", "x"));
        assert!(
            of_rules.contains("limits.toml with version 3 of web"),
            "{of_rules}"
        );
    }

    #[test]
    fn links_are_the_same_file_and_copies_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = at("limits.toml");
        fs::write(&own, "").unwrap();
        fs::hard_link(&own, at("hard.toml")).unwrap();
        std::os::unix::fs::symlink("limits.toml", at("symbolic.toml")).unwrap();
        fs::copy(&own, at("copy.toml")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for same in [
            "limits.toml",
            "hard.toml",
            "symbolic.toml",
            "folder/../limits.toml",
        ] {
            assert!(is_same_file(&own, &at(same)), "{same}");
            assert!(is_same_file(&at(same), &own), "{same}");
        }
        for other in ["copy.toml", "missing.toml", "folder"] {
            assert!(!is_same_file(&own, &at(other)), "{other}");
        }
        fs::remove_file(&own).unwrap();
        assert!(is_same_file(&own, &own));
        assert!(!is_same_file(&own, &at("hard.toml")));
        assert!(is_same_file(
            Path::new("missing.toml"),
            &path::absolute("missing.toml").unwrap()
        ));
    }
}
