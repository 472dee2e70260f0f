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
    let script = GENERATOR.replace("/etc/weir/limits.toml", file.to_str().unwrap());
    let output = Command::new("sh")
        .args(["-c", &script, "weir-generator"])
        .args([folder.path(); 3])
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let link = folder.path().join("weir.service.d/groups.conf");
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
