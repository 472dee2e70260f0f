//! How fast a capture is replayed: `weir replay` over a file in the page cache.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use testbed::measure::Series;
use testbed::random::Random;

use crate::flood::frame;

/// Packets of a capture.
const PACKETS: u32 = 2_000_000;
const SOURCES: [u32; 3] = [1_000, 100_000, 1_000_000];
/// The first byte of an IPv4 header's source address in a frame.
const SOURCE: usize = 14 + 12;

/// Measures what has `only` in its name; `part` is the part of the benchmark that it belongs to.
pub fn run(part: &'static str, agent: &Path, rounds: usize, only: &str) -> Result<Vec<Series>> {
    let mut series = Vec::new();
    for sources in SOURCES {
        let case = format!("replay, sources: {sources}");
        if !case.contains(only) {
            continue;
        }
        let folder = tempfile::tempdir()?;
        let capture = folder.path().join("flood.pcap");
        write_capture(&capture, sources).context("writing a capture")?;
        let config = folder.path().join("limits.toml");
        let limit = "[[limit]]\nname = \"a\"\nrate = \"100/s\"\nburst = 200\n";
        std::fs::write(
            &config,
            format!(
                "[agent]\ninterfaces = [\"eth0\"]\nmax_sources = {}\n{limit}",
                2 * sources
            ),
        )?;
        let arguments: [PathBuf; 4] = ["replay".into(), "--config".into(), config, capture];
        let samples = (0..rounds)
            .map(|_| nanoseconds(agent, &arguments))
            .collect::<Result<_>>()?;
        series.push(Series::new(part, case, "weir", "ns a packet").with(samples));
    }
    Ok(series)
}

/// A pcap (the format of libpcap's pcap-savefile(5)) of frames in 10 µs steps, from sources at random.
fn write_capture(path: &Path, sources: u32) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let header = [0xa1b2_c3d4, 2 | 4 << 16, 0, 0, 65_535, 1u32];
    file.write_all(&header.map(u32::to_ne_bytes).concat())?;
    let mut frame = frame();
    let length = u32::try_from(frame.len())?;
    let mut random = Random::new(1);
    for nth in 0..PACKETS {
        let source = 0x0b00_0000 + random.below(u64::from(sources)) as u32;
        frame[SOURCE..SOURCE + 4].copy_from_slice(&source.to_be_bytes());
        let record = [
            1_700_000_000 + nth / 100_000,
            nth % 100_000 * 10,
            length,
            length,
        ];
        file.write_all(&record.map(u32::to_ne_bytes).concat())?;
        file.write_all(&frame)?;
    }
    Ok(file.flush()?)
}

/// The CPU time of a run for each packet, with its start and its report.
fn nanoseconds(agent: &Path, arguments: &[PathBuf]) -> Result<f64> {
    let used = || -> Result<i64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        Ok((usage.user_time() + usage.system_time()).num_microseconds())
    };
    let before = used()?;
    let status = Command::new(agent)
        .args(arguments)
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "agent replay ended with {status}");
    Ok((used()? - before) as f64 * 1e3 / f64::from(PACKETS))
}
