//! `[[group]]`.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use super::group_resources::texts;
use super::names;
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Value, read_inner};

pub use super::group_resources::{
    ByteRate, BytesPerSecond, Cpu, CpuList, CpuShare, Io, Memory, Network, OperationsPerSecond,
    Size,
};

/// The largest number of a process, and so of processes.
const MOST_PIDS: f64 = 4_194_304.0;
const NOT_USED: &str = "not used";
const NO_LIMIT: &str = "no limit";

/// Limits on the processes that match, enforced through cgroups. A process belongs to the first group that matches it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Table)]
#[table(heading = "[[group]]", since = "0.1.0", check = check_group)]
#[table(
    example = "[[group]]\nname = \"batch\"\nmatch = [{ exe = \"/usr/bin/ffmpeg\" }, { user = \"batch\" }]\n\
                   cpu = { max = \"150%\", weight = 50 }\npids = 200\n"
)]
pub struct Group {
    /// Unique name: at most 64 letters, digits, dashes and underscores.
    #[key(examples = ["batch"], check = check_name)]
    pub name: String,
    /// Conditions; a process, unit or container that meets any of them is a member.
    #[key(name = "match", absent = "the conditions in the group itself")]
    pub matches: Vec<Matcher>,
    #[key(flatten)]
    pub conditions: Conditions,
    /// Whether processes are moved out of units and containers that do not match as a whole: `true` if that lifts no
    /// restriction, `"force"` wherever it is possible.
    #[key(name = "move", default = Moving::Never, examples = ["force"])]
    pub moving: Moving,
    /// CPU time.
    #[key(absent = NO_LIMIT)]
    pub cpu: Cpu,
    /// Memory.
    #[key(absent = NO_LIMIT)]
    pub memory: Memory,
    /// Disks.
    #[key(default = Vec::new())]
    pub io: Vec<Io>,
    /// The most processes and threads that the group has.
    #[key(absent = NO_LIMIT, range = (1.0, MOST_PIDS))]
    pub pids: Option<u64>,
    /// CPUs that the group runs on: numbers and ranges.
    #[key(absent = "all", examples = ["0-1,4"])]
    pub cpus: Option<CpuList>,
    /// Network traffic of the group's sockets.
    #[key(absent = NO_LIMIT)]
    pub network: Network,
}

/// Conditions for membership.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0")]
pub struct Conditions {
    /// Path of the executable.
    #[key(absent = NOT_USED, examples = ["/usr/bin/ffmpeg"])]
    pub exe: Option<PathBuf>,
    /// Name or number of the user.
    #[key(absent = NOT_USED, examples = ["batch", "1000"], check = check_pattern)]
    pub user: Option<String>,
    /// Pattern for the command line.
    #[key(absent = NOT_USED, examples = ["*encode*"], check = check_pattern)]
    pub command: Option<String>,
    /// Unit of systemd, limited in place.
    #[key(absent = NOT_USED, examples = ["nightly.service"], check = check_pattern)]
    pub unit: Option<String>,
    /// Slice of systemd, limited in place as a whole.
    #[key(absent = NOT_USED, examples = ["machine.slice"], check = check_pattern)]
    pub slice: Option<String>,
    /// Container by name, id, label or pod, limited in place.
    #[key(absent = NOT_USED, examples = ["web*", "com.example.app=shop"], check = check_pattern)]
    pub container: Option<String>,
    /// Pattern for the path of a cgroup, limited in place.
    #[key(absent = NOT_USED, examples = ["/user.slice/*"], check = check_pattern)]
    pub cgroup: Option<String>,
    /// Number of a process.
    #[key(absent = NOT_USED, range = (2.0, MOST_PIDS))]
    pub pid: Option<u32>,
}

impl Conditions {
    fn matchers(&self) -> Vec<Matcher> {
        let exe = self.exe.clone().map(Matcher::Exe);
        let texts = [
            self.user.clone().map(Matcher::User),
            self.command.clone().map(Matcher::Command),
            self.unit.clone().map(Matcher::Unit),
            self.slice.clone().map(Matcher::Slice),
            self.container.clone().map(Matcher::Container),
            self.cgroup.clone().map(Matcher::Cgroup),
        ];
        let pid = self.pid.map(Matcher::Pid);
        let all = exe.into_iter().chain(texts.into_iter().flatten());
        all.chain(pid).collect()
    }
}

/// A condition for membership.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matcher {
    /// The executable's absolute path.
    Exe(PathBuf),
    /// The name or ID of the process's user.
    User(String),
    /// A glob over the arguments, joined by spaces.
    Command(String),
    /// A glob over the names of systemd units.
    Unit(String),
    /// A glob over the names of systemd slices.
    Slice(String),
    /// A glob over the names and ids of containers and pods, or over their labels as `key=value`.
    Container(String),
    /// A glob over the path of the process's cgroup, in any hierarchy.
    Cgroup(String),
    /// A process ID.
    Pid(u32),
}

impl fmt::Display for Matcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exe(path) => write!(formatter, "exe {}", path.display()),
            Self::User(user) => write!(formatter, "user {user}"),
            Self::Command(glob) => write!(formatter, "command {glob}"),
            Self::Unit(unit) => write!(formatter, "unit {unit}"),
            Self::Slice(slice) => write!(formatter, "slice {slice}"),
            Self::Container(glob) => write!(formatter, "container {glob}"),
            Self::Cgroup(glob) => write!(formatter, "cgroup {glob}"),
            Self::Pid(pid) => write!(formatter, "pid {pid}"),
        }
    }
}

impl Value for Matcher {
    const KIND: Kind = Kind::OneKey(Conditions::REFERENCE.keys);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let Some(content) = at.get_ref().as_table() else {
            let help = format!("write tables of one key each: {}", key.example());
            key.not_a(at, help, problems);
            return None;
        };
        let mut found = read_inner::<Conditions>(at, key, problems)?
            .table
            .matchers();
        if found.len() > 1 {
            let message = format!("several conditions in one table of {}", key.name);
            let help =
                "write each as a table of its own; a process that meets any of them is a member";
            problems.error(at.span(), message, help);
            return None;
        }
        if content.is_empty() {
            let message = format!("empty condition in {}", key.name);
            problems.error(at.span(), message, format!("write {}", key.example()));
        }
        found.pop()
    }

    fn write(&self) -> Option<toml::Value> {
        None
    }

    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Whether matching processes are moved out of their units and containers: `move`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moving {
    /// They stay.
    #[default]
    Never,
    /// They are moved if no restriction is lifted by it.
    Unrestricted,
    /// They are always moved.
    Force,
}

impl Value for Moving {
    const KIND: Kind = Kind::Either(&[Kind::Boolean, Kind::Text(&[])]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        const HELP: &str = "write true, false or \"force\"";
        match (at.get_ref().as_bool(), at.get_ref().as_str()) {
            (Some(false), _) => Some(Self::Never),
            (Some(true), _) => Some(Self::Unrestricted),
            (None, Some("force")) => Some(Self::Force),
            (None, Some(text)) => {
                let message = format!("invalid {} {text:?}", key.name);
                problems.error(at.span(), message, HELP);
                None
            }
            (None, None) => {
                key.not_a(at, HELP.to_owned(), problems);
                None
            }
        }
    }

    fn write(&self) -> Option<toml::Value> {
        Some(match self {
            Self::Never => false.into(),
            Self::Unrestricted => true.into(),
            Self::Force => "force".into(),
        })
    }

    fn shown(&self) -> String {
        match self {
            Self::Never => "false".to_owned(),
            Self::Unrestricted => "true".to_owned(),
            Self::Force => "force".to_owned(),
        }
    }
}

impl Group {
    /// Conditions, at least one; a process that meets any of them is a member.
    #[must_use]
    pub fn matchers(&self) -> Vec<Matcher> {
        let mut all = self.conditions.matchers();
        all.extend_from_slice(&self.matches);
        all
    }

    /// The same conditions without any limit.
    #[must_use]
    pub fn without_limits(&self) -> Self {
        Self {
            name: self.name.clone(),
            matches: self.matches.clone(),
            conditions: self.conditions.clone(),
            moving: self.moving,
            ..Self::default()
        }
    }

    /// Its limits, each as text.
    #[must_use]
    pub fn limit_texts(&self) -> Vec<String> {
        let cpus = self.cpus.as_ref().map(ToString::to_string);
        let pids = self.pids.map(|pids| pids.to_string());
        let mut all = self.cpu.texts();
        all.extend(texts([("cpus", cpus)]));
        all.extend(self.memory.texts());
        all.extend(self.io.iter().flat_map(Io::texts));
        all.extend(texts([("processes", pids)]));
        all.extend(self.network.texts());
        all
    }

    /// The summary without the name: `exe /usr/bin/ffmpeg: cpu 150%, memory 1.5 GiB`.
    #[must_use]
    pub fn summary(&self) -> String {
        let matchers: Vec<String> = self.matchers().iter().map(ToString::to_string).collect();
        format!(
            "{}: {}",
            matchers.join(" or "),
            self.limit_texts().join(", ")
        )
    }
}

fn check_group(read: &Located<'_, Group>, problems: &mut Problems) {
    check_disks(read, problems);
    if let Some(list) = read.find(&Group::MATCH) {
        if list
            .get_ref()
            .as_array()
            .is_some_and(|list| list.is_empty())
        {
            let help = format!("write {}", Group::MATCH.example());
            let message = "match is empty, so that nothing would be limited";
            problems.error(list.span(), message, help);
        }
    } else if !Conditions::REFERENCE.keys.iter().any(|key| read.has(key)) {
        let help = format!("add {}", Group::MATCH.example());
        problems.error(read.span(), "missing key \"match\" in [[group]]", help);
    }
    if read.table.limit_texts().is_empty() {
        let help = "add cpu, memory, io, pids, cpus or network; without a limit its processes are only counted";
        problems.warning(read.span_of(&Group::NAME), "this group has no limit", help);
    }
}

/// Checks that each disk is there once.
fn check_disks(read: &Located<'_, Group>, problems: &mut Problems) {
    let disks = read.tables::<Io>(&Group::IO);
    for (nth, disk) in disks.iter().enumerate() {
        let device = &disk.table.device;
        if disks[..nth]
            .iter()
            .any(|other| other.table.device == *device)
        {
            let message = format!("duplicate device {:?}", device.display().to_string());
            let help = "write all of its limits in one table";
            problems.conflict(disk.span_of(&Io::DEVICE), message, help);
        }
    }
}

/// Reports duplicate names: both groups would use one cgroup.
pub fn check(groups: &[Located<'_, Group>], problems: &mut Problems) {
    let mut names = HashMap::new();
    for read in groups {
        if names.insert(&read.table.name, ()).is_some() {
            let message = format!("duplicate group name {:?}", read.table.name);
            let help = "give one of them another name: the cgroup has it too";
            problems.conflict(read.span_of(&Group::NAME), message, help);
        }
    }
}

fn check_name(text: &str, key: &Key) -> Result<(), Wrong> {
    names::check(text, "group", key)?;
    // It is part of file names in bpffs.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !text.chars().all(is_plain) {
        let help = "write at most 64 letters, digits, dashes and underscores";
        return Err(Wrong::new(format!("invalid group name {text:?}"), help));
    }
    Ok(())
}

fn check_pattern(text: &str, key: &Key) -> Result<(), Wrong> {
    let example = key.example();
    let help = match key.name {
        "slice" if !text.ends_with(".slice") => {
            format!("a slice's name ends with .slice: write {example}")
        }
        "cgroup" if !text.starts_with(['/', '*']) => {
            format!("a cgroup's path begins with /: write {example}")
        }
        _ if text.is_empty() => format!("write a name, or a pattern with * and ?: {example}"),
        _ => return Ok(()),
    };
    let message = format!("invalid {} {text:?}: it matches nothing", key.name);
    Err(Wrong::new(message, help))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::parse;

    /// A limits.toml of one group with these lines.
    fn group(lines: &str) -> String {
        format!("[[group]]\nname = \"a\"\nmatch = [{{ pid = 7 }}]\n{lines}\n")
    }

    #[test]
    fn a_whole_group_is_read() {
        let text = group(
            "cpu = { max = \"150%\", weight = 50, elastic = true }\n\
             memory = { high = \"1GiB\", max = \"1536MiB\", swap_max = \"0B\" }\n\
             io = [{ device = \"/dev/vda\", read = \"50MB/s\", write_ops = \"500/s\" }]\n\
             pids = 200\ncpus = \"0-1, 3\"\nnetwork = { egress = \"100Mbit/s\" }",
        );
        let config = parse(Path::new("limits.toml"), &text).unwrap().config;
        let [group] = config.groups.as_slice() else {
            panic!("{config:?}")
        };
        assert_eq!(group.matchers(), [Matcher::Pid(7)]);
        assert_eq!(group.cpu.max.unwrap().quota_microseconds(), 150_000);
        assert_eq!((group.cpu.weight, group.cpu.elastic), (Some(50), true));
        let memory = &group.memory;
        assert_eq!(
            [memory.high, memory.max, memory.swap_max],
            [1 << 30, 1536 << 20, 0].map(|bytes| Some(Size(bytes)))
        );
        let rates = [Some(50_000_000), None, None, Some(500)];
        assert_eq!(group.io[0].rates(), rates);
        assert_eq!(
            (group.pids, group.cpus.as_ref().unwrap().to_string()),
            (Some(200), "0-1,3".to_owned())
        );
        let egress = group.network.egress.unwrap().0;
        assert_eq!(
            u128::from(egress.count) * 1_000_000_000,
            12_500_000 * u128::from(egress.per_nanoseconds)
        );
    }

    #[test]
    fn conditions_stand_in_match_or_in_the_group_itself() {
        for (line, expected) in [
            (
                "container = \"web*\"",
                vec![Matcher::Container("web*".to_owned())],
            ),
            (
                "unit = \"a.service\"",
                vec![Matcher::Unit("a.service".to_owned())],
            ),
            (
                "slice = \"machine.slice\"\nmatch = [{ container = \"app=web\" }]",
                vec![
                    Matcher::Slice("machine.slice".to_owned()),
                    Matcher::Container("app=web".to_owned()),
                ],
            ),
        ] {
            let text = format!("[[group]]\nname = \"a\"\npids = 5\n{line}\n");
            let config = parse(Path::new("limits.toml"), &text).unwrap().config;
            assert_eq!(config.groups[0].matchers(), expected, "{line}");
        }
        for (word, expected) in [
            ("false", Moving::Never),
            ("true", Moving::Unrestricted),
            ("\"force\"", Moving::Force),
        ] {
            let config = parse(
                Path::new("limits.toml"),
                &group(&format!("pids = 5\nmove = {word}")),
            )
            .unwrap()
            .config;
            assert_eq!(config.groups[0].moving, expected);
        }
    }

    #[test]
    fn errors_of_a_group_have_their_position_and_a_fix() {
        for (text, line, message, help) in [
            (
                "[[group]]\nmatch = [{ pid = 7 }]\npids = 5".to_owned(),
                1,
                "missing key \"name\"",
                "name = \"batch\"",
            ),
            (
                "[[group]]\nname = \"a\"\npids = 5".to_owned(),
                1,
                "missing key \"match\"",
                "ffmpeg",
            ),
            (group("move = \"yes\""), 4, "invalid move", "\"force\""),
            (group("move = 1"), 4, "move is an integer", "\"force\""),
            (group("slice = \"machine\""), 4, "matches nothing", ".slice"),
            (
                group("cgroup = \"user.slice\""),
                4,
                "matches nothing",
                "begins with /",
            ),
            (group("container = \"\""), 4, "matches nothing", "pattern"),
            (
                "[[group]]\nname = \"a/b\"\nmatch = [{ pid = 7 }]".to_owned(),
                2,
                "invalid group name \"a/b\"",
                "letters",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = []".to_owned(),
                3,
                "match is empty",
                "ffmpeg",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = [{}]".to_owned(),
                3,
                "empty condition",
                "ffmpeg",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = [{ exe = \"a\" }]".to_owned(),
                3,
                "absolute path",
                "begin it with /",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = [{ pid = 7, user = \"b\" }]".to_owned(),
                3,
                "several conditions",
                "table of its own",
            ),
            (
                format!("{}{}", group("pids = 5"), group("pids = 5")),
                6,
                "duplicate group name \"a\"",
                "another name",
            ),
            (
                group("cpu = { max = 150 }"),
                4,
                "max is an integer",
                "\"150%\"",
            ),
            (
                group("cpu = { max = \"0%\" }"),
                4,
                "invalid share of CPU time",
                "at least 1",
            ),
            (
                group("cpu = { elastic = true }"),
                4,
                "elastic requires max",
                "add max",
            ),
            (
                group("cpu = { maximum = \"5%\" }"),
                4,
                "unknown key \"maximum\" in cpu",
                "write one of",
            ),
            (
                group("memory = { max = 5 }"),
                4,
                "requires a unit",
                "512MiB",
            ),
            (
                group("memory = { max = \"0B\" }"),
                4,
                "leaves no memory",
                "512MiB",
            ),
            (
                group("memory = { high = \"2GiB\", max = \"1GiB\" }"),
                4,
                "high is above max",
                "below max",
            ),
            (
                group("io = [{ device = \"vda\", read = \"1MB/s\" }]"),
                4,
                "absolute path",
                "begin it with /",
            ),
            (
                group("io = [{ device = \"/dev/vda\" }]"),
                4,
                "missing limit",
                "read = \"50MB/s\"",
            ),
            (
                group("io = [{ device = \"/dev/vda\", read = \"50/s\" }]"),
                4,
                "requires a unit",
                "50kB/s",
            ),
            (
                group("io = [{ device = \"/dev/vda\", read_ops = \"1/h\" }]"),
                4,
                "below 1 per second",
                "500/s",
            ),
            (group("pids = 0"), 4, "out of range", "from 1"),
            (group("cpus = \"1-0\""), 4, "invalid CPU list", "0-1,4"),
            (
                group("network = { egress = \"0Mbit/s\" }"),
                4,
                "rate of 0",
                "above 0",
            ),
        ] {
            let report = parse(Path::new("limits.toml"), &text).unwrap_err();
            let found = report.errors.iter().any(|error| {
                error.line == line && error.message.contains(message) && error.help.contains(help)
            });
            assert!(found, "{text}\n{report}");
        }
    }
}
