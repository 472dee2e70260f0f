//! Open connections: counts whose sockets are gone.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use aya::Pod;
use aya::maps::{HashMap, Map, MapData};
use common::connections::{Connection, MOST_STALE};
use common::key::Key;
use config::policy::Attach;
use datapath::{Datapath, PinDirectory};
use nix::sched::{CloneFlags, unshare};

use super::{Pins, image};

/// A map of the counts.
fn map<K: Pod, V: Pod>(pins: &Path, name: &str) -> HashMap<MapData, K, V> {
    let folders = std::fs::read_dir(pins)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let folder = folders
        .into_iter()
        .find(|path| path.join("SOCKETS").exists())
        .unwrap();
    HashMap::try_from(Map::HashMap(MapData::from_pin(folder.join(name)).unwrap())).unwrap()
}

/// As after a kernel whose tracing program was not run when sockets closed.
pub fn a_connection_without_a_socket_is_not_counted_any_more_and_one_with_a_socket_stays() {
    // A thread's namespace is its own, and goes with it.
    std::thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        assert!(
            Command::new("ip")
                .args(["link", "set", "lo", "up"])
                .status()
                .unwrap()
                .success()
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = [
            TcpStream::connect(listener.local_addr().unwrap()).unwrap(),
            listener.accept().unwrap().0,
        ];
        let pins = Pins::new();
        let image = image("[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = 500\n");
        let mut datapath = Datapath::load(image, &PinDirectory::open(&pins.0).unwrap()).unwrap();
        datapath.attach("lo", Attach::Generic).unwrap();
        assert_eq!(datapath.count_connections().unwrap(), 1);
        let counts = |datapath: &Datapath| datapath.connections().unwrap().keys().unwrap();
        let (key, one) = counts(&datapath)[0];
        assert_eq!((one, counts(&datapath).len()), (1, 1));

        let mut sockets: HashMap<_, u64, Connection> = map(&pins.0, "SOCKETS");
        let mut keys: HashMap<_, Key, u64> = map(&pins.0, "OPEN");
        let (socket, connection) = sockets.iter().next().unwrap().unwrap();
        // Long ago, and not seen since.
        let old = Connection {
            since: 1,
            seen: 0,
            ..connection
        };
        let stale = u64::from(MOST_STALE) + 10;
        for nth in 1..=stale {
            let mut connection = old;
            connection.tuple.remote_port = nth as u32;
            sockets.insert(nth, connection, 0).unwrap();
        }
        keys.insert(key, stale + 1, 0).unwrap();
        // Two looks have to miss a socket before the next one removes it.
        for expected in [stale + 1, 1, 1] {
            // That of the live connection looks as old before each of them.
            sockets.insert(socket, old, 0).unwrap();
            assert_eq!(datapath.count_connections().unwrap(), 0);
            assert_eq!(counts(&datapath), [(key, expected)]);
        }
        let seen = datapath.connections().unwrap().open().unwrap();
        assert!(seen.len() == 1 && seen[0].seen > 0, "{seen:?}");

        // The address of a socket whose end was missed belongs to the live one.
        let other = Key {
            lo: key.lo ^ 1 << 60,
            ..key
        };
        let mut missed = connection;
        missed.tuple.remote_port ^= 1;
        missed.reservation.keys[0] = other;
        sockets.insert(socket, missed, 0).unwrap();
        keys.remove(&key).unwrap();
        keys.insert(other, 1, 0).unwrap();
        assert_eq!(datapath.count_connections().unwrap(), 1);
        assert_eq!(counts(&datapath), [(key, 1)]);

        drop(open);
        let deadline = Instant::now() + Duration::from_secs(300);
        while !counts(&datapath).is_empty() {
            assert!(Instant::now() < deadline, "{:?}", counts(&datapath));
            std::thread::sleep(Duration::from_millis(5));
        }
    })
    .join()
    .unwrap();
}
