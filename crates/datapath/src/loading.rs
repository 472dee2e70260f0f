//! Loads a program although signals interrupt the kernel's verifier.

use aya::programs::ProgramError;

use crate::error::LoadError;

/// How often the verification of a program may be interrupted.
const ATTEMPTS: usize = 20;

/// Loads a program. A signal to this thread interrupts the verifier (EAGAIN), which starts again then.
pub(crate) fn load(
    name: &'static str,
    mut load: impl FnMut() -> Result<(), ProgramError>,
) -> Result<(), LoadError> {
    let mut others = 1..ATTEMPTS;
    loop {
        match load() {
            Err(ProgramError::LoadError { io_error, .. })
                if io_error.raw_os_error() == Some(libc::EAGAIN) && others.next().is_some() => {}
            loaded => return loaded.map_err(|error| LoadError::from_program(name, error)),
        }
    }
}
