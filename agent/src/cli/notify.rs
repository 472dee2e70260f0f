//! `weir notify test`.

use std::process::ExitCode;

use api::notification::NotificationTest;
use api::request::Request;

use super::exit::usage;
use super::print::Print;
use super::table;
use crate::cli::arguments::Options;
use crate::server::control::ClientError;

pub fn test(name: Option<String>, options: &Options) -> anyhow::Result<ExitCode> {
    let request = Request::TestNotifications { name };
    let tests: Vec<NotificationTest> = match options.client().ask(&request) {
        Ok(tests) => tests,
        // Nothing was sent.
        Err(ClientError::Refused(reason)) => return Ok(usage(&reason)),
        Err(error) => return Err(error.into()),
    };
    Print::from(options.json).document(&tests, |tests| {
        let heading = ["NAME", "TO", "RESULT"];
        println!("{}", table::render(heading, 3, tests.iter().map(row)));
    })?;
    let are_all_delivered = tests.iter().all(|test| test.error.is_none());
    Ok(if are_all_delivered {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn row(test: &NotificationTest) -> [String; 3] {
    let result = match &test.error {
        None => "delivered".to_owned(),
        Some(error) => format!("not delivered: {error}"),
    };
    [test.name.clone(), test.to.clone(), result]
}
