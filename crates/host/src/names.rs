//! Names of this host in requests.

use std::net::IpAddr;

/// Whether a host of a URL, without its port, is an address or `localhost`. By DNS rebinding, any other name may lead a browser
/// here.
#[must_use]
pub fn is_this_host(host: &str) -> bool {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    plain.parse::<IpAddr>().is_ok() || host.trim_end_matches('.').eq_ignore_ascii_case("localhost")
}
