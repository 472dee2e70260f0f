//! The system call bpf(2), for commands that aya 0.14 lacks.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};

/// Makes the call `command`, a number of `enum bpf_cmd` in Linux's uapi/linux/bpf.h, with its part of `union bpf_attr`.
///
/// # Errors
///
/// The kernel's.
///
/// # Safety
///
/// `T` has the layout that the command expects. Memory that it points to is live, and as long as it says; the
/// kernel's values there are valid for its type.
pub unsafe fn call<T>(command: libc::c_long, attributes: &mut T) -> io::Result<i32> {
    // SAFETY: the attributes are live and as long as given; the caller answers for what they point to.
    match unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size_of::<T>()) } {
        result @ 0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes a call that returns a new file descriptor.
///
/// # Errors
///
/// The kernel's.
///
/// # Safety
///
/// As for [`call`]; and the command returns a file descriptor.
pub unsafe fn descriptor<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller answers for both; nothing else owns the new descriptor.
    unsafe { call(command, attributes).map(|descriptor| OwnedFd::from_raw_fd(descriptor)) }
}
