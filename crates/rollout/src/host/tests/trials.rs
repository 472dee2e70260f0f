//! Trials: their beginning, their bake, and their end.

use super::*;

#[test]
fn a_canary_begins_at_once_and_confirms_after_the_bake() {
    let mut bench = Bench::new();
    bench.begins(1);
    assert!(bench.host.is_baking());
    assert_eq!(bench.bakes(59), []);
    let out = bench.bakes(1);
    let confirmed = Output::Event(Event::Confirmed { version: 1 });
    assert_eq!(out, [Output::Confirm, confirmed]);
    assert!(!bench.host.is_baking());
    assert_eq!(bench.host.report().progress, Progress::Held);
}

#[test]
fn a_failed_check_rolls_back_and_the_version_is_not_tried_again() {
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    bench.after(SECOND);
    let fault = Unhealthy::Application("503".into());
    let out = bench.step(Input::Health(Err(fault)));
    assert_eq!(rolls_back_to(&out), Some(1));
    assert!(bench.host.report().counts);
    assert!(matches!(
        bench.host.report().progress,
        Progress::Failed { .. }
    ));
    bench.restarts();
    assert_eq!(bench.reads_release(&release(2), Board::default()), []);
    assert_eq!(bench.effective(), Some(1));
    bench.confirms(3);
}

#[test]
fn rules_that_cannot_be_put_in_effect_are_a_failure() {
    let mut bench = Bench::new();
    bench.reads_release(&release(1), Board::default());
    let out = bench.step(Input::Tried(Err("limit \"web\" is invalid".into())));
    assert_eq!(rolls_back_to(&out), Some(0));
    let message = stopped(&out).unwrap().to_string();
    assert_eq!(message, "not in effect: limit \"web\" is invalid");
}

#[test]
fn a_follower_begins_when_the_canaries_have_held() {
    let mut bench = Bench::new();
    for (board, begins) in [
        (board(0, 0), false),
        (board(3, 0), false),
        (board(2, 1), false),
        (board(1, 2), false),
        (board(0, 3), true),
    ] {
        bench.after(EVERY);
        let out = bench.reads_release(&followed(1), board);
        assert_eq!(is_trying(&out, 1), begins);
    }
    assert!(!bench.host.report().counts);
}

#[test]
fn a_canary_that_ends_without_a_report_is_not_waited_for() {
    let mut bench = Bench::new();
    let mut begun = Vec::new();
    for reading in 0..8 {
        let out = bench.reads_release(&followed(1), board(1, 2));
        begun.extend(is_trying(&out, 1).then_some(reading));
        bench.after(EVERY);
    }
    assert_eq!(begun, [3]);
}

#[test]
fn a_failed_canary_stops_waiting_and_trying_hosts_but_not_confirmed_ones() {
    let failure = Failure {
        host: "other".into(),
        reason: "r".into(),
    };
    let failed = || Board {
        failed: Some(failure.clone()),
        ..board(3, 3)
    };
    let reason = Stop::CanaryFailed(failure.clone());
    let mut waiting = Bench::new();
    let out = waiting.reads_release(&followed(1), failed());
    assert_eq!(stopped(&out), Some(&reason));
    assert!(!is_trying(&out, 1));
    // Also when the store forgets the failure.
    waiting.after(EVERY * 5);
    assert_eq!(waiting.reads(Head::Unchanged, Vec::new(), board(0, 3)), []);

    let mut trying = Bench::new();
    trying.begins(1);
    let out = trying.reads_release(&release(1), failed());
    assert_eq!(rolls_back_to(&out), Some(0));

    let mut confirmed = Bench::new();
    confirmed.confirms(1);
    assert_eq!(confirmed.reads_release(&release(1), failed()), []);
    assert_eq!(confirmed.effective(), Some(1));
}

#[test]
fn an_abort_ends_a_trial_and_returns_from_a_confirmed_release() {
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    let abort = |bench: &mut Bench, version| {
        let object = bench.key.abort(version);
        bench.reads(Head::Unchanged, vec![object], Board::default())
    };
    assert_eq!(rolls_back_to(&abort(&mut bench, 2)), Some(1));
    bench.confirms(3);
    assert_eq!(abort(&mut bench, 2), []);
    assert_eq!(rolls_back_to(&abort(&mut bench, 3)), Some(1));
    bench.restarts();
    assert_eq!(bench.reads_release(&release(3), Board::default()), []);
    assert_eq!(bench.effective(), Some(1));
    // Of a version that nobody has begun.
    let object = bench.key.abort(4);
    let head = Head::Is(bench.key.release(&followed(4)));
    let out = bench.reads(head, vec![object], board(0, 9));
    assert!(matches!(stopped(&out), Some(Stop::Aborted { .. })));
    assert!(!is_trying(&out, 4));
}

#[test]
fn an_abort_under_a_trial_that_waits_is_carried_out_at_once() {
    let mut bench = Bench::new();
    bench.confirms(1);
    // Another stream is on trial on this host.
    let out = bench.reads_release(&release(2), Board::default());
    assert!(is_trying(&out, 2) && !bench.host.is_baking());
    let object = bench.key.abort(1);
    let out = bench.reads(Head::Unchanged, vec![object], Board::default());
    assert_eq!(rolls_back_to(&out), Some(0));
    // It goes on waiting.
    let place = |wanted: fn(&Output) -> bool| out.iter().position(wanted);
    let rolled_back = place(|output| matches!(output, Output::RollBack(_)));
    assert!(rolled_back < place(|output| matches!(output, Output::Try(_))));
    assert!(is_trying(&out, 2));
}

#[test]
fn a_trial_that_waits_reports_an_end_that_is_ahead() {
    let mut bench = Bench::new();
    bench.reads_release(&release(1), Board::default());
    let ends = |bench: &Bench| match bench.host.report().progress {
        Progress::Trying { ends } => ends,
        other => panic!("{other:?}"),
    };
    let (mut reports, mut last) = (1, ends(&bench));
    for _ in 0..600 {
        bench.after(SECOND);
        assert_eq!(bench.step(Input::Waits), []);
        assert!(ends(&bench) > bench.clock.wall);
        reports += u32::from(ends(&bench) != last);
        last = ends(&bench);
    }
    // Twice a bake of a minute.
    assert!((15..=21).contains(&reports), "{reports}");
    // The bake is a whole one.
    bench.step(Input::Tried(Ok(())));
    assert_eq!(bench.bakes(59), []);
    assert!(bench.bakes(1).contains(&Output::Confirm));
}

#[test]
fn a_step_of_the_wall_clock_confirms_nothing() {
    let mut bench = Bench::new();
    bench.begins(1);
    for step in [DAY * 3_650, Duration::ZERO] {
        bench.clock.wall = start() + step;
        assert_eq!(bench.bakes(20), []);
    }
}

#[test]
fn time_without_checks_is_no_health() {
    let mut bench = Bench::new();
    bench.begins(1);
    bench.after(DAY);
    assert_eq!(bench.bakes(58), []);
    assert!(bench.bakes(1).contains(&Output::Confirm));
}

#[test]
fn a_newer_release_replaces_one_on_trial() {
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    let out = bench.reads_release(&release(3), Board::default());
    assert_eq!(rolls_back_to(&out), Some(1));
    assert_eq!(stopped(&out), Some(&Stop::Superseded));
    assert!(is_trying(&out, 3));
}

#[test]
fn an_agent_that_ends_during_the_bake_begins_once_more() {
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    bench.restarts();
    assert_eq!(bench.effective(), Some(1));
    bench.begins(2);
    bench.restarts();
    assert_eq!(bench.effective(), Some(1));
    assert!(!is_trying(
        &bench.reads_release(&release(2), Board::default()),
        2
    ));
    let report = bench.host.report();
    let reason = Stop::Interrupted.to_string();
    assert_eq!(
        (report.progress, report.counts),
        (Progress::Failed { reason }, true)
    );
}

#[test]
fn a_changed_file_is_merged_and_the_bake_begins_again() {
    let mut bench = Bench::new();
    bench.begins(1);
    bench.bakes(59);
    assert_eq!(bench.step(Input::FileChanged), [Output::Merge]);
    assert_eq!(bench.bakes(5), []);
    assert_eq!(bench.step(Input::Tried(Ok(()))), []);
    assert_eq!(bench.bakes(59), []);
    assert!(bench.bakes(1).contains(&Output::Confirm));
    assert_eq!(bench.step(Input::FileChanged), []);
}

#[test]
fn a_changed_file_puts_no_waiting_rules_in_effect() {
    let mut bench = Bench::new();
    let out = bench.reads_release(&release(1), Board::default());
    assert!(is_trying(&out, 1), "{out:?}");
    // An operator has a config on trial, so that the agent cannot try the rules yet.
    assert_eq!(bench.step(Input::FileChanged), []);
    assert!(!bench.host.is_baking());
    assert_eq!(bench.bakes(120), []);
    // The event is that of rules in effect.
    let begun = Output::Event(Event::Begun { version: 1 });
    assert_eq!(bench.step(Input::Tried(Ok(()))), [begun]);
    assert!(bench.bakes(60).contains(&Output::Confirm));
}

#[test]
fn of_two_aborted_versions_neither_stays_in_effect() {
    for aborted in [[1, 2], [2, 1]] {
        let mut bench = Bench::new();
        bench.confirms(1);
        bench.confirms(2);
        let aborts = aborted.map(|version| bench.key.abort(version)).to_vec();
        let out = bench.reads(Head::Unchanged, aborts, Board::default());
        assert!(out.contains(&Output::Save));
        assert_eq!(bench.effective(), None, "{aborted:?}");
        bench.restarts();
        assert_eq!(bench.effective(), None, "{aborted:?}");
    }
    // Of the older one alone, after which a fault of the next one has nothing to return to.
    let mut bench = Bench::new();
    bench.confirms(1);
    bench.begins(2);
    let abort = bench.key.abort(1);
    bench.reads(Head::Unchanged, vec![abort], Board::default());
    let fault = Unhealthy::Application("503".into());
    let out = bench.step(Input::Health(Err(fault)));
    assert_eq!(rolls_back_to(&out), Some(0));
}

#[test]
fn rules_that_cannot_be_saved_or_kept_are_confirmed_later_or_rolled_back() {
    let mut bench = Bench::new();
    bench.begins(1);
    assert_eq!(bench.bakes(59), []);
    for _ in 0..3 {
        bench.after(SECOND);
        let out = bench
            .host
            .step(Input::Health(Ok(())), &bench.keyring, bench.clock);
        assert_eq!(out, [Output::Confirm]);
        assert!(matches!(
            bench.host.report().progress,
            Progress::Trying { .. }
        ));
    }
    let saved = bench.host.if_confirmed().unwrap();
    assert_eq!(saved.confirmed().unwrap().version, 1);
    assert!(!saved.is_trying);
    let ended = Input::Tried(Err("an operator ended it".into()));
    assert_eq!(rolls_back_to(&bench.step(ended)), Some(0));
    assert_eq!(bench.step(Input::Confirmed), []);
    assert_eq!(bench.effective(), None);
}

#[test]
fn an_agent_that_ends_in_order_has_made_no_attempt() {
    let mut bench = Bench::new();
    assert!(!bench.host.ends());
    for _ in 0..5 {
        bench.begins(1);
        assert!(bench.host.ends());
        bench.restarts();
        assert_eq!(bench.effective(), None);
    }
    bench.begins(1);
    bench.restarts();
    bench.begins(1);
    bench.restarts();
    let out = bench.reads_release(&release(1), Board::default());
    assert_eq!(stopped(&out), Some(&Stop::Interrupted));
}

#[test]
fn a_report_has_the_version_that_is_in_effect() {
    let mut bench = Bench::new();
    bench.confirms(3);
    bench.host.has_in_effect(3);
    let report = bench.host.report();
    assert_eq!((report.effective, report.refused), (3, None));
    // Another start, with a file with which the rules do not go.
    bench.restarts();
    bench.host.has_in_effect(0);
    let report = bench.host.report();
    assert_eq!(report.effective, 0);
    assert!(report.refused.unwrap().contains("without version 3"));
}
