//! Each config of docs/RECIPES.md is valid as it is printed. Needs no root.

use std::process::Command;

use testbed::recipes;

#[test]
fn every_config_is_valid_and_warns_of_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut checked = 0;
    for (name, (language, text)) in recipes::all() {
        if language != "toml" {
            continue;
        }
        let file = folder.path().join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_agent"));
        let output = check
            .args(["check", "--json"])
            .arg(&file)
            .env_remove("SSH_CONNECTION")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{name}: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let document: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(document["warnings"], serde_json::json!([]), "{name}");
        checked += 1;
    }
    assert!(checked >= 8, "{checked} recipes are found");
}
