//! TCP connections and the kernel's statistics about them.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect as connect_socket, setsockopt,
    socket, sockopt,
};

/// Parts of `struct tcp_info`.
#[derive(Clone, Copy, Debug)]
pub struct Info {
    /// Packets sent, retransmitted ones and pure acknowledgements included.
    pub packets: u64,
    /// Bytes of payload sent, retransmitted ones included.
    pub bytes: u64,
    /// Of both, what was retransmitted.
    pub retransmitted: (u64, u64),
    /// Packets in flight.
    pub unacknowledged: u32,
}

impl Info {
    pub fn of(stream: &TcpStream) -> Self {
        let mut raw = [0u8; 256];
        let mut length = raw.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes.
        let result = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                raw.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        assert_eq!(result, 0, "TCP_INFO: {}", io::Error::last_os_error());
        assert!(length >= 216, "this kernel's tcp_info has {length} bytes");
        let word = |at: usize| u32::from_ne_bytes(raw[at..at + 4].try_into().unwrap());
        let long = |at: usize| u64::from_ne_bytes(raw[at..at + 8].try_into().unwrap());
        let retransmitted = (word(100).into(), long(208));
        Self {
            packets: word(136).into(),
            bytes: long(200),
            retransmitted,
            unacknowledged: word(24),
        }
    }
}

/// The offloads of a device.
#[derive(Clone, Copy, Debug)]
pub enum Offload {
    /// Checksums of outgoing packets.
    Checksum = 0x17,
    /// TCP segmentation.
    Tso = 0x1f,
    /// Segmentation by the stack, as late as possible.
    Gso = 0x24,
    /// Merging of received packets.
    Gro = 0x2c,
}

impl Offload {
    /// Switches it, as `ethtool -K` does.
    pub fn set(self, device: &str, is_on: bool) {
        const SIOCETHTOOL: libc::Ioctl = 0x8946;
        let mut value = [self as u32, u32::from(is_on)];
        // SAFETY: a structure of integers and arrays.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
        // SAFETY: the request names a device and points to a `struct ethtool_value`.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) };
        assert_eq!(
            result,
            0,
            "{self:?} of {device}: {}",
            io::Error::last_os_error()
        );
    }
}

/// The kernel's TCP counters in this thread's namespace.
pub fn counted(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let column = lines
        .next()
        .unwrap()
        .split(' ')
        .position(|column| column == name)
        .unwrap();
    lines
        .next()
        .unwrap()
        .split(' ')
        .nth(column)
        .unwrap()
        .parse()
        .unwrap()
}

/// A connection whose packets have at most `mss` bytes of payload and options.
pub fn connect(to: &str, mss: u32) -> io::Result<TcpStream> {
    let SocketAddr::V4(to) = to.parse().map_err(io::Error::other)? else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let socket = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    setsockopt(&socket, sockopt::TcpMaxSeg, &mss)?;
    // The default of most hosts; if the kernel lacks it, its own default stays.
    let _ = setsockopt(
        &socket,
        sockopt::TcpCongestion,
        &std::ffi::OsString::from("cubic"),
    );
    connect_socket(socket.as_raw_fd(), &SockaddrIn::from(to))?;
    Ok(socket.into())
}

/// Begins a connection from an address of this host, which is in progress afterwards.
pub fn begin(from: [u8; 4], to: SocketAddrV4) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let descriptor = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    let from = SocketAddrV4::new(from.into(), 0);
    bind(descriptor.as_raw_fd(), &SockaddrIn::from(from))?;
    // It is in progress.
    let _ = connect_socket(descriptor.as_raw_fd(), &SockaddrIn::from(to));
    Ok(descriptor)
}
