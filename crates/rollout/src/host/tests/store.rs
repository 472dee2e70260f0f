//! The store's contents, and a host's requests.

use super::*;

#[test]
fn an_abort_that_does_not_count_changes_nothing() {
    let mut bench = Bench::new();
    bench.confirms(1);
    let other = Key::new();
    for object in [
        other.abort(1),
        "kind = \"abort\"".into(),
        bench.key.release(&release(1)),
    ] {
        bench.refuses_abort(object);
        assert_eq!(bench.effective(), Some(1));
    }
}

#[test]
fn older_versions_and_an_empty_store_are_refused_once_with_an_event() {
    let mut bench = Bench::new();
    bench.confirms(2);
    let replayed = Refusal::Replayed { found: 1, seen: 2 };
    let out = bench.reads_release(&release(1), board(0, 9));
    assert_eq!(refused(&out), Some(&replayed));
    assert_eq!(bench.reads_release(&release(1), board(0, 9)), []);
    let out = bench.reads(Head::Missing, Vec::new(), Board::default());
    assert_eq!(refused(&out), Some(&Refusal::StoreEmpty("web".into())));
    bench.restarts();
    let out = bench.reads_release(&release(1), board(0, 9));
    assert_eq!(refused(&out), Some(&replayed));
    assert_eq!(bench.effective(), Some(2));
    assert!(bench.host.report().refused.unwrap().contains("older"));
    // A store that never had a release is no fault.
    assert_eq!(
        Bench::new().reads(Head::Missing, Vec::new(), Board::default()),
        []
    );
}

#[test]
fn releases_for_others_are_refused() {
    let mut bench = Bench::new();
    let mut other = release(1);
    other.stream = "db".into();
    let out = bench.reads_release(&other, Board::default());
    assert!(matches!(refused(&out), Some(Refusal::WrongStream { .. })));
    let mut other = release(1);
    other.select.insert("role".into(), "db".into());
    let out = bench.reads_release(&other, Board::default());
    let expected = Refusal::NotForThisHost {
        version: 1,
        wanted: "role=db".into(),
    };
    // It is no event, and the host reports it.
    assert_eq!(out, []);
    assert_eq!(bench.host.report().refused, Some(expected.to_string()));
    let abort = bench.key.abort(1);
    let out = bench.reads(Head::Is(abort), Vec::new(), Board::default());
    assert!(matches!(refused(&out), Some(Refusal::WrongKind { .. })));
    assert_eq!(bench.host.saved(), &Saved::default());
}

#[test]
fn expiry_concerns_only_releases_that_have_not_begun() {
    let mut bench = Bench::new();
    bench.clock.wall += DAY;
    let out = bench.reads_release(&release(1), Board::default());
    assert!(matches!(refused(&out), Some(Refusal::Expired { .. })));
    // The clock is corrected: nothing was decided.
    bench.clock.wall -= DAY;
    bench.begins(1);
    bench.clock.wall += DAY * 1_000;
    let out = bench.bakes(60);
    assert!(out.contains(&Output::Confirm));
    assert_eq!(bench.reads_release(&release(1), Board::default()), []);
    assert_eq!(bench.effective(), Some(1));

    let mut waiting = Bench::new();
    waiting.reads_release(&followed(1), board(1, 0));
    waiting.after(DAY);
    let out = waiting.reads(Head::Unchanged, Vec::new(), board(0, 1));
    assert!(matches!(refused(&out), Some(Refusal::Expired { .. })));
    assert!(!is_trying(&out, 1));
}

#[test]
fn two_documents_of_one_version_stop_it_unless_it_is_confirmed() {
    let mut twin = release(2);
    twin.bake += SECOND;
    let conflict = Refusal::Conflict { version: 2 };
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    let out = bench.reads_release(&twin, Board::default());
    assert_eq!(rolls_back_to(&out), Some(1));
    assert_eq!(refused(&out), Some(&conflict));
    assert!(bench.host.report().counts);
    // The first again: it stays stopped.
    assert!(!is_trying(
        &bench.reads_release(&release(2), Board::default()),
        2
    ));

    let mut confirmed = Bench::new();
    confirmed.confirms(2);
    let out = confirmed.reads_release(&twin, Board::default());
    assert_eq!(refused(&out), Some(&conflict));
    assert_eq!(rolls_back_to(&out), None);
    assert_eq!(confirmed.effective(), Some(2));
    // Hosts that read only the second document do not begin.
    let report = confirmed.host.report();
    assert_eq!(report.effective, 2);
    let seen = Board::of([&report], 2, "twin", "other");
    assert!(seen.failed.is_some());
    confirmed.restarts();
    assert_eq!(confirmed.host.report().progress, report.progress);
    // The conflict ends with the next version.
    confirmed.confirms(3);
    assert_eq!(confirmed.host.report().progress, Progress::Held);
}

#[test]
fn a_canarys_report_counts_also_while_it_reads_the_release_again() {
    let mut bench = Bench::new();
    bench.begins(1);
    bench.step(Input::Health(Err(Unhealthy::Application("503".into()))));
    let report = bench.host.report();
    assert!(report.counts);
    bench.step(Input::TrustChanged);
    assert_eq!(bench.host.report(), report);
    bench.restarts();
    assert_eq!(bench.host.report(), report);
}

#[test]
fn a_removed_key_ends_a_trial_and_leaves_confirmed_rules() {
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    let new = Key::new();
    bench.keyring = new.keyring();
    let out = bench.step(Input::TrustChanged);
    assert_eq!(rolls_back_to(&out), Some(1));
    let out = bench.reads_release(&release(3), Board::default());
    assert!(matches!(refused(&out), Some(Refusal::UnknownKey(_))));
    assert_eq!(bench.effective(), Some(1));
    bench.key = new;
    bench.confirms(3);
}

#[test]
fn a_bad_document_ends_no_trial() {
    let mut bench = Bench::new();
    bench.begins(2);
    let truncated = bench.key.release(&release(3));
    let truncated = truncated[..truncated.len() - 9].to_owned();
    for release in [truncated, "rubbish".into(), bench.key.release(&release(1))] {
        // Its board does not count either.
        let failed = Board {
            failed: Some(Failure {
                host: "other".into(),
                reason: "r".into(),
            }),
            ..Board::default()
        };
        let out = bench.reads(Head::Is(release), Vec::new(), failed);
        assert!(refused(&out).is_some());
        assert_eq!(rolls_back_to(&out), None);
    }
    assert!(bench.bakes(60).contains(&Output::Confirm));
}

#[test]
fn a_report_has_the_beginning_of_a_long_reason() {
    let length = |bench: &Bench| bench.host.report().to_text().unwrap().len();
    let mut bench = Bench::new();
    bench.begins(1);
    bench.step(Input::Tried(Err("é".repeat(1 << 20))));
    assert!((500..4_096).contains(&length(&bench)), "{}", length(&bench));
    let saved = toml::to_string(bench.host.saved()).unwrap();
    assert!(saved.len() < 4_096, "{}", saved.len());
    // A refused release, and a failure that a writer of the store made up.
    let mut release = release(2);
    release.objects[0].text = "[agent]\n".repeat(10_000);
    let out = bench.reads_release(&release, Board::default());
    assert!(matches!(refused(&out), Some(Refusal::Rules(_))), "{out:?}");
    assert!(length(&bench) < 8_192, "{}", length(&bench));
    let failed = Board {
        failed: Some(Failure {
            host: "h".repeat(1 << 20),
            reason: "r".repeat(1 << 20),
        }),
        ..Board::default()
    };
    let mut bench = Bench::new();
    bench.begins(1);
    bench.reads(Head::Unchanged, Vec::new(), failed);
    let saved = toml::to_string(bench.host.saved()).unwrap();
    assert!(saved.contains("canary-failed") && saved.len() < 4_096);
}

#[test]
fn reports_take_the_place_of_reads_and_lost_ones_are_sent_again() {
    let mut bench = Bench::new();
    let mut requests = Vec::new();
    let mut reported: Option<Box<crate::board::Report>> = None;
    let mut last = None;
    bench.reads_release(&release(1), Board::default());
    bench.step(Input::Tried(Ok(())));
    for second in 0..200 {
        bench.after(SECOND);
        bench.step(Input::Health(Ok(())));
        let Some(request) = bench.host.take_request(bench.clock) else {
            continue;
        };
        assert!(last.is_none_or(|last| second - last >= 10));
        last = Some(second);
        requests.push(matches!(request, Request::Report(_)));
        match request {
            Request::Report(report) => {
                reported = Some(report.clone());
                bench.step(Input::Reported(report));
            }
            Request::Read => {
                // The store loses everything once.
                let mine = reported.as_deref().cloned().filter(|_| second < 120);
                reported = reported.filter(|_| second < 120);
                let board = Board {
                    mine,
                    ..Board::default()
                };
                bench.reads(Head::Unchanged, Vec::new(), board);
            }
        }
    }
    let reports = requests.iter().filter(|is_report| **is_report).count();
    assert!(reports >= 3, "{requests:?}");
    assert!(!requests[0]);
    assert!(matches!(
        reported.map(|report| report.progress),
        Some(Progress::Held)
    ));
}

#[test]
fn an_unavailable_store_is_an_event_when_it_goes_and_comes_back() {
    let mut bench = Bench::new();
    bench.confirms(1);
    let out = bench.step(Input::StoreFailed("connection refused".into()));
    assert_eq!(
        out,
        [Output::Event(Event::StoreDown("connection refused".into()))]
    );
    assert_eq!(bench.step(Input::StoreFailed("timeout".into())), []);
    let out = bench.reads(Head::Unchanged, Vec::new(), Board::default());
    assert_eq!(out, [Output::Event(Event::StoreUp)]);
    assert_eq!(bench.effective(), Some(1));
}

#[test]
fn a_release_without_a_canary_is_reported_once() {
    let mut bench = Bench::new();
    let mut stalls = 0;
    for _ in 0..20 {
        let out = bench.reads_release(&followed(1), Board::default());
        let stall = Output::Event(Event::Stalled { version: 1 });
        stalls += out.iter().filter(|output| **output == stall).count();
        bench.after(EVERY);
    }
    assert_eq!(stalls, 1);
}

#[test]
fn canaries_that_end_during_their_bake_are_reported_once() {
    for held in [0, 1] {
        let mut bench = Bench::new();
        let ends = bench.clock.wall + SECOND * 60;
        let mut stalls = Vec::new();
        for read in 0..20_u32 {
            let board = Board {
                ends: Some(ends),
                ..board(1, held)
            };
            let out = bench.reads_release(&followed(1), board);
            if out.contains(&Output::Event(Event::Stalled { version: 1 })) {
                stalls.push(read);
            }
            bench.after(EVERY);
        }
        // A minute of bake, and six requests.
        assert_eq!(stalls, [12], "{held} held");
    }
}

#[test]
fn an_idle_host_renews_its_report_and_reads_otherwise() {
    let mut bench = Bench::new();
    bench.confirms(1);
    let mut reports = Vec::new();
    for second in 0..10_000_u32 {
        bench.after(SECOND);
        match bench.host.take_request(bench.clock) {
            Some(Request::Report(report)) => {
                reports.push(second);
                bench.step(Input::Reported(report));
            }
            Some(Request::Read) => {
                let mine = (!reports.is_empty()).then(|| bench.host.report());
                let board = Board {
                    mine,
                    ..board(0, 1)
                };
                assert_eq!(bench.reads(Head::Unchanged, Vec::new(), board), []);
            }
            None => {}
        }
    }
    assert_eq!(reports.len(), 3, "{reports:?}");
}
