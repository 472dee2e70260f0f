//! systemd over D-Bus: properties of units, and transient scopes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use zbus::blocking::{Connection, Proxy, connection};
use zbus::zvariant::{OwnedObjectPath, OwnedValue, Value as Variant};

use super::error::GroupsError;
use super::threads;
use super::units::{Properties, Scope, Service, Units, Value};

/// The directories of runtime properties, for units with and without a file.
const DROP_INS: [&str; 2] = ["/run/systemd/system.control", "/run/systemd/transient"];
const NAME: &str = "org.freedesktop.systemd1";
const PATH: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const PATIENCE: Duration = Duration::from_secs(5);

/// systemd over D-Bus.
pub struct Systemd {
    connection: Connection,
    is_broken: AtomicBool,
}

fn failed(what: &str, error: &zbus::Error) -> GroupsError {
    let reason = match error {
        zbus::Error::MethodError(name, text, _) => {
            format!(
                "{} ({})",
                text.as_deref().unwrap_or("no reason"),
                name.as_str()
            )
        }
        other => other.to_string(),
    };
    GroupsError::Systemd {
        what: what.to_owned(),
        reason,
    }
}

fn moving(unit: &str) -> String {
    format!("moving processes into {unit}")
}

impl Systemd {
    /// Connects on a separate thread: while the bus starts, its socket accepts connections but nothing replies.
    /// systemd's private socket exists earlier, but zbus rejects the sender in its messages as malformed.
    #[must_use]
    pub fn connect() -> Receiver<Result<Self, GroupsError>> {
        let (sender, receiver) = channel();
        let refused = sender.clone();
        let started = threads::start("groups-bus", move || {
            let connected = connection::Builder::system()
                .and_then(|builder| builder.method_timeout(PATIENCE).build());
            let connected = connected.map(|connection| Self {
                connection,
                is_broken: AtomicBool::new(false),
            });
            // Fails if the groups have ended.
            let _ = sender.send(connected.map_err(|error| failed("connecting", &error)));
        });
        if let Err(problem) = started {
            let _ = refused.send(Err(GroupsError::Systemd {
                what: "connecting".to_owned(),
                reason: problem.to_string(),
            }));
        }
        receiver
    }

    fn fail(&self, what: &str, error: &zbus::Error) -> GroupsError {
        self.learn(error);
        failed(what, error)
    }

    /// Records that the connection has failed; a timeout is such an error as well.
    fn learn(&self, error: &zbus::Error) {
        if matches!(error, zbus::Error::InputOutput(_)) {
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    fn proxy<'a>(&'a self, path: &'a str, interface: &'a str) -> Result<Proxy<'a>, zbus::Error> {
        // Each further request would wait for a manager that does not reply.
        if self.is_broken() {
            return Err(zbus::Error::Failure("it does not reply".to_owned()));
        }
        zbus::blocking::proxy::Builder::new(&self.connection)
            .destination(NAME)?
            .path(path)?
            .interface(interface)?
            .cache_properties(zbus::proxy::CacheProperties::No)
            .build()
    }

    fn manager(&self) -> Result<Proxy<'_>, zbus::Error> {
        self.proxy(PATH, MANAGER)
    }

    fn read(&self, unit: &str, names: &[&str]) -> Result<Properties, zbus::Error> {
        let path: OwnedObjectPath = self.manager()?.call("LoadUnit", &(unit,))?;
        let interface = match unit.rsplit_once('.').map(|(_, kind)| kind) {
            Some("slice") => "org.freedesktop.systemd1.Slice",
            Some("scope") => "org.freedesktop.systemd1.Scope",
            Some("socket") => "org.freedesktop.systemd1.Socket",
            Some("mount") => "org.freedesktop.systemd1.Mount",
            Some("swap") => "org.freedesktop.systemd1.Swap",
            _ => "org.freedesktop.systemd1.Service",
        };
        let proxy = self.proxy(path.as_str(), interface)?;
        let mut properties = Properties::new();
        for name in names {
            let value: OwnedValue = proxy.get_property(name)?;
            properties.extend(value_of(value).map(|value| ((*name).to_owned(), value)));
        }
        Ok(properties)
    }

    fn read_service(&self, unit: &str) -> Result<Service, zbus::Error> {
        let path: OwnedObjectPath = self.manager()?.call("LoadUnit", &(unit,))?;
        let unit = self.proxy(path.as_str(), "org.freedesktop.systemd1.Unit")?;
        let state: String = unit.get_property("ActiveState")?;
        let invocation: Vec<u8> = unit.get_property("InvocationID")?;
        let proxy = self.proxy(path.as_str(), "org.freedesktop.systemd1.Service")?;
        let kill: String = proxy.get_property("KillMode")?;
        Ok(Service {
            main: proxy.get_property("MainPID")?,
            control: proxy.get_property("ControlPID")?,
            // A oneshot service is "activating" as long as it runs.
            invocation: invocation
                .iter()
                .take(4)
                .map(|byte| format!("{byte:02x}"))
                .collect(),
            has_ended: state == "inactive" || state == "failed",
            is_starting: state == "activating"
                && proxy.get_property::<String>("Type")? != "oneshot",
            keeps_workers: kill == "process" || kill == "none",
        })
    }

    fn is_active(&self, scope: &str) -> bool {
        let path = self
            .manager()
            .and_then(|manager| manager.call::<_, _, OwnedObjectPath>("GetUnit", &(scope,)));
        let state = path.and_then(|path| {
            self.proxy(path.as_str(), "org.freedesktop.systemd1.Unit")?
                .get_property::<String>("ActiveState")
        });
        let state = state.inspect_err(|error| self.learn(error));
        state.is_ok_and(|state| state == "active" || state == "activating")
    }
}

fn value_of(value: OwnedValue) -> Option<Value> {
    match &*value {
        Variant::U64(number) => Some(Value::Number(*number)),
        Variant::Array(array) if array.signature() == "ay" => {
            Some(Value::Cpus(value.try_into().ok()?))
        }
        Variant::Array(_) => Some(Value::Devices(value.try_into().ok()?)),
        _ => None,
    }
}

fn variants(properties: &Properties) -> Vec<(&str, Variant<'_>)> {
    let variant = |value: &Value| match value {
        Value::Number(number) => Variant::from(*number),
        Value::Cpus(bits) => Variant::from(bits.clone()),
        Value::Devices(devices) => Variant::from(devices.clone()),
    };
    properties
        .iter()
        .map(|(name, value)| (name.as_str(), variant(value)))
        .collect()
}

impl Units for Systemd {
    fn get(&self, unit: &str, names: &[&str]) -> Result<Properties, GroupsError> {
        self.read(unit, names)
            .map_err(|error| self.fail(&format!("reading the limits of {unit}"), &error))
    }

    fn set(&self, unit: &str, properties: &Properties) -> Result<(), GroupsError> {
        // Until the next boot: a unit's own file belongs to its operator.
        let runtime = true;
        let set = self.manager().and_then(|manager| {
            manager.call::<_, _, ()>("SetUnitProperties", &(unit, runtime, variants(properties)))
        });
        set.map_err(|error| self.fail(&format!("setting limits of {unit}"), &error))
    }

    fn runtime_files(&self, unit: &str, names: &[&str]) -> BTreeMap<String, String> {
        let read = |name: &&str| {
            let mut files = drop_ins(unit).map(|folder| folder.join(file(name)));
            let text = files.find_map(|file| std::fs::read_to_string(file).ok())?;
            Some(((*name).to_owned(), text))
        };
        names.iter().filter_map(read).collect()
    }

    fn forget(&self, unit: &str, names: &[&str]) {
        for folder in drop_ins(unit) {
            for name in names {
                // If it cannot be removed, the unit's previous value is in it.
                let _ = std::fs::remove_file(folder.join(file(name)));
            }
            // It fails if other properties are set.
            let _ = std::fs::remove_dir(folder);
        }
    }

    fn scope(
        &self,
        scope: &Scope<'_>,
        pids: &[u32],
        properties: &Properties,
    ) -> Result<(), GroupsError> {
        let Scope {
            name,
            slice,
            part_of,
        } = *scope;
        if self.is_active(name) {
            return self.attach(name, "", pids);
        }
        let fail = |error: zbus::Error| self.fail(&moving(name), &error);
        let manager = self.manager().map_err(fail)?;
        let mut all = variants(properties);
        all.push(("Description", Variant::from("Weir: processes of a group")));
        all.push(("Slice", Variant::from(slice)));
        all.push(("PIDs", Variant::from(pids.to_vec())));
        // Only a delegated unit accepts more processes. Without controllers, which would be enabled for all units of
        // the slice.
        all.push(("DelegateControllers", Variant::from(Vec::<String>::new())));
        all.push(("CollectMode", Variant::from("inactive-or-failed")));
        all.extend(part_of.map(|unit| ("PartOf", Variant::from(vec![unit.to_owned()]))));
        let auxiliary: Vec<(&str, Vec<(&str, Variant<'_>)>)> = Vec::new();
        let _job: OwnedObjectPath = manager
            .call("StartTransientUnit", &(name, "fail", all, auxiliary))
            .map_err(fail)?;
        Ok(())
    }

    fn attach(&self, unit: &str, below: &str, pids: &[u32]) -> Result<(), GroupsError> {
        let attached = self
            .manager()
            .and_then(|manager| manager.call("AttachProcessesToUnit", &(unit, below, pids)));
        attached.map_err(|error| self.fail(&moving(unit), &error))
    }

    fn stop(&self, unit: &str) -> Result<(), GroupsError> {
        let stopped = self.manager().and_then(|manager| {
            manager.call::<_, _, OwnedObjectPath>("StopUnit", &(unit, "replace"))
        });
        stopped
            .map(drop)
            .map_err(|error| self.fail(&format!("stopping {unit}"), &error))
    }

    fn service(&self, unit: &str) -> Result<Service, GroupsError> {
        if !unit.ends_with(".service") {
            return Ok(Service::default());
        }
        self.read_service(unit)
            .map_err(|error| self.fail(&format!("reading the state of {unit}"), &error))
    }

    fn is_gone(&self, unit: &str) -> Result<bool, GroupsError> {
        let state = self.manager().and_then(|manager| {
            let path: OwnedObjectPath = manager.call("LoadUnit", &(unit,))?;
            self.proxy(path.as_str(), "org.freedesktop.systemd1.Unit")?
                .get_property::<String>("LoadState")
        });
        state
            .map(|state| state == "not-found")
            .map_err(|error| self.fail(&format!("reading the state of {unit}"), &error))
    }

    fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    fn default_tasks(&self) -> Option<u64> {
        let limit = self
            .manager()
            .and_then(|manager| manager.get_property("DefaultTasksMax"));
        limit.inspect_err(|error| self.learn(error)).ok()
    }
}

/// The directories of a unit's runtime properties.
fn drop_ins(unit: &str) -> impl Iterator<Item = PathBuf> {
    DROP_INS
        .map(|folder| Path::new(folder).join(format!("{unit}.d")))
        .into_iter()
}

/// The file of a runtime property.
fn file(property: &str) -> String {
    format!("50-{}.conf", file_name(property))
}

/// The property's name in a unit's file, where it differs.
fn file_name(property: &str) -> &str {
    match property {
        "CPUQuotaPerSecUSec" => "CPUQuota",
        "CPUQuotaPeriodUSec" => "CPUQuotaPeriodSec",
        other => other,
    }
}
