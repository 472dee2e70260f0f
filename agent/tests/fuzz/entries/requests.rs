//! Requests of applications, as they arrive.

use std::cell::RefCell;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use decide::{Current, Edge, Engine, EngineHandle, Offence, offline};
use tokio::runtime::{Builder, Runtime};

/// Few keys, which any input of a fuzzer may add to; and a limit of each kind that requests can name.
const CONFIG: &str = r#"
[decide]
http = "127.0.0.1:9465"
max_keys = 1000
check = { source = "X-Forwarded-For", key = { api-key = "X-Api-Key" } }

[[request]]
name = "publish"
cost = "10 * messages"

[[limit]]
name = "clients"
scope = "request"
key = ["source"]
rate = "100/min"

[[limit]]
name = "keys"
scope = "request"
key = ["api-key", "path"]
over = ["path"]
rate = "5000/h"

[[limit]]
name = "credits"
scope = "request"
key = ["user"]
unit = "credits"
rate = "600/min"
algorithm = "sliding-window"
"#;

struct NoEdge;

impl Edge for NoEdge {
    fn escalate(&self, _: Offence) {}
}

static CURRENT: LazyLock<Arc<Current>> = LazyLock::new(|| {
    let config = config::parse(Path::new("limits.toml"), CONFIG)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    let engine = Engine::new(&config, Arc::new(NoEdge)).unwrap();
    Arc::new(Current::from_pointee(engine))
});

thread_local! {
    static RUNTIME: RefCell<Runtime> =
        RefCell::new(Builder::new_current_thread().enable_time().build().unwrap());
}

/// A connection over HTTP gets no bytes or replies of HTTP.
pub fn http(bytes: &[u8]) {
    let handle = EngineHandle::new(Arc::clone(&CURRENT), host::monotonic_nanoseconds);
    let replies =
        RUNTIME.with_borrow_mut(|runtime| runtime.block_on(offline::http_replies(handle, bytes)));
    assert!(
        replies.is_empty() || replies.starts_with(b"HTTP/1."),
        "{:?}",
        String::from_utf8_lossy(&replies)
    );
}

/// A message of Envoy's rate limit services is refused with a reason, or has a reply.
pub fn rls(message: &[u8]) {
    let engine = CURRENT.load();
    let now = host::monotonic_nanoseconds();
    match offline::rls_reply(&engine, message, now) {
        Ok(reply) => assert!(!reply.is_empty()),
        Err(reason) => assert!(!reason.is_empty()),
    }
    if let Err(reason) = offline::quota_replies(&engine, message, now) {
        assert!(!reason.is_empty());
    }
}
