//! Decisions over HTTP beside another server: same machine, same keys, same clients, in turns. With `cargo xtask bench
//! decisions` the other one is another rate limit server, with `cargo xtask bench static` the agent's static program. `--quick`
//! shortens everything.

mod grpc;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use testbed::measure::Series;
use testbed::port::Port;
use testbed::process::memory;

/// The static program of the agent, if the agent is compared with it.
const STATIC: &str = "WEIR_STATIC";
/// Connections of the usual load, on two threads.
const CONNECTIONS: usize = 16;
/// Connections of the load over gRPC, each with one request outstanding.
const GRPC_CONNECTIONS: usize = 32;
const OVER_GRPC: &str = "CPU time of the server, gRPC, 32 connections";
/// Requests in an array, which the peer does not have.
const ARRAY: usize = 100;
const KEYS: u64 = 10_000;
const MANY_KEYS: u64 = 1_000_000;
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Arguments {
    /// `cargo bench` says so.
    #[arg(long)]
    bench: bool,
    #[arg(long, default_value_t = 11)]
    rounds: usize,
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    out: PathBuf,
}

/// A server, killed when dropped.
struct Server {
    child: Child,
    at: String,
    grpc: String,
    kind: Kind,
    _folder: tempfile::TempDir,
    _ports: [Port; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Weir,
    /// The static program.
    Static,
    Throttlecrab,
}

/// How much a key has: of a load all passes, and for memory every key is worth remembering for minutes.
#[derive(Clone, Copy)]
enum Allowance {
    Load,
    Memory,
}

/// What clients have outstanding.
#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    /// Requests of each connection, sent together.
    at_once: usize,
    /// Decisions of each request.
    each: usize,
}

impl Load {
    const USUAL: Self = Self {
        connections: CONNECTIONS,
        at_once: 1,
        each: 1,
    };
    /// Loads of which only the server's time is reported.
    const MORE: [(&str, Self); 4] = [
        (
            "CPU time of the server, 32 connections",
            Self {
                connections: 32,
                ..Self::USUAL
            },
        ),
        (
            "CPU time of the server, 512 connections",
            Self {
                connections: 512,
                ..Self::USUAL
            },
        ),
        (
            "CPU time of the server, 16 requests at once",
            Self {
                at_once: 16,
                ..Self::USUAL
            },
        ),
        (
            "CPU time of the server, arrays of 100",
            Self {
                each: ARRAY,
                ..Self::USUAL
            },
        ),
    ];
}

impl Kind {
    /// The compared ones, and the part of the benchmark.
    fn compared() -> ([Self; 2], &'static str) {
        match std::env::var_os(STATIC) {
            Some(_) => ([Self::Weir, Self::Static], "static"),
            None => ([Self::Weir, Self::Throttlecrab], "decisions"),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Weir => "weir",
            Self::Static => "static",
            Self::Throttlecrab => "throttlecrab-server",
        }
    }

    fn start(self) -> Result<Server> {
        let folder = tempfile::tempdir().context("making a folder")?;
        let ports = [Port::reserve(), Port::reserve()];
        let [port, grpc_port] = ports.each_ref().map(Port::number);
        let [at, grpc] = [port, grpc_port].map(|port| format!("127.0.0.1:{port}"));
        let program = |variable: &str| {
            let what = || format!("{variable} names no program: run `cargo xtask bench decisions`");
            std::env::var_os(variable).with_context(what)
        };
        let mut command = match self {
            Self::Weir | Self::Static => {
                let config = folder.path().join("limits.toml");
                std::fs::write(&config, config_text(folder.path(), &at, &grpc))
                    .context("writing a config")?;
                let variable = if self == Self::Static {
                    STATIC
                } else {
                    "WEIR_AGENT"
                };
                let mut command = Command::new(program(variable)?);
                command.arg("--config").arg(config);
                command
            }
            Self::Throttlecrab => {
                let mut command = Command::new(program("WEIR_THROTTLECRAB")?);
                command.args([
                    "--http",
                    "--http-host",
                    "127.0.0.1",
                    "--http-port",
                    &port.to_string(),
                ]);
                command.args([
                    "--grpc",
                    "--grpc-host",
                    "127.0.0.1",
                    "--grpc-port",
                    &grpc_port.to_string(),
                ]);
                // Room for all keys from the start, so that its table is not counted while it grows.
                command.args([
                    "--store-capacity",
                    &MANY_KEYS.to_string(),
                    "--log-level",
                    "error",
                ]);
                command
            }
        };
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting a server")?;
        let mut server = Server {
            child,
            at,
            grpc,
            kind: self,
            _folder: folder,
            _ports: ports,
        };
        let start = Instant::now();
        while [&server.at, &server.grpc]
            .into_iter()
            .any(|at| TcpStream::connect(at).is_err())
        {
            ensure!(
                server.child.try_wait()?.is_none(),
                "{} ended at once",
                self.name()
            );
            ensure!(
                start.elapsed() < PATIENCE,
                "{} does not listen",
                self.name()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn request(self, key: u64, allowance: Allowance) -> String {
        let (path, body) = match (self, allowance) {
            (Self::Weir | Self::Static, Allowance::Load) => (
                "/v1/decide",
                format!("{{\"limit\":\"load\",\"key\":{{\"user\":\"user-{key:07}\"}},\"cost\":1}}"),
            ),
            (Self::Weir | Self::Static, Allowance::Memory) => (
                "/v1/decide",
                format!(
                    "{{\"limit\":\"memory\",\"key\":{{\"user\":\"user-{key:07}\"}},\"cost\":1}}"
                ),
            ),
            (Self::Throttlecrab, Allowance::Load) => ("/throttle", throttle(key, 1_000_000)),
            (Self::Throttlecrab, Allowance::Memory) => ("/throttle", throttle(key, 10)),
        };
        self.post(path, &body)
    }

    /// Requests of a load with so many decisions each; empty if the server has no arrays.
    fn requests(self, each: usize) -> Vec<String> {
        match (self, each) {
            (_, 1) => (0..KEYS)
                .map(|key| self.request(key, Allowance::Load))
                .collect(),
            (Self::Weir | Self::Static, _) => {
                let one = |key| {
                    format!(
                        "{{\"limit\":\"load\",\"key\":{{\"user\":\"user-{key:07}\"}},\"cost\":1}}"
                    )
                };
                let keys: Vec<String> = (0..KEYS).map(one).collect();
                keys.chunks(each)
                    .map(|keys| self.post("/v1/decide", &format!("[{}]", keys.join(","))))
                    .collect()
            }
            (Self::Throttlecrab, _) => Vec::new(),
        }
    }

    fn post(self, path: &str, body: &str) -> String {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.name(),
            body.len()
        )
    }
}

fn throttle(key: u64, hourly: u64) -> String {
    format!(
        "{{\"key\":\"user-{key:07}\",\"max_burst\":{hourly},\"count_per_period\":{hourly},\"period\":3600,\"quantity\":1}}"
    )
}

fn config_text(folder: &Path, at: &str, grpc: &str) -> String {
    let limit = |name: &str, rate: &str| {
        format!(
            "[[limit]]\nname = {name:?}\nscope = \"request\"\nkey = [\"user\"]\nrate = {rate:?}\n"
        )
    };
    format!(
        "[agent]\ncontrol = {:?}\nstate_dir = {:?}\nprotect = false\n[decide]\nhttp = {at:?}\ngrpc = {grpc:?}\nmax_keys = 2_000_000\n{}{}",
        folder.join("control.sock"),
        folder.join("state"),
        limit("load", "1000000/h"),
        limit("memory", "10/h").replace("key =", "domain = \"none\"\nkey ="),
    )
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn client(&self) -> Result<Client> {
        let stream = TcpStream::connect(&self.at).context("connecting")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Client {
            stream,
            buffer: vec![0; 64 * 1024],
            from: 0,
            to: 0,
        })
    }

    /// CPU time of its threads so far.
    fn worked(&self) -> Result<Duration> {
        let mut nanoseconds = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))
            .context("listing threads")?
        {
            let path = thread?.path().join("schedstat");
            let text = std::fs::read_to_string(&path)
                .with_context(|| format!("reading {}", path.display()))?;
            nanoseconds += text
                .split(' ')
                .next()
                .unwrap_or_default()
                .parse::<u64>()
                .context("a thread's time")?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }

    /// As many decisions as it makes: (a second, CPU time of each in microseconds).
    fn load(&self, slice: Duration, load: Load, requests: &[String]) -> Result<(f64, f64)> {
        let mut clients = (0..load.connections)
            .map(|_| self.client())
            .collect::<Result<Vec<_>>>()?;
        let (first, second) = clients.split_at_mut(load.connections / 2);
        let worked = self.worked()?;
        let start = Instant::now();
        let half = |half: usize, clients: &mut [Client]| -> Result<u64> {
            let mut place = half * requests.len() / 2;
            let (mut done, mut together) = (0, Vec::new());
            while start.elapsed() < slice {
                for client in &mut *clients {
                    together.clear();
                    for _ in 0..load.at_once {
                        place = (place + 1) % requests.len();
                        together.extend_from_slice(requests[place].as_bytes());
                    }
                    client.send(&together)?;
                }
                for client in &mut *clients {
                    (0..load.at_once).try_for_each(|_| client.passed())?;
                }
                done += (clients.len() * load.at_once * load.each) as u64;
            }
            Ok(done)
        };
        let done = thread::scope(|scope| {
            both([
                scope.spawn(|| half(0, first)),
                scope.spawn(|| half(1, second)),
            ])
        });
        let (done, elapsed) = (
            done?.into_iter().sum::<u64>() as f64,
            start.elapsed().as_secs_f64(),
        );
        Ok((
            done / elapsed,
            (self.worked()? - worked).as_secs_f64() * 1e6 / done,
        ))
    }

    /// The CPU time of each decision over gRPC, in microseconds.
    fn load_grpc(&self, slice: Duration, connections: usize) -> Result<f64> {
        let (worked, start) = (self.worked()?, Instant::now());
        let done = thread::scope(|scope| {
            let half =
                || scope.spawn(|| grpc::load(self.kind, &self.grpc, connections / 2, start, slice));
            both([half(), half()])
        })?;
        Ok((self.worked()? - worked).as_secs_f64() * 1e6 / done.into_iter().sum::<u64>() as f64)
    }

    /// Microseconds to an answer with so many requests a second: (the median, the 99th percentile).
    fn latency(&self, slice: Duration, requests: &[String], per_second: f64) -> Result<(f64, f64)> {
        let gap = Duration::from_secs_f64(2.0 / per_second);
        let start = Instant::now();
        let times: Result<Vec<Vec<f64>>> = thread::scope(|scope| {
            let half = |half: usize| {
                move || {
                    let mut client = self.client()?;
                    let (mut times, mut place, mut due) =
                        (Vec::new(), half * requests.len() / 2, start);
                    while start.elapsed() < slice {
                        while Instant::now() < due {
                            thread::yield_now();
                        }
                        place = (place + 1) % requests.len();
                        let sent = Instant::now();
                        client.send(requests[place].as_bytes())?;
                        client.passed()?;
                        times.push(sent.elapsed().as_secs_f64() * 1e6);
                        // Late ones are not made up for: the load is what it is said to be, or less.
                        due = (due + gap).max(Instant::now());
                    }
                    Ok(times)
                }
            };
            both([scope.spawn(half(0)), scope.spawn(half(1))])
        });
        let mut times = times?.concat();
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: usize| {
            times
                .get(times.len() * share / 100)
                .copied()
                .context("no answer came")
        };
        Ok((at(50)?, at(99)?))
    }

    /// Asks once about each of so many keys.
    fn fill(&self, keys: u64) -> Result<()> {
        thread::scope(|scope| {
            let half = |half: u64| {
                move || {
                    let mut clients = (0..CONNECTIONS / 2)
                        .map(|_| self.client())
                        .collect::<Result<Vec<_>>>()?;
                    let keys: Vec<u64> = (half..keys).step_by(2).collect();
                    for keys in keys.chunks(clients.len()) {
                        for (client, key) in clients.iter_mut().zip(keys) {
                            client.send(self.kind.request(*key, Allowance::Memory).as_bytes())?;
                        }
                        for (client, _) in clients.iter_mut().zip(keys) {
                            client.passed()?;
                        }
                    }
                    Ok(())
                }
            };
            both([scope.spawn(half(0)), scope.spawn(half(1))]).map(drop)
        })
    }
}

/// The measurements of two client threads.
fn both<T>(threads: [thread::ScopedJoinHandle<'_, Result<T>>; 2]) -> Result<Vec<T>> {
    threads
        .into_iter()
        .map(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))?
        })
        .collect()
}

/// A connection, and what has come on it.
struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
}

impl Client {
    fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes).context("asking")
    }

    /// Takes one answer, which has to be that the request passed.
    fn passed(&mut self) -> Result<()> {
        loop {
            let come = &self.buffer[self.from..self.to];
            if let Some(head) = come.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let text =
                    std::str::from_utf8(&come[..head]).context("reading an answer's head")?;
                let length = text
                    .lines()
                    .find_map(|line| line.strip_prefix("content-length: "));
                let length: usize = length
                    .and_then(|length| length.parse().ok())
                    .context("an answer has no length")?;
                if let Some(body) = come.get(head + 4..head + 4 + length) {
                    let allowed = body
                        .strip_prefix(b"[")
                        .unwrap_or(body)
                        .starts_with(b"{\"allowed\":true");
                    let is_passed = text.starts_with("HTTP/1.1 200 ") && allowed;
                    ensure!(
                        is_passed,
                        "not passed: {text}\n{}",
                        String::from_utf8_lossy(body)
                    );
                    self.from += head + 4 + length;
                    return Ok(());
                }
            }
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
            match self
                .stream
                .read(&mut self.buffer[self.to..])
                .context("waiting for an answer")?
            {
                0 => bail!("the server closed the connection"),
                length => self.to += length,
            }
        }
    }
}

/// A server's measurements in one round.
const COLUMNS: [(&str, &str); 4] = [
    ("as many as it makes", "decisions a second"),
    ("CPU time of the server", "µs a decision"),
    ("median, at half load", "µs to the answer"),
    ("99th percentile, at half load", "µs to the answer"),
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let (kinds, part) = Kind::compared();
    let slice = Duration::from_millis(if arguments.quick { 200 } else { 1_000 });
    let many = if arguments.quick {
        MANY_KEYS / 20
    } else {
        MANY_KEYS
    };

    let mut samples = kinds.map(|_| COLUMNS.map(|_| Vec::new()));
    let servers = kinds
        .iter()
        .map(|kind| kind.start())
        .collect::<Result<Vec<_>>>()?;
    let mut more = Load::MORE.map(|_| kinds.map(|_| Vec::new()));
    let mut over_grpc = kinds.map(|_| Vec::new());
    let requests = kinds.map(|kind| kind.requests(1));
    let arrays = kinds.map(|kind| kind.requests(ARRAY));
    // Who is first takes turns, too.
    let turns = |round: usize| (0..servers.len()).map(move |nth| (nth + round) % kinds.len());
    for nth in turns(0) {
        servers[nth].load(slice, Load::USUAL, &requests[nth])?;
    }
    for round in 0..arguments.rounds {
        let mut slowest = f64::MAX;
        for nth in turns(round) {
            let (decisions, time) = servers[nth].load(slice, Load::USUAL, &requests[nth])?;
            samples[nth][0].push(decisions);
            samples[nth][1].push(time);
            slowest = slowest.min(decisions);
        }
        // The same load for both: half of what the slower one can.
        for nth in turns(round) {
            let (median, late) = servers[nth].latency(slice, &requests[nth], slowest / 2.0)?;
            samples[nth][2].push(median);
            samples[nth][3].push(late);
        }
        for ((_, load), samples) in Load::MORE.iter().zip(&mut more) {
            let requests = if load.each == 1 { &requests } else { &arrays };
            for nth in turns(round).filter(|nth| !requests[*nth].is_empty()) {
                samples[nth].push(servers[nth].load(slice, *load, &requests[nth])?.1);
            }
        }
    }
    for round in 0..arguments.rounds {
        for nth in turns(round) {
            over_grpc[nth].push(servers[nth].load_grpc(slice, GRPC_CONNECTIONS)?);
        }
    }
    drop(servers);
    let mut series = Vec::new();
    for (kind, samples) in kinds.iter().zip(samples) {
        let of_column = |((case, unit), samples): (&(&'static str, &'static str), Vec<f64>)| {
            Series::new(part, *case, kind.name(), unit).with(samples)
        };
        series.extend(COLUMNS.iter().zip(samples).map(of_column));
    }
    for ((case, _), samples) in Load::MORE.iter().zip(more) {
        let of = |(kind, samples): (&Kind, Vec<f64>)| {
            Series::new(part, *case, kind.name(), COLUMNS[1].1).with(samples)
        };
        series.extend(
            kinds
                .iter()
                .zip(samples)
                .filter(|(_, samples)| !samples.is_empty())
                .map(of),
        );
    }
    for (kind, samples) in kinds.iter().zip(over_grpc) {
        series.push(Series::new(part, OVER_GRPC, kind.name(), COLUMNS[1].1).with(samples));
    }
    for kind in kinds {
        let server = kind.start()?;
        server.fill(KEYS)?;
        let resident = || memory(server.child.id(), "VmRSS") as f64;
        let before = resident();
        server.fill(many)?;
        let grown = resident();
        series.push(
            Series::new(
                part,
                format!("with {many} keys"),
                kind.name(),
                "MB resident",
            )
            .with(vec![grown / 1e6]),
        );
        let each = (grown - before) / (many - KEYS) as f64;
        series.push(Series::new(part, "each further key", kind.name(), "bytes").with(vec![each]));
    }
    testbed::measure::write(&arguments.out, &series)
}
