//! `weir trace`: the verdict on each packet of a source.

use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use api::request::Request;
use api::trace::{TraceLine, TraceVerdict};
use config::human;

use super::events::end_with_the_reader;
use super::print::{self, Print, append};
use super::table::number;
use crate::cli::arguments::Options;

pub fn trace(source: IpAddr, options: &Options) -> anyhow::Result<ExitCode> {
    end_with_the_reader()?;
    let print = Print::from(options.json);
    let mut out = io::stdout().lock();
    let error =
        options
            .client()
            .stream(&Request::Trace { source }, |line: TraceLine| {
                match print.line(&mut out, &line, text).and_then(|()| out.flush()) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => ControlFlow::Break(error),
                }
            })?;
    print::written(Err(error))
}

/// A verdict as text.
fn text(line: &TraceLine) -> String {
    let time = UNIX_EPOCH + Duration::try_from_secs_f64(line.time).unwrap_or_default();
    let time = humantime::format_rfc3339_micros(time);
    let verdict = line.verdict.name();
    if line.verdict == TraceVerdict::Lost {
        return format!(
            "{time}  {verdict:<14}  {} verdicts: {}",
            number(line.packets),
            line.reason
        );
    }
    let limit = line.limit.as_deref().unwrap_or("-");
    let mut text = format!(
        "{time}  {verdict:<14}  {limit:<18}  {}, {} bytes",
        line.reason,
        number(line.bytes)
    );
    if line.packets > 1 {
        text.push_str(&format!(" in {} packets", number(line.packets)));
    }
    let port = line.port.map(|port| format!("port {port}"));
    append(
        &mut text,
        line.protocol
            .iter()
            .chain(&port)
            .chain(&line.direction)
            .chain(&line.interface),
    );
    human::printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_verdict_the_limit_and_the_reason() {
        let line = TraceLine {
            source: Some("10.77.0.7".to_owned()),
            verdict: TraceVerdict::Throttled,
            limit: Some("dns".to_owned()),
            direction: Some("ingress".to_owned()),
            interface: Some("weir0".to_owned()),
            protocol: Some("udp".to_owned()),
            port: Some(53),
            bytes: 3_028,
            ..TraceLine::lost(1_763_718_281.5, 2, "more than 5/s packets, burst 5")
        };
        assert_eq!(
            text(&line),
            "2025-11-21T09:44:41.500000Z  throttled       dns                 more than 5/s packets, burst 5, 3,028 \
             bytes in 2 packets, udp, port 53, ingress, weir0"
        );
        assert_eq!(
            text(&TraceLine::lost(
                0.0,
                12,
                "this client reads more slowly than packets come"
            )),
            "1970-01-01T00:00:00.000000Z  lost            12 verdicts: this client reads more slowly than packets come"
        );
    }
}
