//! Counters of the network namespace of this thread.

use std::fs;

use super::reader::Kind;

/// Files of counters, each read at most once.
#[derive(Debug, Default)]
pub(super) struct Files {
    snmp: Option<Option<String>>,
    snmp6: Option<Option<String>>,
    netstat: Option<Option<String>>,
}

impl Files {
    fn snmp(&mut self) -> Option<&str> {
        self.snmp.get_or_insert_with(|| file("snmp")).as_deref()
    }

    /// Without IPv6 there is no such file.
    fn snmp6(&mut self) -> &str {
        let text = self.snmp6.get_or_insert_with(|| file("snmp6"));
        text.as_deref().unwrap_or_default()
    }

    fn netstat(&mut self) -> Option<&str> {
        self.netstat
            .get_or_insert_with(|| file("netstat"))
            .as_deref()
    }
}

fn file(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/thread-self/net/{name}")).ok()
}

/// Units for which a kind of queue had no room. `None`: they cannot be read.
pub(super) fn overflows(kind: Kind, files: &mut Files) -> Option<u64> {
    match kind {
        Kind::Listener => in_table(files.netstat()?, "TcpExt:", &["ListenOverflows"]),
        Kind::Datagrams => {
            let first = in_table(files.snmp()?, "Udp:", &["RcvbufErrors", "MemErrors"])?;
            let names = ["Udp6RcvbufErrors", "Udp6MemErrors"];
            Some(first.wrapping_add(in_list(files.snmp6(), &names)))
        }
    }
}

/// Connections that entered a queue, or datagrams that programs read.
pub(super) fn taken(kind: Kind, files: &mut Files) -> Option<u64> {
    match kind {
        Kind::Listener => in_table(files.snmp()?, "Tcp:", &["PassiveOpens"]),
        Kind::Datagrams => {
            let first = in_table(files.snmp()?, "Udp:", &["InDatagrams"])?;
            let read = first.wrapping_add(in_list(files.snmp6(), &["Udp6InDatagrams"]));
            Some(read.wrapping_add(merged(files)?))
        }
    }
}

/// Packets that were merged into others before they were received: a program may read several datagrams as one
/// (`UDP_GRO`). The kernel counts packets by their ECN bits, and what it receives, before and after that (`ip_rcv_core`).
fn merged(files: &mut Files) -> Option<u64> {
    let names = ["InNoECTPkts", "InECT1Pkts", "InECT0Pkts", "InCEPkts"];
    let packets = in_table(files.netstat()?, "IpExt:", &names)?;
    let received = in_table(files.snmp()?, "Ip:", &["InReceives"])?;
    let names = [
        "Ip6InNoECTPkts",
        "Ip6InECT1Pkts",
        "Ip6InECT0Pkts",
        "Ip6InCEPkts",
    ];
    let packets = packets.wrapping_add(in_list(files.snmp6(), &names));
    let received = received.wrapping_add(in_list(files.snmp6(), &["Ip6InReceives"]));
    // Invalid packets are received only: the movement counts, not the sign.
    Some(packets.wrapping_sub(received))
}

/// The sum of the counters with these names, in a file with lines of names, each before a line of values. `None` without
/// the first of them.
fn in_table(text: &str, table: &str, names: &[&str]) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(table));
    let header = lines.next()?.split_whitespace();
    let values: Vec<u64> = lines
        .next()?
        .split_whitespace()
        .map(|value| value.parse().unwrap_or(0))
        .collect();
    let header: Vec<&str> = header.collect();
    let value = |name: &&str| {
        let place = header.iter().position(|other| other == name)?;
        values.get(place).copied()
    };
    value(names.first()?)?;
    Some(names.iter().filter_map(value).fold(0, u64::wrapping_add))
}

/// The sum of the counters with these names, in a file with lines of a name and a value.
fn in_list(text: &str, names: &[&str]) -> u64 {
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        let value: u64 = value.trim().parse().ok()?;
        names.contains(&name).then_some(value)
    });
    values.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNMP: &str = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors\n\
        Udp: 3203 565092 5632 576746 5000 969258 600 0 32\n\
        UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors\n\
        UdpLite: 0 0 0 0 7 0 0 0 0\n";

    #[test]
    fn counters_are_found_by_name() {
        let names = ["RcvbufErrors", "MemErrors"];
        assert_eq!(in_table(SNMP, "Udp:", &names), Some(5032));
        assert_eq!(in_table(SNMP, "Udp:", &["InCsumErrors"]), Some(600));
        let list = "Udp6InErrors                    \t9\nUdp6RcvbufErrors                \t4\nUdp6MemErrors\t1\n";
        assert_eq!(in_list(list, &["Udp6RcvbufErrors", "Udp6MemErrors"]), 5);
    }

    #[test]
    fn a_counter_that_an_older_kernel_lacks_is_zero_or_unknown() {
        let old = "Udp: InDatagrams InErrors RcvbufErrors\nUdp: 1 2 3\n";
        let names = ["RcvbufErrors", "MemErrors"];
        assert_eq!(in_table(old, "Udp:", &names), Some(3));
        assert_eq!(in_table("Udp: InErrors\nUdp: 1\n", "Udp:", &names), None);
        assert_eq!(
            in_table("Udp: InErrors RcvbufErrors\n", "Udp:", &names),
            None
        );
        assert_eq!(in_table("", "Udp:", &names), None);
    }
}
