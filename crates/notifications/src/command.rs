//! Commands: without a shell, with a bounded time and output, and ended with all of their processes.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use config::human;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// The output that errors quote.
const QUOTED: usize = 500;
/// A command that writes more than this is killed.
const MOST_OUTPUT: u64 = 1 << 20;
/// The interval at which a running command is ended if its `[[notify]]` is not in effect any more.
const LOOK: Duration = Duration::from_millis(100);
/// The environment: nothing of the agent's, which has the service manager's variables.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs a command that reads `body` from standard input; the error is its reason.
pub fn run(
    command: &[String],
    name: &str,
    body: &str,
    timeout: Duration,
    is_stopped: &AtomicBool,
) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else {
        return Err("empty command".to_owned());
    };
    let began = Instant::now();
    let input =
        input(body).map_err(|error| format!("preparing the input of {program} failed: {error}"))?;
    let (output, writer) =
        io::pipe().map_err(|error| format!("making a pipe for {program} failed: {error}"))?;
    let prepared = rustix::io::ioctl_fionbio(&output, true)
        .map_err(io::Error::from)
        .and_then(|()| writer.try_clone());
    let error_writer =
        prepared.map_err(|error| format!("making a pipe for {program} failed: {error}"))?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", PATH)
        .env("WEIR_NOTIFY", name)
        .current_dir("/");
    command
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(writer))
        .stderr(Stdio::from(error_writer));
    command.process_group(0);
    // SAFETY: the closure only makes system calls, and allocates nothing.
    unsafe {
        command.pre_exec(isolate);
    }
    let spawned = command.spawn();
    // It owns ends of the pipe.
    drop(command);
    let child = spawned.map_err(|error| format!("starting {program} failed: {error}"))?;
    // The agent's own value protects it from the kernel's choice; the command takes the default. Best effort.
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "0");
    let mut run = Run {
        child,
        output,
        text: Vec::new(),
        written: 0,
    };
    let ended = run.wait(began, timeout, is_stopped);
    let status = run.end();
    let text = quoted(&run.text);
    match (ended, status) {
        (Ok(()), Ok(status)) if status.success() => Ok(()),
        (Ok(()), Ok(status)) => Err(format!("{program} {}{text}", outcome(status))),
        (Err(reason), _) => Err(format!("{program} {reason}{text}")),
        (Ok(()), Err(error)) => Err(format!("waiting for {program} failed: {error}")),
    }
}

/// In the child: no descriptor of the agent stays open, and the kernel kills it if the agent ends.
fn isolate() -> io::Result<()> {
    // SAFETY: it takes no pointers, and only marks descriptors of this process to be closed by `execve`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3u32,
            u32::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)
}

/// The document as a file in memory, so that the agent never waits for its reader.
fn input(body: &str) -> io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create(
        "weir-notification",
        MemfdFlags::CLOEXEC,
    )?);
    file.write_all(body.as_bytes())?;
    file.rewind()?;
    Ok(file)
}

/// A command that runs.
struct Run {
    child: Child,
    output: PipeReader,
    /// The start of its output.
    text: Vec<u8>,
    written: u64,
}

impl Run {
    /// Waits until it has exited, which leaves it as a zombie; the error is why it must be killed.
    fn wait(
        &mut self,
        began: Instant,
        timeout: Duration,
        is_stopped: &AtomicBool,
    ) -> Result<(), String> {
        let process = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .map_err(|error| format!("was killed: watching it failed: {error}"))?;
        let mut is_open = true;
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Err(format!(
                    "was killed: it did not end within {}",
                    human::time(timeout)
                ));
            }
            if is_stopped.load(Ordering::Relaxed) {
                return Err("was killed: it is not in the config any more".to_owned());
            }
            let mut watched = vec![PollFd::new(&process, PollFlags::IN)];
            if is_open {
                watched.push(PollFd::new(&self.output, PollFlags::IN));
            }
            let wait = Timespec::try_from(left.min(LOOK)).ok();
            match poll(&mut watched, wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(format!("was killed: watching it failed: {error}")),
            }
            let has_exited = !watched[0].revents().is_empty();
            if is_open {
                is_open = self.read()?;
            }
            if has_exited {
                return Ok(());
            }
        }
    }

    /// Reads what it wrote; `false` at its end.
    fn read(&mut self) -> Result<bool, String> {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.output.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(length) => {
                    let room = QUOTED.saturating_sub(self.text.len()).min(length);
                    self.text.extend_from_slice(&buffer[..room]);
                    self.written += length as u64;
                    if self.written > MOST_OUTPUT {
                        return Err(format!(
                            "was killed: it wrote more than {}",
                            human::size(MOST_OUTPUT)
                        ));
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Ok(false),
            }
        }
    }

    /// Kills what is left of its process group, and collects its exit status.
    fn end(&mut self) -> io::Result<ExitStatus> {
        // The command is at least a zombie until it is waited for: the group's number is its own. Fails if all are gone.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.child.wait()
    }
}

/// `exited with status 3` or `was killed by signal 9`.
fn outcome(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with status {code}"),
        (None, signal) => format!("was killed by signal {}", signal.unwrap_or_default()),
    }
}

/// `: ` and the start of the output; nothing if there is none.
fn quoted(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    let text = human::printable(&text.trim().replace('\n', " "));
    if text.is_empty() {
        text
    } else {
        format!(": {text}")
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use std::thread;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn shell(script: &str, body: &str, timeout: Duration) -> Result<(), String> {
        let command = ["/bin/sh", "-c", script].map(str::to_owned);
        run(&command, "pager", body, timeout, &AtomicBool::new(false))
    }

    fn is_running(pid: &str) -> bool {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    }

    /// Waits until a process has ended: a killed orphan is collected by another process.
    fn ends(pid: &str) {
        let began = Instant::now();
        while is_running(pid) {
            assert!(began.elapsed() < PATIENCE, "{pid} runs");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_command_reads_the_whole_document_and_nothing_of_the_agents() {
        let folder = tempfile::tempdir().unwrap();
        let [input, environment, descriptors] =
            ["input", "environment", "descriptors"].map(|name| folder.path().join(name));
        // One that is not closed by `execve`.
        let inherited = rustix::io::dup(fs::File::open("/dev/null").unwrap()).unwrap();
        let body = "{\"text\":\"ä\"}".repeat(100_000);
        let script = format!(
            "cat > {}; env > {}; ls /proc/$$/fd > {}",
            input.display(),
            environment.display(),
            descriptors.display()
        );
        shell(&script, &body, PATIENCE).unwrap();
        drop(inherited);
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        assert!(read(&input) == body);
        let names: Vec<String> = read(&environment)
            .lines()
            .filter_map(|line| Some(line.split_once('=')?.0.to_owned()))
            .collect();
        let known = ["PATH", "WEIR_NOTIFY", "PWD", "OLDPWD", "SHLVL", "_"];
        assert!(
            names.iter().all(|name| known.contains(&name.as_str())),
            "{names:?}"
        );
        // The shell itself may have the script or a copy of its own output at 10 and above.
        let open: Vec<u32> = read(&descriptors)
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
        assert!(
            open.iter().all(|number| *number < 3 || *number >= 10),
            "{open:?}"
        );
    }

    #[test]
    fn a_failure_has_its_status_and_the_start_of_its_output() {
        let error = shell("echo no route; echo at all >&2; exit 3", "", PATIENCE).unwrap_err();
        assert!(
            error.starts_with("/bin/sh exited with status 3: no route"),
            "{error}"
        );
        let error = shell("kill -TERM $$", "", PATIENCE).unwrap_err();
        assert_eq!(error, "/bin/sh was killed by signal 15");
        let missing = ["/no/such/program".to_owned()];
        let error = run(&missing, "pager", "", PATIENCE, &AtomicBool::new(false)).unwrap_err();
        assert!(
            error.starts_with("starting /no/such/program failed: "),
            "{error}"
        );
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!(
            "sleep 1000 & echo $! > {0}; echo $$ >> {0}; wait",
            pids.display()
        );
        let mut timeout = Duration::from_secs(1);
        let written = loop {
            let began = Instant::now();
            let error = shell(&script, "", timeout).unwrap_err();
            let elapsed = began.elapsed();
            let expected = format!(
                "/bin/sh was killed: it did not end within {}",
                human::time(timeout)
            );
            assert_eq!(error, expected);
            assert!(
                elapsed >= timeout && elapsed < timeout + PATIENCE,
                "{elapsed:?}"
            );
            let written = fs::read_to_string(&pids).unwrap_or_default();
            if written.lines().count() == 2 {
                break written;
            }
            // A busy host had not started both by then.
            timeout *= 2;
        };
        written.lines().for_each(ends);
    }

    #[test]
    fn children_of_a_command_are_killed_and_delay_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let began = Instant::now();
        // The child has the pipe open.
        shell(
            &format!("sleep 1000 & echo $! > {}", pid.display()),
            "",
            PATIENCE,
        )
        .unwrap();
        assert!(began.elapsed() < PATIENCE);
        ends(fs::read_to_string(&pid).unwrap().trim());
    }

    #[test]
    fn a_command_that_writes_without_end_is_killed() {
        let began = Instant::now();
        let error = shell("exec yes", "", PATIENCE).unwrap_err();
        assert!(
            error.starts_with("/bin/sh was killed: it wrote more than 1 MiB: y"),
            "{error}"
        );
        assert!(error.len() < 2 * QUOTED && began.elapsed() < PATIENCE);
    }

    #[test]
    fn a_command_of_a_removed_table_is_killed() {
        let is_stopped = AtomicBool::new(false);
        let command = ["/bin/sleep", "1000"].map(str::to_owned);
        let error = thread::scope(|scope| {
            let running = scope.spawn(|| run(&command, "pager", "", 10 * PATIENCE, &is_stopped));
            thread::sleep(Duration::from_millis(100));
            is_stopped.store(true, Ordering::Relaxed);
            running.join().unwrap().unwrap_err()
        });
        assert!(error.contains("not in the config any more"), "{error}");
    }
}
