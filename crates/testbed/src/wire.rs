//! Senders of frames, and counters of received datagrams.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, setsockopt, socket, sockopt,
};

use crate::stalls::Gaps;
use crate::wait::PATIENCE;

/// Binds a UDP socket, also while another process still holds an earlier one of the same address: between its fork and its
/// program, a command that another test starts has a copy of each socket.
pub fn bind(to: SocketAddr) -> io::Result<UdpSocket> {
    let family = if to.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    };
    let socket = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true)?;
    nix::sys::socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(socket.into())
}

/// Counts received datagrams.
pub struct Receiver {
    socket: UdpSocket,
}

impl Receiver {
    /// For a socket.
    pub fn new(socket: UdpSocket) -> Self {
        nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &(64 << 20))
            .unwrap();
        Self { socket }
    }

    /// The number of datagrams by code point, once no more arrive.
    pub fn code_points(&self) -> [u64; 64] {
        use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};
        setsockopt(&self.socket, sockopt::IpRecvTos, &true).unwrap();
        self.socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut counts = [0; 64];
        let start = Instant::now();
        loop {
            let mut buffer = [0; 2048];
            let mut parts = [std::io::IoSliceMut::new(&mut buffer)];
            let mut control = nix::cmsg_space!(u8);
            let received = recvmsg::<()>(
                self.socket.as_raw_fd(),
                &mut parts,
                Some(&mut control),
                MsgFlags::empty(),
            );
            let message = match received {
                Ok(message) => message,
                Err(_) if may_receive_more(start) => continue,
                Err(_) => return counts,
            };
            for message in message.cmsgs().unwrap() {
                if let ControlMessageOwned::Ipv4Tos(tos) = message {
                    counts[usize::from(tos >> 2)] += 1;
                }
            }
        }
    }

    /// Like [`Receiver::counts`], but reads constantly until `stop`: otherwise the socket's buffer would overflow.
    pub fn counts_until(&self, stop: &AtomicBool) -> [u64; 256] {
        let mut sums = [0; 256];
        let mut is_last = false;
        while !is_last {
            is_last = stop.load(Ordering::Relaxed);
            sums.iter_mut()
                .zip(self.counts())
                .for_each(|(sum, count)| *sum += count);
        }
        sums
    }

    /// The number of datagrams by source (its last octet), once no more arrive.
    pub fn counts(&self) -> [u64; 256] {
        self.socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut counts = [0; 256];
        let mut buffer = [0; 2048];
        let start = Instant::now();
        loop {
            match self.socket.recv_from(&mut buffer) {
                Ok((_, std::net::SocketAddr::V4(from))) => {
                    counts[usize::from(from.ip().octets()[3])] += 1;
                }
                Ok(_) => {}
                Err(_) if may_receive_more(start) => {}
                Err(_) => return counts,
            }
        }
    }
}

/// Whether packets may still arrive after a pause: on a busy machine, a CPU may not have delivered yet what it queued.
fn may_receive_more(start: Instant) -> bool {
    is_queueing() && start.elapsed() < Duration::from_secs(60)
}

/// A raw sender on the client's interface. The caller bounds the number of frames, the sender the time.
pub struct Sender {
    socket: std::os::fd::OwnedFd,
    address: libc::sockaddr_ll,
}

/// Waits after a frame was not sent because the queue at the other end is full, as on emulated machines.
fn wait_for_room(since: Instant) {
    let error = std::io::Error::last_os_error();
    let is_full = error.raw_os_error() == Some(libc::ENOBUFS);
    assert!(is_full && since.elapsed() < PATIENCE, "{error}");
    thread::sleep(Duration::from_millis(1));
}

/// Waits until an interface of this thread's namespace can send, at most 10 s. Linux activates the queue of a veth's first
/// end by a worker, some time after the other end is up; until then it drops what is sent, without an error.
pub fn wait_until_running(interface: &str) {
    // SAFETY: all zero is a valid value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let since = Instant::now();
    // SAFETY: the request is live and of the type that these calls take; the field is the one that they fill.
    let is_running = |request: &mut libc::ifreq| unsafe {
        let result = libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut *request);
        result == 0 && libc::c_int::from(request.ifr_ifru.ifru_flags) & libc::IFF_RUNNING != 0
    };
    while !is_running(&mut request) && since.elapsed() < Duration::from_secs(10) {
        thread::sleep(Duration::from_millis(1));
    }
    // Setting the flags that it has changes nothing, and waits for the worker's lock.
    // SAFETY: as above.
    unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) };
}

impl Sender {
    /// Call it inside the client's namespace.
    pub fn new() -> Self {
        Self::on("client0")
    }

    /// On another interface, once that can send.
    pub fn on(interface: &str) -> Self {
        wait_until_running(interface);
        use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
        let socket = socket(
            AddressFamily::Packet,
            SockType::Raw,
            SockFlag::empty(),
            None::<SockProtocol>,
        )
        .unwrap();
        // SAFETY: all zero is a valid value of this plain struct.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = nix::net::if_::if_nametoindex(interface).unwrap() as i32;
        Self { socket, address }
    }

    pub fn send(&self, frame: &[u8]) {
        let since = Instant::now();
        loop {
            // SAFETY: the pointers are to live values of the lengths that are given.
            let sent = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    frame.as_ptr().cast(),
                    frame.len(),
                    0,
                    (&raw const self.address).cast(),
                    size_of::<libc::sockaddr_ll>() as u32,
                )
            };
            if sent == frame.len() as isize {
                return;
            }
            wait_for_room(since);
        }
    }

    /// Sends many frames in one system call.
    pub fn send_all(&self, frames: &[impl AsRef<[u8]>]) {
        let mut parts: Vec<libc::iovec> = frames
            .iter()
            .map(AsRef::as_ref)
            .map(|frame| libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            })
            .collect();
        let mut address = self.address;
        let mut messages: Vec<libc::mmsghdr> = parts
            .iter_mut()
            .map(|part| {
                // SAFETY: all zero is a valid value of this plain struct.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_name = (&raw mut address).cast();
                message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
                message.msg_hdr.msg_iov = part;
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        let since = Instant::now();
        let mut sent = 0;
        while sent < messages.len() {
            let rest = &mut messages[sent..];
            // SAFETY: every message points to a live frame and a live address, of the lengths that are given.
            let count = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    rest.as_mut_ptr(),
                    rest.len() as u32,
                    0,
                )
            };
            if count > 0 {
                sent += count as usize;
            } else {
                wait_for_room(since);
            }
        }
    }

    /// Sends `frames` in turn, `per_millisecond` of them each millisecond, for `time`, and catches up after delays.
    /// Returns their number, and the time from before the first to after the last.
    pub fn pace(
        &self,
        frames: &[Vec<u8>],
        per_millisecond: usize,
        time: Duration,
    ) -> (u64, Duration) {
        self.pace_marked(frames, per_millisecond, time, &Gaps::default())
    }

    /// The same, and notes when nothing was sent.
    pub fn pace_marked(
        &self,
        frames: &[Vec<u8>],
        per_millisecond: usize,
        time: Duration,
        gaps: &Gaps,
    ) -> (u64, Duration) {
        let start = Instant::now();
        let mut sent = 0;
        let mut turn = frames.iter().cycle();
        while start.elapsed() < time {
            for frame in turn.by_ref().take(per_millisecond) {
                self.send(frame);
                sent += 1;
            }
            gaps.mark();
            let due = start + Duration::from_millis(sent / per_millisecond as u64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        (sent, start.elapsed())
    }

    /// Sends so many of `frames` in turn, `per_millisecond` of them each millisecond, and catches up after delays. Returns
    /// when each millisecond's were sent, from before the first.
    pub fn pace_all(
        &self,
        frames: &[Vec<u8>],
        per_millisecond: usize,
        count: usize,
    ) -> Vec<Duration> {
        let start = Instant::now();
        let mut turn = frames.iter().cycle().take(count).peekable();
        let mut sent_at = Vec::new();
        while turn.peek().is_some() {
            sent_at.push(start.elapsed());
            for frame in turn.by_ref().take(per_millisecond) {
                self.send(frame);
            }
            let due = start + Duration::from_millis(sent_at.len() as u64);
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        sent_at
    }
}

/// A tunnel device whose packets are the data written to it. Call it inside the server's namespace.
pub fn tunnel(name: &str) -> File {
    let file = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .unwrap();
    // SAFETY: all zero is a valid value of this plain struct.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is live and of the type that this call takes.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    file
}

/// Whether any CPU has queued packets.
pub fn is_queueing() -> bool {
    // The twelfth column of a CPU's row, in hexadecimal (`softnet_seq_show`).
    let rows = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    rows.lines().any(|row| {
        row.split_whitespace()
            .nth(11)
            .is_some_and(|waiting| !waiting.trim_matches('0').is_empty())
    })
}

/// A socket that receives all frames of the thread's network namespace, with a buffer of so many bytes; a read waits for a second
/// at most.
pub fn tap(buffer: usize) -> OwnedFd {
    let tap = socket(
        AddressFamily::Packet,
        SockType::Raw,
        SockFlag::empty(),
        SockProtocol::EthAll,
    )
    .unwrap();
    let timeout = nix::sys::time::TimeVal::new(1, 0);
    setsockopt(&tap, sockopt::ReceiveTimeout, &timeout).unwrap();
    setsockopt(&tap, sockopt::RcvBufForce, &buffer).unwrap();
    tap
}
