//! Tests of pages: structure, bounds, and the policy.

use super::*;

/// Tags that are open at a time, in order, and closed in order; void ones are not closed.
fn assert_well_formed(page: &str) {
    const VOID: [&str; 1] = ["meta"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split(' ').next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed out of order");
        } else if !VOID.contains(&name) {
            open.push(name);
        }
        // Neither has markup.
        if matches!(name, "style" | "script") && !tag.starts_with('/') {
            rest = &rest[rest.find("</").unwrap()..];
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

fn hash(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .encode(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()))
}

#[test]
fn the_policy_allows_the_style_the_script_and_nothing_else() {
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    assert_eq!(POLICY, policy, "write this into POLICY");
    for text in [STYLE, SCRIPT] {
        assert!(
            !text.contains("</") && !text.contains("://") && !text.contains("url("),
            "{text}"
        );
    }
}

#[test]
fn the_policy_of_the_live_page_allows_its_styles_and_scripts_and_requests_to_itself() {
    let sources = |texts: [&str; 2]| {
        texts
            .map(|text| format!("'sha256-{}'", hash(text)))
            .join(" ")
    };
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'",
        sources([STYLE, live::LIVE_STYLE]),
        sources([SCRIPT, live::LIVE_SCRIPT])
    );
    assert_eq!(live::POLICY, policy, "write this into live::POLICY");
    let page = live::page();
    assert_well_formed(&page);
    for text in [live::LIVE_STYLE, live::LIVE_SCRIPT] {
        assert!(
            page.contains(text) && !text.contains("</") && !text.contains("url("),
            "{text}"
        );
    }
    for markup in [
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
    ] {
        assert!(
            !live::LIVE_SCRIPT.contains(markup),
            "{markup}: texts are set as text only"
        );
    }
    // Only as the name of SVG.
    assert_eq!(live::LIVE_SCRIPT.matches("://").count(), 1);
}

/// A plot with refusals in some steps.
fn plot(steps: usize) -> String {
    let passed: Vec<u64> = (0..steps as u64).map(|nth| 1_000 + nth % 7).collect();
    let refused: Vec<u64> = (0..steps as u64)
        .map(|nth| if nth == 3 { 500 } else { 0 })
        .collect();
    page("Title", |html| {
        let data = Timeline {
            step_seconds: 2,
            passed: &passed,
            refused: &refused,
            would_refuse: &vec![0; steps],
        };
        timeline(html, "plot-1", "web", data);
    })
}

#[test]
fn a_timeline_has_a_text_and_units_and_shows_every_kind_of_packets() {
    let page = plot(30);
    assert_well_formed(&page);
    for part in [
        "role=\"img\" aria-labelledby=\"plot-1-text\"",
        "<title id=\"plot-1-text\">web: packets a second over 1 min, in steps of 2 s. 30,085 passed, 500 refused; most of \
         these after 6 s: 250/s.</title>",
        ">800 packets/s</text>",
        ">15 s</text>",
        "passed 30,085",
        "refused 500 (1.63 %)",
        "<path class=\"refused\"",
        "<path class=\"passed\"",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert!(
        !page.contains("<path class=\"would\""),
        "nothing would be refused"
    );
}

#[test]
fn one_refused_packet_among_a_billion_is_visible() {
    let data = Timeline {
        step_seconds: 1,
        passed: &[900_000_000; 2],
        refused: &[0, 1],
        would_refuse: &[0, 0],
    };
    let mut html = Html::default();
    timeline(&mut html, "a", "", data);
    let html = html.finish();
    assert!(
        html.contains("class=\"refused\" d=\"M0 1000H1V89H2V1000Z\""),
        "{html}"
    );
}

#[test]
fn empty_and_huge_plots_are_drawn() {
    for (seconds, count) in [(1, 0), (1, 1), (1 << 40, u64::MAX / 700)] {
        let counts = vec![count; 600];
        let mut html = Html::default();
        let data = Timeline {
            step_seconds: seconds,
            passed: &counts,
            refused: &[],
            would_refuse: &counts,
        };
        timeline(&mut html, "a", "", data);
        let html = html.finish();
        assert!(
            !html.contains("NaN") && !html.contains("inf") && html.len() < 20_000,
            "{html}"
        );
    }
    let mut html = Html::default();
    timeline(
        &mut html,
        "a",
        "",
        Timeline {
            step_seconds: 1,
            passed: &[],
            refused: &[],
            would_refuse: &[],
        },
    );
    assert!(!html.finish().contains("NaN"));
}

fn sources(rows: Vec<(u64, u64)>, limit: f64) -> String {
    let counted = "packets of a source in its busiest 10 s".to_owned();
    let mut html = Html::default();
    let of = Distribution {
        counted,
        rows,
        limit,
        quantile: ("99 %".to_owned(), 5),
    };
    distribution(&mut html, "b", "busiest 10 s", &of);
    html.finish()
}

#[test]
fn a_distribution_has_the_limit_between_sources_within_it_and_above_it() {
    let html = sources(vec![(1, 400), (5, 30), (26, 2), (28, 3), (900, 1)], 27.3);
    for part in [
        "within the limit 432",
        "above it 4",
        "436 sources by packets of a source in its busiest 10 s. The limit allows 27; 4 sources are above it. 99 % of \
         sources stay at or below 5.",
        ">limit 27</text>",
        ">99 % ≤ 5</text>",
        ">1 source</text>",
    ] {
        assert!(html.contains(part), "no {part:?} in {html}");
    }
    // 26 and 28 would share a bar; the limit divides it.
    assert_eq!(
        (
            html.matches("<rect class=\"passed\"").count(),
            html.matches("<rect class=\"refused\"").count()
        ),
        (3, 2)
    );
}

#[test]
fn a_distribution_of_any_size_is_small() {
    for rows in [
        Vec::new(),
        vec![(0, 1)],
        (0..1_000_000).map(|count| (count, 1)).collect(),
        vec![(1, u64::MAX >> 8), (u64::from(u32::MAX), 7)],
    ] {
        for limit in [0.0, 1.0, 1e12] {
            let html = sources(rows.clone(), limit);
            assert!(
                !html.contains("NaN") && !html.contains("inf") && html.len() < 16_000,
                "{html}"
            );
        }
    }
}

#[test]
fn tables_and_configs_are_cut_and_say_so() {
    let page = page(&"long".repeat(1_000), |html| {
        table(
            html,
            "all",
            &[Column::Text("a"), Column::Number("b")],
            (0..10_000).map(|nth| vec![Cell::text("x".repeat(10_000)), Cell::count(nth)]),
        );
        table(html, "without rows", &[Column::Text("a")], []);
        config(html, "limits.toml", &"<ü>".repeat(1 << 20));
        notes(html, &vec!["n".repeat(100_000); 1_000]);
        error(html, &"e".repeat(100_000));
    });
    assert_well_formed(&page);
    assert!(
        page.contains("The first 200 of 10,000 rows.")
            && page.contains("The first 256 KiB of 4 MiB.")
    );
    assert!(page.contains("And 950 more.") && !page.contains("without rows"));
    assert!(page.len() < 1 << 20, "{}", page.len());
}

#[test]
fn hostile_texts_stay_texts() {
    const HOSTILE: &str =
        "</title></style></script><script>alert(1)</script>\" onload='x' ]]> --> <!-- <svg>";
    let page = page(HOSTILE, |html| {
        figures(html, &[("figure", HOSTILE.to_owned())]);
        section(html, HOSTILE, |html| {
            let data = Timeline {
                step_seconds: 1,
                passed: &[1],
                refused: &[1],
                would_refuse: &[0],
            };
            timeline(html, "c", HOSTILE, data);
            table(
                html,
                HOSTILE,
                &[Column::Text("a")],
                [vec![Cell::text(HOSTILE)]],
            );
            config(html, HOSTILE, HOSTILE);
        });
        notes(html, &[HOSTILE.to_owned()]);
        error(html, HOSTILE);
    });
    assert_well_formed(&page);
    assert_eq!(
        (
            page.matches("<script>").count(),
            page.matches("</title>").count()
        ),
        (1, 2)
    );
    assert!(!page.contains("onload='") && !page.contains("]]>"));
}
