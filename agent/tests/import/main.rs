//! `weir import`: the meaning of a limits.toml from real output of other limiters, read by the config's own parser.
//!
//! `samples/` has the output of these versions in network namespaces of a test; `nftables.nft` is the ruleset
//! of the JSON.

mod hostile;
mod programs;
mod verb;

use std::path::Path;

use config::policy::{Action, Config, Key, Limit, Mark, ProtocolFilter, Unit};
use libtest_mimic::{Arguments, Trial};
use testbed::tests;
use testbed::trials::{Test, trial};
use weir::import::{Format, Import, Options, import};

const NFTABLES: &str = include_str!("samples/nftables-1.0.6.json");
const NFTABLES_SET: &str = include_str!("samples/nftables-1.0.6-set.json");
const IPTABLES: &str = include_str!("samples/iptables-save-1.8.9");
const IP6TABLES: &str = include_str!("samples/ip6tables-save-1.8.9");
const IPSET: &str = include_str!("samples/ipset-save-7.17");
const BANNED: &str = include_str!("samples/fail2ban-1.0.2-banned");
const BANIP: &str = include_str!("samples/fail2ban-1.0.2-banip");
const STATUS: &str = include_str!("samples/fail2ban-1.0.2-status");
const JAILS: &str = include_str!("samples/jail.local");

const TESTS: &[Test] = tests![
    hashlimit_rules_keep_rate_burst_key_and_action,
    connections_at_one_time_are_a_concurrent_limit,
    a_limit_that_accepts_is_one_with_the_rule_that_refuses_the_rest,
    a_rate_that_the_kernel_rounds_is_one_more,
    rules_for_ipv6_have_each_address_for_itself,
    sets_that_rules_refuse_are_ban_lists,
    an_ipset_alone_is_a_ban_list,
    a_set_without_rules_that_is_named_as_trusted_is_a_comment,
    nftables_rules_keep_rate_burst_key_and_action,
    sets_of_nftables_are_ban_lists_and_exempt_addresses,
    unsupported_matches_become_comments,
    a_table_that_forgets_sources_raises_the_rate_by_what_they_regain,
    rules_that_accept_packets_before_a_limit_keep_it_from_counting_them,
    fail2bans_bans_are_lists_and_its_jails_comments,
    an_import_is_the_same_each_time_and_names_every_rule,
    the_head_counts_what_is_marked,
];

fn main() {
    let arguments = Arguments::from_args();
    let own = [TESTS, hostile::TESTS, verb::TESTS];
    let mut trials: Vec<Trial> = own.iter().copied().flatten().map(trial).collect();
    for (program, tests) in programs::TESTS {
        let is_usable = programs::is_usable(program);
        if !is_usable {
            eprintln!("skipped: what takes {program} in a network namespace, which root may make");
        }
        trials.extend(
            tests
                .iter()
                .map(|test| trial(test).with_ignored_flag(!is_usable)),
        );
    }
    testbed::trials::run(&arguments, trials)
}

/// The set that the sample of iptables names.
const BAD: &str = "create bad hash:net family inet\nadd bad 198.51.100.0/24\n";

/// Imports texts together.
#[track_caller]
fn imported(texts: &[&str]) -> Import {
    let inputs: Vec<_> = texts
        .iter()
        .map(|text| ("input".to_owned(), text.as_bytes().to_vec()))
        .collect();
    import(&inputs, &Options::default()).unwrap()
}

/// The config of an import, which is valid.
#[track_caller]
fn config_of(import: &Import) -> Config {
    parsed(&import.config)
}

#[track_caller]
fn parsed(text: &str) -> Config {
    let loaded = config::parse(Path::new("limits.toml"), text);
    loaded
        .unwrap_or_else(|report| panic!("{:?}\n{text}", report.errors))
        .config
}

#[track_caller]
fn limit<'c>(config: &'c Config, name: &str) -> &'c Limit {
    config
        .limits
        .iter()
        .find(|limit| limit.name == name)
        .unwrap_or_else(|| panic!("no limit {name}"))
}

/// Protocol, ports, unit, rate, burst.
fn terms(limit: &Limit) -> (ProtocolFilter, Vec<String>, Unit, String, u64) {
    let ports = limit
        .ports
        .as_ref()
        .map(|ports| ports.texts())
        .unwrap_or_default();
    (
        limit.protocol,
        ports,
        limit.unit,
        limit.rates.rate_text.clone(),
        limit.rates.burst,
    )
}

fn texts(limit: &Limit) -> Vec<String> {
    limit
        .sources
        .as_ref()
        .map(|sources| sources.texts())
        .unwrap_or_default()
}

/// The reason why the rule is not carried over.
#[track_caller]
fn reason<'i>(import: &'i Import, rule: &str) -> &'i str {
    let found = import
        .not_carried_over
        .iter()
        .find(|(_, left)| left.rules.iter().any(|one| one.contains(rule)));
    found.map_or_else(
        || panic!("{rule} is not among {:#?}", import.not_carried_over),
        |(why, _)| why,
    )
}

/// The text of the config after its comments are enabled from the line that has `start`, up to the next empty line.
#[track_caller]
fn enabled(import: &Import, start: &str) -> Config {
    let lines: Vec<&str> = import.config.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.contains(start))
        .unwrap_or_else(|| panic!("no {start}\n{}", import.config));
    let block: Vec<&str> = lines[at..]
        .iter()
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.strip_prefix('#'))
        .collect();
    let block: Vec<&str> = block
        .into_iter()
        .filter(|line| !line.starts_with(' '))
        .collect();
    parsed(&format!(
        "[agent]\ninterfaces = [\"*\"]\n{}\n",
        block.join("\n")
    ))
}

/// The prefixes of a list, as text.
#[track_caller]
fn list(import: &Import, name: &str) -> Vec<String> {
    let list = import
        .lists
        .iter()
        .find(|list| list.name == name)
        .unwrap_or_else(|| panic!("no list {name}"));
    list.prefixes.iter().map(ToString::to_string).collect()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn hashlimit_rules_keep_rate_burst_key_and_action() {
    let import = imported(&[IPTABLES, BAD]);
    let config = config_of(&import);
    // 20 at once and a table that forgets after a second: 20 a second pass hashlimit.
    let web = limit(&config, "web");
    assert_eq!(
        terms(web),
        (
            ProtocolFilter::Tcp,
            strings(&["80"]),
            Unit::Connections,
            "20/s".to_owned(),
            20
        )
    );
    assert_eq!(
        (web.key, web.action, texts(web)),
        (Key::Source, Action::Drop, strings(&["0.0.0.0/0"]))
    );
    let dns = limit(&config, "dns");
    let ports = strings(&["53", "5353", "6000-6010"]);
    assert_eq!(
        terms(dns),
        (
            ProtocolFilter::Udp,
            ports,
            Unit::Packets,
            "100/min".to_owned(),
            5
        )
    );
    assert_eq!(
        (dns.key, dns.ipv4_prefix, dns.action),
        (Key::SourcePort, 24, Action::Reject)
    );
    // Three megabytes after a second's pause, as IP packets of 28 bytes in frames of 60.
    let bytes = limit(&config, "bytes");
    let megabyte = (1u64 << 20) * 60;
    assert_eq!(bytes.unit, Unit::Bytes);
    let most = (3 * megabyte).div_ceil(28);
    assert_eq!((bytes.rates.rate.count, bytes.rates.burst), (most, most));
    let all = limit(&config, "nobytes");
    assert_eq!(
        (all.key, all.unit, all.rates.rate.count),
        (
            Key::Interface,
            Unit::Bytes,
            (1_024_000u64 * 60).div_ceil(28)
        )
    );
    let mail = limit(&config, "m");
    assert_eq!(
        mail.action,
        Action::Mark(Mark {
            mark: Some(7),
            dscp: None
        })
    );
    assert_eq!(
        terms(mail),
        (
            ProtocolFilter::Tcp,
            strings(&["25"]),
            Unit::Connections,
            "5/min".to_owned(),
            5
        )
    );
    let raw = limit(&config, "all");
    assert_eq!(
        terms(raw),
        (
            ProtocolFilter::Udp,
            vec![],
            Unit::Packets,
            "10000/s".to_owned(),
            10_000
        )
    );
    for (rule, why) in [
        ("-m recent", "sliding-log"),
        ("--hashlimit-mode dstip", "forwarded"),
    ] {
        assert!(
            reason(&import, rule).contains(why),
            "{rule}: {}",
            reason(&import, rule)
        );
    }
}

fn connections_at_one_time_are_a_concurrent_limit() {
    let open = |import: &Import, name: &str| {
        let config = config_of(import);
        let limit = limit(&config, name);
        assert_eq!(
            (limit.protocol, limit.unit),
            (ProtocolFilter::Tcp, Unit::Connections)
        );
        (
            limit.concurrent,
            limit.key,
            limit.ipv4_prefix,
            limit.ipv6_prefix,
            limit.action,
        )
    };
    let reset = Action::Reject;
    assert_eq!(
        open(&imported(&[IPTABLES, BAD]), "tcp-8080"),
        (Some(20), Key::Source, 32, 64, reset)
    );
    assert_eq!(
        open(&imported(&[NFTABLES]), "tcp-80"),
        (Some(20), Key::All, 32, 64, reset)
    );
    let rules =
        |rules: &str| imported(&[&format!("*filter\n:INPUT ACCEPT [0:0]\n{rules}COMMIT\n")]);
    let import = rules(
        "-A INPUT -p tcp -m tcp --dport 443 --tcp-flags FIN,SYN,RST,ACK SYN -m connlimit --connlimit-above 5 \
         --connlimit-mask 24 --connlimit-saddr -j DROP\n",
    );
    assert_eq!(
        open(&import, "tcp-443"),
        (Some(5), Key::Source, 24, 64, Action::Drop)
    );
    assert!(
        import.config.contains("1 limit, ") && import.config.contains("0 rules or sets are not")
    );
    // Accepted up to the number, and the rest refused.
    let import = rules(
        "-A INPUT -p tcp -m tcp --dport 25 -m connlimit --connlimit-upto 3 --connlimit-mask 0 --connlimit-saddr -j ACCEPT\n\
         -A INPUT -p tcp -m tcp --dport 25 -j DROP\n",
    );
    assert_eq!(
        open(&import, "tcp-25"),
        (Some(3), Key::All, 32, 64, Action::Drop)
    );
    let set = r#"{"nftables": [{"metainfo": {"json_schema_version": 1}},
        {"chain": {"family": "inet", "table": "f", "name": "input", "type": "filter", "hook": "input", "prio": 0}},
        {"rule": {"family": "inet", "table": "f", "chain": "input", "handle": 2, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}},
            {"set": {"op": "add", "elem": {"payload": {"protocol": "ip", "field": "saddr"}}, "set": "@ssh",
                "stmt": [{"ct count": {"val": 2, "inv": true}}]}}, {"drop": null}]}}]}"#;
    assert_eq!(
        open(&imported(&[set]), "ssh"),
        (Some(2), Key::Source, 32, 64, Action::Drop)
    );
    // What has no equivalent stays a comment.
    for (rule, why) in [
        (
            "-p udp -m udp --dport 53 -m connlimit --connlimit-above 9 --connlimit-mask 32 --connlimit-saddr",
            "TCP",
        ),
        (
            "-m connlimit --connlimit-above 9 --connlimit-mask 32 --connlimit-saddr",
            "TCP",
        ),
        (
            "-p tcp -m connlimit --connlimit-above 9 --connlimit-mask 32 --connlimit-daddr",
            "by their source",
        ),
        (
            "-p tcp -m connlimit ! --connlimit-upto 9 --connlimit-mask 32 --connlimit-saddr",
            "! --connlimit-upto",
        ),
        (
            "-p tcp -m connlimit --connlimit-above 0 --connlimit-mask 32 --connlimit-saddr",
            "no such limit",
        ),
    ] {
        let import = rules(&format!("-A INPUT {rule} -j DROP\n"));
        assert_eq!(import.limits, 0, "{rule}");
        let reason = reason(&import, "connlimit");
        assert!(reason.contains(why), "{rule}: {reason}");
        assert!(import.config.contains("1 rule or set is not carried over"));
    }
}

fn a_limit_that_accepts_is_one_with_the_rule_that_refuses_the_rest() {
    let import = imported(&[IPTABLES, BAD]);
    let config = config_of(&import);
    let pair = limit(&config, "tcp-81");
    assert_eq!(
        terms(pair),
        (
            ProtocolFilter::Tcp,
            strings(&["81"]),
            Unit::Connections,
            "20/s".to_owned(),
            30
        )
    );
    assert_eq!((pair.key, pair.action), (Key::Interface, Action::Drop));
    // Weir would count the SYNs that the rule before it refuses.
    let offered = enabled(&import, "4/hour --hashlimit-burst 6");
    let words = import.config.replace("\n# ", " ");
    assert!(words.contains(
        "a rule before it refuses packets that Weir counts (iptables filter INPUT: -p tcp"
    ));
    assert!(
        !config.limits.iter().any(|limit| limit.name == "ssh") && offered.limits[0].name == "ssh"
    );
    let without: String = IPTABLES
        .lines()
        .filter(|line| !line.contains("-m recent"))
        .map(|line| format!("{line}\n"))
        .collect();
    let config = config_of(&imported(&[&without, BAD]));
    let ssh = limit(&config, "ssh");
    assert_eq!(
        terms(ssh),
        (
            ProtocolFilter::Tcp,
            strings(&["22"]),
            Unit::Connections,
            "6/h".to_owned(),
            6
        )
    );
    // The rule that refuses the rest is not there.
    let alone: String = IPTABLES
        .lines()
        .filter(|line| !line.ends_with("--ctstate NEW -j DROP"))
        .map(|line| format!("{line}\n"))
        .collect();
    let import = imported(&[&alone]);
    assert!(reason(&import, "--hashlimit-name ssh").contains("none refuses exactly these"));
}

fn a_rate_that_the_kernel_rounds_is_one_more() {
    let limits = |rate: &str, options: &str| {
        let text = format!(
            "*filter\n-A INPUT -p udp -m hashlimit --hashlimit-above {rate} {options} -j DROP\n"
        );
        config_of(&imported(&[&text])).limits[0]
            .rates
            .rate_text
            .clone()
    };
    let options = "--hashlimit-burst 5 --hashlimit-mode srcip --hashlimit-name a";
    assert_eq!(limits("6024/sec", options), "6025/s");
    assert_eq!(
        (limits("5000/sec", options), limits("30/min", options)),
        ("5000/s".to_owned(), "30/min".to_owned())
    );
}

fn rules_for_ipv6_have_each_address_for_itself() {
    let import = imported(&[IPTABLES, IP6TABLES]);
    let config = config_of(&import);
    let (v4, v6) = (limit(&config, "web"), limit(&config, "web-2"));
    assert_eq!((v4.ipv4_prefix, texts(v4)), (32, strings(&["0.0.0.0/0"])));
    assert_eq!((v6.ipv6_prefix, texts(v6)), (128, strings(&["!0.0.0.0/0"])));
    assert_eq!((v6.unit, v6.rates.burst), (Unit::Connections, 20));
}

fn sets_that_rules_refuse_are_ban_lists() {
    let sets = "create bad hash:net family inet\nadd bad 198.51.100.0/24\nadd bad 198.51.100.64/26 nomatch\n\
                add bad 192.0.2.50 timeout 599\nadd bad 192.0.2.7 comment \"nomatch timeout 5\"\n";
    let import = imported(&[IPTABLES, sets]);
    let config = config_of(&import);
    // Without the exception, which is exempt from nothing.
    assert_eq!(
        list(&import, "bad"),
        ["192.0.2.7/32", "198.51.100.0/26", "198.51.100.128/25"]
    );
    assert!(config.agent.never_limit.is_empty());
    assert!(config.ban_lists.iter().any(|list| list.name == "bad"));
    // An element that expires is not in a list that does not.
    assert!(reason(&import, "1 element of ipset bad").contains("agent ban 192.0.2.50 --for"));
    // Addresses of rules are a list of their chain; the jail's chain refuses port 22 alone.
    assert_eq!(list(&import, "INPUT"), ["192.0.2.45/32", "192.0.2.46/31"]);
    assert_eq!(list(&import, "f2b-sshd"), ["192.0.2.44/32"]);
    assert!(!config.ban_lists.iter().any(|list| list.name == "f2b-sshd"));
    assert_eq!(enabled(&import, "192.0.2.44").ban_lists[0].name, "f2b-sshd");
    // Without the set, the rule says where to find it.
    assert!(reason(&imported(&[IPTABLES]), "--match-set bad").contains("ipset save"));
}

fn an_ipset_alone_is_a_ban_list() {
    let import = imported(&[IPSET]);
    let config = config_of(&import);
    let names: Vec<&str> = config
        .ban_lists
        .iter()
        .map(|list| list.name.as_str())
        .collect();
    assert_eq!(names, ["blocked", "blocked6", "br", "nets"]);
    assert_eq!(
        list(&import, "blocked"),
        ["192.0.2.7/32", "198.51.100.0/24"]
    );
    assert_eq!(list(&import, "blocked6"), ["2001:db8::7/128"]);
    assert_eq!(list(&import, "br"), ["192.0.2.3/32", "192.0.2.4/31"]);
    assert_eq!(list(&import, "nets"), ["203.0.113.0/24"]);
    for set in ["ports", "pairs", "all"] {
        assert!(
            reason(&import, &format!("ipset {set}")).contains("not addresses alone"),
            "{set}"
        );
    }
    assert!(reason(&import, "1 element of ipset temporary").contains("expire"));
}

fn a_set_without_rules_that_is_named_as_trusted_is_a_comment() {
    let set = |name: &str| format!("create {name} hash:net\nadd {name} 192.0.2.10\n");
    for name in ["whitelist_v4", "Allowed", "trusted-hosts"] {
        let import = imported(&[&set(name)]);
        assert_eq!((import.ban_lists, import.exempt), (0, 0), "{name}");
        assert!(import.config.contains("#[[ban_list]]"), "{}", import.config);
        assert!(import.config.contains("1 rule or set is not carried over"));
    }
    let import = imported(&[&set("blocked")]);
    assert_eq!(import.ban_lists, 1);
    assert!(
        import
            .config
            .contains("leave the list out if its addresses are trusted")
    );
}

fn nftables_rules_keep_rate_burst_key_and_action() {
    let import = imported(&[NFTABLES]);
    let config = config_of(&import);
    let flood = limit(&config, "flood");
    assert_eq!(
        terms(flood),
        (
            ProtocolFilter::Udp,
            strings(&["53"]),
            Unit::Packets,
            "20/s".to_owned(),
            40
        )
    );
    assert_eq!(
        (flood.key, flood.ipv4_prefix, flood.action),
        (Key::Source, 32, Action::Drop)
    );
    assert_eq!(
        (texts(flood), flood.on_full.to_string()),
        (strings(&["0.0.0.0/0"]), "pass".to_owned())
    );
    let six = limit(&config, "flood6");
    assert_eq!(
        (six.ipv6_prefix, texts(six), six.rates.burst),
        (128, strings(&["!0.0.0.0/0"]), 40)
    );
    let nets = limit(&config, "nets");
    let ports = strings(&["123", "5000-5010"]);
    assert_eq!(
        terms(nets),
        (
            ProtocolFilter::Udp,
            ports,
            Unit::Packets,
            "100/min".to_owned(),
            5
        )
    );
    assert_eq!((nets.ipv4_prefix, nets.action), (24, Action::Reject));
    assert_eq!(
        nets.interfaces
            .as_ref()
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>(),
        ["eth1"]
    );
    let pairs = limit(&config, "pairs");
    assert_eq!(
        terms(pairs),
        (
            ProtocolFilter::Tcp,
            strings(&["22", "2222"]),
            Unit::Connections,
            "3/min".to_owned(),
            5
        )
    );
    assert_eq!(
        (pairs.key, pairs.action),
        (
            Key::SourcePort,
            Action::Mark(Mark {
                mark: Some(7),
                dscp: None
            })
        )
    );
    let udp = limit(&config, "udp");
    let (rate, burst) = (10u64 << 20, (10u64 << 20) + (20 << 10));
    assert_eq!((udp.key, udp.unit), (Key::Interface, Unit::Bytes));
    assert_eq!(
        (udp.rates.rate.count, udp.rates.burst),
        ((rate * 60).div_ceil(28), (burst * 60).div_ceil(28))
    );
    let pair = limit(&config, "tcp-443");
    assert_eq!(
        terms(pair),
        (
            ProtocolFilter::Tcp,
            strings(&["443"]),
            Unit::Connections,
            "50/s".to_owned(),
            5
        )
    );
    assert_eq!((pair.key, pair.action), (Key::Interface, Action::Drop));
    // After the rule that accepts established connections: TCP by its SYNs.
    let smtp = limit(&config, "tcp-25");
    assert_eq!(
        terms(smtp),
        (
            ProtocolFilter::Tcp,
            strings(&["25"]),
            Unit::Connections,
            "7/min".to_owned(),
            5
        )
    );
    let meter = limit(&config, "mt");
    let ports = strings(&["3000-3010"]);
    assert_eq!(
        terms(meter),
        (
            ProtocolFilter::Tcp,
            ports,
            Unit::Connections,
            "9/h".to_owned(),
            5
        )
    );
    assert_eq!(
        (meter.ipv6_prefix, texts(meter)),
        (128, strings(&["!0.0.0.0/0"]))
    );
    assert_eq!(config.limits.len(), 9, "{}", import.config);
}

fn sets_of_nftables_are_ban_lists_and_exempt_addresses() {
    let import = imported(&[NFTABLES]);
    let config = config_of(&import);
    let exempt: Vec<String> = config
        .agent
        .never_limit
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(exempt, ["192.0.2.128/28", "203.0.113.200/32"]);
    let names: Vec<&str> = config
        .ban_lists
        .iter()
        .map(|list| list.name.as_str())
        .collect();
    assert_eq!(names, ["blocked", "blocked6", "input"]);
    let range = ["203.0.113.5/32", "203.0.113.6/31", "203.0.113.8/31"];
    assert_eq!(
        list(&import, "blocked"),
        [&["192.0.2.7/32", "198.51.100.0/24"][..], &range].concat()
    );
    assert_eq!(list(&import, "blocked6"), ["2001:db8:bad::/48"]);
    assert_eq!(list(&import, "input"), ["192.0.2.61/32", "192.0.2.62/32"]);
    // A ban on a device that nft 1.0.6 does not print would be one on all interfaces.
    assert_eq!(list(&import, "ingress"), ["203.0.113.66/32"]);
    assert!(reason(&import, "1 element of inet filter set temporary").contains("expire"));
    let alone = imported(&[NFTABLES_SET]);
    assert_eq!(list(&alone, "blocked"), list(&import, "blocked"));
    assert_eq!(config_of(&alone).ban_lists.len(), 1);
}

fn unsupported_matches_become_comments() {
    let import = imported(&[NFTABLES]);
    for (rule, why) in [
        ("handle 27", "ct state"),
        ("handle 33", "icmp type"),
        ("handle 39", "ip daddr"),
        ("inet filter forward handle 42", "forwarded"),
        ("ip nat post handle 2", "outgoing"),
    ] {
        assert!(
            reason(&import, rule).contains(why),
            "{rule}: {}",
            reason(&import, rule)
        );
    }
    // Packets of established connections are accepted before it, and Weir would count them.
    let config = config_of(&import);
    for (rule, name) in [("handle 31", "udp-5060"), ("handle 34", "icmp")] {
        assert!(
            !config.limits.iter().any(|limit| limit.name == name),
            "{name}"
        );
        let offered = enabled(&import, &format!("# inet filter input {rule}"));
        assert_eq!(offered.limits[0].name, name);
    }
}

/// A ruleset of one nftables rule.
fn nft(expr: &str) -> String {
    let chain = r#"{"chain": {"family": "inet", "table": "t", "name": "c", "type": "filter", "hook": "input", "prio": 0}}"#;
    let set = r#"{"set": {"family": "inet", "table": "t", "name": "s", "type": "ipv4_addr", "timeout": 60}}"#;
    let rule = format!(
        r#"{{"rule": {{"family": "inet", "table": "t", "chain": "c", "handle": 1, "expr": [{expr}]}}}}"#
    );
    format!(r#"{{"nftables": [{chain}, {set}, {rule}]}}"#)
}

const UDP: &str =
    r#"{"match": {"op": "==", "left": {"meta": {"key": "l4proto"}}, "right": "udp"}}"#;

/// The limit of a rule with a set that forgets a source after a minute.
fn keyed(operation: &str, rate: u64, per: &str, burst: u64) -> Limit {
    let limit = format!(
        r#"{{"limit": {{"rate": {rate}, "burst": {burst}, "per": "{per}", "inv": true}}}}"#
    );
    let key = r#"{"payload": {"protocol": "ip", "field": "saddr"}}"#;
    let set = format!(
        r#"{{"set": {{"op": "{operation}", "elem": {key}, "set": "@s", "stmt": [{limit}]}}}}"#
    );
    let import = imported(&[&nft(&format!(r#"{UDP}, {set}, {{"drop": null}}"#))]);
    config_of(&import).limits[0].clone()
}

fn a_table_that_forgets_sources_raises_the_rate_by_what_they_regain() {
    let of = |limit: &Limit| (limit.rates.rate_text.clone(), limit.rates.burst);
    // The burst is back before the minute is over, by the rate alone.
    assert_eq!(
        of(&keyed("update", 20, "second", 40)),
        ("20/s".to_owned(), 40)
    );
    // 30 a minute, by pausing a minute.
    assert_eq!(
        of(&keyed("update", 10, "hour", 30)),
        ("30/min".to_owned(), 30)
    );
    // `add` forgets busy sources, too: 40 more a minute, and two bursts at the minute's end.
    assert_eq!(
        of(&keyed("add", 20, "second", 40)),
        ("1240/min".to_owned(), 80)
    );
}

fn rules_that_accept_packets_before_a_limit_keep_it_from_counting_them() {
    let accept = |expr: &str| {
        format!(
            r#"{{"rule": {{"family": "inet", "table": "t", "chain": "c", "handle": 9, "expr": [{expr}, {{"accept": null}}]}}}}"#
        )
    };
    let port = |port: u16| {
        format!(
            r#"{{"match": {{"op": "==", "left": {{"payload": {{"protocol": "udp", "field": "dport"}}}}, "right": {port}}}}}"#
        )
    };
    let limit = |port: &str| {
        format!(
            r#"{port}, {{"limit": {{"rate": 5, "burst": 5, "per": "second", "inv": true}}}}, {{"drop": null}}"#
        )
    };
    let after = |first: &str, rule: &str| {
        nft(&limit(rule)).replace(r#"{"rule""#, &format!(r#"{first}, {{"rule""#))
    };
    let limits = |text: &str| config_of(&imported(&[text])).limits.len();
    assert_eq!(limits(&after(&accept(&port(53)), &port(123))), 1);
    assert_eq!(limits(&after(&accept(&port(53)), UDP)), 0);
    let state = r#"{"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": ["established", "related"]}}"#;
    assert_eq!(limits(&after(&accept(state), &port(123))), 0);
    let loopback =
        r#"{"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "lo"}}"#;
    assert_eq!(limits(&after(&accept(loopback), &port(123))), 1);
    let trusted = r#"{"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "saddr"}}, "right": "192.0.2.1"}}"#;
    assert_eq!(limits(&after(&accept(trusted), &port(123))), 1);
}

fn fail2bans_bans_are_lists_and_its_jails_comments() {
    let import = imported(&[BANNED]);
    assert_eq!(list(&import, "sshd"), ["203.0.113.7/32", "2001:db8::7/128"]);
    assert_eq!(list(&import, "recidive"), ["203.0.113.9/32"]);
    assert_eq!(config_of(&import).ban_lists.len(), 2);
    assert_eq!(
        list(&imported(&[STATUS]), "sshd"),
        ["203.0.113.7/32", "2001:db8::7/128"]
    );
    // With times: what has an end is no list.
    let timed = imported(&[BANIP]);
    assert_eq!(list(&timed, "fail2ban"), ["203.0.113.9/32"]);
    assert!(reason(&timed, "2 elements").contains("agent ban 203.0.113.7 --for"));
    let options = Options {
        format: Some(Format::Fail2ban),
        ..Options::default()
    };
    let plain = import_one("203.0.113.7 2001:db8::7\n", &options).unwrap();
    assert_eq!(list(&plain, "fail2ban").len(), 2);

    let jails = imported(&[JAILS]);
    let exempt: Vec<String> = config_of(&jails)
        .agent
        .never_limit
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(exempt, ["192.0.2.0/24", "2001:db8::/48"]);
    assert!(
        reason(&jails, "maxretry = 3, findtime = 5m, bantime = 1h").contains("banaction = weir")
    );
    assert!(reason(&jails, "bastion.example").contains("addresses and prefixes"));
    let offered = enabled(&jails, "# jail sshd (maxretry = 3");
    let sshd = &offered.limits[0];
    assert_eq!(
        terms(sshd),
        (
            ProtocolFilter::Tcp,
            strings(&["22", "2222"]),
            Unit::Connections,
            "3/5min".to_owned(),
            3
        )
    );
    assert!(sshd.escalate.is_some() && config_of(&jails).limits.is_empty());
    assert!(!jails.config.contains("jail off"), "{}", jails.config);
}

fn import_one(text: &str, options: &Options) -> Result<Import, weir::import::ImportError> {
    import(&[("input".to_owned(), text.as_bytes().to_vec())], options)
}

fn the_head_counts_what_is_marked() {
    let whitelist = "create whitelist hash:net\nadd whitelist 192.0.2.10\n";
    for sample in [NFTABLES, IPTABLES, IP6TABLES, IPSET, whitelist] {
        let text = imported(&[sample]).config;
        let words: Vec<&str> = text.split_whitespace().collect();
        let rule = words
            .windows(2)
            .position(|pair| matches!(pair, ["rule" | "rules", "or"]));
        let counted: usize = words[rule.unwrap() - 1].parse().unwrap();
        let marked = text
            .lines()
            .filter(|line| line.starts_with("# - ") || line.starts_with("#[["))
            .count();
        assert_eq!(counted, marked, "{text}");
    }
}

fn an_import_is_the_same_each_time_and_names_every_rule() {
    for sample in [NFTABLES, IPTABLES, IPSET, BANNED, JAILS] {
        assert_eq!(imported(&[sample]), imported(&[sample]));
    }
    let import = imported(&[NFTABLES]);
    let rules = NFTABLES.matches("\"rule\": {").count();
    let handles: Vec<u64> = (1..60)
        .filter(|handle| import.config.contains(&format!("handle {handle}")))
        .collect();
    // All but loopback's, the jump, and the rules that a limit with the next rule has taken in.
    assert!(
        handles.len() + 4 >= rules,
        "{rules} rules, {handles:?}\n{}",
        import.config
    );
}
