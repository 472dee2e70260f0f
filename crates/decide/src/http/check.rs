//! `GET /v1/check`: a proxy asks about a request by the headers that `[decide] check` names, and reads the verdict from the
//! status: 200 or 429, with headers and without a body. The proxy's URL names the limits.

use std::net::IpAddr;

use config::policy::{CheckHeaders, HeaderName, RequestProtocol};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{HOST, HeaderMap};
use hyper::http::uri::Authority;
use hyper::{Method, Request, Response, StatusCode};

use super::reply::{Reach, refuse, refuse_method, status, with_headers};
use crate::answer::Decided;
use crate::charge::Charge;
use crate::engine::Engine;
use crate::engine_handle::EngineHandle;
use crate::error::{DecideError, quoted};
use crate::headers;
use crate::together::tightest;

/// The most limits of one request.
const MOST_LIMITS: usize = 16;

/// Replies to one request.
pub(super) fn respond<B>(
    request: &Request<B>,
    handle: &EngineHandle,
    reach: Reach,
) -> Response<Full<Bytes>> {
    let engine = handle.engine();
    let Some(names) = &engine.check else {
        return refuse(
            StatusCode::NOT_FOUND,
            "/v1/check is off: add check = { source = \"X-Forwarded-For\" } to [decide]",
        );
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return refuse_method("GET, HEAD");
    }
    // A browser names no origin in a GET to the page's own host, which by DNS rebinding may be this address.
    if reach == Reach::Browsers && !is_to_this_host(request.headers()) {
        return refuse(
            StatusCode::FORBIDDEN,
            "the header Host names another host: let the proxy send the address of this port as Host",
        );
    }
    match decide(request, names, &engine, handle.now()) {
        Ok(decided) => {
            let mut response = Response::new(Full::new(Bytes::new()));
            *response.status_mut() = status(decided.answer.allowed);
            with_headers(response, &decided)
        }
        Err(reason) => refuse(StatusCode::BAD_REQUEST, &reason),
    }
}

/// Whether the header Host is an address or `localhost`.
fn is_to_this_host(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let host = host.and_then(|host| host.parse::<Authority>().ok());
    host.is_some_and(|host| host::names::is_this_host(host.host()))
}

/// Charges all named limits, or none.
fn decide<B>(
    request: &Request<B>,
    names: &CheckHeaders,
    engine: &Engine,
    now: u64,
) -> Result<Decided, String> {
    let Parameters { limits, cost } = parameters(request.uri().query().unwrap_or_default())?;
    let headers = request.headers();
    let source = names.source.as_ref();
    let source = source.map(|name| last_address(headers, name)).transpose()?;
    let mut entries = Vec::new();
    for (entry, name) in &names.key {
        if let Some(value) = only_value(headers, name)? {
            entries.push((entry.as_str(), value));
        }
    }
    let entries = || {
        entries
            .iter()
            .map(|(entry, value)| (*entry, value.as_str()))
    };
    let mut charges = Vec::with_capacity(limits.len());
    for limit in &limits {
        let charge = engine
            .charge_of_any(limit, entries(), source, cost)
            .map_err(|error| explained(error, names))?;
        charges.push(Charge {
            bans_nobody: !engine.bans_from(RequestProtocol::Http),
            ..charge
        });
    }
    let outcomes = engine.decide_together(&charges, now);
    let nth = tightest(&outcomes).ok_or("no limit")?;
    Ok(engine.answer(&charges[nth], outcomes[nth]))
}

/// The parameters of the URL.
#[derive(Debug, PartialEq)]
struct Parameters {
    limits: Vec<String>,
    cost: u64,
}

fn parameters(query: &str) -> Result<Parameters, String> {
    const FORM: &str = "write /v1/check?limit=NAME, also with several limit=NAME and cost=N";
    let (mut limits, mut cost) = (Vec::new(), None);
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*name {
            "limit" => limits.push(value.into_owned()),
            "cost" if cost.is_none() => {
                let number = value.parse();
                cost =
                    Some(number.map_err(|_| format!("invalid cost {:?}: {FORM}", quoted(&value)))?);
            }
            _ => return Err(format!("unexpected parameter {:?}: {FORM}", quoted(&name))),
        }
    }
    if limits.is_empty() || limits.len() > MOST_LIMITS {
        let count = limits.len();
        return Err(format!(
            "{count} limits, 1 to {MOST_LIMITS} are allowed: {FORM}"
        ));
    }
    Ok(Parameters {
        limits,
        cost: cost.unwrap_or(1),
    })
}

/// The last address in a header, which the proxy has added: a client chooses those before it.
fn last_address(headers: &HeaderMap, name: &HeaderName) -> Result<IpAddr, String> {
    let name = name.as_str();
    let Some(value) = headers.get_all(name).iter().next_back() else {
        return Err(format!(
            "missing header {name}: let the proxy send the client's address in it"
        ));
    };
    let last = value
        .to_str()
        .ok()
        .and_then(|value| value.rsplit(',').next());
    let address = last.and_then(|last| last.trim().parse::<IpAddr>().ok());
    let address = address.ok_or_else(|| {
        let value = String::from_utf8_lossy(value.as_bytes());
        format!(
            "header {name} ends with {:?}, which is no address",
            quoted(&value)
        )
    })?;
    Ok(address.to_canonical())
}

/// The value of a header; `None` without it, or if it is empty.
fn only_value(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, String> {
    let name = name.as_str();
    let mut values = headers.get_all(name).iter();
    let (value, more) = (values.next(), values.next());
    if more.is_some() {
        return Err(format!(
            "header {name} is there twice: the value could be either"
        ));
    }
    let bytes = value.map_or(&[][..], |value| value.as_bytes());
    let text = headers::text(bytes);
    Ok(Some(text.into_owned()).filter(|text| !text.is_empty()))
}

/// An error in terms of headers.
fn explained(error: DecideError, names: &CheckHeaders) -> String {
    let DecideError::MissingEntry { limit, entry, .. } = &error else {
        return error.to_string();
    };
    match names.key.get(entry) {
        Some(header) => format!(
            "missing header {}, from which limit {limit:?} takes {entry}",
            header.as_str()
        ),
        None => format!(
            "limit {limit:?} counts by {entry}, for which check in [decide] names no header"
        ),
    }
}

#[cfg(test)]
mod tests;
