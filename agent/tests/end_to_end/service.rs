//! The agent as a unit of systemd: readiness, the watchdog, capabilities.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use serde_json::Value;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;

use crate::operations::said;
use crate::support::{Network, StopWhenDropped};
use crate::traffic::{LIMIT, PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    systemd_receives_readiness_and_no_watchdog_of_a_stuck_loop,
    clients_that_flood_requests_do_not_delay_the_watchdog,
    the_capabilities_of_the_unit_are_enough_for_limits_and_groups,
];

/// Tests of systemd's own assessment.
pub const WITH_SYSTEMD: &[Test] = tests![the_units_are_what_systemd_takes_for_right_and_safe];

/// Whether systemd's tool for looking at units is here.
pub fn has_systemd() -> bool {
    Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_ok_and(|output| output.status.success())
}

/// An agent under a service manager that this test plays.
struct Managed {
    child: Child,
    socket: UnixDatagram,
}

impl Managed {
    fn start(network: &Network, config: &Path, watchdog: Duration) -> Self {
        let path = network.folder.path().join("notify.sock");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut command = Command::new(testbed::agent());
        command.arg("--config").arg(config).stderr(Stdio::null());
        command
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", watchdog.as_micros().to_string());
        let child = network.in_server(|| command.spawn()).unwrap();
        Self { child, socket }
    }

    /// The next message within this time.
    fn next(&self, time: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(time)).unwrap();
        let mut message = [0; 4096];
        let length = self.socket.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..length]).into_owned())
    }

    /// Until a message has this line; what came before is dropped.
    fn until(&self, line: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(300);
        while Instant::now() < deadline {
            if let Some(message) = self.next(Duration::from_secs(1))
                && message.lines().any(|it| it == line)
            {
                return message;
            }
        }
        panic!("{line} was not told in time");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

impl Drop for Managed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn systemd_receives_readiness_and_no_watchdog_of_a_stuck_loop() {
    let network = Network::new();
    let config = network.config("on_exit = \"detach\"", &LIMIT.replace("1000/s", "1/h"));
    let watchdog = Duration::from_millis(400);
    let receiver = network.receiver(PORT);
    let mut managed = Managed::start(&network, &config, watchdog);
    let ready = managed.until("READY=1");
    // The limits are in effect at this moment.
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(receiver.counts()[7], 100);
    assert!(
        ready.contains("STATUS=enforcing 1 limit on weir0 (native)"),
        "{ready}"
    );
    for _ in 0..3 {
        managed.until("WATCHDOG=1");
    }
    // The thread that does the agent's work is stopped, and no other.
    ptrace::seize(managed.pid(), ptrace::Options::empty()).unwrap();
    ptrace::interrupt(managed.pid()).unwrap();
    waitpid(managed.pid(), None).unwrap();
    while managed.next(Duration::from_millis(1)).is_some() {}
    assert_eq!(
        managed.next(4 * watchdog),
        None,
        "a loop that is stuck was called alive"
    );
    ptrace::detach(managed.pid(), None).unwrap();
    managed.until("WATCHDOG=1");
    kill(managed.pid(), Signal::SIGTERM).unwrap();
    managed.until("STOPPING=1");
    assert!(managed.child.wait().unwrap().success());
    assert!(!network.has_program());
}

/// As many clients as are served at one time, each asking again as soon as it is answered.
fn clients_that_flood_requests_do_not_delay_the_watchdog() {
    const CLIENTS: usize = 100;
    let network = Network::new();
    let config = network.config("max_sources = 200000", LIMIT);
    let watchdog = Duration::from_secs(8);
    let managed = Managed::start(&network, &config, watchdog);
    managed.until("READY=1");
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    let slowest = Mutex::new(Duration::ZERO);
    let stalls = Stalls::watch();
    let longest = thread::scope(|scope| {
        let _stopped = StopWhenDropped(&stop);
        for nth in 0..CLIENTS {
            let (stop, answered, slowest, socket) = (&stop, &answered, &slowest, network.control());
            let request = if nth % 2 == 0 {
                "{\"verb\":\"limits\"}\n"
            } else {
                "{\"verb\":\"status\"}\n"
            };
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let asked_at = Instant::now();
                    let Ok(mut stream) = UnixStream::connect(&socket) else {
                        continue;
                    };
                    let asked = stream.write_all(request.as_bytes());
                    let mut answer = String::new();
                    if asked.is_ok()
                        && BufReader::new(stream).read_line(&mut answer).is_ok()
                        && !answer.is_empty()
                    {
                        answered.fetch_add(1, Ordering::Relaxed);
                        let mut slowest = slowest.lock().unwrap();
                        *slowest = asked_at.elapsed().max(*slowest);
                    }
                }
            });
        }
        let begin = Instant::now();
        let (mut last, mut longest) = (begin, Duration::ZERO);
        while begin.elapsed() < 2 * watchdog {
            if managed
                .next(watchdog)
                .is_some_and(|message| message.contains("WATCHDOG=1"))
            {
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
        }
        longest.max(last.elapsed()).saturating_sub(stalls.so_far())
    });
    let answered = answered.into_inner();
    let slowest = slowest.into_inner().unwrap();
    eprintln!(
        "{answered} answers to {CLIENTS} clients, within {slowest:?}; {longest:?} between two messages at the most"
    );
    assert!(answered > CLIENTS, "{answered}");
    // It is sent twice in this time, by the thread that waits for the table as clients do: no longer than they, where a busy
    // machine makes them wait.
    assert!(
        longest < watchdog.max(watchdog / 2 + slowest),
        "{longest:?}, clients {slowest:?}"
    );
}

/// The capability that the drop-in of docs/SERVICE.md adds where systemd moves no processes, as on the test's host. The
/// drop-in's other one, CAP_DAC_OVERRIDE, is for cgroups that are not the agent's.
const WITHOUT_SCOPES: [&str; 1] = ["CAP_KILL"];

/// The numbers of the capabilities that the unit, its file for groups and the drop-in leave.
fn capabilities_of_the_unit() -> Vec<u8> {
    let units = [
        include_str!("../../../config/systemd/weir.service"),
        include_str!("../../../config/systemd/groups.conf"),
    ];
    let names = units.map(|text| {
        let mut lines = text.lines();
        lines
            .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
            .unwrap()
    });
    let number = |name: &str| match name {
        "CAP_KILL" => 5,
        "CAP_NET_ADMIN" => 12,
        "CAP_SYS_PTRACE" => 19,
        "CAP_SYS_NICE" => 23,
        "CAP_PERFMON" => 38,
        "CAP_BPF" => 39,
        other => panic!("the unit has {other}, which this test does not know"),
    };
    names
        .iter()
        .flat_map(|names| names.split_whitespace())
        .chain(WITHOUT_SCOPES)
        .map(number)
        .collect()
}

/// A cgroup in every hierarchy, delegated to the agent as systemd delegates one: making one at a root
/// takes more than the unit's capabilities. Removed when dropped.
struct Delegated(Vec<PathBuf>);

impl Delegated {
    fn new(name: &str) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let is_cgroup = |line: &&str| {
            line.split(' ')
                .nth(2)
                .is_some_and(|kind| kind.starts_with("cgroup"))
        };
        let roots = mounts
            .lines()
            .filter(is_cgroup)
            .filter_map(|line| line.split(' ').nth(1));
        let made = roots
            .map(|root| Path::new(root).join(name))
            .filter(|path| std::fs::create_dir(path).is_ok());
        Self(made.collect())
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_dir(path.join("held"));
            let _ = std::fs::remove_dir(path);
        }
    }
}

/// A process that waits, killed when dropped.
struct Waiting(Child);

impl Waiting {
    fn new(program: &Path, user: u32) -> Self {
        Self(
            Command::new(program)
                .arg("600")
                .uid(user)
                .gid(user)
                .spawn()
                .unwrap(),
        )
    }

    /// Its errors until it ends.
    fn rest(&mut self) -> String {
        let mut said = String::new();
        self.0
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        said
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Leaves a program with the capabilities that the service has.
pub fn with_capabilities_of_the_unit(command: &mut Command) {
    let kept = capabilities_of_the_unit();
    // SAFETY: between fork and exec, system calls that touch no memory but the list, which was made before.
    unsafe {
        command.pre_exec(move || {
            for capability in (0..64_u8).filter(|capability| !kept.contains(capability)) {
                // Those beyond the kernel's last are refused as invalid.
                libc::prctl(
                    libc::PR_CAPBSET_DROP,
                    libc::c_ulong::from(capability),
                    0,
                    0,
                    0,
                );
            }
            Ok(())
        });
    }
}

fn the_capabilities_of_the_unit_are_enough_for_limits_and_groups() {
    let network = Network::new();
    std::fs::set_permissions(
        network.folder.path(),
        std::fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    // A program of its own, so that no other process of this machine is in the group.
    let program = network.folder.path().join("waiting");
    let sleep = ["/usr/bin/sleep", "/bin/sleep"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .unwrap();
    std::fs::copy(std::fs::canonicalize(sleep).unwrap(), &program).unwrap();
    let is_busybox = std::fs::canonicalize(sleep).unwrap().ends_with("busybox");
    let program = if is_busybox {
        std::fs::rename(&program, network.folder.path().join("sleep")).unwrap();
        network.folder.path().join("sleep")
    } else {
        program
    };
    let cgroup = format!("weir-t{}-c", std::process::id());
    let _delegated = Delegated::new(&cgroup);
    let (nobody, root) = (Waiting::new(&program, 65534), Waiting::new(&program, 0));
    let notified = network.folder.path().join("notified");
    let rest = format!(
        "{}\n[[group]]\nname = \"held\"\nmatch = [{{ exe = {program:?} }}]\npids = 100\ncpus = \"0\"\n\
         network = {{ egress = \"1MB/s\" }}\n[[notify]]\non = \"ban\"\n\
         command = [\"/bin/sh\", \"-c\", \"cat > {}\"]\n",
        LIMIT.replace("1000/s", "1/h"),
        notified.display()
    );
    let config = network.config(&format!("cgroup = {cgroup:?}\non_exit = \"detach\""), &rest);
    let mut command = Command::new(testbed::agent());
    command.arg("--config").arg(&config).stderr(Stdio::piped());
    with_capabilities_of_the_unit(&mut command);
    let mut agent = Waiting(network.in_server(|| command.spawn()).unwrap());
    let deadline = Instant::now() + Duration::from_secs(300);
    while !network.command(&["status"]).status.success() {
        assert!(
            agent.0.try_wait().unwrap().is_none(),
            "the agent ended: {}",
            agent.rest()
        );
        assert!(
            Instant::now() < deadline,
            "the agent did not answer in time"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let json = |verb: &str| -> Value {
        let output = network.command(&[verb, "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
    };
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(receiver.counts()[7], 100);
    network.told(&["ban", "10.77.0.7", "--for", "1m"]);
    while !std::fs::read_to_string(&notified).is_ok_and(|document| document.contains("\"banned\""))
    {
        assert!(
            Instant::now() < deadline,
            "the command did not run: {}",
            json("status")["notifications"]
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    // Processes of root and of others are in the group, with all its limits.
    let members = [nobody.0.id(), root.0.id()];
    loop {
        let groups = json("groups");
        let pids = groups[0]["pids"].as_array().unwrap();
        if members
            .iter()
            .all(|pid| pids.iter().any(|there| there == pid))
        {
            let is_about_permission = |note: &&Value| {
                note.as_str()
                    .is_some_and(|note| note.contains("permitted") || note.contains("denied"))
            };
            let notes = groups[0]["notes"].as_array().unwrap();
            assert_eq!(notes.iter().find(is_about_permission), None);
            break;
        }
        assert!(
            Instant::now() < deadline,
            "the processes {members:?} are not in their group: {groups}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    network.told(&["groups", "kill", "held"]);
    kill(Pid::from_raw(agent.0.id() as i32), Signal::SIGTERM).unwrap();
    let said = agent.rest();
    assert!(agent.0.wait().unwrap().success(), "{said}");
    assert!(!network.has_program() && !network.has_pins(), "{said}");
}

fn the_units_are_what_systemd_takes_for_right_and_safe() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/systemd/weir.service"),
    )
    .unwrap();
    // Where the package puts it, there is none on a machine that only builds.
    let text = text.replace("/usr/bin/weir", testbed::agent().to_str().unwrap());
    std::fs::write(folder.path().join("weir.service"), text).unwrap();
    let analyze = |arguments: &[&str]| {
        let unit = folder.path().join("weir.service");
        let output = Command::new("systemd-analyze")
            .args(arguments)
            .arg(&unit)
            .output()
            .unwrap();
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            said(&output)
        );
        assert!(output.status.success(), "{arguments:?}: {said}");
        said
    };
    assert_eq!(analyze(&["verify", "--man=no"]), "");
    // In tenths, from 0 to 100, without the permissions of groups; the remaining points are the agent's purpose.
    analyze(&["security", "--offline=yes", "--threshold=20"]);
}
