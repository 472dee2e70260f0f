//! The image of a release, typed from its page into a guest with Podman and without the package.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testbed::documents::Page;
use testbed::tests;

use crate::Test;
use crate::guest::{
    CONFIG, file, limit, make_network, received, remove_network, run, said, try_run, within,
};
use crate::package::remove;

pub const TESTS: &[Test] = tests![
    the_image_limits_as_its_page_says,
    the_image_needs_each_capability_of_its_page,
];

const IMAGE: &str = concat!("weir:", env!("CARGO_PKG_VERSION"));
const PINS: &str = "/sys/fs/bpf/weir";
const CAPABILITIES: [&str; 3] = ["BPF", "NET_ADMIN", "PERFMON"];
/// An emulated machine unpacks and starts a container in many seconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Whether this run has the image.
pub fn is_there() -> bool {
    Path::new(&archive()).exists()
}

fn archive() -> String {
    file("weir-oci.tar")
}

/// The commands of the page that begin with these words.
fn commands(start: &str) -> Vec<String> {
    let page = Page {
        path: "docs/operations/containers.md".to_owned(),
        text: include_str!("../../../docs/operations/containers.md").to_owned(),
    };
    let commands = page.commands().into_iter().map(|one| one.text);
    commands.filter(|text| text.starts_with(start)).collect()
}

fn shell(text: &str) -> std::process::Output {
    let mut shell = Command::new("bash");
    shell
        .args(["-c", text])
        .current_dir("/root")
        .output()
        .unwrap()
}

fn succeeds(text: &str) -> String {
    let output = shell(text);
    assert!(output.status.success(), "{text}: {}", said(&output));
    said(&output)
}

/// Types the only command of the page that begins so.
fn typed(start: &str) -> String {
    let commands = commands(start);
    assert_eq!(commands.len(), 1, "{start}: {commands:?}");
    succeeds(&commands[0])
}

/// The two `podman run` of the page: the agent, and the one that detaches.
fn runs() -> [String; 2] {
    let runs: [String; 2] = commands("podman run").try_into().unwrap();
    for text in &runs {
        assert!(
            text.contains(&format!(" {IMAGE}")),
            "not of this version: {text}"
        );
    }
    runs
}

/// A host without Weir that has the image, its profile and a limit of five packets.
fn prepare() {
    remove();
    make_network();
    fs::create_dir_all("/etc/weir").unwrap();
    fs::write(CONFIG, limit(5)).unwrap();
    let name = commands("podman load")[0]
        .rsplit(' ')
        .next()
        .unwrap()
        .to_owned();
    fs::copy(archive(), Path::new("/root").join(name)).unwrap();
    if !try_run("podman", &["image", "exists", IMAGE])
        .status
        .success()
    {
        typed("podman load");
    }
    typed("sed");
}

fn is_running() -> bool {
    try_run("podman", &["exec", "weir", "weir", "status"])
        .status
        .success()
}

/// Packets that the limit passed and refused, of the agent in the container.
fn counts() -> (u64, u64) {
    let text = run("podman", &["exec", "weir", "weir", "limits", "--json"]);
    let limits: Value = serde_json::from_str(&text).unwrap();
    let packets = |kind: &str| limits[0][kind]["packets"].as_u64().unwrap();
    (packets("passed"), packets("throttled"))
}

fn the_image_limits_as_its_page_says() {
    prepare();
    assert_eq!(received(2, 15), 15, "without a limit");
    let [start, detach] = runs();
    succeeds(&start);
    within(PATIENCE, "the container's agent", is_running);
    assert_eq!((received(2, 15), received(3, 15)), (5, 5));
    assert_eq!(counts(), (10, 20));
    let printed = typed("podman exec weir weir limits");
    assert!(printed.contains("packets"), "{printed}");

    // A stopped container leaves limits in effect, and the next agent goes on.
    typed("podman stop weir");
    assert_eq!(received(2, 5), 0);
    run("podman", &["start", "weir"]);
    within(PATIENCE, "the container's next agent", is_running);
    assert_eq!((received(2, 5), received(4, 15)), (0, 5));
    assert_eq!(counts(), (15, 40));
    // The directory is mounted: a file in another's place is read.
    fs::write("/etc/weir/next.toml", limit(7)).unwrap();
    fs::rename("/etc/weir/next.toml", CONFIG).unwrap();
    run("podman", &["exec", "weir", "weir", "reload"]);
    assert_eq!(received(5, 15), 7);

    typed("podman stop weir");
    typed("podman rm weir");
    assert!(Path::new(PINS).exists(), "{PINS}");
    succeeds(&detach);
    typed("podman volume rm");
    assert!(!Path::new(PINS).exists(), "{PINS} is left");
    assert_eq!(received(2, 15), 15, "after the detach");
    remove_network();
}

/// The agent's exit, which it comes to without one of its capabilities.
fn the_image_needs_each_capability_of_its_page() {
    prepare();
    let [start, _] = runs();
    let all = CAPABILITIES.join(",");
    assert!(start.contains(&format!("--cap-drop all --cap-add {all} ")));
    for missing in CAPABILITIES {
        let others = CAPABILITIES.into_iter().filter(|one| *one != missing);
        let others = others.collect::<Vec<_>>().join(",");
        succeeds(&start.replace(&all, &others));
        within(PATIENCE, &format!("an end without {missing}"), || {
            let state = [
                "inspect",
                "weir",
                "--format",
                "{{.State.Status}} {{.State.ExitCode}}",
            ];
            run("podman", &state).trim_end() == "exited 1"
        });
        let log = said(&try_run("podman", &["logs", "weir"]));
        assert!(log.contains("error: "), "{missing}: {log}");
        println!("without CAP_{missing}: {}", log.trim_end());
        assert_eq!(received(2, 15), 15, "without {missing}");
        run("podman", &["rm", "weir"]);
        assert!(!Path::new(PINS).exists(), "{missing}: {PINS} is left");
    }
    run("podman", &["volume", "rm", "weir"]);
    remove_network();
}
