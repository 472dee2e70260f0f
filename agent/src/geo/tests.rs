use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use config::PrefixKey;
use config::policy::{Config, class_of};
use lists::Listed;
use testbed::mmdb::{Mmdb, asn};

use super::{ClassLists, DatabaseChange, Databases};

/// A class of AS 64500 and AS 64502, with one address more.
fn config(folder: &Path, keys: &str) -> Config {
    let path = folder.join("asn.mmdb");
    let text = format!(
        "[agent]\ninterfaces = [\"lo\"]\nallow_empty = true\n[geo]\nasn = {path:?}\n\
         [[class]]\nname = \"a\"\nsources = [\"203.0.113.7\"]\nasn = {keys}\nmultiplier = 2\n"
    );
    config::parse(Path::new("limits.toml"), &text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

fn file(folder: &Path, network: &str) -> Vec<u8> {
    let bytes = Mmdb::new(6, 24)
        .with(network, asn(64500))
        .with("10.0.0.0/8", asn(64501))
        .bytes();
    // A file of its own: one that is written twice within a tick of the file system's clock seems unchanged.
    let beside = folder.join("beside.mmdb");
    fs::write(&beside, &bytes).unwrap();
    fs::rename(&beside, folder.join("asn.mmdb")).unwrap();
    bytes
}

fn sources(databases: &Databases, config: &Config) -> Vec<String> {
    databases.applied(config).0.classes[0]
        .sources
        .iter()
        .map(|prefix| prefix.short())
        .collect()
}

#[test]
fn a_file_that_cannot_be_used_changes_nothing_and_is_no_end_of_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path(), "[64500, 64502]");
    let none = Databases::default();
    // Missing at a start.
    let missing = Databases::read(&config, &none, ClassLists::default());
    assert_eq!(sources(&missing, &config), ["203.0.113.7"]);
    assert!(missing.are_current());
    let note = missing.notes().join("\n");
    assert!(
        note.contains("asn.mmdb failed: No such file")
            && note.contains("classes and limits have only their sources"),
        "{note}"
    );
    assert!(
        missing.lacking(&none).is_some()
            && missing.lacking(&missing).is_none()
            && missing.of(&config.classes[0].geo()).is_err()
    );
    let whole = file(folder.path(), "192.0.2.0/24");
    assert!(!missing.are_current());
    let first = Databases::read(&config, &missing, ClassLists::default());
    assert_eq!(sources(&first, &config), ["203.0.113.7", "192.0.2.0/24"]);
    let warning = first.notes().join("\n");
    assert!(
        warning.contains("AS64502 is not in ") && warning.contains("correct or remove it"),
        "{warning}"
    );
    let [
        DatabaseChange::Updated {
            prefixes: 1,
            summary,
            ..
        },
    ] = &first.changes(&missing)[..]
    else {
        panic!()
    };
    assert!(
        summary.starts_with("1 prefixes from /")
            && summary.ends_with("(Test, built 2023-11-14T22:13:20Z)")
    );
    for cut in [0, whole.len() / 2, whole.len() - 1] {
        fs::write(folder.path().join("asn.mmdb"), &whole[..cut]).unwrap();
        let damaged = Databases::read(&config, &first, ClassLists::default());
        assert_eq!(
            sources(&damaged, &config),
            ["203.0.113.7", "192.0.2.0/24"],
            "{cut}"
        );
        let note = damaged.notes().join("\n");
        assert!(
            note.contains("download it again; the prefixes in effect stay"),
            "{note}"
        );
        assert!(damaged.lacking(&first).is_none() && damaged.are_current());
        assert!(matches!(
            &damaged.changes(&first)[..],
            [DatabaseChange::Failed { prefixes: 1, .. }]
        ));
        // Reported once.
        assert!(
            Databases::read(&config, &damaged, ClassLists::default())
                .changes(&damaged)
                .is_empty()
        );
        // At a start.
        assert_eq!(
            sources(
                &Databases::read(&config, &none, ClassLists::default()),
                &config
            ),
            ["203.0.113.7"]
        );
    }
    file(folder.path(), "198.51.100.0/24");
    let next = Databases::read(&config, &first, ClassLists::default());
    assert_eq!(sources(&next, &config), ["203.0.113.7", "198.51.100.0/24"]);
    let kept = first.kept(&next, "no memory");
    assert_eq!(sources(&kept, &config), ["203.0.113.7", "192.0.2.0/24"]);
    assert!(
        kept.problems()[0].ends_with("could not be put in effect: no memory") && kept.are_current()
    );
    assert_eq!(
        sources(
            &Databases::read(&config, &kept, ClassLists::default()),
            &config
        ),
        ["203.0.113.7", "198.51.100.0/24"]
    );
}

#[test]
fn a_config_with_other_networks_reads_the_same_file_again() {
    let folder = tempfile::tempdir().unwrap();
    file(folder.path(), "192.0.2.0/24");
    let first = Databases::read(
        &config(folder.path(), "[64500]"),
        &Databases::default(),
        ClassLists::default(),
    );
    let both = config(folder.path(), "[64500, 64501]");
    let databases = Databases::read(&both, &first, ClassLists::default());
    assert_eq!(
        sources(&databases, &both),
        ["203.0.113.7", "10.0.0.0/8", "192.0.2.0/24"]
    );
    let classes = databases.classes(both.classes.clone());
    assert_eq!(
        class_of(&classes, IpAddr::from([10, 1, 2, 3]))
            .unwrap()
            .name,
        "a"
    );
    // The file is gone: networks that were read stay, others are missing.
    fs::remove_file(folder.path().join("asn.mmdb")).unwrap();
    let gone = Databases::read(&both, &first, ClassLists::default());
    assert_eq!(sources(&gone, &both), ["203.0.113.7", "192.0.2.0/24"]);
    assert!(gone.lacking(&first).is_some());
    let touched = Databases::read(&both, &databases, ClassLists::default());
    assert!(touched.lacking(&databases).is_none() && touched.problems().len() == 1);
}

#[test]
fn a_list_of_a_class_that_does_not_fit_leaves_the_last_content() {
    let text = "[agent]\ninterfaces = [\"lo\"]\nallow_empty = true\n\
                [[class]]\nname = \"a\"\nsources = [\"192.0.2.0/28\"]\nmultiplier = 2\n\
                [[class]]\nname = \"b\"\nmultiplier = 3\n\
                [[ban_list]]\nname = \"l\"\nfile = \"/l\"\naction = \"class:b\"\n";
    let config = config::parse(Path::new("limits.toml"), text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    let lists = |texts: &[&str]| {
        let key = |text: &&str| {
            PrefixKey::from(&config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
        };
        let mut keys: Vec<PrefixKey> = texts.iter().map(key).collect();
        keys.sort_unstable();
        let listed: Vec<Listed> = keys.into_iter().map(|key| Listed::new(key, 7)).collect();
        ClassLists::of(&config, |_| Arc::new(listed.clone()))
    };
    let of = |databases: &Databases| -> Vec<String> {
        databases.applied(&config).0.classes[1]
            .sources
            .iter()
            .map(|prefix| prefix.short())
            .collect()
    };
    let none = Databases::default();
    let first = Databases::read(&config, &none, lists(&["192.0.2.0/24", "2001:db8::/32"]));
    assert_eq!(of(&first), ["192.0.2.0/24", "2001:db8::/32"]);
    // The list has the longest prefix of one address; the sources of a class, of the other.
    let list = |databases: &Databases, last: u8| {
        let found = databases
            .lists()
            .of_address(&config, IpAddr::from([192, 0, 2, last]));
        found.map(|(name, listed)| (name.to_owned(), listed.prefix().to_string(), listed.since))
    };
    assert_eq!(
        list(&first, 77),
        Some(("l".to_owned(), "192.0.2.0/24".to_owned(), 7))
    );
    assert_eq!((list(&first, 7), list(&none, 77)), (None, None));
    assert!(
        first
            .lists()
            .are(&lists(&["2001:db8::/32", "192.0.2.0/24"]))
    );
    let contents = lists(&["198.51.100.0/24"]);
    assert!(!first.lists().are(&contents) && first.notes().is_empty());
    let kept = first.kept(
        &Databases::read(&config, &first, contents.clone()),
        "no memory",
    );
    assert_eq!(of(&kept), of(&first));
    assert_eq!(kept.lists().in_effect("l"), Some((2, Some("no memory"))));
    let note = "ban list \"l\" could not be put in effect: no memory; 2 prefixes of it stay in class \"b\"";
    assert_eq!(kept.notes(), [note]);
    assert!(matches!(
        &kept.changes(&first)[..],
        [DatabaseChange::ListFailed { prefixes: 2, .. }]
    ));
    // It is not tried again until it changes, and reported once.
    assert!(kept.lists().are(&contents) && kept.changes(&kept).is_empty());
    let next = Databases::read(&config, &kept, lists(&["203.0.113.0/24"]));
    assert_eq!(
        (of(&next), next.notes().len()),
        (vec!["203.0.113.0/24".to_owned()], 0)
    );
    // At a start.
    let without = next.left_out("no memory");
    assert!(of(&without).is_empty() && without.notes()[0].contains("0 prefixes of it stay"));
}
