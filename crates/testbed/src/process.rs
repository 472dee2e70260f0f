//! Figures of processes, from the kernel.

use std::fs;

/// The memory of a process in bytes, by a field of `/proc/PID/status` such as `VmRSS`.
pub fn memory(process: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let value = status
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .unwrap();
    value.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}
