//! A config's memory is predicted before it takes effect, and a config that does not fit is refused.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::limiter::Algorithm;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::mmdb::{Mmdb, country};
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network, is_virtual};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] =
    tests![a_second_agent_with_the_same_state_directory_ends_and_names_the_first,];

/// For machines that have a memory controller.
pub const WITH_GROUPS: &[Test] = tests![
    a_config_that_exceeds_the_memory_of_the_cgroup_is_refused_and_limits_stay,
    a_start_that_exceeds_the_memory_of_the_cgroup_is_refused,
    a_restart_that_does_not_fit_puts_the_last_valid_config_in_effect,
    a_restart_without_memory_for_a_database_leaves_it_out,
    a_restart_without_memory_for_raised_limits_does_not_raise_them,
    a_reload_takes_no_more_memory_than_was_predicted,
    a_rollback_takes_no_more_memory_than_a_trial_was_granted,
];

/// For Linux 6.4 and newer.
pub const WITH_USAGE: &[Test] = tests![memory_at_rest_is_what_the_kernel_says,];

const MIB: u64 = 1 << 20;
const ONE: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
/// Three limits on a key take slots twice as wide.
const TWO_MORE: &str = "[[limit]]\nname = \"second\"\nrate = \"1000/h\"\n[[limit]]\nname = \"third\"\nrate = \"1000/h\"\nalgorithm = \"fixed-window\"\n";

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A cgroup of the test's own that counts and limits memory; removed when dropped.
pub struct MemoryGroup {
    path: PathBuf,
    is_v1: bool,
}

/// The root of the hierarchy with the memory controller, and whether it is one of version 1.
fn root() -> Option<(&'static Path, bool)> {
    let (v1, v2) = (
        Path::new("/sys/fs/cgroup/memory"),
        Path::new("/sys/fs/cgroup"),
    );
    if v1.join("memory.limit_in_bytes").exists() {
        return Some((v1, true));
    }
    let controllers = fs::read_to_string(v2.join("cgroup.controllers")).ok()?;
    controllers
        .split_whitespace()
        .any(|controller| controller == "memory")
        .then_some((v2, false))
}

pub fn has_groups() -> bool {
    nix::unistd::geteuid().is_root() && root().is_some()
}

pub fn kernel_tells_usage() -> bool {
    aya::util::KernelVersion::current()
        .is_ok_and(|version| version >= aya::util::KernelVersion::new(6, 4, 0))
}

impl MemoryGroup {
    fn new() -> Self {
        let (root, is_v1) = root().unwrap();
        if !is_v1 {
            fs::write(root.join("cgroup.subtree_control"), "+memory").unwrap();
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = root.join(format!("weir-t{}-memory{number}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self { path, is_v1 }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn limit(&self, bytes: u64) {
        let file = if self.is_v1 {
            "memory.limit_in_bytes"
        } else {
            "memory.max"
        };
        fs::write(self.file(file), bytes.to_string()).unwrap();
    }

    fn number(&self, v1: &str, v2: &str) -> u64 {
        let file = self.file(if self.is_v1 { v1 } else { v2 });
        fs::read_to_string(&file)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()))
            .trim()
            .parse()
            .unwrap()
    }

    /// Memory in use, without files that can be dropped.
    fn used(&self) -> u64 {
        self.used_without(&["inactive_file "])
    }

    /// Memory in use, without files: the first reader of a page of the agent's program is charged for it.
    fn used_without_files(&self) -> u64 {
        self.used_without(&["inactive_file ", "active_file "])
    }

    /// Pages of files.
    fn files(&self) -> u64 {
        self.sum(&["inactive_file ", "active_file "])
    }

    fn used_without(&self, names: &[&str]) -> u64 {
        let without = self.sum(names);
        self.number("memory.usage_in_bytes", "memory.current")
            .saturating_sub(without)
    }

    fn sum(&self, names: &[&str]) -> u64 {
        let statistics = fs::read_to_string(self.file("memory.stat")).unwrap();
        let prefix = if self.is_v1 { "total_" } else { "" };
        let value = |name: &str| -> u64 {
            let line = statistics
                .lines()
                .find_map(|line| line.strip_prefix(prefix)?.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
                .unwrap_or(0)
        };
        names.iter().map(|name| value(name)).sum()
    }

    /// The most that was ever in use, since `forget_peak` where that is to be had.
    fn peak(&self) -> u64 {
        self.number("memory.max_usage_in_bytes", "memory.peak")
    }

    fn forget_peak(&self) {
        if self.is_v1 {
            fs::write(self.file("memory.max_usage_in_bytes"), "0").unwrap();
        }
    }

    /// Processes that the kernel has killed for want of memory.
    fn kills(&self) -> u64 {
        let file = self.file(if self.is_v1 {
            "memory.oom_control"
        } else {
            "memory.events"
        });
        let text = fs::read_to_string(file).unwrap();
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
            .unwrap()
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // `cargo xtask cleanup` removes leftovers.
        let _ = fs::remove_dir(&self.path);
    }
}

fn check(network: &Network, config: &Path) -> Value {
    let output = network.command(&["check", config.to_str().unwrap(), "--json"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice::<Value>(&output.stdout).unwrap()["packet_memory"].clone()
}

/// The kernel's figures for the maps and programs of a process, each once.
fn memlock(process: u32) -> u64 {
    let mut known = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap() {
        let Ok(text) = fs::read_to_string(entry.unwrap().path()) else {
            continue;
        };
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
        };
        let id = field("map_id:")
            .map(|id| (0, id))
            .or(field("prog_id:").map(|id| (1, id)));
        if let (Some(id), Some(bytes)) = (id, field("memlock:")) {
            known.insert(id, bytes);
        }
    }
    known.values().sum()
}

/// Eight limits on ingress and two on egress, of all algorithms.
fn eight() -> String {
    let algorithms = Algorithm::ALL;
    (0..10).fold(String::new(), |mut text, nth| {
        let (algorithm, direction) =
            (algorithms[nth % algorithms.len()].name(), if nth < 8 { "ingress" } else { "egress" });
        let _ = writeln!(
            text,
            "[[limit]]\nname = \"l{nth}\"\nrate = \"{}/s\"\nalgorithm = {algorithm:?}\ndirection = {direction:?}",
            10 * (nth + 1)
        );
        text
    })
}

fn many(limits: usize, prefixes: usize) -> String {
    let mut text = String::from("[[class]]\nname = \"many\"\nmultiplier = 2\nsources = [");
    (0..prefixes).for_each(|nth| {
        let _ = write!(
            text,
            "\"10.{}.{}.{}\",",
            100 + (nth >> 16),
            nth >> 8 & 255,
            nth & 255
        );
    });
    text.push_str("]\n");
    (1..=limits).for_each(|nth| {
        let _ = write!(text, "[[limit]]\nname = \"l{nth}\"\nrate = \"{nth}/s\"\nports = [{nth}]\nprotocol = \"udp\"\n");
    });
    text
}

/// Limits with more maps, and with programs of their own.
const PROVEN: &str =
    "[[limit]]\nname = \"proven\"\nunit = \"connections\"\nrate = \"9/s\"\nprove = true\n";
const OPEN: &str = "[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = 50\n";
const RESETS: &str =
    "[[limit]]\nname = \"reset\"\nunit = \"connections\"\nrate = \"9/s\"\nprove = \"reset\"\n";

/// Limits for a port and a network each, of which some are for an interface, too.
fn scoped(limits: usize) -> String {
    (1..=limits).fold(String::new(), |mut text, nth| {
        let interfaces = if nth % 2 == 0 {
            "interfaces = [\"weir0\"]\n"
        } else {
            ""
        };
        let limit = format!(
            "[[limit]]\nname = \"l{nth}\"\nrate = \"{nth}/s\"\nports = [{nth}]\n{interfaces}"
        );
        let _ = writeln!(
            text,
            "{limit}sources = [\"10.{nth}.0.0/16\", \"!10.{nth}.7.0/24\"]"
        );
        text
    })
}

fn memory_at_rest_is_what_the_kernel_says() {
    let log = "[[limit]]\nname = \"log\"\nrate = \"1000/min\"\nalgorithm = \"sliding-log\"\n";
    for (agent, rest) in [
        ("max_sources = 1000", ONE.to_owned()),
        ("", ONE.to_owned()),
        ("max_sources = 100000", eight()),
        ("max_sources = 3000", log.to_owned()),
        (
            "max_sources = 20000",
            format!("{ONE}action = \"reject\"\n{TWO_MORE}"),
        ),
        ("max_sources = 1000", many(5_000, 50_000)),
        ("max_sources = 1000", scoped(200)),
        ("max_sources = 1000", format!("{ONE}{PROVEN}{OPEN}")),
        ("max_sources = 1000", format!("{ONE}{RESETS}")),
    ] {
        let network = Network::new();
        let running = network.start(agent, &rest);
        let memory = check(&network, &network.folder.path().join("limits.toml"));
        let (predicted, held) = (
            memory["kernel_bytes"].as_u64().unwrap(),
            memlock(running.process()),
        );
        let shown: String = rest.chars().take(80).collect();
        assert!(
            predicted.abs_diff(held) * 10 <= held,
            "predicted {predicted}, and the kernel holds {held}: {shown}"
        );
        assert_eq!(memory["of_running_agent"], true);
        let status = running.json(&["status"]);
        let in_effect = &status["memory"]["in_effect"];
        assert_eq!(
            in_effect["table"].as_u64().unwrap() + in_effect["policy"].as_u64().unwrap(),
            predicted
        );
        assert_eq!(status["sources"]["capacity"], memory["max_sources"]);
    }
}

fn a_reload_takes_no_more_memory_than_was_predicted() {
    let log = |count: u32| {
        format!("[[limit]]\nname = \"log\"\nrate = \"{count}/h\"\nalgorithm = \"sliding-log\"\n")
    };
    for (before, after) in [
        (
            ("max_sources = 500000", ONE.to_owned()),
            ("max_sources = 500000", format!("{ONE}{TWO_MORE}")),
        ),
        (
            ("max_sources = 1000", ONE.to_owned()),
            ("max_sources = 1000", format!("{}{ONE}", eight())),
        ),
        (
            ("max_sources = 2000", log(100)),
            ("max_sources = 3000", log(200)),
        ),
        (
            ("max_sources = 1000", ONE.to_owned()),
            ("max_sources = 2000", many(2_000, 20_000)),
        ),
        (
            ("max_sources = 1000", many(2_000, 20_000)),
            ("max_sources = 1000", many(2_001, 20_001)),
        ),
        (
            ("max_sources = 1000", ONE.to_owned()),
            ("max_sources = 1000", format!("{ONE}{PROVEN}")),
        ),
        (
            ("max_sources = 1000", ONE.to_owned()),
            ("max_sources = 1000", format!("{ONE}{PROVEN}{OPEN}")),
        ),
    ] {
        let (network, group) = (Network::new(), MemoryGroup::new());
        let running = network.start_in_group(group.path(), &network.config(before.0, &before.1));
        assert_has_no_huge_pages(running.process());
        fill(&network);
        let config = network.config(after.0, &after.1);
        let memory = check(&network, &config);
        let used = group.used_without_files();
        group.forget_peak();
        assert_eq!(running.json(&["reload"])["ok"], true);
        // A CPU is charged for up to 64 pages before they are in use (MEMCG_CHARGE_BATCH), and returns them when another
        // cgroup is charged on it, or when the limit is reached.
        let ahead = 64 * 4096 * aya::util::nr_cpus().unwrap() as u64;
        // Pages of files count for whoever reads them first: those of the agent's program, if the host had dropped them.
        let taken = group
            .peak()
            .saturating_sub(group.files())
            .saturating_sub(used);
        let needs = memory["needs_bytes"].as_u64().unwrap();
        let shown: String = after.1.chars().take(80).collect();
        println!("{taken} of {needs} bytes");
        assert!(
            taken <= needs + ahead,
            "the reload took {taken}, and {needs} were predicted: {shown}"
        );
        // At rest it is no more than was predicted either, once the kernel has freed the old maps, which it puts off.
        let at_rest = memory["at_rest_bytes"].as_u64().unwrap() + ahead;
        let deadline = Instant::now() + Duration::from_secs(300);
        while group.used_without_files() > at_rest && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(100));
        }
        let statistics = || fs::read_to_string(group.file("memory.stat")).unwrap();
        assert!(
            group.used_without_files() <= at_rest,
            "{} at rest, and at most {at_rest} were predicted: {shown}\n{}",
            group.used_without_files(),
            statistics()
        );
    }
}

/// Hosts that give them to every process would add to the agent's memory what it had handed back.
fn assert_has_no_huge_pages(process: u32) {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let enabled = status
        .lines()
        .find_map(|line| line.strip_prefix("THP_enabled:"))
        .map(str::trim);
    assert!(enabled.is_none_or(|enabled| enabled == "0"), "{status}");
}

/// Sources whose state is live, on many pages of the table.
fn fill(network: &Network) {
    let frames: Vec<_> = (1..=250).map(udp_from).collect();
    burst(network, &frames, 5);
}

fn a_config_that_exceeds_the_memory_of_the_cgroup_is_refused_and_limits_stay() {
    let (network, group) = (Network::new(), MemoryGroup::new());
    let agent = network.start_in_group(group.path(), &network.config("max_sources = 1000000", ONE));
    let receiver = network.receiver(PORT);
    let process = agent.process();
    burst(&network, &[udp_from(7)], 60);
    let limit = (group.used() + 100 * MIB).next_multiple_of(MIB);
    group.limit(limit);
    // The table of three limits would have some 256 MiB.
    let large = network.config("max_sources = 4000000", &format!("{ONE}{TWO_MORE}"));
    let memory = check(&network, &large);
    assert_eq!(
        memory["limit"]["cgroup"],
        group.path.to_str().unwrap(),
        "{memory}"
    );
    assert!(
        memory["refused"]
            .as_str()
            .unwrap()
            .contains("not enough memory"),
        "{memory}"
    );
    let answer = reload(&network);
    assert_eq!(answer["ok"], false, "{answer}");
    let error = answer["errors"][0].as_str().unwrap();
    let of_limit = config::human::size(limit);
    for part in [
        "not enough memory",
        "at its peak",
        group.path.to_str().unwrap(),
        &of_limit,
        "raise the cgroup's limit",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    agent.signal(Signal::SIGHUP);
    let status = agent.wait_for("the signal's reload", |status| {
        status["last_reload"]["cause"] == "signal"
    });
    assert_eq!(status["last_reload"]["ok"], false);
    assert!(
        status["last_reload"]["errors"][0]
            .as_str()
            .unwrap()
            .contains("not enough memory"),
        "{status}"
    );
    let tried = network.command(&["try", large.to_str().unwrap(), "--for", "60s"]);
    assert!(
        !tried.status.success()
            && String::from_utf8_lossy(&tried.stderr).contains("not enough memory")
    );
    assert!(agent.json(&["status"])["trial"].is_null());
    // The limits that were in effect still are, with their state.
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(agent.counts("packets"), (100, 20));
    // With the number of sources that the error names, it fits.
    let fits: u32 = error
        .split("max_sources to ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((50_000..4_000_000).contains(&fits), "{error}");
    network.config(
        &format!("max_sources = {fits}"),
        &format!("{ONE}{TWO_MORE}"),
    );
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(agent.json(&["status"])["sources"]["capacity"], fits);
    burst(&network, &[udp_from(7), udp_from(8)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (100, 10));
    assert_eq!((agent.process(), group.kills()), (process, 0));
}

/// The document of a reload that fails.
fn reload(network: &Network) -> Value {
    let output = network.command(&["reload", "--json"]);
    assert_eq!(
        output.status.code(),
        Some(1),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

fn a_start_that_exceeds_the_memory_of_the_cgroup_is_refused() {
    let (network, group) = (Network::new(), MemoryGroup::new());
    group.limit(128 * MIB);
    let config = network.config("max_sources = 8000000", ONE);
    let agent = network.spawn_in_group(group.path(), &config);
    let (said, status) = agent.end();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains("not enough memory") && said.contains("lower [agent] max_sources to"),
        "{said}"
    );
    assert!(
        !network.has_pins() && !network.has_program(),
        "nothing is left behind"
    );
    assert_eq!(group.kills(), 0);
    // One that is killed and started again goes on with its table, and needs no other.
    group.limit(512 * MIB);
    let agent = network.start_in_group(group.path(), &config);
    let _ = agent.stop(Signal::SIGKILL);
    group.limit((group.used() + 96 * MIB).next_multiple_of(MIB));
    let _agent = network.start_in_group(group.path(), &config);
}

fn a_restart_that_does_not_fit_puts_the_last_valid_config_in_effect() {
    let (network, group) = (Network::new(), MemoryGroup::new());
    group.limit(128 * MIB);
    network
        .start_in_group(group.path(), &network.config("max_sources = 2000", ONE))
        .stop(Signal::SIGTERM);
    let config = network.config("max_sources = 8000000", &ONE.replace("100", "5000"));
    let agent = network.start_in_group(group.path(), &config);
    let status = agent.json(&["status"]);
    assert_eq!(
        (
            &status["last_reload"]["ok"],
            &status["last_reload"]["cause"]
        ),
        (&false.into(), &"start".into())
    );
    assert!(
        status["last_reload"]["errors"]
            .to_string()
            .contains("not enough memory"),
        "{status}"
    );
    assert_eq!(
        (
            &agent.limit("packets")["burst"],
            &status["sources"]["capacity"]
        ),
        (&100.into(), &2000.into())
    );
    assert_eq!(group.kills(), 0);
}

fn a_restart_without_memory_for_a_database_leaves_it_out() {
    let (network, group) = (Network::new(), MemoryGroup::new());
    let database = network.state().with_file_name("country.mmdb");
    let networks = |count: u32| {
        let prefix = |nth: u32| format!("{}/32", std::net::Ipv4Addr::from(0x0b00_0000 + 2 * nth));
        let file = Mmdb::new(4, 24).with("10.77.0.0/28", country("XX"));
        (0..count)
            .fold(file, |file, nth| file.with(&prefix(nth), country("XX")))
            .bytes()
    };
    fs::write(&database, networks(10)).unwrap();
    let class = "[[class]]\nname = \"home\"\ncountry = [\"XX\"]\nmultiplier = 2\n";
    let text = format!("[geo]\ncountry = {database:?}\n{class}{ONE}");
    let config = network.config("max_sources = 2000", &text);
    network
        .start_in_group(group.path(), &config)
        .stop(Signal::SIGTERM);
    // The next edition of the database takes more memory than there is.
    fs::write(&database, networks(100_000)).unwrap();
    group.limit(112 * MIB);
    let agent = network.start_in_group(group.path(), &config);
    let status = agent.json(&["status"]);
    let notes = status["notes"].to_string();
    for part in [
        "country.mmdb could not be put in effect: not enough memory",
        "classes and limits have only their sources",
    ] {
        assert!(notes.contains(part), "{part}: {status}");
    }
    assert!(
        status["last_reload"].is_null(),
        "the config itself is in effect: {status}"
    );
    burst(&network, &[udp_from(7)], 300);
    assert_eq!(agent.counts("packets"), (100, 200));
    // A smaller one is put in effect without a reload.
    let next = database.with_file_name("next");
    fs::write(&next, networks(10)).unwrap();
    fs::rename(&next, &database).unwrap();
    agent.wait_for("the end of the note", |status| {
        !status["notes"].to_string().contains("country.mmdb")
    });
    assert_eq!(agent.json(&["show", "10.77.0.7"])["class"], "home");
    assert_eq!(group.kills(), 0);
}

fn a_restart_without_memory_for_raised_limits_does_not_raise_them() {
    let (network, group) = (Network::new(), MemoryGroup::new());
    let config = network.config("max_sources = 20000", ONE);
    let agent = network.start_in_group(group.path(), &config);
    network.told(&["allow", "10.77.0.7", "--for", "1h", "--times", "100"]);
    network.told(&["allow", "10.77.0.8", "--for", "1h"]);
    agent.stop(Signal::SIGTERM);
    // A log has a place for each unit of the largest multiple.
    let log = "[[limit]]\nname = \"packets\"\nrate = \"10/h\"\nalgorithm = \"sliding-log\"\n";
    network.config("max_sources = 20000", log);
    group.limit(112 * MIB);
    let agent = network.start_in_group(group.path(), &config);
    let status = agent.json(&["status"]);
    assert!(status["last_reload"].is_null(), "{status}");
    let allowed = crate::allowed::allowed(&agent);
    assert_eq!(allowed, ["10.77.0.8"]);
    burst(&network, &[udp_from(7)], 30);
    assert_eq!(agent.counts("packets"), (10, 20));
    assert_eq!(group.kills(), 0);
}

fn a_rollback_takes_no_more_memory_than_a_trial_was_granted() {
    let (network, group) = (Network::new(), MemoryGroup::new());
    let agent = network.start_in_group(group.path(), &network.config("max_sources = 100000", ONE));
    let own = network.folder.path().join("limits.toml");
    let tried = network.folder.path().join("tried.toml");
    let text = fs::read_to_string(own)
        .unwrap()
        .replace("max_sources = 100000", "max_sources = 2000000");
    fs::write(&tried, format!("{text}{TWO_MORE}")).unwrap();
    let tried = tried.to_str().unwrap();
    // Room for the new table, 155 MiB, and not for a copy of it when it is rolled back.
    group.limit((group.used() + 190 * MIB).next_multiple_of(MIB));
    let refused = network.command(&["try", tried, "--for", "1s"]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("not enough memory"),
        "{refused:?}"
    );
    group.limit((group.used() + 360 * MIB).next_multiple_of(MIB));
    network.told(&["try", tried, "--for", "1s"]);
    let status = agent.wait_for("the rollback", |status| status["trial"].is_null());
    assert_eq!(
        (
            &status["last_reload"]["cause"],
            &status["last_reload"]["ok"]
        ),
        (&"trial-ended".into(), &true.into())
    );
    assert_eq!(
        (&status["sources"]["capacity"], group.kills()),
        (&100_000.into(), 0)
    );
}

fn a_second_agent_with_the_same_state_directory_ends_and_names_the_first() {
    let network = Network::new();
    let agent: Agent<'_> = network.start("max_sources = 1000", ONE);
    network.add_link("weir1", "client1");
    // Sockets, pins and interfaces of its own, and the first one's state.
    let rival = network.rival("", ONE, &network.other_pins());
    let text = fs::read_to_string(&rival).unwrap();
    let state = network.state();
    let text = text
        .replace("rival-state", state.file_name().unwrap().to_str().unwrap())
        .replace("weir0", "weir1");
    fs::write(&rival, &text).unwrap();
    let output = network.run_to_end(&rival);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let process = format!("(process {})", agent.process());
    for part in [&process, state.to_str().unwrap(), "[agent] state_dir"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(
        agent.json(&["status"])["interfaces"][0]["state"],
        "attached"
    );
    // One that is killed leaves no lock behind.
    let _ = agent.stop(Signal::SIGKILL);
    let control = network.folder.path().join("rival.sock");
    let second = network.spawn_agent(&rival, &[]);
    let deadline = Instant::now() + Duration::from_secs(if is_virtual() { 120 } else { 60 });
    while std::os::unix::net::UnixStream::connect(&control).is_err() {
        assert!(Instant::now() < deadline, "the second agent did not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = second.stop(Signal::SIGTERM);
}
