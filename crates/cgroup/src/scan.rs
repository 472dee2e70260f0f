//! The scan of all processes, spread over time so that it takes a small share of one CPU however many there are.

use std::time::Duration;

use super::groups::Groups;
use super::process::Process;
use super::round::cpu_time;

impl Groups {
    /// Scans processes within `budget` of CPU time, and starts the next round after the end of one.
    pub fn scan_some(&mut self, budget: Duration) {
        let start = cpu_time();
        if self.round.left.is_empty() {
            self.end_round();
            self.round.left = Process::all(&self.host.proc);
        }
        while let Some(process) = self.round.left.pop() {
            self.place(&process);
            if cpu_time() - start >= budget {
                break;
            }
        }
        self.move_queued();
    }

    /// Scans all processes.
    pub fn scan(&mut self) {
        self.end_round();
        self.round.left.clear();
        for process in Process::all(&self.host.proc) {
            self.place(&process);
        }
        self.move_queued();
        self.end_round();
    }
}
