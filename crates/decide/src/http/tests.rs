use std::path::Path;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::{Current, Edge, Engine, Offence};

struct NoEdge;

impl Edge for NoEdge {
    fn escalate(&self, _: Offence) {}
}

/// Clients that send nothing, half a head, or a head without its body, where there are two places.
#[tokio::test]
async fn idle_clients_make_room_and_a_request_that_waits_keeps_its_place() {
    let text = "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1/min\"\n";
    let config = config::parse(Path::new("limits.toml"), text)
        .unwrap()
        .config;
    let engine = Engine::new(&config, Arc::new(NoEdge)).unwrap();
    let current = Arc::new(Current::from_pointee(engine));
    let handle = EngineHandle::new(Arc::clone(&current), host::monotonic_nanoseconds);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve_clients(Listener::Tcp(listener), handle, 2));
    let connect = |text: String| async move {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(text.as_bytes()).await.unwrap();
        client
    };
    let post = |user: &str, more: &str| {
        let body = format!("{{\"limit\":\"a\",\"key\":{{\"user\":\"{user}\"}}{more}}}");
        let length = body.len();
        format!(
            "POST /v1/decide HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
    };
    let reply = |mut client: TcpStream| async move {
        let mut reply = String::new();
        client.read_to_string(&mut reply).await.unwrap();
        reply
    };
    assert!(
        reply(connect(post("alice", "")).await)
            .await
            .starts_with("HTTP/1.1 200")
    );
    let waiting = connect(post("alice", ",\"wait\":\"60s\"")).await;
    while current.load().waiting().is_empty() {
        tokio::task::yield_now().await;
    }
    let mut idle = Vec::new();
    for nth in 0..30 {
        let whole = post("bob", "");
        let part = [0, 10, whole.len() - 1][nth % 3];
        idle.push(connect(whole[..part].to_owned()).await);
    }
    let honest = reply(connect(post("carol", "")).await).await;
    assert!(honest.starts_with("HTTP/1.1 200"), "{honest}");
    // Nothing is decided for them, and their connections end.
    for mut client in idle {
        let ended = client.read(&mut [0; 9]).await;
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    }
    assert!(current.load().reset("a").is_some());
    let waited = reply(waiting).await;
    assert!(waited.contains("\"waited_seconds\""), "{waited}");
    server.abort();
}
