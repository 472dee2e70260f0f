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
        is_tcp_query(bytes, payload, length)
    } else {
        begins_http(bytes, payload, length)
    }
}

/// The bytes of the payload by the IP header, since a link pads short frames; `None` if there are none.
#[inline(always)]
fn length(bytes: &(impl Bytes + ?Sized), network: usize, payload: usize) -> Option<usize> {
    let stated = if bytes.u16(network)? >> 12 == 4 {
        usize::from(bytes.u16(network + 2)?)
    } else {
        match usize::from(bytes.u16(network + 4)?) {
            0 => 0,
            length => 40 + length,
        }
    };
    // Merged segments may be too long for the header's field, which then is 0.
    let end = if stated == 0 {
        bytes.length() as usize
    } else {
        network + stated
    };
    if end <= payload {
        return None;
    }
    Some(end - payload)
}

/// A DNS message that is not a response, whatever its operation and number of questions (RFC 1035, 4.1.1 and 4.2.2).
#[inline(always)]
fn is_tcp_query(bytes: &(impl Bytes + ?Sized), payload: usize, length: usize) -> bool {
    if length < DNS_FLAGS + 2 {
        return true;
    }
    let Some(flags) = bytes.u16(bytes.within(payload + DNS_FLAGS)) else {
        return false;
    };
    is_query(flags)
}

/// Whether the flags of a DNS header are not those of a response.
#[inline(always)]
pub(super) const fn is_query(flags: u16) -> bool {
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
            let byte = word & 0xff;
            if has(TOKEN, byte) {
                has_method = true;
            } else if has(SPACE, byte) && has_method {
                // Without its number, so that the verifier follows the target once, and not once per number.
                return begins_target(bytes, payload, length, bytes.forget(nth));
            } else if has(LINE, byte) && !has_method {
                has_lines = true;
            } else {
                return false;
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

/// A set of ASCII characters: those below 64, and the others.
type Set = [u64; 2];

/// Characters of a method (RFC 9110, 5.6.2).
const TOKEN: Set =
    set(b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
/// Space, horizontal and vertical tab, form feed: servers take each of them, and several (RFC 9112, 3).
const SPACE: Set = set(b" \t\x0b\x0c");
const LINE: Set = set(b"\r\n");

const fn set(characters: &[u8]) -> Set {
    let (mut set, mut nth) = ([0; 2], 0);
    while nth < characters.len() {
        let character = characters[nth];
        set[(character / 64) as usize] |= 1 << (character % 64);
        nth += 1;
    }
    set
}

/// Whether the set has a byte. Almost without branches, each of which the verifier follows for each byte of the window.
#[inline(always)]
const fn has([low, high]: Set, byte: u64) -> bool {
    let of_high = 0u64.wrapping_sub(byte >> 6 & 1);
    let half = low ^ ((low ^ high) & of_high);
    byte < 128 && (half >> (byte & 63)) & 1 != 0
}

/// Whether the byte after the space at `space` begins a target: a path, an asterisk, a URL; an authority, of `CONNECT`; or
/// another space.
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
        b'/' | b'*' => return true,
        byte if has(SPACE, u64::from(byte)) => return true,
        b'A'..=b'Z' | b'a'..=b'z' => {}
        _ => return false,
    }
    if has_scheme(bytes, payload, length, space + 1) {
        return true;
    }
    // Not one expression: the verifier rejects a pointer that takes part in a comparison's result.
    let Some(method) = bytes.u64(bytes.within(payload + space - (WORD - 1))) else {
        return false;
    };
    u64::from_le(method) == u64::from_le_bytes(*b"CONNECT ")
}

/// Whether there is a colon within eight bytes from `first` on, as behind the scheme of a URL, of which servers take any; or
/// may be, where the segment ends.
#[inline(always)]
fn has_scheme(bytes: &(impl Bytes + ?Sized), payload: usize, length: usize, first: usize) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    const COLON: u64 = 0x3a;
    if first + WORD > length {
        return true;
    }
    let Some(word) = bytes.u64(bytes.within(payload + first)) else {
        return false;
    };
    // Zero bytes of the difference (Mycroft): one of them at least is found.
    let differing = word ^ (EACH * COLON);
    differing.wrapping_sub(EACH) & !differing & (EACH << 7) != 0
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
            "GET\t/ HTTP/1.1\r\n",
            "GET \t /a HTTP/1.1\r\n",
            "GET x://example.org/ HTTP/1.1\r\n",
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

    /// The first part counts, wherever the line is cut within its method, space and first byte.
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
            b"Referer: http://example.org/",
            b"a=1&b=2",
            b"{\"id\":1}",
            b"/index.html HTTP/1.1\r\n",
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
