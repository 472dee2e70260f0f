//! The generator of the package: the unit has the permissions of process groups if the config has groups.

use std::fs;
use std::path::Path;
use std::process::Command;

const GENERATOR: &str = include_str!("../../config/systemd/weir-generator");

/// Whether the generator makes the drop-in for this config; `None` stands for no file.
fn permits_groups(config: Option<&str>) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    if let Some(text) = config {
        fs::write(&file, text).unwrap();
    }
    runs(folder.path())
}

/// Whether the generator makes the drop-in, with the files in this folder.
fn runs(folder: &Path) -> bool {
    let in_folder = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let script = GENERATOR
        .replace("/etc/weir/limits.toml", &in_folder("limits.toml"))
        .replace(
            "/var/lib/weir/last-valid.toml",
            &in_folder("last-valid.toml"),
        );
    let output = Command::new("sh")
        .args(["-c", &script, "weir-generator"])
        .args([folder; 3])
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let link = folder.join("weir.service.d/groups.conf");
    let target = fs::read_link(&link).ok();
    assert!(
        target
            .as_ref()
            .is_none_or(|target| target == "/usr/lib/weir/groups.conf"),
        "{target:?}"
    );
    target.is_some()
}

#[test]
fn a_config_with_groups_has_their_permissions() {
    let group = "[[group]]\nname = \"a\"\nunit = \"a.service\"\npids = 9\n";
    let array = "group = [{ name = \"a\", unit = \"a.service\", pids = 9 }]\n";
    for text in [
        group.to_owned(),
        group.replace("[[group]]", "  [[ group ]] # of a"),
        group.replace("[[group]]", "[[\"group\"]]"),
        group.replace('\n', "\r\n"),
        array.to_owned(),
        array.replace("group =", "\t'group'="),
        include_str!("../../config/limits.groups.toml").to_owned(),
    ] {
        let parsed = config::parse(Path::new("limits.toml"), &text).unwrap();
        assert!(!parsed.config.groups.is_empty(), "{text}");
        assert!(permits_groups(Some(&text)), "{text}");
    }
}

#[test]
fn a_config_without_groups_has_no_permissions_of_groups() {
    assert!(!permits_groups(None));
    for text in [
        include_str!("../../config/limits.package.toml"),
        include_str!("../../config/limits.minimal.toml"),
        "# [[group]]\n#group = []\n  # [[group]]\n",
        "[[limit]]\nname = \"[[group]]\"\nrate = \"5/s\"\n",
    ] {
        assert!(!permits_groups(Some(text)), "{text}");
    }
}

/// The agent goes on with it, and removes its groups.
#[test]
fn a_last_valid_config_with_groups_has_their_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    for (config, last_valid, permits) in [
        ("[[group]", "[[group]]\n", true),
        ("", "[[group]]\n", true),
        ("[[group]]\n", "", true),
        ("[[limit]]\n", "[[limit]]\n", false),
    ] {
        let _ = fs::remove_dir_all(file("weir.service.d"));
        fs::write(file("limits.toml"), config).unwrap();
        fs::write(file("last-valid.toml"), last_valid).unwrap();
        assert_eq!(runs(folder.path()), permits, "{config:?}, {last_valid:?}");
    }
}

#[test]
fn a_config_that_is_not_mounted_yet_may_have_groups() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("limits.toml");
    std::os::unix::fs::symlink(folder.path().join("later.toml"), &link).unwrap();
    assert!(runs(folder.path()));
}
