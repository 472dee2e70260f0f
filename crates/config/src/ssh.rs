//! The operator's SSH session, from the environment that sshd sets.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::policy::{Action, Config, Direction, Limit, Mode, ProtocolFilter, Shield, class_of};

/// The variables that sshd sets.
const NAMES: [&str; 2] = ["SSH_CONNECTION", "SSH_CLIENT"];
/// A bound on the chain of parents.
const MOST_PARENTS: usize = 64;

/// The client's address of the SSH session that started this process, if any.
///
/// sudo drops these variables, so the environments of the parent processes are read as well. A process cannot change
/// the environment that it was started with, and root can read it.
#[must_use]
pub fn client() -> Option<IpAddr> {
    let own = NAMES
        .iter()
        .find_map(|name| parse(&std::env::var(name).ok()?));
    own.or_else(|| client_of(Path::new("/proc"), std::process::id()))
}

/// The same for another process.
fn client_of(proc: &Path, mut pid: u32) -> Option<IpAddr> {
    for _ in 0..MOST_PARENTS {
        let folder = proc.join(pid.to_string());
        if let Some(address) = fs::read(folder.join("environ"))
            .ok()
            .and_then(|environment| in_environment(&environment))
        {
            return Some(address);
        }
        pid = parent(&fs::read_to_string(folder.join("status")).ok()?)
            .filter(|parent| *parent > 1)?;
    }
    None
}

fn in_environment(environment: &[u8]) -> Option<IpAddr> {
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let (name, value) = std::str::from_utf8(variable).ok()?.split_once('=')?;
        NAMES.contains(&name).then(|| parse(value))?
    })
}

fn parent(status: &str) -> Option<u32> {
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))?
        .trim()
        .parse()
        .ok()
}

fn parse(variable: &str) -> Option<IpAddr> {
    variable.split_whitespace().next()?.parse().ok()
}

/// A warning if a limit applies to the SSH session that starts the agent.
#[must_use]
pub fn ssh_warning(config: &Config, client: Option<IpAddr>) -> Option<String> {
    let client = client?;
    let class = class_of(&config.classes, client);
    // `protect` exempts the session.
    let is_free = config.agent.protect.0.contains(&Shield::Ssh)
        || config
            .agent
            .never_limit
            .iter()
            .any(|prefix| prefix.contains(client))
        || class.is_some_and(|class| class.unlimited);
    let reaches = |limit: &&Limit| {
        limit.direction == Direction::Ingress
            && limit.action != Action::Observe
            && limit
                .sources
                .as_ref()
                .is_none_or(|sources| sources.contains(client))
            && matches!(limit.protocol, ProtocolFilter::Any | ProtocolFilter::Tcp)
            && limit.ports.as_ref().is_none_or(|ports| ports.contains(22))
    };
    let limit = config
        .limits
        .iter()
        .find(reaches)
        .filter(|_| !is_free && config.agent.mode == Mode::Enforce)?;
    Some(format!(
        "limit {:?} applies to {client}, the client of this SSH session: add it to [agent] never_limit",
        limit.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_first_word() {
        assert_eq!(
            parse("192.0.2.7 50000 198.51.100.1 22"),
            Some([192, 0, 2, 7].into())
        );
        assert_eq!(
            parse("2001:db8::7 50000 22"),
            Some("2001:db8::7".parse().unwrap())
        );
        assert_eq!(parse(""), None);
    }

    /// An agent under sudo, whose environment is cleared, under a shell under sshd.
    #[test]
    fn the_client_is_found_in_the_parents_environments() {
        let proc = tempfile::tempdir().unwrap();
        let process = |pid: u32, parent: u32, environment: &[u8]| {
            let folder = proc.path().join(pid.to_string());
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("environ"), environment).unwrap();
            fs::write(
                folder.join("status"),
                format!("Name:\tx\nPPid:\t{parent}\n"),
            )
            .unwrap();
        };
        process(50, 40, b"PATH=/bin\0SUDO_USER=ada\0");
        process(40, 30, b"");
        process(
            30,
            1,
            b"TERM=xterm\0SSH_CONNECTION=203.0.113.9 50000 198.51.100.1 22\0",
        );
        assert_eq!(client_of(proc.path(), 50), Some([203, 0, 113, 9].into()));
        process(
            60,
            1,
            b"XSSH_CONNECTION=203.0.113.9 50000 198.51.100.1 22\0",
        );
        assert_eq!(client_of(proc.path(), 60), None);
        assert_eq!(client_of(proc.path(), 70), None);
    }
}
