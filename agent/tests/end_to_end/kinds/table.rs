//! The kinds of devices, and how each is made between the two namespaces.

use super::genetlink;
use crate::support::Network;

/// A kind of device.
pub struct Kind {
    pub name: &'static str,
    /// Commands of `ip` that make `kind0` on the server. The first makes the device itself.
    pub server: &'static str,
    /// Commands of `ip` on the client.
    pub client: &'static str,
    /// Where `ip` does not suffice: before the further commands of the server.
    pub configure: Option<fn(&Network)>,
    /// The client's device with the counterpart's address.
    pub counterpart: &'static str,
    /// Whether the test uses IPv6 over it.
    pub is_ipv6: bool,
    /// The interface that enforces.
    pub enforced_by: &'static str,
    /// Its hook of ingress with `attach = "auto"`.
    pub attach: &'static str,
    /// Part of the note if the agent does not attach to it.
    pub refusal: Option<&'static str>,
}

const BASE: Kind = Kind {
    name: "",
    server: "",
    client: "",
    configure: None,
    counterpart: "kind0",
    is_ipv6: false,
    enforced_by: "kind0",
    attach: "tc",
    refusal: None,
};

/// A device of the server on `port0`; the client uses the other end of that pair.
const fn on_port(name: &'static str, server: &'static str) -> Kind {
    Kind {
        name,
        server,
        counterpart: "port0",
        ..BASE
    }
}

/// A device with a counterpart of the client's.
const fn between(name: &'static str, server: &'static str, client: &'static str) -> Kind {
    Kind {
        name,
        server,
        client,
        ..BASE
    }
}

const IPSEC_STATES: &str = "xfrm state add src 10.77.0.1 dst 10.77.0.2 proto esp spi 1 reqid 1 mode tunnel SELECTOR \
    enc ecb(cipher_null) \"\" auth hmac(sha256) 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n\
    xfrm state add src 10.77.0.2 dst 10.77.0.1 proto esp spi 2 reqid 1 mode tunnel SELECTOR \
    enc ecb(cipher_null) \"\" auth hmac(sha256) 0x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n\
    xfrm policy add dir DIRECTION_1 tmpl src 10.77.0.1 dst 10.77.0.2 proto esp reqid 1 mode tunnel SELECTOR\n\
    xfrm policy add dir DIRECTION_2 tmpl src 10.77.0.2 dst 10.77.0.1 proto esp reqid 1 mode tunnel SELECTOR\n";

/// Security associations and policies of both ends, by interface or by mark.
fn protect(network: &Network, selector: &str) {
    for (namespace, directions) in [
        (network.server(), ["out", "in"]),
        (network.client(), ["in", "out"]),
    ] {
        // A policy's selector precedes its template.
        let text: String = IPSEC_STATES
            .lines()
            .map(|line| match line.split_once(" tmpl ") {
                Some((head, template)) => {
                    let template = template.replace(" SELECTOR", "");
                    format!("{head} {selector} tmpl {template}\n")
                }
                None => format!("{}\n", line.replace("SELECTOR", selector)),
            })
            .collect();
        let text = text
            .replace("DIRECTION_1", directions[0])
            .replace("DIRECTION_2", directions[1]);
        super::batch(namespace, &text);
    }
}

/// All kinds that the test covers.
pub const KINDS: &[Kind] = &[
    Kind {
        attach: "native",
        ..on_port("veth", "link set port0 name kind0")
    },
    on_port(
        "bridge",
        "link add kind0 type bridge\nlink set port0 master kind0",
    ),
    on_port(
        "bond",
        "link add kind0 type bond mode active-backup\nlink set port0 down\nlink set port0 master kind0",
    ),
    Kind {
        configure: Some(genetlink::set_team_mode),
        ..on_port(
            "team",
            "link add kind0 type team\nlink set port0 down\nlink set port0 master kind0\nlink set port0 up",
        )
    },
    Kind {
        enforced_by: "port0",
        attach: "native",
        ..on_port(
            "VRF",
            "link add kind0 type vrf table 77\nlink set port0 master kind0\naddr del 10.79.0.1/24 dev kind0\n\
             addr add 10.79.0.1/24 dev port0",
        )
    },
    on_port(
        "macvlan",
        "link add link port0 name kind0 type macvlan mode bridge",
    ),
    on_port(
        "ipvlan, mode l2",
        "link add link port0 name kind0 type ipvlan mode l2",
    ),
    Kind {
        // ARP does not pass it.
        client: "neigh add 10.79.0.1 lladdr 02:00:00:00:79:01 dev port0",
        ..on_port(
            "ipvlan, mode l3",
            "link add link port0 name kind0 type ipvlan mode l3\nneigh add 10.79.0.2 lladdr 02:00:00:00:79:02 dev port0",
        )
    },
    between(
        "VLAN",
        "link add link port0 name kind0 type vlan id 7",
        "link add link port0 name kind0 type vlan id 7",
    ),
    between(
        "macsec",
        "link add link port0 name kind0 type macsec encrypt on\n\
         macsec add kind0 tx sa 0 pn 1 on key 01 00112233445566778899aabbccddeeff\n\
         macsec add kind0 rx port 1 address 02:00:00:00:79:02\n\
         macsec add kind0 rx port 1 address 02:00:00:00:79:02 sa 0 pn 1 on key 02 ffeeddccbbaa99887766554433221100",
        "link add link port0 name kind0 type macsec encrypt on\n\
         macsec add kind0 tx sa 0 pn 1 on key 02 ffeeddccbbaa99887766554433221100\n\
         macsec add kind0 rx port 1 address 02:00:00:00:79:01\n\
         macsec add kind0 rx port 1 address 02:00:00:00:79:01 sa 0 pn 1 on key 01 00112233445566778899aabbccddeeff",
    ),
    between(
        "VXLAN",
        "link add kind0 type vxlan id 7 dstport 4789 local 10.77.0.1 remote 10.77.0.2 dev weir0",
        "link add kind0 type vxlan id 7 dstport 4789 local 10.77.0.2 remote 10.77.0.1 dev client0",
    ),
    between(
        "Geneve",
        "link add kind0 type geneve id 7 remote 10.77.0.2",
        "link add kind0 type geneve id 7 remote 10.77.0.1",
    ),
    between(
        "gre",
        "link add kind0 type gre local 10.77.0.1 remote 10.77.0.2",
        "link add kind0 type gre local 10.77.0.2 remote 10.77.0.1",
    ),
    between(
        "gre, external",
        "link add kind0 type gre external\nroute add 10.79.0.2/32 encap ip dst 10.77.0.2 dev kind0",
        "link add kind0 type gre local 10.77.0.2 remote 10.77.0.1",
    ),
    Kind {
        refusal: Some("without one `remote` address"),
        ..between(
            "gre without remote",
            "link add kind0 type gre local 10.77.0.1\nneigh add 10.79.0.2 lladdr 10.77.0.2 dev kind0",
            "link add kind0 type gre local 10.77.0.2\nneigh add 10.79.0.1 lladdr 10.77.0.1 dev kind0",
        )
    },
    between(
        "gretap",
        "link add kind0 type gretap local 10.77.0.1 remote 10.77.0.2",
        "link add kind0 type gretap local 10.77.0.2 remote 10.77.0.1",
    ),
    between(
        "erspan",
        "link add kind0 type erspan seq key 7 local 10.77.0.1 remote 10.77.0.2",
        "link add kind0 type erspan seq key 7 local 10.77.0.2 remote 10.77.0.1",
    ),
    between(
        "ip6gre",
        "link add kind0 type ip6gre local fd77::1 remote fd77::2",
        "link add kind0 type ip6gre local fd77::2 remote fd77::1",
    ),
    between(
        "ip6gretap",
        "link add kind0 type ip6gretap local fd77::1 remote fd77::2",
        "link add kind0 type ip6gretap local fd77::2 remote fd77::1",
    ),
    between(
        "ipip",
        "link add kind0 type ipip local 10.77.0.1 remote 10.77.0.2",
        "link add kind0 type ipip local 10.77.0.2 remote 10.77.0.1",
    ),
    Kind {
        is_ipv6: true,
        ..between(
            "sit",
            "link add kind0 type sit local 10.77.0.1 remote 10.77.0.2",
            "link add kind0 type sit local 10.77.0.2 remote 10.77.0.1",
        )
    },
    between(
        "ip6tnl",
        "link add kind0 type ip6tnl mode any local fd77::1 remote fd77::2",
        "link add kind0 type ip6tnl mode any local fd77::2 remote fd77::1",
    ),
    Kind {
        refusal: Some("it is an IPsec interface"),
        configure: Some(|network| protect(network, "mark 7 mask 0xffffffff")),
        ..between(
            "vti",
            "link add kind0 type vti local 10.77.0.1 remote 10.77.0.2 key 7",
            "link add kind0 type vti local 10.77.0.2 remote 10.77.0.1 key 7",
        )
    },
    Kind {
        refusal: Some("it is an IPsec interface"),
        configure: Some(|network| protect(network, "if_id 7")),
        ..between(
            "xfrm",
            "link add kind0 type xfrm dev weir0 if_id 7",
            "link add kind0 type xfrm dev client0 if_id 7",
        )
    },
    Kind {
        configure: Some(genetlink::set_wireguard_peers),
        ..between(
            "WireGuard",
            "link add kind0 type wireguard",
            "link add kind0 type wireguard",
        )
    },
];
