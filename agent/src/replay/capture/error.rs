//! Errors of captures.

use std::io;
use std::path::PathBuf;

use host::PROGRAM;
use thiserror::Error;

/// Why a capture could not be read, or not to its end.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// It cannot be opened.
    #[error("capture {}: cannot be opened: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// Standard input is a terminal.
    #[error(
        "standard input is a terminal: pipe a capture into it, as in tcpdump -w - | {PROGRAM} replay -"
    )]
    Terminal,
    /// The capture is empty.
    #[error("capture {}: empty: it has no bytes, not even a header", path.display())]
    Empty { path: PathBuf },
    /// The compression is not supported.
    #[error("capture {}: compressed with {compression}, which is not supported: decompress it, as in {compression} -dc FILE | {PROGRAM} replay -", path.display())]
    Compression {
        path: PathBuf,
        /// The compression's name, which is that of the program.
        compression: &'static str,
    },
    /// The format is neither pcap nor pcapng.
    #[error("capture {}: neither pcap nor pcapng: write it with tcpdump -w or dumpcap -w", path.display())]
    Format { path: PathBuf },
    /// The link type is not supported.
    #[error("capture {}: link type {number} is not supported: only Ethernet (1), raw IP (101, 228, 229) and Linux cooked (113, 276) are", path.display())]
    LinkType {
        path: PathBuf,
        /// The number in <https://www.tcpdump.org/linktypes.html>.
        number: u32,
    },
    /// The capture ends within a record.
    #[error("capture {}: truncated within the record at byte {offset}; the packets before it are evaluated", path.display())]
    Truncated {
        path: PathBuf,
        /// The offset in the decompressed capture.
        offset: u64,
    },
    /// The record's length is impossible.
    #[error("capture {}: damaged: the record at byte {offset} is {length} bytes long or longer; the packets before it are evaluated", path.display())]
    Length {
        path: PathBuf,
        /// The offset in the decompressed capture.
        offset: u64,
        /// The length in the record.
        length: u32,
    },
    /// A block is inconsistent.
    #[error("capture {}: damaged: the block at byte {offset} is invalid: {reason}; the packets before it are evaluated", path.display())]
    Block {
        path: PathBuf,
        /// The offset in the decompressed capture.
        offset: u64,
        reason: &'static str,
    },
    /// A read failed, or the compressed data is damaged.
    #[error("capture {}: reading failed at byte {offset}: {source}; the packets before it are evaluated", path.display())]
    Read {
        path: PathBuf,
        /// The offset in the decompressed capture.
        offset: u64,
        source: io::Error,
    },
}
