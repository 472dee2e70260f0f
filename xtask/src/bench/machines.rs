//! The medians of each kind of machine: a file of `docs/benchmarks/machines` for each, which a full run on one writes.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::aims::Aim;

/// Around README.md's table of how much faster Weir is.
pub const MARKS: [&str; 2] = ["<!-- bench: begin -->\n", "<!-- bench: end -->"];

/// The aims of README.md's table: the key of `aims.rs`, and the alternative that the aim's text ends with.
const IN_README: (&str, [(&str, &str); 3]) = (
    "stack",
    [
        ("hashlimit at input", "iptables hashlimit"),
        ("nftables at input", "nftables, input"),
        ("nftables at ingress", "nftables, ingress"),
    ],
);

/// The last full run on a kind of machine.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// The CPU's vendor and family, and the mitigations that make calls expensive.
    kind: String,
    commit: String,
    aims: Vec<Reached>,
}

/// An aim, and the median that a machine reached.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Reached {
    key: String,
    what: String,
    bound: String,
    median: f64,
    is_met: bool,
}

impl Machine {
    pub fn new(kind: &str, commit: &str, aims: &[Aim]) -> Self {
        let reached = |aim: &Aim| {
            Some(Reached {
                key: aim.key.to_owned(),
                what: aim.what.clone(),
                bound: aim.bound.clone(),
                median: aim.measured?.median,
                is_met: aim.is_met,
            })
        };
        Self {
            kind: kind.to_owned(),
            commit: commit.to_owned(),
            aims: aims.iter().filter_map(reached).collect(),
        }
    }

    /// Replaces the file of this kind.
    pub fn write(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let path = folder.join(file_name(&self.kind));
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    fn reached(&self, what: &str) -> Option<&Reached> {
        self.aims.iter().find(|reached| reached.what == what)
    }
}

fn file_name(kind: &str) -> String {
    let words: Vec<String> = kind
        .split(|character: char| !character.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    format!("{}.json", words.join("-"))
}

/// All that were measured, by kind.
pub fn read(folder: &Path) -> Result<Vec<Machine>> {
    let mut machines: Vec<Machine> = Vec::new();
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        let machine = fs::read(&path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(serde_json::from_slice(&text)?));
        machines.push(machine.with_context(|| format!("reading {}", path.display()))?);
    }
    machines.sort_by(|one, other| one.kind.cmp(&other.kind));
    Ok(machines)
}

/// Rows of each aim's median on each machine.
pub fn rows(machines: &[Machine]) -> Vec<Vec<String>> {
    let kinds = machines
        .iter()
        .map(|machine| format!("{} ({})", machine.kind, machine.commit));
    let mut rows = vec![
        ["aim", "bound"]
            .map(str::to_owned)
            .into_iter()
            .chain(kinds)
            .collect(),
    ];
    let mut seen: Vec<&str> = Vec::new();
    for reached in machines.iter().flat_map(|machine| &machine.aims) {
        if seen.contains(&reached.what.as_str()) {
            continue;
        }
        seen.push(&reached.what);
        let of = |machine: &Machine| {
            let Some(reached) = machine.reached(&reached.what) else {
                return "not measured".to_owned();
            };
            let missed = if reached.is_met { "" } else { ", missed" };
            format!("{:.2}{missed}", reached.median)
        };
        let mut row = vec![reached.what.clone(), reached.bound.clone()];
        row.extend(machines.iter().map(of));
        rows.push(row);
    }
    rows
}

/// README.md's table: each alternative with the range over all machines.
pub fn in_readme(machines: &[Machine]) -> Result<String> {
    let kinds: Vec<&str> = machines.iter().map(|machine| &*machine.kind).collect();
    let (key, alternatives) = IN_README;
    let mut table = format!(
        "| one source, all refused, on {} | Weir is faster by |\n|---|---|\n",
        kinds.join("; ")
    );
    for (in_aim, name) in alternatives {
        let mut medians: Vec<f64> = machines
            .iter()
            .flat_map(|machine| &machine.aims)
            .filter(|reached| reached.key == key && reached.what.ends_with(in_aim))
            .map(|reached| reached.median)
            .collect();
        medians.sort_by(f64::total_cmp);
        ensure!(!medians.is_empty(), "no run measured {in_aim}");
        let (least, most) = (medians[0], medians[medians.len() - 1]);
        let range = if medians.len() == 1 {
            format!("{least:.1}")
        } else {
            format!("{least:.1} to {most:.1}")
        };
        table.push_str(&format!("| {name} | {range} |\n"));
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Summary;

    fn aim(key: &'static str, what: &str, median: f64, is_met: bool) -> Aim {
        Aim {
            key,
            what: what.to_owned(),
            bound: "≥ 3×".to_owned(),
            measured: Summary::of(&[median]),
            is_met,
        }
    }

    fn machine(kind: &str, factor: f64) -> Machine {
        let aims = [
            aim("hot", "hot", 0.5, true),
            aim("stack", "of hashlimit at input", factor, factor > 3.0),
            aim("stack", "of nftables at input", factor + 0.2, true),
            aim("stack", "of nftables at ingress", factor - 0.5, true),
        ];
        Machine::new(kind, "abc", &aims)
    }

    #[test]
    fn each_kind_of_machine_has_a_file_and_a_later_run_on_it_replaces_it() {
        let folder = tempfile::tempdir().unwrap();
        machine("AMD family 25, retpolines", 3.0)
            .write(folder.path())
            .unwrap();
        let (amd, intel) = (
            machine("AMD family 25, retpolines", 3.25),
            machine("Intel family 6, eIBRS", 1.9),
        );
        amd.write(folder.path()).unwrap();
        intel.write(folder.path()).unwrap();
        assert!(folder.path().join("amd-family-25-retpolines.json").exists());
        let machines = read(folder.path()).unwrap();
        assert_eq!(machines, [amd, intel]);
        let rows = rows(&machines);
        assert_eq!(rows.len(), 5);
        assert_eq!(
            rows[2],
            ["of hashlimit at input", "≥ 3×", "3.25", "1.90, missed"]
        );
    }

    #[test]
    fn the_readme_has_the_range_of_all_machines() {
        let one = [machine("AMD family 25", 3.25)];
        assert_eq!(
            in_readme(&one).unwrap(),
            "| one source, all refused, on AMD family 25 | Weir is faster by |\n|---|---|\n\
             | iptables hashlimit | 3.2 |\n| nftables, input | 3.5 |\n| nftables, ingress | 2.8 |\n"
        );
        let two = [machine("AMD", 3.2), machine("Intel", 1.9)];
        assert!(
            in_readme(&two)
                .unwrap()
                .contains("| iptables hashlimit | 1.9 to 3.2 |\n")
        );
        assert!(in_readme(&[Machine::new("AMD", "abc", &[])]).is_err());
    }
}
