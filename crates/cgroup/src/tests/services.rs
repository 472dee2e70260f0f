//! Tests with a service manager.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::made_up::{MadeUp, untouched};
use crate::account::Enforcement;
use crate::domain::Domains;
use crate::error::GroupsError;
use crate::groups::Groups;
use crate::host_paths::Host;
use crate::lock::Lock;
use crate::place::Manager;
use crate::round::cpu_time;
use crate::tree::Tree;
use crate::units::{INFINITY, Properties, Scope, Service, Units, Value};

#[derive(Default)]
pub struct Noted {
    properties: Mutex<BTreeMap<String, Properties>>,
    scopes: Mutex<Vec<String>>,
    service: Mutex<Service>,
    /// The files of properties that were set until the next boot.
    files: Mutex<BTreeMap<(String, String), String>>,
    /// The root of the cgroups, if properties are written to their files as well.
    root: Mutex<Option<PathBuf>>,
    /// Whether requests about properties wait in vain for a reply, and their count.
    pub is_silent: AtomicBool,
    pub waited: AtomicUsize,
    /// Whether the reply is that there is no such unit.
    pub has_no_unit: AtomicBool,
    /// Whether each change of properties fails.
    pub refuses: AtomicBool,
    /// The CPU time of each change.
    pub takes: Mutex<Duration>,
}

impl Units for Arc<Noted> {
    fn get(&self, unit: &str, names: &[&str]) -> Result<Properties, GroupsError> {
        if self.is_silent.load(Ordering::Relaxed) {
            self.waited.fetch_add(1, Ordering::Relaxed);
            return Err(GroupsError::Systemd {
                what: format!("reading the limits of {unit}"),
                reason: "no reply".to_owned(),
            });
        }
        if self.has_no_unit.load(Ordering::Relaxed) {
            return Err(GroupsError::Systemd {
                what: format!("reading the limits of {unit}"),
                reason: "not found (org.freedesktop.systemd1.NoSuchUnit)".to_owned(),
            });
        }
        let all = self.properties.lock().unwrap();
        let value = |name: &&str| {
            let value = all.get(unit).and_then(|unit| unit.get(*name)).cloned();
            ((*name).to_owned(), value.unwrap_or(Value::Number(INFINITY)))
        };
        Ok(names.iter().map(value).collect())
    }

    fn set(&self, unit: &str, properties: &Properties) -> Result<(), GroupsError> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(GroupsError::Systemd {
                what: format!("setting limits of {unit}"),
                reason: "no reason".to_owned(),
            });
        }
        let (start, takes) = (cpu_time(), *self.takes.lock().unwrap());
        while cpu_time() - start < takes {
            std::hint::spin_loop();
        }
        let files = properties
            .iter()
            .map(|(name, value)| ((unit.to_owned(), name.clone()), format!("{value:?}")));
        self.files.lock().unwrap().extend(files);
        self.load(unit, properties);
        Ok(())
    }

    fn runtime_files(&self, unit: &str, names: &[&str]) -> BTreeMap<String, String> {
        let files = self.files.lock().unwrap();
        let wanted = files
            .iter()
            .filter(|((one, name), _)| one == unit && names.contains(&name.as_str()));
        wanted
            .map(|((_, name), text)| (name.clone(), text.clone()))
            .collect()
    }

    fn forget(&self, unit: &str, names: &[&str]) {
        self.files
            .lock()
            .unwrap()
            .retain(|(one, name), _| one != unit || !names.contains(&name.as_str()));
    }

    fn scope(
        &self,
        scope: &Scope<'_>,
        pids: &[u32],
        properties: &Properties,
    ) -> Result<(), GroupsError> {
        self.set(scope.name, properties)?;
        let Scope {
            name,
            slice,
            part_of,
        } = scope;
        self.scopes
            .lock()
            .unwrap()
            .push(format!("{name} in {slice} with {part_of:?}: {pids:?}"));
        Ok(())
    }

    fn attach(&self, unit: &str, below: &str, pids: &[u32]) -> Result<(), GroupsError> {
        self.scopes
            .lock()
            .unwrap()
            .push(format!("back to {unit}{below}: {pids:?}"));
        Ok(())
    }

    fn stop(&self, unit: &str) -> Result<(), GroupsError> {
        self.scopes.lock().unwrap().push(format!("stopped {unit}"));
        Ok(())
    }

    fn service(&self, _unit: &str) -> Result<Service, GroupsError> {
        Ok(self.service.lock().unwrap().clone())
    }

    fn default_tasks(&self) -> Option<u64> {
        Some(4915)
    }

    fn is_gone(&self, _unit: &str) -> Result<bool, GroupsError> {
        Ok(self.has_no_unit.load(Ordering::Relaxed))
    }

    fn is_broken(&self) -> bool {
        self.waited.load(Ordering::Relaxed) > 0
    }
}

impl Noted {
    /// A manager that writes properties of services to their cgroups below `root`.
    pub fn writing(root: PathBuf) -> Arc<Self> {
        let noted = Arc::<Self>::default();
        *noted.root.lock().unwrap() = Some(root);
        noted
    }

    /// Properties have no effect on cgroups from now on.
    pub fn stop_writing(&self) {
        *self.root.lock().unwrap() = None;
    }

    /// Properties come into effect without a file of Weir's kind, as by `systemctl daemon-reload`.
    pub fn load(&self, unit: &str, properties: &Properties) {
        for (name, value) in properties {
            let file = match name.as_str() {
                "MemoryMax" => "memory.max",
                "TasksMax" => "pids.max",
                "CPUQuotaPerSecUSec" => "cpu.max",
                _ => continue,
            };
            let Some(root) = &*self.root.lock().unwrap() else {
                continue;
            };
            let text = match value {
                Value::Number(INFINITY) if file == "cpu.max" => "max 100000".to_owned(),
                Value::Number(INFINITY) => "max".to_owned(),
                Value::Number(quota) if file == "cpu.max" => format!("{} 100000", quota / 10),
                Value::Number(number) => number.to_string(),
                other => panic!("{other:?}"),
            };
            fs::write(root.join(format!("system.slice/{unit}/{file}")), text).unwrap();
        }
        self.properties
            .lock()
            .unwrap()
            .entry(unit.to_owned())
            .or_default()
            .extend(properties.clone());
    }

    /// The properties of a unit that are set until the next boot.
    pub fn files_of(&self, unit: &str) -> Vec<String> {
        let files = self.files.lock().unwrap();
        let of_unit = files.keys().filter(|(one, _)| one == unit);
        of_unit.map(|(_, name)| name.clone()).collect()
    }

    pub fn number(&self, unit: &str, name: &str) -> Option<u64> {
        match self.properties.lock().unwrap().get(unit)?.get(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }
}

/// A service of two processes, with the default limit on processes.
fn service(second: &str) -> MadeUp {
    let host = untouched();
    let path = "system.slice/job.service";
    host.process(60, "sh nightly", &format!("0::/{path}\n"));
    host.process(61, second, &format!("0::/{path}\n"));
    host.file(&format!("cg/{path}/cgroup.procs"), "60\n61\n");
    host.file(&format!("cg/{path}/pids.max"), "4915\n");
    host
}

pub const NIGHTLY: &str =
    "[[group]]\nname = \"batch\"\ncommand = \"*nightly*\"\nmemory = { max = \"2MiB\" }\n";

#[test]
fn a_unit_of_which_all_processes_match_is_limited_through_systemd() {
    let (host, units) = (service("sh nightly"), Arc::<Noted>::default());
    let mut groups = host.start_with(NIGHTLY, &units);
    assert_eq!(units.number("job.service", "MemoryMax"), Some(2 << 20));
    assert!(units.scopes.lock().unwrap().is_empty() && groups.queued.is_empty());
    let status = &groups.view().statuses()[0];
    assert_eq!(
        (
            status.members[0].kind.as_str(),
            status.members[0].name.as_str()
        ),
        ("unit", "job.service")
    );
    assert_eq!(
        (status.pids.as_slice(), status.enforcement),
        ([60, 61].as_slice(), Enforcement::Full)
    );
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number("job.service", "MemoryMax"), Some(INFINITY));
}

#[test]
fn workers_of_a_service_stay_or_move_into_a_scope_of_its_slice() {
    let (host, units) = (service("sh other"), Arc::<Noted>::default());
    let groups = host.start_with(NIGHTLY, &units);
    let status = &groups.view().statuses()[0];
    assert_eq!(status.enforcement, Enforcement::None);
    let stay = &status.not_enforced[0];
    assert!(
        stay.reason.contains("job.service with 1 processes"),
        "{}",
        stay.reason
    );
    drop(groups);
    *units.service.lock().unwrap() = Service {
        invocation: "1a2b".to_owned(),
        ..Service::default()
    };
    host.start_with(&format!("{NIGHTLY}move = true\n"), &units);
    let scope =
        "weir-batch.job.service.1a2b.scope in system.slice with Some(\"job.service\"): [60]";
    assert_eq!(*units.scopes.lock().unwrap(), [scope]);
    assert_eq!(
        units.number("weir-batch.job.service.1a2b.scope", "MemoryMax"),
        Some(2 << 20)
    );
    for (service, reason) in [
        (
            Service {
                main: 60,
                ..Service::default()
            },
            "is the main process of job.service",
        ),
        (
            Service {
                control: 60,
                ..Service::default()
            },
            "is the main process of job.service",
        ),
        (
            Service {
                is_starting: true,
                ..Service::default()
            },
            "belongs to job.service, which is starting",
        ),
    ] {
        units.scopes.lock().unwrap().clear();
        *units.service.lock().unwrap() = service;
        let groups = host.start_with(&format!("{NIGHTLY}move = \"force\"\n"), &units);
        assert!(units.scopes.lock().unwrap().is_empty());
        let stays = groups.view().statuses()[0].not_enforced.clone();
        assert!(stays[0].reason.contains(reason), "{}", stays[0].reason);
    }
    // Its workers outlive it, and so does their scope.
    *units.service.lock().unwrap() = Service {
        keeps_workers: true,
        ..Service::default()
    };
    host.start_with(&format!("{NIGHTLY}move = true\n"), &units);
    assert!(units.scopes.lock().unwrap()[0].ends_with("with None: [60]"));
    *units.service.lock().unwrap() = Service::default();
    // With its own limit, the service keeps its workers.
    units.scopes.lock().unwrap().clear();
    host.file("cg/system.slice/job.service/memory.max", "67108864\n");
    host.start_with(&format!("{NIGHTLY}move = true\n"), &units);
    assert!(units.scopes.lock().unwrap().is_empty());
    host.start_with(&format!("{NIGHTLY}move = \"force\"\n"), &units);
    assert_eq!(units.scopes.lock().unwrap().len(), 1);
}

#[test]
fn a_worker_of_a_service_that_has_just_restarted_does_not_move_into_the_scope_of_its_earlier_run() {
    let (host, units) = (service("sh other"), Arc::<Noted>::default());
    let run = |invocation: &str| Service {
        invocation: invocation.to_owned(),
        ..Service::default()
    };
    let said = || std::mem::take(&mut *units.scopes.lock().unwrap());
    let worker = |host: &MadeUp, pid: u32| {
        host.process(pid, "sh nightly", "0::/system.slice/job.service\n");
        common::group::Started {
            process: pid,
            parent: 0,
        }
    };
    *units.service.lock().unwrap() = run("1a2b");
    let mut groups = host.start_with(&format!("{NIGHTLY}move = true\n"), &units);
    assert_eq!(said().len(), 1);
    // The agent's cached state of the service is from before its restart.
    *units.service.lock().unwrap() = Service {
        is_starting: true,
        ..run("3c4d")
    };
    groups.started(&worker(&host, 62));
    groups.move_queued();
    assert_eq!(said(), [""; 0]);
    *units.service.lock().unwrap() = Service {
        main: 63,
        ..run("5e6f")
    };
    for pid in [63, 64] {
        groups.started(&worker(&host, pid));
    }
    groups.move_queued();
    assert_eq!(said(), [""; 0]);
    // In the next round it has the new state.
    groups.domains = Domains::default();
    groups.retry_starting();
    let scopes = said();
    assert!(
        scopes.len() == 1 && scopes[0].starts_with("weir-batch.job.service.5e6f.scope"),
        "{scopes:?}"
    );
    assert!(
        scopes[0].contains("62") && scopes[0].contains("64") && !scopes[0].contains("63"),
        "{scopes:?}"
    );
}

#[test]
fn a_named_unit_is_limited_before_it_starts_and_never_above_its_own_limit() {
    let (host, units) = (untouched(), Arc::<Noted>::default());
    let own = Properties::from([("MemoryMax".to_owned(), Value::Number(1 << 20))]);
    units.set("nightly.service", &own).unwrap();
    let text = "[[group]]\nname = \"g\"\nunit = \"nightly.service\"\nmemory = { max = \"2MiB\" }\npids = 7\n";
    let mut groups = host.start_with(text, &units);
    assert_eq!(units.number("nightly.service", "MemoryMax"), Some(1 << 20));
    assert_eq!(units.number("nightly.service", "TasksMax"), Some(7));
    assert_eq!(
        groups.view().statuses()[0].members[0].name,
        "nightly.service"
    );
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number("nightly.service", "TasksMax"), Some(INFINITY));
}

/// An operator runs `systemctl set-property` while Weir's limit is in effect.
#[test]
fn a_limit_that_an_operator_sets_on_a_unit_meanwhile_is_neither_raised_nor_taken_back() {
    const UNIT: &str = "[[group]]\nname = \"g\"\nunit = \"nightly.service\"\n";
    let memory = |bytes| Properties::from([("MemoryMax".to_owned(), Value::Number(bytes))]);
    let both = format!("{UNIT}memory = {{ max = \"2MiB\" }}\npids = 7\n");
    for operators in [1u64 << 20, 4 << 20] {
        let (host, units) = (untouched(), Arc::<Noted>::default());
        let now = || units.number("nightly.service", "MemoryMax").unwrap();
        drop(host.start_with(&both, &units));
        assert_eq!(now(), 2 << 20);
        units.set("nightly.service", &memory(operators)).unwrap();
        let groups = host.start_with(&both, &units);
        assert_eq!(
            now(),
            operators.min(2 << 20),
            "the lower of both holds for the next agent"
        );
        drop(groups);
        drop(host.start_with(&both, &units));
        assert_eq!(now(), operators.min(2 << 20));
        let mut groups = host.start_with(&format!("{UNIT}pids = 7\n"), &units);
        assert_eq!(
            now(),
            operators,
            "a config without this limit leaves the operator's"
        );
        assert!(groups.give_back().is_empty());
        assert_eq!(
            (now(), units.number("nightly.service", "TasksMax")),
            (operators, Some(INFINITY))
        );
        // Also at the end.
        let mut groups = host.start_with(&both, &units);
        units
            .set("nightly.service", &memory(operators / 4))
            .unwrap();
        assert!(groups.give_back().is_empty());
        assert_eq!(now(), operators / 4);
    }
}

#[test]
fn a_limit_that_an_operator_has_set_until_the_next_boot_is_kept() {
    const UNIT: &str = "nightly.service";
    let group = format!("[[group]]\nname = \"g\"\nunit = {UNIT:?}\n");
    let both = format!("{group}memory = {{ high = \"2MiB\", max = \"2MiB\" }}\npids = 7\n");
    let bytes = |name: &str, bytes| Properties::from([(name.to_owned(), Value::Number(bytes))]);
    // The file of the unit has one limit, and `set-property --runtime` another.
    for (operators, during) in [(4 << 20, 2 << 20), (1 << 20, 1 << 20)] {
        let (host, units) = (untouched(), Arc::<Noted>::default());
        units.set(UNIT, &bytes("MemoryHigh", operators)).unwrap();
        units.forget(UNIT, &["MemoryHigh"]);
        units.set(UNIT, &bytes("MemoryMax", operators)).unwrap();
        let now = || ["MemoryHigh", "MemoryMax"].map(|name| units.number(UNIT, name));
        let start = |text: &str| host.start_with(text, &units);
        drop(start(&both));
        let mut groups = start(&both);
        assert_eq!(now(), [Some(during); 2]);
        let is_higher = operators > during;
        let files = ["MemoryHigh", "MemoryMax", "TasksMax"];
        assert_eq!(units.files_of(UNIT), files[usize::from(!is_higher)..]);
        assert!(groups.give_back().is_empty());
        assert_eq!(now(), [Some(operators); 2]);
        assert_eq!(units.files_of(UNIT), ["MemoryMax"], "the end");
        drop(groups);
        drop(start(&both));
        let mut groups = start(&format!("{group}pids = 7\n"));
        assert_eq!(now(), [Some(operators); 2]);
        assert_eq!(
            units.files_of(UNIT),
            ["MemoryMax", "TasksMax"],
            "another config"
        );
        assert!(groups.give_back().is_empty());
        assert_eq!(units.files_of(UNIT), ["MemoryMax"]);
    }
}

#[test]
fn properties_that_an_older_version_saved_are_restored() {
    let (host, units) = (untouched(), Arc::<Noted>::default());
    host.file(
        "origins.limits.json",
        r#"{"nightly.service":{"Unit":{"TasksMax":33}}}"#,
    );
    let text = "[[group]]\nname = \"g\"\nunit = \"nightly.service\"\npids = 7\n";
    let mut groups = host.start_with(text, &units);
    assert_eq!(units.number("nightly.service", "TasksMax"), Some(7));
    assert!(groups.give_back().is_empty());
    assert_eq!(units.number("nightly.service", "TasksMax"), Some(33));
}

#[test]
fn a_process_of_another_owners_cgroup_goes_back_through_systemd() {
    let (host, units) = (untouched(), Arc::<Noted>::default());
    let below = "app.slice/b.service";
    host.process(
        50,
        "sh nightly",
        &format!("0::/user.slice/user-7.slice/user@7.service/{below}\n"),
    );
    let file = format!("cg/user.slice/user-7.slice/user@7.service/{below}/cgroup.procs");
    host.process(
        51,
        "sh other",
        &format!("0::/user.slice/user-7.slice/user@7.service/{below}\n"),
    );
    host.file(&file, "50\n51\n");
    let groups = host.start_with(&format!("{NIGHTLY}move = \"force\"\n"), &units);
    // Not writable, because it is a directory.
    fs::remove_file(host.path(&file)).unwrap();
    fs::create_dir(host.path(&file)).unwrap();
    units.scopes.lock().unwrap().clear();
    groups.send_home(50).unwrap();
    assert_eq!(
        *units.scopes.lock().unwrap(),
        ["back to user@7.service/app.slice/b.service: [50]"]
    );
}

#[test]
fn processes_of_a_services_earlier_run_end_with_it() {
    let (host, units) = (untouched(), Arc::<Noted>::default());
    let run = |invocation: &str| Service {
        invocation: invocation.to_owned(),
        ..Service::default()
    };
    host.file(
        "cg/system.slice/weir-batch.job\\x40a.service.1a2b.scope/pids.max",
        "max\n",
    );
    *units.service.lock().unwrap() = run("1a2b");
    let mut groups = host.start_with(NIGHTLY, &units);
    let stopped = |groups: &mut Groups| {
        groups.domains = Domains::default();
        groups.tick(Duration::from_millis(1));
        std::mem::take(&mut *units.scopes.lock().unwrap())
    };
    assert_eq!(stopped(&mut groups), [""; 0]);
    *units.service.lock().unwrap() = Service {
        keeps_workers: true,
        ..run("3c4d")
    };
    assert_eq!(stopped(&mut groups), [""; 0]);
    *units.service.lock().unwrap() = run("3c4d");
    assert_eq!(
        stopped(&mut groups),
        ["stopped weir-batch.job\\x40a.service.1a2b.scope"]
    );
    *units.service.lock().unwrap() = Service {
        has_ended: true,
        ..run("1a2b")
    };
    assert_eq!(stopped(&mut groups).len(), 1);
}

#[test]
fn two_agents_under_systemd_do_not_share_a_parent() {
    let host = untouched();
    let tree = Tree::detect(&host.path("proc"), "weir").unwrap();
    let systemd = Host {
        manager: Manager::Systemd,
        ..host.host()
    };
    let first = Lock::take(&tree, &systemd).unwrap();
    assert!(matches!(
        Lock::take(&tree, &systemd),
        Err(GroupsError::Locked { .. })
    ));
    assert!(
        !host.path("cg/weir").exists(),
        "systemd's tree has a cgroup that it does not know"
    );
    drop(first);
    Lock::take(&tree, &systemd).unwrap();
}

#[test]
fn a_process_in_a_cgroup_whose_name_is_not_utf_8_is_in_its_unit() {
    let (host, units) = (untouched(), Arc::<Noted>::default());
    host.process(50, "sh nightly", "");
    fs::write(
        host.path("proc/50/cgroup"),
        b"0::/user.slice/user-7.slice/user@7.service/\xff\n",
    )
    .unwrap();
    host.process(
        51,
        "sh other",
        "0::/user.slice/user-7.slice/user@7.service/app.slice\n",
    );
    host.file(
        "cg/user.slice/user-7.slice/user@7.service/cgroup.procs",
        "50\n51\n",
    );
    let groups = host.start_with(NIGHTLY, &units);
    assert_eq!(
        *units.scopes.lock().unwrap(),
        [""; 0],
        "nobody is moved out of the unit"
    );
    let status = &groups.view().statuses()[0];
    assert_eq!(status.not_enforced[0].pids, [50], "{status:?}");
}
