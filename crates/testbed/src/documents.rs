//! The project's documents: their code blocks, and the commands in these and in their sentences.

use std::path::{Path, PathBuf};

/// A page: its path below the project's root, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    pub path: String,
    pub text: String,
}

/// A code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The number of its first fence's line.
    pub line: usize,
    /// The words after the fence.
    pub marks: String,
    pub text: String,
}

/// A command of a block, and what the page prints below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub page: String,
    /// The number of its line.
    pub line: usize,
    pub text: String,
    /// What it prints; `None` where the page does not show it.
    pub output: Option<Vec<String>>,
    /// Whether `cargo xtask docs` runs it, which needs no agent (`console,run`).
    pub is_run_without_agent: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// README.md and every page below docs, by path.
pub fn pages() -> Vec<Page> {
    let is_page = |path: &Path| path.extension().is_some_and(|end| end == "md");
    files(&["README.md", "docs"], is_page)
}

/// The chosen files among these and below these folders, by path.
pub fn files(of: &[&str], is_chosen: impl Fn(&Path) -> bool) -> Vec<Page> {
    let root = root();
    let mut places: Vec<PathBuf> = of.iter().map(|path| root.join(path)).collect();
    let mut files = Vec::new();
    while let Some(place) = places.pop() {
        if place.is_dir() {
            let entries = std::fs::read_dir(&place).unwrap();
            places.extend(entries.map(|entry| entry.unwrap().path()));
        } else if is_chosen(&place) {
            files.push(page_at(&root, &place));
        }
    }
    files.sort_by(|one, other| one.path.cmp(&other.path));
    files
}

/// The page with this path below the root.
pub fn page(path: &str) -> Page {
    let root = root();
    page_at(&root, &root.join(path))
}

fn page_at(root: &Path, file: &Path) -> Page {
    let text = std::fs::read_to_string(file).unwrap();
    let path = file.strip_prefix(root).unwrap().display().to_string();
    Page { path, text }
}

impl Page {
    /// The blocks, in their order.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.text.lines().enumerate();
        while let Some((nth, line)) = lines.next() {
            let Some((indent, marks)) = fence(line) else {
                continue;
            };
            let text = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| line.trim() != "```")
                .map(|line| format!("{}\n", line.strip_prefix(indent).unwrap_or(line)))
                .collect();
            blocks.push(Block {
                line: nth + 1,
                marks: marks.to_owned(),
                text,
            });
        }
        blocks
    }

    /// The commands of its blocks, in their order.
    pub fn commands(&self) -> Vec<Command> {
        self.blocks()
            .iter()
            .flat_map(|block| block.commands(&self.path))
            .collect()
    }

    /// The code in its sentences, each with the number of its line.
    pub fn spans(&self) -> Vec<(usize, String)> {
        let mut is_block = false;
        let prose: String = self
            .text
            .lines()
            .map(|line| {
                let is_fence = line.trim_start().starts_with("```");
                is_block ^= is_fence;
                let is_prose = !is_block && !is_fence;
                format!("{}\n", if is_prose { line } else { "" })
            })
            .collect();
        let mut spans = Vec::new();
        let mut line = 1;
        for (nth, part) in prose.split('`').enumerate() {
            if nth % 2 == 1 {
                spans.push((line, part.split_whitespace().collect::<Vec<_>>().join(" ")));
            }
            line += part.matches('\n').count();
        }
        spans
    }
}

/// The indent of a fence that begins a block, and the words after it.
fn fence(line: &str) -> Option<(&str, &str)> {
    let indent = &line[..line.len() - line.trim_start().len()];
    Some((indent, line.trim_start().strip_prefix("```")?))
}

impl Block {
    /// The first of the words after the fence.
    pub fn kind(&self) -> &str {
        self.marks.split(' ').next().unwrap_or_default()
    }

    /// Its commands: the lines of a block `sh` that is no file, and in a block `console` those after `$ ` or `# `.
    fn commands(&self, page: &str) -> Vec<Command> {
        match self.kind() {
            "sh" if !self.marks.contains("file=") && !self.text.starts_with("#!") => {
                self.lines_of_a_shell(page)
            }
            "console" | "console,run" => self.of_a_transcript(page),
            _ => Vec::new(),
        }
    }

    fn command(&self, page: &str, nth: usize, text: &str) -> Command {
        Command {
            page: page.to_owned(),
            line: self.line + 1 + nth,
            text: text.to_owned(),
            output: None,
            is_run_without_agent: self.kind() == "console,run",
        }
    }

    fn lines_of_a_shell(&self, page: &str) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        let mut goes_on = false;
        for (nth, line) in self.text.lines().enumerate() {
            let line = line.split("  #").next().unwrap_or(line).trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let part = line.strip_suffix('\\').unwrap_or(line).trim_end();
            match commands.last_mut().filter(|_| goes_on) {
                Some(command) => command.text.push_str(&format!(" {part}")),
                None => commands.push(self.command(page, nth, part)),
            }
            goes_on = line.ends_with('\\');
        }
        commands
    }

    fn of_a_transcript(&self, page: &str) -> Vec<Command> {
        let mut commands: Vec<Command> = Vec::new();
        for (nth, line) in self.text.lines().enumerate() {
            // Output that begins with `# `, as that of `weir import`, is not below `# `.
            let is_root = self.text.starts_with("# ");
            let typed = line.strip_prefix(if is_root { "# " } else { "$ " });
            match (typed, commands.last_mut()) {
                (Some(typed), _) => {
                    let mut command = self.command(page, nth, typed);
                    command.output = Some(Vec::new());
                    commands.push(command);
                }
                (None, Some(command)) => {
                    command.output.get_or_insert_default().push(line.to_owned());
                }
                (None, None) => {}
            }
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(text: &str) -> Page {
        Page {
            path: "a.md".to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn blocks_have_their_lines_marks_and_no_indent() {
        let page = page("text\n\n```toml file=a\na = 1\n```\n\n1. one\n\n   ```sh\n   b\n   ```\n");
        let found: Vec<(usize, String, String)> = page
            .blocks()
            .into_iter()
            .map(|block| (block.line, block.marks, block.text))
            .collect();
        assert_eq!(
            found,
            [
                (3, "toml file=a".to_owned(), "a = 1\n".to_owned()),
                (9, "sh".to_owned(), "b\n".to_owned())
            ]
        );
    }

    #[test]
    fn commands_are_those_that_a_reader_types() {
        let page = page(
            "```sh\na --b   # why\n# not\nc \\\n  d\n```\n```sh file=x\ne\n```\n```sh\n#!/bin/sh\nf\n```\n\
             ```console\n$ g\none\n\n$ h\n```\n```console,run\n$ i\n# two\n```\n```console\n# j\nthree\n```\n```\n$ k\n```\n",
        );
        let found: Vec<(usize, String, Option<Vec<String>>, bool)> = page
            .commands()
            .into_iter()
            .map(|command| {
                (
                    command.line,
                    command.text,
                    command.output,
                    command.is_run_without_agent,
                )
            })
            .collect();
        let lines = |lines: &[&str]| Some(lines.iter().map(|&line| line.to_owned()).collect());
        assert_eq!(
            found,
            [
                (2, "a --b".to_owned(), None, false),
                (4, "c d".to_owned(), None, false),
                (15, "g".to_owned(), lines(&["one", ""]), false),
                (18, "h".to_owned(), lines(&[]), false),
                (21, "i".to_owned(), lines(&["# two"]), true),
                (25, "j".to_owned(), lines(&["three"]), false),
            ]
        );
    }

    #[test]
    fn spans_are_the_code_in_sentences() {
        let page = page("a `b c`\n```\n`d`\n```\nand `e\nf`, `g`\n");
        assert_eq!(
            page.spans(),
            [
                (1, "b c".to_owned()),
                (5, "e f".to_owned()),
                (6, "g".to_owned())
            ]
        );
    }
}
