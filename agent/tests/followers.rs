//! Commands that follow the agent end when nobody reads them any more, or there is no agent, without using the processor
//! meanwhile.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use testbed::application::Agent;
use testbed::wait::PATIENCE;

/// CPU time that a follower may use, its start included.
const LITTLE: Duration = Duration::from_secs(1);

/// A follower at a terminal of its own.
struct AtTerminal {
    child: Child,
    /// The side that people sit at; dropped, the terminal hangs up.
    people: OwnedFd,
}

/// Whether the kernel sends SIGHUP to the follower when its terminal hangs up.
#[derive(Clone, Copy, PartialEq)]
enum Session {
    /// The follower leads the terminal's session.
    Leader,
    /// It leads the session and ignores SIGHUP, as under nohup.
    Deaf,
    /// The terminal controls no session.
    None,
}

fn at_terminal(agent: &Agent, arguments: &[&str], session: Session) -> AtTerminal {
    // Closed in whatever else this process starts meanwhile: a copy would keep the terminal from hanging up.
    let people = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&people).and_then(|()| unlockpt(&people)).unwrap();
    let name = ptsname_r(&people).unwrap();
    let people = OwnedFd::from(people);
    let follower = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(name)
        .unwrap();
    let size = libc::winsize {
        ws_row: 24,
        ws_col: 80,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: the descriptor is a terminal's, and the kernel reads one `winsize`.
    let outcome = unsafe { libc::ioctl(people.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
    assert_eq!(outcome, 0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
    command
        .args(arguments)
        .arg("--control")
        .arg(agent.socket())
        .stderr(Stdio::null());
    command
        .stdin(follower.try_clone().unwrap())
        .stdout(follower);
    // SAFETY: system calls alone between fork and exec.
    unsafe {
        command.pre_exec(move || {
            nix::unistd::setsid()?;
            // Both may be ignored here too, as under nohup and in a shell's background.
            let hang_up = if session == Session::Deaf {
                SigHandler::SigIgn
            } else {
                SigHandler::SigDfl
            };
            signal(Signal::SIGHUP, hang_up)?;
            signal(Signal::SIGINT, SigHandler::SigDfl)?;
            if session != Session::None && libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    let mut shown = File::from(people.try_clone().unwrap());
    if arguments == ["top"] {
        // It draws once it watches.
        assert!(shown.read(&mut [0; 16]).unwrap() > 0);
    } else {
        until_following(&child);
    }
    AtTerminal { child, people }
}

/// Waits until the thread that watches for the end is there.
fn until_following(child: &Child) {
    let start = Instant::now();
    let tasks = format!("/proc/{}/task", child.id());
    while std::fs::read_dir(&tasks).unwrap().count() < 2 {
        assert!(start.elapsed() < PATIENCE, "it does not follow");
        thread::sleep(Duration::from_millis(10));
    }
}

fn follow_events(agent: &Agent) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
    command
        .args(["events", "--follow", "--control"])
        .arg(agent.socket());
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until_following(&child);
    child
}

/// Waits for the end, and returns the CPU time that was used in all.
fn end(child: &mut Child) -> Duration {
    let start = Instant::now();
    let used = loop {
        // A process that has ended keeps its times until it is waited for.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        if fields[0] == "Z" {
            break Duration::from_millis(1_000 * ticks / 100);
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it has not ended and used {ticks} ticks of CPU time");
        }
        thread::sleep(Duration::from_millis(5));
    };
    child.wait().unwrap();
    used
}

fn assert_ends(what: &str, child: &mut Child) {
    let used = end(child);
    assert!(used < LITTLE, "{what}: it used {used:?} of CPU time");
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id() as i32), signal).unwrap();
}

const FOLLOWERS: [&[&str]; 2] = [&["top"], &["events", "--follow"]];

#[test]
fn a_follower_ends_with_its_terminal() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    for arguments in FOLLOWERS {
        for (what, session) in [
            ("hang-up", Session::Leader),
            ("hang-up, deaf", Session::Deaf),
            ("no session", Session::None),
        ] {
            let AtTerminal { mut child, people } = at_terminal(&agent, arguments, session);
            drop(people);
            assert_ends(&format!("{arguments:?}, {what}"), &mut child);
        }
    }
}

#[test]
fn a_follower_ends_at_a_signal() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    for arguments in FOLLOWERS {
        for signal in [Signal::SIGHUP, Signal::SIGTERM, Signal::SIGINT] {
            let mut at = at_terminal(&agent, arguments, Session::Leader);
            send(&at.child, signal);
            assert_ends(&format!("{arguments:?}, {signal}"), &mut at.child);
        }
    }
}

#[test]
fn a_view_that_nobody_reads_ends_at_a_signal() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let mut at = at_terminal(&agent, &["top"], Session::None);
    // Every key redraws the screen, until the terminal holds no more and the view is blocked in a write.
    let start = Instant::now();
    while !blocked_in_write(&at.child) {
        assert!(start.elapsed() < PATIENCE, "it is never blocked");
        nix::unistd::write(&at.people, b"s").unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    send(&at.child, Signal::SIGTERM);
    end(&mut at.child);
}

fn blocked_in_write(child: &Child) -> bool {
    let call = std::fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
    call.split(' ').next() == Some(&libc::SYS_write.to_string())
}

#[test]
fn a_follower_ends_with_its_agent() {
    for arguments in FOLLOWERS {
        let mut agent = Agent::start("http = \"127.0.0.1:0\"");
        let mut at = at_terminal(&agent, arguments, Session::Leader);
        agent.child.kill().unwrap();
        assert_ends(&format!("{arguments:?}, agent killed"), &mut at.child);
        agent.child.wait().unwrap();
    }
}

#[test]
fn a_follower_ends_with_its_reader() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let mut child = follow_events(&agent);
    drop(child.stdout.take());
    assert_ends("closed output", &mut child);

    let mut child = follow_events(&agent);
    drop(child.stdin.take());
    assert_ends("closed input", &mut child);
}

#[test]
fn a_follower_without_input_goes_on() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
    command
        .args(["events", "--follow", "--control"])
        .arg(agent.socket());
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until_following(&child);
    thread::sleep(Duration::from_millis(500));
    assert!(
        child.try_wait().unwrap().is_none(),
        "it ended though everything is there"
    );
    child.kill().unwrap();
    child.wait().unwrap();
}
