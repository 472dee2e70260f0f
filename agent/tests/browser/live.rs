//! The live page of an agent in a network namespace, with traffic.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::network::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, StopWhenDropped};
use testbed::tests;
use testbed::trials::Test;
use testbed::wire::Sender;

use crate::driver::Browser;
use crate::{HOSTILE, HOSTILE_ATTRIBUTE, Shown, assert_shown, contrast, keep};

pub const TESTS: &[Test] = tests![
    the_live_page_is_shown_light_and_dark_on_a_phone_and_a_desk,
    the_live_page_updates_and_goes_on_after_the_agent_was_started_again,
    the_live_page_shows_a_trial_and_an_attack,
    the_live_page_queries_nothing_while_it_is_hidden,
    the_live_page_without_limits_and_sources_says_so,
    the_live_page_shows_levels_and_the_sources_above_them,
];

const PAGE: &str = "http://127.0.0.1:9464/";
/// The requests of a browser that shows it.
const REQUESTS: [&str; 3] = [
    PAGE,
    "http://127.0.0.1:9464/live.json",
    "http://127.0.0.1:9464/favicon.ico",
];
const AGENT: &str = "metrics = \"127.0.0.1:9464\"\nmax_sources = 1000\n";
/// For a state of the page on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

fn limit(name: &str, rest: &str) -> String {
    format!("[[limit]]\nname = {}\n{rest}\n", Value::from(name))
}

/// Runs a test in the server's namespace, while its client sends 500 packets a second from ten sources.
fn with_traffic(network: &Network, test: impl FnOnce() + Send) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            network.in_client(|| {
                let frame = |last| {
                    let source = Ipv4Addr::new(10, 77, 1, last).octets();
                    Frame::between(CLIENT_MAC, SERVER_MAC)
                        .ipv4(source, SERVER)
                        .udp(5000, 9000, &[0; 22])
                        .build()
                };
                let (sender, frames) = (Sender::new(), (1..=10).map(frame).collect::<Vec<_>>());
                while !is_over.load(Ordering::Relaxed) {
                    frames.iter().for_each(|frame| sender.send(frame));
                    thread::sleep(Duration::from_millis(20));
                }
            });
        });
        let _stop = StopWhenDropped(&is_over);
        network.in_server(test);
    });
}

/// Waits until an expression is true in the page.
fn wait(browser: &Browser, expression: &str) {
    let deadline = Instant::now() + PATIENCE;
    while browser.run(&format!("return Boolean({expression})")) != true {
        let text = browser.run("return document.body.innerText");
        assert!(
            Instant::now() < deadline,
            "{expression} is not true of {text}"
        );
        thread::sleep(Duration::from_millis(100));
    }
}

/// Opens the page, and waits until it has drawn rates.
fn opened() -> Browser {
    let browser = Browser::start();
    browser.visit(PAGE);
    wait(&browser, DRAWN);
    browser
}

const DRAWN: &str = "document.querySelector('#plots path') && document.querySelector('.plot .passed') \
    && document.querySelector('.plot .refused') && document.querySelector('#sources tbody tr')";

fn text(browser: &Browser, selector: &str) -> String {
    let text = browser.run(&format!(
        "return document.querySelector('{selector}').textContent"
    ));
    text.as_str().unwrap().to_owned()
}

/// Errors of the console, except that the agent did not reply.
fn errors(browser: &Browser) -> Vec<String> {
    let mut errors = browser.errors();
    errors.retain(|error| !(error.contains("/live.json") && error.contains("net::ERR_")));
    errors
}

fn the_live_page_is_shown_light_and_dark_on_a_phone_and_a_desk() {
    let network = Network::new();
    let limits = [
        limit("enforced", "rate = \"20/s\"\nburst = 20"),
        limit(
            HOSTILE,
            "protocol = \"udp\"\nrate = \"30/s\"\nburst = 30\naction = \"observe\"",
        ),
        limit(HOSTILE_ATTRIBUTE, "protocol = \"icmp\"\nrate = \"5/s\""),
        limit(
            &"a-long-name-without-a-break-".repeat(2),
            "protocol = \"tcp\"\nrate = \"10/s\"",
        ),
    ];
    // An interface that is missing is in the notes.
    let _agent = network.start_on(&["weir0", "<b>x<img>"], AGENT, &limits.concat());
    for (prefix, reason) in [
        ("192.0.2.0/24", "<img src=x onerror=alert(1)>"),
        ("198.51.100.7", "by hand"),
    ] {
        network.told(&["ban", prefix, "--for", "1h", "--reason", reason]);
    }
    with_traffic(&network, || {
        let browser = opened();
        let shown = Shown {
            address: PAGE,
            requests: &REQUESTS,
            scripts: 2,
            until: &|browser| {
                wait(
                    browser,
                    &format!("{DRAWN} && document.querySelectorAll('#bans tbody tr').length == 2"),
                );
            },
        };
        assert_shown(&browser, &shown, "live", 3, 5);
        let said = text(&browser, "main");
        for part in [
            HOSTILE,
            "<img src=x onerror=alert(1)>",
            "<b>x<img>",
            "observed only",
            "10.77.1.",
            "by hand",
        ] {
            assert!(
                said.replace('\\', "").contains(part),
                "no {part:?} in {said}"
            );
        }
        assert_eq!(
            browser.run("return document.querySelectorAll('main img, main b, main script').length"),
            0
        );
        // Sorted by a click, and still so after an update.
        browser.click("#sources th button", 0);
        let stamp = text(&browser, "#state");
        wait(
            &browser,
            &format!(
                "document.querySelector('#state').textContent !== {}",
                Value::from(stamp)
            ),
        );
        let sources = browser.run(
            "return Array.from(document.querySelectorAll('#sources tbody tr'), (row) => row.cells[0].textContent)",
        );
        let sources: Vec<&str> = sources
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let last = |source: &&str| {
            source
                .rsplit('.')
                .next()
                .and_then(|last| last.parse::<u8>().ok())
                .unwrap_or(0)
        };
        assert!(
            sources.len() >= 10 && sources.iter().map(last).is_sorted(),
            "{sources:?}"
        );
        assert_eq!(errors(&browser), Vec::<String>::new());
        refuses_what_is_not_its_own(&browser);
    });
}

/// The policy of the page, in a browser.
fn refuses_what_is_not_its_own(browser: &Browser) {
    let done = browser.run(
        "const script = document.createElement('script');
         script.textContent = 'document.title = \"broken\"';
         const image = document.createElement('img');
         image.src = 'http://127.0.0.1:9465/image';
         document.body.append(script, image);
         return fetch('http://127.0.0.1:9465/fetch').then(() => 'sent', () => 'refused')",
    );
    assert_eq!(done, "refused");
    assert_ne!(browser.run("return document.title"), "broken");
    let errors = errors(browser);
    let refused = errors
        .iter()
        .filter(|error| error.contains("Content Security Policy"))
        .count();
    assert!(refused >= 3, "{errors:?}");
}

fn the_live_page_updates_and_goes_on_after_the_agent_was_started_again() {
    let network = Network::new();
    let config = limit("packets", "rate = \"20/s\"\nburst = 20");
    let agent = network.start(AGENT, &config);
    let mut agent: Option<Agent<'_>> = Some(agent);
    let restart = |agent: &mut Option<Agent<'_>>, network: &Network| {
        agent
            .take()
            .map(|agent| agent.stop(Signal::SIGTERM))
            .is_some()
            && network.has_pins()
    };
    with_traffic(&network, || {
        let browser = opened();
        let passed = |browser: &Browser| {
            text(browser, "#limits tbody td:nth-child(6)")
                .replace(',', "")
                .parse::<u64>()
                .unwrap()
        };
        let before = passed(&browser);
        wait(
            &browser,
            &format!(
                "Number(document.querySelector('#limits tbody td:nth-child(6)').dataset.value) > {before}"
            ),
        );
        wait(
            &browser,
            "document.querySelector('#passed').textContent.match(/^[1-9]/)",
        );
        assert!(restart(&mut agent, &network));
        wait(
            &browser,
            "document.querySelector('#state.lost') && ['No reply from the agent since', 'Trying again'].every((part) => \
             document.querySelector('#state').textContent.includes(part))",
        );
        keep(&browser, "live-lost.png");
        agent = Some(network.start(AGENT, &config));
        wait(
            &browser,
            "!document.querySelector('#state.lost') && document.querySelector('#passed').textContent.match(/^[1-9]/)",
        );
        // Counters go down.
        network.told(&["limits", "--reset-counters"]);
        wait(
            &browser,
            "Number(document.querySelector('#limits tbody td:nth-child(6)').dataset.value) > 0",
        );
        let said = text(&browser, "main");
        assert!(
            !said.contains("NaN") && !said.contains("undefined") && !said.contains("null"),
            "{said}"
        );
        let paths = browser.run(
            "return Array.from(document.querySelectorAll('#plots path'), (path) => path.getAttribute('d')).join(' ')",
        );
        assert!(
            !paths.as_str().unwrap().contains(['-', 'N']),
            "no negative rate: {paths}"
        );
        assert_eq!(errors(&browser), Vec::<String>::new());
    });
    drop(agent);
}

fn the_live_page_shows_a_trial_and_an_attack() {
    let network = Network::new();
    let config = limit("packets", "rate = \"5/s\"\nburst = 5");
    let _agent = network.start(AGENT, &config);
    let tried = network.folder.path().join("tried.toml");
    let text_of = std::fs::read_to_string(network.folder.path().join("limits.toml")).unwrap();
    std::fs::write(&tried, text_of.replace("burst = 5", "burst = 6")).unwrap();
    with_traffic(&network, || {
        let browser = opened();
        browser.look(1_280, "light");
        wait(
            &browser,
            "document.querySelector('#alerts').textContent.includes('Attack on limit packets')",
        );
        wait(
            &browser,
            "document.title.includes('attack') && document.querySelector('figure.attacked')",
        );
        network.told(&["try", tried.to_str().unwrap(), "--for", "10min"]);
        wait(
            &browser,
            "document.querySelector('#alerts').textContent.includes('Trial of')",
        );
        let said = text(&browser, "#alerts");
        // Minutes are rounded up: 10 in the trial's first second.
        let remaining =
            ["9 min", "10 min"].map(|minutes| format!("the previous config returns in {minutes}"));
        assert!(
            said.contains("tried.toml")
                && said.contains("weir confirm")
                && remaining.iter().any(|remaining| said.contains(remaining)),
            "{said}"
        );
        keep(&browser, "live-attack-and-trial.png");
        network.told(&["confirm"]);
        wait(
            &browser,
            "!document.querySelector('#alerts').textContent.includes('Trial of')",
        );
        assert_eq!(errors(&browser), Vec::<String>::new());
    });
}

fn the_live_page_queries_nothing_while_it_is_hidden() {
    let network = Network::new();
    let _agent = network.start(AGENT, &limit("packets", "rate = \"20/s\"\nburst = 20"));
    with_traffic(&network, || {
        let browser = opened();
        let set = |state: &str| {
            browser.run(&format!(
                "Object.defineProperty(document, 'visibilityState', {{ value: '{state}', configurable: true }});
                 document.dispatchEvent(new Event('visibilitychange'));"
            ))
        };
        set("hidden");
        // A request that was under way ends.
        thread::sleep(Duration::from_secs(2));
        browser.requests();
        thread::sleep(Duration::from_secs(3));
        assert_eq!(browser.requests(), Vec::<String>::new());
        let stamp = text(&browser, "#state");
        set("visible");
        wait(
            &browser,
            &format!(
                "document.querySelector('#state').textContent !== {}",
                Value::from(stamp)
            ),
        );
        assert_eq!(errors(&browser), Vec::<String>::new());
    });
}

fn the_live_page_without_limits_and_sources_says_so() {
    let network = Network::new();
    let _agent = network.start(&AGENT.replace("max_sources = 1000\n", ""), "");
    network.in_server(|| {
        let browser = Browser::start();
        browser.look(360, "dark");
        browser.visit(PAGE);
        wait(&browser, "!document.querySelector('#content').hidden");
        let said = browser.run("return document.querySelector('main').innerText");
        for part in [
            "The config in effect has no limits.",
            "No sources yet",
            "No bans.",
            "No process groups.",
        ] {
            assert!(
                said.as_str().unwrap().contains(part),
                "no {part:?} in {said}"
            );
        }
        assert_eq!(errors(&browser), Vec::<String>::new());
        keep(&browser, "live-empty.png");
    });
}

fn the_live_page_shows_levels_and_the_sources_above_them() {
    let network = Network::new();
    let fair = "protocol = \"udp\"\nports = [9000]\nunit = \"packets\"\nrate = \"fair\"\nfair = { at_least = \"2/s\" }";
    let quiet = "protocol = \"tcp\"\nports = [9001]\nunit = \"connections\"\nrate = \"fair\"";
    let limits = [limit(HOSTILE, fair), limit("quiet", quiet)].concat();
    let _agent = network.start(AGENT, &limits);
    let socket = network.in_server(|| UdpSocket::bind((Ipv4Addr::from(SERVER), 9000)).unwrap());
    socket
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        // A fifth of what is sent.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = socket.recv(&mut [0; 64]);
                thread::sleep(Duration::from_millis(10));
            }
        });
        let _stop = StopWhenDropped(&is_over);
        with_traffic(&network, || {
            let browser = opened();
            let drawn = format!(
                "{DRAWN} && document.querySelector('#fair-plots path.level') \
                 && document.querySelector('#fair tbody').textContent.includes('10.77.1.')"
            );
            let shown = Shown {
                address: PAGE,
                requests: &REQUESTS,
                scripts: 2,
                until: &|browser| wait(browser, &drawn),
            };
            assert_shown(&browser, &shown, "live-fair", 3, 6);
            for scheme in ["light", "dark"] {
                browser.look(1_280, scheme);
                let colours = browser.run(
                    "return [getComputedStyle(document.querySelector('path.level')).stroke, \
                     getComputedStyle(document.body).backgroundColor]",
                );
                let found = contrast(&colours[0], &colours[1]);
                assert!(found >= 3.0, "contrast {found} of the level, {scheme}");
            }
            let said = text(&browser, "#fair-section");
            for part in [HOSTILE, "level ", "sampled sources are above it", "quiet"] {
                assert!(said.contains(part), "no {part:?} in {said}");
            }
            // The one that never had a level has a row, and no plot.
            let count = |selector: &str| {
                browser.run(&format!(
                    "return document.querySelectorAll('{selector}').length"
                ))
            };
            assert_eq!(count("#fair tbody tr"), 2);
            assert_eq!(count("#fair-plots figure"), 1);
            assert_eq!(errors(&browser), Vec::<String>::new());
        });
    });
}
