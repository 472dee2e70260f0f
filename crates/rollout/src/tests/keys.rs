//! Keys: their rotation, and those of other streams.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::document::{Object, Release};
use crate::host::{Clock, Event, Head, Host, Input, Output, Reply, Saved, Settings};
use crate::key::PublicKey;
use crate::keyring::Keyring;
use crate::refusal::Refusal;
use crate::rules::Rights;
use crate::testing::{Key, limit, release, start};

/// The refusal of a release by a host that follows `web` as a team's stream with this key.
fn refusal(team: &Key, key: &Key, change: impl FnOnce(&mut Release)) -> Option<Refusal> {
    let mut release = release(1);
    release.objects = vec![Object::new("rules.toml", limit("search-a", "1/s"))];
    change(&mut release);
    let settings = Settings {
        host: "h".into(),
        labels: BTreeMap::new(),
        stream: "web".into(),
        every: Duration::from_secs(10),
        rights: Rights::Team {
            prefix: "search-".into(),
            limits: 1,
        },
    };
    let clock = Clock {
        wall: start(),
        monotonic: Duration::ZERO,
    };
    let mut host = Host::new(settings, Saved::default(), clock);
    let reply = Reply {
        head: Head::Is(key.release(&release)),
        aborts: Vec::new(),
        board: Default::default(),
    };
    let out = host.step(Input::Replied(Box::new(reply)), &team.keyring(), clock);
    let refused = |output| match output {
        Output::Event(Event::Refused(refusal)) => Some(refusal),
        _ => None,
    };
    let is_begun = out.iter().any(|output| matches!(output, Output::Try(_)));
    let refused = out.into_iter().find_map(refused);
    assert_eq!(is_begun, refused.is_none());
    refused
}

#[test]
fn keys_are_read_with_and_without_their_scheme() {
    let key = Key::new();
    let bare = key.public.strip_prefix("ed25519:").unwrap();
    assert_eq!(bare.parse::<PublicKey>(), Ok(key.parsed()));
    for text in [
        "",
        "ed25519:",
        "rsa:abc",
        &bare[..bare.len() - 4],
        "RW\u{e9}",
    ] {
        assert!(text.parse::<PublicKey>().is_err(), "{text}");
    }
}

#[test]
fn two_keys_count_during_a_rotation_and_the_removed_one_no_more() {
    let (old, new) = (Key::new(), Key::new());
    let both = Keyring::new(vec![old.parsed(), new.parsed()]);
    for key in [&old, &new] {
        assert!(both.verify(&key.release(&release(1))).is_ok());
        assert!(both.has(key.parsed().id()));
    }
    let refused = new.keyring().verify(&old.release(&release(1))).unwrap_err();
    assert_eq!(refused, Refusal::UnknownKey(old.parsed().id()));
    assert!(!new.keyring().has(old.parsed().id()));
}

#[test]
fn a_team_has_its_key_its_prefix_and_its_number_of_limits() {
    let (team, other) = (Key::new(), Key::new());
    assert_eq!(refusal(&team, &team, |_| {}), None);
    let id = other.parsed().id();
    assert_eq!(
        refusal(&team, &other, |_| {}),
        Some(Refusal::UnknownKey(id))
    );
    let elsewhere = refusal(&team, &team, |release| release.stream = "db".into());
    assert!(
        matches!(elsewhere, Some(Refusal::WrongStream { .. })),
        "{elsewhere:?}"
    );
    let two = ["search-a", "search-b"].map(|name| limit(name, "1/s"));
    let class = "[[class]]\nname = \"search-c\"\nunlimited = true\n";
    for text in [limit("web", "1/s"), two.concat(), class.to_owned()] {
        let refused = refusal(&team, &team, |release| {
            release.objects = vec![Object::new("rules.toml", text)];
        });
        assert!(matches!(refused, Some(Refusal::Rules(_))), "{refused:?}");
        let line = refused.unwrap().to_string();
        assert!(
            line.starts_with("rules.toml:") && !line.contains('\n'),
            "{line}"
        );
    }
}

#[test]
fn a_team_bakes_for_an_hour_at_most() {
    let team = Key::new();
    let bakes = |bake: Duration| refusal(&team, &team, |release| release.bake = bake);
    let hour = Duration::from_secs(3_600);
    assert_eq!(bakes(hour), None);
    let refused = bakes(hour * 2).unwrap();
    let (bake, longest) = (hour * 2, hour);
    assert_eq!(refused, Refusal::LongBake { bake, longest });
    assert!(refused.to_string().contains("bake of 2h"), "{refused}");
}

#[test]
fn a_team_predicts_refusals_of_its_own_limits_only() {
    let team = Key::new();
    let predicts = |limit: &str| {
        let share = "5%".parse().unwrap();
        refusal(&team, &team, |release| {
            release.predicted.insert(limit.into(), share);
        })
    };
    assert_eq!(predicts("search-a"), None);
    let expected = Refusal::ForeignPrediction {
        limit: "web".into(),
        prefix: "search-".into(),
    };
    assert_eq!(predicts("web"), Some(expected));
}
