//! The `agent` binary: a thin shell around the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    tell_when_nothing_can_be_printed();
    match weir::cmd::execute(weir::cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", told(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, each said once: many messages hold their cause already.
fn told(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |told, cause| if told.contains(&cause) { told } else { format!("{told}: {cause}") })
}

/// `println!` panics where standard output cannot be written, as on a disk that is full: that is an error like others.
fn tell_when_nothing_can_be_printed() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload().downcast_ref::<String>();
        match said.and_then(|said| said.strip_prefix("failed printing to stdout: ")) {
            Some(reason) => {
                eprintln!("error: writing the answer failed: {reason}");
                std::process::exit(1);
            }
            None => otherwise(panic),
        }
    }));
}
