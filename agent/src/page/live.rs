//! The live page: a frame without figures, which its script fills from `/live.json`.

use super::html::Html;
use super::table::{Column, frame};
use super::{SCRIPT, STYLE, Shell, section, shell};
use host::PROGRAM;

pub(super) const LIVE_STYLE: &str = include_str!("live.css");
pub(super) const LIVE_SCRIPT: &str = include_str!("live.js");

/// The content security policy of the page and its document; a test prints the hashes that a change requires.
pub const POLICY: &str = "default-src 'none'; style-src 'sha256-nKBqSielgyOh/npdN1xNMiH2Se0v+nCw8CqCx9Rms00=' 'sha256-vy7RadOIYgcnXmq9pa+eqggGPUkf4eyusPkRLAxSRXw='; script-src 'sha256-b8DS0bbMTw7En1KR0A07IhXV5O8ACOb7dryrPjrPioY=' 'sha256-YFEGbcGtPwouVjuWvFblfFTQOcYl2tZEN4Yl09j4XdE='; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
#[must_use]
pub fn page() -> String {
    let styles = [STYLE, LIVE_STYLE];
    let scripts = [SCRIPT, LIVE_SCRIPT];
    // The policy is a header, which can also forbid frames.
    shell(
        "Weir, live",
        &Shell {
            policy: None,
            styles: &styles,
            scripts: &scripts,
        },
        |html| {
            html.leaf(
                "p",
                &[("id", "state"), ("class", "state")],
                "Asking the agent.",
            );
            html.leaf(
                "noscript",
                &[],
                &format!(
                    "This page requires JavaScript. {PROGRAM} status, limits and top print the same."
                ),
            );
            html.element("div", &[("id", "alerts")], |_| {});
            html.element("div", &[("id", "content"), ("hidden", "")], content);
        },
    )
}

fn content(html: &mut Html) {
    html.element("dl", &[("class", "figures")], |html| {
        for (id, name) in [
            ("passed", "Passed packets"),
            ("refused", "Refused packets"),
            ("tracked", "Keys in the table"),
            ("banned", "Banned prefixes"),
            ("uptime", "Agent runs for"),
        ] {
            html.element("div", &[], |html| {
                html.leaf("dt", &[], name);
                html.leaf("dd", &[("id", id)], "-");
            });
        }
    });
    section(html, "Limits", |html| {
        html.leaf(
            "p",
            &[("class", "note")],
            "Drawn since this page was opened: the agent keeps no history of these.",
        );
        html.element("div", &[("id", "plots"), ("class", "plots")], |_| {});
        note(html, "plots-note");
        use Column::{Number, Text};
        filled(
            html,
            "limits",
            "All limits",
            &[
                Text("limit"),
                Text("definition"),
                Number("passed/s"),
                Number("refused/s"),
                Number("would refuse/s"),
                Number("passed"),
                Number("refused"),
                Number("would refuse"),
                Number("keys"),
            ],
        );
    });
    fair(html);
    tables(html);
    html.element(
        "section",
        &[("id", "notes-section"), ("hidden", "")],
        |html| {
            html.leaf("h2", &[], "Notes");
            html.element("ul", &[("id", "notes")], |_| {});
        },
    );
}

/// Limits with `rate = "fair"`.
fn fair(html: &mut Html) {
    use Column::{Number, Text};
    html.element(
        "section",
        &[("id", "fair-section"), ("hidden", "")],
        |html| {
            html.leaf("h2", &[], "Fair limits");
            html.leaf(
                "p",
                &[("class", "note")],
                "What each source may send, in the last minutes. A limit that had no level has no plot.",
            );
            html.element("div", &[("id", "fair-plots"), ("class", "plots")], |_| {});
            let rates = [
                Number("offered/s"),
                Number("passed/s"),
                Number("capacity/s"),
                Number("sources above"),
            ];
            let level = [
                Text("limit"),
                Text("state"),
                Number("level/s"),
                Text("held by"),
                Text("since"),
            ];
            filled(
                html,
                "fair",
                "Levels",
                &[&level[..], &rates, &[Text("most refused")]].concat(),
            );
        },
    );
}

fn tables(html: &mut Html) {
    use Column::{Number, Text};
    section(html, "Sources", |html| {
        let counts = [
            Number("refused/s"),
            Number("passed/s"),
            Number("refused"),
            Number("would refuse"),
            Number("passed"),
        ];
        filled(
            html,
            "sources",
            "Busiest sources",
            &[&[Text("source"), Text("limit")], &counts[..]].concat(),
        );
        note(html, "sources-age");
    });
    section(html, "Bans", |html| {
        let columns = [
            Text("prefix"),
            Text("origin"),
            Text("reason"),
            Number("ends in"),
            Number("refused packets"),
        ];
        filled(html, "bans", "Bans", &columns);
        note(html, "bans-more");
    });
    section(html, "Process groups", |html| {
        let usage = [
            Number("processes"),
            Number("CPU time"),
            Number("throttled"),
            Number("memory"),
            Number("sent"),
            Number("received"),
        ];
        filled(
            html,
            "groups",
            "Process groups",
            &[
                &[Text("group"), Text("enforced")],
                &usage[..],
                &[Text("notes")],
            ]
            .concat(),
        );
    });
    section(html, "Interfaces", |html| {
        let columns = [
            Text("interface"),
            Text("state"),
            Text("hook"),
            Text("charged on"),
            Text("reason"),
        ];
        filled(html, "interfaces", "Interfaces", &columns);
    });
    html.element(
        "section",
        &[("id", "cluster-section"), ("hidden", "")],
        |html| {
            html.leaf("h2", &[], "Cluster");
            html.leaf("p", &[("id", "cluster-state")], "");
            let share = [Text("limit"), Text("mode"), Number("share"), Text("from")];
            let rest = [Number("hosts"), Number("demand"), Number("failures")];
            filled(
                html,
                "cluster",
                "Shared limits",
                &[&share[..], &rest].concat(),
            );
        },
    );
}

/// A table that the script fills, and a note for when it has no rows.
fn filled(html: &mut Html, id: &str, title: &str, columns: &[Column]) {
    html.element("div", &[("id", id), ("hidden", "")], |html| {
        frame(html, title, columns, |_| {});
    });
    note(html, &format!("{id}-note"));
}

fn note(html: &mut Html, id: &str) {
    html.leaf("p", &[("id", id), ("class", "note")], "");
}
