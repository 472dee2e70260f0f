//! The programs that are measured, loaded: Weir as its agent loads it, and those built for the benchmark.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};
use aya::maps::{Array, ProgramArray};
use aya::programs::{ProgramFd, SchedClassifier, TcAttachType, TestRun as _, TestRunOptions, Xdp};
use aya::{Ebpf, EbpfLoader, Pod};
use common::packet::Direction;
use datapath::compile::compile;
use datapath::{Datapath, Entry, PinDirectory};

/// Where `cargo xtask bench` puts the programs built for it.
pub const OBJECTS: &str = "WEIR_BENCH_OBJECTS";

/// In which order sources take their turns; as in harness.c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Order {
    /// One after the other.
    Orderly = 0,
    /// Any of them, whichever was before.
    Random = 1,
    /// Every one only once, of [`Order::MOST_NEW`].
    New = 2,
}

impl Order {
    /// From 64.0.0.0 on, up to 95.255.255.255: all of them addresses that a host may have.
    pub const MOST_NEW: u64 = 1 << 29;
}

/// As in harness.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Walk {
    position: u64,
    keys: u64,
    order: u32,
    first: u32,
    interval: u64,
    latest: u64,
    due: u64,
    sent: u64,
    waited: u64,
    polite_every: u64,
}

/// How packets follow each other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Nanoseconds from one to the next, 0 for as fast as it goes.
    pub interval: u64,
    /// So late that what was missed is lost, in nanoseconds.
    pub latest: u64,
    /// When the first one is due, in nanoseconds of CLOCK_MONOTONIC.
    pub first_due: u64,
    /// Every so many, one is from a polite source, of which there are 50 from 172.16.0.1 on; 0 for none.
    pub polite_every: u64,
}

/// A sender's progress since its walk began.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Packets sent.
    pub packets: u64,
    /// How often it ran before one was due.
    pub waited: u64,
}

/// As in harness.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Headers {
    are_renewed: u16,
    bytes: [u8; 54],
}

// SAFETY: integers without padding, laid out as in C.
unsafe impl Pod for Walk {}
// SAFETY: as above.
unsafe impl Pod for Headers {}

/// Reads one of the objects built for the benchmark.
fn object(name: &str) -> Result<Vec<u8>> {
    let folder = std::env::var_os(OBJECTS)
        .with_context(|| format!("{OBJECTS} is not set: run `cargo xtask bench`"))?;
    let path = Path::new(&folder).join(name);
    std::fs::read(&path).with_context(|| format!("reading {}", path.display()))
}

/// Pins of one policy, gone when dropped.
struct Pins(PathBuf);

impl Drop for Pins {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A policy in the kernel.
pub struct Weir {
    pub datapath: Datapath,
    _pins: Pins,
}

impl Weir {
    /// Loads a policy, from the text of a limits.toml, through the agent's own code.
    pub fn load(text: &str, entry: Entry) -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let pins = Pins(PathBuf::from(format!(
            "/sys/fs/bpf/weir-tb{}-{number}",
            std::process::id()
        )));
        let loaded = config::parse(Path::new("limits.toml"), text)
            .map_err(|report| anyhow::anyhow!("{report}"))?;
        let image = compile(&loaded.config, Direction::Ingress)?;
        let mut datapath = Datapath::load(image, &PinDirectory::open(&pins.0)?)?;
        datapath.prepare(entry)?;
        Ok(Self {
            datapath,
            _pins: pins,
        })
    }
}

/// The minimal limiter: one packet each `emission_ns`, `tolerance_ns` ahead of that at most.
pub fn minimal(emission_ns: u64, tolerance_ns: u64) -> Result<Ebpf> {
    let mut loader = EbpfLoader::new();
    loader
        .override_global("EMISSION_NS", &emission_ns, true)
        .override_global("TOLERANCE_NS", &tolerance_ns, true);
    let mut ebpf = loader
        .load(&object("minimal.o")?)
        .context("loading minimal.o")?;
    load_xdp(&mut ebpf, "minimal")?;
    Ok(ebpf)
}

/// Generator, sender, and programs that only drop.
pub struct Harness(Ebpf);

impl Harness {
    /// Loads them. `interface` is where the sender sends to.
    pub fn load(interface: u32) -> Result<Self> {
        let mut loader = EbpfLoader::new();
        loader.override_global("INTERFACE", &interface, true);
        let mut ebpf = loader
            .load(&object("harness.o")?)
            .context("loading harness.o")?;
        for name in ["drop", "pass", "generate", "send"] {
            load_xdp(&mut ebpf, name)?;
        }
        let tc: &mut SchedClassifier = ebpf
            .program_mut("drop_by_tc")
            .context("harness.o has no drop_by_tc")?
            .try_into()?;
        tc.load()?;
        Ok(Self(ebpf))
    }

    /// The next packet is of the first of `keys` sources, and packets follow each other as fast as it goes.
    pub fn walk(&mut self, order: Order, keys: u64) -> Result<()> {
        self.walk_paced(order, keys, Pace::default())
    }

    /// The same, evenly.
    pub fn walk_paced(&mut self, order: Order, keys: u64, pace: Pace) -> Result<()> {
        let Pace {
            interval,
            latest,
            first_due: due,
            polite_every,
        } = pace;
        let first = u32::from_be_bytes([if order == Order::New { 64 } else { 10 }, 0, 0, 0]);
        let order = order as u32;
        let walk = Walk {
            position: 0,
            keys,
            order,
            first,
            interval,
            latest,
            due,
            sent: 0,
            waited: 0,
            polite_every,
        };
        let mut map =
            Array::<_, Walk>::try_from(self.0.map_mut("WALK").context("harness.o has no WALK")?)?;
        Ok(map.set(0, walk, 0)?)
    }

    /// Has its sender write the headers of `frame`, Ethernet, IPv4 and TCP, before each packet: the kernel sends the same
    /// memory again, as the program that received it has left it.
    pub fn renew(&mut self, frame: &[u8]) -> Result<()> {
        let headers = frame.first_chunk().context("the frame has no TCP header")?;
        let mut map = Array::<_, Headers>::try_from(
            self.0
                .map_mut("HEADERS")
                .context("harness.o has no HEADERS")?,
        )?;
        Ok(map.set(
            0,
            Headers {
                are_renewed: 1,
                bytes: *headers,
            },
            0,
        )?)
    }

    /// Its sender's progress since the walk began.
    pub fn sent(&self) -> Result<Sent> {
        let map = Array::<_, Walk>::try_from(self.0.map("WALK").context("harness.o has no WALK")?)?;
        let walk = map.get(&0, 0)?;
        Ok(Sent {
            packets: walk.sent,
            waited: walk.waited,
        })
    }

    /// Has the generator hand its packets to `program`.
    pub fn aim(&mut self, program: &ProgramFd) -> Result<()> {
        let mut map =
            ProgramArray::try_from(self.0.map_mut("NEXT").context("harness.o has no NEXT")?)?;
        Ok(map.set(0, program, 0)?)
    }

    /// One of its XDP programs.
    pub fn xdp(&self, name: &str) -> Result<&Xdp> {
        xdp(&self.0, name)
    }

    /// One of its XDP programs, to attach it.
    pub fn xdp_mut(&mut self, name: &str) -> Result<&mut Xdp> {
        Ok(self
            .0
            .program_mut(name)
            .with_context(|| format!("there is no program {name}"))?
            .try_into()?)
    }

    /// Attaches its program for traffic control, which drops, to what an interface receives.
    pub fn attach_drop_by_tc(&mut self, interface: &str) -> Result<()> {
        let program: &mut SchedClassifier = self
            .0
            .program_mut("drop_by_tc")
            .context("harness.o has no drop_by_tc")?
            .try_into()?;
        program
            .attach(interface, TcAttachType::Ingress)
            .context("attaching drop_by_tc")?;
        Ok(())
    }

    /// Runs its program for traffic control and returns the verdict.
    pub fn run_drop_by_tc(&self, options: TestRunOptions<'_>) -> Result<u32> {
        let program: &SchedClassifier = self
            .0
            .program("drop_by_tc")
            .context("harness.o has no drop_by_tc")?
            .try_into()?;
        Ok(program.test_run(options)?.return_value)
    }
}

fn load_xdp(ebpf: &mut Ebpf, name: &str) -> Result<()> {
    let program: &mut Xdp = ebpf
        .program_mut(name)
        .with_context(|| format!("there is no program {name}"))?
        .try_into()?;
    program.load().with_context(|| format!("loading {name}"))
}

/// An XDP program of an object.
pub fn xdp<'e>(ebpf: &'e Ebpf, name: &str) -> Result<&'e Xdp> {
    Ok(ebpf
        .program(name)
        .with_context(|| format!("there is no program {name}"))?
        .try_into()?)
}
