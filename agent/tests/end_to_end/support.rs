//! Two namespaces joined by a veth pair, an agent in one, senders in the other; all of it gone when dropped.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use serde_json::Value;

use crate::foreign::{Foreign, Place};
use crate::wire::Receiver;

/// The interface the agent holds.
pub const INTERFACE: &str = "weir0";
/// The address on that interface.
pub const SERVER: [u8; 4] = [10, 77, 0, 1];
/// Its IPv6 address.
pub const SERVER6: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// Hardware addresses of the two ends.
pub const CLIENT_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 2];
/// The server's end.
pub const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 1];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// Why end-to-end tests cannot run here, if they cannot.
pub fn obstacle() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("end-to-end tests need root, for namespaces and BPF");
    }
    if agent().is_none() {
        return Some("end-to-end tests need the agent that `cargo xtask build` leaves: run `cargo xtask test`");
    }
    None
}

/// Whether this kernel has the queueing discipline `fq`.
pub fn has_fq() -> bool {
    let network = Network::new();
    let namespace = format!("--net=/run/netns/{}", network.server);
    let arguments = [&namespace, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "fq"];
    Command::new("nsenter").args(arguments).output().is_ok_and(|output| output.status.success())
}

/// Whether this kernel can make a device like this one: arguments of `ip link add`.
pub fn can_make(device: &[&str]) -> bool {
    let network = Network::new();
    let output = Command::new("ip").args([&["-n", &network.server, "link", "add"], device].concat()).output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether this kernel has VXLAN devices.
pub fn has_vxlan() -> bool {
    let network = Network::new();
    let link = ["-n", &network.server, "link", "add", "probe", "type", "vxlan", "id", "1", "dstport", "4789"];
    Command::new("ip").args(link).output().is_ok_and(|output| output.status.success())
}

/// Whether this kernel has chains of programs at the hooks of traffic control.
pub fn has_tcx() -> bool {
    aya::util::KernelVersion::current().is_ok_and(|version| version >= aya::util::KernelVersion::new(6, 6, 0))
}

/// The binary under test: the one with the eBPF object inside.
fn agent() -> Option<PathBuf> {
    std::env::var_os("WEIR_AGENT").map(PathBuf::from).filter(|path| path.exists())
}

pub fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The test network.
pub struct Network {
    client: String,
    server: String,
    /// For configs and sockets.
    pub folder: tempfile::TempDir,
    pins: PathBuf,
}

impl Network {
    pub fn new() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weir-t{}-{number}", std::process::id());
        let network = Self {
            client: format!("{name}c"),
            server: format!("{name}s"),
            folder: tempfile::tempdir().unwrap(),
            pins: PathBuf::from(format!("/sys/fs/bpf/{name}")),
        };
        let (client, server) = (network.client.as_str(), network.server.as_str());
        run("ip", &["netns", "add", client]);
        run("ip", &["netns", "add", server]);
        network.join();
        network
    }

    /// Joins the namespaces by the veth pair.
    pub fn join(&self) {
        let (network, client, server) = (self, self.client.as_str(), self.server.as_str());
        run(
            "ip",
            &[
                "link",
                "add",
                INTERFACE,
                "address",
                "02:00:00:00:77:01",
                "netns",
                server,
                "type",
                "veth",
                "peer",
                "name",
                "client0",
                "address",
                "02:00:00:00:77:02",
                "netns",
                client,
            ],
        );
        // The client's kernel says nothing of itself: every packet is one that a test sent.
        network.in_client(|| std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap());
        run("ip", &["-n", server, "addr", "add", "fd77::1/64", "dev", INTERFACE, "nodad"]);
        for (namespace, device, address) in [(client, "client0", "10.77.0.2/16"), (server, INTERFACE, "10.77.0.1/16")] {
            run("ip", &["-n", namespace, "addr", "add", address, "dev", device]);
            run("ip", &["-n", namespace, "link", "set", device, "up"]);
            run("ip", &["-n", namespace, "link", "set", "lo", "up"]);
        }
    }

    /// The name of the client's namespace.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The name of the server's namespace.
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Runs `work` on a thread inside the client's namespace.
    pub fn in_client<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.client, work)
    }

    /// Runs `work` on a thread inside the server's namespace.
    pub fn in_server<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.server, work)
    }

    /// A second veth pair between the two namespaces, without addresses.
    pub fn add_link(&self, server_end: &str, client_end: &str) {
        let (client, server) = (self.client.as_str(), self.server.as_str());
        let pair = ["link", "add", server_end, "netns", server, "type", "veth", "peer", "name", client_end];
        run("ip", &[&pair[..], &["netns", client]].concat());
        run("ip", &["-n", client, "link", "set", client_end, "up"]);
        run("ip", &["-n", server, "link", "set", server_end, "up"]);
    }

    /// Removes such a pair.
    pub fn remove_link(&self, server_end: &str) {
        run("ip", &["-n", &self.server, "link", "del", server_end]);
    }

    /// The index of one of the server's interfaces.
    pub fn index(&self, interface: &str) -> u32 {
        self.in_server(|| nix::net::if_::if_nametoindex(interface).unwrap())
    }

    /// Runs `ip` in the server's namespace.
    pub fn ip(&self, arguments: &[&str]) {
        run("ip", &[&["-n", &self.server], arguments].concat());
    }

    /// Runs many commands of `ip` in the server's namespace.
    pub fn ip_batch(&self, commands: &str) {
        let file = self.folder.path().join("ip");
        std::fs::write(&file, commands).unwrap();
        run("ip", &["-n", &self.server, "-batch", file.to_str().unwrap()]);
    }

    /// Runs `tc` in the server's namespace.
    pub fn tc(&self, arguments: &[&str]) {
        run("tc", &[&["-n", &self.server], arguments].concat());
    }

    /// A further address of the client's.
    pub fn add_client_address(&self, address: &str) {
        run("ip", &["-n", &self.client, "addr", "add", address, "dev", "client0"]);
    }

    /// An address for one of the server's devices, which is set up.
    pub fn configure_server(&self, device: &str, address: &str) {
        run("ip", &["-n", &self.server, "addr", "add", address, "dev", device]);
        run("ip", &["-n", &self.server, "link", "set", device, "up"]);
    }

    /// Runs `ip` in the server's namespace.
    pub fn server_ip(&self, arguments: &[&str]) {
        run("ip", &[&["-n", &self.server], arguments].concat());
    }

    /// Gives the server's interface the queueing discipline that keeps to departure times.
    pub fn queue_fairly(&self, options: &[&str]) {
        let namespace = format!("--net=/run/netns/{}", self.server);
        let replace = [&namespace, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "fq"];
        run("nsenter", &[&replace[..], options].concat());
    }

    /// A VXLAN between the two namespaces, 10.79.0.1 the server's end and 10.79.0.2 the client's.
    pub fn add_vxlan(&self) {
        const MACS: [&str; 2] = ["02:00:00:00:79:01", "02:00:00:00:79:02"];
        let ends = [(&self.server, INTERFACE, 1, 2), (&self.client, "client0", 2, 1)];
        for (namespace, device, own, other) in ends {
            let (mac, other_mac) = (MACS[own - 1], MACS[other - 1]);
            let (local, remote) = (format!("10.77.0.{own}"), format!("10.77.0.{other}"));
            inside(namespace, || {
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
                let kind = ["type", "vxlan", "id", "7", "dstport", "4789", "dev", device];
                let ends = ["local", &local, "remote", &remote];
                run("ip", &[&["link", "add", "tunnel0", "address", mac][..], &kind, &ends].concat());
                run("ip", &["addr", "add", &format!("10.79.0.{own}/24"), "dev", "tunnel0"]);
                run("ip", &["link", "set", "tunnel0", "up"]);
                let neighbour = format!("10.79.0.{other}");
                run("ip", &["neigh", "add", &neighbour, "lladdr", other_mac, "dev", "tunnel0", "nud", "permanent"]);
            });
        }
    }

    pub fn set_mtu(&self, mtu: u32) {
        for (namespace, device) in [(&self.client, "client0"), (&self.server, INTERFACE)] {
            run("ip", &["-n", namespace, "link", "set", device, "mtu", &mtu.to_string()]);
        }
    }

    /// Has the client's end take frames from XDP's transmission, which a veth does only with a program of its own: one
    /// that passes everything.
    pub fn accept_xdp_frames(&self) {
        let config = self.folder.path().join("other.toml");
        let control = self.folder.path().join("other.sock");
        let (pins, state) = (self.other_pins(), self.folder.path().join("other-state"));
        let text = format!(
            "interfaces = [\"client0\"]\nattach = \"native\"\ncontrol = {control:?}\npins = {pins:?}\nstate_dir = {state:?}\n\
             allow_empty = true\n"
        );
        std::fs::write(&config, format!("[agent]\n{text}")).unwrap();
        let mut command = Command::new(agent().unwrap());
        command.arg("--config").arg(&config).stderr(Stdio::null());
        let mut child = inside(&self.client, || command.spawn()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // A program that can be seen need not be pinned yet, and would go with the agent.
        let mut status = Command::new(agent().unwrap());
        status.arg("status").arg("--control").arg(&control);
        while !status.output().unwrap().status.success() {
            assert!(child.try_wait().unwrap().is_none(), "the program was not attached");
            assert!(Instant::now() < deadline, "no program was attached within a minute");
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_program(&self.client, "client0"));
    }

    /// Puts somebody else's program on the server's interface: one that lets everything go on.
    pub fn attach_foreign(&self, place: Place) -> Foreign {
        self.in_server(|| Foreign::attach(nix::net::if_::if_nametoindex(INTERFACE).unwrap(), place))
    }

    /// A default route of the server's.
    pub fn add_default_route(&self, gateway: &str) {
        let family = if gateway.contains(':') { "-6" } else { "-4" };
        run("ip", &["-n", &self.server, family, "route", "add", "default", "via", gateway, "dev", INTERFACE]);
    }

    /// Where the maps are pinned.
    pub fn pins(&self) -> &Path {
        &self.pins
    }

    /// A config for another agent on the same interface, with a socket of its own and pins at `pins`.
    pub fn rival(&self, agent: &str, rest: &str, pins: &Path) -> PathBuf {
        let path = self.folder.path().join("rival.toml");
        let control = self.folder.path().join("rival.sock");
        let state = self.folder.path().join("rival-state");
        let text = format!(
            "[agent]\ninterfaces = [{INTERFACE:?}]\ncontrol = {control:?}\npins = {pins:?}\nstate_dir = {state:?}\n{agent}\n{rest}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn other_pins(&self) -> PathBuf {
        PathBuf::from(format!("{}-other", self.pins.display()))
    }

    /// Packets with this mark are not routed to anybody.
    pub fn drop_marked(&self, mark: u32) {
        let rule = ["-n", &self.server, "rule", "add", "pref", "0", "fwmark", &mark.to_string(), "table", "99"];
        run("ip", &["-n", &self.server, "rule", "add", "pref", "10", "table", "local"]);
        run("ip", &["-n", &self.server, "rule", "del", "pref", "0"]);
        run("ip", &rule);
        run("ip", &["-n", &self.server, "route", "add", "blackhole", "default", "table", "99"]);
    }

    /// A config with `[agent]` filled in: `agent` is added to that table, `rest` follows it.
    pub fn config(&self, agent: &str, rest: &str) -> PathBuf {
        self.config_on(&[INTERFACE], agent, rest)
    }

    /// The same for other interfaces.
    pub fn config_on(&self, interfaces: &[&str], agent: &str, rest: &str) -> PathBuf {
        let path = self.folder.path().join("limits.toml");
        let control = self.control();
        let allow_empty = !rest.contains("[[limit]]") && !rest.contains("[[group]]");
        let text = format!(
            "[agent]\ninterfaces = {interfaces:?}\ncontrol = {control:?}\npins = {:?}\nstate_dir = {:?}\n\
             allow_empty = {allow_empty}\n{agent}\n{rest}\n",
            self.pins,
            self.state()
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// The agent's state directory.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Whether anything is pinned.
    pub fn has_pins(&self) -> bool {
        self.pins.exists()
    }

    /// Whether an XDP program is on the interface.
    pub fn has_program(&self) -> bool {
        has_program(&self.server, INTERFACE)
    }

    /// Starts an agent, and waits until it enforces.
    pub fn start(&self, agent: &str, rest: &str) -> Agent<'_> {
        self.start_on(&[INTERFACE], agent, rest)
    }

    /// The same on other interfaces.
    pub fn start_on(&self, interfaces: &[&str], agent: &str, rest: &str) -> Agent<'_> {
        let config = self.config_on(interfaces, agent, rest);
        self.start_file(&config, &[])
    }

    /// Starts an agent without waiting for it.
    pub fn spawn_agent(&self, config: &Path, environment: &[(&str, &str)]) -> Agent<'_> {
        let mut command = Command::new(agent().unwrap());
        command.arg("--config").arg(config).envs(environment.iter().copied()).stderr(Stdio::piped());
        Agent { network: self, child: self.in_server(|| command.spawn()).unwrap() }
    }

    /// Starts an agent that sees another boot of the kernel, and waits until it enforces.
    pub fn start_in_boot(&self, boot: &str, config: &Path) -> Agent<'_> {
        let file = self.folder.path().join(format!("boot-{boot}"));
        std::fs::write(&file, format!("{boot}\n")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\""]);
        command.arg(file).arg(agent().unwrap()).arg("--config").arg(config).stderr(Stdio::piped());
        self.wait_for_agent(Agent { network: self, child: self.in_server(|| command.spawn()).unwrap() })
    }

    /// Starts an agent in a cgroup, without waiting for it.
    pub fn spawn_in_group(&self, cgroup: &Path, config: &Path) -> Agent<'_> {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(cgroup.join("cgroup.procs"));
        command.arg(agent().unwrap()).arg("--config").arg(config).stderr(Stdio::piped());
        Agent { network: self, child: self.in_server(|| command.spawn()).unwrap() }
    }

    /// The same, and waits until it enforces.
    pub fn start_in_group(&self, cgroup: &Path, config: &Path) -> Agent<'_> {
        self.wait_for_agent(self.spawn_in_group(cgroup, config))
    }

    /// Starts an agent with a config as it is, and waits until it enforces.
    pub fn start_file(&self, config: &Path, environment: &[(&str, &str)]) -> Agent<'_> {
        self.wait_for_agent(self.spawn_agent(config, environment))
    }

    fn wait_for_agent<'n>(&'n self, mut agent: Agent<'n>) -> Agent<'n> {
        let child = &mut agent.child;
        let deadline = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(self.control()).is_err() || !self.answers() {
            if let Some(status) = child.try_wait().unwrap() {
                let mut said = String::new();
                child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
                panic!("the agent ended with {status}: {said}");
            }
            assert!(Instant::now() < deadline, "the agent did not answer within a minute");
            thread::sleep(Duration::from_millis(20));
        }
        agent
    }

    fn answers(&self) -> bool {
        self.command(&["status"]).status.success()
    }

    /// Runs one command of the CLI against this network's agent.
    pub fn command(&self, arguments: &[&str]) -> Output {
        self.command_with("WEIR_TEST", "1", arguments)
    }

    /// Runs one command that has to succeed.
    pub fn told(&self, arguments: &[&str]) {
        let output = self.command(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs one command of the CLI with a variable in its environment.
    pub fn command_with(&self, variable: &str, value: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(agent().unwrap());
        command.env(variable, value);
        command.args(arguments);
        if !matches!(arguments.first(), Some(&"check" | &"detach" | &"doctor" | &"--config")) {
            command.arg("--control").arg(self.control());
        }
        self.in_server(|| command.output()).unwrap()
    }

    /// Starts one command of the CLI against this network's agent, with what `set_up` gives it to read and write.
    pub fn spawn(&self, arguments: &[&str], set_up: impl FnOnce(&mut Command)) -> Child {
        let mut command = Command::new(agent().unwrap());
        command.args(arguments).arg("--control").arg(self.control()).stdin(Stdio::null());
        set_up(&mut command);
        // It needs nothing of the network: the socket is a file.
        command.spawn().unwrap()
    }

    /// Runs an agent that is expected to end by itself.
    pub fn run_to_end(&self, config: &Path) -> Output {
        let mut command = Command::new(agent().unwrap());
        command.arg("--config").arg(config).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.in_server(|| command.spawn()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                child.kill().unwrap();
                let said = child.wait_with_output().unwrap().stderr;
                panic!("the agent runs on: {}", String::from_utf8_lossy(&said));
            }
            thread::sleep(Duration::from_millis(20));
        }
        child.wait_with_output().unwrap()
    }

    /// Counts datagrams that reach a UDP socket of the server, by source, until `done`.
    pub fn receiver(&self, port: u16) -> Receiver {
        Receiver::new(self.in_server(|| UdpSocket::bind(("0.0.0.0", port)).unwrap()))
    }

    /// The same for a socket of the client's.
    pub fn client_receiver(&self, address: &str) -> Receiver {
        Receiver::new(self.in_client(|| UdpSocket::bind(address).unwrap()))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for namespace in [&self.client, &self.server] {
            let _ = Command::new("ip").args(["netns", "del", namespace]).status();
        }
        let _ = std::fs::remove_dir_all(&self.pins);
        let _ = std::fs::remove_dir_all(self.other_pins());
    }
}

fn has_program(namespace: &str, interface: &str) -> bool {
    let output = Command::new("ip").args(["-n", namespace, "-d", "link", "show", interface]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("xdp")
}

fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> T + Send) -> T {
    let file = File::open(format!("/run/netns/{namespace}")).unwrap();
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            setns(&file, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Whether this is a virtual machine of `cargo xtask vm`, whose CPUs are emulated: much takes seconds there.
pub fn is_virtual() -> bool {
    std::env::var_os("WEIR_VM").is_some()
}

/// A time that leaves room for several commands of the CLI, also on an emulated CPU.
pub fn a_while() -> Duration {
    Duration::from_secs(if is_virtual() { 40 } else { 2 })
}

/// A running agent, killed when dropped.
pub struct Agent<'n> {
    network: &'n Network,
    child: Child,
}

impl Agent<'_> {
    /// The JSON of one command.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let output = self.network.command(&arguments);
        let said = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{arguments:?}: {}{}", said[0], said[1]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The documents of one command that prints one a line.
    pub fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.network.command(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// One limit's element of `limits --json`.
    pub fn limit(&self, name: &str) -> Value {
        let limits = self.json(&["limits"]);
        limits.as_array().unwrap().iter().find(|limit| limit["name"] == name).unwrap().clone()
    }

    /// (passed, throttled) packets of a limit.
    pub fn counts(&self, name: &str) -> (u64, u64) {
        let limit = self.limit(name);
        (limit["passed"]["packets"].as_u64().unwrap(), limit["throttled"]["packets"].as_u64().unwrap())
    }

    /// Waits until a line of what it says holds this, and ends it by SIGTERM.
    pub fn wait_until_it_says(mut self, wanted: &str) {
        let mut lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains(wanted) => break,
                Some(Ok(line)) => said.push(line),
                _ => panic!("it did not say {wanted:?} but {said:?}"),
            }
        }
        self.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(self.child.wait().unwrap().success());
    }

    /// Time of a CPU that it has used, its own and the kernel's on its behalf.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // What follows the name, which is in brackets, begins with the third field; times are the 14th and 15th.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until its status is as `wanted` says, and returns it.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let status = self.json(&["status"]);
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{what} did not come within a minute: {status}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What is left of a limit for a source.
    pub fn remaining(&self, source: &str, limit: &str) -> u64 {
        let shown = self.json(&["show", source]);
        let limits = shown["limits"].as_array().unwrap();
        let of_limit = limits.iter().find(|shown| shown["name"] == limit);
        of_limit.unwrap_or_else(|| panic!("{shown} has no limit {limit}"))["remaining"].as_u64().unwrap()
    }

    /// Waits until it ends by itself; what it said, and its exit status.
    pub fn end(mut self) -> (String, std::process::ExitStatus) {
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (said, self.child.wait().unwrap())
    }

    /// Ends it with a signal; what it said, and its exit status.
    pub fn stop(self, signal: nix::sys::signal::Signal) -> (String, std::process::ExitStatus) {
        self.signal(signal);
        self.end()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells a thread to stop when it is dropped, whatever for.
pub struct StopWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
