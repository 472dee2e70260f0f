//! Minimal programs of other owners on the hooks that Weir uses.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const LINK_CREATE: libc::c_long = 28;

/// The hook, and the position among other programs.
#[derive(Clone, Copy)]
pub enum Place {
    Xdp,
    FirstOfTcx,
    LastOfTcx,
    /// As `FirstOfTcx`, and hands no packet on to the next program: it returns `TC_ACT_OK`.
    EndOfTcx,
    /// The same for packets that go out.
    EndOfEgressTcx,
}

/// A program that is attached until it is dropped.
pub struct Foreign {
    name: String,
    _program: OwnedFd,
    _link: OwnedFd,
}

impl Foreign {
    /// Attaches one that passes every packet, on the interface with this index. Call it inside the interface's
    /// namespace.
    pub fn attach(index: u32, place: Place) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "f{}_{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        // (type, what the program returns, type of attachment, flags)
        let (kind, verdict, attach, flags): (u32, i32, u32, u32) = match place {
            Place::Xdp => (6, 2, 37, 0),
            Place::FirstOfTcx => (3, -1, 46, 1 << 3),
            Place::LastOfTcx => (3, -1, 46, 1 << 4),
            Place::EndOfTcx => (3, 0, 46, 1 << 3),
            Place::EndOfEgressTcx => (3, 0, 47, 1 << 3),
        };
        // r0 = verdict; exit
        let mut instructions = vec![0xb7, 0, 0, 0];
        instructions.extend(verdict.to_le_bytes());
        instructions.extend([0x95, 0, 0, 0, 0, 0, 0, 0]);
        let license = c"GPL";
        let mut load = [0u8; 128];
        load[..4].copy_from_slice(&kind.to_ne_bytes());
        load[4..8].copy_from_slice(&2u32.to_ne_bytes());
        load[8..16].copy_from_slice(&(instructions.as_ptr().addr() as u64).to_ne_bytes());
        load[16..24].copy_from_slice(&(license.as_ptr().addr() as u64).to_ne_bytes());
        load[48..48 + name.len()].copy_from_slice(name.as_bytes());
        let program = bpf(PROG_LOAD, &mut load);
        let mut link = [0u8; 64];
        link[..4].copy_from_slice(&program.as_raw_fd().to_ne_bytes());
        link[4..8].copy_from_slice(&index.to_ne_bytes());
        link[8..12].copy_from_slice(&attach.to_ne_bytes());
        link[12..16].copy_from_slice(&flags.to_ne_bytes());
        let link = bpf(LINK_CREATE, &mut link);
        Self {
            name,
            _program: program,
            _link: link,
        }
    }

    /// The packets that it has processed while the kernel counted them.
    pub fn runs(&self) -> u64 {
        let mut programs = aya::programs::loaded_programs().filter_map(Result::ok);
        let own = programs.find(|program| program.name_as_str() == Some(&self.name));
        own.expect("the program is there").run_count()
    }
}

fn bpf(command: libc::c_long, attributes: &mut [u8]) -> OwnedFd {
    // SAFETY: the attributes are live and as long as given, and so is the memory they point to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_mut_ptr(),
            attributes.len(),
        )
    };
    assert!(
        result >= 0,
        "bpf({command}): {}",
        io::Error::last_os_error()
    );
    // SAFETY: the kernel has just returned this descriptor.
    unsafe { OwnedFd::from_raw_fd(result as i32) }
}

/// Pins the program with this number.
pub fn pin_program(id: u32, path: &std::path::Path) {
    let mut by_id = [0u8; 16];
    by_id[..4].copy_from_slice(&id.to_ne_bytes());
    let program = bpf(PROG_GET_FD_BY_ID, &mut by_id);
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let mut pin = [0u8; 16];
    pin[..8].copy_from_slice(&(path.as_ptr().addr() as u64).to_ne_bytes());
    pin[8..12].copy_from_slice(&program.as_raw_fd().to_ne_bytes());
    // SAFETY: the attributes are live and as long as given, and so is the memory they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, OBJ_PIN, pin.as_mut_ptr(), pin.len()) };
    assert!(
        result >= 0,
        "pinning a program: {}",
        io::Error::last_os_error()
    );
}
