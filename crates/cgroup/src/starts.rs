//! Events of process starts.

use std::error::Error;
use std::path::Path;

use aya::maps::{MapData, PerCpuArray, RingBuf};
use aya::programs::{ProgramError, RawTracePoint};
use aya::{Ebpf, EbpfLoader};
use bpf::btf::Btf;
use common::group::{GroupSettings, Started};
use tokio::io::unix::AsyncFd;

use super::error::GroupsError;
use super::kernel::{foreign, kernel, load, refused, wrong};

/// Room for some 16,000 unread starts.
const STARTED_BYTES: u32 = 256 << 10;

/// Events of process starts.
pub struct Starts {
    started: AsyncFd<RingBuf<MapData>>,
    missed: u64,
    // Detaches on drop.
    ebpf: Ebpf,
}

/// The events since the last read.
pub struct Heard {
    /// Processes that have started, in order.
    pub started: Vec<Started>,
    /// Whether events were lost.
    pub is_incomplete: bool,
}

impl Starts {
    /// Attaches programs that report every process that forks or executes a program.
    ///
    /// # Errors
    ///
    /// When a step fails. Without it, the scan finds processes later.
    pub fn watch(sys: &Path) -> Result<Self, GroupsError> {
        let what = "watching processes start";
        let fail = |error: &(dyn Error + 'static)| kernel(what, error);
        let btf =
            Btf::of_kernel(sys).map_err(|error| GroupsError::read(&error.path, error.source))?;
        let offset = |field| {
            btf.offset("task_struct", field)
                .ok_or_else(|| wrong(what, "task_struct is not as expected"))
        };
        let settings = GroupSettings {
            process_offset: offset("tgid")?,
            thread_offset: offset("pid")?,
            ..GroupSettings::NONE
        };
        let mut loader = EbpfLoader::new();
        loader
            .override_global("GROUP_SETTINGS", &settings, true)
            .map_max_entries("STARTED", STARTED_BYTES);
        let mut ebpf = load(&mut loader)?;
        for (name, tracepoint) in [
            ("weir_exec", "sched_process_exec"),
            ("weir_fork", "sched_process_fork"),
        ] {
            let program = ebpf.program_mut(name).ok_or_else(foreign)?;
            let program: &mut RawTracePoint = program
                .try_into()
                .map_err(|error: ProgramError| fail(&error))?;
            program.load().map_err(|error| refused(what, &error))?;
            program.attach(tracepoint).map_err(|error| fail(&error))?;
        }
        let map = ebpf.take_map("STARTED").ok_or_else(foreign)?;
        let started = RingBuf::try_from(map).map_err(|error| fail(&error))?;
        #[expect(
            deprecated,
            reason = "its successor is unsafe; a ring buffer's descriptor lives as long as the buffer"
        )]
        let started = AsyncFd::new(started).map_err(|error| fail(&error))?;
        Ok(Self {
            started,
            missed: 0,
            ebpf,
        })
    }

    /// Waits for starts, and returns them.
    ///
    /// # Errors
    ///
    /// When waiting fails.
    pub async fn next(&mut self) -> std::io::Result<Heard> {
        let mut guard = self.started.readable_mut().await?;
        let mut started = Vec::new();
        while let Some(item) = guard.get_inner_mut().next() {
            let word = |at: usize| Some(u32::from_ne_bytes(item.get(at..at + 4)?.try_into().ok()?));
            if let (Some(process), Some(parent)) = (word(0), word(4)) {
                started.push(Started { process, parent });
            }
        }
        guard.clear_ready();
        let missed = self.all_missed().unwrap_or(self.missed);
        let is_incomplete = missed != std::mem::replace(&mut self.missed, missed);
        Ok(Heard {
            started,
            is_incomplete,
        })
    }

    fn all_missed(&self) -> Option<u64> {
        let map = PerCpuArray::<_, u64>::try_from(self.ebpf.map("MISSED")?).ok()?;
        Some(map.get(&0, 0).ok()?.iter().sum())
    }
}
