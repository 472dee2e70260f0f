use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;

/// A server of requests of one byte, which it sends back. `b'w'` waits for a permit.
struct Server {
    address: SocketAddr,
    permits: Arc<Semaphore>,
    /// Requests that wait.
    begun: Arc<Semaphore>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(places: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let [permits, begun] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
        let of_clients = (Arc::clone(&permits), Arc::clone(&begun));
        let task = tokio::spawn(accept(listener, places, move |client| {
            let (permits, begun) = of_clients.clone();
            tokio::spawn(serve(client, permits, begun));
        }));
        Self {
            address,
            permits,
            begun,
            task,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A client whose request is being evaluated.
    async fn busy(&self) -> TcpStream {
        let mut client = self.connect().await;
        client.write_u8(b'w').await.unwrap();
        self.begun.acquire().await.unwrap().forget();
        client
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut client: Client<TcpStream>,
    permits: Arc<Semaphore>,
    begun: Arc<Semaphore>,
) -> io::Result<()> {
    let activity = client.activity();
    loop {
        let request = client.read_u8().await?;
        activity.begin();
        if request == b'w' {
            begun.add_permits(1);
            permits.acquire().await.unwrap().forget();
        }
        activity.reply();
        client.write_u8(request).await?;
        client.flush().await?;
    }
}

async fn ask(client: &mut TcpStream, request: u8) {
    client.write_u8(request).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), request);
}

async fn is_closed(client: &mut TcpStream) -> bool {
    !matches!(client.read(&mut [0]).await, Ok(1..))
}

/// There are no timeouts here: only a closed idle client makes room.
#[tokio::test]
async fn the_longest_idle_clients_make_room() {
    const PLACES: usize = 4;
    let server = Server::start(PLACES).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(server.connect().await);
    }
    let mut first = server.connect().await;
    ask(&mut first, b'x').await;
    let mut kept = idle.split_off(300 - (PLACES - 1));
    for client in &mut idle {
        assert!(is_closed(client).await);
    }
    for client in &mut kept {
        ask(client, b'y').await;
    }
    // Now `first` has been idle for the longest time.
    ask(&mut server.connect().await, b'z').await;
    assert!(is_closed(&mut first).await);
    for client in &mut kept {
        ask(client, b'y').await;
    }
}

#[tokio::test]
async fn a_client_whose_request_is_evaluated_keeps_its_place() {
    let server = Server::start(2).await;
    let mut busy = server.busy().await;
    for _ in 0..20 {
        let (mut idle, mut next) = (server.connect().await, server.connect().await);
        ask(&mut next, b'x').await;
        assert!(is_closed(&mut idle).await);
    }
    server.permits.add_permits(1);
    assert_eq!(busy.read_u8().await.unwrap(), b'w');
}

#[tokio::test]
async fn a_new_client_waits_until_one_of_the_busy_ones_is_idle() {
    let server = Server::start(1).await;
    let mut busy = server.busy().await;
    let mut next = server.connect().await;
    next.write_u8(b'x').await.unwrap();
    server.permits.add_permits(1);
    assert_eq!(busy.read_u8().await.unwrap(), b'w');
    assert_eq!(next.read_u8().await.unwrap(), b'x');
    assert!(is_closed(&mut busy).await);
}

/// It is idle, too, and makes room after those without a request.
#[tokio::test]
async fn a_client_that_reads_no_reply_makes_room_last() {
    const REPLY: usize = 16 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let task = tokio::spawn(accept(listener, 2, |mut client| {
        tokio::spawn(async move {
            let activity = client.activity();
            while let Ok(request) = client.read_u8().await {
                activity.begin();
                let reply = vec![request; if request == b'x' { REPLY } else { 1 }];
                activity.reply();
                if client.write_all(&reply).await.is_err() || client.flush().await.is_err() {
                    return;
                }
            }
        });
    }));
    let connect = async || TcpStream::connect(address).await.unwrap();
    let mut slow = connect().await;
    ask(&mut slow, b'x').await;
    for _ in 0..10 {
        let (mut idle, mut next) = (connect().await, connect().await);
        ask(&mut next, b'y').await;
        assert!(is_closed(&mut idle).await);
    }
    let mut rest = vec![0; REPLY - 1];
    slow.read_exact(&mut rest).await.unwrap();
    // Where nobody else is idle, the first that reads nothing makes room.
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = connect().await;
        ask(&mut client, b'x').await;
        clients.push(client);
    }
    assert!(clients[0].read_exact(&mut rest).await.is_err());
    clients[1].read_exact(&mut rest).await.unwrap();
    task.abort();
}

#[tokio::test]
async fn a_new_client_is_refused_only_where_all_others_are_busy() {
    let places = Places::new(2);
    let client = async || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let activity = places.take_unless_busy().await?;
        Some((Client::new(ours, activity), theirs))
    };
    let (busy, _peer) = client().await.unwrap();
    busy.activity().begin();
    let (mut idle, mut peer) = client().await.unwrap();
    let idle = tokio::spawn(async move { idle.read_u8().await });
    // It sends nothing, so it makes room.
    let (next, _next_peer) = client().await.unwrap();
    assert!(idle.await.unwrap().is_err());
    assert_eq!(peer.read(&mut [0]).await.unwrap(), 0);
    next.activity().begin();
    assert!(client().await.is_none());
    // One that leaves stays connected.
    let mut next = next;
    next.activity().leave();
    let (last, _last_peer) = client().await.unwrap();
    last.activity().begin();
    assert!(client().await.is_none());
    next.write_u8(b'x').await.unwrap();
    drop(next);
    assert!(client().await.is_none());
    drop(last);
    assert!(client().await.is_some());
}
