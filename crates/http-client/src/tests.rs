//! Servers that lie, over loopback.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Serves each connection by `serve`, which gets the request's head, until the test's process ends.
fn server(serve: impl Fn(&str, &mut TcpStream) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
                head.push(byte[0]);
            }
            serve(&String::from_utf8_lossy(&head), &mut stream);
        }
    });
    format!("http://{address}")
}

/// A server that sends these bytes and closes the connection.
fn sends(response: &'static [u8]) -> String {
    server(move |_, stream| drop(stream.write_all(response)))
}

fn client(bounds: Bounds) -> Client {
    Client::new(bounds)
}

const BOUNDS: Bounds = Bounds {
    timeout: Duration::from_secs(30),
    body: 1000,
    redirects: 5,
};

#[test]
fn a_server_may_request_a_later_attempt_in_seconds_or_by_a_date() {
    let after = |response: &'static str| {
        client(BOUNDS)
            .get(&sends(response.as_bytes()), &[])
            .unwrap()
            .retry_after()
    };
    let seconds = "HTTP/1.1 429 Slow\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(after(seconds), Some(Duration::from_secs(3600)));
    let long =
        "HTTP/1.1 503 Away\r\nRetry-After: 99999999999999999999\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(after(long), Some(LONGEST_RETRY));
    let past = "HTTP/1.1 503 Away\r\nRetry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(after(past), Some(Duration::ZERO));
    let future = "HTTP/1.1 503 Away\r\nRetry-After: Fri, 31 Dec 2100 23:59:59 GMT\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(after(future), Some(LONGEST_RETRY));
    let other = "HTTP/1.1 404 None\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(after(other), None);
    let wrong = "HTTP/1.1 429 Slow\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(after(wrong), None);
}

#[test]
fn a_response_has_its_status_headers_and_body() {
    let url = sends(b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 5\r\n\r\nhello");
    let response = client(BOUNDS).get(&url, &[]).unwrap();
    assert_eq!(
        (
            response.status,
            response.body.as_slice(),
            response.header("etag")
        ),
        (200, &b"hello"[..], Some("\"a\""))
    );
    let url = sends(b"HTTP/1.1 503 Away\r\nContent-Length: 4\r\n\r\nsoon");
    let response = client(BOUNDS).post(&url, &[("x-key", "1")], b"{}").unwrap();
    assert_eq!((response.status, response.is_success()), (503, false));
}

#[test]
fn request_headers_and_bodies_are_sent() {
    let url = server(|head, stream| {
        let ok = head.contains("if-none-match: \"a\"") && head.contains("user-agent: weir/");
        let status = if ok { "304 Not Modified" } else { "200 OK" };
        drop(write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"
        ));
    });
    assert_eq!(
        client(BOUNDS)
            .get(&url, &[("if-none-match", "\"a\"")])
            .unwrap()
            .status,
        304
    );
}

#[test]
fn a_body_that_is_cut_short_is_an_error() {
    let url = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nhello");
    assert!(matches!(
        client(BOUNDS).get(&url, &[]),
        Err(HttpError::CutShort | HttpError::Protocol(_))
    ));
    let url = sends(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n");
    assert!(client(BOUNDS).get(&url, &[]).is_err());
}

#[test]
fn a_body_above_the_bound_is_an_error_whatever_its_length_claims() {
    let url = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 10737418240\r\n\r\nhello");
    assert!(matches!(
        client(BOUNDS).get(&url, &[]),
        Err(HttpError::TooLarge(1000))
    ));
    // Until the client closes the connection.
    let url = server(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"));
        while stream.write_all(&[b'a'; 4096]).is_ok() {}
    });
    assert!(matches!(
        client(BOUNDS).get(&url, &[]),
        Err(HttpError::TooLarge(1000))
    ));
}

#[test]
fn a_redirect_loop_ends() {
    let url = sends(
        b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    );
    assert!(matches!(
        client(BOUNDS).get(&url, &[]),
        Err(HttpError::Redirects(5))
    ));
    let without = Bounds {
        redirects: 0,
        ..BOUNDS
    };
    assert_eq!(client(without).get(&url, &[]).unwrap().status, 302);
}

#[test]
fn a_server_that_drips_is_left_after_the_timeout() {
    let url = server(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"));
        while stream.write_all(b"a").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let bounds = Bounds {
        timeout: Duration::from_millis(500),
        ..BOUNDS
    };
    let begin = Instant::now();
    assert!(matches!(
        client(bounds).get(&url, &[]),
        Err(HttpError::TimedOut(_))
    ));
    assert!(begin.elapsed() >= bounds.timeout);
    let url = server(|_, _| thread::sleep(Duration::from_secs(60)));
    assert!(matches!(
        client(bounds).get(&url, &[]),
        Err(HttpError::TimedOut(_))
    ));
}

#[test]
fn replies_other_than_http_are_errors() {
    assert!(
        client(BOUNDS)
            .get(&sends(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), &[])
            .is_err()
    );
    assert!(client(BOUNDS).get(&sends(b""), &[]).is_err());
    assert!(matches!(
        client(BOUNDS).get("https:///x", &[]),
        Err(HttpError::Invalid(_) | HttpError::Protocol(_))
    ));
}

#[test]
fn a_url_is_shown_without_secrets() {
    assert_eq!(
        shown("https://ada:secret@lists.example:8443/drop.txt?key=secret"),
        "https://lists.example:8443/drop.txt"
    );
    assert!(check("https://lists.example/a").is_ok() && check("http://[2001:db8::1]:80/").is_ok());
    for wrong in [
        "lists.example/a",
        "ftp://lists.example/a",
        "https://",
        "a b",
    ] {
        assert!(check(wrong).is_err(), "{wrong}");
    }
}
