//! `weir fleet`: rules of many hosts, for their publishers.

mod keys;
mod objects;
mod place;
mod publish;
mod records;
mod shown;

use std::process::ExitCode;

use super::exit::{invalid, usage};
use crate::cli::arguments::{FleetCommand, Options};
use place::FleetError;

pub fn fleet(command: FleetCommand, options: &Options) -> anyhow::Result<ExitCode> {
    let done = match command {
        FleetCommand::Publish(release) => publish::publish(&release, options),
        FleetCommand::Status { place } => shown::status(&place, options),
        FleetCommand::Abort {
            version,
            place,
            key,
            reason,
        } => publish::abort(version, &place, &key, reason, options),
        FleetCommand::History { place } => shown::history(&place, options),
        FleetCommand::Diff { file, place } => shown::diff(&file, &place, options),
        FleetCommand::Keygen { file } => keys::keygen(&file),
    };
    match done {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(FleetError::Usage(error)) => Ok(usage(&error)),
        Err(FleetError::Invalid(errors)) => Ok(invalid(&errors)),
        Err(FleetError::Failed(error)) => Err(error),
    }
}
