//! Forwards and counts the output of test programs.

use std::fmt;
use std::io::{self, BufRead, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for the last output.
const GRACE: Duration = Duration::from_millis(300);

/// The sums of all test programs' result lines.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Tally {
    pub programs: usize,
    pub passed: usize,
    pub failed: usize,
    pub ignored: usize,
}

impl std::ops::AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.programs += other.programs;
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

impl Tally {
    /// Adds a line if it is a result line such as `test result: ok. 34 passed; 0 failed; 1 ignored; 0 measured; …`.
    pub fn take(&mut self, line: &str) {
        let Some((_, counts)) = line
            .strip_prefix("test result: ")
            .and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        self.programs += 1;
        for count in counts.split("; ") {
            match count
                .split_once(' ')
                .and_then(|(number, what)| Some((number.parse::<usize>().ok()?, what)))
            {
                Some((number, "passed")) => self.passed += number,
                Some((number, "failed")) => self.failed += number,
                Some((number, "ignored")) => self.ignored += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.ignored
        )
    }
}

/// Forwards lines as they come, and adds up their results. Ends with the output, or soon after `has_ended`: a process
/// that a test left running may keep the output open, and is ended only afterwards.
pub fn forward(
    from: impl BufRead + Send + 'static,
    to: &mut impl Write,
    mut has_ended: impl FnMut() -> io::Result<bool>,
) -> io::Result<Tally> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        from.split(b'\n')
            .map_while(|line| sender.send(line).ok())
            .for_each(drop);
    });
    let mut tally = Tally::default();
    let mut deadline = None;
    while deadline.is_none_or(|deadline| Instant::now() < deadline) {
        match lines.recv_timeout(GRACE) {
            Ok(line) => {
                let mut line = line?;
                tally.take(&String::from_utf8_lossy(&line));
                line.push(b'\n');
                to.write_all(&line)?;
                to.flush()?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if deadline.is_none() && has_ended()? {
            deadline = Some(Instant::now() + GRACE);
        }
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io::BufReader;

    use super::*;

    #[test]
    fn closing_lines_are_passed_on_and_added_up() {
        let output = "running 3 tests\ntest a ... ok\n\n\
                      test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.40s\n\
                      test result: FAILED. 5 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1s\n";
        let mut shown = Vec::new();
        let tally = forward(output.as_bytes(), &mut shown, || Ok(false)).unwrap();
        assert_eq!(String::from_utf8(shown).unwrap(), output);
        assert_eq!(
            tally,
            Tally {
                programs: 2,
                passed: 7,
                failed: 1,
                ignored: 1
            }
        );
        assert_eq!(tally.to_string(), "7 passed, 1 failed, 1 skipped");
    }

    /// Records whether anything was written.
    struct Record<'r>(&'r Cell<bool>);

    impl Write for Record<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.set(true);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn output_that_is_held_open_does_not_hold_up_the_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writeln!(writer, "test result: ok. 2 passed; 0 failed; 0 ignored").unwrap();
        let is_shown = Cell::new(false);
        let has_ended = || Ok(is_shown.get());
        let tally = forward(BufReader::new(reader), &mut Record(&is_shown), has_ended).unwrap();
        assert_eq!(tally.passed, 2);
        drop(writer);
    }
}
