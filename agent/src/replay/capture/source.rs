//! The bytes of a capture: from a file, a pipe or standard input, decompressed and counted.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use super::CaptureError;

/// The path for standard input.
pub const STANDARD_INPUT: &str = "-";

/// The number of bytes that identify the compression.
const MAGIC: usize = 6;

/// The compression of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// RFC 1952, in one member or several.
    Gzip,
    /// RFC 8878, in one frame or several.
    Zstd,
}

impl Compression {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// From a file's first bytes; `Err`: the name of an unsupported compression.
    fn of(magic: &[u8]) -> Result<Self, &'static str> {
        match magic {
            [0x1f, 0x8b, ..] => Ok(Self::Gzip),
            // The second one is a skippable frame, with which parallel compressors start.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Ok(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Err("xz"),
            [b'B', b'Z', b'h', ..] => Err("bzip2"),
            [0x04, 0x22, 0x4d, 0x18, ..] => Err("lz4"),
            _ => Ok(Self::None),
        }
    }
}

/// A capture's bytes, and the read position.
pub(super) struct Source {
    /// Decompressed.
    pub(super) bytes: Box<dyn Read>,
    pub(super) compression: Compression,
    /// The bytes of the file read so far, before decompression.
    pub(super) read: Arc<AtomicU64>,
    /// The length of the file; `None` for a pipe.
    pub(super) length: Option<u64>,
}

impl Source {
    pub(super) fn open(path: &Path) -> Result<Self, CaptureError> {
        let fails = |source| CaptureError::Open {
            path: path.to_owned(),
            source,
        };
        if path == Path::new(STANDARD_INPUT) {
            if io::IsTerminal::is_terminal(&io::stdin()) {
                return Err(CaptureError::Terminal);
            }
            return Self::of(path, io::stdin(), None);
        }
        let file = File::open(path).map_err(fails)?;
        let metadata = file.metadata().map_err(fails)?;
        Self::of(path, file, metadata.is_file().then_some(metadata.len()))
    }

    pub(super) fn of(
        path: &Path,
        bytes: impl Read + 'static,
        length: Option<u64>,
    ) -> Result<Self, CaptureError> {
        let fails = |source| CaptureError::Open {
            path: path.to_owned(),
            source,
        };
        let read = Arc::new(AtomicU64::new(0));
        let mut bytes = Counted {
            bytes,
            read: Arc::clone(&read),
        };
        let mut magic = Vec::with_capacity(MAGIC);
        bytes
            .by_ref()
            .take(MAGIC as u64)
            .read_to_end(&mut magic)
            .map_err(fails)?;
        if magic.is_empty() {
            return Err(CaptureError::Empty {
                path: path.to_owned(),
            });
        }
        let compression =
            Compression::of(&magic).map_err(|compression| CaptureError::Compression {
                path: path.to_owned(),
                compression,
            })?;
        let bytes = io::Cursor::new(magic).chain(bytes);
        let bytes: Box<dyn Read> = match compression {
            Compression::None => Box::new(bytes),
            Compression::Gzip => Box::new(MultiGzDecoder::new(io::BufReader::with_capacity(
                1 << 17,
                bytes,
            ))),
            Compression::Zstd => Box::new(zstd::Decoder::new(bytes).map_err(fails)?),
        };
        Ok(Self {
            bytes,
            compression,
            read,
            length,
        })
    }
}

/// Counts the bytes read.
struct Counted<R> {
    bytes: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.bytes.read(buffer)?;
        self.read.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}
