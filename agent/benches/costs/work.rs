//! The work of measured processes: this program, under another name.

use std::collections::VecDeque;
use std::fs;
use std::io::BufRead as _;
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

/// Does what the arguments say, and prints the result. All but two begin when they read a line.
pub fn run(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["probe", cgroup] => return probe(cgroup),
        ["exec", program] => return churn(program),
        _ => {}
    }
    println!("ready");
    std::io::stdin()
        .lock()
        .read_line(&mut String::new())
        .unwrap();
    match arguments.as_slice() {
        ["connect", batches] => connect(batches.parse().unwrap()),
        ["deliver", batches] => deliver(batches.parse().unwrap()),
        ["sleepers", count] => sleepers(count.parse().unwrap()),
        other => panic!("no such work: {other:?}"),
    }
}

/// Nanoseconds of the fastest of many batches of connections, each.
fn connect(batches: u32) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    fastest(batches, || drop(socket.connect(to)));
}

/// The same of packets that are sent and arrive, at a socket of this process's own.
fn deliver(batches: u32) {
    let (from, to) = (
        UdpSocket::bind("127.0.0.1:0").unwrap(),
        UdpSocket::bind("127.0.0.1:0").unwrap(),
    );
    from.connect(to.local_addr().unwrap()).unwrap();
    let mut buffer = [0; 16];
    fastest(batches, || {
        from.send(b"x").unwrap();
        to.recv(&mut buffer).unwrap();
    });
}

fn fastest(batches: u32, mut act: impl FnMut()) {
    const EACH: u32 = 1_000;
    let mut batch = || {
        let start = Instant::now();
        (0..EACH).for_each(|_| act());
        start.elapsed()
    };
    let fastest = (0..batches).map(|_| batch()).min().unwrap();
    println!("{}", fastest.as_nanos() / u128::from(EACH));
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
    thread::sleep(Duration::from_secs(600));
}

/// The instant at which it was in the cgroup.
fn probe(cgroup: &str) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        let all = fs::read_to_string("/proc/self/cgroup").unwrap();
        if all
            .lines()
            .any(|line| line.starts_with("0::") && line.ends_with(cgroup))
        {
            let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap());
            return println!("{}", now.as_nanos());
        }
        thread::sleep(Duration::from_micros(200));
    }
    println!("missed");
}

/// Starts a program a thousand times a second until its input is closed, and prints how many and in how many nanoseconds.
fn churn(program: &str) {
    let is_over = thread::spawn(|| std::io::stdin().lock().read_line(&mut String::new()));
    let (start, mut started) = (Instant::now(), 0u64);
    let mut running = VecDeque::new();
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
        thread::sleep(Duration::from_micros(500));
    }
    println!("{started} {}", start.elapsed().as_nanos());
    running.into_iter().for_each(|mut child| drop(child.wait()));
}
