//! BPF links and programs as file descriptors and pins: the calls of bpf(2) that aya 0.14 lacks, or supports only by
//! interface name.
//!
//! Removing the pin alone is not enough to detach a program: the kernel frees a link in deferred work after its last
//! reference. Until a busy host has done that work, the removed policy is still enforced.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::syscall;

// From `enum bpf_cmd` of Linux's uapi/linux/bpf.h.
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_LINK_UPDATE: libc::c_long = 29;
const BPF_LINK_DETACH: libc::c_long = 34;

/// The most programs of one TCX chain (`BPF_MPROG_MAX` of the kernel).
const LONGEST_CHAIN: usize = 64;

/// The part of `union bpf_attr` for pins.
#[repr(C)]
struct ByPath {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The part for information about an object.
#[repr(C)]
struct InfoByFd {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The part for making a link; what follows `flags` is zero for all links made here.
#[repr(C)]
#[derive(Default)]
struct Create {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    rest: [u64; 4],
}

/// The part for replacing a link's program.
#[repr(C)]
#[derive(Default)]
struct Update {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

/// The part for the programs of a hook.
#[repr(C)]
#[derive(Default)]
struct Query {
    interface: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    program_ids: u64,
    count: u32,
    rest: [u32; 9],
}

/// The start of `struct bpf_link_info`, as it is for XDP and TCX.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkInfo {
    kind: u32,
    id: u32,
    /// Its program's ID.
    pub program: u32,
    _padding: u32,
    /// The interface's index; 0 once the link is detached or the interface no longer exists.
    pub interface: u32,
    _attach_type: u32,
}

/// A hook of an interface to which links attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// XDP in the driver.
    XdpNative,
    /// XDP before the network stack, for any driver.
    XdpGeneric,
    /// The head of the TCX chain of packets that come in.
    TcxIngress,
    /// The end of the TCX chain of packets that go out.
    TcxEgress,
}

impl Target {
    /// The value of `enum bpf_attach_type`, and the flags.
    const fn code(self) -> (u32, u32) {
        match self {
            Self::XdpGeneric => (37, 1 << 1),
            Self::XdpNative => (37, 1 << 2),
            // Incoming packets are limited before other programs see them, outgoing ones after other programs have
            // changed them.
            Self::TcxIngress => (46, 1 << 3),
            Self::TcxEgress => (47, 1 << 4),
        }
    }
}

#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Opens a pinned link.
    ///
    /// # Errors
    ///
    /// When there is no such pin, or no permission.
    pub fn open(pin: &Path) -> io::Result<Self> {
        open(pin).map(Self)
    }

    /// Attaches a program to an interface.
    ///
    /// # Errors
    ///
    /// When the kernel or the driver refuses, or the hook is taken.
    pub fn create(program: BorrowedFd<'_>, interface: u32, target: Target) -> io::Result<Self> {
        let (attach_type, flags) = target.code();
        let program = program.as_raw_fd() as u32;
        let mut create = Create {
            program,
            interface,
            attach_type,
            flags,
            ..Create::default()
        };
        // SAFETY: plain integers, for a command that returns a descriptor.
        unsafe { syscall::descriptor(BPF_LINK_CREATE, &mut create) }.map(Self)
    }

    /// The link's current state in the kernel.
    ///
    /// # Errors
    ///
    /// When it is not a link.
    pub fn info(&self) -> io::Result<LinkInfo> {
        info(self.0.as_fd())
    }

    /// Replaces its program, in one step for packets.
    ///
    /// # Errors
    ///
    /// `ENOLINK` when it is detached already.
    pub fn update(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let (link, program) = (self.0.as_raw_fd() as u32, program.as_raw_fd() as u32);
        // SAFETY: plain integers.
        unsafe {
            syscall::call(
                BPF_LINK_UPDATE,
                &mut Update {
                    link,
                    program,
                    ..Update::default()
                },
            )
        }
        .map(drop)
    }

    /// Detaches its program at once (Linux 5.9).
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn detach(&self) -> io::Result<()> {
        // SAFETY: a plain integer.
        unsafe { syscall::call(BPF_LINK_DETACH, &mut self.0.as_raw_fd()) }.map(drop)
    }

    /// Pins the link.
    ///
    /// # Errors
    ///
    /// When the path is taken, or not on a BPF file system.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(self.0.as_fd(), path)
    }
}

/// Opens a pinned object.
///
/// # Errors
///
/// When there is no such pin, or no permission.
pub fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let mut by_path = ByPath {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    // SAFETY: the path is live and ends with a zero byte; the command returns a descriptor.
    unsafe { syscall::descriptor(BPF_OBJ_GET, &mut by_path) }
}

/// Pins an object.
///
/// # Errors
///
/// When the path is taken, or not on a BPF file system.
pub fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut by_path = ByPath {
        pathname: path.as_ptr() as u64,
        bpf_fd: object.as_raw_fd() as u32,
        file_flags: 0,
    };
    // SAFETY: the path is live and ends with a zero byte.
    unsafe { syscall::call(BPF_OBJ_PIN, &mut by_path) }.map(drop)
}

/// The ID of a program.
///
/// # Errors
///
/// When it is not a program.
pub fn program_id(program: BorrowedFd<'_>) -> io::Result<u32> {
    // `struct bpf_prog_info` begins with its type and its number.
    Ok(info::<[u32; 2]>(program)?[1])
}

/// The program IDs of an interface's TCX chain (Linux 6.6).
///
/// # Errors
///
/// When there is no such interface.
pub fn chain(interface: u32, target: Target) -> io::Result<Vec<u32>> {
    let mut ids = [0u32; LONGEST_CHAIN];
    let mut query = Query {
        interface,
        attach_type: target.code().0,
        program_ids: ids.as_mut_ptr() as u64,
        count: ids.len() as u32,
        ..Query::default()
    };
    // SAFETY: the numbers are live and as long as given.
    unsafe { syscall::call(BPF_PROG_QUERY, &mut query)? };
    Ok(ids
        .into_iter()
        .take(query.count as usize)
        .filter(|id| *id != 0)
        .collect())
}

/// Removes the pin of a link, then detaches its program. A missing pin is no error.
///
/// In this order, a running agent finds a detached link without a pin, which it must not attach again.
///
/// # Errors
///
/// When the pin cannot be removed.
pub fn release(pin: &Path) -> io::Result<()> {
    let link = Link::open(pin);
    remove(pin)?;
    if let Ok(link) = link {
        // A link that cannot be detached goes with its last reference.
        let _ = link.detach();
    }
    Ok(())
}

/// Removes a pin of any kind. A missing pin is no error.
///
/// # Errors
///
/// When it cannot be removed.
pub fn remove(pin: &Path) -> io::Result<()> {
    match std::fs::remove_file(pin) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn info<T: Copy + Default>(object: BorrowedFd<'_>) -> io::Result<T> {
    let mut info = T::default();
    let mut by_fd = InfoByFd {
        bpf_fd: object.as_raw_fd() as u32,
        info_len: size_of::<T>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: `info` is live and as long as given; it consists of integers.
    unsafe { syscall::call(BPF_OBJ_GET_INFO_BY_FD, &mut by_fd)? };
    Ok(info)
}
