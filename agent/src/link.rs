//! Letting go of what a pinned BPF link holds, at once: `BPF_LINK_DETACH` (Linux 5.9), which aya 0.14 lacks.
//!
//! Removing the pin alone is not enough. The kernel drops a link after its last reference in a deferred work, and until a
//! busy host gets round to that, packets go on being held to a policy that was said to be gone.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

// From `enum bpf_cmd` of Linux's uapi/linux/bpf.h.
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_LINK_DETACH: libc::c_long = 34;

/// The part of `union bpf_attr` that is for pins.
#[repr(C)]
struct ByPath {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// Takes the program of the link that is pinned at `pin` off its hook, then the pin away. A pin that is not there is not
/// missed.
///
/// # Errors
///
/// When the pin cannot be removed.
pub fn release(pin: &Path) -> io::Result<()> {
    // What cannot be let go of at once, goes with its pin.
    let _ = detach(pin);
    remove(pin)
}

/// Takes a pin of whatever kind away. One that is not there is not missed.
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

fn detach(pin: &Path) -> io::Result<()> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let by_path = ByPath { pathname: path.as_ptr() as u64, bpf_fd: 0, file_flags: 0 };
    let link = bpf(BPF_OBJ_GET, &by_path)?;
    // SAFETY: the kernel has just handed over this descriptor, and nobody else knows of it.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    bpf(BPF_LINK_DETACH, &link.as_raw_fd()).map(drop)
}

/// Makes the call `command` of bpf(2), whose `attributes` are plain integers and what they point to is live.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<i32> {
    // SAFETY: the attributes are live and as long as is said.
    match unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<T>()) } {
        result @ 0.. => Ok(result as i32),
        _ => Err(io::Error::last_os_error()),
    }
}
