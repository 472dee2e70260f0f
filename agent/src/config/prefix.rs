//! Addresses and prefixes as an operator writes them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::policy::Prefix;
use super::units::Wrong;

/// Parses an address or a prefix without host bits.
///
/// # Errors
///
/// With what to write instead.
pub fn parse(text: &str) -> Result<Prefix, Wrong> {
    let wrong = |message: String, help: String| Wrong { message, help };
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Prefix(address.into()));
    }
    let net: IpNet = text.parse().map_err(|_| {
        wrong(
            format!("{text:?} is neither an address nor a prefix"),
            "write \"192.0.2.10\" or \"2001:db8::/32\"".to_owned(),
        )
    })?;
    if net.trunc() != net {
        return Err(wrong(
            format!("{text} has bits set beyond its length"),
            format!("write \"{}\" or \"{}\"", net.trunc(), net.addr()),
        ));
    }
    Ok(Prefix(net))
}
