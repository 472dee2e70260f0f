//! Runs test programs at the same time: most of their tests wait, so that one alone leaves the CPUs idle.
//!
//! Each program's output goes to a file, so that outputs do not mix, and is shown whole when the program ends, and
//! what failed once more at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;

/// How often the running programs are shown.
const EVERY: Duration = Duration::from_secs(60);
/// How many of its last lines are repeated of a program that failed without a list of failed tests.
const LAST_LINES: usize = 40;

/// A program to run.
pub struct Job {
    /// Its name in the output; unique.
    pub name: String,
    pub command: Command,
}

enum Event {
    Started(String),
    Ended(Ended),
}

struct Ended {
    name: String,
    /// Or why it has none.
    status: Result<ExitStatus, String>,
    output: String,
    time: Duration,
}

impl Ended {
    /// A program that ends well without a result line may have ended before its tests.
    fn has_failed(&self) -> bool {
        !self.status.as_ref().is_ok_and(ExitStatus::success) || self.tally().programs == 0
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.output.lines().for_each(|line| tally.take(line));
        tally
    }

    fn outcome(&self) -> String {
        match &self.status {
            Ok(status) if status.success() && self.has_failed() => {
                "no line \"test result\"".to_owned()
            }
            Ok(status) if status.success() => self.tally().to_string(),
            Ok(status) => format!("{}; {status}", self.tally()),
            Err(error) => error.clone(),
        }
    }

    /// The reason of its failure: from the list of failed tests on, or the last lines.
    fn failure(&self) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        let list = lines.iter().position(|line| *line == "failures:");
        lines[list.unwrap_or(lines.len().saturating_sub(LAST_LINES))..].join("\n")
    }
}

/// Runs up to `lanes` jobs at a time in the order in which `provide` sends them, which may build programs meanwhile. Prints
/// to `to`; keeps what the programs print in `folder`. Fails if one of them did, after all have ended.
pub fn run(
    provide: impl FnOnce(&Sender<Job>) -> Result<()> + Send,
    lanes: usize,
    folder: &Path,
    to: &mut impl Write,
) -> Result<Tally> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let (sender, jobs) = mpsc::channel();
    let (provided, ended) = thread::scope(|scope| {
        let providing = scope.spawn(move || provide(&sender));
        let ended = run_in_lanes(jobs, lanes, folder, to);
        (providing.join(), ended)
    });
    let ended = ended.context("showing what the tests print")?;
    let mut total = Tally::default();
    ended.iter().for_each(|ended| total += &ended.tally());
    let failed: Vec<&Ended> = ended.iter().filter(|ended| ended.has_failed()).collect();
    for ended in &failed {
        writeln!(
            to,
            "\nfailed     {}: {}\n{}",
            ended.name,
            ended.outcome(),
            ended.failure()
        )?;
    }
    writeln!(to, "total: {total}")?;
    let provided = provided.unwrap_or_else(|_| bail!("building the tests panicked"));
    if let Err(error) = &provided {
        writeln!(
            to,
            "\nfailed     building the tests: {error:#}; the rest did not run"
        )?;
    }
    if !failed.is_empty() {
        let names: Vec<&str> = failed.iter().map(|ended| ended.name.as_str()).collect();
        bail!(
            "{} of {} test programs failed: {}",
            failed.len(),
            ended.len(),
            names.join(", ")
        );
    }
    provided?;
    Ok(total)
}

fn run_in_lanes(
    jobs: Receiver<Job>,
    lanes: usize,
    folder: &Path,
    to: &mut impl Write,
) -> io::Result<Vec<Ended>> {
    let queue = Mutex::new(jobs);
    let next = || {
        queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .recv()
            .ok()
    };
    let (sender, events) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..lanes {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some(job) = next() {
                    run_one(job, folder, &sender);
                }
            });
        }
        drop(sender);
        let (mut running, mut ended) = (BTreeMap::new(), Vec::new());
        loop {
            match events.recv_timeout(EVERY) {
                Ok(Event::Started(name)) => {
                    writeln!(to, "running    {name}")?;
                    running.insert(name, Instant::now());
                }
                Ok(Event::Ended(one)) => {
                    running.remove(&one.name);
                    writeln!(to, "\noutput     {}", one.name)?;
                    to.write_all(one.output.as_bytes())?;
                    writeln!(
                        to,
                        "ended      {} after {:.0} s: {}",
                        one.name,
                        one.time.as_secs_f64(),
                        one.outcome()
                    )?;
                    ended.push(one);
                }
                Err(RecvTimeoutError::Timeout) => {
                    let for_how_long = |(name, start): (&String, &Instant)| {
                        format!("{name} for {:.0} s", start.elapsed().as_secs_f64())
                    };
                    let list: Vec<String> = running.iter().map(for_how_long).collect();
                    writeln!(to, "running    {}", list.join(", "))?;
                }
                Err(RecvTimeoutError::Disconnected) => return Ok(ended),
            }
            to.flush()?;
        }
    })
}

/// Runs a job to its end. A failed send means that nobody shows anything any more.
fn run_one(mut job: Job, folder: &Path, events: &Sender<Event>) {
    let _ = events.send(Event::Started(job.name.clone()));
    let (start, file) = (Instant::now(), file_of(&job.name, folder));
    // A file has an end when the program has ended, also if a test left a process that holds it open.
    let status = into(&mut job.command, &file)
        .and_then(|command| command.status())
        .map_err(|error| format!("running it with its output in {}: {error}", file.display()));
    let output = fs::read(&file)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default();
    let _ = events.send(Event::Ended(Ended {
        name: job.name,
        status,
        output,
        time: start.elapsed(),
    }));
}

/// Has a command write both of its outputs into a file.
fn into<'a>(command: &'a mut Command, file: &Path) -> io::Result<&'a mut Command> {
    let file = File::create(file)?;
    Ok(command
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file))
}

fn file_of(name: &str, folder: &Path) -> PathBuf {
    folder.join(format!(
        "{}.log",
        name.replace([',', ' '], "").replace('/', "-")
    ))
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;

    use super::*;

    fn job(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: name.to_owned(),
            command,
        }
    }

    fn shown(jobs: Vec<Job>) -> (Result<Tally>, String) {
        let (folder, mut to) = (tempfile::tempdir().unwrap(), Vec::new());
        let provide = |queue: &Sender<Job>| {
            jobs.into_iter().for_each(|job| queue.send(job).unwrap());
            Ok(())
        };
        let outcome = run(provide, 2, folder.path(), &mut to);
        (outcome, String::from_utf8(to).unwrap())
    }

    #[test]
    fn outputs_are_whole_and_totals_add_up() {
        let talk = "for nth in 1 2 3; do echo line $nth; echo error $nth >&2; sleep 0.05; done
                    echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'";
        let (outcome, shown) = shown(vec![job("a/one", talk), job("two", talk)]);
        assert_eq!(
            outcome.unwrap(),
            Tally {
                programs: 2,
                passed: 4,
                failed: 0,
                ignored: 2
            }
        );
        let whole = "line 1\nerror 1\nline 2\nerror 2\nline 3\nerror 3\ntest result: ok. 2 passed";
        assert_eq!(shown.matches(whole).count(), 2, "{shown}");
        assert!(
            shown.contains("running    a/one\n")
                && shown.ends_with("total: 4 passed, 0 failed, 2 skipped\n")
        );
    }

    #[test]
    fn a_failed_program_ends_no_other_and_is_shown_again() {
        let failing = "printf 'much\\n\\nfailures:\\n    a_test\\n\\n'
                       echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
        let jobs = vec![
            job("failing", failing),
            job("killed", "echo last words; kill -9 $$"),
            job(
                "fine",
                "sleep 0.2; echo 'test result: ok. 3 passed; 0 failed; 0 ignored'",
            ),
        ];
        let (outcome, shown) = shown(jobs);
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.starts_with("2 of 3 test programs failed: "),
            "{error}"
        );
        assert!(
            error.contains("failing") && error.contains("killed") && !error.contains("fine"),
            "{error}"
        );
        assert_eq!(
            (
                shown.matches("much").count(),
                shown.matches("a_test").count()
            ),
            (1, 2),
            "{shown}"
        );
        assert_eq!(shown.matches("last words").count(), 2, "{shown}");
        assert!(
            shown.ends_with("total: 4 passed, 1 failed, 0 skipped\n"),
            "{shown}"
        );
    }

    #[test]
    fn jobs_run_before_the_last_one_is_built_and_a_failed_build_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("ran");
        let script = format!("touch {}; echo 'test result: ok. 1 passed'", mark.display());
        let (mut to, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(120));
        let provide = |queue: &Sender<Job>| {
            queue.send(job("first", &script)).unwrap();
            while !mark.exists() {
                assert!(Instant::now() < deadline, "the first job does not run");
                thread::sleep(Duration::from_millis(5));
            }
            bail!("the second one is not built")
        };
        let outcome = run(provide, 2, folder.path(), &mut to);
        assert_eq!(
            outcome.unwrap_err().to_string(),
            "the second one is not built"
        );
        assert!(
            String::from_utf8(to)
                .unwrap()
                .contains("1 passed, 0 failed")
        );
    }

    #[test]
    fn a_program_that_cannot_be_started_is_a_failure() {
        let missing = Job {
            command: Command::new("/nonexistent/program"),
            ..job("missing", "")
        };
        let (outcome, shown) = shown(vec![missing]);
        assert!(
            outcome.is_err() && shown.contains("No such file"),
            "{shown}"
        );
    }

    #[test]
    fn a_program_that_ends_well_without_a_result_is_a_failure() {
        let (outcome, shown) = shown(vec![job("silent", "echo running 3 tests")]);
        assert!(outcome.unwrap_err().to_string().contains("silent"));
        assert!(
            shown.contains("failed     silent: no line \"test result\"\nrunning 3 tests"),
            "{shown}"
        );
    }

    #[test]
    fn a_process_that_a_test_left_running_does_not_hold_up_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let pid = folder.path().join("pid");
        let script = format!(
            "sleep 1000 & echo $! > {}; echo 'test result: ok. 1 passed; 0 failed; 0 ignored'",
            pid.display()
        );
        let (outcome, _) = shown(vec![job("parent", &script)]);
        assert_eq!(outcome.unwrap().passed, 1);
        let pid = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        // Fails if it has ended.
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
}
