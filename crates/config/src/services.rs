//! Ports by the service names of the Internet Assigned Numbers Authority (IANA).

/// A built-in table: a config has the same meaning on every host, whatever its /etc/services contains.
const SERVICES: [(&str, u16); 39] = [
    ("amqp", 5672),
    ("bgp", 179),
    ("dns", 53),
    ("domain", 53),
    ("domain-s", 853),
    ("ftp", 21),
    ("git", 9418),
    ("http", 80),
    ("http-alt", 8080),
    ("https", 443),
    ("imap", 143),
    ("imaps", 993),
    ("ipp", 631),
    ("ipsec-nat-t", 4500),
    ("irc", 194),
    ("isakmp", 500),
    ("kerberos", 88),
    ("ldap", 389),
    ("ldaps", 636),
    ("mqtt", 1883),
    ("ms-wbt-server", 3389),
    ("mysql", 3306),
    ("nfs", 2049),
    ("ntp", 123),
    ("openvpn", 1194),
    ("pop3", 110),
    ("pop3s", 995),
    ("postgresql", 5432),
    ("rdp", 3389),
    ("redis", 6379),
    ("rsync", 873),
    ("sip", 5060),
    ("smtp", 25),
    ("snmp", 161),
    ("ssh", 22),
    ("submission", 587),
    ("submissions", 465),
    ("syslog", 514),
    ("telnet", 23),
];

/// The port of a service.
pub fn port(name: &str) -> Option<u16> {
    SERVICES
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, port)| *port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_their_ports() {
        assert_eq!(
            (port("ssh"), port("HTTPS"), port("dns"), port("nonsense")),
            (Some(22), Some(443), Some(53), None)
        );
        assert!(
            SERVICES.windows(2).all(|pair| pair[0].0 < pair[1].0),
            "sorted, each once"
        );
    }
}
