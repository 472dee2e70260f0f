//! Each config of docs/RECIPES.md is valid as it is printed, and each fragment with what it names. Needs no root.

use std::process::Command;

use testbed::documents::pages;
use testbed::mmdb::{Mmdb, asn, country};
use testbed::recipes;

/// The part of a host's own file that a fragment is checked with.
const HOST: &str = "[agent]\ninterfaces = [\"eth0\"]\n\n";

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

#[test]
fn the_page_on_an_api_has_the_tested_config_of_nginx() {
    let nginx = |page: &str| recipes::recipe_of(page, "nginx");
    assert_eq!(nginx("start/first/api.md"), nginx("guides/proxies.md"));
}

#[test]
fn every_fragment_is_valid_where_its_databases_are() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, record| {
        let database = Mmdb::new(6, 24).with("2001:db8::/32", record);
        std::fs::write(folder.path().join(name), database.bytes()).unwrap();
    };
    write("asn.mmdb", asn(64_500));
    write("country.mmdb", country("XX"));
    let here = format!("\"{}/", folder.path().display());
    let mut checked = 0;
    for page in pages() {
        for block in page.blocks() {
            if block.kind() != "toml,fragment" {
                continue;
            }
            let file = folder.path().join("limits.toml");
            let text = block.text.replace("\"/var/lib/GeoIP/", &here);
            let host = if text.contains("[agent]") { "" } else { HOST };
            std::fs::write(&file, format!("{host}{text}")).unwrap();
            let output = Command::new(env!("CARGO_BIN_EXE_agent"))
                .arg("check")
                .arg(&file)
                .env_remove("SSH_CONNECTION")
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{}:{}: {}",
                page.path,
                block.line,
                String::from_utf8_lossy(&output.stderr)
            );
            checked += 1;
        }
    }
    assert!(checked >= 4, "{checked} fragments are found");
}
