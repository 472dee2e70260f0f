//! Webhooks: one POST per attempt.

use std::path::Path;
use std::time::Duration;

use config::human;
use config::policy::WebhookUrl;
use host::read::read_secret;
use http_client::{Bounds, Client};

use crate::outbox::{Failure, Retry};

/// The most bytes of a reply: nothing of it is used but the start, for errors.
const MOST_REPLY: u64 = 64 << 10;
/// The reply that errors quote.
const QUOTED: usize = 200;

/// Posts a document.
pub fn post(
    url: &WebhookUrl,
    secret_file: Option<&Path>,
    body: &str,
    timeout: Duration,
) -> Result<(), Failure> {
    let authorization = secret_file
        .map(|path| read_secret(path).map(|secret| format!("Bearer {secret}")))
        .transpose();
    let authorization =
        authorization.map_err(|error| Failure::retried(format!("secret_file: {error}")))?;
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(
        authorization
            .as_deref()
            .map(|value| ("authorization", value)),
    );
    // Not kept: notifications are rare, and certificates take memory.
    let client = Client::new(Bounds {
        timeout,
        body: MOST_REPLY,
        redirects: 0,
    });
    let response = client
        .post(url.reveal(), &headers, body.as_bytes())
        .map_err(|error| Failure::retried(format!("{url}: {error}")))?;
    if response.is_success() {
        return Ok(());
    }
    let reply =
        String::from_utf8_lossy(&response.body[..response.body.len().min(QUOTED)]).into_owned();
    let reply = human::printable(&reply.trim().replace('\n', " "));
    let quoted = if reply.is_empty() {
        reply
    } else {
        format!(": {reply}")
    };
    let retry = match response.retry_after() {
        Some(after) => Retry::After(after),
        None if is_final(response.status) => Retry::Never,
        None => Retry::Later,
    };
    Err(Failure {
        reason: format!("{url} replied with status {}{quoted}", response.status),
        retry,
    })
}

/// Whether a status refuses the document itself. Others may change: an operator corrects a token or an address, and a
/// proxy replies for a server that restarts.
const fn is_final(status: u16) -> bool {
    matches!(status, 400 | 410 | 413 | 415 | 422)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
    use std::thread;

    use rustix::fs::{CWD, Mode, mkfifoat};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, getsockname, socket_with};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Posts to a server that replies once with this, and returns what it received.
    fn post_to(reply: &'static str, secret: Option<&Path>) -> (Result<(), Failure>, String) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/T0/path?token=1", server.local_addr().unwrap());
        thread::scope(|scope| {
            let serving = scope.spawn(move || {
                let (mut stream, _) = server.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    let start = head.len();
                    reader.read_line(&mut head).unwrap();
                    if let Some(value) = head[start..]
                        .to_ascii_lowercase()
                        .strip_prefix("content-length: ")
                    {
                        length = value.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                stream.write_all(reply.as_bytes()).unwrap();
                head.to_ascii_lowercase() + &String::from_utf8(body).unwrap()
            });
            let url = url_of(&url);
            let result = post(&url, secret, "{\"a\":1}", PATIENCE);
            (result, serving.join().unwrap())
        })
    }

    fn url_of(url: &str) -> WebhookUrl {
        let text =
            format!("[agent]\nallow_empty = true\n[[notify]]\non = \"ban\"\nwebhook = {url:?}\n");
        let config = config::parse(Path::new("limits.toml"), &text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config;
        match config.notify[0].target() {
            config::policy::NotifyTarget::Webhook { url, .. } => url,
            other @ config::policy::NotifyTarget::Command(_) => panic!("{other}"),
        }
    }

    #[test]
    fn a_document_is_posted_as_json_with_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "s3cret\n").unwrap();
        let (result, received) = post_to("HTTP/1.1 204 No Content\r\n\r\n", Some(&file));
        assert_eq!(result, Ok(()));
        assert!(
            received.starts_with("post /t0/path?token=1 http/1.1\r\n"),
            "{received}"
        );
        assert!(
            received.contains("\r\ncontent-type: application/json\r\n"),
            "{received}"
        );
        assert!(
            received.contains("\r\nauthorization: bearer s3cret\r\n"),
            "{received}"
        );
        assert!(received.ends_with("\r\n\r\n{\"a\":1}"), "{received}");
    }

    #[test]
    fn failures_are_repeated_unless_the_document_is_refused_and_show_no_path() {
        for (reply, retry, reason) in [
            (
                "HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\nbusy",
                Retry::Later,
                "replied with status 500: busy",
            ),
            (
                "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
                Retry::Later,
                "replied with status 404",
            ),
            (
                "HTTP/1.1 302 No\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
                Retry::Later,
                "replied with status 302",
            ),
            (
                "HTTP/1.1 400 No\r\nContent-Length: 0\r\n\r\n",
                Retry::Never,
                "replied with status 400",
            ),
            (
                "HTTP/1.1 429 No\r\nRetry-After: 120\r\nContent-Length: 0\r\n\r\n",
                Retry::After(Duration::from_secs(120)),
                "replied with status 429",
            ),
            ("rubbish\r\n\r\n", Retry::Later, "invalid response"),
            ("", Retry::Later, ""),
        ] {
            let failure = post_to(reply, None).0.unwrap_err();
            assert!(
                failure.retry == retry && failure.reason.contains(reason),
                "{reply}: {failure:?}"
            );
            assert!(
                !failure.reason.contains("T0") && !failure.reason.contains("token"),
                "{failure:?}"
            );
        }
    }

    #[test]
    fn a_server_that_is_away_or_hangs_is_a_failure() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = url_of(&format!("http://{}/T0", server.local_addr().unwrap()));
        let failure = post(&url, None, "{}", Duration::from_millis(500)).unwrap_err();
        assert!(
            failure.reason.contains("no complete response within 0.5 s"),
            "{failure:?}"
        );
        // A bound socket that does not listen keeps the port from others.
        let flags = SocketFlags::CLOEXEC;
        let away = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap();
        rustix::net::bind(&away, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = SocketAddrV4::try_from(getsockname(&away).unwrap()).unwrap();
        let url = url_of(&format!("http://{address}/T0"));
        let failure = post(&url, None, "{}", PATIENCE).unwrap_err();
        assert!(
            failure.retry == Retry::Later && failure.reason.contains("refused"),
            "{failure:?}"
        );
    }

    #[test]
    fn a_token_that_cannot_be_read_is_a_failure_and_nothing_is_sent() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let url = url_of("http://127.0.0.1:1/");
        let mut reasons = vec![post(&url, Some(&file), "{}", PATIENCE).unwrap_err().reason];
        for content in ["", "two words", "a\r\nX-Other: b"] {
            fs::write(&file, content).unwrap();
            reasons.push(post(&url, Some(&file), "{}", PATIENCE).unwrap_err().reason);
        }
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        for path in [folder.path(), &fifo, Path::new("/dev/zero")] {
            reasons.push(post(&url, Some(path), "{}", PATIENCE).unwrap_err().reason);
        }
        assert!(
            reasons
                .iter()
                .all(|reason| reason.starts_with("secret_file: reading /")),
            "{reasons:?}"
        );
    }
}
