//! Rules of nftables and iptables that translate the destination of connections.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::target::{Target, Translations, target_of, unite};

/// The longest way through chains that is followed, as the kernel's.
const MOST_JUMPS: usize = 16;
/// A wider range of ports stands for every port, as the ephemeral ones of a gateway.
const WIDEST_RANGE: u16 = 1_024;

/// The chains of a host, by table and name.
#[derive(Debug, Default)]
pub struct Rules {
    chains: HashMap<String, Vec<Rule>>,
    /// Those that packets meet before they are routed, and that translate.
    first: Vec<String>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Rule {
    /// The TCP ports that it is for; `None` if it does not say.
    ports: Option<BTreeSet<u16>>,
    /// The addresses that it is for; `None` if it does not say, or not by address.
    destinations: Option<BTreeSet<IpAddr>>,
    /// It is for another protocol.
    is_other: bool,
    translates: Option<Target>,
    /// The chains that it sends packets to.
    jumps: Vec<String>,
}

impl Rules {
    /// The rules that `nft -j list ruleset` prints; `None` if it is something else.
    pub fn of_json(text: &str, own: &BTreeSet<IpAddr>) -> Option<Self> {
        let mut rules = Self::default();
        let document: Value = serde_json::from_str(text).ok()?;
        for entry in document["nftables"].as_array()? {
            let table = |of: &Value| format!("{}/{}", of["family"], of["table"]);
            let chain = &entry["chain"];
            if chain["type"] == "nat" && chain["hook"] == "prerouting" {
                rules
                    .first
                    .push(format!("{}/{}", table(chain), chain["name"]));
            }
            let rule = &entry["rule"];
            if rule.is_object() {
                let of = table(rule);
                let chain = format!("{of}/{}", rule["chain"]);
                rules
                    .chains
                    .entry(chain)
                    .or_default()
                    .push(Rule::of_json(rule, &of, own));
            }
        }
        Some(rules)
    }

    /// The rules that `iptables-save -t nat` prints.
    pub fn of_text(text: &str, own: &BTreeSet<IpAddr>) -> Self {
        let mut rules = Self {
            first: vec!["PREROUTING".to_owned()],
            ..Self::default()
        };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["-A", chain, rest @ ..] = words.as_slice() {
                let rule = Rule::of_words(rest, own);
                rules
                    .chains
                    .entry((*chain).to_owned())
                    .or_default()
                    .push(rule);
            }
        }
        rules
    }

    /// The ports that are translated on one of these addresses.
    pub fn translated(&self, own: &BTreeSet<IpAddr>) -> Translations {
        let mut found = Translations::new();
        for chain in &self.first {
            self.follow(chain, None, own, &mut HashSet::new(), &mut found);
        }
        found
    }

    /// Follows a chain that packets to these ports get to.
    fn follow<'r>(
        &'r self,
        chain: &'r str,
        before: Option<&BTreeSet<u16>>,
        own: &BTreeSet<IpAddr>,
        way: &mut HashSet<&'r str>,
        found: &mut Translations,
    ) {
        if way.len() == MOST_JUMPS || !way.insert(chain) {
            return;
        }
        for rule in self.chains.get(chain).into_iter().flatten() {
            let is_elsewhere = rule
                .destinations
                .as_ref()
                .is_some_and(|addresses| addresses.is_disjoint(own));
            if rule.is_other || is_elsewhere {
                continue;
            }
            let ports = rule.ports.as_ref().or(before);
            if let Some(target) = rule.translates {
                let ports = ports.into_iter().flatten();
                unite(found, ports.map(|port| (*port, target)));
            }
            for next in &rule.jumps {
                self.follow(next, ports, own, way, found);
            }
        }
        way.remove(chain);
    }
}

impl Rule {
    fn of_json(rule: &Value, table: &str, own: &BTreeSet<IpAddr>) -> Self {
        let mut found = Self::default();
        let jump = |verdict: &Value| {
            ["jump", "goto"]
                .iter()
                .find_map(|kind| verdict[kind]["target"].as_str())
                .map(|chain| format!("{table}/\"{chain}\""))
        };
        for statement in rule["expr"].as_array().into_iter().flatten() {
            found.jumps.extend(jump(statement));
            if let Some(condition) = statement.get("match") {
                found.add_match(condition);
            }
            if let Some(map) = statement.get("vmap") {
                found.add_key(map);
                let elements = map["data"]["set"].as_array().into_iter().flatten();
                found
                    .jumps
                    .extend(elements.filter_map(|element| jump(&element[1])));
            }
            if statement.get("redirect").is_some() {
                found.translates = Some(Target::ThisHost);
            }
            if let Some(to) = statement.get("dnat") {
                let address = to["addr"].as_str().and_then(|text| text.parse().ok());
                found.translates = Some(to_address(address, own));
            }
            // The target may depend on the port: dnat to tcp dport map { 80 : 10.0.0.1, … }.
            for (kind, part) in [("dnat", "addr"), ("dnat", "port"), ("redirect", "port")] {
                found.add_key(&statement[kind][part]["map"]);
            }
            // What iptables-nft makes, if nft cannot print it.
            match statement["xt"]["name"].as_str() {
                Some("DNAT") => found.translates = Some(Target::Elsewhere),
                Some("REDIRECT") => found.translates = Some(Target::ThisHost),
                _ => {}
            }
        }
        found
    }

    fn add_match(&mut self, condition: &Value) {
        let (left, right) = (&condition["left"], &condition["right"]);
        if condition["op"] == "!=" {
            return;
        }
        if left["meta"]["key"] == "l4proto" || left["payload"]["field"] == "protocol" {
            self.is_other |= !of_value(right)
                .iter()
                .any(|name| *name == "tcp" || *name == 6);
        }
        let payload = &left["payload"];
        match (payload["protocol"].as_str(), payload["field"].as_str()) {
            (Some("udp" | "sctp" | "dccp" | "udplite"), _) => self.is_other = true,
            (Some("tcp" | "th"), Some("dport")) => self.ports = ports_of(right),
            (Some("ip" | "ip6"), Some("daddr")) => self.destinations = addresses_of(right),
            _ => {}
        }
    }

    /// Adds the keys of a map from ports.
    fn add_key(&mut self, map: &Value) {
        let payload = &map["key"]["payload"];
        let is_port = payload["field"] == "dport" && payload["protocol"] != "udp";
        if let (true, Some(elements)) = (is_port, map["data"]["set"].as_array()) {
            let keys = elements.iter().map(|element| element[0].clone()).collect();
            self.ports = ports_of(&serde_json::json!({"set": Value::Array(keys)}));
        }
    }

    fn of_words(words: &[&str], own: &BTreeSet<IpAddr>) -> Self {
        let mut found = Self::default();
        for (nth, word) in words.iter().enumerate() {
            let value = words.get(nth + 1).copied().unwrap_or_default();
            if nth > 0 && words[nth - 1] == "!" {
                continue;
            }
            match *word {
                "-p" => found.is_other = !matches!(value, "tcp" | "6" | "all"),
                "--dport" | "--dports" | "--destination-port" => found.ports = ports_of_list(value),
                // After the target's name.
                "--to-destination" => found.translates = Some(to_address(destination(value), own)),
                "-d" => {
                    let address = value.split('/').next().and_then(|text| text.parse().ok());
                    let is_one = value
                        .split('/')
                        .nth(1)
                        .is_none_or(|length| matches!(length, "32" | "128"));
                    found.destinations = address
                        .filter(|_| is_one)
                        .map(|address| BTreeSet::from([address]));
                }
                "-j" | "-g" => match value {
                    "REDIRECT" => found.translates = Some(Target::ThisHost),
                    "DNAT" => found.translates = Some(Target::Elsewhere),
                    chain => found.jumps.push(chain.to_owned()),
                },
                _ => {}
            }
        }
        found
    }
}

fn to_address(address: Option<IpAddr>, own: &BTreeSet<IpAddr>) -> Target {
    address.map_or(Target::Elsewhere, |address| target_of(address, own))
}

/// The address of `10.0.0.2:80`, `[2001:db8::2]:80` or one without a port.
fn destination(text: &str) -> Option<IpAddr> {
    let with_port = text.parse().map(|socket: SocketAddr| socket.ip());
    with_port.ok().or_else(|| text.parse().ok())
}

/// The elements of a set, or the value itself.
fn of_value(value: &Value) -> Vec<&Value> {
    value["set"]
        .as_array()
        .map_or_else(|| vec![value], |elements| elements.iter().collect())
}

/// The ports of a value: a number, a range, or a set of both. `None` if they are unknown, or too many to be meant.
fn ports_of(value: &Value) -> Option<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for element in of_value(value) {
        let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
        match port(element) {
            Some(port) => drop(ports.insert(port)),
            None => {
                let range = &element["range"];
                add_range(&mut ports, port(&range[0])?, port(&range[1])?)?;
            }
        }
    }
    Some(ports)
}

/// The same of `80,443,8000:8010`.
fn ports_of_list(text: &str) -> Option<BTreeSet<u16>> {
    let mut ports = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once(':').unwrap_or((part, part));
        add_range(&mut ports, first.parse().ok()?, last.parse().ok()?)?;
    }
    Some(ports)
}

fn add_range(ports: &mut BTreeSet<u16>, first: u16, last: u16) -> Option<()> {
    if last.checked_sub(first)? >= WIDEST_RANGE {
        return None;
    }
    ports.extend(first..=last);
    Some(())
}

/// The addresses of a value; `None` if one of them is a network.
fn addresses_of(value: &Value) -> Option<BTreeSet<IpAddr>> {
    of_value(value)
        .into_iter()
        .map(|element| element.as_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> BTreeSet<IpAddr> {
        BTreeSet::from(["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()])
    }

    fn of_json(expressions: &[&str]) -> Vec<(u16, Target)> {
        let mut entries = vec![
            r#"{"metainfo": {"version": "1.0.6"}}"#.to_owned(),
            r#"{"chain": {"family": "inet", "table": "nat", "name": "pre", "type": "nat", "hook": "prerouting"}}"#.to_owned(),
            r#"{"chain": {"family": "inet", "table": "nat", "name": "post", "type": "nat", "hook": "postrouting"}}"#.to_owned(),
        ];
        entries.extend(expressions.iter().map(|rule| {
            let (chain, expressions) = rule.split_once(": ").unwrap();
            format!(
                r#"{{"rule": {{"family": "inet", "table": "nat", "chain": "{chain}", "expr": [{expressions}]}}}}"#
            )
        }));
        let text = format!(r#"{{"nftables": [{}]}}"#, entries.join(","));
        Rules::of_json(&text, &own())
            .unwrap()
            .translated(&own())
            .into_iter()
            .collect()
    }

    fn dport(right: &str) -> String {
        format!(
            r#"{{"match": {{"op": "==", "left": {{"payload": {{"protocol": "tcp", "field": "dport"}}}}, "right": {right}}}}}"#
        )
    }

    #[test]
    fn rules_of_nftables_name_their_ports_on_any_chain_of_the_way() {
        let daddr = |address: &str| {
            format!(
                r#"{{"match": {{"op": "==", "left": {{"payload": {{"protocol": "ip", "field": "daddr"}}}}, "right": "{address}"}}}}"#
            )
        };
        let rules = [
            format!("pre: {}, {{\"jump\": {{\"target\": \"web\"}}}}", dport(r#"{"set": [80, {"range": [8000, 8002]}]}"#)),
            "web: {\"dnat\": {\"addr\": \"10.88.0.2\", \"port\": 80}}".to_owned(),
            format!("pre: {}, {{\"redirect\": {{\"port\": 8443}}}}", dport("443")),
            format!("pre: {}, {}, {{\"redirect\": null}}", daddr("192.0.2.1"), dport("25")),
            format!("pre: {}, {}, {{\"redirect\": null}}", daddr("10.96.0.1"), dport("26")),
            format!(
                "pre: {}, {{\"dnat\": {{\"addr\": \"192.0.2.1\", \"port\": 2400}}}}",
                dport("24")
            ),
            // Not to what the port says, or not translated, or not before routing.
            format!("pre: {}, {{\"accept\": null}}", dport("22")),
            format!("post: {}, {{\"dnat\": {{\"addr\": \"10.88.0.3\"}}}}", dport("23")),
            format!("pre: {}, {{\"redirect\": null}}", dport("53").replace("tcp", "udp")),
            format!("pre: {}, {{\"redirect\": null}}", dport(r#"{"range": [1024, 65535]}"#)),
            "pre: {\"dnat\": {\"addr\": \"10.88.0.4\"}}".to_owned(),
            // Maps from ports, and what iptables-nft makes.
            r#"pre: {"dnat": {"addr": {"map": {"key": {"payload": {"protocol": "tcp", "field": "dport"}}, "data": {"set": [[81, "10.88.0.2"], [82, "10.88.0.3"]]}}}}}"#.to_owned(),
            r#"pre: {"vmap": {"key": {"payload": {"protocol": "tcp", "field": "dport"}}, "data": {"set": [[90, {"jump": {"target": "web"}}], [91, {"goto": {"target": "web"}}]]}}}"#.to_owned(),
            format!("pre: {}, {{\"xt\": {{\"type\": \"target\", \"name\": \"DNAT\"}}}}", dport("92")),
            // A circle, which the kernel refuses.
            "web: {\"jump\": {\"target\": \"web\"}}".to_owned(),
        ];
        let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
        let found = of_json(&rules);
        let of = |target| -> Vec<u16> {
            let of_target = found.iter().filter(|(_, found)| *found == target);
            of_target.map(|(port, _)| *port).collect()
        };
        assert_eq!(of(Target::ThisHost), [24, 25, 443]);
        let elsewhere = [80, 81, 82, 90, 91, 92, 8000, 8001, 8002];
        assert_eq!(of(Target::Elsewhere), elsewhere);
        assert_eq!(of_json(&[]), []);
        assert!(Rules::of_json("no JSON", &own()).is_none());
        assert!(Rules::of_json("{}", &own()).is_none());
    }

    #[test]
    fn rules_of_iptables_name_their_ports_on_any_chain_of_the_way() {
        let text = "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n\
            -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
            -A OUTPUT -p tcp --dport 79 -j DNAT --to-destination 10.0.0.1\n\
            -A DOCKER ! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80\n\
            -A DOCKER ! -i docker0 -p udp -m udp --dport 53 -j DNAT --to-destination 172.17.0.2:53\n\
            -A DOCKER -d 192.0.2.1/32 -p tcp -m multiport --dports 443,8000:8001 -j REDIRECT --to-ports 9000\n\
            -A DOCKER -d 10.96.0.1/32 -p tcp -m tcp --dport 6443 -j DNAT --to-destination 10.0.0.1\n\
            -A DOCKER -p tcp -m tcp --dport 81 -j DNAT --to-destination [2001:db8::1]:8081\n\
            -A PREROUTING -p tcp ! --dport 22 -j DOCKER\nCOMMIT\n";
        let found = Rules::of_text(text, &own()).translated(&own());
        let found: Vec<_> = found.into_iter().collect();
        assert_eq!(
            found,
            [
                (81, Target::ThisHost),
                (443, Target::ThisHost),
                (8000, Target::ThisHost),
                (8001, Target::ThisHost),
                (8080, Target::Elsewhere)
            ]
        );
    }
}
