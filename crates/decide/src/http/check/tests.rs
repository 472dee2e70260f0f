use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Current, Edge, Offence};

struct NoEdge;

impl Edge for NoEdge {
    fn escalate(&self, _: Offence) {}
}

/// A clock that stands still until a test moves it.
static NOW: AtomicU64 = AtomicU64::new(1);

fn handle(check: &str) -> EngineHandle {
    let text = format!(
        "[decide]\nhttp = \"127.0.0.1:9465\"\n{check}\n\
         [[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"2/min\"\n\
         [[limit]]\nname = \"alice\"\nscope = \"request\"\nkey = [\"user=alice\"]\nrate = \"3/min\"\nreplaces = \"logins\"\n\
         [[limit]]\nname = \"clients\"\nscope = \"request\"\nkey = [\"source\"]\nrate = \"3/min\"\n"
    );
    let loaded =
        config::parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}"));
    let engine = Engine::new(&loaded.config, Arc::new(NoEdge)).unwrap();
    let current = Arc::new(Current::from_pointee(engine));
    EngineHandle::new(current, || NOW.load(Ordering::Relaxed))
}

const CHECK: &str = "check = { key = { user = \"X-User\" }, source = \"X-Forwarded-For\" }";

/// The reply to `GET /v1/check` with a query and headers: its status, `RateLimit`, `Retry-After`, and its error.
async fn ask(
    handle: &EngineHandle,
    query: &str,
    headers: &[(&str, &str)],
) -> (u16, Option<String>, Option<String>, String) {
    let mut request = Request::get(format!("/v1/check{query}")).header("host", "127.0.0.1:9465");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = respond(&request.body(()).unwrap(), handle, Reach::Browsers);
    read(response).await
}

async fn read(response: Response<Full<Bytes>>) -> (u16, Option<String>, Option<String>, String) {
    use http_body_util::BodyExt as _;
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    let (status, limit, retry) = (
        response.status().as_u16(),
        header("ratelimit"),
        header("retry-after"),
    );
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let error = String::from_utf8(body.to_vec()).unwrap();
    (status, limit, retry, error)
}

#[tokio::test]
async fn the_status_is_the_verdict_and_headers_say_when_to_come_back() {
    let handle = handle(CHECK);
    let bob = [("X-User", "bob"), ("X-Forwarded-For", "192.0.2.1")];
    for left in [1, 0] {
        let (status, limit, retry, body) = ask(&handle, "?limit=logins", &bob).await;
        assert_eq!((status, retry, body.as_str()), (200, None, ""));
        assert!(limit.unwrap().starts_with(&format!("\"logins\";r={left};")));
    }
    let (status, limit, retry, body) = ask(&handle, "?limit=logins", &bob).await;
    assert_eq!((status, body.as_str()), (429, ""));
    assert!(limit.unwrap().starts_with("\"logins\";r=0;"));
    // A window of a minute, or a bucket that regains one in half of it.
    assert!((1..=60).contains(&retry.unwrap().parse::<u64>().unwrap()));
    // Another user, and one with a limit that replaces it.
    for (user, name) in [("eve", "\"logins\";r=1"), ("alice", "\"alice\";r=2")] {
        let headers = [("X-User", user), ("X-Forwarded-For", "192.0.2.1")];
        let (status, limit, ..) = ask(&handle, "?limit=logins", &headers).await;
        assert_eq!(status, 200);
        assert!(limit.unwrap().starts_with(name));
    }
}

/// A request that one of its limits refuses is charged to none.
#[tokio::test]
async fn several_limits_are_charged_together_or_not_at_all() {
    let handle = handle(CHECK);
    let of = |user: &'static str| [("X-User", user), ("X-Forwarded-For", "192.0.2.2")];
    let both = "?limit=logins&limit=clients";
    assert_eq!(ask(&handle, both, &of("carol")).await.0, 200);
    assert_eq!(ask(&handle, both, &of("carol")).await.0, 200);
    let (status, limit, ..) = ask(&handle, both, &of("carol")).await;
    assert_eq!(status, 429);
    assert!(limit.unwrap().starts_with("\"logins\""));
    let (status, limit, ..) = ask(&handle, both, &of("dave")).await;
    assert_eq!(status, 200);
    assert!(limit.unwrap().starts_with("\"clients\";r=0"));
    let (status, limit, ..) = ask(&handle, both, &of("dave")).await;
    assert_eq!(status, 429);
    assert!(limit.unwrap().starts_with("\"clients\""));
    let (_, limit, ..) = ask(&handle, "?limit=logins", &of("dave")).await;
    assert!(limit.unwrap().starts_with("\"logins\";r=0"));
}

/// Addresses before the last one are the client's own words.
#[tokio::test]
async fn the_last_address_counts() {
    let handle = handle(CHECK);
    let mut statuses = Vec::new();
    for forged in [
        "198.51.100.1, ",
        "198.51.100.2,198.51.100.3 ,",
        "not an address, ",
        "",
    ] {
        let value = format!("{forged}::ffff:192.0.2.3");
        let headers = [("X-Forwarded-For", value.as_str())];
        statuses.push(ask(&handle, "?limit=clients", &headers).await.0);
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    // Of two lines, too.
    let headers = [
        ("X-Forwarded-For", "198.51.100.9"),
        ("X-Forwarded-For", "192.0.2.3"),
    ];
    assert_eq!(ask(&handle, "?limit=clients", &headers).await.0, 429);
}

#[tokio::test]
async fn invalid_requests_are_400_with_a_fix() {
    let handle = handle(CHECK);
    let whole = [("X-User", "frank"), ("X-Forwarded-For", "192.0.2.4")];
    for (query, headers, reason) in [
        (
            "",
            &whole[..],
            "0 limits, 1 to 16 are allowed: write /v1/check?limit=NAME",
        ),
        (
            "?limit=login",
            &whole,
            "unknown limit on requests \\\"login\\\"",
        ),
        (
            "?limit=logins&user=eve",
            &whole,
            "unexpected parameter \\\"user\\\"",
        ),
        ("?limit=logins&cost=-1", &whole, "invalid cost \\\"-1\\\""),
        (
            "?limit=logins&cost=1&cost=2",
            &whole,
            "unexpected parameter \\\"cost\\\"",
        ),
        (
            "?limit=logins",
            &whole[1..],
            "missing header x-user, from which limit \\\"logins\\\" takes user",
        ),
        (
            "?limit=logins",
            &[("X-User", ""), ("X-Forwarded-For", "192.0.2.4")],
            "missing header x-user",
        ),
        (
            "?limit=logins",
            &[
                ("X-User", "eve"),
                ("X-User", "frank"),
                ("X-Forwarded-For", "192.0.2.4"),
            ],
            "header x-user is there twice",
        ),
        (
            "?limit=logins",
            &whole[..1],
            "missing header x-forwarded-for",
        ),
        (
            "?limit=logins",
            &[
                ("X-User", "frank"),
                ("X-Forwarded-For", "192.0.2.4, unknown"),
            ],
            "which is no address",
        ),
    ] {
        let (status, limit, _, error) = ask(&handle, query, headers).await;
        assert_eq!((status, limit), (400, None), "{query} {headers:?}");
        assert!(error.contains(reason), "{error} for {reason}");
    }
    let (status, limit, ..) = ask(&handle, "?limit=logins&cost=2", &whole).await;
    assert_eq!(
        (status, limit.unwrap().contains("r=0")),
        (200, true),
        "nothing was charged before"
    );
}

#[tokio::test]
async fn only_gets_to_this_host_are_answered() {
    let reply = |method: Method, host: &'static str, reach| async move {
        let request = Request::builder()
            .method(method)
            .uri("/v1/check?limit=clients")
            .header("host", host)
            .header("x-forwarded-for", "192.0.2.5");
        let response = respond(&request.body(()).unwrap(), &handle(CHECK), reach);
        read(response).await.0
    };
    for host in ["127.0.0.1", "[::1]:9465", "localhost:9465", "LOCALHOST."] {
        assert_eq!(
            reply(Method::GET, host, Reach::Browsers).await,
            200,
            "{host}"
        );
    }
    // A page whose name resolves to this address.
    assert_eq!(
        reply(Method::GET, "attacker.example:9465", Reach::Browsers).await,
        403
    );
    assert_eq!(reply(Method::GET, "shop.example", Reach::Files).await, 200);
    assert_eq!(reply(Method::HEAD, "127.0.0.1", Reach::Browsers).await, 200);
    assert_eq!(reply(Method::POST, "127.0.0.1", Reach::Browsers).await, 405);
    let (status, .., error) = ask(&handle(""), "?limit=clients", &[]).await;
    assert_eq!(status, 404);
    assert!(error.contains("add check = "), "{error}");
}

/// A value that is no UTF-8 is a key of its own.
#[test]
fn values_of_other_encodings_differ() {
    let handle = handle("check = { source = \"X-User\" }");
    let name = handle.engine().check.clone().unwrap().source.unwrap();
    let value = |bytes: &[u8]| {
        let mut headers = HeaderMap::new();
        headers.insert(
            "x-user",
            hyper::header::HeaderValue::from_bytes(bytes).unwrap(),
        );
        only_value(&headers, &name).unwrap().unwrap()
    };
    assert_eq!(value("Zoë".as_bytes()), "Zoë");
    assert_ne!(value(b"Zo\xeb"), value(b"Zo\xec"));
}
