//! Tests of screens for the agent's documents, and of keys.

use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;
use serde_json::json;

use super::app::{Motion, Typing};
use super::draw::HELP;
use super::{App, Effect, Glyphs, Theme, draw};
use crate::stats::{Sort, View};

const PERIOD: Duration = Duration::from_secs(1);

/// A document like the agent's, `seconds` after the first.
fn view(seconds: u64, sources: usize) -> View {
    let count = |packets: u64| json!({"packets": packets, "bytes": packets * 100});
    let limit = |name: &str, unit: &str, passed: u64, throttled: u64| {
        json!({"name": name, "direction": "ingress", "key": "source", "unit": unit, "algorithm": "token-bucket",
            "rate": "1000/s", "burst": 100, "passed": count(passed), "throttled": count(throttled),
            "would_throttle": count(0), "over": count(0), "keys": 2})
    };
    let source = |nth: usize| {
        json!({"source": format!("10.77.{}.{}", nth / 256, nth % 256), "limit": "packets", "passed_packets": 1_000 + seconds,
            "throttled_packets": 5_000_000, "would_throttle_packets": 0, "passed_per_second": 1_000.0,
            "throttled_per_second": if nth == 0 { 12_345.6 } else { 0.0 }})
    };
    let document = json!({
        "at_seconds": 100.0 + seconds as f64,
        "status": {"version": "0.1.0", "mode": "enforce", "uptime_seconds": 61, "config": "limits.toml",
            "interfaces": [{"name": "weir0", "attach": "native", "state": "attached", "enforced_by": [], "reason": null}],
            "totals": {"passed_packets": 1_000 * seconds, "passed_bytes": 1, "throttled_packets": 7, "throttled_bytes": 1},
            "sources": {"tracked": 1_000_000, "capacity": 1_000_000, "evicted": 3, "full_passed": 0,
                "full_throttled": 0, "full_shared": 0, "contended": 0},
            "bypass": {"unlimited": 0, "not_ip": 0, "essential": 0, "never_limit": 0, "malformed": 0, "banned": 0,
                "essential_throttled": 0, "not_ip_throttled": 0},
            "bans": 2, "has_room": null, "groups": ["batch"], "notes": []},
        "limits": [limit("packets", "packets", 1_000 * seconds, 500 * seconds), limit("traffic", "bytes", 10 * seconds, 0)],
        "allowed_per_second": {"packets": 1_000.0, "traffic": 1_000.0},
        "sources": (0..sources).map(source).collect::<Vec<_>>(),
        "matching": sources, "remembered": 16_384,
        "groups": [{"name": "batch", "cgroup": "/weir/batch", "pids": [1, 2, 3], "limits": [], "frozen": false,
            "cpu": {"usage_seconds": 0.5 * seconds as f64, "throttled_seconds": 1.5, "max_percent": 150.0},
            "memory": {"current_bytes": 3 << 20, "high_bytes": null, "max_bytes": 1 << 30, "oom_kills": 0},
            "io": [], "pids_current": 3,
            "network": {"egress_bytes": 0, "egress_throttled_packets": 0, "ingress_bytes": 0, "ingress_throttled_packets": 0},
            "pressure": {"cpu": 2.0, "memory": null, "io": null}, "notes": []}]
    });
    serde_json::from_value(document).unwrap()
}

fn app(sources: usize) -> App {
    let mut app = App::default();
    for seconds in [1, 3] {
        app.arrived(Ok(view(seconds, sources)));
    }
    app
}

fn terminal(
    app: &App,
    width: u16,
    height: u16,
    theme: Theme,
    glyphs: Glyphs,
) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw(frame, app, theme, glyphs))
        .unwrap();
    terminal
}

fn lines(app: &App, width: u16, height: u16) -> Vec<String> {
    drawn(app, width, height, Glyphs::Letters)
}

fn drawn(app: &App, width: u16, height: u16, glyphs: Glyphs) -> Vec<String> {
    let terminal = terminal(app, width, height, Theme::Colour, glyphs);
    let buffer = terminal.backend().buffer();
    let line = |y: u16| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
            .trim_end()
            .to_owned()
    };
    (0..height).map(line).collect()
}

fn press(app: &mut App, code: KeyCode) -> Effect {
    app.typed(KeyEvent::new(code, KeyModifiers::NONE))
}

fn type_in(app: &mut App, text: &str) {
    for letter in text.chars() {
        press(app, KeyCode::Char(letter));
    }
}

#[test]
fn a_fair_limit_has_a_load_while_a_level_is_in_effect() {
    let load = |level: Option<f64>| {
        let mut app = App::default();
        for seconds in [1, 3] {
            let mut view = view(seconds, 1);
            view.allowed_per_second.remove("packets");
            view.limits[0].definition.rate = "fair".to_owned();
            view.limits[0].definition.burst = None;
            view.status.fair.push(api::fair::FairStatus {
                limit: "packets".to_owned(),
                level,
                ..Default::default()
            });
            app.arrived(Ok(view));
        }
        lines(&app, 80, 24)[3].clone()
    };
    assert_eq!(
        load(None),
        "packets           fair packets             2      1000         500             -"
    );
    assert_eq!(
        load(Some(2_000.0)),
        "packets           fair packets             2      1000         500 ##......  25%"
    );
}

/// A fair limit during an overload, one after another, and more.
fn fair_app(more: &[api::fair::FairStatus]) -> App {
    use api::fair::{FairHistory, FairSource, FairStatus};
    let history = |level: Vec<Option<f64>>| FairHistory {
        ended: Some(1_000_300.0),
        step_seconds: 1,
        passed: vec![Some(2_000.0); level.len()],
        level,
        ..FairHistory::default()
    };
    let heavy = |nth: u32| FairSource {
        source: format!("192.0.2.{nth}"),
        offered: 4_000.0,
        refused: 4_000.0 - f64::from(380 + nth),
    };
    let falls = (0..60).map(|second| Some(4_000.0 * 0.95_f64.powi(second)));
    let limiting = FairStatus {
        limit: "dns".to_owned(),
        level: Some(380.4),
        held_by: Some("drops".to_owned()),
        since: Some(1_000_150.0),
        sources: 55,
        sources_above: 5,
        heaviest: (1..=5).map(heavy).collect(),
        history: history([vec![None; 150], falls.collect(), vec![Some(380.0); 90]].concat()),
        ..FairStatus::default()
    };
    let ended = FairStatus {
        limit: "web".to_owned(),
        history: history([vec![Some(20.0); 10], vec![None; 90]].concat()),
        ..FairStatus::default()
    };
    let quiet = FairStatus {
        limit: "quiet".to_owned(),
        history: history(vec![None; 100]),
        ..FairStatus::default()
    };
    let mut app = App::default();
    for seconds in [1, 3] {
        let mut view = view(seconds, 20);
        view.status.fair = [&[ended.clone(), quiet.clone(), limiting.clone()], more].concat();
        app.arrived(Ok(view));
    }
    app
}

#[test]
fn fair_limits_have_lines_with_cause_history_and_sources() {
    let app = fair_app(&[]);
    let screen = drawn(&app, 100, 24, Glyphs::Blocks);
    assert!(
        screen[6].starts_with("dns  level 380/s for 2 min 30 s: servers drop  ·········"),
        "{}",
        screen[6]
    );
    assert!(
        screen[6].ends_with("▂▂▂▂ 5 min, 194 to 4,000/s"),
        "{}",
        screen[6]
    );
    assert_eq!(
        screen[7],
        "  at least 5 of 55 sampled sources above it; most refused: 192.0.2.1 3,619/s, 192.0.2.2 3,618/s,"
    );
    assert!(
        screen[8].starts_with("web  no level now  █████"),
        "{}",
        screen[8]
    );
    assert!(screen[8].ends_with("··· 1 min 40 s, 20/s"), "{}", screen[8]);
    assert!(screen[9].starts_with("GROUP"), "{screen:#?}");
    // Without block elements there is all but the level over time.
    let letters = lines(&app, 100, 24);
    assert_eq!(letters[5], "dns  level 380/s for 2 min 30 s: servers drop");
    assert_eq!(letters[7], "web  no level now");
    // Four lines for three limits.
    let ssh = api::fair::FairStatus {
        limit: "ssh".to_owned(),
        level: Some(5.0),
        ..Default::default()
    };
    let letters = lines(&fair_app(&[ssh]), 100, 24);
    assert_eq!(letters[5], "dns  level 380/s for 2 min 30 s: servers drop");
    assert_eq!(letters[7], "and 2 more fair limits");
    assert!(letters[8].starts_with("GROUP"), "{letters:#?}");
    // A low screen has rows instead.
    assert!(
        !lines(&app, 80, 15)
            .iter()
            .any(|line| line.contains("level"))
    );
}

#[test]
fn a_screen_of_80_by_24_has_limits_groups_and_sources() {
    let lines = lines(&app(200), 80, 24);
    assert_eq!(lines[0], "weir  enforce  weir0 (native)  up 1 min 1 s");
    assert_eq!(
        lines[1],
        "passed 3000  throttled 7  sources 1.0M of 1.0M  evicted 3  bans 2"
    );
    assert_eq!(
        lines[2],
        "LIMIT             RATE                  KEYS  PASSED/s THROTTLED/s          LOAD"
    );
    // 2,000 in two seconds, of 2,000 a second for two keys: half of it.
    assert_eq!(
        lines[3],
        "packets           1000/s packets           2      1000         500 ####....  50%"
    );
    assert_eq!(
        lines[4],
        "traffic           1000/s bytes             2      1000           0 ####....  50%"
    );
    assert_eq!(
        lines[5],
        "GROUP            PROCESSES           CPU             MEMORY  HELD BACK  PRESSURE"
    );
    // A second of CPU time in two.
    assert_eq!(
        lines[6],
        "batch                    3   50% of 150%     3 MiB of 1 GiB      1.5 s        2%"
    );
    assert_eq!(
        lines[7],
        "SOURCE                  LIMIT           PASSED/s THROTTLED/s    PASSED THROTTLED"
    );
    assert_eq!(
        lines[8],
        "10.77.0.0               packets             1000       12346      1003      5.0M"
    );
    assert_eq!(
        lines[22],
        "10.77.0.14              packets             1000           0      1003      5.0M"
    );
    assert_eq!(
        lines[23],
        "q quit  s sort  / filter  p pause  ? help   by throttled/s: 200 sources"
    );
    assert!(lines.iter().all(|line| line.chars().count() <= 80));
}

#[test]
fn a_screen_of_prefixes_has_their_shares_and_its_sample() {
    let mut app = app(200);
    assert_eq!(
        (press(&mut app, KeyCode::Char('x')), app.query().prefixes),
        (Effect::Redraw, Some(0.01))
    );
    assert!(app.is_due(Instant::now(), PERIOD));
    let mut view = view(4, 200);
    let prefix = |prefix: &str, share: f64, throttled: f64| {
        json!({"prefix": prefix, "share": share + 0.1, "own_share": share, "margin": 0.01, "packets_per_second": 12_345.6,
            "bytes_per_second": 1.0, "throttled_per_second": throttled, "sources": 3_112})
    };
    let found = json!({"seconds": 9.97, "one_in": 64, "samples": 40_000, "lost": 0, "least_share": 0.01, "error": 0.014,
        "packets_per_second": 25_000.0, "bytes_per_second": 1.0, "throttled_per_second": 7.0, "sources": 5_000,
        "elsewhere": 0.55, "prefixes": [prefix("198.18.0.0/16", 0.4, 0.0), prefix("2001:db8:1234:5678::/64", 0.05, 7.0)]});
    view.prefixes = Some(serde_json::from_value(found).unwrap());
    app.arrived(Ok(view));
    let screen = lines(&app, 80, 24);
    assert_eq!(
        screen[7],
        "PREFIX                               OWN   SHARE PACKETS/s THROTTLED/s   SOURCES"
    );
    assert_eq!(
        screen[8],
        "198.18.0.0/16                      40.0%   50.0%     12346           0    >=3112"
    );
    assert_eq!(
        screen[9],
        "2001:db8:1234:5678::/64             5.0%   15.0%     12346           7    >=3112"
    );
    assert_eq!(
        screen[23],
        "q quit  x sources  ? help   40000 packets of 10 s, 1 in 64; 55.0% elsewhere"
    );
    // Only its rows are scrolled.
    press(&mut app, KeyCode::End);
    assert!(lines(&app, 80, 24)[8].starts_with("2001:db8:1234:5678::/64"));
    press(&mut app, KeyCode::Char('x'));
    assert_eq!((app.query().prefixes, app.scroll()), (None, 0));
    assert!(lines(&app, 80, 24)[8].starts_with("10.77.0.0 "));
}

#[test]
fn a_larger_screen_has_more_and_a_tiny_one_does_not_panic() {
    let app = app(200);
    let large = lines(&app, 160, 60);
    assert!(large[58].starts_with("10.77.0.50"), "{}", large[58]);
    // The wide screen's room goes to sources, so that long prefixes are complete.
    assert!(large[8].starts_with("10.77.0.0 ") && large[8].ends_with("5.0M"));
    for (width, height) in [(1, 1), (10, 3), (20, 5), (79, 10), (300, 2)] {
        terminal(&app, width, height, Theme::Plain, Glyphs::Letters);
        terminal(&app, width, height, Theme::Plain, Glyphs::Blocks);
    }
}

#[test]
fn a_narrow_screen_leaves_out_columns_and_no_digit() {
    let app = app(30);
    // Every number that a wide screen shows, and the words around them.
    let words = |width: u16| -> Vec<String> {
        lines(&app, width, 24)
            .iter()
            .flat_map(|line| line.split_whitespace().map(str::to_owned))
            .collect()
    };
    let known: std::collections::BTreeSet<String> = words(200).into_iter().collect();
    for width in 20..160 {
        for word in words(width) {
            let is_number = word.ends_with(|c: char| c.is_ascii_digit() || "kMG%".contains(c));
            assert!(
                !is_number || known.contains(&word) || word.contains('.'),
                "{width} columns: {word:?} in\n{}",
                lines(&app, width, 24).join("\n")
            );
        }
    }
    // 44 columns have the sources with what is refused of them now.
    let screen = lines(&app, 44, 24).join("\n");
    for part in ["10.77.0.0", "THROTTLED/s", "12346"] {
        assert!(screen.contains(part), "{part} in\n{screen}");
    }
}

#[test]
fn many_limits_leave_half_the_screen_to_sources_and_show_those_that_refuse() {
    let mut app = App::default();
    for seconds in [1, 2] {
        let mut view = view(seconds, 20);
        let first = view.limits[0].clone();
        view.limits = (0..40)
            .map(|nth| {
                let mut limit = first.clone();
                limit.definition.name = format!("limit-{nth}");
                limit.throttled.packets = if nth == 39 { seconds * 100 } else { 0 };
                limit
            })
            .collect();
        app.arrived(Ok(view));
    }
    let lines = lines(&app, 80, 24);
    assert!(lines[3].starts_with("limit-39"), "{}", lines[3]);
    let more = lines
        .iter()
        .position(|line| line.starts_with("and "))
        .unwrap();
    assert!(more < 12, "{lines:#?}");
    assert!(
        lines
            .iter()
            .filter(|line| line.starts_with("10.77."))
            .count()
            >= 10,
        "{lines:#?}"
    );
}

#[test]
fn without_colour_nothing_is_coloured_and_with_it_refusals_are_red() {
    let coloured = |theme| {
        let terminal = terminal(&app(5), 80, 24, theme, Glyphs::Blocks);
        let cells = terminal.backend().buffer().content().to_vec();
        cells
            .iter()
            .filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
            .count()
    };
    assert!(coloured(Theme::Colour) > 0);
    assert_eq!(coloured(Theme::Plain), 0);
}

#[test]
fn an_agent_that_observes_is_shown_with_what_would_be_throttled() {
    let mut view = view(1, 3);
    view.status.mode = "observe".to_owned();
    view.sources[0].row.throttled_packets = 0;
    view.sources[0].row.would_throttle_packets = 640;
    let mut app = App::default();
    app.arrived(Ok(view));
    let lines = lines(&app, 80, 24);
    assert!(
        lines[7].contains("WOULD THR/s") && lines[8].ends_with("640"),
        "{lines:#?}"
    );
}

#[test]
fn a_key_sorts_and_queries_the_new_order_at_once() {
    let mut app = app(5);
    let now = Instant::now();
    app.queried(now);
    assert!(
        !app.is_due(now + 5 * PERIOD, PERIOD),
        "one question at a time"
    );
    app.arrived(Ok(view(4, 5)));
    assert!(!app.is_due(now, PERIOD) && app.is_due(now + PERIOD, PERIOD));
    for (key, sort) in [
        ('s', Sort::PassedRate),
        ('s', Sort::Throttled),
        ('T', Sort::Throttled),
        ('B', Sort::Passed),
        ('s', Sort::ThrottledRate),
        ('b', Sort::PassedRate),
        ('t', Sort::ThrottledRate),
    ] {
        assert_eq!(press(&mut app, KeyCode::Char(key)), Effect::Redraw);
        assert_eq!(app.query().sort, sort, "after {key}");
        assert!(app.is_due(now, PERIOD));
    }
}

#[test]
fn a_filter_is_typed_corrected_taken_and_cleared() {
    let mut app = app(5);
    press(&mut app, KeyCode::Char('/'));
    type_in(&mut app, "10.77.q");
    assert_eq!(press(&mut app, KeyCode::Enter), Effect::Redraw);
    let Typing::Filter {
        wrong: Some(wrong), ..
    } = app.typing()
    else {
        panic!("{:?}", app.typing())
    };
    assert!(!wrong.is_empty());
    assert_eq!(app.query().within, None);
    press(&mut app, KeyCode::Backspace);
    type_in(&mut app, "0.0/16");
    assert!(lines(&app, 80, 24)[23].starts_with("only sources in: 10.77.0.0/16_"));
    press(&mut app, KeyCode::Enter);
    assert_eq!(app.query().within.as_deref(), Some("10.77.0.0/16"));
    assert!(app.is_due(Instant::now(), PERIOD));
    assert!(lines(&app, 80, 24)[23].ends_with("by throttled/s: 5 in 10.77.0.0/16"));
    // Esc leaves the input mode, not the view, and the previous filter stays.
    press(&mut app, KeyCode::Char('/'));
    assert_eq!(press(&mut app, KeyCode::Esc), Effect::Redraw);
    assert_eq!(app.within(), Some("10.77.0.0/16"));
    press(&mut app, KeyCode::Char('c'));
    assert_eq!(app.query().within, None);
}

#[test]
fn a_pause_keeps_the_view_and_a_key_still_queries() {
    let mut app = app(5);
    let now = Instant::now();
    app.queried(now);
    press(&mut app, KeyCode::Char('p'));
    assert_eq!(app.motion(), Motion::Paused);
    app.arrived(Ok(view(9, 1)));
    assert_eq!(
        app.view().unwrap().sources.len(),
        5,
        "what was under way does not move it"
    );
    assert!(!app.is_due(now + 10 * PERIOD, PERIOD));
    assert!(lines(&app, 80, 24)[0].starts_with("weir  PAUSED"));
    press(&mut app, KeyCode::Char('s'));
    assert!(app.is_due(now, PERIOD));
    app.queried(now);
    app.arrived(Ok(view(10, 2)));
    assert_eq!(app.view().unwrap().sources.len(), 2);
    assert!(!app.is_due(now + 10 * PERIOD, PERIOD));
    press(&mut app, KeyCode::Char(' '));
    assert!(app.is_due(now + PERIOD, PERIOD));
}

#[test]
fn an_agent_that_stops_is_reported_and_queried_again() {
    let mut app = app(5);
    let now = Instant::now();
    app.queried(now);
    app.arrived(Err("the agent on /run/x has gone".to_owned()));
    let lines_then = lines(&app, 80, 24);
    assert_eq!(
        lines_then[1],
        "NO ANSWER, trying on: the agent on /run/x has gone"
    );
    assert!(
        lines_then[8].starts_with("10.77.0.0"),
        "the last that was known stays"
    );
    assert!(app.is_due(now + PERIOD, PERIOD));
    // A restarted agent's counters start at 0, and nothing is negative.
    app.arrived(Ok(view(0, 5)));
    assert!(app.trouble().is_none());
    app.arrived(Ok(view(1, 5)));
    assert_eq!(app.flow("packets").unwrap().passed, 1_000.0);
}

#[test]
fn scrolling_stays_within_what_there_is() {
    let mut app = app(20);
    for (key, line) in [
        (KeyCode::Up, 0),
        (KeyCode::Down, 1),
        (KeyCode::PageDown, 11),
        (KeyCode::PageDown, 19),
        (KeyCode::PageUp, 9),
        (KeyCode::End, 19),
        (KeyCode::Home, 0),
    ] {
        press(&mut app, key);
        assert_eq!(app.scroll(), line, "after {key:?}");
    }
    press(&mut app, KeyCode::End);
    app.arrived(Ok(view(5, 3)));
    assert_eq!(app.scroll(), 2);
}

#[test]
fn help_covers_the_middle_until_the_next_key() {
    let mut app = app(5);
    press(&mut app, KeyCode::Char('?'));
    let text = lines(&app, 80, 24).join("\n");
    for word in ["keys", "throttled now first", "pause and go on", "Ctrl-C"] {
        assert!(text.contains(word), "{text}");
    }
    // A narrow terminal has every word.
    let text = lines(&app, 44, 24).join(" ");
    for word in HELP.split_whitespace() {
        assert!(text.contains(word), "{word} in {text}");
    }
    assert_eq!(press(&mut app, KeyCode::Char('q')), Effect::Redraw);
    assert_eq!(*app.typing(), Typing::Commands);
}

#[test]
fn three_keys_quit() {
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(press(&mut app(1), KeyCode::Char('q')), Effect::Quit);
    assert_eq!(press(&mut app(1), KeyCode::Esc), Effect::Quit);
    assert_eq!(app(1).typed(control_c), Effect::Quit);
    let mut app = app(1);
    press(&mut app, KeyCode::Char('/'));
    assert_eq!(
        press(&mut app, KeyCode::Char('q')),
        Effect::Redraw,
        "a letter of the filter"
    );
    assert_eq!(app.typed(control_c), Effect::Quit);
}

/// Long names, IPv6, many limits, would-be refusals and a minute with an attack, in one screen.
fn varied() -> App {
    let mut app = App::default();
    // Refusals a second of the attack's growing part, from the 36th second on.
    let refused = |seconds: u64| (36..=seconds).map(|second| (second - 35) * 20).sum::<u64>();
    for seconds in 1..=60 {
        let mut view = view(seconds, 60);
        let wave: u64 = (1..=seconds)
            .map(|second| 900 + second * second % 400)
            .sum();
        (
            view.limits[0].passed.packets,
            view.limits[0].throttled.packets,
        ) = (wave, refused(seconds));
        (
            view.status.totals.passed_packets,
            view.status.totals.throttled_packets,
        ) = (wave, refused(seconds));
        let (limit, source) = (view.limits[0].clone(), view.sources[0].clone());
        for nth in 0..30 {
            let mut more = limit.clone();
            more.definition.name = format!(
                "a-limit-with-a-long-name-for-the-service-behind-port-{}",
                8_000 + nth
            );
            more.throttled.packets = if nth < 12 { nth * seconds * 10 } else { 0 };
            view.limits.push(more);
        }
        for (nth, of) in view
            .sources
            .iter_mut()
            .enumerate()
            .filter(|(nth, _)| nth % 3 == 1)
        {
            of.row.source = format!("2001:db8:{nth:x}:4567:89ab:cdef:123:{nth:x}/128 port 4{nth}");
            of.row.limit = format!(
                "a-limit-with-a-long-name-for-the-service-behind-port-{}",
                8_000 + nth
            );
            (of.row.throttled_packets, of.row.would_throttle_packets) = (0, 640 + nth as u64);
            of.row.passed_precision = crate::stats::Precision::Sampled;
        }
        view.sources.push(source);
        app.arrived(Ok(view));
    }
    app
}

/// A line of all packets on any screen, and one for each limit on a wide one; nothing where they cannot be shown.
#[test]
fn sparklines_show_the_last_minute_where_the_terminal_can() {
    let app = app(5);
    let narrow = drawn(&app, 80, 24, Glyphs::Blocks);
    // 2,000 in the two seconds of one document, in cells of 4 s.
    assert_eq!(
        narrow[2],
        "last 60 s  passed               █ ≤1000/s   throttled               ▁ ≤0/s"
    );
    assert!(
        narrow[3].starts_with("LIMIT") && narrow[4].ends_with("50%"),
        "{narrow:#?}"
    );
    let wide = drawn(&app, 160, 24, Glyphs::Blocks);
    assert!(
        wide[3].ends_with("PASSED, 60 s                THROTTLED, 60 s"),
        "{}",
        wide[3]
    );
    // Half as many are throttled as pass: of the same scale, half as high.
    assert!(
        wide[4].ends_with("█                              ▅"),
        "{}",
        wide[4]
    );
    assert!(
        wide[5].ends_with("█                              ▁"),
        "{}",
        wide[5]
    );
    let blocks = |lines: &[String]| {
        lines
            .iter()
            .any(|line| line.contains(|letter| ('▁'..='█').contains(&letter)))
    };
    assert!(
        !blocks(&drawn(&app, 80, 15, Glyphs::Blocks)),
        "a low screen has rows instead"
    );
    for width in [80, 160] {
        assert!(!blocks(&lines(&app, width, 24)));
        assert!(lines(&app, width, 24)[2].starts_with("LIMIT"));
    }
}

#[test]
fn only_terminals_of_utf8_with_all_block_elements_get_sparklines() {
    for (variables, glyphs) in [
        (&[("LANG", "en_GB.UTF-8")][..], Glyphs::Blocks),
        (&[("LC_CTYPE", "C.utf8"), ("LANG", "C")], Glyphs::Blocks),
        (&[("LC_ALL", "C"), ("LANG", "en_GB.UTF-8")], Glyphs::Letters),
        (
            &[
                ("LC_ALL", ""),
                ("LANG", "en_GB.UTF-8"),
                ("TERM", "xterm-256color"),
            ],
            Glyphs::Blocks,
        ),
        (
            &[("LANG", "en_GB.UTF-8"), ("TERM", "linux")],
            Glyphs::Letters,
        ),
        (&[("LANG", "de_DE.ISO-8859-1")], Glyphs::Letters),
        (&[], Glyphs::Letters),
    ] {
        let value = |name: &str| {
            variables
                .iter()
                .find(|(found, _)| *found == name)
                .map(|(_, value)| (*value).to_owned())
        };
        assert_eq!(Glyphs::of(value), glyphs, "{variables:?}");
    }
}

/// The pictures in docs/ match the rendering; `WEIR_PICTURES=write` updates them.
#[test]
fn pictures_in_the_documentation_are_what_is_drawn() {
    let mut empty = view(1, 0);
    (empty.limits, empty.groups, empty.matching) = (Vec::new(), Vec::new(), 0);
    let mut none = App::default();
    none.arrived(Ok(empty));
    for (app, name, width, height) in [
        (varied(), "top-80x24", 80, 24),
        (varied(), "top-200x50", 200, 50),
        (fair_app(&[]), "top-fair-100x24", 100, 24),
        (none, "top-empty-80x24", 80, 24),
    ] {
        let shown = drawn(&app, width, height, Glyphs::Blocks);
        assert!(
            shown
                .iter()
                .all(|line| config::human::columns(line) <= usize::from(width))
        );
        let drawn = format!("{}\n", shown.join("\n"));
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../docs/pictures/{name}.txt"));
        if std::env::var_os("WEIR_PICTURES").is_some_and(|value| value == "write") {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, &drawn).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(&file).unwrap_or_default(),
            drawn,
            "WEIR_PICTURES=write writes {name}"
        );
    }
}

#[test]
fn attacks_are_in_the_first_line() {
    let mut view = view(3, 1);
    let attack = |limit: &str| api::attack::Attack {
        limit: limit.to_owned(),
        ..api::attack::Attack::default()
    };
    view.status.attacks = vec![attack("packets"), attack("traffic")];
    let mut app = App::default();
    app.arrived(Ok(view));
    assert!(
        lines(&app, 80, 24)[0].starts_with("weir  ATTACK on packets and 1 more  enforce  weir0")
    );
}
