//! The kernel's lockdown (kernel_lockdown(7)).

use std::fs;
use std::path::Path;

/// The modes of lockdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lockdown {
    /// Nothing, or the kernel has no lockdown.
    None,
    /// Changing the kernel.
    Integrity,
    /// Also reading its memory: programs have no `bpf_probe_read_kernel`.
    Confidentiality,
}

impl Lockdown {
    /// That of the kernel whose `sys` this is.
    #[must_use]
    pub fn of(sys: &Path) -> Self {
        let modes = fs::read_to_string(sys.join("kernel/security/lockdown")).unwrap_or_default();
        if modes.contains("[confidentiality]") {
            Self::Confidentiality
        } else if modes.contains("[integrity]") {
            Self::Integrity
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lockdown_is_read_from_the_file_of_its_modes() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(Lockdown::of(sys.path()), Lockdown::None);
        let folder = sys.path().join("kernel/security");
        fs::create_dir_all(&folder).unwrap();
        for (modes, mode) in [
            ("[none] integrity confidentiality\n", Lockdown::None),
            ("none [integrity] confidentiality\n", Lockdown::Integrity),
            (
                "none integrity [confidentiality]\n",
                Lockdown::Confidentiality,
            ),
        ] {
            fs::write(folder.join("lockdown"), modes).unwrap();
            assert_eq!(Lockdown::of(sys.path()), mode);
        }
    }
}
