//! Hooks of an interface, and how they are let go of.

use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use config::policy::Attach;
use datapath::{Datapath, PinDirectory};
use nix::sched::{CloneFlags, unshare};

use super::{Pins, image};

/// With the datapath, and so a reference to its link, alive: what ends it is being told to, not the last reference.
pub fn a_detached_program_limits_nothing() {
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
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let arrives = |timeout| {
            receiver.set_read_timeout(Some(timeout)).unwrap();
            sender.send(b"packet").unwrap();
            receiver.recv(&mut [0; 16]).is_ok()
        };
        for attach in [Attach::Generic, Attach::Tc] {
            let pins = Pins::new();
            let image = image("[[limit]]\nname = \"one\"\nrate = \"1/day\"\nprotocol = \"udp\"\n");
            let mut datapath =
                Datapath::load(image, &PinDirectory::open(&pins.0).unwrap()).unwrap();
            datapath.attach("lo", attach).unwrap();
            assert!(
                arrives(Duration::from_secs(30)),
                "{attach:?}: the limit allows one"
            );
            assert!(
                !arrives(Duration::from_millis(100)),
                "{attach:?}: and no more"
            );
            datapath.detach().unwrap();
            assert!(
                arrives(Duration::from_secs(30)),
                "{attach:?}: nothing is held any more"
            );
        }
    })
    .join()
    .unwrap();
}
