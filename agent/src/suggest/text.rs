//! Formats the suggested config, with the basis as comments.

use std::fmt::Write as _;
use std::time::Duration;

use config::human::{self, number};
use host::PROGRAM;

use super::classes::SuggestedClass;
use super::decide::Decision;
use super::limit::{SuggestedLimit, Together};
use super::traffic::{Service, Traffic};
use crate::comments::comment;
use crate::replay::TimelineDocument;

/// Why a suggestion from standard input is not replayed.
pub fn read_once() -> String {
    format!(
        "Not replayed, since standard input is read once: {PROGRAM} replay prints what it would refuse."
    )
}

/// The most services without a limit that are listed.
const LISTED: usize = 10;

/// The refusals by one limit in a replay of the config on the same captures.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Refusal {
    pub limit: String,
    /// Packets evaluated under it.
    pub packets: u64,
    /// Packets that it would refuse.
    pub refused: u64,
    /// The same over time.
    #[serde(skip)]
    pub timeline: TimelineDocument,
}

/// Formats limits.toml: the decision on this traffic, for these interfaces, or for a placeholder without any.
/// `refusals` are those of a replay, or why there was none.
#[must_use]
pub fn limits_toml(
    traffic: &Traffic,
    decision: &Decision,
    interfaces: &[String],
    refusals: Result<&[Refusal], &str>,
) -> String {
    let mut text = String::new();
    let out = &mut text;
    comment(
        out,
        &format!(
            "Suggested by `{PROGRAM} suggest` from {} incoming packets in {}. Nothing is refused while mode is \"observe\": replay \
             it ({PROGRAM} replay), try it ({PROGRAM} try), then write \"enforce\".",
            number(traffic.packets),
            human::time(Duration::from_secs_f64(traffic.seconds))
        ),
    );
    if let Err(reason) = refusals {
        comment(out, reason);
    }
    decision
        .notes
        .iter()
        .for_each(|note| comment(out, &format!("Note: {note}.")));
    line(out, "[agent]");
    if interfaces.is_empty() {
        line(
            out,
            "interfaces = [\"eth0\"]   # nothing names it: write the captured interface",
        );
    } else {
        let names: Vec<String> = interfaces
            .iter()
            .map(|name| format!("\"{name}\""))
            .collect();
        line(out, &format!("interfaces = [{}]", names.join(", ")));
    }
    line(out, "mode = \"observe\"");
    if !decision.classes.is_empty() {
        line(out, "");
        comment(
            out,
            "Sources that exceed the limits and otherwise resemble most sources. Remove those that you do not know: a long, \
             careful attack looks the same.",
        );
    }
    decision.classes.iter().for_each(|of| class(out, of));
    let refusal = |name: &str| refusals.ok()?.iter().find(|refusal| refusal.limit == name);
    decision
        .limits
        .iter()
        .for_each(|of| limit(out, of, refusal(&of.name())));
    decision.together.iter().for_each(|of| together(out, of));
    if !decision.lacking.is_empty() {
        line(out, "");
        comment(out, "Without a limit, since there is too little data:");
        decision
            .lacking
            .iter()
            .take(LISTED)
            .for_each(|lacking| comment(out, &format!("- {lacking}")));
        if let Some(more) = decision
            .lacking
            .len()
            .checked_sub(LISTED)
            .filter(|more| *more > 0)
        {
            comment(out, &format!("- and {} more", number(more as u64)));
        }
    }
    text
}

fn class(out: &mut String, class: &SuggestedClass) {
    line(out, "");
    for source in &class.sources {
        let connections = source
            .packets_per_connection
            .map(|packets| format!("{packets:.0} packets a connection, "));
        comment(
            out,
            &format!(
                "{}: {} in {} by {}; {}active in {:.0} % of the time",
                source.address,
                number(source.value),
                human::time(Duration::from_secs(source.window_seconds)),
                source.limit,
                connections.unwrap_or_default(),
                source.active * 100.0
            ),
        );
    }
    line(out, "[[class]]");
    line(out, &format!("name = \"{}\"", class.name));
    let sources: Vec<String> = class
        .sources
        .iter()
        .map(|source| {
            if source.address.is_ipv4() {
                format!("\"{}\"", source.address)
            } else {
                format!("\"{}/64\"", source.address)
            }
        })
        .collect();
    line(out, &format!("sources = [{}]", sources.join(", ")));
    line(out, &format!("multiplier = {}", class.multiplier));
}

fn limit(out: &mut String, limit: &SuggestedLimit, refusal: Option<&Refusal>) {
    let basis = &limit.basis;
    let unit = limit.unit.name();
    line(out, "");
    let quantile = basis.quantile * 100.0;
    let most: Vec<String> = basis
        .windows
        .iter()
        .map(|window| {
            format!(
                "{} in {}",
                number(window.value),
                human::time(Duration::from_secs(window.seconds))
            )
        })
        .collect();
    let highest: Vec<String> = basis
        .windows
        .iter()
        .map(|window| number(window.highest))
        .collect();
    comment(
        out,
        &format!(
            "{}, {unit}: {quantile} % of {} sources stay at or below {}; the busiest of them: {}.",
            limit.service,
            number(basis.sources),
            most.join(", "),
            highest.join(", ")
        ),
    );
    if let Some(gap) = basis
        .windows
        .iter()
        .filter(|window| window.beyond > 0)
        .max_by_key(|window| window.beyond)
    {
        comment(
            out,
            &format!(
                "{} beyond a gap, from {} to {} in {}.",
                sources(gap.beyond),
                number(gap.highest),
                number(gap.next),
                human::time(Duration::from_secs(gap.seconds))
            ),
        );
    }
    comment(out, &exceeding(limit));
    comment(
        out,
        &format!(
            "The limit allows {:.1} times the busiest in each of these times.",
            basis.margin
        ),
    );
    if let Some(Refusal {
        packets, refused, ..
    }) = refusal
    {
        let share = if *packets == 0 {
            0.0
        } else {
            *refused as f64 * 100.0 / *packets as f64
        };
        comment(
            out,
            &format!(
                "Replayed: it refuses {} of {} packets ({share:.2} %).",
                number(*refused),
                number(*packets)
            ),
        );
    }
    line(out, "[[limit]]");
    line(out, &format!("name = \"{}\"", limit.name()));
    service(out, limit.service);
    line(out, &format!("unit = \"{unit}\""));
    line(out, &format!("rate = \"{}\"", limit.rate));
    line(out, &format!("burst = {}", limit.burst));
}

/// The sources of which the limit would refuse packets.
fn exceeding(limit: &SuggestedLimit) -> String {
    let basis = &limit.basis;
    if basis.exceeding == 0 {
        return "None exceeds it.".to_owned();
    }
    let mut text = format!(
        "{} it",
        if basis.exceeding == 1 {
            "1 source exceeds".to_owned()
        } else {
            format!("{} sources exceed", number(basis.exceeding))
        }
    );
    if basis.only_open > 0 {
        let _ = write!(
            text,
            " ({} of them only open connections)",
            number(basis.only_open)
        );
    }
    let named: Vec<String> = basis
        .busiest
        .iter()
        .map(|source| {
            let unlike = source
                .unlike
                .map(|unlike| format!(", {unlike}"))
                .unwrap_or_default();
            let time = human::time(Duration::from_secs(source.window_seconds));
            format!(
                "{} with {} in {time} ({:.1} times{unlike})",
                source.address,
                number(source.value),
                source.factor
            )
        })
        .collect();
    if !named.is_empty() {
        let _ = write!(text, ", the busiest {}", named.join("; "));
    }
    text.push('.');
    text
}

fn together(out: &mut String, together: &Together) {
    line(out, "");
    comment(
        out,
        &format!(
            "{}: in 10 s, sources that completed no connection opened {} connections, three or fewer each; {} connections were \
             completed. No limit by source can refuse such sources: each sends no more than a new client. This limit on all \
             sources together allows 1.5 times the completed connections. During such a flood it refuses {:.1} % of all new \
             connections, also those of clients. The kernel's SYN cookies (net.ipv4.tcp_syncookies = 1) refuse no client: \
             enable this limit only if the host is overloaded with them.",
            together.service,
            number(together.unanswered),
            number(together.completed),
            together.refused_share * 100.0
        ),
    );
    let mut commented = String::new();
    line(&mut commented, "[[limit]]");
    line(&mut commented, &format!("name = \"{}\"", together.name()));
    line(&mut commented, "key = \"interface\"");
    service(&mut commented, together.service);
    line(&mut commented, "unit = \"connections\"");
    line(&mut commented, &format!("rate = \"{}\"", together.rate));
    line(&mut commented, &format!("burst = {}", together.burst));
    commented
        .lines()
        .for_each(|one| line(out, &format!("#{one}")));
}

impl Together {
    /// The name in the config.
    #[must_use]
    pub fn name(&self) -> String {
        let port = self
            .service
            .port
            .map(|port| format!("-{port}"))
            .unwrap_or_default();
        format!(
            "{}{port}-connections-together",
            self.service.protocol.name()
        )
    }
}

fn service(out: &mut String, service: Service) {
    line(out, &format!("protocol = \"{}\"", service.protocol.name()));
    if let Some(port) = service.port {
        line(out, &format!("ports = [{port}]"));
    }
}

fn sources(count: u64) -> String {
    if count == 1 {
        "1 source is".to_owned()
    } else {
        format!("{} sources are", number(count))
    }
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}
