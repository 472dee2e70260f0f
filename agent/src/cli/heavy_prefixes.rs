//! `weir top --by prefix --once`.

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use api::heavy_prefixes::{HeavyPrefix, HeavyPrefixes};
use api::request::Request;
use config::human;

use super::ask::print;
use super::table::{self, number};
use crate::cli::arguments::Options;

/// The time of a sample that is large enough, in seconds.
const ENOUGH: f64 = 2.0;
/// How long to wait for it.
const PATIENCE: Duration = Duration::from_secs(6);
/// The interval of queries.
const PERIOD: Duration = Duration::from_millis(250);

/// One table of prefixes, after two seconds unless the agent already samples.
pub fn once(count: Option<usize>, share: f64, options: &Options) -> anyhow::Result<ExitCode> {
    let client = options.client();
    let start = Instant::now();
    let mut found: HeavyPrefixes = client.ask(&Request::HeavyPrefixes { share })?;
    while found.seconds < ENOUGH && start.elapsed() < PATIENCE {
        thread::sleep(PERIOD);
        found = client.ask(&Request::HeavyPrefixes { share })?;
    }
    found.prefixes.truncate(count.unwrap_or(usize::MAX));
    print(options, &found, text)
}

fn text(found: &HeavyPrefixes) -> String {
    if found.samples == 0 {
        return format!("No packets in {}.", human::seconds(found.seconds));
    }
    let row = |row: &HeavyPrefix| {
        [
            row.prefix.clone(),
            percent(row.own_share),
            if row.margin > 0.0 {
                format!("{} ±{:.1}", percent(row.share), row.margin * 100.0)
            } else {
                percent(row.share)
            },
            number(row.packets_per_second as u64),
            number(row.throttled_per_second as u64),
            format!(
                "{}{}",
                if found.one_in > 1 { ">=" } else { "" },
                number(row.sources)
            ),
        ]
    };
    let table = table::render_or(
        &format!(
            "No prefix has {} of the packets.",
            percent(found.least_share)
        ),
        [
            "PREFIX",
            "OWN",
            "SHARE",
            "PACKETS/s",
            "THROTTLED/s",
            "SOURCES",
        ],
        1,
        found.prefixes.iter().map(row),
    );
    let sampled = if found.one_in > 1 {
        format!("{} sampled packets", number(found.samples))
    } else {
        "all packets".to_owned()
    };
    let error = if found.error > 0.0 {
        format!(
            "; with 95 % probability no share is off by more than {}",
            percent(found.error)
        )
    } else {
        String::new()
    };
    let lost = if found.lost > 0 {
        format!("; {} samples were lost", number(found.lost))
    } else {
        String::new()
    };
    format!(
        "{table}\n\n{} of {} packets/s come from elsewhere. By {sampled} of {} from {} sources{error}{lost}.",
        percent(found.elsewhere),
        number(found.packets_per_second as u64),
        human::seconds(found.seconds),
        number(found.sources),
    )
}

fn percent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_states_its_error_and_a_quiet_host_has_none() {
        let prefix = HeavyPrefix {
            prefix: "198.18.0.0/16".to_owned(),
            share: 0.5,
            own_share: 0.401,
            margin: 0.011,
            packets_per_second: 12_345.6,
            throttled_per_second: 10.0,
            sources: 3_112,
            ..HeavyPrefix::default()
        };
        let found = HeavyPrefixes {
            seconds: 2.04,
            one_in: 64,
            samples: 8_000,
            error: 0.031,
            least_share: 0.01,
            packets_per_second: 25_000.0,
            sources: 5_000,
            elsewhere: 0.599,
            prefixes: vec![prefix],
            ..HeavyPrefixes::default()
        };
        assert_eq!(
            text(&found),
            "PREFIX           OWN       SHARE  PACKETS/s  THROTTLED/s  SOURCES\n\
             198.18.0.0/16  40.1%  50.0% ±1.1     12,345           10  >=3,112\n\n\
             59.9% of 25,000 packets/s come from elsewhere. By 8,000 sampled packets of 2 s from 5,000 sources; with 95 % \
             probability no share is off by more than 3.1%."
        );
        let quiet = HeavyPrefixes {
            one_in: 1,
            error: 0.0,
            prefixes: Vec::new(),
            ..found
        };
        assert!(
            text(&quiet).starts_with("No prefix has 1.0% of the packets.\n\n"),
            "{}",
            text(&quiet)
        );
        assert!(
            text(&quiet).ends_with("By all packets of 2 s from 5,000 sources."),
            "{}",
            text(&quiet)
        );
        assert_eq!(
            text(&HeavyPrefixes {
                seconds: 2.0,
                ..HeavyPrefixes::default()
            }),
            "No packets in 2 s."
        );
    }
}
