//! An agent whose system calls on links are stopped before the kernel carries them out: each goes on, fails, or is the
//! last thing that the agent does. So an instant can be chosen that no clock would hit.

use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Agent, Network};

/// Of `enum bpf_cmd`: `BPF_LINK_CREATE` and `BPF_LINK_UPDATE`.
const LINK_CREATE: u32 = 28;
const LINK_UPDATE: u32 = 29;
/// Where the agent keeps the listener for the test to fetch.
const LISTENER: RawFd = 200;
const RECEIVE: libc::Ioctl = request(0, size_of::<libc::seccomp_notif>());
const SEND: libc::Ioctl = request(1, size_of::<libc::seccomp_notif_resp>());

/// A request of the agent to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// A link to the interface of this index.
    Create(u32),
    Update,
}

/// Its result.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    Continue,
    Fail(i32),
    /// The agent is killed before it.
    Kill,
}

/// Starts an agent without waiting for it; `decide` is asked about each call on a link.
pub fn spawn<'n>(
    network: &'n Network,
    config: &Path,
    mut decide: impl FnMut(Call) -> Then + Send + 'static,
) -> Agent<'n> {
    let agent = network.spawn_with(config, |command| {
        // SAFETY: between fork and exec, `listen` makes system calls and allocates nothing.
        unsafe { command.pre_exec(listen) };
    });
    let process = agent.process();
    let listener = fetch(process).unwrap();
    thread::spawn(move || {
        while let Some(notice) = receive(&listener) {
            let call = if notice.data.args[0] == u64::from(LINK_CREATE) {
                Call::Create(target(process, notice.data.args[1]))
            } else {
                Call::Update
            };
            match decide(call) {
                Then::Continue => send(
                    &listener,
                    notice.id,
                    0,
                    libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
                ),
                Then::Fail(number) => send(&listener, notice.id, -number, 0),
                Then::Kill => kill(Pid::from_raw(process as i32), Signal::SIGKILL).unwrap(),
            }
        }
    });
    agent
}

/// `_IOWR('!', number, size)` of include/uapi/linux/seccomp.h.
const fn request(number: u64, size: usize) -> libc::Ioctl {
    (3 << 30 | (size as u64) << 16 | (b'!' as u64) << 8 | number) as libc::Ioctl
}

/// The interface that a link is to be made to: of `union bpf_attr`, which lies there, `link_create.target_ifindex`.
fn target(process: u32, attributes: u64) -> u32 {
    let mut index = [0; 4];
    let memory = File::open(format!("/proc/{process}/mem"));
    // An agent that was killed has no memory, and needs no answer.
    let _ = memory.and_then(|memory| memory.read_exact_at(&mut index, attributes + 4));
    u32::from_ne_bytes(index)
}

fn listen() -> io::Result<()> {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let (at_least, more) = (
        (libc::BPF_JMP | libc::BPF_JGE) as u16,
        (libc::BPF_JMP | libc::BPF_JGT) as u16,
    );
    let (equal, end) = ((libc::BPF_JMP | libc::BPF_JEQ) as u16, libc::BPF_RET as u16);
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    // Of struct seccomp_data: the call's number at 0, the lower half of its first argument at 16.
    let mut steps = [
        step(load, 0, 0, 0),
        step(equal, 0, 4, libc::SYS_bpf as u32),
        step(load, 0, 0, 16),
        step(at_least, 0, 2, LINK_CREATE),
        step(more, 1, 0, LINK_UPDATE),
        step(end, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        step(end, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live until the call returns.
    let listener = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        )
    };
    // SAFETY: numbers only.
    if listener < 0 || unsafe { libc::dup2(listener as RawFd, LISTENER) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn fetch(process: u32) -> io::Result<OwnedFd> {
    let owned = |fd: libc::c_long| match fd {
        // SAFETY: the kernel has just made it for this process.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: numbers only.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    // SAFETY: numbers only.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), LISTENER, 0) })
}

/// The next call; `None` when the agent has ended.
fn receive(listener: &OwnedFd) -> Option<libc::seccomp_notif> {
    let mut waiting = [libc::pollfd {
        fd: listener.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    loop {
        // SAFETY: one live pollfd.
        unsafe { libc::poll(waiting.as_mut_ptr(), 1, -1) };
        if waiting[0].revents & libc::POLLIN == 0 {
            return None;
        }
        // SAFETY: all zero is a valid value of this plain struct, and what the call wants.
        let mut notice: libc::seccomp_notif = unsafe { mem::zeroed() };
        // SAFETY: the notice is live and of the type that this call fills.
        if unsafe { libc::ioctl(listener.as_raw_fd(), RECEIVE, &raw mut notice) } == 0 {
            return Some(notice);
        }
        // A thread that was killed meanwhile.
        if io::Error::last_os_error().raw_os_error() != Some(libc::ENOENT) {
            return None;
        }
    }
}

fn send(listener: &OwnedFd, id: u64, error: i32, flags: u32) {
    let response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: the response is live and of the type that this call takes. An agent that was killed needs none.
    unsafe { libc::ioctl(listener.as_raw_fd(), SEND, &raw const response) };
}
