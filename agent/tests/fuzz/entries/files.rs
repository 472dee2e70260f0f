//! Files that others provide, and those of an earlier agent.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::hash::Hasher as _;
use std::io::Cursor;
use std::path::Path;

use common::packet::{Depth, parse};
use config::PrefixKey;
use config::ban_list::Column;
use config::policy::{Country, GeoKey, GeoKind, ListFormat};
use siphasher::sip::SipHasher13;
use tempfile::TempDir;
use weir::daemon::state::{Saved, StateDirectory};
use weir::replay::CapturedFrame;
use weir::replay::capture::{Capture, InterfaceNames};

/// A short capture has no more packets, unless it is compressed.
const MOST_PACKETS: usize = 20_000;
/// The state file's format.
const STATE: &[u8; 8] = b"WEIRST01";
/// The number of a network that seeds have.
const NETWORK: u32 = 64_500;

/// The prefixes of a list in any format are distinct and in order.
pub fn list(bytes: &[u8]) {
    let formats = [
        ListFormat::Plain,
        ListFormat::Netset,
        ListFormat::Csv(Column::Number(1)),
        ListFormat::Csv(Column::Name("ip".to_owned())),
        ListFormat::Json("cidr".to_owned()),
    ];
    for format in &formats {
        let Ok(parsed) = lists::parse(bytes, format) else {
            continue;
        };
        let is_cut = |prefix: &PrefixKey| prefix.cut(prefix.length) == *prefix;
        assert!(
            parsed.prefixes.is_sorted_by(|one, other| one < other)
                && parsed.prefixes.iter().all(is_cut),
            "{format:?}: {:?}",
            parsed.prefixes
        );
        assert_eq!(parsed.invalid > 0, parsed.note().is_some());
    }
}

/// A capture is read to its end or to an error, and no packet is longer than it was on the wire.
pub fn capture(bytes: &[u8]) {
    let mut names = InterfaceNames::with_unnamed(Some("eth0"));
    let stream = Cursor::new(bytes.to_vec());
    let Ok(mut capture) = Capture::from_stream(Path::new("capture"), stream, &mut names) else {
        return;
    };
    for _ in 0..MOST_PACKETS {
        let Ok(true) = capture.advance(&mut names) else {
            return;
        };
        let packet = capture.packet().expect("a packet after an advance");
        assert!(packet.frame.len() <= packet.length as usize);
        let is_cut = Cell::new(false);
        let frame = CapturedFrame::new(&packet, &is_cut);
        let _ = parse(&frame, packet.link, Depth::Requests);
    }
}

/// A database is refused, or its prefixes are those of the requested keys.
pub fn mmdb(bytes: &[u8]) {
    let country = Country::new("XX").expect("a country's code");
    let wanted = BTreeSet::from([GeoKey::Asn(NETWORK), GeoKey::Country(country)]);
    for kind in GeoKind::ALL {
        let read = geo::Database::read(bytes, kind, &wanted, kind == GeoKind::Asn);
        let Ok(database) = read else {
            continue;
        };
        assert!(database.prefixes.keys().all(|key| wanted.contains(key)));
        assert!(!database.database_type.contains(char::is_control));
    }
}

thread_local! {
    static DIRECTORY: TempDir = {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        tempfile::tempdir_in(folder).expect("a directory for state files")
    };
}

/// A state file is damaged, or what it says is read again as written. `bytes` is the document and, behind a zero byte, the
/// words: header and checksum are right.
pub fn state(bytes: &[u8]) {
    let length = bytes.iter().position(|byte| *byte == 0);
    let length = length.unwrap_or(bytes.len());
    let words = bytes.get(length + 1..).unwrap_or_default();
    let body = [&bytes[..length], words].concat();
    let length = (length as u64).to_le_bytes();
    let mut hasher = SipHasher13::new();
    hasher.write(&length);
    hasher.write(&body);
    let checksum = hasher.finish().to_le_bytes();
    let file = [&STATE[..], &checksum, &length, &body].concat();
    DIRECTORY.with(|directory| {
        std::fs::write(directory.path().join("state"), file).expect("a state file");
        let directory = StateDirectory::at(directory.path());
        let Ok(Some(saved)) = Saved::read(&directory) else {
            return;
        };
        saved
            .write(&directory)
            .expect("a state that was read is written");
        let again = Saved::read(&directory).expect("what was written is valid");
        assert_eq!(again.map(|again| again.bans), Some(saved.bans));
    });
}
