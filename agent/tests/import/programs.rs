//! The commands of docs/guides/migrating.md, run by the programs themselves in a network namespace of the test's.

use std::process::Command;

use config::policy::{Config, Limit};

use testbed::tests;
use testbed::trials::Test;

use super::{imported, parsed};

const GUIDE: &str = include_str!("../../../docs/guides/migrating.md");

/// Tests by the program that they take.
pub const TESTS: &[(&str, &[Test])] = &[
    (
        "nft",
        tests![
            the_guides_nftables_rules_become_the_guides_config,
            the_samples_ruleset_is_what_nft_prints_today
        ],
    ),
    (
        "iptables-legacy",
        tests![the_guides_hashlimit_rule_becomes_the_guides_config],
    ),
    ("ipset", tests![ipset_itself_prints_what_is_read]),
];

/// Whether the program runs in a network namespace of its own.
pub fn is_usable(program: &str) -> bool {
    let version = Command::new("unshare")
        .args(["--net", program, "--version"])
        .output();
    version.is_ok_and(|output| output.status.success())
}

/// The blocks of the guide in a language.
fn blocks(language: &str) -> Vec<String> {
    let starts = GUIDE
        .match_indices(language)
        .map(|(at, _)| &GUIDE[at + language.len()..]);
    starts
        .map(|text| text.split("\n```").next().unwrap_or_default().to_owned())
        .collect()
}

/// The commands that have a word, and the config that the guide has for them.
fn guide(word: &str) -> (String, Config) {
    let commands = blocks("```sh\n")
        .into_iter()
        .find(|block| block.starts_with(word))
        .unwrap();
    let after = &GUIDE[GUIDE.find(&commands).unwrap()..];
    let config = after
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("\n```")
        .next()
        .unwrap();
    (commands, parsed(config))
}

/// Runs a script in a network namespace of its own, which ends with it.
fn in_namespace(script: &str) -> String {
    let output = Command::new("unshare")
        .args(["--net", "sh", "-ec", script])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{script}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The parts in which the guide's limit and the imported one agree.
fn meaning(limit: &Limit) -> impl PartialEq + std::fmt::Debug {
    let ports = limit.ports.as_ref().map(|ports| ports.texts());
    let rates = (limit.rates.rate, limit.rates.burst, limit.rates.algorithm);
    (
        limit.protocol,
        ports,
        limit.unit,
        rates,
        limit.key,
        limit.ipv4_prefix,
        limit.action,
    )
}

fn the_guides_nftables_rules_become_the_guides_config() {
    let (commands, expected) = guide("nft add set");
    let script = format!(
        "nft add table inet filter\nnft add chain inet filter input '{{ type filter hook input priority 0; }}'\n{commands}\n\
         nft -j list ruleset"
    );
    let json = in_namespace(&script);
    let import = imported(&[&json]);
    let config = parsed(&import.config);
    assert_eq!(config.limits.len(), 1, "{}", import.config);
    assert_eq!(
        meaning(&config.limits[0]),
        meaning(&expected.limits[0]),
        "{}",
        import.config
    );
}

fn the_guides_hashlimit_rule_becomes_the_guides_config() {
    let (commands, expected) = guide("iptables -A");
    let script = format!(
        "{}\niptables-legacy-save",
        commands.replace("iptables -A", "iptables-legacy -w -A")
    );
    let saved = in_namespace(&script);
    let import = imported(&[&saved]);
    let config = parsed(&import.config);
    assert_eq!(config.limits.len(), 1, "{}", import.config);
    assert_eq!(
        meaning(&config.limits[0]),
        meaning(&expected.limits[0]),
        "{}",
        import.config
    );
    assert_eq!(config.limits[0].name, expected.limits[0].name);
}

fn the_samples_ruleset_is_what_nft_prints_today() {
    let ruleset = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/import/samples/nftables.nft"
    );
    let script =
        format!("ip link add eth1 type veth peer name eth2\nnft -f {ruleset}\nnft -j list ruleset");
    let json = in_namespace(&script);
    let (today, sample) = (imported(&[&json]), imported(&[super::NFTABLES]));
    // Handles and what remains of an element's time differ between versions.
    assert_eq!(parsed(&today.config).limits, parsed(&sample.config).limits);
    assert_eq!(today.lists, sample.lists);
}

fn ipset_itself_prints_what_is_read() {
    let script = "ipset create blocked hash:net\nipset add blocked 198.51.100.0/24\nipset add blocked 198.51.100.64/26 nomatch\n\
                  ipset add blocked 203.0.113.9\nipset save\nipset destroy blocked";
    let saved = in_namespace(script);
    let import = imported(&[&saved]);
    assert_eq!(
        super::list(&import, "blocked"),
        ["198.51.100.0/26", "198.51.100.128/25", "203.0.113.9/32"]
    );
    assert!(parsed(&import.config).agent.never_limit.is_empty());
}
