//! Where the operator sits, as sshd tells its children.

use std::net::IpAddr;

/// The address of the SSH session this process was started from, if it was.
#[must_use]
pub fn client() -> Option<IpAddr> {
    // sudo keeps neither by default, so this is a help and no safeguard: never_limit and `agent try` are.
    ["SSH_CONNECTION", "SSH_CLIENT"].iter().find_map(|name| parse(&std::env::var(name).ok()?))
}

fn parse(variable: &str) -> Option<IpAddr> {
    variable.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_first_word() {
        assert_eq!(parse("192.0.2.7 50000 198.51.100.1 22"), Some([192, 0, 2, 7].into()));
        assert_eq!(parse("2001:db8::7 50000 22"), Some("2001:db8::7".parse().unwrap()));
        assert_eq!(parse(""), None);
    }
}
