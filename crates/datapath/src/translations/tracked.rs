//! Connections that connection tracking has translated the destination of.

use std::net::IpAddr;
use std::{io, iter};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};
use socket2::{SockFilter, SockRef};

// From Linux's uapi/linux/netfilter/nfnetlink.h and nfnetlink_conntrack.h.
const HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
const NFNLGRP_CONNTRACK_NEW: u32 = 1;
/// `NFNL_SUBSYS_CTNETLINK`, `IPCTNL_MSG_CT_GET`.
const GET: u16 = 1 << 8 | 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// The type without the flags for nested and big-endian attributes.
const TYPE: u16 = 0x3fff;
const TUPLE_ORIGINAL: u16 = 1;
const TUPLE_REPLY: u16 = 2;
const STATUS: u16 = 3;
const STATUS_MASK: u16 = 26;
/// `IPS_DST_NAT`.
const TRANSLATED: u32 = 1 << 5;
const TUPLE_IP: u16 = 1;
const TUPLE_PROTOCOL: u16 = 2;
const IP_V4_SOURCE: u16 = 1;
const IP_V4_DESTINATION: u16 = 2;
const IP_V6_SOURCE: u16 = 3;
const IP_V6_DESTINATION: u16 = 4;
const PROTOCOL_NUMBER: u16 = 1;
const PROTOCOL_DESTINATION_PORT: u16 = 3;
const TCP: u8 = 6;

/// Longer than any report of a connection.
const LONGEST_REPORT: usize = 8 << 10;
/// The most reports that are read at a time: more than the buffer has room for.
const MOST_REPORTS: usize = 16_384;
/// The bytes that the kernel keeps of reports.
const BUFFER: usize = 2 << 20;
/// The most ports that are left out.
const MOST_LEFT_OUT: usize = 256;

/// A connection that was translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translated {
    /// Its client.
    pub from: IpAddr,
    /// The address and port that its client means.
    pub meant: IpAddr,
    pub port: u16,
    /// The address that it was sent to.
    pub sent_to: IpAddr,
}

/// New TCP connections whose destination was translated, also those that end before they could be listed. Connection tracking
/// reports each new connection while this exists.
pub struct NewConnections {
    socket: Socket,
    /// The ports whose connections are not reported.
    without: Vec<u16>,
}

impl NewConnections {
    /// # Errors
    ///
    /// When the kernel has no netfilter, or refuses the filter.
    pub fn follow() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_NETFILTER)?;
        SockRef::from(&socket).attach_filter(&only_translated(&[]))?;
        socket.set_rx_buf_sz(BUFFER)?;
        socket.bind_auto()?;
        socket.add_membership(NFNLGRP_CONNTRACK_NEW)?;
        socket.set_non_blocking(true)?;
        Ok(Self {
            socket,
            without: Vec::new(),
        })
    }

    /// Leaves out ports that are known, so that a flood of their connections hides no others; of many, some.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the filter.
    pub fn leave_out(&mut self, known: impl Iterator<Item = u16>) -> io::Result<()> {
        let known: Vec<u16> = known.take(MOST_LEFT_OUT).collect();
        if known != self.without {
            SockRef::from(&self.socket).attach_filter(&only_translated(&known))?;
            self.without = known;
        }
        Ok(())
    }

    /// Those that were reported since the last call. Of more than the kernel keeps, some are missing.
    #[must_use]
    pub fn read(&self) -> Vec<Translated> {
        let mut found = Vec::new();
        let mut message = Vec::with_capacity(LONGEST_REPORT);
        for _ in 0..MOST_REPORTS {
            message.clear();
            match self.socket.recv(&mut message, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // ENOBUFS: there were more.
                Err(_) => {}
                Ok(_) => found.extend(reported(&message)),
            }
        }
        found
    }
}

/// A filter for messages of connection tracking, as of BSD: it passes TCP connections whose status has [`TRANSLATED`], except
/// those to some ports.
fn only_translated(except: &[u16]) -> Vec<SockFilter> {
    // From Linux's uapi/linux/filter.h and bpf_common.h.
    const LOAD: u16 = 0x00;
    const LOAD_X: u16 = 0x01;
    const STORE: u16 = 0x02;
    const LOAD_STORED: u16 = 0x60;
    const LOAD_AT: u16 = 0x20;
    const LOAD_AT_X: u16 = 0x40;
    const LOAD_HALF_AT_X: u16 = 0x48;
    const LOAD_BYTE_AT_X: u16 = 0x50;
    const COPY_TO_X: u16 = 0x07;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP_IF_SET: u16 = 0x45;
    const RETURN: u16 = 0x06;
    /// `SKF_AD_OFF` and `SKF_AD_NLATTR`: the place of the attribute of type X, from place A on; 0 without one.
    const ATTRIBUTE: u32 = 0xffff_f000 + 12;
    /// `SKF_AD_NLATTR_NEST`: the same within the attribute at place A.
    const NESTED: u32 = 0xffff_f000 + 16;
    const PASS: u32 = u32::MAX;
    const DROP: u32 = 0;
    let instruction = |code, k| SockFilter::new(code, 0, 0, k);
    let drop_unless = |code, k| [SockFilter::new(code, 1, 0, k), instruction(RETURN, DROP)];
    let attributes = || instruction(LOAD, (HEADER + FAMILY_HEADER) as u32);
    let find = |kind: u16, how| [instruction(LOAD_X, kind.into()), instruction(LOAD_AT, how)];
    let load = |code| {
        [
            instruction(COPY_TO_X, 0),
            instruction(code, ATTRIBUTE_HEADER as u32),
        ]
    };
    let mut filter = vec![attributes()];
    filter.extend(find(STATUS, ATTRIBUTE));
    filter.extend(load(LOAD_AT_X));
    filter.extend(drop_unless(JUMP_IF_SET, TRANSLATED));
    filter.push(attributes());
    filter.extend(find(TUPLE_ORIGINAL, ATTRIBUTE));
    filter.extend(find(TUPLE_PROTOCOL, NESTED));
    filter.push(instruction(STORE, 0));
    filter.extend(find(PROTOCOL_NUMBER, NESTED));
    filter.extend(load(LOAD_BYTE_AT_X));
    filter.extend(drop_unless(JUMP_IF_EQUAL, TCP.into()));
    filter.push(instruction(LOAD_STORED, 0));
    filter.extend(find(PROTOCOL_DESTINATION_PORT, NESTED));
    filter.extend(load(LOAD_HALF_AT_X));
    for port in except {
        filter.push(SockFilter::new(JUMP_IF_EQUAL, 0, 1, (*port).into()));
        filter.push(instruction(RETURN, DROP));
    }
    filter.push(instruction(RETURN, PASS));
    filter
}

/// The translated connections of a message.
fn reported(message: &[u8]) -> Vec<Translated> {
    let entries = messages(message);
    entries
        .filter_map(|(_, content)| content.get(FAMILY_HEADER..).and_then(entry))
        .collect()
}

/// Reads the TCP connections whose destination was translated. Kernels before 5.18 send all others, too.
pub fn translated() -> io::Result<Vec<Translated>> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(&request(), 0)?;
    let mut found = Vec::new();
    loop {
        let (part, _) = socket.recv_from_full()?;
        for (kind, message) in messages(&part) {
            match kind {
                NLMSG_DONE => return Ok(found),
                NLMSG_ERROR => {
                    let code = message.get(..4).and_then(|code| code.try_into().ok());
                    let code = code.map_or(0, i32::from_ne_bytes);
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => found.extend(message.get(FAMILY_HEADER..).and_then(entry)),
            }
        }
    }
}

/// A dump of all families, with a filter by status.
fn request() -> Vec<u8> {
    let attributes = [(STATUS, TRANSLATED), (STATUS_MASK, TRANSLATED)];
    let length = HEADER + FAMILY_HEADER + attributes.len() * 8;
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(GET.to_ne_bytes());
    bytes.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([0; FAMILY_HEADER]);
    for (kind, value) in attributes {
        bytes.extend(8_u16.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value.to_be_bytes());
    }
    bytes
}

/// The types and contents of the messages, up to one that is broken.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    iter::from_fn(move || {
        let (kind, content, rest) = next(bytes)?;
        bytes = rest;
        Some((kind, content))
    })
}

/// The type and the content of the first message, and what follows it.
fn next(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let kind = u16::from_ne_bytes(bytes.get(4..6)?.try_into().ok()?);
    let content = bytes.get(HEADER..length)?;
    Some((
        kind,
        content,
        bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]),
    ))
}

/// An entry, if it is TCP and its destination was translated.
fn entry(attributes: &[u8]) -> Option<Translated> {
    let status = find(attributes, STATUS)?;
    let is_translated = u32::from_be_bytes(status.try_into().ok()?) & TRANSLATED != 0;
    let original = find(attributes, TUPLE_ORIGINAL)?;
    let protocol = find(original, TUPLE_PROTOCOL)?;
    if !is_translated || find(protocol, PROTOCOL_NUMBER)? != [TCP] {
        return None;
    }
    let port = find(protocol, PROTOCOL_DESTINATION_PORT)?;
    Some(Translated {
        from: address(original, [IP_V4_SOURCE, IP_V6_SOURCE])?,
        meant: address(original, [IP_V4_DESTINATION, IP_V6_DESTINATION])?,
        port: u16::from_be_bytes(port.try_into().ok()?),
        sent_to: address(find(attributes, TUPLE_REPLY)?, [IP_V4_SOURCE, IP_V6_SOURCE])?,
    })
}

fn address(tuple: &[u8], [ipv4, ipv6]: [u16; 2]) -> Option<IpAddr> {
    let ip = find(tuple, TUPLE_IP)?;
    Some(match find(ip, ipv4) {
        Some(address) => IpAddr::from(<[u8; 4]>::try_from(address).ok()?),
        None => IpAddr::from(<[u8; 16]>::try_from(find(ip, ipv6)?).ok()?),
    })
}

/// The content of the attribute of this type.
fn find(mut attributes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let [a, b, c, d] = attributes.get(..4)?.try_into().ok()?;
        let length = usize::from(u16::from_ne_bytes([a, b]));
        let content = attributes.get(4..length)?;
        if u16::from_ne_bytes([c, d]) & TYPE == kind {
            return Some(content);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, content: &[u8]) -> Vec<u8> {
        let length = (4 + content.len()) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn written(status: u32, protocol: u8, meant: &[u8], sent_to: &[u8]) -> Vec<u8> {
        let nested = |kind: u16, parts: &[Vec<u8>]| attribute(kind | 1 << 15, &parts.concat());
        let ip = |from: &[u8], to: &[u8]| {
            let [source, destination] = if from.len() == 4 {
                [IP_V4_SOURCE, IP_V4_DESTINATION]
            } else {
                [IP_V6_SOURCE, IP_V6_DESTINATION]
            };
            nested(
                TUPLE_IP,
                &[attribute(source, from), attribute(destination, to)],
            )
        };
        let client = vec![7; meant.len()];
        let protocol = [
            attribute(PROTOCOL_NUMBER, &[protocol]),
            attribute(PROTOCOL_DESTINATION_PORT, &8080_u16.to_be_bytes()),
        ];
        let original = [ip(&client, meant), nested(TUPLE_PROTOCOL, &protocol)];
        [
            nested(TUPLE_ORIGINAL, &original),
            nested(TUPLE_REPLY, &[ip(sent_to, &client)]),
            attribute(STATUS, &status.to_be_bytes()),
        ]
        .concat()
    }

    #[test]
    fn translated_tcp_connections_are_read_and_no_others() {
        let (host, container) = ([192, 0, 2, 1], [10, 88, 0, 2]);
        let found = entry(&written(TRANSLATED | 8, TCP, &host, &container)).unwrap();
        assert_eq!((found.meant, found.port), (host.into(), 8080));
        assert_eq!(
            (found.from, found.sent_to),
            ([7; 4].into(), container.into())
        );
        let (host6, container6) = ([1; 16], [2; 16]);
        let found = entry(&written(TRANSLATED, TCP, &host6, &container6)).unwrap();
        assert_eq!(
            (found.meant, found.sent_to),
            (host6.into(), container6.into())
        );
        assert_eq!(entry(&written(8, TCP, &host, &container)), None);
        assert_eq!(entry(&written(TRANSLATED, 17, &host, &container)), None);
        // Cut anywhere, it is no entry.
        let whole = written(TRANSLATED, TCP, &host, &container);
        for length in 0..whole.len() {
            assert_eq!(entry(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn messages_are_taken_one_after_another_and_broken_ones_end_the_list() {
        let request = request();
        assert_eq!(request.len(), 36);
        let two = [&request[..], &request[..]].concat();
        let (kind, content, rest) = next(&two).unwrap();
        assert_eq!((kind, content.len(), rest.len()), (GET, 20, 36));
        assert!(next(&rest[..35]).is_none() && next(&[]).is_none());
    }
}
