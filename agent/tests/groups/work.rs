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
        ["grow", mebibytes] => grow(mebibytes.parse().unwrap()),
        ["fork", most] => fork(most.parse().unwrap()),
        ["pinned", milliseconds] => {
            let mut first = CpuSet::new();
            first.set(0).unwrap();
            sched_setaffinity(Pid::from_raw(0), &first).unwrap();
            busy(Duration::from_millis(milliseconds.parse().unwrap()));
        }
        [way @ ("read" | "write"), device, block, milliseconds] => {
            let block = block.parse().unwrap();
            disk(
                device,
                way,
                block,
                Duration::from_millis(milliseconds.parse().unwrap()),
            );
        }
        ["cache", device, mebibytes] => cache(device, mebibytes.parse().unwrap()),
        ["send", address] => send(address),
        ["receive", milliseconds] => receive(Duration::from_millis(milliseconds.parse().unwrap())),
        ["sleepers", count] => sleepers(count.parse().unwrap()),
        ["scan", act, milliseconds] => crate::outbound::scan(act, milliseconds.parse().unwrap()),
        ["deliver", batches] => crate::outbound::deliver(batches.parse().unwrap()),
        ["connect", batches] => crate::outbound::connect(batches.parse().unwrap()),
        ["sleep"] => std::thread::sleep(Duration::from_secs(60)),
        other => panic!("no such work: {other:?}"),
    }
}

/// Nanoseconds of CPU time used, and of time passed.
fn busy(time: Duration) {
    let cpu = || Duration::from(clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).unwrap());
    let (start, before) = (Instant::now(), cpu());
    while start.elapsed() < time {
        std::hint::black_box((0..1_000u64).fold(0, |sum, n| sum ^ std::hint::black_box(n)));
    }
    println!(
        "{} {}",
        (cpu() - before).as_nanos(),
        start.elapsed().as_nanos()
    );
}

/// Mebibytes that could be touched, a line each.
fn grow(mebibytes: usize) {
    let mut held = Vec::new();
    for count in 1..=mebibytes {
        held.push(std::hint::black_box(vec![count as u8 | 1; MIB]));
        println!("{count}");
    }
}

/// Forks so many children that sleep until this process ends, and prints how many there are.
fn sleepers(count: usize) {
    let mut forked = 0;
    for _ in 0..count {
        // SAFETY: this process has one thread, and the child calls only prctl and pause.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: they take no pointers.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                loop {
                    // SAFETY: it takes nothing.
                    unsafe { libc::pause() };
                }
            }
            -1 => break,
            _ => forked += 1,
        }
    }
    println!("{forked}");
    // Until the test ends this process.
    std::thread::sleep(Duration::from_secs(600));
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

/// Bytes read from a device or written to it in blocks, past the page cache, and nanoseconds. Four at a time, so that
/// what one waits for its turn is not lost to the rate.
fn disk(device: &str, way: &str, length: usize, time: Duration) {
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
        while begin.elapsed() < time {
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

/// Says where it listens; then bytes and nanoseconds, the first second left out.
fn receive(time: Duration) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let (bytes, nanoseconds) = count(&mut listener.accept().unwrap().0, time);
    println!("{bytes} {nanoseconds}");
}

/// Received bytes in `time`, without the first second, and nanoseconds.
pub fn count(stream: &mut TcpStream, time: Duration) -> (u64, u128) {
    let mut buffer = vec![0; 64 * 1024];
    stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let settled = Instant::now() + Duration::from_secs(1);
    while Instant::now() < settled {
        let _ = stream.read(&mut buffer);
    }
    let (start, mut bytes) = (Instant::now(), 0);
    while start.elapsed() < time {
        bytes += stream.read(&mut buffer).unwrap_or(0) as u64;
    }
    (bytes, start.elapsed().as_nanos())
}

/// The instant at which it was in the cgroup, or nothing if it was not within 200 ms.
fn probe(cgroup: &str) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) {
        let all = fs::read_to_string("/proc/self/cgroup").unwrap();
        if all
            .lines()
            .any(|line| line.starts_with("0::") && line.ends_with(cgroup))
        {
            println!(
                "{}",
                Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos()
            );
            return;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    println!("missed");
}

/// Starts a program a thousand times a second until its input is closed, and prints how many and in how many nanoseconds.
fn churn(program: &str) {
    let is_over = std::thread::spawn(|| std::io::stdin().lock().read_line(&mut String::new()));
    let (start, mut started) = (Instant::now(), 0u64);
    let mut running = std::collections::VecDeque::new();
    while !is_over.is_finished() {
        let due = start.elapsed().as_millis() as u64;
        while started < due {
            running.push_back(Command::new(program).stdin(Stdio::null()).spawn().unwrap());
            started += 1;
            // Those that have ended are taken note of without waiting for those that have not.
            while running.len() > 50 {
                running.pop_front().unwrap().wait().unwrap();
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    println!("{started} {}", start.elapsed().as_nanos());
    running.into_iter().for_each(|mut child| drop(child.wait()));
}
