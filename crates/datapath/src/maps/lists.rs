//! Ban lists: a map of search trees, which replaces the one in effect as a whole.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{ArrayOfMaps, Map, MapData};
use bpf::syscall;
use common::list::build::ListTrees;
use common::list::{CHUNK_WORDS, Chunk, MOST_LISTS, refused_word};
use common::prefix::Line;
use memmap2::{MmapOptions, MmapRaw};

use super::inner::{self, MapAttributes};
use crate::error::LoadError;

/// From `enum bpf_cmd` and `enum bpf_map_type` of Linux's uapi/linux/bpf.h.
const BPF_BTF_LOAD: libc::c_long = 18;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
/// `BPF_F_MMAPABLE` and `BPF_F_INNER_MAP`, as in the object. The latter allows any number of elements.
const FLAGS: u32 = 1 << 10 | 1 << 12;

/// The part of `union bpf_attr` for loading BTF.
#[repr(C)]
struct BtfAttributes {
    btf: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    _pad: u32,
}

/// The IDs of the types in [`btf`].
const INDEX_TYPE: u32 = 1;
const CHUNK_TYPE: u32 = 4;

/// The types of a map's keys and values (`struct btf_header`, `struct btf_type` of uapi/linux/btf.h). Linux before 6.2
/// accepts an inner map only if it has BTF like the one that the object declares: `bpf_map_meta_equal` compares
/// `timer_off`, which is another error without BTF, and for a type that is no struct.
fn btf() -> Vec<u8> {
    const INT: u32 = 1 << 24;
    const ARRAY: u32 = 3 << 24;
    const STRUCT_OF_ONE: u32 = 4 << 24 | 1;
    let strings = *b"\0u\0";
    // Each type: its name, its kind, its size, and what its kind adds.
    let words = CHUNK_WORDS as u32;
    let types = [
        [1, INT, 4, 32].as_slice(),
        &[1, INT, 8, 64],
        &[0, ARRAY, 0, 2, INDEX_TYPE, words],
        &[1, STRUCT_OF_ONE, 8 * words, 1, 3, 0],
    ]
    .concat();
    let (types_size, strings_size) = (4 * types.len() as u32, strings.len() as u32);
    let mut bytes = Vec::new();
    bytes.extend(0xeb9f_u16.to_ne_bytes());
    // Version 1, no flags.
    bytes.extend([1, 0]);
    for word in [24, 0, types_size, types_size, strings_size]
        .into_iter()
        .chain(types)
    {
        bytes.extend(word.to_ne_bytes());
    }
    bytes.extend(strings);
    bytes
}

/// A file descriptor of [`btf`].
fn load_btf() -> io::Result<OwnedFd> {
    let btf = btf();
    let mut attributes = BtfAttributes {
        btf: btf.as_ptr() as u64,
        log: 0,
        size: btf.len() as u32,
        log_size: 0,
        log_level: 0,
        _pad: 0,
    };
    // SAFETY: the BTF is live and as long as given; the command returns a descriptor.
    unsafe { syscall::descriptor(BPF_BTF_LOAD, &mut attributes) }
}

fn create_array(chunks: u32) -> io::Result<OwnedFd> {
    let btf = load_btf()?;
    inner::create(MapAttributes {
        map_type: BPF_MAP_TYPE_ARRAY,
        key_size: size_of::<u32>() as u32,
        value_size: size_of::<Chunk>() as u32,
        max_entries: chunks,
        map_flags: FLAGS,
        map_name: *b"LISTS.inner\0\0\0\0\0",
        btf_fd: btf.as_raw_fd() as u32,
        btf_key_type_id: INDEX_TYPE,
        btf_value_type_id: CHUNK_TYPE,
        ..MapAttributes::default()
    })
}

/// A map of ban lists.
#[derive(Debug)]
pub struct ListMap {
    map: MapData,
    memory: MmapRaw,
    bytes: u64,
}

impl ListMap {
    /// Creates a map with this content.
    ///
    /// # Errors
    ///
    /// When the kernel has not enough memory.
    pub fn create(trees: &ListTrees) -> Result<Self, LoadError> {
        let bytes = trees.bytes();
        let map =
            create_array(trees.chunks()).map_err(|source| LoadError::Lists { bytes, source })?;
        let map = MapData::from_fd(map)?;
        let memory = MmapOptions::new()
            .len(bytes as usize)
            .map_raw(map.fd().as_fd().as_raw_fd())
            .map_err(LoadError::Mmap)?;
        let filter = trees.filter_chunk() as usize * CHUNK_WORDS;
        // SAFETY: the head is one chunk, the lines and the filter fit into theirs, and nothing else uses the new map yet.
        unsafe {
            let words = memory.as_mut_ptr().cast::<u64>();
            words.copy_from_nonoverlapping(trees.head.as_ptr(), CHUNK_WORDS.min(trees.head.len()));
            words
                .add(CHUNK_WORDS)
                .cast::<Line>()
                .copy_from_nonoverlapping(trees.lines.as_ptr(), trees.lines.len());
            words
                .add(filter)
                .copy_from_nonoverlapping(trees.filter.as_ptr(), trees.filter.len());
        }
        Ok(Self { map, memory, bytes })
    }

    /// Bytes of kernel memory.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The packets that each list has refused, in the order of their numbers.
    #[must_use]
    pub fn refused(&self) -> Vec<u64> {
        let word = |list: u32| {
            // SAFETY: a word of the first chunk, which is mapped for as long as `self` lives.
            let word = unsafe {
                AtomicU64::from_ptr(
                    self.memory
                        .as_mut_ptr()
                        .cast::<u64>()
                        .add(refused_word(list) as usize),
                )
            };
            word.load(Ordering::Relaxed)
        };
        (1..=MOST_LISTS as u32).map(word).collect()
    }

    /// Puts the lists in effect, from the next packet on.
    pub(crate) fn put(&self, lists: &mut Map) -> Result<(), LoadError> {
        let mut outer = ArrayOfMaps::<_, MapData>::try_from(lists)?;
        Ok(outer.set(0, &self.map, 0)?)
    }
}

/// Whether any lists are in effect, as those of an earlier agent.
pub(crate) fn are_in_effect(lists: &Map) -> Result<bool, LoadError> {
    inner::outer(lists)
        .and_then(|lists| inner::has(lists, 0))
        .map_err(|source| LoadError::Lists { bytes: 0, source })
}

/// Puts no lists in effect. Returns whether there were any.
pub(crate) fn remove(lists: &Map) -> Result<bool, LoadError> {
    inner::outer(lists)
        .and_then(|lists| inner::remove(lists, 0))
        .map_err(|source| LoadError::Lists { bytes: 0, source })
}
