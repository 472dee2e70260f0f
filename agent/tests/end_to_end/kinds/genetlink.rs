//! Devices that `ip` cannot configure alone: a team's mode, and WireGuard's keys and peers, by generic netlink.

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_GENERIC};

use crate::support::Network;

/// `NLM_F_REQUEST | NLM_F_ACK` of uapi/linux/netlink.h.
const REQUEST: u16 = 1 | 4;
const NESTED: u16 = 1 << 15;

/// Key pairs: private, public. The server's first.
const KEYS: [[&str; 2]; 2] = [
    [
        "77076d0a7318a57d3c16c17251b26645df4c2f92ebc0992ac177fba51db92c2a",
        "f8a9535a2d2ff605e8e144d54f4ef5c62313a2055dbb21fddd3fd9c299eb015d",
    ],
    [
        "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
    ],
];
const WIREGUARD_PORT: u16 = 51_820;

/// Makes the server's team pass packets, before it has ports.
pub fn set_team_mode(network: &Network) {
    const STRING: u8 = 5;
    let index = network.index("kind0");
    let option = [
        attribute(1, b"mode\0"),
        attribute(3, &[STRING]),
        attribute(4, b"roundrobin\0"),
    ];
    let options = nested(2, &[nested(1, &option)]);
    network.in_server(|| set("team\0", &[attribute(1, &index.to_ne_bytes()), options]));
}

/// Gives both ends of a WireGuard tunnel their keys and each other as a peer.
pub fn set_wireguard_peers(network: &Network) {
    let end = |own: usize| {
        let other = 1 - own;
        let mut endpoint = libc::AF_INET.to_ne_bytes()[..2].to_vec();
        endpoint.extend(WIREGUARD_PORT.to_be_bytes());
        endpoint.extend([10, 77, 0, 1 + other as u8]);
        endpoint.extend([0; 8]);
        let allowed = [
            attribute(1, &(libc::AF_INET as u16).to_ne_bytes()),
            attribute(2, &[10, 79, 0, 1 + other as u8]),
            attribute(3, &[32]),
        ];
        let peer = [
            attribute(1, &key(KEYS[other][1])),
            attribute(4, &endpoint),
            nested(9, &[nested(0, &allowed)]),
        ];
        let device = [
            attribute(2, b"kind0\0"),
            attribute(3, &key(KEYS[own][0])),
            attribute(6, &WIREGUARD_PORT.to_ne_bytes()),
            nested(8, &[nested(0, &peer)]),
        ];
        set("wireguard\0", &device);
    };
    network.in_server(|| end(0));
    network.in_client(|| end(1));
}

fn key(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// Sends command 1 of a family, which both families use to set options.
fn set(family: &str, attributes: &[Vec<u8>]) {
    const CONTROLLER: u16 = 16;
    const GET_FAMILY: u8 = 3;
    let reply = exchange(CONTROLLER, GET_FAMILY, &[attribute(2, family.as_bytes())]);
    // After the headers of netlink and generic netlink.
    let mut rest = &reply[20..];
    let number = loop {
        let [length, kind] = [0, 2].map(|at| u16::from_ne_bytes([rest[at], rest[at + 1]]));
        if kind == 1 {
            break u16::from_ne_bytes([rest[4], rest[5]]);
        }
        rest = &rest[usize::from(length).next_multiple_of(4)..];
    };
    exchange(number, 1, attributes);
}

/// Sends a request, and returns the first reply, which is no error.
fn exchange(family: u16, command: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    const ERROR: u16 = 2;
    let body = attributes.concat();
    let mut message = (20 + body.len() as u32).to_ne_bytes().to_vec();
    message.extend(family.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend([command, 1, 0, 0]);
    message.extend(body);
    let mut socket = Socket::new(NETLINK_GENERIC).unwrap();
    socket.bind_auto().unwrap();
    socket.connect(&SocketAddr::new(0, 0)).unwrap();
    socket.send(&message, 0).unwrap();
    let (reply, _) = socket.recv_from_full().unwrap();
    if u16::from_ne_bytes([reply[4], reply[5]]) == ERROR {
        let code = i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]);
        // A team also reports the change to a multicast group, and returns this error if that has no members.
        assert!(
            code == 0 || code == -libc::ESRCH,
            "{}",
            std::io::Error::from_raw_os_error(-code)
        );
    }
    reply
}

fn nested(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NESTED, &attributes.concat())
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + value.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}
