//! The rules that a publisher names: a file, or a folder with one file a limit, so that teams own theirs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use config::ConfigError;
use config::policy::Config;
use rollout::document::Object;
use rollout::merge::Part;
use rollout::rules::Rights;

use super::place::{FleetError, invalid, wrong};

const RULES: &str = "rules.toml";
const LIMITS: &str = "limits";
/// A host's part of a config, with all that rules of a fleet may require of it. Nothing in it is read or connected.
const HOST: &str = r#"
[agent]
interfaces = ["*"]
allow_empty = true
[geo]
asn = "/var/lib/asn.mmdb"
country = "/var/lib/country.mmdb"
[decide]
http = "unix:/run/weir/decide.sock"
[cluster]
store = "redis://127.0.0.1:6379"
node = "host"
share_bans = true
"#;

fn text(path: &Path) -> Result<String, FleetError> {
    config::read_argument(path).map_err(|error| match error {
        ConfigError::Read(error) => wrong(format!(
            "{}; name a file with rules, or a folder with {RULES} or {LIMITS}/NAME.toml",
            error.without_fix()
        )),
        ConfigError::Invalid(report) => invalid(report),
    })
}

/// The objects of a file; of a folder, those of its `rules.toml` and `limits/NAME.toml`.
pub(super) fn read(path: &Path) -> Result<Vec<Object>, FleetError> {
    if !path.is_dir() {
        return Ok(vec![Object::new(RULES, text(path)?)]);
    }
    let mut objects = Vec::new();
    let rules = path.join(RULES);
    if rules.exists() {
        objects.push(Object::new(RULES, text(&rules)?));
    }
    let limits = path.join(LIMITS);
    let entries = if limits.is_dir() {
        let entries = fs::read_dir(&limits).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        entries.map_err(|error| wrong(format!("reading {} failed: {error}", limits.display())))?
    } else {
        Vec::new()
    };
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        // Editors leave others there.
        if name.ends_with(".toml") && !name.starts_with('.') {
            let name = format!("{LIMITS}/{name}");
            objects.push(Object::new(name, text(&entry.path())?));
        }
    }
    objects.sort_by(|one, other| one.name.cmp(&other.name));
    if objects.is_empty() {
        let folder = path.display();
        return Err(wrong(format!(
            "{folder} has neither {RULES} nor {LIMITS}/NAME.toml"
        )));
    }
    Ok(objects)
}

/// The config of rules alone, to validate and compare them. `name` is that of the rules in errors.
pub(super) fn alone(name: &Path, objects: &[Object]) -> Result<Config, FleetError> {
    let texts = objects.iter();
    let texts: BTreeMap<String, String> = texts
        .map(|object| (object.name.clone(), object.text.clone()))
        .collect();
    let part = Part {
        stream: "rules",
        rights: &Rights::all(),
        texts: &texts,
    };
    let merged = rollout::merge::merge(name, HOST, [part]).map_err(wrong)?;
    let loaded = config::parse(name, &merged.text);
    let loaded =
        loaded.map_err(|report| in_objects(name, objects).unwrap_or_else(|| invalid(report)))?;
    Ok(loaded.config)
}

/// The errors of the first object that has some, at their positions in it.
fn in_objects(name: &Path, objects: &[Object]) -> Option<FleetError> {
    if let [object] = objects {
        let report = config::parse(name, &format!("{}\n{HOST}", object.text));
        return report.err().map(invalid);
    }
    objects.iter().find_map(|object| {
        let others = objects.iter().filter(|other| other.name != object.name);
        let texts = [object].into_iter().chain(others);
        let texts: Vec<&str> = texts.map(|object| object.text.as_str()).collect();
        let file = name.join(&object.name);
        let report = config::parse(&file, &format!("{}\n{HOST}", texts.join("\n"))).err()?;
        let last = object.text.lines().count();
        let errors = report.errors.iter().filter(|error| error.line <= last);
        let errors: Vec<String> = errors.map(|error| format!("error: {error}")).collect();
        (!errors.is_empty()).then(|| invalid(errors.join("\n")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_object_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let limit = |name: &str| format!("[[limit]]\nname = {name:?}\nrate = \"1/s\"\n");
        assert!(read(folder.path()).is_err());
        fs::create_dir(folder.path().join(LIMITS)).unwrap();
        for (file, name) in [
            ("limits/web.toml", "web"),
            ("limits/dns.toml", "dns"),
            ("limits/.web.toml", "hidden"),
            ("limits/web.toml~", "old"),
            (RULES, "all"),
        ] {
            fs::write(folder.path().join(file), limit(name)).unwrap();
        }
        let Ok(objects) = read(folder.path()) else {
            panic!("it cannot be read");
        };
        let names: Vec<&str> = objects.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["limits/dns.toml", "limits/web.toml", RULES]);
        let Ok(config) = alone(folder.path(), &objects) else {
            panic!("it is invalid");
        };
        let limits = config.limits.iter().map(|limit| limit.name.as_str());
        assert_eq!(limits.collect::<Vec<_>>(), ["dns", "web", "all"]);
        let Ok(objects) = read(&folder.path().join(RULES)) else {
            panic!("it cannot be read");
        };
        assert_eq!(objects, [Object::new(RULES, limit("all"))]);
    }

    #[test]
    fn errors_have_their_position_in_the_publishers_file() {
        let limit = |name: &str, rate: &str| {
            let text = format!("# A comment.\n[[limit]]\nname = {name:?}\nrate = {rate:?}\n");
            Object::new(format!("limits/{name}.toml"), text)
        };
        let said = |objects: &[Object]| match alone(Path::new("rules"), objects) {
            Err(FleetError::Invalid(said)) => said,
            _ => panic!("it is valid"),
        };
        let file = said(&[limit("web", "x")]);
        assert!(file.contains("rules:4:8"), "{file}");
        let folder = said(&[limit("dns", "9/s"), limit("web", "x")]);
        assert!(
            folder.starts_with("error: rules/limits/web.toml:4:8: "),
            "{folder}"
        );
        assert_eq!(folder.lines().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_with_its_fix() {
        let Err(FleetError::Usage(said)) = read(Path::new("/nowhere/rules.toml")) else {
            panic!("it is read");
        };
        assert!(
            said.contains("/nowhere/rules.toml") && said.contains("; name a file with rules"),
            "{said}"
        );
    }

    #[test]
    fn rules_alone_are_valid_whatever_they_require_of_hosts() {
        let is_valid = |text: &str| alone(Path::new(RULES), &[Object::new(RULES, text)]).is_ok();
        let request =
            "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"9/s\"\n";
        for valid in [
            "",
            request,
            &format!("{request}cluster = \"shares\"\n"),
            "[[class]]\nname = \"a\"\ncountry = [\"DE\"]\nmultiplier = 2\n",
            "[[ban_list]]\nname = \"a\"\nasn = [64496]\n",
        ] {
            assert!(is_valid(valid), "{valid}");
        }
        for invalid in [
            "[[limit]]\nname = \"a\"\n",
            "[[limit]]\nname = \"a\"\nrate = \"x\"\n",
        ] {
            assert!(!is_valid(invalid), "{invalid}");
        }
    }
}
