//! The running kernel's release, which explains why it rejects a program.

/// The oldest supported release. Before 5.12 the kernel has no compare-and-swap in BPF.
const OLDEST: (u32, u32) = (5, 15);

/// The oldest release that the tests run on.
const OLDEST_TESTED: (u32, u32) = (6, 1);

/// How well releases from [`OLDEST`] on are tested; docs/start/install.md has the same words.
pub const TESTED: &str = "tested from 6.1; 5.15 is expected to work, last tried by hand";

/// The release of the running kernel, as `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    nix::sys::utsname::uname().map_or_else(
        |_| "unknown".to_owned(),
        |name| name.release().to_string_lossy().into_owned(),
    )
}

/// Whether the running kernel is older than the oldest supported release.
#[must_use]
pub fn is_kernel_too_old() -> bool {
    is_too_old(&kernel_release())
}

/// Whether a release is older than the oldest supported one; `false` if it cannot be parsed.
#[must_use]
pub fn is_too_old(release: &str) -> bool {
    version(release).is_some_and(|version| version < OLDEST)
}

/// Whether a release is supported, and older than those that are tested; `false` if it cannot be parsed.
#[must_use]
pub fn is_untested(release: &str) -> bool {
    version(release).is_some_and(|version| (OLDEST..OLDEST_TESTED).contains(&version))
}

/// The first two numbers of a release, as in `5.10.0-46-cloud-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release
        .split(|letter: char| !letter.is_ascii_digit())
        .map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_between_the_oldest_and_the_oldest_tested_are_untested() {
        for untested in ["5.15.0-119-generic", "5.19", "6.0.12"] {
            assert!(is_untested(untested), "{untested}");
        }
        for other in ["5.14", "6.1.0-56-cloud-amd64", "6.12.117+deb12", "unknown"] {
            assert!(!is_untested(other), "{other}");
        }
    }

    #[test]
    fn the_page_about_installing_has_the_same_words() {
        let page = include_str!("../../../docs/start/install.md");
        let words: Vec<&str> = page.split_whitespace().collect();
        assert!(words.join(" ").contains(TESTED));
    }

    #[test]
    fn releases_before_5_15_are_too_old() {
        for old in ["5.10.0-46-cloud-amd64", "4.18.0-553.el8", "5.14"] {
            assert!(is_too_old(old), "{old}");
        }
        for served in [
            "5.15.0",
            "6.1.0-56-cloud-amd64",
            "6.12.117+deb12",
            "10.2-rc1",
            "unknown",
            "",
        ] {
            assert!(!is_too_old(served), "{served}");
        }
    }
}
