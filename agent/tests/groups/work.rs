//! The work of processes that tests put in groups: this test program, under another name.

use std::fs;
use std::io::{BufRead as _, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

/// One mebibyte.
const MIB: usize = 1 << 20;

/// Does what the arguments say, and prints what came of it. Begins when it reads a line.
pub fn run(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["probe", cgroup] = arguments.as_slice() {
        return probe(cgroup);
    }
    if let ["exec", program] = arguments.as_slice() {
        return churn(program);
    }
    println!("ready");
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
    match arguments.as_slice() {
        ["busy", milliseconds] => busy(Duration::from_millis(milliseconds.parse().unwrap())),
        ["use", milliseconds] => use_cpu(Duration::from_millis(milliseconds.parse().unwrap())),
        ["grow", mebibytes] => grow(mebibytes.parse().unwrap()),
        ["hold", mebibytes] => hold(mebibytes.parse().unwrap()),
        ["fork", most] => fork(most.parse().unwrap()),
        ["pinned"] => {
            let mut first = CpuSet::new();
            first.set(0).unwrap();
            sched_setaffinity(Pid::from_raw(0), &first).unwrap();
            busy(Duration::from_secs(600));
        }
        [way @ ("read" | "write"), device, block, bytes] => {
            disk(device, way, block.parse().unwrap(), bytes.parse().unwrap());
        }
        ["cache", device, mebibytes] => cache(device, mebibytes.parse().unwrap()),
        ["send", address] => send(address),
        ["receive", bytes] => receive(bytes.parse().unwrap()),
        ["scan", act, milliseconds] => crate::outbound::scan(act, milliseconds.parse().unwrap()),
        ["sleep"] => std::thread::sleep(Duration::from_secs(600)),
        other => panic!("no such work: {other:?}"),
    }
}

fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID)
        .unwrap()
        .into()
}

fn spin() {
    std::hint::black_box((0..1_000u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
}

/// Nanoseconds of CPU time used, and of time passed.
fn busy(time: Duration) {
    let (start, before) = (Instant::now(), cpu_time());
    while start.elapsed() < time {
        spin();
    }
    println!(
        "{} {}",
        (cpu_time() - before).as_nanos(),
        start.elapsed().as_nanos()
    );
}

/// Uses so much CPU time, however long the machine takes to give it.
fn use_cpu(time: Duration) {
    let before = cpu_time();
    while cpu_time() - before < time {
        spin();
    }
    println!("used");
}

/// Mebibytes that could be touched, a line each.
fn grow(mebibytes: usize) {
    let mut held = Vec::new();
    for count in 1..=mebibytes {
        held.push(std::hint::black_box(vec![count as u8 | 1; MIB]));
        println!("{count}");
    }
}

/// Holds so much memory until it is killed.
fn hold(mebibytes: usize) {
    let held = std::hint::black_box(vec![1u8; mebibytes * MIB]);
    println!("held");
    std::thread::sleep(Duration::from_secs(600));
    drop(held);
}

/// How many children there were at one time.
fn fork(most: usize) {
    let children: Vec<_> = (0..most)
        .map_while(|_| {
            let mut command = Command::new("sleep");
            command
                .arg("60")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .process_group(0);
            command.spawn().ok()
        })
        .collect();
    println!("{}", children.len());
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

/// Reads so many bytes from a device or writes them to it in blocks, past the page cache, four at a time, and prints
/// them and nanoseconds.
fn disk(device: &str, way: &str, length: usize, all: f64) {
    let begin = Instant::now();
    let one = |nth: u64| {
        let mut options = fs::OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(device)
            .unwrap();
        let mut buffer = vec![0u8; length + 4096];
        let start = buffer.as_ptr().align_offset(4096);
        let block = &mut buffer[start..start + length];
        let mut bytes = 0;
        while (bytes as f64) < all / 4.0 {
            // The same four mebibytes, over and over.
            let offset = ((nth * 4) << 20) + bytes % (4 << 20);
            match way {
                "read" => file.read_exact_at(block, offset).unwrap(),
                _ => file.write_all_at(block, offset).unwrap(),
            }
            bytes += length as u64;
        }
        bytes
    };
    let bytes: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|nth| scope.spawn(move || one(nth))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    println!("{bytes} {}", begin.elapsed().as_nanos());
}

/// Reads from a device through the page cache, and waits to be looked at.
fn cache(device: &str, mebibytes: usize) {
    let mut file = fs::File::open(device).unwrap();
    let mut block = vec![0; MIB];
    (0..mebibytes).for_each(|_| file.read_exact(&mut block).unwrap());
    println!("read");
    std::thread::sleep(Duration::from_secs(60));
}

/// Sends until the other side has had enough.
fn send(address: &str) {
    let mut stream = TcpStream::connect(address).unwrap();
    let block = vec![7; 64 * 1024];
    while stream.write_all(&block).is_ok() {}
}

/// Says where it listens, and when so many bytes have arrived; reads on until the other side ends.
fn receive(bytes: u64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let mut stream = listener.accept().unwrap().0;
    take(&mut stream, bytes);
    println!("received");
    take(&mut stream, u64::MAX);
}

/// Reads so many bytes, or up to the end.
pub fn take(stream: &mut TcpStream, bytes: u64) {
    let (mut buffer, mut taken) = (vec![0; 64 * 1024], 0);
    while taken < bytes {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => taken += length as u64,
        }
    }
}

/// Says when it is in the cgroup, or that it was not within two minutes.
fn probe(cgroup: &str) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(120) {
        let all = fs::read_to_string("/proc/self/cgroup").unwrap();
        if all
            .lines()
            .any(|line| line.starts_with("0::") && line.ends_with(cgroup))
        {
            return println!("moved");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("missed");
}

/// Starts a program over and over until its input is closed, and prints how often.
fn churn(program: &str) {
    let is_over = std::thread::spawn(|| std::io::stdin().lock().read_line(&mut String::new()));
    let mut started = 0u64;
    while !is_over.is_finished() {
        let mut child = Command::new(program).stdin(Stdio::null()).spawn().unwrap();
        started += 1;
        child.wait().unwrap();
    }
    println!("{started}");
}
