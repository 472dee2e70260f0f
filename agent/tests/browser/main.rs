//! Pages of `--html` and the live page in headless Chromium, light and dark, on the width of a phone and of a desk: `cargo xtask
//! integration`. `WEIR_SCREENSHOTS=DIRECTORY` keeps the pictures.

mod driver;
mod live;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Arguments;
use serde_json::Value;
use tempfile::TempDir;
use testbed::mixtures::Mixture;
use testbed::random::Random;
use testbed::tests;
use testbed::trials::{Test, trial_unless};

use self::driver::{Browser, PROGRAM};

const WIDTHS: [u32; 2] = [360, 1_280];
const SCHEMES: [&str; 2] = ["light", "dark"];
/// A name that is markup wherever it is not escaped.
const HOSTILE: &str = "</title></script><script>document.title='broken'</script>]]>-->";
/// Another one: a name has at most 64 characters.
const HOSTILE_ATTRIBUTE: &str = "</style>\\\" onload='x' <img src=x>";

fn main() {
    let tests: &[Test] = tests![
        the_page_of_a_replay_is_shown_light_and_dark_on_a_phone_and_a_desk,
        the_page_of_suggest_is_shown_light_and_dark_on_a_phone_and_a_desk,
        a_click_sorts_a_table_and_another_one_reverses_it,
        the_policy_of_a_page_refuses_every_request,
        without_scripts_a_page_has_its_plots_and_tables,
    ];
    let obstacle = std::env::var_os(PROGRAM)
        .is_none()
        .then_some("it needs chromedriver: run `cargo xtask integration`, which provides it");
    let of_network = obstacle.or_else(testbed::network::obstacle);
    let trials = tests.iter().map(|test| trial_unless(test, obstacle)).chain(
        live::TESTS
            .iter()
            .map(|test| trial_unless(test, of_network.as_ref())),
    );
    // One browser at a time.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    testbed::trials::run(&arguments, trials.collect())
}

/// A page in a folder of its own.
struct Page {
    path: PathBuf,
    _folder: TempDir,
}

/// Twenty minutes of clients, with a flood of connections.
fn capture(folder: &Path, name: &str) {
    let random = &mut Random::new(21);
    let mut mixture = Mixture::default()
        .web_clients(random, 400)
        .nats(random, &[60])
        .crawlers(random, &[0.5])
        .syn_flood(random, 20, (50.0, 150.0), 300.0, 60.0);
    mixture.events.retain(|event| event.at < 1_200_000_000);
    mixture.sorted().write(&folder.join(name));
}

fn made(folder: TempDir, arguments: &[&str]) -> Page {
    let output = Command::new(env!("CARGO_BIN_EXE_agent"))
        .current_dir(folder.path())
        .env_remove("WEIR_CONFIG")
        .env_remove("WEIR_CONTROL")
        .args(arguments)
        .args(["--html", "page.html", "--local", "192.0.2.1"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        !output.stdout.is_empty(),
        "the text is printed as without a page"
    );
    Page {
        path: folder.path().join("page.html"),
        _folder: folder,
    }
}

/// Two configs, with hostile names of limits, classes and files.
fn replay_page() -> Page {
    let folder = tempfile::tempdir().unwrap();
    let config = |rate: &str| {
        format!(
            "# {}\n[agent]\ninterfaces = [\"lo\"]\n\n[cluster]\nstore = \"redis://:classified@127.0.0.1\"\n\n\
             [[class]]\nname = \"{HOSTILE_ATTRIBUTE}\"\nsources = [\"198.51.100.0/24\"]\nmultiplier = 3\n\n\
             [[limit]]\nname = \"connections\"\nprotocol = \"tcp\"\nports = [443]\nunit = \"connections\"\nrate = \"{rate}\"\n\n\
             [[limit]]\nname = \"{HOSTILE}\"\nrate = \"40/s\"\nburst = 200\naction = \"observe\"\n\n\
             [[limit]]\nname = \"{}\"\nprotocol = \"udp\"\nrate = \"10/s\"\n",
            HOSTILE,
            "a-long-name-without-a-break-".repeat(2)
        )
    };
    let hostile = "<img src=x onerror=alert(1)> ]]>.pcap";
    capture(folder.path(), hostile);
    std::fs::write(folder.path().join("limits.toml"), config("60/min")).unwrap();
    std::fs::write(folder.path().join("<b>.toml"), config("20/min")).unwrap();
    made(
        folder,
        &[
            "replay",
            "--config",
            "limits.toml",
            "--compare",
            "<b>.toml",
            hostile,
        ],
    )
}

fn suggest_page() -> Page {
    let folder = tempfile::tempdir().unwrap();
    capture(folder.path(), "day.pcap");
    made(folder, &["suggest", "--interface", "eth7", "day.pcap"])
}

/// The page's look: `text` and `back` of the body, `fills` of plots, and faults.
const LOOK: &str = r#"
    const style = (selector, property) => {
        const found = document.querySelector(selector);
        return found && getComputedStyle(found)[property];
    };
    const width = document.documentElement.clientWidth;
    const inside = (box) => (other) => other.left >= box.left - 0.5 && other.right <= box.right + 0.5;
    const problems = [];
    for (const plot of document.querySelectorAll('svg.plot')) {
        const labels = Array.from(plot.querySelectorAll('text'));
        const boxes = labels.map((label) => label.getBoundingClientRect());
        boxes.forEach((box, nth) => {
            const text = labels[nth].textContent;
            if (!inside(plot.getBoundingClientRect())(box)) problems.push(`label ${text} is cut`);
            if (parseFloat(getComputedStyle(labels[nth]).fontSize) < 11) problems.push(`label ${text} is small`);
            boxes.slice(nth + 1).forEach((other, after) => {
                const apart = box.right <= other.left || other.right <= box.left || box.bottom <= other.top + 2 || other.bottom <= box.top + 2;
                if (!apart) problems.push(`labels ${text} and ${labels[nth + 1 + after].textContent} overlap`);
            });
        });
        if (!plot.querySelector('title').textContent.includes(' ')) problems.push('a plot without a text');
    }
    for (const element of document.querySelectorAll('main *, footer')) {
        if (element.closest('.box table, pre, svg')) continue;
        const box = element.getBoundingClientRect();
        if (box.right > width + 0.5) problems.push(`${element.tagName} is wider than the page: ${element.textContent.slice(0, 60)}`);
    }
    return {
        title: document.title,
        overflow: document.documentElement.scrollWidth - width,
        width,
        back: style('body', 'backgroundColor'), text: style('body', 'color'), note: style('footer', 'color'),
        link: style('th button', 'color'), panel: style('thead th', 'backgroundColor'),
        passed: style('.plot .passed', 'fill'), refused: style('.plot .refused, .plot .would', 'fill'),
        plots: document.querySelectorAll('svg.plot').length,
        tables: document.querySelectorAll('table').length,
        foreign: document.querySelectorAll('img, link, iframe, object, embed, audio, video, [src], [href], [style]').length,
        handlers: Array.from(document.querySelectorAll('*')).flatMap((of) => of.getAttributeNames()).filter((name) => name.startsWith('on')).length,
        scripts: document.scripts.length,
        problems,
    };
"#;

/// A page that is checked.
struct Shown<'s> {
    address: &'s str,
    /// The requests that it may send.
    requests: &'s [&'s str],
    scripts: u64,
    /// Waits until it has its content.
    until: &'s dyn Fn(&Browser),
}

/// Checks a file in each look.
fn assert_file_shown(browser: &Browser, page: &Page, name: &str, plots: u64, tables: u64) {
    let address = format!("file://{}", page.path.display());
    let shown = Shown {
        address: &address,
        requests: &[&address],
        scripts: 1,
        until: &|_| {},
    };
    assert_shown(browser, &shown, name, plots, tables);
}

/// Loads a page in each look and checks all that a browser can tell.
fn assert_shown(browser: &Browser, page: &Shown<'_>, name: &str, plots: u64, tables: u64) {
    let mut colours = Vec::new();
    // Those of Chromium's own first page.
    browser.requests();
    for width in WIDTHS {
        for scheme in SCHEMES {
            browser.look(width, scheme);
            browser.visit(page.address);
            (page.until)(browser);
            let look = browser.run(LOOK);
            let place = format!("{name}, {width} pixels, {scheme}: {look}");
            keep(browser, &format!("{name}-{width}-{scheme}.png"));
            assert_eq!(look["width"], width, "{place}");
            assert!(look["overflow"].as_i64().unwrap() <= 0, "{place}");
            assert_eq!(
                look["problems"].as_array().map(Vec::len),
                Some(0),
                "{place}"
            );
            assert_eq!(
                (&look["foreign"], &look["handlers"], &look["scripts"]),
                (&0.into(), &0.into(), &page.scripts.into()),
                "{place}"
            );
            assert_ne!(look["title"], "broken", "{place}");
            assert!(
                look["plots"].as_u64().unwrap() >= plots
                    && look["tables"].as_u64().unwrap() >= tables,
                "{place}"
            );
            for (one, other, least) in [
                ("text", "back", 7.0),
                ("note", "back", 4.5),
                ("link", "panel", 4.5),
                ("passed", "back", 3.0),
                ("refused", "back", 3.0),
            ] {
                let found = contrast(&look[one], &look[other]);
                assert!(
                    found >= least,
                    "contrast of {one} on {other}: {found:.2} in {place}"
                );
            }
            colours.push(["text", "back", "passed", "refused"].map(|what| look[what].clone()));
            assert_eq!(browser.errors(), Vec::<String>::new(), "{place}");
            let requests = browser.requests();
            let is_own = |request: &String| page.requests.contains(&request.as_str());
            assert!(
                !requests.is_empty() && requests.iter().all(is_own),
                "{requests:?}: {place}"
            );
        }
    }
    assert_eq!(
        (&colours[0], &colours[1]),
        (&colours[2], &colours[3]),
        "a width changes no colour"
    );
    for (light, dark) in colours[0].iter().zip(&colours[1]) {
        assert_ne!(light, dark, "{name}");
    }
    assert!(
        luminance(&colours[0][1]) > 0.5 && luminance(&colours[1][1]) < 0.1,
        "{colours:?}"
    );
}

fn keep(browser: &Browser, name: &str) {
    let picture = browser.picture();
    assert!(picture.starts_with(b"\x89PNG"));
    if let Some(folder) = std::env::var_os("WEIR_SCREENSHOTS") {
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(Path::new(&folder).join(name), picture).unwrap();
    }
}

/// The relative luminance of `rgb(1, 2, 3)` (WCAG 2.2).
fn luminance(colour: &Value) -> f64 {
    let text = colour
        .as_str()
        .unwrap_or_else(|| panic!("no colour: {colour}"));
    let inner = text.trim_start_matches("rgb(").trim_end_matches(')');
    let parts = inner
        .split(',')
        .map(|part| part.trim().parse::<f64>().unwrap() / 255.0);
    let linear = parts.map(|part| {
        if part <= 0.04045 {
            part / 12.92
        } else {
            ((part + 0.055) / 1.055).powf(2.4)
        }
    });
    linear
        .zip([0.2126, 0.7152, 0.0722])
        .map(|(part, weight)| part * weight)
        .sum()
}

fn contrast(one: &Value, other: &Value) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

fn the_page_of_a_replay_is_shown_light_and_dark_on_a_phone_and_a_desk() {
    let (browser, page) = (Browser::start(), replay_page());
    assert_file_shown(&browser, &page, "replay", 6, 6);
    let said = browser.run("return document.body.textContent");
    let said = said.as_str().unwrap();
    for part in [
        HOSTILE,
        "<img src=x onerror=alert(1)> ]]>.pcap",
        "only <b>.toml refuses",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    assert!(!said.contains("classified"), "no secrets");
}

fn the_page_of_suggest_is_shown_light_and_dark_on_a_phone_and_a_desk() {
    let (browser, page) = (Browser::start(), suggest_page());
    assert_file_shown(&browser, &page, "suggest", 8, 3);
    let said = browser.run("return document.body.textContent");
    for part in [
        "tcp-443-connections",
        "mode = \"observe\"",
        "above it",
        "limits.toml, in observe mode",
    ] {
        assert!(
            said.as_str().unwrap().contains(part),
            "no {part:?} in {said}"
        );
    }
}

fn a_click_sorts_a_table_and_another_one_reverses_it() {
    let (browser, page) = (Browser::start(), replay_page());
    for width in WIDTHS {
        browser.look(width, "light");
        browser.open(&page.path);
        let tables = browser.run(
            "return Array.from(document.querySelectorAll('table')).map((table) => [table.tHead.rows[0].cells.length, table.tBodies[0].rows.length])",
        );
        let mut first = 0;
        let mut sorted = 0;
        for (nth, table) in tables.as_array().unwrap().iter().enumerate() {
            let (columns, rows) = (
                table[0].as_u64().unwrap() as usize,
                table[1].as_u64().unwrap() as usize,
            );
            for column in [0, 1, columns - 1] {
                let values = |order: &str| {
                    browser.click("th button", first + column);
                    let values = browser.run(&format!(
                        "const table = document.querySelectorAll('table')[{nth}];
                         const head = table.tHead.rows[0].cells[{column}];
                         const values = Array.from(table.tBodies[0].rows).map((row) => row.cells[{column}]);
                         return [head.getAttribute('aria-sort'), head.classList.contains('number'),
                             table.querySelectorAll('[aria-sort]').length,
                             values.map((cell) => cell.dataset.value || cell.textContent)]"
                    ));
                    assert_eq!(
                        (&values[0], &values[2]),
                        (&order.into(), &1.into()),
                        "{values}"
                    );
                    let texts: Vec<String> = values[3]
                        .as_array()
                        .unwrap()
                        .iter()
                        .map(|text| text.as_str().unwrap().to_owned())
                        .collect();
                    assert_eq!(texts.len(), rows, "no row is lost");
                    texts
                };
                let is_number = browser.run(&format!(
                    "return document.querySelectorAll('table')[{nth}].tHead.rows[0].cells[{column}].classList.contains('number')"
                ));
                if is_number == true {
                    let numbers = |texts: Vec<String>| -> Vec<f64> {
                        texts.iter().map(|text| text.parse().unwrap()).collect()
                    };
                    let (down, up) = (numbers(values("descending")), numbers(values("ascending")));
                    assert!(down.is_sorted_by(|one, other| one >= other), "{down:?}");
                    assert!(up.is_sorted(), "{up:?}");
                } else {
                    let (up, mut down) = (values("ascending"), values("descending"));
                    down.reverse();
                    let ordered = |mut texts: Vec<String>| {
                        texts.sort();
                        texts
                    };
                    // Equal texts keep their order, so only the texts are compared.
                    assert_eq!(up, down);
                    assert_eq!(ordered(up), ordered(down));
                }
                sorted += usize::from(rows > 1);
            }
            first += columns;
        }
        assert!(sorted >= 6, "{tables}");
        assert_eq!(browser.errors(), Vec::<String>::new());
    }
}

fn the_policy_of_a_page_refuses_every_request() {
    let (browser, page) = (Browser::start(), replay_page());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    browser.open(&page.path);
    assert_eq!(browser.errors(), Vec::<String>::new());
    let done = browser.run(&format!(
        "const image = document.createElement('img');
         image.src = 'http://{address}/image';
         const script = document.createElement('script');
         script.textContent = 'document.title = \"broken\"';
         document.body.append(image, script);
         return fetch('http://{address}/fetch').then(() => 'sent', () => 'refused')"
    ));
    assert_eq!(done, "refused");
    assert_ne!(browser.run("return document.title"), "broken");
    let errors = browser.errors();
    assert!(
        errors.len() >= 3
            && errors
                .iter()
                .any(|error| error.contains("Content Security Policy")),
        "{errors:?}"
    );
    assert!(listener.accept().is_err(), "nothing was sent");
}

fn without_scripts_a_page_has_its_plots_and_tables() {
    let (browser, page) = (Browser::start(), suggest_page());
    browser.look(360, "light");
    browser.tools(
        "Emulation.setScriptExecutionDisabled",
        &serde_json::json!({"value": true}),
    );
    browser.open(&page.path);
    let found = browser.run(
        "return ['th button', 'th', 'svg.plot rect', 'svg.plot path', 'svg.plot .limit'].map((of) => document.querySelectorAll(of).length)",
    );
    let counts: Vec<u64> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|count| count.as_u64().unwrap())
        .collect();
    assert_eq!(counts[0], 0, "no button that does nothing: {found}");
    assert!(counts[1..].iter().all(|count| *count > 0), "{found}");
    keep(&browser, "suggest-without-scripts.png");
}
