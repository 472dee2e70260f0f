//! Containers by name and label, as the sockets of Docker and Podman list them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use config::human;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Deserialize;

use super::glob::fits;
use super::place::{container_id, last, pod, prefixes};

/// The timeout for a runtime, which is queried again later; Podman's service starts with the request.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest reply: some thousands of containers with many labels.
const MOST_BYTES: usize = 16 << 20;

/// A container as a runtime lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its names, without the leading slash.
    pub names: Vec<String>,
    /// `key=value`.
    pub labels: Vec<String>,
}

/// Containers by id.
pub type Known = BTreeMap<String, Container>;

/// An element of `/containers/json`; other fields are ignored.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    id: String,
    #[serde(default)]
    names: Option<Vec<String>>,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
}

/// Whether the pattern matches the container at `path`: its ID or a prefix of it, its pod, one of its names, or one of
/// its labels.
#[must_use]
pub fn is_meant(pattern: &str, path: &str, known: &Known) -> bool {
    let Some(id) = container_id(last(path)) else {
        return false;
    };
    let by_id = fits(pattern, id) || (pattern.len() >= 12 && id.starts_with(pattern));
    let by_pod = || pod(path).is_some_and(|pod| fits(pattern, &pod));
    let by_name = |container: &Container| {
        container
            .names
            .iter()
            .chain(&container.labels)
            .any(|one| fits(pattern, one))
    };
    by_id || by_pod() || known.get(id).is_some_and(by_name)
}

/// Whether a cgroup is below that of a container which a runtime lists. Podman's pods have IDs, too, and are not listed.
#[must_use]
pub fn is_inside(path: &str, known: &Known) -> bool {
    let mut above = prefixes(path).filter(|prefix| *prefix != path);
    above.any(|prefix| container_id(last(prefix)).is_some_and(|id| known.contains_key(id)))
}

/// Lists the containers of every runtime, and the errors of those that did not reply. A missing socket is no error: the
/// runtime is not installed.
#[must_use]
pub fn list(sockets: &[PathBuf]) -> (Known, Vec<String>) {
    let (mut known, mut problems) = (Known::new(), Vec::new());
    for socket in sockets.iter().filter(|socket| socket.exists()) {
        match list_one(socket) {
            Ok(containers) => known.extend(containers),
            Err(reason) => problems.push(format!(
                "listing the containers of {} failed: {reason}",
                socket.display()
            )),
        }
    }
    (known, problems)
}

fn list_one(socket: &Path) -> Result<Known, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let body = runtime.block_on(async {
        let reply = tokio::time::timeout(PATIENCE, request(socket)).await;
        reply.map_err(|_| format!("no reply within {}", human::time(PATIENCE)))?
    })?;
    parse(&body)
}

/// Also containers that do not run yet: one that is starting has a cgroup before it counts as running.
async fn request(socket: &Path) -> Result<Bytes, String> {
    fn text(error: impl std::fmt::Display) -> String {
        error.to_string()
    }
    let stream = tokio::net::UnixStream::connect(socket)
        .await
        .map_err(text)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(text)?;
    let request = Request::get("/containers/json?all=1").header("Host", "localhost");
    let request = request.body(Empty::<Bytes>::new()).map_err(text)?;
    let reply = async {
        let reply = sender.send_request(request).await.map_err(text)?;
        let status = reply.status();
        let body = Limited::new(reply.into_body(), MOST_BYTES)
            .collect()
            .await
            .map_err(text)?
            .to_bytes();
        if status.is_success() {
            Ok(body)
        } else {
            Err(format!("it replied {status}"))
        }
    };
    let mut connection = std::pin::pin!(connection);
    let mut reply = std::pin::pin!(reply);
    tokio::select! {
        reply = &mut reply => reply,
        // The connection may end before the reply is processed.
        ended = &mut connection => {
            ended.map_err(text)?;
            reply.await
        }
    }
}

fn parse(body: &[u8]) -> Result<Known, String> {
    let listed: Vec<Listed> =
        serde_json::from_slice(body).map_err(|error| format!("its reply is invalid: {error}"))?;
    let container = |listed: Listed| {
        let names = listed.names.unwrap_or_default();
        let names = names
            .iter()
            .map(|name| name.trim_start_matches('/').to_owned())
            .collect();
        let labels = listed.labels.unwrap_or_default();
        let labels = labels
            .into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        (listed.id, Container { names, labels })
    };
    Ok(listed.into_iter().map(container).collect())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn id() -> String {
        "0123456789abcdef".repeat(4)
    }

    #[test]
    fn a_container_is_meant_by_id_name_label_or_pod() {
        let path = format!("/system.slice/docker-{}.scope", id());
        let container = Container {
            names: vec!["web1".to_owned()],
            labels: vec!["com.example.app=shop/front".to_owned()],
        };
        let known = Known::from([(id(), container)]);
        for (pattern, expected) in [
            ("web*", true),
            ("web", false),
            ("com.example.app=shop*", true),
            ("com.example.app=x", false),
            ("0123456789ab", true),
            ("0123", false),
            (&id(), true),
            ("*", true),
        ] {
            assert_eq!(is_meant(pattern, &path, &known), expected, "{pattern}");
        }
        assert!(!is_meant("web*", &path, &Known::new()));
        assert!(!is_meant("*", "/system.slice/a.service", &known));
        let pod = format!("/kubepods/pod6d0b4a24-55a4-4b0b-8f50-1e2f3a4b5c6d/{}", id());
        assert!(is_meant("pod6d0b4a24-*", &pod, &Known::new()));
    }

    /// The result for a runtime with this single reply.
    fn listed(reply: String) -> (Known, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let runtime = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let length = client.read(&mut request).unwrap();
            assert!(request[..length].starts_with(b"GET /containers/json?all=1 HTTP/1.1\r\n"));
            client.write_all(reply.as_bytes()).unwrap();
        });
        let listed = list(&[socket, folder.path().join("none.sock")]);
        runtime.join().unwrap();
        listed
    }

    #[test]
    fn a_runtime_lists_names_and_labels() {
        let body = format!(
            r#"[{{"Id":"{}","Names":["/web1","/pod/web1"],"Labels":{{"app":"shop"}},"Extra":1}}]"#,
            id()
        );
        let whole = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let chunked = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        for reply in [whole, chunked] {
            let (known, problems) = listed(reply);
            assert_eq!(problems, [""; 0]);
            assert_eq!(known[&id()].names, ["web1", "pod/web1"]);
            assert_eq!(known[&id()].labels, ["app=shop"]);
        }
    }

    #[test]
    fn a_runtime_that_fails_is_reported_with_its_socket() {
        for (reply, reason) in [
            (
                "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
                "it replied 500",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
                "its reply is invalid",
            ),
            ("", "docker.sock failed"),
        ] {
            let (known, problems) = listed(reply.to_owned());
            assert!(known.is_empty());
            assert!(
                problems.len() == 1 && problems[0].contains(reason),
                "{problems:?}"
            );
        }
    }
}
