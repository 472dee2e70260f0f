//! `POST /v1/load`: a service reports how full it is, for the fair limits that have its load as a signal.

use std::time::Instant;

use config::policy::Decide;
use fair::{Load, Loads, MOST_LOAD, Refused};
use host::PROGRAM;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::{Response, StatusCode};
use serde::Deserialize;

use super::reply::{done, refuse};
use crate::error::quoted;

const FORM: &str = "write {\"service\": NAME, \"load\": 0.8}, where 1 is full, or \"wait_seconds\" in place of \"load\"";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    service: String,
    load: Option<f64>,
    wait_seconds: Option<f64>,
}

/// Replies to one report of this user.
pub(super) fn respond(body: &[u8], user: Option<u32>, loads: &Loads) -> Response<Full<Bytes>> {
    let Some(user) = user else {
        let reason = format!(
            "reports of load are taken on a Unix socket, which shows the user: set [decide] {} = \"unix:/run/weir/decide.sock\"",
            Decide::HTTP.name
        );
        return refuse(StatusCode::FORBIDDEN, &reason);
    };
    let (service, load) = match read(body) {
        Ok(report) => report,
        Err(reason) => return refuse(StatusCode::BAD_REQUEST, &reason),
    };
    let name = quoted(&service);
    match loads.report(&service, user, load, Instant::now()) {
        Ok(()) => done(),
        Err(Refused::Unknown) => refuse(
            StatusCode::NOT_FOUND,
            &format!(
                "no limit {name:?} in effect has \"load\" in signals: add it, or see in `{PROGRAM} status` why the limit is not in effect"
            ),
        ),
        Err(Refused::User) => refuse(
            StatusCode::FORBIDDEN,
            &format!(
                "user {user} may not report the load of {name:?}: write reported_by = \"{user}\" in fair of the limit"
            ),
        ),
    }
}

fn read(body: &[u8]) -> Result<(String, Load), String> {
    let report: Report =
        serde_json::from_slice(body).map_err(|error| format!("invalid report: {error}: {FORM}"))?;
    let (key, load, value) = match (report.load, report.wait_seconds) {
        (Some(value), None) => ("load", Load::Share(value), value),
        (None, Some(value)) => ("wait_seconds", Load::Wait(value), value),
        _ => return Err(format!("a report has one of load and wait_seconds: {FORM}")),
    };
    if !(0.0..=MOST_LOAD).contains(&value) {
        return Err(format!(
            "invalid {key} {value}: it is a number from 0 to {MOST_LOAD}"
        ));
    }
    Ok((report.service, load))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    const APP: u32 = 1000;

    async fn reply(body: &str, user: Option<u32>, loads: &Loads) -> (u16, String) {
        let response = respond(body.as_bytes(), user, loads);
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn loads() -> Loads {
        let loads = Loads::default();
        loads.replace([("web".to_owned(), Some(APP))]);
        loads
    }

    #[tokio::test]
    async fn a_report_is_taken_or_its_reply_says_what_to_write() {
        let loads = loads();
        for (body, user, status, text) in [
            (r#"{"service":"web","load":0.8}"#, Some(APP), 200, "ok"),
            (r#"{"service":"web","wait_seconds":0}"#, Some(0), 200, "ok"),
            (
                r#"{"service":"web","load":0.8}"#,
                Some(33),
                403,
                r#"reported_by = \"33\""#,
            ),
            (
                r#"{"service":"web","load":0.8}"#,
                None,
                403,
                "on a Unix socket",
            ),
            (
                r#"{"service":"wbe","load":0.8}"#,
                Some(0),
                404,
                r#"no limit \"wbe\" in effect"#,
            ),
            (r#"{"service":"web"}"#, Some(0), 400, "one of load and"),
            (
                r#"{"service":"web","load":1,"wait_seconds":1}"#,
                Some(0),
                400,
                "one of load and",
            ),
            (
                r#"{"service":"web","load":-0.1}"#,
                Some(0),
                400,
                "invalid load -0.1",
            ),
            (
                r#"{"service":"web","wait_seconds":1e9}"#,
                Some(0),
                400,
                "invalid wait_seconds 1000000000",
            ),
            (
                r#"{"service":"web","lode":1}"#,
                Some(0),
                400,
                "unknown field `lode`",
            ),
            (r#"["web"]"#, Some(0), 400, "invalid report"),
            ("", Some(0), 400, "invalid report"),
        ] {
            let (found, reply) = reply(body, user, &loads).await;
            assert_eq!(found, status, "{body}: {reply}");
            assert!(reply.contains(text), "{body}: {reply}");
        }
    }

    #[tokio::test]
    async fn a_report_is_read_by_the_law() {
        let loads = loads();
        let read = || loads.read("web", Instant::now());
        assert_eq!(read(), None);
        let report = r#"{"service":"web","wait_seconds":0.25}"#;
        reply(report, Some(APP + 1), &loads).await;
        assert_eq!(read(), None);
        let before = Instant::now();
        reply(report, Some(APP), &loads).await;
        // As of then, since it counts for two seconds.
        assert_eq!(
            loads.read("web", before).map(|reported| reported.wait),
            Some(0.25)
        );
    }
}
