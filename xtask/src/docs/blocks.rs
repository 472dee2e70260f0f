//! Code blocks of pages, by the words after the fence:
//!
//! | words | the block |
//! |---|---|
//! | `toml` | is a config, which is validated |
//! | `toml,fragment` | is a part of a config, which is not validated |
//! | `console,run` | has commands after `$ ` and their output; a line `...` matches any lines |
//! | any, then `file=NAME` | is a file for the page's later commands |
//!
//! A page's commands run in a separate directory, in which `config` and `docs` are those of the project.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use anyhow::{Context as _, Result};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};

use super::page::Page;

struct Block {
    line: usize,
    marks: String,
    text: String,
}

/// Validates every config with `weir check`. Returns the problems and the number of configs.
pub fn check_configs(agent: &Path, pages: &[Page]) -> Result<(Vec<String>, usize)> {
    let folder = tempfile::tempdir().context("making a directory")?;
    let path = folder.path().join("limits.toml");
    let (mut problems, mut checked) = (Vec::new(), 0);
    for (page, block) in marked(pages, "toml") {
        fs::write(&path, &block.text).context("writing a config")?;
        let output = Command::new(agent)
            .arg("check")
            .arg(&path)
            .output()
            .context("starting the agent")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            problems.push(format!(
                "{}:{}: invalid config\n{}",
                page.path.display(),
                block.line,
                said.trim_end()
            ));
        }
        checked += 1;
    }
    Ok((problems, checked))
}

/// Runs every marked command. Returns the problems and the number of commands.
pub fn check_commands(agent: &Path, root: &Path, pages: &[Page]) -> Result<(Vec<String>, usize)> {
    // Pages write the name that packages install.
    let links = tempfile::tempdir().context("making a directory")?;
    symlink(agent, links.path().join("weir")).context("linking the agent")?;
    let mut folders = vec![links.path().to_owned()];
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let path = env::join_paths(folders).context("extending PATH")?;
    let (mut problems, mut run) = (Vec::new(), 0);
    for page in pages {
        let blocks = blocks(page);
        if !blocks.iter().any(Block::is_run) {
            continue;
        }
        let folder = tempfile::tempdir().context("making a directory")?;
        for name in ["config", "docs"] {
            symlink(root.join(name), folder.path().join(name))
                .with_context(|| format!("linking {name}"))?;
        }
        for block in &blocks {
            if let Some(name) = block.file() {
                fs::write(folder.path().join(name), &block.text)
                    .with_context(|| format!("writing {name}"))?;
            }
            let commands = if block.is_run() {
                transcript(&block.text)
            } else {
                Vec::new()
            };
            for (command, expected) in commands {
                let printed = printed(command, folder.path(), &path)?;
                if !matches(&expected, &printed.lines().collect::<Vec<_>>()) {
                    let place = format!("{}:{}", page.path.display(), block.line);
                    problems.push(format!(
                        "{place}: `{command}` prints something else:\n{}",
                        printed.trim_end()
                    ));
                }
                run += 1;
            }
        }
    }
    Ok((problems, run))
}

/// The output and the errors of a command.
fn printed(command: &str, folder: &Path, path: &OsStr) -> Result<String> {
    let mut shell = Command::new("sh");
    shell
        .current_dir(folder)
        .env("PATH", path)
        .env("COLUMNS", "110")
        .args(["-c", &format!("exec 2>&1; {command}")]);
    for variable in ["WEIR_CONFIG", "WEIR_CONTROL"] {
        shell.env_remove(variable);
    }
    let output = shell.output().context("starting a shell")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

impl Block {
    fn kind(&self) -> &str {
        self.marks.split(' ').next().unwrap_or_default()
    }

    fn is_run(&self) -> bool {
        self.kind() == "console,run"
    }

    /// The name of the file in the block.
    fn file(&self) -> Option<&str> {
        self.marks
            .split(' ')
            .find_map(|mark| mark.strip_prefix("file="))
    }
}

fn marked<'p>(pages: &'p [Page], marks: &'p str) -> impl Iterator<Item = (&'p Page, Block)> {
    let of_page = move |page| {
        blocks(page)
            .into_iter()
            .filter(move |block| block.kind() == marks)
            .map(move |block| (page, block))
    };
    pages.iter().flat_map(of_page)
}

fn blocks(page: &Page) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (event, range) in Parser::new_ext(&page.text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(marks))) => {
                let line = page.text[..range.start].matches('\n').count() + 1;
                open = Some(Block {
                    line,
                    marks: marks.into_string(),
                    text: String::new(),
                });
            }
            Event::Text(text) => {
                if let Some(block) = &mut open {
                    block.text.push_str(&text);
                }
            }
            Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
            _ => {}
        }
    }
    blocks
}

/// Each command and the lines below it.
fn transcript(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut commands: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command, Vec::new())),
            (None, Some((_, output))) => output.push(line),
            (None, None) => {}
        }
    }
    commands
}

/// Whether the lines match the expected ones, where `...` matches any number of lines.
fn matches(expected: &[&str], printed: &[&str]) -> bool {
    match (expected.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((&"...", rest)), _) => {
            (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]))
        }
        (Some((line, expected)), Some((first, printed))) => {
            line.trim_end() == first.trim_end() && matches(expected, printed)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_has_commands_and_what_they_print() {
        assert_eq!(
            transcript("$ a b\none\ntwo\n$ c\n"),
            [("a b", vec!["one", "two"]), ("c", vec![])]
        );
    }

    #[test]
    fn commands_run_where_the_files_of_their_page_are() {
        let root = tempfile::tempdir().unwrap();
        let text = "```toml file=a.toml\none\n```\n\n```console,run\n$ cat a.toml; ls -d docs\none\ndocs\n$ echo two >&2\n2\n```\n\n\
                    ```console\n$ false\n```\n";
        let pages = ["a.md", "b.md"].map(|path| Page {
            path: path.into(),
            text: text.to_owned(),
        });
        std::fs::create_dir(root.path().join("docs")).unwrap();
        let (problems, run) = check_commands(Path::new("/bin/agent"), root.path(), &pages).unwrap();
        assert_eq!(run, 4);
        assert_eq!(
            problems,
            [
                "a.md:5: `echo two >&2` prints something else:\ntwo",
                "b.md:5: `echo two >&2` prints something else:\ntwo"
            ]
        );
    }

    #[test]
    fn dots_stand_for_any_lines() {
        let printed = ["one", "two", "three"];
        assert!(matches(&["one", "...", "three"], &printed) && matches(&["..."], &printed));
        assert!(matches(&["one", "two", "three", "..."], &printed));
        assert!(!matches(&["one", "..."], &[]) && !matches(&["one", "three"], &printed));
    }

    #[test]
    fn blocks_have_their_marks_and_lines() {
        let page = Page {
            path: "a.md".into(),
            text: "text\n\n```toml,fragment\na = 1\n```\n\n```\nb\n```\n".to_owned(),
        };
        let found: Vec<(usize, String)> = blocks(&page)
            .into_iter()
            .map(|block| (block.line, block.marks))
            .collect();
        assert_eq!(found, [(3, "toml,fragment".to_owned()), (7, String::new())]);
    }
}
