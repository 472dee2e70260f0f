use std::path::Path;

use super::*;

fn parse(lines: &str) -> Result<crate::Loaded, String> {
    let text = format!(
        "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nrate = \"5/s\"\n{lines}"
    );
    crate::parse(Path::new("limits.toml"), &text).map_err(|report| report.to_string())
}

#[test]
fn defaults_and_given_values_are_read() {
    let loaded = parse(
        "[[notify]]\non = [\"ban\", \"Attack\", \"ban\"]\ncommand = [\"/bin/page\", \"now\"]\n\
         [[notify]]\nname = \"hook\"\non = \"store-down\"\nwebhook = \"https://hooks.example.net:8443/T0/secret\"\n\
         secret_file = \"/etc/token\"\nrate = \"1/h\"\ntimeout = \"2s\"\nretry_for = \"1h\"\n",
    )
    .unwrap();
    assert!(loaded.warnings.is_empty());
    let [first, second] = &loaded.config.notify[..] else {
        panic!()
    };
    assert_eq!(
        (first.name.as_str(), &first.on[..]),
        ("notify-1", &[NotifyOn::Ban, NotifyOn::Attack][..])
    );
    assert_eq!(
        first.target(),
        NotifyTarget::Command(vec!["/bin/page".to_owned(), "now".to_owned()])
    );
    assert_eq!(
        (first.rate.count, first.rate.per_nanoseconds),
        (10, 60_000_000_000)
    );
    assert_eq!(
        (first.timeout, first.retry_for),
        (Duration::from_secs(10), Duration::from_secs(900))
    );
    let NotifyTarget::Webhook { url, secret_file } = second.target() else {
        panic!()
    };
    assert_eq!(url.reveal(), "https://hooks.example.net:8443/T0/secret");
    assert_eq!(
        format!("{url} {url:?}"),
        "https://hooks.example.net:8443/… https://hooks.example.net:8443/…"
    );
    assert_eq!(secret_file.as_deref(), Some(Path::new("/etc/token")));
    assert_eq!(
        second.summary(),
        "on = store-down, webhook = https://hooks.example.net:8443/…, secret_file = /etc/token, rate = 1/h, \
         timeout = 2s, retry_for = 1h"
    );
    assert_eq!(
        (second.timeout, second.retry_for),
        (Duration::from_secs(2), Duration::from_secs(3600))
    );
}

#[test]
fn each_mistake_is_reported_with_its_correction() {
    let command = "command = [\"/bin/page\"]\n";
    for (lines, message, help) in [
        (
            format!("on = [\"bann\"]\n{command}"),
            "invalid on \"bann\"",
            "did you mean \"ban\"? All: ban, ",
        ),
        (
            format!("on = [\"everything\"]\n{command}"),
            "invalid on \"everything\"",
            "write one of ban, would-ban, attack, overload, trial-failed, interface, store-down, ",
        ),
        (
            format!("on = []\n{command}"),
            "empty on",
            "write one of ban, ",
        ),
        (command.to_owned(), "missing key \"on\"", "add on ="),
        (
            "on = [\"ban\"]\n".to_owned(),
            "missing key \"command\" or \"webhook\"",
            "add command",
        ),
        (
            format!("on = [\"ban\"]\n{command}webhook = \"https://a\"\n"),
            "command conflicts with webhook",
            "another [[notify]]",
        ),
        (
            "on = [\"ban\"]\ncommand = []\n".to_owned(),
            "empty command",
            "command = \"/usr/local/bin/page\"",
        ),
        (
            "on = [\"ban\"]\ncommand = [\"page\"]\n".to_owned(),
            "not an absolute path",
            "no shell",
        ),
        (
            format!("on = [\"ban\"]\n{command}secret_file = \"/a\"\n"),
            "secret_file conflicts",
            "leave out",
        ),
        (
            "on = [\"ban\"]\nwebhook = \"ftp://a\"\n".to_owned(),
            "invalid webhook",
            "https://",
        ),
        (
            "on = [\"ban\"]\nwebhook = \"https://\"\n".to_owned(),
            "no valid host",
            "https://",
        ),
        (
            "on = [\"ban\"]\nwebhook = \"https://a:0/\"\n".to_owned(),
            "its port",
            "https://",
        ),
        (
            "on = [\"ban\"]\nwebhook = \"https://me:pw@a/\"\n".to_owned(),
            "credentials",
            "https://",
        ),
        (
            "on = [\"ban\"]\nwebhook = \"https://a/ b\"\n".to_owned(),
            "percent-encoded",
            "https://",
        ),
        (
            format!("on = [\"ban\"]\n{command}rate = \"fast\"\n"),
            "fast",
            "10/min",
        ),
        (
            format!("on = [\"ban\"]\n{command}timeout = \"2m\"\n"),
            "timeout \"2m\" is out of range: 100 ms to 1 min",
            "10s",
        ),
        (
            format!("on = [\"ban\"]\n{command}retry_for = \"2d\"\n"),
            "retry_for \"2d\" is out of range",
            "15m",
        ),
        (
            format!("on = [\"ban\"]\n{command}name = \"a b\"\n"),
            "invalid name",
            "letters",
        ),
        (
            format!("on = [\"ban\"]\n{command}retries = 3\n"),
            "unknown key \"retries\"",
            "write one of",
        ),
    ] {
        let report = parse(&format!("[[notify]]\n{lines}"))
            .map(|_| ())
            .unwrap_err();
        assert!(
            report.contains(message) && report.contains(help),
            "{lines}\n{report}"
        );
    }
    let twice = format!("[[notify]]\nname = \"a\"\non = \"ban\"\n{command}").repeat(2);
    assert!(parse(&twice).unwrap_err().contains("duplicate name \"a\""));
    let many = format!("[[notify]]\non = \"ban\"\n{command}").repeat(MOST_NOTIFY + 1);
    assert!(
        parse(&many)
            .unwrap_err()
            .contains("17 tables [[notify]] are too many")
    );
}

#[test]
fn a_webhook_that_others_can_read_is_a_warning() {
    let warnings = |url: &str| {
        parse(&format!("[[notify]]\non = \"ban\"\nwebhook = {url:?}\n"))
            .unwrap()
            .warnings
            .len()
    };
    assert_eq!(warnings("http://hooks.example.net/"), 1);
    for url in [
        "https://hooks.example.net/",
        "http://127.0.0.1:80/",
        "http://localhost/x",
        "http://[::1]:8080/x",
    ] {
        assert_eq!(warnings(url), 0, "{url}");
    }
}

#[test]
fn a_change_of_a_webhooks_path_is_a_change_that_does_not_show_it() {
    let config = |path: &str| {
        parse(&format!(
            "[[notify]]\non = \"ban\"\nwebhook = \"https://a/{path}\"\n"
        ))
        .unwrap()
        .config
    };
    let lines = crate::Changes::between(&config("T0"), &config("T1")).lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(!lines.concat().contains("T1"), "{lines:?}");
}

#[test]
fn no_report_shows_a_webhooks_path() {
    for webhook in [
        "https://a/T0/secret",
        "https://a:99999/secret",
        "https://me:secret@a",
        "https:/secret",
        "secret",
    ] {
        let report = parse(&format!(
            "[[notify]]\non = \"bann\"\nwebhook = {webhook:?}\nsecret_file = 5\n"
        ))
        .unwrap_err();
        assert!(
            !report.contains("secret\"") && !report.contains("secret@"),
            "{report}"
        );
        let inline = parse(&format!(
            "notify = [{{ on = \"bann\", webhook= '{webhook}', rate = 5 }}]\n"
        ))
        .unwrap_err();
        assert!(!inline.contains("secret'"), "{inline}");
    }
    assert_eq!(
        crate::reference::without_secrets("webhook = \"https://a/ü\"\n"),
        "webhook = \"https://a/**\"\n"
    );
    assert_eq!(
        crate::reference::without_secrets("# a webhook is https://a/b\n"),
        "# a webhook is https://a/b\n"
    );
}
