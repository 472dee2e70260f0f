//! The `agent` binary.

#[cfg(target_env = "musl")]
mod allocator;

use std::process::ExitCode;

fn main() -> ExitCode {
    report_failed_printing();
    weir::cli::complete_for_a_script();
    match weir::cli::execute(weir::cli::parsed()) {
        Ok(code) => code,
        Err(error) => {
            weir::log::fatal(&with_causes(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes, without repetition: many messages include their cause.
fn with_causes(error: &anyhow::Error) -> String {
    error
        .chain()
        .skip(1)
        .map(ToString::to_string)
        .fold(error.to_string(), |text, cause| {
            if text.contains(&cause) {
                text
            } else {
                format!("{text}: {cause}")
            }
        })
}

/// `println!` panics if standard output cannot be written, as on a full disk: report it like other errors.
fn report_failed_printing() {
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
