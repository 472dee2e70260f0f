//! The live page and its document, on the listener of `[agent] metrics`.
//!
//! Both are read-only. The page is served only to requests that name an address, `localhost` or a configured name: a web
//! site whose name is made to resolve to this host (DNS rebinding) cannot read the document through a browser.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use config::policy::LivePage;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName,
    HeaderValue, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::{Response, StatusCode};
use nix::time::{ClockId, clock_gettime};

use super::reply::{Reply, text};
use crate::daemon::AgentDocuments;
use crate::page::live;
use crate::stats::{Extent, LiveDocument, MOST_BANS, Sort, ViewQuery, monotonic_nanoseconds};

/// The path of the document.
pub const DOCUMENT: &str = "/live.json";
/// The most sources in the document.
const MOST_SOURCES: usize = 100;
/// A document is reused for this long, so that many viewers cost as much as one.
const FRESH: Duration = Duration::from_millis(900);
/// Counters, and separately sources, are read again after this multiple of the CPU time that reading them took: each
/// takes at most 0.2 % of a CPU.
const REST: u32 = 500;
/// The pause between the two readings that rates of sources require.
const FIRST_REST: Duration = Duration::from_secs(2);

/// Serves the page and its document.
pub struct LiveServer<A> {
    agent: Arc<A>,
    served: LivePage,
    address: SocketAddr,
    page: Bytes,
    last: Mutex<Last>,
}

/// The last documents.
#[derive(Default)]
struct Last {
    /// The last result of reading the table of sources.
    sources: Option<Read<LiveDocument>>,
    /// The text of a document.
    text: Option<Read<Bytes>>,
}

struct Read<T> {
    what: T,
    at: Instant,
    /// The CPU time that it took.
    took: Duration,
}

impl<T> Read<T> {
    fn is_fresh(&self) -> bool {
        self.at.elapsed() < (self.took * REST).max(FRESH)
    }
}

impl Read<LiveDocument> {
    /// Whether a second reading is necessary for rates.
    fn lacks_rates(&self) -> bool {
        self.what
            .view
            .sources
            .iter()
            .any(|source| source.passed_per_second.is_none())
    }
}

impl<A: AgentDocuments> LiveServer<A> {
    pub fn new(agent: Arc<A>, served: LivePage, address: SocketAddr) -> Self {
        Self {
            agent,
            served,
            address,
            page: Bytes::from(live::page()),
            last: Mutex::default(),
        }
    }

    /// The reply to a request for the page or the document.
    pub fn respond(&self, request: &hyper::Request<Incoming>) -> Reply {
        let mut reply = self.reply(request);
        let headers = reply.headers_mut();
        for (name, value) in [
            (CONTENT_SECURITY_POLICY, live::POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (CACHE_CONTROL, "no-store"),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                "same-origin",
            ),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                "same-origin",
            ),
            // A connection that waits for the next second would occupy a place.
            (CONNECTION, "close"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        reply
    }

    fn reply(&self, request: &hyper::Request<Incoming>) -> Reply {
        if !self.served.is_served_on(self.address.ip()) {
            return text(StatusCode::NOT_FOUND, self.not_served());
        }
        if let Err(reason) = self.check_host(request) {
            return text(StatusCode::FORBIDDEN, reason);
        }
        if request.uri().path() != DOCUMENT {
            return of_type(self.page.clone(), "text/html; charset=utf-8");
        }
        match self.document() {
            Ok(document) => of_type(document, "application/json"),
            Err(reason) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("reading the agent's state failed: {reason}\n"),
            ),
        }
    }

    fn not_served(&self) -> String {
        match self.served {
            LivePage::Nowhere => {
                "the live page is off: remove live = false from [agent]\n".to_owned()
            }
            _ => format!(
                "the live page is served on loopback addresses only, and this is {}: set live = true in [agent] if all \
                 clients that reach this address may read the addresses of sources\n",
                self.address.ip()
            ),
        }
    }

    /// Refuses requests that name another host than this one.
    fn check_host(&self, request: &hyper::Request<Incoming>) -> Result<(), String> {
        let mut named = request.headers().get_all(HOST).iter();
        let (host, more) = (
            named.next().and_then(|host| host.to_str().ok()),
            named.next(),
        );
        let is_own = |host: &str| {
            host.parse().is_ok_and(|authority: Authority| {
                !host.contains('@') && self.is_own(authority.host())
            })
        };
        let of_address = request
            .uri()
            .authority()
            .is_none_or(|authority| is_own(authority.as_str()));
        if host.is_some_and(is_own) && more.is_none() && of_address {
            return Ok(());
        }
        Err("the live page is served to requests that name this host by an IP address or as localhost. To use another \
             name, add it in [agent]: live = [\"weir.example.org\"]\n"
            .to_owned())
    }

    fn is_own(&self, host: &str) -> bool {
        let name = host.trim_end_matches('.');
        host::names::is_this_host(host)
            || self
                .served
                .names()
                .iter()
                .any(|own| own.eq_ignore_ascii_case(name))
    }

    /// The text of the document, at most [`FRESH`] old or as its cost allows. One thread serves all clients, so nobody
    /// waits for the lock, and replies are sent without it.
    fn document(&self) -> Result<Bytes, String> {
        // A panic elsewhere leaves at worst an old document.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = last.text.as_ref().filter(|text| text.is_fresh()) {
            return Ok(text.what.clone());
        }
        let before = last.sources.as_ref().filter(|sources| sources.is_fresh());
        let second =
            before.filter(|sources| sources.lacks_rates() && sources.at.elapsed() >= FIRST_REST);
        if before.is_none() || second.is_some() {
            // The pause after the second reading is for both.
            let owed = second.map_or(Duration::ZERO, |sources| sources.took);
            let mut sources = timed(|| self.sources())?;
            sources.took += owed;
            last.sources = Some(sources);
        }
        let Last {
            sources: Some(sources),
            ..
        } = &*last
        else {
            return Err("there are no sources".to_owned());
        };
        let text = timed(|| self.text(sources))?;
        Ok(last.text.insert(text).what.clone())
    }

    /// The parts that require reading the table of sources.
    fn sources(&self) -> Result<LiveDocument, String> {
        let query = ViewQuery {
            sort: Sort::ThrottledRate,
            within: None,
            most: MOST_SOURCES,
            prefixes: None,
        };
        let view = self.agent.view(&query)?;
        let mut bans = self.agent.bans()?;
        bans.truncate(MOST_BANS);
        Ok(LiveDocument {
            view,
            sources_age_seconds: 0.0,
            bans,
        })
    }

    /// A document with the counters of this moment.
    fn text(&self, sources: &Read<LiveDocument>) -> Result<Bytes, String> {
        let mut document = sources.what.clone();
        document.sources_age_seconds = sources.at.elapsed().as_secs_f64();
        let view = &mut document.view;
        view.at_seconds = monotonic_nanoseconds() as f64 / 1e9;
        let tracked = view.status.sources.tracked;
        view.status = self.agent.status(Extent::Counters)?;
        view.status.sources.tracked = tracked;
        // The page draws levels alone.
        for fair in &mut view.status.fair {
            fair.history.keep_levels();
        }
        let mut limits = self.agent.limits(Extent::Counters)?;
        for limit in limits.iter_mut().filter(|limit| limit.waiting.is_none()) {
            let mut before = view.limits.iter();
            let same = before.find(|same| same.definition.name == limit.definition.name);
            limit.keys = same.map_or(0, |same| same.keys);
        }
        (view.limits, view.groups) = (limits, self.agent.groups());
        serde_json::to_vec(&document)
            .map(Bytes::from)
            .map_err(|error| error.to_string())
    }
}

fn of_type(body: Bytes, kind: &'static str) -> Reply {
    let mut reply = Response::new(body.into());
    reply
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    reply
}

fn timed<T>(read: impl FnOnce() -> Result<T, String>) -> Result<Read<T>, String> {
    let began = cpu_time();
    let what = read()?;
    Ok(Read {
        what,
        at: Instant::now(),
        took: cpu_time().saturating_sub(began),
    })
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
