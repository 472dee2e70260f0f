//! `GET /metrics` and the live page over HTTP/1.1, on a thread of its own.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use config::policy::LivePage;
use host::Listener;
use host::clients::accept;
use host::descriptors::places;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::TEXT_FORMAT;
use thiserror::Error;

use super::exposition::{Documents, Exposition};
use super::live::{DOCUMENT, LiveServer};
use super::reply::{Reply, text};
use crate::daemon::AgentDocuments;
use crate::stats::Extent;

/// The timeouts of clients.
const TIMEOUTS: Timeouts = Timeouts {
    head: Duration::from_secs(5),
    connection: Duration::from_secs(15),
};
/// A page is reused for this multiple of the time it took to make, so that constant scraping takes at most a tenth of a
/// thread's time.
const REST: u32 = 9;

/// The metrics server cannot be started.
#[derive(Debug, Error)]
pub enum ExporterError {
    /// The address is in use.
    #[error("listening on {address} for scrapers ([agent] metrics) failed: {source}; {help}")]
    Listen {
        address: SocketAddr,
        source: io::Error,
        /// The fix.
        help: &'static str,
    },
    /// The system has no threads.
    #[error("starting the thread that serves metrics failed: {0}")]
    Thread(io::Error),
    /// A bug in Weir.
    #[error("preparing the metrics failed: {0}")]
    Prepare(prometheus::Error),
}

/// How long a client may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For the head of a request.
    pub head: Duration,
    /// For the whole connection.
    pub connection: Duration,
}

/// A bound port that does not serve yet.
#[derive(Debug)]
pub struct Exporter {
    listener: TcpListener,
    address: SocketAddr,
    pub(super) timeouts: Timeouts,
}

impl Exporter {
    /// Binds the port.
    ///
    /// # Errors
    ///
    /// When it is in use.
    pub fn bind(address: SocketAddr) -> Result<Self, ExporterError> {
        let fail = |source: io::Error| {
            let help = match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "another program listens there: name another port, or remove the key"
                }
                io::ErrorKind::PermissionDenied => "name a port from 1024 on",
                _ => "name another address",
            };
            ExporterError::Listen {
                address,
                source,
                help,
            }
        };
        let Listener { socket, is_present } = Listener::bind(address).map_err(fail)?;
        socket.set_nonblocking(true).map_err(fail)?;
        let address = socket.local_addr().map_err(fail)?;
        if !is_present {
            tracing::warn!(
                "metrics: {} is not an address of this host yet: no client reaches it until then",
                address.ip()
            );
        }
        Ok(Self {
            listener: socket,
            address,
            timeouts: TIMEOUTS,
        })
    }

    /// The address; with a configured port 0, the one that the system chose.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves scrapers, and the live page where it is `served`, until the process ends.
    ///
    /// # Errors
    ///
    /// When the system has no threads.
    pub fn start(
        self,
        agent: Arc<impl AgentDocuments>,
        served: LivePage,
    ) -> Result<(), ExporterError> {
        let exposition = Exposition::new().map_err(ExporterError::Prepare)?;
        let live = LiveServer::new(Arc::clone(&agent), served, self.address);
        let pages = Arc::new(Pages {
            agent,
            last: Mutex::new(Last {
                exposition,
                page: None,
            }),
            live,
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ExporterError::Thread)?;
        let (listener, timeouts) = (self.listener, self.timeouts);
        thread::Builder::new()
            .name("weir-metrics".to_owned())
            .spawn(move || runtime.block_on(serve(listener, pages, timeouts)))
            .map_err(ExporterError::Thread)?;
        Ok(())
    }
}

/// The served pages.
struct Pages<A> {
    agent: Arc<A>,
    last: Mutex<Last>,
    live: LiveServer<A>,
}

struct Last {
    exposition: Exposition,
    page: Option<Page>,
}

struct Page {
    text: Bytes,
    made: Instant,
    took: Duration,
}

impl<A: AgentDocuments> Pages<A> {
    fn page(&self) -> Result<Bytes, String> {
        // A panic elsewhere leaves at worst an old page.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(page) = &last.page
            && page.made.elapsed() < page.took * REST
        {
            return Ok(page.text.clone());
        }
        let started = Instant::now();
        let documents = Documents {
            status: self.agent.status(Extent::Whole)?,
            limits: self.agent.limits(Extent::Whole)?,
            groups: self.agent.groups(),
        };
        let text = Bytes::from(
            last.exposition
                .text(&documents)
                .map_err(|error| error.to_string())?,
        );
        last.page = Some(Page {
            text: text.clone(),
            made: Instant::now(),
            took: started.elapsed(),
        });
        Ok(text)
    }
}

async fn serve(listener: TcpListener, pages: Arc<Pages<impl AgentDocuments>>, timeouts: Timeouts) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("answering scrapers failed: {error}");
            return;
        }
    };
    accept(listener, places().metrics, |client| {
        let (pages, activity) = (Arc::clone(&pages), client.activity());
        let service = service_fn(move |request| {
            let reply = respond(&request, &pages);
            activity.reply();
            std::future::ready(Ok::<_, Infallible>(reply))
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeouts.head)
            .serve_connection(TokioIo::new(client), service);
        // Errors of one scraper concern no other.
        tokio::spawn(async move {
            let _ = tokio::time::timeout(timeouts.connection, connection).await;
        });
    })
    .await;
}

fn respond(request: &Request<Incoming>, pages: &Pages<impl AgentDocuments>) -> Reply {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut reply = text(
            StatusCode::METHOD_NOT_ALLOWED,
            "method not allowed: use GET\n",
        );
        reply
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return reply;
    }
    match request.uri().path() {
        "/metrics" => match pages.page() {
            Ok(page) => {
                let mut reply = Response::new(Full::new(page));
                reply
                    .headers_mut()
                    .insert(CONTENT_TYPE, HeaderValue::from_static(TEXT_FORMAT));
                reply
            }
            Err(reason) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("reading the metrics failed: {reason}\n"),
            ),
        },
        "/" | DOCUMENT => pages.live.respond(request),
        _ => text(
            StatusCode::NOT_FOUND,
            "metrics are at /metrics, the live page is at /\n",
        ),
    }
}
