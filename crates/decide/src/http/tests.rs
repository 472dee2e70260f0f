use std::path::Path;
use std::sync::Arc;

use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_stream::wrappers::UnboundedReceiverStream;

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
    let server = tokio::spawn(serve_clients(
        Listener::Tcp(listener),
        handle,
        Arc::default(),
        2,
    ));
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
    assert!(current.load().reset("a").unwrap().is_some());
    let waited = reply(waiting).await;
    assert!(waited.contains("\"waited_seconds\""), "{waited}");
    server.abort();
}

/// Clients that send bodies except for their last bytes.
#[tokio::test]
async fn unfinished_bodies_are_bounded_together() {
    const PART: usize = 250_000;
    let receiving = Receiving::default();
    let body = |length: usize| {
        let (sender, frames) = tokio::sync::mpsc::unbounded_channel();
        let data = Frame::data(Bytes::from(vec![b' '; length]));
        sender.send(Ok::<_, Infallible>(data)).unwrap();
        (
            sender,
            StreamBody::new(UnboundedReceiverStream::new(frames)),
        )
    };
    let mut held = Vec::new();
    let is_refused = loop {
        // Else the channel is pending after many reads.
        tokio::task::yield_now().await;
        let (sender, body) = body(PART);
        let mut reading = Box::pin(whole(body, &receiving));
        match poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await {
            Poll::Pending => held.push((sender, reading)),
            Poll::Ready(read) => break read.unwrap_err().is::<NoRoom>(),
        }
    };
    assert_eq!((is_refused, held.len()), (true, (64 << 20) / PART));
    // One that arrives at once needs no room, and one that is over makes room.
    let at_once = whole(Full::new(Bytes::from_static(b"{}")), &receiving).await;
    assert_eq!(at_once.unwrap(), "{}");
    held.pop();
    let (sender, body) = body(PART);
    drop(sender);
    assert_eq!(whole(body, &receiving).await.unwrap().len(), PART);
}

/// A head of nginx's longest cookies is read; a longer one is refused.
#[tokio::test]
async fn a_connection_buffers_a_bounded_head() {
    let config = config::parse(Path::new("limits.toml"), "[agent]\nallow_empty = true\n").unwrap();
    let engine = Engine::new(&config.config, Arc::new(NoEdge)).unwrap();
    let current = Arc::new(Current::from_pointee(engine));
    let handle = EngineHandle::new(current, host::monotonic_nanoseconds);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(serve_clients(
        Listener::Tcp(listener),
        handle,
        Arc::default(),
        2,
    ));
    for (cookie, is_read) in [(32 * 1024, true), (4 * BUFFER, false)] {
        let cookie = "a".repeat(cookie);
        let head = format!(
            "GET /v1/health HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncookie: {cookie}\r\n\r\n"
        );
        let mut client = TcpStream::connect(address).await.unwrap();
        // The server does not read all of a long one.
        let _ = client.write_all(head.as_bytes()).await;
        let mut status = [0; 12];
        let read = client.read_exact(&mut status).await;
        let is_ok = read.is_ok() && status == *b"HTTP/1.1 200";
        assert_eq!(is_ok, is_read, "{status:?}");
    }
    server.abort();
}
