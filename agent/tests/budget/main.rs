//! Budgets of a packet's program: instructions, machine code and stack, for policies that stand for all. A change
//! that makes packets dearer has to say so in `budget.toml`, where whoever reviews it sees it.
//!
//! The figures are of the program as the kernel keeps it, without what the policy does not use. They depend on the
//! kernel: this is for the one that the benchmark runs on. `WEIR_BUDGET=write` writes what it found into the file.

mod code;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::packet::Direction;
use datapath::compile::compile;
use datapath::{Datapath, Entry, OBJECT, PinDirectory, is_kernel_too_old};
use libtest_mimic::Arguments;
use serde::Deserialize;
use testbed::test;
use testbed::trials::trial;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/budget.toml");

const ONE: &str = "[[limit]]\nname = \"a\"\nrate = \"1000/s\"\n";
const FOUR: &str = "[[limit]]\nname = \"a\"\nrate = \"1000/s\"\n[[limit]]\nname = \"b\"\nrate = \"2000/s\"\n\
    [[limit]]\nname = \"c\"\nrate = \"3000/s\"\n[[limit]]\nname = \"d\"\nrate = \"1MB/s\"\nunit = \"bytes\"\n";
const WINDOW: &str = "[[limit]]\nname = \"a\"\nrate = \"1000/s\"\nalgorithm = \"sliding-window\"\n";
const CLASSES: &str = "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n\
    [[limit]]\nname = \"a\"\nrate = \"1000/s\"\nports = [53]\n";
macro_rules! everything {
    () => {
        "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n\
         [[limit]]\nname = \"a\"\nrate = \"1/s\"\nports = [53]\nthrottle = { elastic = { up_to = 2.0 } }\n\
         escalate = { after = 100, within = \"1h\", ban = \"5m\" }\n\
         [[limit]]\nname = \"b\"\nrate = \"5/s\"\nalgorithm = \"sliding-window\"\nunit = \"requests\"\naction = \"reject\"\n\
         [[limit]]\nname = \"c\"\nrate = \"5/s\"\nalgorithm = \"sliding-log\"\ntiers = [\"9/min\"]\nkey = \"source-port\"\n\
         [[limit]]\nname = \"d\"\nrate = \"5/s\"\nalgorithm = \"fixed-window\"\naction = \"mark\"\n"
    };
}
const EVERYTHING: &str = everything!();
macro_rules! open {
    () => {
        "[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = 50\n"
    };
}
const OPEN: &str = open!();
const EVERYTHING_AND_OPEN: &str = concat!(everything!(), open!());
const SCOPES: &str = "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n\
    [[limit]]\nname = \"a\"\nrate = \"1000/s\"\nsources = [\"10.1.0.0/16\"]\n\
    [[limit]]\nname = \"b\"\nrate = \"1000/s\"\nports = [53]\ninterfaces = [\"lo\"]\n";
macro_rules! prove {
    () => {
        "[[limit]]\nname = \"proven\"\nrate = \"1000/s\"\nprotocol = \"tcp\"\nports = [80]\nunit = \"connections\"\n\
         prove = true\n"
    };
}
const PROVE: &str = prove!();
const PROVE_AND_OPEN: &str = concat!(prove!(), open!());
const EVERYTHING_PROVEN_AND_OPEN: &str = concat!(everything!(), prove!(), open!());
macro_rules! resets {
    () => {
        "[[limit]]\nname = \"reset\"\nrate = \"1000/s\"\nprotocol = \"tcp\"\nports = [81]\nunit = \"connections\"\n\
         prove = \"reset\"\n"
    };
}
const RESETS: &str = resets!();
const FAIR: &str = "[[limit]]\nname = \"web\"\nunit = \"connections\"\nports = [80]\nprove = true\nrate = \"fair\"\n\
    fair = { at_most = \"1000/s\" }\n[[limit]]\nname = \"dns\"\nports = [53]\nprotocol = \"udp\"\nrate = \"fair\"\n\
    [[limit]]\nname = \"a\"\nrate = \"1000/s\"\n";
const FAIR_WITH_LEVELS: &str = "[[limit]]\nname = \"dns\"\nports = [53]\nprotocol = \"udp\"\nrate = \"fair\"\n\
    levels = [{ prefix = \"24/48\" }, { key = \"all\" }]\n[[limit]]\nname = \"a\"\nrate = \"1000/s\"\n";
const EVERYTHING_PROVEN_BOTH_WAYS_AND_OPEN: &str =
    concat!(everything!(), prove!(), resets!(), open!());
const POLICIES: [(&str, &str); 15] = [
    ("one limit", ONE),
    ("four limits", FOUR),
    ("sliding window", WINDOW),
    ("classes and ports", CLASSES),
    ("some sources and interfaces", SCOPES),
    ("sources that prove their address", PROVE),
    ("everything", EVERYTHING),
    ("open connections", OPEN),
    ("fair limits", FAIR),
    ("fair limits with levels", FAIR_WITH_LEVELS),
    ("everything and open connections", EVERYTHING_AND_OPEN),
    ("proofs and open connections", PROVE_AND_OPEN),
    (
        "everything, proofs and open connections",
        EVERYTHING_PROVEN_AND_OPEN,
    ),
    ("proofs by resets", RESETS),
    (
        "everything, both proofs and open connections",
        EVERYTHING_PROVEN_BOTH_WAYS_AND_OPEN,
    ),
];
const ENTRIES: [(&str, Entry); 2] = [("xdp", Entry::Xdp), ("tc", Entry::Tc)];

/// A program's size, or its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
struct Size {
    /// Of the kernel's own representation.
    instructions: usize,
    /// Bytes of machine code.
    machine_code: usize,
    /// Bytes of the deepest chain of calls.
    stack: usize,
}

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = match () {
        () if !nix::unistd::geteuid().is_root() => Some("loading programs needs root"),
        () if OBJECT.is_empty() => {
            Some("loading programs needs the eBPF object: run `cargo xtask test`")
        }
        () if is_kernel_too_old() => {
            Some("this kernel is older than Linux 5.15, the oldest that Weir serves")
        }
        () if Command::new("bpftool").arg("version").output().is_err() => {
            Some("reading programs needs bpftool")
        }
        () => None,
    };
    if let Some(reason) = obstacle {
        eprintln!("skipped: {reason}");
    }
    let budgets = trial(&test!(
        programs_are_within_their_budgets_of_instructions_and_stack
    ));
    let listings = [
        trial(&test!(
            code::the_stack_of_a_listing_is_that_of_its_deepest_chain_of_calls
        )),
        trial(&test!(
            code::a_long_chain_of_calls_is_measured_without_recursion
        )),
        trial(&test!(code::functions_that_call_each_other_are_an_error)),
    ];
    let budgets = budgets.with_ignored_flag(obstacle.is_some());
    testbed::trials::run(&arguments, [budgets].into_iter().chain(listings).collect())
}

/// Without optimisation, compiling and loading a policy takes more stack than a thread of tests has on some kernels.
const STACK: usize = 64 << 20;

fn programs_are_within_their_budgets_of_instructions_and_stack() {
    let measuring = std::thread::Builder::new().stack_size(STACK);
    if let Err(failure) = measuring.spawn(check_budgets).unwrap().join() {
        std::panic::resume_unwind(failure);
    }
}

fn check_budgets() {
    let mut found = BTreeMap::new();
    for (nth, (policy, limits)) in POLICIES.into_iter().enumerate() {
        for (name, entry) in ENTRIES {
            let size = measure(nth, limits, entry);
            println!("{policy}, {name}: {size:?}");
            found.insert(format!("{policy}, {name}"), size);
        }
    }
    let too_deep: Vec<_> = found
        .iter()
        .filter(|(_, size)| size.stack > code::MOST_STACK)
        .collect();
    assert!(
        too_deep.is_empty(),
        "older kernels accept a stack of {} bytes at most: {too_deep:?}",
        code::MOST_STACK
    );
    if std::env::var_os("WEIR_BUDGET").is_some_and(|value| value == "write") {
        std::fs::write(FILE, written(&found)).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    }
    let text = std::fs::read_to_string(FILE).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    let budget: BTreeMap<String, Size> =
        toml::from_str(&text).unwrap_or_else(|error| panic!("{FILE}: {error}"));
    let names = |sizes: &BTreeMap<String, Size>| sizes.keys().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(&found),
        names(&budget),
        "{FILE} has a row for each program"
    );
    let over: Vec<String> = found
        .iter()
        .filter_map(|(name, is)| {
            let most = budget[name];
            let fits = is.instructions <= most.instructions
                && is.machine_code <= most.machine_code
                && is.stack <= most.stack;
            (!fits).then(|| format!("{name}: {is:?}, the budget is {most:?}"))
        })
        .collect();
    assert!(
        over.is_empty(),
        "{}\nif every packet is to pay for it, write the new budget with WEIR_BUDGET=write into {FILE}",
        over.join("\n")
    );
}

/// With a fiftieth more than was found, for kernels of the same series that inline other helpers.
fn written(found: &BTreeMap<String, Size>) -> String {
    let mut text =
        "# What a packet's program may be at most: agent/tests/budget/main.rs.\n".to_owned();
    let with_room = |is: usize| is + is / 50;
    for (name, size) in found {
        let _ = write!(
            text,
            "\n[{name:?}]\ninstructions = {}\nmachine_code = {}\nstack = {}\n",
            with_room(size.instructions),
            with_room(size.machine_code),
            size.stack
        );
    }
    text
}

/// Pins of one program, gone when dropped.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn measure(nth: usize, limits: &str, entry: Entry) -> Size {
    let pins = Pins(PathBuf::from(format!(
        "/sys/fs/bpf/weir-tb{}-{nth}",
        std::process::id()
    )));
    let text = format!("[agent]\ninterfaces = [\"lo\"]\nmax_sources = 4096\n{limits}");
    let loaded =
        config::parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}"));
    let image = compile(&loaded.config, Direction::Ingress).unwrap();
    let mut datapath = Datapath::load(image, &PinDirectory::open(&pins.0).unwrap()).unwrap();
    datapath
        .prepare(entry)
        .unwrap_or_else(|error| panic!("{error}"));
    let descriptor = datapath.entry_point(entry).unwrap().as_fd().as_raw_fd();
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).unwrap();
    let number = info
        .lines()
        .find_map(|line| line.strip_prefix("prog_id:"))
        .map(str::trim)
        .unwrap();

    let shown: serde_json::Value =
        serde_json::from_str(&bpftool(&["-j", "prog", "show", "id", number])).unwrap();
    let field = |name: &str| {
        shown[name]
            .as_u64()
            .unwrap_or_else(|| panic!("bpftool tells no {name}: {shown}")) as usize
    };
    let listing = bpftool(&["prog", "dump", "xlated", "id", number]);
    let code = code::Code::parse(&listing);
    // The frames to shorten when there is no room.
    println!("the deepest chain of calls: {:?}", code.chain());
    Size {
        instructions: field("bytes_xlated") / 8,
        machine_code: field("bytes_jited"),
        stack: code.deepest(),
    }
}

fn bpftool(arguments: &[&str]) -> String {
    let output = Command::new("bpftool").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "bpftool {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}
