//! URLs in configs and messages.

use ureq::http::Uri;

/// Checks a URL of a config.
///
/// # Errors
///
/// When it is no URL with the scheme http or https and a host; the message says what is invalid.
pub fn check(url: &str) -> Result<(), &'static str> {
    let uri: Uri = url.parse().map_err(|_| "it is not a URL")?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return Err("its scheme is neither https nor http"),
        None => return Err("it has no scheme"),
    }
    match uri.host() {
        None | Some("") => Err("it has no host"),
        Some(_) => Ok(()),
    }
}

/// A URL for messages: without user, password and query, which may contain secrets.
#[must_use]
pub fn shown(url: &str) -> String {
    let Ok(uri) = url.parse::<Uri>() else {
        return "the URL".to_owned();
    };
    let (scheme, host) = (
        uri.scheme_str().unwrap_or("http"),
        uri.host().unwrap_or_default(),
    );
    let port = uri
        .port()
        .map(|port| format!(":{port}"))
        .unwrap_or_default();
    format!("{scheme}://{host}{port}{}", uri.path())
}
