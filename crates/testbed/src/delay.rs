//! A slow network between a client and a server on loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Accepts connections on loopback and passes on what arrives, in each direction after this time, and after a handshake
/// that takes both ways; where it listens.
pub fn delayed(to: SocketAddr, one_way: Duration) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pass = move |mut from: TcpStream, mut to: TcpStream, connected: Instant| {
        let (sender, receiver) = mpsc::channel::<(Instant, Vec<u8>)>();
        let mut reader = from.try_clone().unwrap();
        thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender
                    .send((
                        Instant::now().max(connected) + one_way,
                        buffer[..count].to_vec(),
                    ))
                    .is_err()
                {
                    break;
                }
            }
        });
        for (due, bytes) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.flush();
    };
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(to) else {
                continue;
            };
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            let connected = Instant::now() + 2 * one_way;
            let (back, forth) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            thread::spawn(move || pass(client, server, connected));
            thread::spawn(move || pass(back, forth, connected));
        }
    });
    address
}
