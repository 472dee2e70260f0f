//! Files of the Debian and the RPM package, and the tests of both.

pub mod deb_check;
pub mod files;
pub mod lint;
pub mod rpm_check;

mod installed;
mod root;
