//! The part of a capture in memory: records are parsed in place, without copies.

use std::io::{self, Read};

/// The bytes of one read.
const CHUNK: usize = 1 << 18;
/// The longest record. Packets have at most 256 KiB; blocks of names or secrets may be longer.
pub(super) const LONGEST: usize = 16 << 20;

/// A sliding window over a stream.
pub(super) struct Window {
    source: Box<dyn Read>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Where the window starts in the decompressed stream.
    offset: u64,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// More bytes were read.
    Some,
    /// The stream has ended.
    End,
    /// A record exceeds the maximum.
    TooLong,
}

impl Window {
    pub(super) fn new(source: Box<dyn Read>) -> Self {
        Self {
            source,
            buffer: vec![0; CHUNK],
            start: 0,
            end: 0,
            offset: 0,
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Bytes that may start before the last [`Window::consume`].
    pub(super) fn behind(&self, length: usize, from: usize, count: usize) -> &[u8] {
        let start = self.start - length + from;
        &self.buffer[start..start + count]
    }

    pub(super) fn consume(&mut self, length: usize) {
        self.start += length;
        self.offset += length as u64;
    }

    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Reads more bytes.
    pub(super) fn more(&mut self) -> io::Result<More> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            if self.end >= LONGEST {
                return Ok(More::TooLong);
            }
            self.buffer.resize(self.end * 2, 0);
        }
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Ok(More::End),
                Ok(length) => {
                    self.end += length;
                    return Ok(More::Some);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
