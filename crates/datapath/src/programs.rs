//! The programs of a loaded policy: verified, described, and run on given packets.

use aya::programs::{Program, ProgramFd, TestRun, TestRunOptions, TestRunResult};
use common::settings::Settings;

use crate::datapath::Datapath;
use crate::error::LoadError;
use crate::loading::load;

/// The entry points of the object. The kernel verifies each at its first use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// XDP, frames with an Ethernet header.
    Xdp,
    /// Traffic control, frames with an Ethernet header.
    Tc,
    /// Traffic control, frames that are IP packets.
    TcIp,
}

impl Entry {
    const fn name(self, settings: &Settings) -> &'static str {
        match self {
            Self::Xdp if settings.multi_buffer != 0 => "weir_xdp",
            Self::Xdp => "weir_xdp_linear",
            Self::Tc => "weir_tc",
            Self::TcIp => "weir_tc_ip",
        }
    }
}

impl Datapath {
    /// Lets the kernel verify an entry point, once.
    ///
    /// # Errors
    ///
    /// When the verifier rejects it.
    pub fn prepare(&mut self, entry: Entry) -> Result<(), LoadError> {
        let name = entry.name(&self.settings);
        match self
            .ebpf
            .program_mut(name)
            .ok_or(LoadError::ForeignObject)?
        {
            Program::Xdp(program) if program.fd().is_err() => load(name, || program.load()),
            Program::SchedClassifier(program) if program.fd().is_err() => {
                load(name, || program.load())
            }
            _ => Ok(()),
        }
    }

    /// The number of instructions that the verifier processed for a prepared entry point; its limit is a million.
    /// `None` before Linux 5.16.
    ///
    /// # Errors
    ///
    /// When the object does not match the agent, or the entry point is not prepared.
    pub fn verified_instructions(&self, entry: Entry) -> Result<Option<u32>, LoadError> {
        let info = match self
            .ebpf
            .program(entry.name(&self.settings))
            .ok_or(LoadError::ForeignObject)?
        {
            Program::Xdp(program) => program.info()?,
            Program::SchedClassifier(program) => program.info()?,
            _ => return Err(LoadError::ForeignObject),
        };
        Ok(info.verified_instruction_count())
    }

    /// A prepared entry point, for another program that calls it.
    ///
    /// # Errors
    ///
    /// When the object does not match the agent, or the entry point is not prepared.
    pub fn entry_point(&self, entry: Entry) -> Result<&ProgramFd, LoadError> {
        match self
            .ebpf
            .program(entry.name(&self.settings))
            .ok_or(LoadError::ForeignObject)?
        {
            Program::Xdp(program) => Ok(program.fd()?),
            Program::SchedClassifier(program) => Ok(program.fd()?),
            _ => Err(LoadError::ForeignObject),
        }
    }

    /// Runs a prepared entry point on given packets.
    ///
    /// # Errors
    ///
    /// When the object does not match the agent, or the entry point is not prepared.
    pub fn test_run(
        &self,
        entry: Entry,
        options: TestRunOptions<'_>,
    ) -> Result<TestRunResult, LoadError> {
        match self
            .ebpf
            .program(entry.name(&self.settings))
            .ok_or(LoadError::ForeignObject)?
        {
            Program::Xdp(program) => Ok(program.test_run(options)?),
            Program::SchedClassifier(program) => Ok(program.test_run(options)?),
            _ => Err(LoadError::ForeignObject),
        }
    }
}
