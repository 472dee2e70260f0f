//! Requests at the start of a TCP payload: of HTTP/1.x, and of DNS.
//!
//! Segments are read without the ones before them. So a start that ends before it shows what it is counts as a request,
//! and a request that begins later in its segment is not counted.

use super::Bytes;

/// The bytes of a payload in which a method ends. The longest registered one, `UPDATEREDIRECTREF`, has 17.
const WINDOW: usize = 24;
/// The bytes that are read at once.
const WORD: usize = 8;
/// The length of a DNS message before it, and the header's first four bytes.
const DNS_FLAGS: usize = 2 + 2;

/// Whether the TCP payload at `payload`, of the IP packet at `network`, begins with a request.
#[inline(always)]
pub fn begins_request(
    bytes: &(impl Bytes + ?Sized),
    network: usize,
    payload: usize,
    is_dns: bool,
) -> bool {
    let Some(length) = length(bytes, network, payload) else {
        return false;
    };
    if is_dns {
        is_dns_query(bytes, payload, length)
    } else {
        begins_http(bytes, payload, length)
    }
}

/// The bytes of the payload by the IP header, since a link pads short frames; `None` if there are none.
#[inline(always)]
fn length(bytes: &(impl Bytes + ?Sized), network: usize, payload: usize) -> Option<usize> {
    let told = if bytes.u16(network)? >> 12 == 4 {
        usize::from(bytes.u16(network + 2)?)
    } else {
        match usize::from(bytes.u16(network + 4)?) {
            0 => 0,
            length => 40 + length,
        }
    };
    // Merged segments may be too long for the header's field, which then is 0.
    let end = if told == 0 {
        bytes.length() as usize
    } else {
        network + told
    };
    if end <= payload {
        return None;
    }
    Some(end - payload)
}

/// A DNS message that is not a response, whatever its operation and number of questions (RFC 1035, 4.1.1 and 4.2.2).
#[inline(always)]
fn is_dns_query(bytes: &(impl Bytes + ?Sized), payload: usize, length: usize) -> bool {
    if length < DNS_FLAGS + 2 {
        return true;
    }
    let Some(flags) = bytes.u16(bytes.within(payload + DNS_FLAGS)) else {
        return false;
    };
    flags & 0x8000 == 0
}

/// A request line after any empty lines, as servers accept it (RFC 9112, 2.2 and 3): a method, a space, and the start of
/// a target. Its first part alone counts, too; and empty lines, if they fill the window or push the line out of it.
#[inline(always)]
fn begins_http(bytes: &(impl Bytes + ?Sized), payload: usize, length: usize) -> bool {
    let (mut has_lines, mut has_method) = (false, false);
    for first in (0..WINDOW).step_by(WORD) {
        let Some(mut word) = word(bytes, payload, length, first) else {
            return false;
        };
        for nth in first..first + WORD {
            if nth >= length {
                return true;
            }
            match word as u8 {
                b'!'..=b'~' => has_method = true,
                b'\r' | b'\n' if !has_method => has_lines = true,
                // Without its number, so that the verifier follows the target once, and not once per number.
                b' ' if has_method => {
                    return begins_target(bytes, payload, length, bytes.forget(nth));
                }
                _ => return false,
            }
            word >>= 8;
        }
    }
    has_lines
}

/// The bytes of the payload from `first` on, in memory order; those behind its end are 0. `None` if they are not
/// readable.
#[inline(always)]
fn word(bytes: &(impl Bytes + ?Sized), payload: usize, length: usize, first: usize) -> Option<u64> {
    let missing = (first + WORD).saturating_sub(length);
    if missing >= WORD {
        return Some(0);
    }
    // Before the payload there is a TCP header, so that its last eight bytes can be read.
    let at = bytes.within(payload + first - missing);
    Some(u64::from_le(bytes.u64(at)?) >> (8 * missing))
}

/// Whether the byte after the space at `space` begins a target: a path, an asterisk, a URL; an authority, of `CONNECT`; or
/// another space, which servers skip.
#[inline(always)]
fn begins_target(
    bytes: &(impl Bytes + ?Sized),
    payload: usize,
    length: usize,
    space: usize,
) -> bool {
    if space + 1 >= length {
        return true;
    }
    let Some(word) = bytes.u16(bytes.within(payload + space)) else {
        return false;
    };
    match word as u8 {
        b'/' | b'*' | b' ' => return true,
        b'h' | b'H' => return begins_url(bytes, payload, length, space + 1),
        _ => {}
    }
    // Not one expression: the verifier rejects a pointer that takes part in a comparison's result.
    let Some(method) = bytes.u64(bytes.within(payload + space - (WORD - 1))) else {
        return false;
    };
    u64::from_le(method) == u64::from_le_bytes(*b"CONNECT ")
}

/// Whether the scheme at `first` of the payload is that of a URL, in either case; or may be, where the segment ends.
#[inline(always)]
fn begins_url(bytes: &(impl Bytes + ?Sized), payload: usize, length: usize, first: usize) -> bool {
    const LOWER_CASE: u32 = 0x2020_2020;
    if first + 4 > length {
        return true;
    }
    let Some(scheme) = bytes.u32(bytes.within(payload + first)) else {
        return false;
    };
    (u32::from_le(scheme) | LOWER_CASE) == u32::from_le_bytes(*b"http")
}

#[cfg(test)]
mod tests {
    use super::super::build::Frame;
    use super::super::{Depth, Kind, Link, parse};

    const ACK: u8 = 0x10;

    fn is_request(port: u16, payload: &[u8]) -> bool {
        let frames = [
            Frame::between([1; 6], [2; 6]).ipv4([192, 0, 2, 1], [192, 0, 2, 2]),
            Frame::between([1; 6], [2; 6]).ipv6([1; 16], [2; 16]),
        ];
        let [ipv4, ipv6] = frames.map(|frame| {
            let mut frame = frame.tcp(9, port, ACK, payload).build();
            // As a link pads it.
            let length = frame.len().max(90);
            frame.resize(length, 0);
            let packet = parse(frame.as_slice(), Link::Ethernet, Depth::Requests).unwrap();
            packet.kind == Kind::Request
        });
        assert_eq!(ipv4, ipv6, "{}", payload.escape_ascii());
        ipv4
    }

    #[test]
    fn request_lines_are_found_as_servers_take_them() {
        for line in [
            "GET / HTTP/1.1\r\n\r\n",
            "get / HTTP/1.0\r\n",
            "PROPFIND /dav/ HTTP/1.1\r\n",
            "QUERY /search HTTP/1.1\r\n",
            "PURGE * HTTP/1.1\r\n",
            "REPORT http://example.org/ HTTP/1.1\r\n",
            "VERSION-CONTROL HTTPS://example.org/ HTTP/1.1\r\n",
            "UPDATEREDIRECTREF /a HTTP/1.1\r\n",
            "X!#$%&'*+.^_`|~9 / HTTP/1.1\r\n",
            "OPTIONS * HTTP/1.1\r\n",
            "CONNECT example.org:443 HTTP/1.1\r\n",
            "GET  / HTTP/1.1\r\n",
            "GET /\n",
        ] {
            for before in [
                "",
                "\n",
                "\r\n",
                "\r\n\r\n\r\n",
                &"\r\n".repeat(12),
                &"\r\n".repeat(40),
            ] {
                assert!(
                    is_request(80, format!("{before}{line}").as_bytes()),
                    "{line}"
                );
            }
        }
    }

    /// In two segments the first one counts, wherever the line is cut within its method, space and first byte.
    #[test]
    fn the_first_part_of_a_request_line_is_a_request() {
        for line in ["GET /", "\r\nPROPFIND h", "CONNECT e"] {
            for end in 1..=line.len() {
                assert!(is_request(80, &line.as_bytes()[..end]), "{}", &line[..end]);
            }
        }
    }

    #[test]
    fn other_payloads_are_none() {
        let base64 = b"SGVsbG8sIHdvcmxkISBUaGlzIGlzIGEgbG9uZyB1cGxvYWQgb2YgdGV4dA==";
        for payload in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n\r\n",
            b" / HTTP/1.1\r\n",
            b"\0GET / HTTP/1.1\r\n",
            b"some words of a text\r\n",
            b"EHLO example.org\r\n",
            b"CONNECTS example.org:443",
            b"GET\t/ HTTP/1.1\r\n",
            &[0x16, 3, 1, 2, 0, 1, 0, 1],
            &[0x17, 3, 3],
            base64,
        ] {
            assert!(!is_request(80, payload), "{}", payload.escape_ascii());
        }
    }

    /// A length of two bytes, then the message; cut anywhere, one of the parts is counted.
    #[test]
    fn messages_to_port_53_are_queries_unless_they_are_responses() {
        let message = |flags: u16, questions: u8| {
            let mut message = vec![0, 29, 1, 2];
            message.extend(flags.to_be_bytes());
            message.extend([0, questions, 0, 0, 0, 0, 0, 0]);
            message.extend(b"\x07example\x03org\0\0\x01\0\x01");
            message
        };
        for (flags, questions) in [
            (0x0100, 1),
            (0x0100, 0),
            (0x2800, 1),
            (0x2000, 1),
            (0x7fff, 0),
        ] {
            let message = message(flags, questions);
            assert!(is_request(53, &message) && !is_request(54, &message));
            for end in 1..message.len() {
                let (first, rest) = message.split_at(end);
                assert!(is_request(53, first) || is_request(53, rest), "{end}");
            }
        }
        assert!(!is_request(53, &message(0x8180, 1)) && !is_request(53, b""));
    }
}
