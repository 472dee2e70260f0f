//! The machine of a run, as far as figures depend on it.

use std::fs;
use std::process::Command;

use crate::process;

/// The kind of machine: the CPU's vendor and family, and the mitigations that make calls expensive.
pub fn kind() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let spectre = mitigation("spectre_v2").unwrap_or_default();
    let rets = mitigation("spec_rstack_overflow").unwrap_or_default();
    kind_of(&cpuinfo, &spectre, &rets)
}

fn kind_of(cpuinfo: &str, spectre: &str, rets: &str) -> String {
    let vendor = match field(cpuinfo, "vendor_id").as_deref() {
        Some("AuthenticAMD") => "AMD".to_owned(),
        Some("GenuineIntel") => "Intel".to_owned(),
        Some(other) => other.to_owned(),
        None => std::env::consts::ARCH.to_owned(),
    };
    let mut kind = vendor;
    if let Some(family) = field(cpuinfo, "cpu family") {
        kind.push_str(&format!(" family {family}"));
    }
    // The kernel names eIBRS in the line of retpolines, too: "PBRSB-eIBRS: Not affected".
    let branches = spectre.split(';').next().unwrap_or_default();
    for (text, word, name) in [
        (branches, "Retpolines", "retpolines"),
        (branches, "Enhanced", "eIBRS"),
        (rets, "afe RET", "safe RET"),
    ] {
        if text.contains(word) {
            kind.push_str(&format!(", {name}"));
        }
    }
    kind
}

fn field(cpuinfo: &str, name: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn mitigation(name: &str) -> Option<String> {
    first_line(&format!("/sys/devices/system/cpu/vulnerabilities/{name}"))
}

/// Rows of (property, value).
pub fn describe(compiler: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec!["machine".to_owned(), String::new()]];
    let mut add = |what: &str, is: Option<String>| {
        rows.push(vec![
            what.to_owned(),
            is.filter(|is| !is.is_empty())
                .unwrap_or_else(|| "not known".to_owned()),
        ]);
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| field(&cpuinfo, name);
    let count = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    add(
        "CPU",
        field("model name").map(|name| {
            format!(
                "{name}, family {}, {count} CPUs",
                field("cpu family").unwrap_or_default()
            )
        }),
    );
    add(
        "MHz, cache",
        field("cpu MHz").map(|mhz| format!("{mhz}, {}", field("cache size").unwrap_or_default())),
    );
    add(
        "hypervisor",
        Some(
            if cpuinfo.contains(" hypervisor") {
                "yes"
            } else {
                "no"
            }
            .to_owned(),
        ),
    );
    add(
        "memory",
        first_line("/proc/meminfo").map(|line| line.replace("MemTotal:", "").trim().to_owned()),
    );
    add("kernel", first_line("/proc/sys/kernel/osrelease"));
    add(
        "kernel's command line",
        first_line("/proc/cmdline").map(|line| mitigation_words(&line)),
    );
    add("mitigations", Some(mitigations()));
    let jit = |name: &str| first_line(&format!("/proc/sys/net/core/{name}")).unwrap_or_default();
    add(
        "BPF JIT",
        Some(format!(
            "enabled {}, hardened {}",
            jit("bpf_jit_enable"),
            jit("bpf_jit_harden")
        )),
    );
    add(
        "compiler of the alternatives in C",
        Some(compiler.to_owned()),
    );
    for (program, argument) in [
        ("nft", "--version"),
        ("iptables-legacy", "--version"),
        ("ip", "-V"),
    ] {
        let said = process::find(program)
            .and_then(|path| process::capture(Command::new(path).arg(argument)).ok());
        add(program, said.map(|said| said.trim().to_owned()));
    }
    rows
}

/// The relevant words of a command line: the rest shows where the machine is from.
fn mitigation_words(line: &str) -> String {
    let matters = [
        "mitigations=",
        "nosmt",
        "spec",
        "retbleed",
        "isolcpus",
        "nohz",
        "idle=",
        "preempt=",
    ];
    let words: Vec<&str> = line
        .split_whitespace()
        .filter(|word| matters.iter().any(|name| word.starts_with(name)))
        .collect();
    if words.is_empty() {
        "nothing about mitigations or CPUs".to_owned()
    } else {
        words.join(" ")
    }
}

fn mitigations() -> String {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities")
        .into_iter()
        .flatten()
        .flatten();
    let mut lines: Vec<String> = entries
        .filter_map(|entry| {
            let is = fs::read_to_string(entry.path()).ok()?;
            (is.trim() != "Not affected")
                .then(|| format!("{}: {}", entry.file_name().to_string_lossy(), is.trim()))
        })
        .collect();
    lines.sort();
    lines.join("; ")
}

fn first_line(path: &str) -> Option<String> {
    fs::read_to_string(path)
        .ok()?
        .lines()
        .next()
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_known_by_its_cpu_and_by_what_makes_calls_expensive() {
        let amd = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\n";
        let retpolines = "Mitigation: Retpolines; STIBP: disabled; PBRSB-eIBRS: Not affected";
        let rets = "Vulnerable: Safe RET, no microcode";
        assert_eq!(
            kind_of(amd, retpolines, rets),
            "AMD family 25, retpolines, safe RET"
        );
        let intel = "vendor_id\t: GenuineIntel\ncpu family\t: 6\n";
        let eibrs = "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional";
        assert_eq!(
            kind_of(intel, eibrs, "Not affected"),
            "Intel family 6, eIBRS"
        );
        assert_eq!(kind_of("", "", ""), std::env::consts::ARCH);
    }

    #[test]
    fn only_relevant_parameters_of_the_kernel_are_printed() {
        let line = "console=ttyS0 root=/dev/vda mitigations=off token=abc isolcpus=1";
        assert_eq!(mitigation_words(line), "mitigations=off isolcpus=1");
        assert_eq!(
            mitigation_words("quiet"),
            "nothing about mitigations or CPUs"
        );
    }
}
