//! Guests with systemd: Debian releases whose first process is systemd, made by mmdebstrap into the user's cache folder.
//!
//! A machine has three disks: a copy of the release's image, an archive with the tests and the packages, and one that
//! takes the exit status. `weir-tests.service` runs the tests once the system is up.

mod distribution;
mod image;
mod run;

pub use self::distribution::{DISTRIBUTIONS, Distribution};
pub use self::image::Image;
pub use self::run::Cargo;
