//! Reads the packets of one capture.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::packet::{Direction, Link};
use pcap_parser::{PcapHeader, nom};

use super::block::{BlockRead, ByteOrder, Origin, Record, understood};
use super::error::CaptureError;
use super::interface::{Clock, Interface, InterfaceNames, SECOND, TimeUnit};
use super::link::{self, Framed, LinkType};
use super::source::{Compression, Source};
use super::window::{More, Window};

/// The longest packet that tools write (libpcap's `MAXIMUM_SNAPLEN`).
const LONGEST_PACKET: u32 = 262_144;
/// The length of a record's header in pcap, and in the variant of early Linux tools.
const RECORD: usize = 16;
const MODIFIED_RECORD: usize = 24;

#[derive(Clone, Copy, Debug)]
pub struct CapturedPacket<'a> {
    /// Nanoseconds since 1970; `None` if the packet has no time.
    pub nanoseconds: Option<u64>,
    /// The frame's first header.
    pub link: Link,
    /// The captured part of the frame.
    pub frame: &'a [u8],
    /// The length of the whole frame at the hook.
    pub length: u32,
    /// The interface's number, from 1.
    pub interface: u32,
    /// Whether it is from a capture of all interfaces, which may have it several times.
    pub is_of_all_interfaces: bool,
    /// The direction, if the capture has it.
    pub direction: Option<Direction>,
}

/// The skipped packets of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Packets by the number of an unsupported link type.
    pub link_types: BTreeMap<u32, u64>,
    /// Packets that end within the capture's own header.
    pub headerless: u64,
}

/// The format of records.
#[derive(Debug)]
enum Format {
    Pcap {
        order: ByteOrder,
        header: usize,
        unit: u64,
        interface: Interface,
    },
    Pcapng {
        order: ByteOrder,
        interfaces: Vec<Interface>,
    },
}

/// Reads one capture.
pub struct Capture {
    path: PathBuf,
    window: Window,
    format: Format,
    compression: Compression,
    read: Arc<AtomicU64>,
    length: Option<u64>,
    skipped: Skipped,
    origin: Origin,
    /// Reassembled frames that lacked the hook's header.
    scratch: Vec<u8>,
    /// Interface numbers by the index in a cooked header.
    by_index: HashMap<u32, u32, foldhash::fast::RandomState>,
    current: Option<(Record, Framed)>,
    time: Option<u64>,
    packets: u64,
}

impl Capture {
    /// Opens a file, a pipe or, as `-`, standard input.
    ///
    /// # Errors
    ///
    /// When it cannot be read or is not a capture.
    pub fn open(path: &Path, names: &mut InterfaceNames) -> Result<Self, CaptureError> {
        Self::of(path, Source::open(path)?, names)
    }

    /// Reads a capture from a stream; `path` names it in errors.
    ///
    /// # Errors
    ///
    /// As [`Capture::open`].
    pub fn from_stream(
        path: &Path,
        stream: impl Read + 'static,
        names: &mut InterfaceNames,
    ) -> Result<Self, CaptureError> {
        Self::of(path, Source::of(path, stream, None)?, names)
    }

    fn of(path: &Path, source: Source, names: &mut InterfaceNames) -> Result<Self, CaptureError> {
        const HEADER: usize = 24;
        let mut window = Window::new(source.bytes);
        let fails = |source| CaptureError::Read {
            path: path.to_owned(),
            offset: 0,
            source,
        };
        while window.data().len() < HEADER {
            if window.more().map_err(fails)? != More::Some {
                break;
            }
        }
        let format = match pcap_parser::parse_pcap_header(window.data()) {
            Ok((_, header)) => {
                window.consume(HEADER);
                Self::pcap(path, &header, names)?
            }
            _ if window.data().starts_with(&0x0a0d_0d0a_u32.to_be_bytes()) => Format::Pcapng {
                order: ByteOrder::Little,
                interfaces: Vec::new(),
            },
            Err(nom::Err::Incomplete(_)) => {
                return Err(CaptureError::Truncated {
                    path: path.to_owned(),
                    offset: 0,
                });
            }
            Err(_) => {
                return Err(CaptureError::Format {
                    path: path.to_owned(),
                });
            }
        };
        Ok(Self {
            path: path.to_owned(),
            window,
            format,
            compression: source.compression,
            read: source.read,
            length: source.length,
            skipped: Skipped::default(),
            origin: Origin::default(),
            scratch: Vec::new(),
            by_index: HashMap::default(),
            current: None,
            time: None,
            packets: 0,
        })
    }

    fn pcap(
        path: &Path,
        header: &PcapHeader,
        names: &mut InterfaceNames,
    ) -> Result<Format, CaptureError> {
        let network = header.network.0 as u32;
        // The lower half is the type. If bit 26 is set, the upper four bits are the length of a frame check sequence in
        // words.
        let link_number = network & 0xffff;
        let check_bytes = if network & 1 << 26 != 0 {
            (network >> 28) * 2
        } else {
            0
        };
        let Some(link) = LinkType::of(link_number) else {
            return Err(CaptureError::LinkType {
                path: path.to_owned(),
                number: link_number,
            });
        };
        let unit = if header.is_nanosecond_precision() {
            1
        } else {
            1_000
        };
        Ok(Format::Pcap {
            order: if header.is_bigendian() {
                ByteOrder::Big
            } else {
                ByteOrder::Little
            },
            header: if header.is_modified_format() {
                MODIFIED_RECORD
            } else {
                RECORD
            },
            unit,
            interface: Interface {
                link: Some(link),
                link_number,
                clock: Clock {
                    unit: TimeUnit::Nanoseconds(unit),
                    offset: 0,
                },
                number: names.unnamed(),
                snap_length: header.snaplen,
                check_bytes,
            },
        })
    }

    /// The path with which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `pcap` or `pcapng`.
    #[must_use]
    pub const fn format(&self) -> &'static str {
        match self.format {
            Format::Pcap { .. } => "pcap",
            Format::Pcapng { .. } => "pcapng",
        }
    }

    /// The compression.
    #[must_use]
    pub const fn compression(&self) -> Compression {
        self.compression
    }

    /// The bytes of the file read so far, and its length if known.
    #[must_use]
    pub fn progress(&self) -> (u64, Option<u64>) {
        (self.read.load(Ordering::Relaxed), self.length)
    }

    /// The packets skipped so far.
    #[must_use]
    pub const fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// What it records about itself, as far as it was read.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Reads the next packet; `false` at the end.
    ///
    /// # Errors
    ///
    /// When the rest cannot be read. All packets before it have been returned.
    pub fn advance(&mut self, names: &mut InterfaceNames) -> Result<bool, CaptureError> {
        self.current = None;
        loop {
            let Some(mut record) = self.record(names)? else {
                return Ok(false);
            };
            self.window.consume(record.length);
            let Some(link) = record.interface.link else {
                *self
                    .skipped
                    .link_types
                    .entry(record.interface.link_number)
                    .or_default() += 1;
                continue;
            };
            let packet =
                self.window
                    .behind(record.length, record.packet.start, record.packet.len());
            let Some(framed) = link.frame(packet) else {
                self.skipped.headerless += 1;
                continue;
            };
            if let Some(ethertype) = framed.header {
                link::with_header(&mut self.scratch, ethertype, &packet[framed.frame.clone()]);
            }
            if let Some(index) = framed.interface {
                record.interface.number = self.number_of_index(index, names);
            }
            self.time = record.nanoseconds.or(self.time);
            self.packets += 1;
            self.current = Some((record, framed));
            return Ok(true);
        }
    }

    /// The capture time of the packet, or of the last one before it that has a time.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.time.unwrap_or(0)
    }

    /// The number of packets read.
    #[must_use]
    pub const fn packets(&self) -> u64 {
        self.packets
    }

    /// The packet of the last [`Capture::advance`].
    #[must_use]
    #[inline]
    pub fn packet(&self) -> Option<CapturedPacket<'_>> {
        let (record, framed) = self.current.as_ref()?;
        let packet = self
            .window
            .behind(record.length, record.packet.start, record.packet.len());
        // A packet on the wire is at least as long as its captured part.
        let wire = i64::from(record.wire_length).max(packet.len() as i64)
            - i64::from(record.interface.check_bytes);
        let length = u32::try_from((wire + framed.longer).max(0)).unwrap_or(u32::MAX);
        let frame = if framed.header.is_some() {
            self.scratch.as_slice()
        } else {
            &packet[framed.frame.clone()]
        };
        Some(CapturedPacket {
            nanoseconds: record.nanoseconds,
            link: framed.link,
            frame: &frame[..frame.len().min(length as usize)],
            length,
            interface: record.interface.number,
            is_of_all_interfaces: framed.interface.is_some(),
            direction: record.direction.or(framed.direction),
        })
    }

    fn number_of_index(&mut self, index: u32, names: &mut InterfaceNames) -> u32 {
        if let Some(number) = self.by_index.get(&index) {
            return *number;
        }
        let number = names.number_of(&format!("index {index}"), false);
        if self.by_index.len() < InterfaceNames::MOST {
            self.by_index.insert(index, number);
        }
        number
    }

    /// Reads the next packet's record into the window.
    fn record(&mut self, names: &mut InterfaceNames) -> Result<Option<Record>, CaptureError> {
        match &mut self.format {
            Format::Pcap { .. } => self.pcap_record(),
            Format::Pcapng { .. } => loop {
                match self.block(names)? {
                    BlockRead::Packet(record) => return Ok(Some(record)),
                    BlockRead::Other(length) => self.window.consume(length),
                    BlockRead::End => return Ok(None),
                }
            },
        }
    }

    fn pcap_record(&mut self) -> Result<Option<Record>, CaptureError> {
        let Format::Pcap {
            order,
            header,
            unit,
            interface,
        } = self.format
        else {
            return Ok(None);
        };
        if !self.has(header)? {
            return if self.window.data().is_empty() {
                Ok(None)
            } else {
                Err(self.truncated())
            };
        }
        let data = self.window.data();
        let word = |nth: usize| {
            let bytes = data[4 * nth..].first_chunk().copied().unwrap_or_default();
            if order == ByteOrder::Big {
                u32::from_be_bytes(bytes)
            } else {
                u32::from_le_bytes(bytes)
            }
        };
        let (seconds, fraction, captured, wire_length) = (word(0), word(1), word(2), word(3));
        if captured > interface.snap_length.max(LONGEST_PACKET) {
            return Err(CaptureError::Length {
                path: self.path.clone(),
                offset: self.window.offset(),
                length: captured,
            });
        }
        let length = header + captured as usize;
        if !self.has(length)? {
            return Err(self.truncated());
        }
        Ok(Some(Record {
            length,
            packet: header..length,
            wire_length,
            nanoseconds: Some(u64::from(seconds) * SECOND + u64::from(fraction) * unit),
            direction: None,
            interface,
        }))
    }

    /// Reads until `length` bytes are available; `false` at the end.
    fn has(&mut self, length: usize) -> Result<bool, CaptureError> {
        while self.window.data().len() < length {
            match self.window.more() {
                Ok(More::Some) => {}
                Ok(More::End) => return Ok(false),
                Ok(More::TooLong) => return Err(self.too_long(length)),
                Err(error) => return Err(self.unreadable(error)),
            }
        }
        Ok(true)
    }

    /// Reads the next block.
    fn block(&mut self, names: &mut InterfaceNames) -> Result<BlockRead, CaptureError> {
        const LEAST: usize = 12;
        loop {
            let Format::Pcapng { order, interfaces } = &mut self.format else {
                return Ok(BlockRead::End);
            };
            let parse = match order {
                ByteOrder::Little => pcap_parser::parse_block_le,
                ByteOrder::Big => pcap_parser::parse_block_be,
            };
            let data = self.window.data();
            match parse(data) {
                Ok((rest, block)) => {
                    let length = data.len() - rest.len();
                    return match understood(
                        length,
                        &block,
                        order,
                        interfaces,
                        names,
                        &mut self.origin,
                    ) {
                        Ok(read) => Ok(read),
                        Err(reason) => Err(CaptureError::Block {
                            path: self.path.clone(),
                            offset: self.window.offset(),
                            reason,
                        }),
                    };
                }
                Err(nom::Err::Incomplete(_)) => {
                    let wanted = data.len().max(LEAST) + 1;
                    let is_empty = data.is_empty();
                    match self.window.more() {
                        Ok(More::Some) => {}
                        Ok(More::End) if is_empty => return Ok(BlockRead::End),
                        Ok(More::End) => return Err(self.truncated()),
                        Ok(More::TooLong) => return Err(self.too_long(wanted)),
                        Err(error) => return Err(self.unreadable(error)),
                    }
                }
                Err(_) => {
                    return Err(CaptureError::Block {
                        path: self.path.clone(),
                        offset: self.window.offset(),
                        reason: "its lengths contradict each other",
                    });
                }
            }
        }
    }

    fn truncated(&self) -> CaptureError {
        CaptureError::Truncated {
            path: self.path.clone(),
            offset: self.window.offset(),
        }
    }

    fn too_long(&self, length: usize) -> CaptureError {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        CaptureError::Length {
            path: self.path.clone(),
            offset: self.window.offset(),
            length,
        }
    }

    fn unreadable(&self, source: std::io::Error) -> CaptureError {
        if self.compression != Compression::None
            && source.kind() == std::io::ErrorKind::UnexpectedEof
        {
            return self.truncated();
        }
        CaptureError::Read {
            path: self.path.clone(),
            offset: self.window.offset(),
            source,
        }
    }
}
