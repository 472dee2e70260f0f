//! Rules of nftables and iptables that translate the destination of connections.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

use super::named::{Kind, Name, NamedSets};
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

/// The translated ports of a set of rules.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Translated {
    pub ports: Translations,
    /// The ports of a rule are unknown: it names none, too many, or a set that cannot be listed.
    has_unknown: bool,
    /// The same of rules that only iptables prints whole.
    has_unknown_of_iptables: bool,
}

impl Translated {
    /// Whether rules translate ports that are unknown. `by_iptables`: iptables has printed its rules, too.
    pub const fn has_unknown_ports(&self, by_iptables: bool) -> bool {
        self.has_unknown || (self.has_unknown_of_iptables && !by_iptables)
    }
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
    /// nft does not print all of its conditions.
    is_of_iptables: bool,
    /// The chains that it sends packets to.
    jumps: Vec<String>,
}

impl Rules {
    /// The rules that `nft -j list ruleset` prints, on the ways from chains that translate; `None` if it is something else.
    pub fn of_json(
        text: &str,
        own: &BTreeSet<IpAddr>,
        list: &mut dyn FnMut(&Name) -> Option<Value>,
    ) -> Option<Self> {
        let document: Value = serde_json::from_str(text).ok()?;
        let entries = document["nftables"].as_array()?;
        let table = |of: &Value| format!("{}/{}", of["family"], of["table"]);
        let chains = entries.iter().map(|entry| &entry["chain"]);
        let first = chains.filter(|chain| chain["type"] == "nat" && chain["hook"] == "prerouting");
        let mut rules = Self {
            first: first
                .map(|chain| format!("{}/{}", table(chain), chain["name"]))
                .collect(),
            ..Self::default()
        };
        let mut printed: HashMap<String, Vec<&Value>> = HashMap::new();
        for rule in entries.iter().map(|entry| &entry["rule"]) {
            let chain = format!("{}/{}", table(rule), rule["chain"]);
            printed.entry(chain).or_default().push(rule);
        }
        let mut sets = NamedSets::new(list);
        let mut pending = rules.first.clone();
        while let Some(chain) = pending.pop() {
            if rules.chains.contains_key(&chain) {
                continue;
            }
            let of_chain = printed.get(&chain).into_iter().flatten();
            let of_chain: Vec<Rule> = of_chain
                .map(|rule| Rule::of_json(rule, &table(rule), own, &mut sets))
                .collect();
            pending.extend(of_chain.iter().flat_map(|rule| rule.jumps.iter().cloned()));
            rules.chains.insert(chain, of_chain);
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
    pub fn translated(&self, own: &BTreeSet<IpAddr>) -> Translated {
        let mut found = Translated::default();
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
        found: &mut Translated,
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
            match (rule.translates, ports) {
                (Some(target), Some(ports)) => {
                    unite(&mut found.ports, ports.iter().map(|port| (*port, target)));
                }
                (Some(_), None) if rule.is_of_iptables => found.has_unknown_of_iptables = true,
                (Some(_), None) => found.has_unknown = true,
                (None, _) => {}
            }
            for next in &rule.jumps {
                self.follow(next, ports, own, way, found);
            }
        }
        way.remove(chain);
    }
}

impl Rule {
    fn of_json(
        rule: &Value,
        table: &str,
        own: &BTreeSet<IpAddr>,
        sets: &mut NamedSets<'_>,
    ) -> Self {
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
                found.add_match(condition, &mut |of| sets.elements(rule, Kind::Set, of), own);
            }
            if let Some(map) = statement.get("vmap") {
                match sets.elements(rule, Kind::Map, &map["data"]) {
                    Some(elements) => {
                        found.add_keys(&map["key"], &elements, own);
                        found
                            .jumps
                            .extend(elements.iter().filter_map(|element| jump(&element[1])));
                    }
                    // It may lead to a chain that translates.
                    None => found.translates = Some(Target::Elsewhere),
                }
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
                let map = &statement[kind][part]["map"];
                if parts(&map["key"]).any(is_port)
                    && let Some(elements) = sets.elements(rule, Kind::Map, &map["data"])
                {
                    found.add_keys(&map["key"], &elements, own);
                }
            }
            // What iptables-nft makes, if nft cannot print it.
            found.is_of_iptables |= statement.get("xt").is_some();
            match statement["xt"]["name"].as_str() {
                Some("DNAT") => found.translates = Some(Target::Elsewhere),
                Some("REDIRECT") => found.translates = Some(Target::ThisHost),
                _ => {}
            }
        }
        found
    }

    fn add_match(
        &mut self,
        condition: &Value,
        elements: &mut dyn FnMut(&Value) -> Option<Vec<Value>>,
        own: &BTreeSet<IpAddr>,
    ) {
        let (left, right) = (&condition["left"], &condition["right"]);
        if condition["op"] != "==" && condition["op"] != "in" {
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
            (Some("ip" | "ip6"), Some("daddr")) => {
                self.destinations = elements(right).and_then(|of| addresses_of(&of));
            }
            _ if parts(left).any(is_port) => match elements(right) {
                Some(elements) => self.add_keys(left, &elements, own),
                None => self.ports = None,
            },
            _ => {}
        }
    }

    /// Adds the ports of elements with this key, which may have other parts: the protocol, an address.
    fn add_keys(&mut self, key: &Value, elements: &[Value], own: &BTreeSet<IpAddr>) {
        let Some(nth) = parts(key).position(is_port) else {
            return;
        };
        let is_ours = |element: &&Value| {
            parts(key).zip(parts(element)).all(|(key, part)| {
                if key["meta"]["key"] == "l4proto" || key["payload"]["field"] == "protocol" {
                    *part == "tcp" || *part == 6
                } else if key["payload"]["field"] == "daddr" {
                    // A network may contain an own address.
                    let address: Option<IpAddr> = part.as_str().and_then(|part| part.parse().ok());
                    address.is_none_or(|address| own.contains(&address))
                } else {
                    true
                }
            })
        };
        let keys = elements.iter().map(key_of).filter(is_ours);
        let ports = keys.map(|key| parts(key).nth(nth).cloned().unwrap_or_default());
        self.ports = ports_of(&serde_json::json!({"set": ports.collect::<Vec<Value>>()}));
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

/// The parts of a concatenation, or the value itself.
fn parts(value: &Value) -> impl Iterator<Item = &Value> {
    let parts = value["concat"].as_array();
    parts
        .map_or_else(|| std::slice::from_ref(value), Vec::as_slice)
        .iter()
}

fn is_port(part: &Value) -> bool {
    let payload = &part["payload"];
    payload["field"] == "dport" && (payload["protocol"] == "tcp" || payload["protocol"] == "th")
}

/// The key of an element of a set or map, which may have a time or a comment.
fn key_of(element: &Value) -> &Value {
    let key = match element.as_array() {
        Some(pair) => pair.first().unwrap_or(element),
        None => element,
    };
    key["elem"].get("val").unwrap_or(key)
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

/// The addresses of elements; `None` if one of them is a network.
fn addresses_of(elements: &[Value]) -> Option<BTreeSet<IpAddr>> {
    let keys = elements.iter().map(key_of);
    keys.map(|key| key.as_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> BTreeSet<IpAddr> {
        BTreeSet::from(["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()])
    }

    fn translated(expressions: &[&str]) -> Translated {
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
        let mut list = |name: &Name| {
            let printed = match (name.kind.word(), name.name.as_str()) {
                ("set", "ports") => {
                    r#"{"set": {"name": "ports", "elem": [70, {"range": [71, 72]}, {"elem": {"val": 73, "timeout": 9}}]}}"#
                }
                ("set", "others") => {
                    r#"{"set": {"name": "others", "elem": ["10.96.0.1", "10.96.0.2"]}}"#
                }
                ("set", "empty") => r#"{"set": {"name": "empty"}}"#,
                ("map", "services") => {
                    r#"{"map": {"name": "services", "elem": [
                        [{"concat": ["tcp", "192.0.2.1", 74]}, "10.88.0.2"],
                        [{"elem": {"val": {"concat": [6, "192.0.2.0/24", 75]}, "comment": "web"}}, "10.88.0.2"],
                        [{"concat": ["udp", "192.0.2.1", 76]}, "10.88.0.2"],
                        [{"concat": ["tcp", "10.96.0.1", 77]}, "10.88.0.2"]]}}"#
                }
                _ => return None,
            };
            serde_json::from_str(&format!(
                r#"{{"nftables": [{{"metainfo": {{}}}}, {printed}]}}"#
            ))
            .unwrap()
        };
        Rules::of_json(&text, &own(), &mut list)
            .unwrap()
            .translated(&own())
    }

    fn of_json(expressions: &[&str]) -> Vec<(u16, Target)> {
        translated(expressions).ports.into_iter().collect()
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
        for text in ["no JSON", "{}"] {
            assert!(Rules::of_json(text, &own(), &mut |_| None).is_none());
        }
    }

    #[test]
    fn ports_of_named_sets_and_of_concatenations_are_known() {
        let dnat = r#"{"dnat": {"addr": "10.88.0.2"}}"#;
        let of =
            |rule: &str| -> Vec<u16> { of_json(&[rule]).iter().map(|(port, _)| *port).collect() };
        let set = |name: &str| format!("pre: {}, {dnat}", dport(&format!("\"@{name}\"")));
        assert_eq!(of(&set("ports")), [70, 71, 72, 73]);
        assert_eq!(of(&set("empty")), [0; 0]);
        assert!(!translated(&[&set("empty")]).has_unknown_ports(false));
        assert!(translated(&[&set("unknown")]).has_unknown_ports(false));
        let payload = |protocol: &str, field: &str| {
            format!(r#"{{"payload": {{"protocol": "{protocol}", "field": "{field}"}}}}"#)
        };
        let key = format!(
            r#"{{"concat": [{{"meta": {{"key": "l4proto"}}}}, {}, {}]}}"#,
            payload("ip", "daddr"),
            payload("th", "dport")
        );
        let map = |name: &str| {
            format!(
                r#"pre: {{"dnat": {{"addr": {{"map": {{"key": {key}, "data": "@{name}"}}}}}}}}"#
            )
        };
        assert_eq!(of(&map("services")), [74, 75]);
        assert!(translated(&[&map("unknown")]).has_unknown_ports(false));
        let verdicts = format!(r#"pre: {{"vmap": {{"key": {key}, "data": "@unknown"}}}}"#);
        assert!(translated(&[&verdicts]).has_unknown_ports(false));
        let pair = r#"{"set": [{"concat": ["tcp", "192.0.2.1", 78]}, {"concat": ["tcp", "10.96.0.1", 79]}]}"#;
        let pair =
            format!(r#"pre: {{"match": {{"op": "==", "left": {key}, "right": {pair}}}}}, {dnat}"#);
        assert_eq!(of(&pair), [78]);
        // Of all ports, or of too many.
        assert!(translated(&[&format!("pre: {dnat}")]).has_unknown_ports(false));
        let wide = format!("pre: {}, {dnat}", dport(r#"{"range": [1024, 65535]}"#));
        assert!(translated(&[&wide]).has_unknown_ports(false));
        let compared = format!("pre: {}, {dnat}", dport("1024").replace("==", ">="));
        assert!(translated(&[&compared]).has_unknown_ports(true));
        // Which only iptables prints whole.
        let xt = r#"pre: {"xt": {"type": "match", "name": "multiport"}}, {"xt": {"type": "target", "name": "DNAT"}}"#;
        let xt = translated(&[xt]);
        assert!(xt.has_unknown_ports(false) && !xt.has_unknown_ports(true));
        // To others' addresses, of a named set.
        let to = dport("\"@others\"")
            .replace("\"tcp\"", "\"ip\"")
            .replace("dport", "daddr");
        assert_eq!(of(&format!("pre: {to}, {}, {dnat}", dport("60"))), [0; 0]);
        assert!(!translated(&["pre: {\"accept\": null}"]).has_unknown_ports(false));
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
        assert!(!found.has_unknown_ports(false));
        let found: Vec<_> = found.ports.into_iter().collect();
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
