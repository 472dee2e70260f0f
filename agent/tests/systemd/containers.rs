//! Published ports of real containers: Podman's, with and without root.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use testbed::tests;

use crate::Test;
use crate::guest::{
    INTERFACE, SERVER, add_client, in_client, json, remove_network, run, systemctl, try_run, within,
};
use crate::service::{UNIT, start};

pub const TESTS: &[Test] = tests![published_ports_of_podman_answer_under_prove];

/// Has this program greet each connection to [`INSIDE`].
pub const SERVE: &str = "--serve";
const INSIDE: u16 = 80;
/// Where connections to containers go to, on the host.
const BY_ROOT: u16 = 8080;
const BY_A_USER: u16 = 8081;
const USER: &str = "weir-podman";
/// A guest is emulated.
const PATIENCE: Duration = Duration::from_secs(60);

/// Greets whoever connects, for as long as the container runs.
pub fn serve() {
    let server = TcpListener::bind((Ipv4Addr::UNSPECIFIED, INSIDE)).unwrap();
    for client in server.incoming().flatten() {
        let _ = (&client).write_all(b"x");
    }
}

/// Makes a root file system of what the host has.
pub fn make_root(root: &Path) {
    for folder in ["proc", "sys", "dev", "tmp", "run", "etc", "usr"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    for folder in ["bin", "lib", "lib64"] {
        if !root.join(folder).is_symlink() {
            let to = fs::read_link(Path::new("/").join(folder)).unwrap();
            symlink(to, root.join(folder)).unwrap();
        }
    }
}

/// Of so many clients, those that a container greets.
fn greeted(port: u16, clients: usize) -> usize {
    let greets = || {
        let to = SocketAddr::new(SERVER.parse().unwrap(), port);
        let Ok(mut client) = TcpStream::connect_timeout(&to, PATIENCE) else {
            return false;
        };
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.read_exact(&mut [0]).is_ok()
    };
    in_client(|| (0..clients).filter(|_| greets()).count())
}

/// The arguments of `podman run` for a server on a port of the host.
fn server(name: &str, root: &Path, port: u16) -> Vec<String> {
    let program = std::env::current_exe().unwrap();
    [
        "run",
        "--detach",
        "--rm",
        "--name",
        name,
        "--publish",
        &format!("{port}:{INSIDE}"),
        "--volume=/usr:/usr:ro",
        &format!("--volume={}:/tmp/server:ro", program.display()),
        "--rootfs",
        &root.display().to_string(),
        "/tmp/server",
        SERVE,
    ]
    .map(str::to_owned)
    .to_vec()
}

fn run_by_root() {
    let root = Path::new("/var/tmp/weir-root");
    make_root(root);
    let arguments = server("weir-published", root, BY_ROOT);
    run(
        "podman",
        &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
    );
}

/// A login session's runtime folder, as rootless Podman takes it.
fn run_by_a_user() {
    if !try_run("id", &[USER]).status.success() {
        run("useradd", &["--create-home", USER]);
    }
    run("loginctl", &["enable-linger", USER]);
    let id = run("id", &["--user", USER]);
    let runtime = format!("/run/user/{}", id.trim());
    within(PATIENCE, "the user's manager", || {
        Path::new(&runtime).join("systemd").exists()
    });
    let home = Path::new("/home").join(USER);
    let root = home.join("root");
    make_root(&root);
    let program = home.join("server");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    run("chown", &["--recursive", USER, home.to_str().unwrap()]);
    let runtime = format!("XDG_RUNTIME_DIR={runtime}");
    let as_user = [
        "--user",
        USER,
        "--",
        "env",
        "--chdir=/",
        &format!("HOME={}", home.display()),
        &runtime,
        "podman",
        "--cgroup-manager=cgroupfs",
    ];
    let mut arguments = server("weir-rootless", &root, BY_A_USER);
    arguments.insert(1, "--network=slirp4netns".to_owned());
    for argument in &mut arguments {
        if argument.ends_with(":/tmp/server:ro") {
            *argument = format!("--volume={}:/tmp/server:ro", program.display());
        }
    }
    let arguments = arguments.iter().map(String::as_str);
    run(
        "runuser",
        &as_user.into_iter().chain(arguments).collect::<Vec<_>>(),
    );
}

/// Both, which end with it.
struct Containers;

impl Drop for Containers {
    fn drop(&mut self) {
        try_run("podman", &["stop", "--time=0", "weir-published"]);
        try_run("loginctl", &["terminate-user", USER]);
    }
}

/// SYN cookies for each connection, until it is dropped.
struct Cookies {
    before: String,
}

impl Cookies {
    const SETTING: &str = "/proc/sys/net/ipv4/tcp_syncookies";

    fn always() -> Self {
        let before = fs::read_to_string(Self::SETTING).unwrap();
        fs::write(Self::SETTING, "2").unwrap();
        Self { before }
    }
}

impl Drop for Cookies {
    fn drop(&mut self) {
        let _ = fs::write(Self::SETTING, &self.before);
    }
}

/// Rootful Podman holds a listener on the port, and netfilter sends the connections to the container: nobody may answer in
/// its name. Rootless Podman's own process accepts them.
fn published_ports_of_podman_answer_under_prove() {
    let limits = format!(
        "[agent]\ninterfaces = [\"{INTERFACE}\"]\nmax_sources = 1_000\n\n[[limit]]\nname = \"web\"\nunit = \"connections\"\n\
         ports = [{BY_ROOT}, {BY_A_USER}]\nrate = \"1000/s\"\nprove = true\n"
    );
    start(&limits);
    add_client("10.77.0.2");
    let containers = Containers;
    run_by_root();
    run_by_a_user();
    for port in [BY_ROOT, BY_A_USER] {
        within(PATIENCE, "its server runs", || greeted(port, 1) == 1);
    }
    for port in [BY_ROOT, BY_A_USER] {
        assert_eq!(greeted(port, 3), 3, "{port}");
    }
    // Its rule has been read, or one of these connections.
    let note = |port| format!("prove has no effect on port {port}:");
    let notes = || json(&["status"])["notes"].to_string();
    within(Duration::from_secs(300), "the port is known", || {
        notes().contains(&note(BY_ROOT))
    });
    let cookies = Cookies::always();
    for port in [BY_ROOT, BY_A_USER] {
        assert_eq!(
            greeted(port, 6),
            6,
            "{port}, with cookies for each connection"
        );
    }
    drop(cookies);
    assert!(!notes().contains(&note(BY_A_USER)), "{}", notes());
    drop(containers);
    systemctl(&["stop", UNIT]);
    run("agent", &["detach"]);
    remove_network();
}
