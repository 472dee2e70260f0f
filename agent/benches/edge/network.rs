//! Networks of the benchmark's own: one namespace that sends, and for everything that is measured one that receives,
//! joined by a veth pair. All of it is gone when dropped.

use std::fs::File;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};

/// The receiving end of every pair.
pub const INTERFACE: &str = "weir0";
/// The receiver's address, and the one hardware address of all receivers.
pub const RECEIVER: [u8; 4] = [192, 0, 2, 2];
pub const RECEIVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const SENDER_MAC: &str = "02:00:00:00:00:01";
/// The sender's address, where it has one.
const NEIGHBOUR: &str = "192.0.2.1";
const RECEIVER_MAC_TEXT: &str = "02:00:00:00:00:02";

/// The namespace that sends.
pub struct Sender {
    name: String,
    lanes: AtomicU32,
}

/// A namespace that receives, and the sender's end of the pair.
pub struct Lane {
    pub namespace: String,
    /// The sender's interface.
    pub from: String,
    /// Its index, in the sender's namespace.
    pub from_index: u32,
}

impl Sender {
    pub fn new() -> Result<Self> {
        let name = format!("weir-tb{}-s", std::process::id());
        run("ip", &["netns", "add", &name])?;
        let sender = Self {
            name,
            lanes: AtomicU32::new(0),
        };
        run("ip", &["-n", &sender.name, "link", "set", "lo", "up"])?;
        // Its kernel says nothing of itself: what is sent is what is measured.
        sender.inside(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"))??;
        Ok(sender)
    }

    /// Runs `work` on a thread inside this namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        inside(&self.name, work)
    }

    /// Gives the sender's end of a lane an address, to which the receiver's packets go: see [`Lane::route_by_neighbour`].
    pub fn add_address(&self, lane: &Lane) -> Result<()> {
        run(
            "ip",
            &[
                "-n",
                &self.name,
                "addr",
                "add",
                &format!("{NEIGHBOUR}/24"),
                "dev",
                &lane.from,
            ],
        )
    }

    /// The thread that calls this is in the namespace from now on.
    pub fn enter(&self) -> Result<()> {
        enter(&self.name)
    }

    /// A receiver, with a name of its own: the kernel takes its time to remove what is dropped.
    pub fn lane(&self) -> Result<Lane> {
        let nth = self.lanes.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("weir-tb{}-{nth}", std::process::id());
        run("ip", &["netns", "add", &namespace])?;
        let from = format!("to{nth}");
        let mut lane = Lane {
            namespace,
            from,
            from_index: 0,
        };
        inside(&lane.namespace, || {
            // Replies need not find back, and any source may send.
            std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "0")?;
            std::fs::write("/proc/sys/net/ipv4/conf/default/rp_filter", "0")?;
            std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")
        })??;
        let (receiver, sender) = (lane.namespace.as_str(), self.name.as_str());
        let ours = [
            "link",
            "add",
            INTERFACE,
            "address",
            RECEIVER_MAC_TEXT,
            "netns",
            receiver,
        ];
        let theirs = [
            "type", "veth", "peer", "name", &lane.from, "address", SENDER_MAC, "netns", sender,
        ];
        run("ip", &[&ours[..], &theirs].concat())?;
        let address = RECEIVER.map(|byte| byte.to_string()).join(".");
        run(
            "ip",
            &["-n", receiver, "addr", "add", &address, "dev", INTERFACE],
        )?;
        run("ip", &["-n", receiver, "link", "set", INTERFACE, "up"])?;
        run("ip", &["-n", receiver, "link", "set", "lo", "up"])?;
        run("ip", &["-n", sender, "link", "set", &lane.from, "up"])?;
        run(
            "ip",
            &["-n", receiver, "route", "add", "default", "dev", INTERFACE],
        )?;
        // Without a program on it, an interface takes frames from another's program only if it gathers them (GRO).
        for (namespace, interface) in [(receiver, INTERFACE), (sender, &lane.from)] {
            let namespace = format!("--net=/run/netns/{namespace}");
            run(
                "nsenter",
                &[&namespace, "ethtool", "-K", interface, "gro", "on"],
            )?;
        }
        lane.from_index = self.inside(|| nix::net::if_::if_nametoindex(lane.from.as_str()))??;
        Ok(lane)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        remove(&self.name);
    }
}

impl Lane {
    /// Runs `work` on a thread inside this namespace.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        inside(&self.namespace, work)
    }

    /// Runs a program inside this namespace.
    pub fn run(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let namespace = format!("--net=/run/netns/{}", self.namespace);
        run(
            "nsenter",
            &[&[namespace.as_str(), program], arguments].concat(),
        )
    }

    /// IPv4 packets that have reached a protocol above, and frames that the interface has received.
    pub fn received(&self) -> Result<(u64, u64)> {
        let read = || -> Result<(u64, u64)> {
            let text = std::fs::read_to_string("/proc/thread-self/net/snmp")?;
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("Ip: "));
            let names = lines.next().context("/proc/net/snmp has no Ip")?.split(' ');
            let mut pairs = names.zip(
                lines
                    .next()
                    .context("/proc/net/snmp has no figures")?
                    .split(' '),
            );
            let delivered = pairs
                .find(|(name, _)| *name == "InDelivers")
                .context("/proc/net/snmp has no InDelivers")?;
            Ok((delivered.1.parse()?, frames(INTERFACE)?))
        };
        self.inside(read)?
    }

    /// Has packets to anywhere leave through a neighbour that needs no address resolution: the sender's end.
    pub fn route_by_neighbour(&self) -> Result<()> {
        let (neighbour, route) = (
            ["neigh", "replace", NEIGHBOUR],
            ["route", "replace", "default", "via", NEIGHBOUR],
        );
        self.run(
            "ip",
            &[&neighbour[..], &["lladdr", SENDER_MAC, "dev", INTERFACE]].concat(),
        )?;
        self.run("ip", &[&route[..], &["dev", INTERFACE, "onlink"]].concat())
    }

    /// Frames that the sender's end has received; for a thread in the sender's namespace.
    pub fn answered(&self) -> Result<u64> {
        frames(&self.from)
    }
}

/// Frames that an interface of this thread's namespace has received.
fn frames(interface: &str) -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let row = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
    let frames = row.and_then(|row| row.split_whitespace().nth(1));
    Ok(frames
        .with_context(|| format!("/proc/net/dev has no {interface}"))?
        .parse()?)
}

impl Drop for Lane {
    fn drop(&mut self) {
        remove(&self.namespace);
    }
}

/// Runs a program that has to succeed.
pub fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        said.trim()
    );
    Ok(())
}

fn remove(namespace: &str) {
    // `cargo xtask cleanup` knows these names and removes leftovers.
    let _ = run("ip", &["netns", "del", namespace]);
}

fn enter(namespace: &str) -> Result<()> {
    let path = format!("/run/netns/{namespace}");
    let file = File::open(&path).with_context(|| format!("opening {path}"))?;
    setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("entering {path}"))
}

fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            enter(namespace)?;
            Ok(work())
        });
        thread
            .join()
            .unwrap_or_else(|_| Err(anyhow!("a thread inside {namespace} panicked")))
    })
}
