//! nginx with one worker on one CPU, which compresses a page for each request: its capacity is that CPU's.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::net::{SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use testbed::measure::pin;
use testbed::network::{Network, SERVER};
use testbed::overload::Sources;
use testbed::wait::until;

use crate::clients::{self, Replies};

/// The variable that names the program; `cargo xtask bench` sets it.
pub const PROGRAM: &str = "WEIR_NGINX";
/// The port of clients, and the one of a proxy on the same host.
pub const PORT: u16 = 8080;
pub const BEHIND: u16 = 8081;
pub const BACKLOG: u32 = 511;
/// Requests a second for which the page's size is chosen.
const CAPACITY: f64 = 600.0;
/// The size of the page in the first measurement of the capacity.
const FIRST_PAGE: f64 = 40_000.0;
/// For how long the capacity is measured, and by how many clients.
const MEASURING: Duration = Duration::from_millis(1_500);
const MEASURING_CLIENTS: usize = 8;

/// A running nginx, killed when dropped.
pub struct Nginx {
    child: Child,
    folder: PathBuf,
    busy: RefCell<Option<Busy>>,
    /// Requests a second that it was measured to serve.
    pub capacity: f64,
    pub replies: Replies,
}

/// The CPU of the worker: the last one, so that senders have the others.
fn cpu() -> usize {
    thread::available_parallelism().map_or(0, |cpus| cpus.get() - 1)
}

impl Nginx {
    /// Starts it in the server's namespace, and measures its capacity. The first call chooses the page's size.
    pub fn start(network: &Network) -> Self {
        static PAGE: OnceLock<f64> = OnceLock::new();
        let folder = network.folder.path().join("nginx");
        std::fs::create_dir(&folder).unwrap();
        let config = folder.join("nginx.conf");
        std::fs::write(&config, config_in(folder.to_str().unwrap())).unwrap();
        let mut command = Command::new(std::env::var_os(PROGRAM).unwrap());
        command.arg("-p").arg(&folder).arg("-c").arg(&config);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = network.in_server(|| command.spawn()).unwrap();
        pin_process(&child, cpu());
        let mut nginx = Self {
            child,
            folder,
            busy: RefCell::default(),
            capacity: CAPACITY,
            replies: Replies::default(),
        };
        let size = PAGE.get_or_init(|| {
            // A second time, since a connection has costs beside the page.
            [(); 2].iter().fold(FIRST_PAGE, |size, ()| {
                nginx.write_page(size);
                size * nginx.measure(network) / CAPACITY
            })
        });
        nginx.write_page(*size);
        nginx.capacity = nginx.measure(network);
        nginx
    }

    /// A page of words, of which gzip makes a fraction.
    fn write_page(&self, size: f64) {
        const WORDS: [&str; 8] = [
            "limit", "source", "packet", "kernel", "level", "queue", "reply", "server",
        ];
        let (mut page, mut random) = (String::new(), 1_u32);
        while page.len() < size as usize {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let _ = write!(page, "{}{} ", WORDS[(random >> 29) as usize], random >> 24);
        }
        std::fs::write(self.folder.join("page"), page).unwrap();
    }

    /// Replies a second to a few clients without pauses: an overload would make them leave before their reply comes.
    fn measure(&mut self, network: &Network) -> f64 {
        until("nginx to listen", || {
            assert!(self.child.try_wait().unwrap().is_none(), "nginx ended");
            network.in_server(|| TcpStream::connect(at())).ok()
        });
        let (start, replies) = (Instant::now(), AtomicU64::new(0));
        let repeat = || {
            pin(0).unwrap();
            while start.elapsed() < MEASURING {
                clients::get(at()).unwrap();
                replies.fetch_add(1, Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for _ in 0..MEASURING_CLIENTS {
                scope.spawn(|| network.in_client(repeat));
            }
        });
        replies.into_inner() as f64 / start.elapsed().as_secs_f64()
    }

    /// Has clients connect to a port of the server while `work` runs.
    pub fn beside<T>(
        &self,
        network: &Network,
        sources: &Sources,
        port: u16,
        work: impl FnOnce() -> T,
    ) -> T {
        let replies = &self.replies;
        let send = || {
            // Not on the worker's CPU, if there is another one.
            pin(0).unwrap();
            let to = SocketAddrV4::new(SERVER.into(), port);
            clients::run(sources, to, replies);
        };
        thread::scope(|scope| {
            scope.spawn(|| network.in_client(send));
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // Replies in time to what was sent until the end count.
            thread::sleep(clients::IN_TIME);
            sources.stop();
            self.busy.take();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Leaves it so much of its CPU: all, or half, which it shares with another process.
    pub fn set_part(&self, part: f64) {
        let busy = (part < 1.0).then(|| Busy::on(cpu()));
        self.busy.replace(busy);
    }
}

/// A process that uses all the CPU time it gets, killed when dropped.
pub struct Busy(Child);

impl Busy {
    pub fn anywhere() -> Self {
        let mut shell = Command::new("sh");
        // It ends with this process, also if that is killed.
        let busy = "while kill -0 $PPID; do :; done 2> /dev/null";
        Self(shell.args(["-c", busy]).spawn().unwrap())
    }

    fn on(cpu: usize) -> Self {
        let busy = Self::anywhere();
        pin_process(&busy.0, cpu);
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn pin_process(process: &Child, cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu).unwrap();
    sched_setaffinity(Pid::from_raw(process.id() as i32), &cpus).unwrap();
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn at() -> SocketAddrV4 {
    SocketAddrV4::new(SERVER.into(), PORT)
}

/// Without a master, which would have to end the worker.
fn config_in(folder: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("{kind}_temp_path {folder}/{kind};\n"))
        .collect();
    let server = |listen: &str| {
        format!("server {{\nlisten {listen} backlog={BACKLOG};\nroot {folder};\n}}\n")
    };
    let servers = server(&format!("{}", at())) + &server(&format!("127.0.0.1:{BEHIND}"));
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log /dev/null crit;\n\
         worker_rlimit_nofile 32768;\nevents {{ worker_connections 16384; }}\n\
         http {{\naccess_log off;\nkeepalive_timeout 0;\ngzip on;\ngzip_comp_level 6;\ngzip_types *;\n{temporary}{servers}}}\n"
    )
}
