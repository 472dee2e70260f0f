//! `weir record --capture`: writes packets for `weir replay`.
//!
//! The agent sends them, and this command writes the file: with its own rights, at any path, and as its own user.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use api::capture::{CaptureEnd, CaptureOf, CapturePart, CaptureSummary, LENGTHS, wrong_length};
use api::request::Request;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use config::human;
use host::PROGRAM;

use super::exit::usage;
use super::print::Print;
use super::table::number;
use crate::cli::arguments::Options;
use crate::follower::{self, End, Watched};
use crate::pcapng::{self, Sample};
use crate::replay::capture::STANDARD_INPUT;
use crate::server::control::{Client, ClientError};

/// The length of a capture without `--for`.
const LENGTH: Duration = Duration::from_secs(600);
/// How long the agent may take to send the rest after a signal.
const GRACE: Duration = Duration::from_secs(5);
/// The room for the number of lost packets at the end.
const LOST_BYTES: u64 = 64;

/// What is captured, and where to.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub file: PathBuf,
    pub sample: Sample,
    pub most_bytes: u64,
    pub length: Option<Duration>,
    pub force: bool,
}

pub fn capture(wanted: &Wanted, options: &Options) -> anyhow::Result<ExitCode> {
    let length = wanted.length.unwrap_or(LENGTH);
    if !LENGTHS.contains(&length) {
        return Ok(usage(&wrong_length(length)));
    }
    let print = Print::from(options.json);
    let is_standard = wanted.file.as_os_str() == STANDARD_INPUT;
    if let Some(error) = refusal(wanted, is_standard, print) {
        return Ok(usage(&error));
    }
    let Sample { one_in, of } = wanted.sample;
    let request = Request::Capture {
        one_in,
        of,
        for_seconds: length.as_secs_f64(),
    };
    let client = options.client();
    let (stream, mut parts) = client.capture(&request)?;
    let first = parts.next().ok_or_else(|| client.gone())??;
    let mut file = if is_standard {
        Destination::standard()
    } else {
        Destination::open(wanted)?
    };
    first
        .notes
        .iter()
        .for_each(|note| eprintln!("note: {note}"));
    watch(&client, &stream)?;
    let outcome = write(
        &mut file,
        wanted.most_bytes,
        &stream,
        std::iter::once(Ok(first)).chain(parts),
    );
    // The agent ends the capture, also if this command failed.
    let _ = stream.shutdown(Shutdown::Both);
    let (end, notes, error) = match outcome {
        Ok((end, notes)) => (end, notes, None),
        Err(error) => (CaptureEnd::Client, Vec::new(), Some(error)),
    };
    let closed = file.close();
    let summary = CaptureSummary {
        file: wanted.file.display().to_string(),
        packets: file.packets,
        bytes: file.bytes,
        lost: file.lost,
        one_in,
        of,
        end,
        notes,
    };
    match (print, is_standard) {
        // Standard output has the packets.
        (_, true) => eprintln!("{}", text(&summary)),
        (print, false) => print.document(&summary, |summary| println!("{}", text(summary)))?,
    }
    if let Some(error) = error {
        return Err(error.context(format!(
            "the capture ended early; {} is complete until then",
            wanted.file.display()
        )));
    }
    closed.with_context(|| format!("writing {} failed", wanted.file.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Why these arguments are wrong.
fn refusal(wanted: &Wanted, is_standard: bool, print: Print) -> Option<String> {
    let file = wanted.file.display();
    if is_standard {
        if print == Print::Json {
            return Some(
                "--json conflicts with --capture -, which writes packets to standard output"
                    .to_owned(),
            );
        }
        let is_terminal = io::stdout().is_terminal();
        return is_terminal.then(|| {
            format!(
                "standard output is a terminal: name a file, or pipe it into {PROGRAM} replay -"
            )
        });
    }
    if wanted.most_bytes < 4_096 {
        return Some(format!(
            "invalid --max-size {}B: write at least 4KiB",
            wanted.most_bytes
        ));
    }
    match wanted.file.symlink_metadata() {
        Ok(_) if !wanted.force => Some(format!(
            "{file} exists: name another file, or replace it with --force"
        )),
        Ok(metadata) if metadata.is_dir() => {
            Some(format!("{file} is a directory: name a file in it"))
        }
        _ => None,
    }
}

/// Ends the capture at a signal, or when the terminal or the reader of standard output is closed.
fn watch(client: &Client, stream: &UnixStream) -> anyhow::Result<()> {
    let stream = stream.try_clone().context("watching for signals")?;
    let watched = Watched {
        signals: Some(follower::signals().context("watching for signals")?),
        agent: client.process(),
    };
    let end = move |reason| {
        // The agent sends the rest, and then closes the connection.
        let _ = stream.shutdown(Shutdown::Write);
        if reason != End::Agent {
            thread::sleep(GRACE);
        }
        let _ = stream.shutdown(Shutdown::Both);
    };
    follower::watch(watched, end).context("starting a thread")
}

/// Writes the parts until the capture ends. Returns the reason, and notes for the operator.
fn write(
    file: &mut Destination,
    most_bytes: u64,
    stream: &UnixStream,
    parts: impl Iterator<Item = Result<CapturePart, ClientError>>,
) -> anyhow::Result<(CaptureEnd, Vec<String>)> {
    let mut is_full = false;
    for part in parts {
        let part = part?;
        let blocks = STANDARD
            .decode(&part.blocks)
            .context("the agent's reply has another format")?;
        file.lost = part.lost;
        if !is_full {
            let room = most_bytes.saturating_sub(file.bytes + LOST_BYTES);
            is_full = file
                .write(&blocks, room)
                .with_context(|| format!("writing {} failed", file.name))?;
            if is_full {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        if let Some(end) = part.end {
            return Ok((if is_full { CaptureEnd::Size } else { end }, part.notes));
        }
    }
    anyhow::bail!("the agent closed the connection: it stopped, or is restarting")
}

/// The file.
struct Destination {
    name: String,
    out: Output,
    /// Written so far: whole blocks.
    bytes: u64,
    packets: u64,
    lost: u64,
    has_interface: bool,
}

enum Output {
    File(File),
    Standard(io::Stdout),
}

impl Destination {
    fn standard() -> Self {
        Self::of("standard output".to_owned(), Output::Standard(io::stdout()))
    }

    const fn of(name: String, out: Output) -> Self {
        Self {
            name,
            out,
            bytes: 0,
            packets: 0,
            lost: 0,
            has_interface: false,
        }
    }

    /// Creates the file, for its owner alone. With `--force`, an existing file is replaced, and a device or a named pipe is
    /// written to.
    fn open(wanted: &Wanted) -> anyhow::Result<Self> {
        let path: &Path = &wanted.file;
        let name = path.display().to_string();
        let creating = || format!("creating {name} failed");
        let existing = path
            .symlink_metadata()
            .ok()
            .map(|metadata| metadata.file_type())
            .filter(|_| wanted.force);
        let is_stream = existing
            .is_some_and(|kind| kind.is_char_device() || kind.is_fifo() || kind.is_block_device());
        if existing.is_some() && !is_stream {
            std::fs::remove_file(path).with_context(creating)?;
        }
        let mut how = OpenOptions::new();
        how.write(true).mode(0o600);
        // Never another user's file, or through another user's link.
        let file = if is_stream {
            how.open(path)
        } else {
            how.create_new(true).open(path)
        }
        .with_context(creating)?;
        Ok(Self::of(name, Output::File(file)))
    }

    /// Writes the blocks that fit into the room; returns whether some do not. After an error, the file ends with a whole
    /// block.
    fn write(&mut self, blocks: &[u8], room: u64) -> io::Result<bool> {
        let (mut length, mut packets, mut is_full) = (0, 0, false);
        for (block, is_packet) in pcapng::blocks(blocks) {
            if (length + block.len()) as u64 > room {
                is_full = true;
                break;
            }
            length += block.len();
            packets += u64::from(is_packet);
        }
        if let Err(error) = self.put(&blocks[..length]) {
            if let Output::File(file) = &self.out {
                let _ = file.set_len(self.bytes);
            }
            return Err(error);
        }
        self.bytes += length as u64;
        self.packets += packets;
        self.has_interface |= packets > 0;
        Ok(is_full)
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.out {
            Output::File(file) => file.write_all(bytes),
            Output::Standard(out) => out.write_all(bytes).and_then(|()| out.flush()),
        }
    }

    /// Adds the number of lost packets, and writes the file to its disk.
    fn close(&mut self) -> io::Result<()> {
        if self.lost > 0 && self.has_interface {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            let mut block = Vec::new();
            pcapng::lost(
                &mut block,
                u64::try_from(now.as_nanos()).unwrap_or_default(),
                self.lost,
            );
            self.write(&block, LOST_BYTES)?;
        }
        match &self.out {
            // Pipes and devices have no disk.
            Output::File(file) if file.metadata()?.is_file() => file.sync_all(),
            Output::File(_) | Output::Standard(_) => Ok(()),
        }
    }
}

fn text(summary: &CaptureSummary) -> String {
    let CaptureSummary {
        file,
        packets,
        bytes,
        lost,
        one_in,
        of,
        end,
        notes,
    } = summary;
    let what = if *of == CaptureOf::Refused {
        "refused packets"
    } else {
        "packets"
    };
    let mut text = format!(
        "{} {what} in {}: {file}",
        number(*packets),
        human::size(*bytes)
    );
    if *one_in > 1 {
        text.push_str(&format!(
            "\nsample: one in {} sources",
            number((*one_in).into())
        ));
    }
    if *end == CaptureEnd::Size {
        text.push_str("\nended by its size: --max-size");
    }
    if *lost > 0 {
        text.push_str(&format!(
            "\nnote: {} packets of the sample were lost: they came faster than they were read; capture fewer sources with --sample",
            number(*lost)
        ));
    }
    notes
        .iter()
        .for_each(|note| text.push_str(&format!("\nnote: {note}")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_never_exceeds_its_room_and_ends_with_a_whole_block() {
        let mut blocks = Vec::new();
        pcapng::section(
            &mut blocks,
            Sample {
                one_in: 1,
                of: CaptureOf::All,
            },
        );
        let section = blocks.len() as u64;
        pcapng::interface(&mut blocks, "eth0", false);
        for _ in 0..3 {
            pcapng::packet(&mut blocks, 0, 0, &Default::default(), &[0; 60]);
        }
        let whole = blocks.len() as u64;
        for room in 0..=whole {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("a.pcapng");
            let sample = Sample {
                one_in: 1,
                of: CaptureOf::All,
            };
            let wanted = Wanted {
                file: file.clone(),
                sample,
                most_bytes: room,
                length: None,
                force: false,
            };
            let mut destination = Destination::open(&wanted).unwrap();
            assert_eq!(destination.write(&blocks, room).unwrap(), room < whole);
            let written = std::fs::read(&file).unwrap();
            assert!(written.len() as u64 <= room && (room < section) == written.is_empty());
            assert_eq!(
                pcapng::blocks(&written)
                    .map(|(block, _)| block.len())
                    .sum::<usize>(),
                written.len()
            );
            assert_eq!(
                (destination.bytes, destination.packets),
                (
                    written.len() as u64,
                    pcapng::blocks(&written).filter(|(_, is)| *is).count() as u64
                )
            );
            assert!(Destination::open(&wanted).is_err(), "it exists");
        }
    }

    #[test]
    fn the_summary_has_what_is_missing() {
        let summary = CaptureSummary {
            file: "/tmp/x.pcapng".to_owned(),
            packets: 1_234,
            bytes: 256 << 10,
            lost: 12,
            one_in: 100,
            of: CaptureOf::Refused,
            end: CaptureEnd::Size,
            notes: Vec::new(),
        };
        let text = text(&summary);
        assert!(
            text.starts_with(
                "1,234 refused packets in 256 KiB: /tmp/x.pcapng\nsample: one in 100 sources\n"
            ),
            "{text}"
        );
        assert!(
            text.contains("ended by its size")
                && text.contains("12 packets of the sample were lost"),
            "{text}"
        );
    }
}
