//! `weir decide`: one decision from a shell.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;

use api::request::Request;
use config::human;
use decide::{Answer, ChargeMode, Question};

use super::exit::usage;
use super::print::Print;
use super::table;
use crate::cli::arguments::{Decide, Options};
use crate::server::control::ClientError;

pub fn decide(decide: &Decide, options: &Options) -> anyhow::Result<ExitCode> {
    let question = match question(decide) {
        Ok(question) => question,
        Err(wrong) => return Ok(usage(&wrong)),
    };
    let answer: Answer = match options.client().ask(&Request::Decide { question }) {
        Ok(answer) => answer,
        // The request was invalid, and nothing was charged.
        Err(ClientError::Refused(reason)) => return Ok(usage(&reason)),
        Err(error) => return Err(error.into()),
    };
    Print::from(options.json).document(&answer, |answer| println!("{}", text(answer)))?;
    Ok(if decide.exit_status && !answer.allowed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn text(answer: &Answer) -> String {
    let retry_after = answer
        .retry_after_seconds
        .map_or_else(|| "never".to_owned(), human::seconds);
    let remaining = table::number(answer.remaining.unsigned_abs());
    let mut pairs = vec![
        ("limit", answer.limit.clone()),
        (
            "allowed",
            if answer.allowed { "yes" } else { "no" }.to_owned(),
        ),
        (
            "remaining",
            if answer.remaining < 0 {
                format!("-{remaining}")
            } else {
                remaining
            },
        ),
        ("retry after", retry_after),
        ("reset after", human::seconds(answer.reset_after_seconds)),
    ];
    pairs.extend(answer.reservation.clone().map(|id| ("reservation", id)));
    table::pairs(pairs)
}

fn question(options: &Decide) -> Result<Question, String> {
    let (request, parameters) = match options.request.split_first() {
        Some((name, parameters)) => (
            Some(name.clone()),
            pairs(parameters, "--request publish messages=3")?,
        ),
        None => (None, BTreeMap::new()),
    };
    Ok(Question {
        limit: options.limit.clone().unwrap_or_default(),
        key: pairs(&options.keys, "--key user=alice")?,
        source: options.source,
        request,
        parameters,
        cost: options.cost,
        peek: options.peek,
        wait: options.wait,
        charge: options.force.then_some(ChargeMode::Force),
        reserve: options.reserve,
        on_expiry: options.on_expiry,
        commit: options.commit.clone(),
        release: options.release.clone(),
        bans_nobody: false,
        forces_nothing: false,
    })
}

pub(super) fn pairs<T: FromStr>(
    words: &[String],
    example: &str,
) -> Result<BTreeMap<String, T>, String> {
    let mut pairs = BTreeMap::new();
    for word in words {
        let pair = word.split_once('=').filter(|(name, _)| !name.is_empty());
        let pair = pair.and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        let (name, value) =
            pair.ok_or_else(|| format!("invalid argument {word:?}: write {example}"))?;
        if pairs.insert(name, value).is_some() {
            return Err(format!("duplicate argument {word:?}: leave out one"));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::arguments::{Cli, Command};
    use clap::Parser;

    fn parse(line: &str) -> Result<Question, String> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| error.to_string())?;
        let Some(Command::Decide(options)) = cli.command else {
            return Err("no decide".to_owned());
        };
        question(&options)
    }

    #[test]
    fn arguments_become_the_same_request() {
        let question = parse(
            "agent decide --limit credits --key user=alice --key team=a=b --request publish messages=3 topics=0.5 --peek",
        )
        .unwrap();
        assert_eq!(
            question.key,
            BTreeMap::from([("user", "alice"), ("team", "a=b")].map(|(k, v)| (k.into(), v.into())))
        );
        assert_eq!(
            (question.request.as_deref(), question.cost, question.peek),
            (Some("publish"), None, true)
        );
        assert_eq!(
            question.parameters,
            BTreeMap::from([("messages".into(), 3.0), ("topics".into(), 0.5)])
        );
        assert_eq!(
            parse("agent decide --limit a --cost 30").unwrap().cost,
            Some(30)
        );
        let refund = parse("agent decide --limit a --cost -30").unwrap();
        assert_eq!((refund.cost, refund.charge), (Some(-30), None));
        let forced = parse("agent decide --limit a --cost 30 --force").unwrap();
        assert_eq!(forced.charge, Some(ChargeMode::Force));
        let reserve =
            parse("agent decide --limit a --cost 30 --reserve 10min --on-expiry release").unwrap();
        assert_eq!(
            (reserve.reserve, reserve.on_expiry),
            ("600s".parse().ok(), Some(decide::OnExpiry::Release))
        );
        let commit = parse("agent decide --commit 4f --cost 12").unwrap();
        assert_eq!(
            (commit.commit.as_deref(), commit.cost, commit.limit.as_str()),
            (Some("4f"), Some(12), "")
        );
        let release = parse("agent decide --release 4f").unwrap();
        assert_eq!(release.release.as_deref(), Some("4f"));
        for (line, reason) in [
            ("agent decide", "--limit"),
            (
                "agent decide --limit a --key user",
                "write --key user=alice",
            ),
            (
                "agent decide --limit a --key user=a --key user=b",
                "duplicate argument",
            ),
            (
                "agent decide --limit a --request publish messages=x",
                "messages=3",
            ),
            (
                "agent decide --limit a --request publish --cost 3",
                "cannot be used with",
            ),
            ("agent decide --limit a --cost 1.5", "1.5"),
            ("agent decide --limit a --commit x", "cannot be used with"),
            ("agent decide --release x --cost 3", "cannot be used with"),
            (
                "agent decide --limit a --on-expiry release",
                "--reserve <TIME>",
            ),
            ("agent decide --limit a --reserve 2d", "1 d at most"),
            (
                "agent decide --limit a --reserve 1s --on-expiry keep",
                "write commit or release",
            ),
            (
                "agent decide --limit a --reserve 1s --force",
                "cannot be used with",
            ),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(reason), "{line}: {error}");
        }
    }
}
