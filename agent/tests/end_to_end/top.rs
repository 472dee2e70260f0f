//! The live view, in a terminal that the test makes.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;
use nix::sys::termios::{LocalFlags, tcgetattr};
use testbed::tests;
use testbed::trials::Test;

use crate::support::Network;
use crate::traffic::{LIMIT, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    the_live_view_shows_the_greedy_pauses_filters_and_gives_the_terminal_back,
    the_live_view_ends_by_key_and_signal_and_gives_the_terminal_back,
    the_live_view_ends_when_the_agent_goes,
    a_panic_gives_the_terminal_back_before_it_speaks,
    without_a_terminal_the_live_view_says_what_to_type_instead,
];

/// Set for a process that is to take the terminal and panic.
pub const PANIC: &str = "WEIR_TEST_PANIC_IN_TERMINAL";
const PATIENCE: Duration = Duration::from_secs(60);

/// The work of `main` in such a process.
pub fn panic_in_terminal() -> ! {
    let _screen = weir::tui::Screen::take().unwrap();
    panic!("a panic that the test wants");
}

/// A terminal of 80 by 24, and a program at it.
struct Terminal {
    child: Child,
    typed: File,
    slave: OwnedFd,
    /// Local flags before the program came.
    flags: LocalFlags,
    shown: Arc<Mutex<Shown>>,
}

struct Shown {
    parser: vt100::Parser,
    bytes: Vec<u8>,
}

impl Terminal {
    fn new(start: impl FnOnce(&mut dyn FnMut(&mut Command)) -> Child) -> Self {
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pair = openpty(&size, None).unwrap();
        let flags = tcgetattr(&pair.slave).unwrap().local_flags;
        let mut sit_down = |command: &mut Command| {
            for end in [Command::stdin, Command::stdout, Command::stderr] {
                end(command, Stdio::from(pair.slave.try_clone().unwrap()));
            }
            command
                .env("TERM", "xterm-256color")
                .env("LC_ALL", "C.UTF-8");
            // SAFETY: both calls are async-signal-safe and touch no memory of the process that forks.
            unsafe {
                command.pre_exec(|| {
                    nix::unistd::setsid()?;
                    // Its standard input becomes its controlling terminal, so that no other is found.
                    if libc::ioctl(0, libc::TIOCSCTTY, 0) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                    Ok(())
                });
            }
        };
        let child = start(&mut sit_down);
        let size = |size: u16| NonZero::new(size).unwrap();
        let parser = vt100::Parser::new(size(24), size(80), 0);
        let shown = Arc::new(Mutex::new(Shown {
            parser,
            bytes: Vec::new(),
        }));
        let (mut master, kept) = (
            File::from(pair.master.try_clone().unwrap()),
            Arc::clone(&shown),
        );
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It ends with the last descriptor of the other side.
            while let Ok(count @ 1..) = master.read(&mut buffer) {
                let mut shown = kept.lock().unwrap();
                shown.parser.process(&buffer[..count]);
                shown.bytes.extend(&buffer[..count]);
            }
        });
        Self {
            child,
            typed: File::from(pair.master),
            slave: pair.slave,
            flags,
            shown,
        }
    }

    fn top(network: &Network) -> Self {
        Self::new(|sit_down| network.spawn(&["top"], sit_down))
    }

    fn text(&self) -> String {
        self.shown.lock().unwrap().parser.screen().contents()
    }

    fn press(&mut self, keys: &str) {
        self.typed.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits for a screen that is as wanted.
    fn wait(&self, what: &str, mut wanted: impl FnMut(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text();
            if wanted(&text) {
                return text;
            }
            assert!(
                Instant::now() < deadline,
                "no {what} within {PATIENCE:?} on this screen:\n{text}"
            );
            thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits for the program to end; the terminal has to be as it was.
    fn end(mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "it runs on, with this screen:\n{}",
                self.text()
            );
            thread::sleep(Duration::from_millis(30));
        };
        let restored = |shown: &Shown| {
            let screen = shown.parser.screen();
            !screen.alternate_screen() && !screen.hide_cursor()
        };
        // Its last output is on its way.
        while !restored(&self.shown.lock().unwrap()) {
            assert!(
                Instant::now() < deadline,
                "the other screen or the cursor is not given back"
            );
            thread::sleep(Duration::from_millis(30));
        }
        assert_eq!(
            tcgetattr(&self.slave).unwrap().local_flags,
            self.flags,
            "echo and lines are not given back"
        );
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The line of a source.
fn line<'t>(text: &'t str, source: &str) -> Option<&'t str> {
    text.lines().find(|line| line.starts_with(source))
}

fn the_live_view_shows_the_greedy_pauses_filters_and_gives_the_terminal_back() {
    let network = Network::new();
    let _agent = network.start("", LIMIT);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // Nine of the greedy one for each of the one who stays within the limit.
            let mut frames = vec![udp_from(7); 9];
            frames.push(udp_from(8));
            network.in_client(|| {
                let (sender, start) = (Sender::new(), Instant::now());
                while !is_over.load(Ordering::Relaxed) && start.elapsed() < 5 * PATIENCE {
                    sender.pace(&frames, 5, Duration::from_millis(100));
                }
            });
        });
        // Whatever fails, the sender ends.
        let result = std::panic::catch_unwind(|| watch(&network));
        is_over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn watch(network: &Network) {
    let mut terminal = Terminal::top(network);
    let is_refused = |text: &str| {
        let per_second = line(text, "10.77.0.7")
            .and_then(|line| line.split_whitespace().nth(3)?.parse::<f64>().ok());
        per_second.is_some_and(|per_second| per_second > 0.0)
    };
    // A screen is drawn in parts: each wait is for all that has to be on it.
    terminal.wait("refusals of the greedy one", |text| {
        let place = |source: &str| text.lines().position(|line| line.starts_with(source));
        let (greedy, polite) = (place("10.77.0.7 "), place("10.77.0.8 "));
        let limit = line(text, "packets ");
        let minute = line(text, "last 60 s  passed ").and_then(|line| line.split_once("throttled"));
        is_refused(text)
            && minute
                .is_some_and(|(passed, throttled)| passed.contains('█') && throttled.contains('█'))
            && greedy.is_some_and(|greedy| polite.is_some_and(|polite| greedy < polite))
            // As of an attack, if it has begun.
            && text.starts_with("weir  ")
            && text.lines().next().is_some_and(|head| head.contains("enforce  weir0"))
            && limit.is_some_and(|limit| limit.contains("1000/s packets") && limit.ends_with('%'))
    });

    terminal.press("p");
    terminal.wait("pause", |text| text.contains("PAUSED"));
    let (mut held, mut since) = (String::new(), Instant::now());
    // After the rest of the screen that the pause began with, it stays for longer than the interval of updates.
    terminal.wait("rest", |text| {
        if text != held {
            (held, since) = (text.to_owned(), Instant::now());
        }
        since.elapsed() >= Duration::from_millis(2_500)
    });
    terminal.press("p");
    terminal.wait("motion", |text| !text.contains("PAUSED") && *text != *held);

    terminal.press("/10.77.0.8\r");
    terminal.wait("filter", |text| {
        let has = |source| line(text, source).is_some();
        !has("10.77.0.7") && has("10.77.0.8") && text.contains("1 in 10.77.0.8")
    });
    terminal.press("c");
    terminal.wait("all", |text| line(text, "10.77.0.7").is_some());
    terminal.press("?");
    terminal.wait("help", |text| text.contains("pause and go on"));
    terminal.press(" ");
    terminal.wait("view", |text| !text.contains("pause and go on"));
    // Refusals are in colour.
    assert!(String::from_utf8_lossy(&terminal.shown.lock().unwrap().bytes).contains("\x1b[38;"));
    terminal.press("q");
    assert!(terminal.end().success());
}

fn the_live_view_ends_by_key_and_signal_and_gives_the_terminal_back() {
    let network = Network::new();
    let _agent = network.start("", LIMIT);
    for (nth, key) in ["\x1b", "\x03", ""].into_iter().enumerate() {
        let mut terminal = Terminal::new(|sit_down| {
            network.spawn(&["top"], |command| {
                sit_down(command);
                command.env("NO_COLOR", "1").env("LC_ALL", "C");
            })
        });
        terminal.wait("view", |text| text.contains("q quit"));
        if nth == 0 {
            terminal.press("s");
            terminal.wait("other order", |text| text.contains("by passed/s"));
        }
        terminal.press(key);
        if key.is_empty() {
            let process = nix::unistd::Pid::from_raw(terminal.child.id() as i32);
            nix::sys::signal::kill(process, Signal::SIGTERM).unwrap();
        }
        let shown = Arc::clone(&terminal.shown);
        let status = terminal.end();
        assert!(status.success(), "after {key:?}: {status}");
        let shown = shown.lock().unwrap();
        let written = String::from_utf8_lossy(&shown.bytes);
        assert!(
            !written.contains("\x1b[38;") && !written.contains("\x1b[48;"),
            "NO_COLOR is not heeded"
        );
        assert!(
            !written.contains("last 60 s"),
            "the locale has no characters for it"
        );
    }
}

fn the_live_view_ends_when_the_agent_goes() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let terminal = Terminal::top(&network);
    terminal.wait("view", |text| text.contains("q quit"));
    agent.stop(Signal::SIGTERM);
    terminal.wait("word of it", |text| {
        text.contains("it stopped, or is restarting")
    });
    assert_eq!(terminal.end().code(), Some(1));
}

fn a_panic_gives_the_terminal_back_before_it_speaks() {
    let terminal = Terminal::new(|sit_down| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(PANIC, "1");
        sit_down(&mut command);
        command.spawn().unwrap()
    });
    // On the terminal's own screen, where it stays to be read.
    terminal.wait("word of it", |text| {
        text.contains("a panic that the test wants")
    });
    assert!(!terminal.end().success());
}

fn without_a_terminal_the_live_view_says_what_to_type_instead() {
    let network = Network::new();
    let output = network.command(&["top"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("requires a terminal") && said.contains("agent top --once"),
        "{said}"
    );
    let output = network.command(&["top", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8(output.stderr)
            .unwrap()
            .contains("top --once --json")
    );
    // A terminal and no agent: said without taking the screen.
    let terminal = Terminal::top(&network);
    terminal.wait("word of it", |text| text.contains("no agent replies on"));
    assert_eq!(terminal.end().code(), Some(1));
}
