//! Frames that XDP has sent and a driver has not, by the driver's own statistics. A program sees only that it returned
//! `XDP_TX`.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd as _;

const SIOCETHTOOL: libc::Ioctl = 0x8946;
/// Commands and a set of strings of include/uapi/linux/ethtool.h.
const GET_STRINGS: u32 = 0x1b;
const GET_STATISTICS: u32 = 0x1d;
const GET_SET_INFO: u32 = 0x37;
const STATISTICS: u32 = 1;
/// The length of a name.
const NAME: usize = 32;
/// The most statistics that are read. Drivers with many queues have some thousands.
const MOST: u32 = 1 << 16;

/// Frames that a device's driver has dropped or failed to send for XDP since it was loaded; 0 if it counts none.
#[must_use]
pub fn lost(interface: &str) -> u64 {
    read(interface).unwrap_or(0)
}

fn read(interface: &str) -> io::Result<u64> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // `struct ethtool_sset_info`: command, a reserved word, a mask of sets, and the count of each.
    let mut info = [GET_SET_INFO, 0, 1 << STATISTICS, 0, 0];
    query(&socket, interface, info.as_mut_ptr().cast())?;
    let count = info[4];
    if info[2] & 1 << STATISTICS == 0 || count == 0 || count > MOST {
        return Ok(0);
    }
    // `struct ethtool_gstrings`: command, set, count, names. A driver may have more of them by now.
    let mut names = vec![0u32; 3 + 2 * count as usize * NAME / 4];
    names[..3].copy_from_slice(&[GET_STRINGS, STATISTICS, count]);
    query(&socket, interface, names.as_mut_ptr().cast())?;
    // `struct ethtool_stats`: command and count in one word, values.
    let mut values = vec![0u64; 1 + 2 * count as usize];
    values[0] = u64::from_ne_bytes(pair(GET_STATISTICS, count));
    query(&socket, interface, values.as_mut_ptr().cast())?;
    let bytes: Vec<u8> = names[3..]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let lost = bytes
        .chunks_exact(NAME)
        .zip(&values[1..])
        .filter(|(name, _)| {
            let length = name.iter().position(|byte| *byte == 0).unwrap_or(NAME);
            std::str::from_utf8(&name[..length]).is_ok_and(is_loss)
        });
    Ok(lost.map(|(_, value)| *value).sum())
}

fn pair(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    bytes
}

/// Whether a statistic counts frames of XDP that were not sent, such as veth's `rx_queue_0_xdp_tx_errors`, virtio's
/// `tx_queue_0_xdp_tx_drops` and mlx5's `rx_xdp_tx_full`.
fn is_loss(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["xdp_tx", "tx_xdp"].iter().any(|of| name.contains(of))
        && ["err", "drop", "full", "fail"]
            .iter()
            .any(|of| name.contains(of))
}

/// Sends a request of ethtool's, which the kernel overwrites with the reply.
fn query(socket: &UdpSocket, interface: &str, request: *mut libc::c_char) -> io::Result<()> {
    // SAFETY: a structure of integers and arrays.
    let mut wrapped: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte of the name stays 0.
    for (to, from) in wrapped.ifr_name[..libc::IFNAMSIZ - 1]
        .iter_mut()
        .zip(interface.bytes())
    {
        *to = from as libc::c_char;
    }
    wrapped.ifr_ifru.ifru_data = request;
    // SAFETY: the callers' requests have room for the replies to them.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut wrapped) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_of_each_driver_are_found_by_their_names() {
        for name in [
            "rx_queue_0_xdp_tx_errors",
            "tx_queue_3_xdp_tx_drops",
            "rx0_xdp_tx_full",
            "rx_xdp_tx_err",
            "rx_xdp_tx_errors[2]",
        ] {
            assert!(is_loss(name), "{name}");
        }
        for name in [
            "rx_queue_0_xdp_tx",
            "rx_queue_0_xdp_drops",
            "tx_errors",
            "xdp_redirect_err",
        ] {
            assert!(!is_loss(name), "{name}");
        }
    }

    #[test]
    fn a_device_without_such_statistics_has_lost_nothing() {
        assert_eq!((lost("lo"), lost("no-such-device-0")), (0, 0));
    }
}
