//! Checks links between pages: the file exists and has the heading; pages of the book only link to its contents.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::page::Page;

const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";

/// The broken links, a line each.
pub fn check(root: &Path, pages: &[Page]) -> Vec<String> {
    let read: HashMap<&Path, Headings> = pages
        .iter()
        .map(|page| (page.path.as_path(), headings(&page.text)))
        .collect();
    let chapters = chapters(pages);
    let mut problems = Vec::new();
    for page in pages {
        for (line, target) in links(&page.text) {
            let found = problem(root, &read, &page.path, &target);
            if let Some(problem) =
                found.or_else(|| outside_the_book(&chapters, &page.path, &target))
            {
                problems.push(format!(
                    "{}:{line}: link to {target}: {problem}",
                    page.path.display()
                ));
            }
        }
    }
    problems
}

/// The anchors of a page's headings.
type Headings = HashSet<String>;

/// The pages that the summary lists.
fn chapters(pages: &[Page]) -> HashSet<PathBuf> {
    let summary = pages.iter().find(|page| page.path == Path::new(SUMMARY));
    let listed = summary.map(|page| links(&page.text)).unwrap_or_default();
    listed
        .into_iter()
        .map(|(_, target)| Path::new(BOOK).join(target))
        .collect()
}

/// A link that is broken in the book's HTML: `mdbook` copies nothing from outside, and renames README.md.
fn outside_the_book(chapters: &HashSet<PathBuf>, from: &Path, target: &str) -> Option<String> {
    if !chapters.contains(from) || is_external(target) || target.starts_with('#') {
        return None;
    }
    let path = resolved(from.parent()?, target.split('#').next()?);
    let is_page = path.extension().is_some_and(|end| end == "md");
    let is_followed = if is_page {
        chapters.contains(&path) && !path.ends_with("README.md")
    } else {
        path.starts_with(BOOK)
    };
    (!is_followed).then(|| {
        format!(
            "{} is not in the book: name it without a link",
            path.display()
        )
    })
}

fn is_external(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

fn problem(
    root: &Path,
    read: &HashMap<&Path, Headings>,
    from: &Path,
    target: &str,
) -> Option<String> {
    if is_external(target) {
        return None;
    }
    let (path, anchor) = target
        .split_once('#')
        .map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let path = if path.is_empty() {
        from.to_owned()
    } else {
        resolved(from.parent()?, path)
    };
    if !root.join(&path).exists() {
        return Some(format!("there is no file {}", path.display()));
    }
    let headings = read.get(path.as_path())?;
    let anchor = anchor.filter(|anchor| !headings.contains(*anchor))?;
    Some(format!("{} has no heading #{anchor}", path.display()))
}

fn resolved(folder: &Path, link: &str) -> PathBuf {
    let mut path = folder.to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    path
}

fn links(text: &str) -> Vec<(usize, String)> {
    let parser = Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter();
    let target = |(event, range): (Event<'_>, std::ops::Range<usize>)| match event {
        Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => Some((
            text[..range.start].matches('\n').count() + 1,
            dest_url.into_string(),
        )),
        _ => None,
    };
    parser.filter_map(target).collect()
}

fn headings(text: &str) -> Headings {
    let (mut all, mut counts) = (Headings::new(), HashMap::new());
    let mut open: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Heading { .. }) => open = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut open {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => {
                let anchor = anchor(&open.take().unwrap_or_default());
                let count = counts.entry(anchor.clone()).or_insert(0);
                all.insert(if *count == 0 {
                    anchor
                } else {
                    format!("{anchor}-{count}")
                });
                *count += 1;
            }
            _ => {}
        }
    }
    all
}

/// The anchor that GitHub and mdBook generate.
fn anchor(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c if c.is_alphanumeric() || matches!(c, '-' | '_') => Some(c),
        _ => None,
    };
    heading.to_lowercase().chars().filter_map(kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let page = |path: &str, text: &str| Page {
            path: path.into(),
            text: text.to_owned(),
        };
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        for path in ["README.md", "docs/a.md"] {
            std::fs::write(root.path().join(path), "").unwrap();
        }
        let pages = [
            page(
                "README.md",
                "# Start\n\n## `Rate`, and more\n\n[a](docs/a.md#top) [b](#rate-and-more)\n\n[c](docs/b.md)\n",
            ),
            page(
                "docs/a.md",
                "# Top\n\n# Top\n\n[back](../README.md#begin) [two](#top-1) [out](https://weir.example/x)\n",
            ),
        ];
        let problems = check(root.path(), &pages);
        assert_eq!(
            problems,
            [
                "README.md:7: link to docs/b.md: there is no file docs/b.md",
                "docs/a.md:5: link to ../README.md#begin: README.md has no heading #begin",
            ]
        );
    }

    #[test]
    fn pages_of_the_book_link_to_what_it_contains() {
        let page = |path: &str, text: &str| Page {
            path: path.into(),
            text: text.to_owned(),
        };
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("docs")).unwrap();
        let pages = [
            page("README.md", "[any](docs/a.md)\n"),
            page("docs/SUMMARY.md", "[A](a.md)\n[B](b.md)\n"),
            page(
                "docs/a.md",
                "# A\n\n[b](b.md) [top](#a) [out](https://weir.example)\n\n[up](../README.md)\n",
            ),
            page("docs/b.md", "[plot](plot.svg)\n\n[notes](notes.md)\n"),
            page("docs/notes.md", "[up](../README.md)\n"),
        ];
        for path in pages
            .iter()
            .map(|page| page.path.as_path())
            .chain([Path::new("docs/plot.svg")])
        {
            std::fs::write(root.path().join(path), "").unwrap();
        }
        let problems = check(root.path(), &pages);
        assert_eq!(
            problems,
            [
                "docs/a.md:5: link to ../README.md: README.md is not in the book: name it without a link",
                "docs/b.md:3: link to notes.md: docs/notes.md is not in the book: name it without a link",
            ]
        );
    }
}
