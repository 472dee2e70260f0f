//! Members of group `weir`, who may read: whatever they do, root's commands work.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Network, StopWhenDropped};
use crate::traffic::{LIMIT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    members_use_up_their_followers_and_root_still_follows,
    members_that_hammer_the_control_socket_delay_no_command_of_root,
    clients_that_send_nothing_keep_nobody_from_the_control_socket,
    members_may_not_reset_counters,
];

/// Nobody's.
const MEMBER: u32 = 65_534;

/// Lets everybody open the socket, as its group lets members.
fn open_to_members(network: &Network) {
    std::fs::set_permissions(network.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(network.control(), PermissionsExt::from_mode(0o666)).unwrap();
}

/// A follower of events, killed when dropped. It follows for as long as somebody can read it.
struct Follower {
    child: Child,
    out: BufReader<ChildStdout>,
}

fn follow(network: &Network, user: u32) -> Follower {
    let mut child = network.spawn(&["events", "--follow", "--json", "-n", "1"], |command| {
        command
            .uid(user)
            .gid(user)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    });
    let out = BufReader::new(child.stdout.take().unwrap());
    Follower { child, out }
}

impl Follower {
    /// The first line that it prints; `None` if it ends without one.
    fn first_line(&mut self) -> Option<String> {
        let mut line = String::new();
        let length = self.out.read_line(&mut line).unwrap();
        (length > 0).then_some(line)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn as_member(network: &Network, arguments: &[&str]) -> Output {
    let child = network.spawn(arguments, |command| {
        command
            .uid(MEMBER)
            .gid(MEMBER)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    });
    child.wait_with_output().unwrap()
}

fn members_use_up_their_followers_and_root_still_follows() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    open_to_members(&network);
    burst(&network, &[udp_from(7)], 20);
    let deadline = Instant::now() + Duration::from_secs(300);
    while agent.lines(&["events", "--json"]).is_empty() {
        assert!(Instant::now() < deadline, "no event in time");
        thread::sleep(Duration::from_millis(50));
    }
    // Each is known to follow by the event that it prints.
    let mut followers = Vec::new();
    for nth in 0..weir::daemon::events::MOST_FOLLOWERS {
        let mut follower = follow(&network, MEMBER);
        assert!(follower.first_line().is_some(), "{nth}");
        followers.push(follower);
    }
    let mut refused = follow(&network, MEMBER);
    assert_eq!(refused.first_line(), None);
    let mut said = String::new();
    refused
        .child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    assert!(
        refused.child.wait().unwrap().code() == Some(1) && said.contains("clients follow events"),
        "{said}"
    );
    // Root's places are all free.
    for nth in 0..weir::daemon::events::MOST_FOLLOWERS {
        let mut follower = follow(&network, 0);
        let line = follower
            .first_line()
            .unwrap_or_else(|| panic!("root's follower {nth}"));
        assert_eq!(
            serde_json::from_str::<Value>(&line).unwrap()["limit"],
            "packets"
        );
        followers.push(follower);
    }
    // One that ends makes room for another one.
    drop(followers.remove(0));
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        if follow(&network, MEMBER).first_line().is_some() {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "a place that was left is not free in time"
        );
    }
}

/// Has this thread be a member to whomever it connects to.
fn become_member() {
    // SAFETY: the system call takes three numbers; unlike the function of libc, it changes this thread alone.
    let result = unsafe { libc::syscall(libc::SYS_setresuid, -1, MEMBER, -1) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Sends one request; the reply, if there is one.
fn ask(network: &Network, request: &str) -> Option<String> {
    let mut stream = UnixStream::connect(network.control()).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = String::new();
    BufReader::new(stream)
        .read_line(&mut reply)
        .ok()
        .filter(|length| *length > 0)
        .map(|_| reply)
}

/// At most two requests of members are worked on at one time: a request of root's has these in front of it, not those of
/// all clients.
fn members_that_hammer_the_control_socket_delay_no_command_of_root() {
    const CLIENTS: usize = 60;
    const ROUNDS: usize = 25;
    let network = Network::new();
    let agent = network.start("max_sources = 200000", LIMIT);
    open_to_members(&network);
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    let before = thread::scope(|scope| {
        let _stopped = StopWhenDropped(&stop);
        for nth in 0..CLIENTS {
            let (stop, served, network) = (&stop, &served, &network);
            let request = [
                "{\"verb\":\"limits\"}\n",
                "{\"verb\":\"status\"}\n",
                "{\"verb\":\"top\"}\n",
            ][nth % 3];
            scope.spawn(move || {
                become_member();
                while !stop.load(Ordering::Relaxed) {
                    if ask(network, request).is_some_and(|reply| reply.contains("\"ok\"")) {
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let deadline = Instant::now() + Duration::from_secs(300);
        while served.load(Ordering::Relaxed) < 2 * CLIENTS {
            assert!(Instant::now() < deadline, "members are not served");
            thread::sleep(Duration::from_millis(5));
        }
        let mut before: Vec<usize> = (0..ROUNDS)
            .map(|_| {
                let start = served.load(Ordering::Relaxed);
                let reply = ask(&network, "{\"verb\":\"status\"}\n").expect("root is served");
                assert!(reply.contains("\"mode\""), "{reply}");
                served.load(Ordering::Relaxed) - start
            })
            .collect();
        // The command itself, within the patience that it has.
        let start = Instant::now();
        assert_eq!(agent.json(&["status"])["mode"], "enforce");
        eprintln!(
            "agent status beside {CLIENTS} clients: {:?}",
            start.elapsed()
        );
        before.sort_unstable();
        before
    });
    eprintln!("members served meanwhile, in {ROUNDS} requests of root: {before:?}");
    assert!(before[ROUNDS / 2] < CLIENTS / 2, "{before:?}");
}

fn clients_that_send_nothing_keep_nobody_from_the_control_socket() {
    const IDLE: usize = 300;
    let network = Network::new();
    let agent = network.start("", LIMIT);
    open_to_members(&network);
    let idle = |count: usize| -> Vec<UnixStream> {
        (0..count)
            .map(|_| UnixStream::connect(network.control()).unwrap())
            .collect()
    };
    let of_members = thread::scope(|scope| {
        let connect = scope.spawn(|| {
            become_member();
            idle(IDLE)
        });
        connect.join().unwrap()
    });
    let status = as_member(&network, &["status", "--json"]);
    let error = String::from_utf8_lossy(&status.stderr).into_owned();
    assert!(status.status.success(), "{error}");
    let of_root = idle(IDLE);
    assert_eq!(agent.json(&["status"])["mode"], "enforce");
    // Some were closed to make room.
    let closed = |clients: &[UnixStream]| {
        let is_closed = |client: &UnixStream| {
            client.set_nonblocking(true).unwrap();
            let mut byte = [0];
            !matches!((&mut &*client).read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
        };
        clients.iter().filter(|client| is_closed(client)).count()
    };
    assert!(closed(&of_root) > 0 && closed(&of_members) > 0);
}

fn members_may_not_reset_counters() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    open_to_members(&network);
    burst(&network, &[udp_from(7)], 20);
    assert!(as_member(&network, &["limits"]).status.success());
    let output = as_member(&network, &["limits", "--reset-counters"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && said.contains("root"),
        "{said}"
    );
    assert_eq!(agent.counts("packets"), (10, 10));
}
