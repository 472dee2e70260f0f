//! The package's copyright file in Debian's machine-readable format: Weir's licenses, and those of the crates that are
//! linked into the agent and its kernel programs. Procedural macros and build scripts run on the build machine only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;
use crate::workspace::Workspace;

/// The packages whose dependencies are linked: the agent, and the kernel programs that it contains.
const ROOTS: [&str; 2] = ["agent", "ebpf"];

/// Licenses and a phrase that only their texts contain.
const LICENSES: [(&str, &str); 9] = [
    (
        "MIT",
        "the above copyright notice and this permission notice shall be included in all copies",
    ),
    (
        "ISC",
        "permission to use, copy, modify, and/or distribute this software for any purpose",
    ),
    (
        "BSD-2-Clause",
        "redistribution and use in source and binary forms",
    ),
    (
        "Unicode-3.0",
        "this copyright and permission notice appear with all copies of the data files",
    ),
    (
        "Unlicense",
        "this is free and unencumbered software released into the public domain",
    ),
    (
        "BSL-1.0",
        "the copyright notices in the software and this entire statement",
    ),
    (
        "Zlib",
        "this software is provided 'as-is', without any express or implied warranty",
    ),
    ("CC0-1.0", "creative commons"),
    (LLVM, "llvm exceptions to the apache"),
];
/// The sentence that makes a BSD license one of three clauses.
const THIRD_CLAUSE: &str = "be used to endorse or promote products derived from";
const LLVM: &str = "Apache-2.0 with LLVM exception";
/// Licenses whose texts every Debian system has in /usr/share/common-licenses.
const COMMON: [&str; 2] = ["Apache-2.0", "CC0-1.0"];
/// The first and the last line of the Apache license's terms, in lower case.
const APACHE: [&str; 2] = ["apache license", "end of terms and conditions"];

/// Libraries of a static program that are no crates, as Zig has them.
const STATIC: &str = "
Files: vendor/musl/*
Copyright: 2005-2020 Rich Felker, et al.
License: MIT
Comment: The C library.

Files: vendor/llvm/libunwind/*
Copyright: The LLVM Project Developers
License: Apache-2.0 with LLVM exception
Comment: Unwinding of the stack.

Files: vendor/zig/lib/compiler_rt/*
Copyright: Zig contributors
License: MIT
Comment: Functions that the compiler's code calls.
";
const STATIC_LICENSES: [&str; 2] = ["MIT", LLVM];

/// Libraries in crates whose license the crate does not name: crate, folder in it, license.
const BUNDLED: [(&str, &str, &str); 1] = [("tikv-jemalloc-sys", "jemalloc", "BSD-2-Clause")];

/// A linked crate.
struct Crate {
    name: String,
    version: String,
    authors: Vec<String>,
    /// An SPDX expression.
    license: String,
    /// Names and contents of its files about licenses.
    files: Vec<(String, String)>,
}

/// Writes the file's text for a target, from the sources that cargo has downloaded.
pub fn text(workspace: &Workspace, target: &str) -> Result<String> {
    let own = fs::read_to_string(workspace.root.join("LICENSE-MIT"))
        .context("reading Weir's own license")?;
    let own = Crate {
        name: "weir".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        authors: Vec::new(),
        license: "MIT OR Apache-2.0".to_owned(),
        files: vec![("LICENSE-MIT".to_owned(), own)],
    };
    document(&own, &linked(workspace, target)?, target)
}

/// The crates of others that are linked, by name and version.
fn linked(workspace: &Workspace, target: &str) -> Result<Vec<Crate>> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        name: String,
        version: String,
        authors: Vec<String>,
        license: Option<String>,
        /// None for Weir's own.
        source: Option<String>,
        manifest_path: PathBuf,
    }

    let names = linked_names(workspace, target)?;
    let mut cargo = workspace.cargo();
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    cargo.args(["--filter-platform", target]);
    let metadata: Metadata = serde_json::from_str(&process::capture(&mut cargo)?)
        .context("reading what `cargo metadata` printed")?;
    let mut crates = Vec::new();
    for package in metadata.packages {
        let title = format!("{} v{}", package.name, package.version);
        if package.source.is_none() || !names.contains(&title) {
            continue;
        }
        let folder = package.manifest_path.parent().unwrap_or(Path::new("/"));
        let mut license = package
            .license
            .with_context(|| format!("{title} names no license in its Cargo.toml"))?;
        let mut files = files_in(folder)?;
        for (_, library, its) in BUNDLED.iter().filter(|(name, ..)| *name == package.name) {
            license = format!("({license}) AND {its}");
            files.extend(files_in(&folder.join(library))?);
        }
        crates.push(Crate {
            license,
            files,
            name: package.name,
            version: package.version,
            authors: package.authors,
        });
    }
    crates.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    Ok(crates)
}

/// Names and versions of the linked crates. `cargo metadata` has the features of all of the workspace's packages
/// together, `cargo tree` those of one.
fn linked_names(workspace: &Workspace, target: &str) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for root in ROOTS {
        let mut cargo = workspace.cargo();
        cargo.args(["tree", "--locked", "--package", root, "--target", target]);
        cargo.args(["--edges", "normal,no-proc-macro", "--prefix", "none"]);
        let tree = process::capture(cargo.args(["--format", "{p}"]))?;
        // Paths of Weir's own and marks of repetitions follow in parentheses.
        names.extend(
            tree.lines()
                .filter_map(|line| line.split(" (").next())
                .map(str::to_owned),
        );
    }
    Ok(names)
}

/// The files about licenses in a crate's folder.
fn files_in(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        let upper = name.to_ascii_uppercase();
        let is_about = ["LICEN", "COPY", "UNLICEN", "NOTICE"]
            .iter()
            .any(|start| upper.starts_with(start));
        if is_about && path.is_file() {
            let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace(['\r', '\u{feff}'], "");
            files.push((name.to_owned(), text));
        }
    }
    files.sort();
    Ok(files)
}

/// Distinct wordings of a license, each with the crates that have it.
type Wordings = Vec<(String, Vec<String>)>;

fn document(own: &Crate, crates: &[Crate], target: &str) -> Result<String> {
    let mut text = String::from(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: Weir\n\
         Comment:\n \
         The program contains the crates below vendor/, which is where\n \
         `cargo vendor --versioned-dirs` puts their sources.\n",
    );
    let mut licenses: BTreeMap<String, Wordings> = BTreeMap::new();
    for (one, files) in std::iter::once((own, "*".to_owned())).chain(
        crates
            .iter()
            .map(|one| (one, format!("vendor/{}-{}/*", one.name, one.version))),
    ) {
        paragraph(&mut text, one, &files, &mut licenses);
    }
    text.push_str(
        "\nFiles: vendor/rust/library/*\n\
         Copyright: The Rust Project Developers\n\
         License: MIT or Apache-2.0\n\
         Comment: Rust's standard library.\n",
    );
    if target.ends_with("musl") {
        text.push_str(STATIC);
        for name in STATIC_LICENSES {
            licenses.entry(name.to_owned()).or_default();
        }
    }
    for (name, mut wordings) in licenses {
        if wordings.is_empty() && !COMMON.contains(&name.as_str()) {
            bail!("no crate has a text of the license {name}: add its phrase to LICENSES");
        }
        wordings.sort_by_key(|(_, crates)| std::cmp::Reverse(crates.len()));
        write!(text, "\nLicense: {name}\n{}", body(&name, &wordings))?;
    }
    Ok(text)
}

/// Writes a crate's paragraph, and adds the texts of its licenses to the others.
fn paragraph(
    text: &mut String,
    one: &Crate,
    files: &str,
    licenses: &mut BTreeMap<String, Wordings>,
) {
    let license = debian_expression(&one.license);
    for name in names_in(&license) {
        licenses.entry(name).or_default();
    }
    let mut holders = BTreeSet::new();
    let mut others = Vec::new();
    for (file, content) in &one.files {
        let content = without_apache(content);
        holders.extend(holders_in(&content));
        let found = licenses_of(&content);
        match found.as_slice() {
            [name] if licenses.contains_key(*name) && !file.starts_with("NOTICE") => {
                let wordings = licenses.entry((*name).to_owned()).or_default();
                add(wordings, &content, &format!("{}-{}", one.name, one.version));
            }
            // The Apache license alone, or a remark about which licenses the crate has.
            [] if !file.starts_with("NOTICE") => {}
            _ => others.push((file, content)),
        }
    }
    if holders.is_empty() {
        holders.extend(one.authors.iter().cloned());
    }
    if holders.is_empty() {
        holders.insert(format!("The authors of {}", one.name));
    }
    let holders: Vec<String> = holders.into_iter().collect();
    text.push_str(&format!(
        "\nFiles: {files}\nCopyright: {}\nLicense: {license}\n",
        holders.join("\n           ")
    ));
    if !others.is_empty() {
        text.push_str("Comment:\n");
        for (file, content) in others {
            text.push_str(&format!(
                " The crate's file {file}:\n .\n{}",
                indented(&content)
            ));
        }
    }
}

/// Adds a text, unless it is there in these words.
fn add(wordings: &mut Wordings, content: &str, title: &str) {
    let known = wordings
        .iter_mut()
        .find(|(text, _)| normal(text) == normal(content));
    match known {
        Some((_, crates)) => crates.push(title.to_owned()),
        None => wordings.push((content.to_owned(), vec![title.to_owned()])),
    }
}

/// A license's text in all its wordings, the most frequent first.
fn body(name: &str, wordings: &Wordings) -> String {
    let mut text = String::new();
    if COMMON.contains(&name) {
        text.push_str(&format!(
            " The text is in /usr/share/common-licenses/{name} on Debian systems.\n"
        ));
        return text;
    }
    for (number, (wording, crates)) in wordings.iter().enumerate() {
        if number > 0 {
            text.push_str(&format!(
                " .\n In the words of {}:\n .\n",
                crates.join(", ")
            ));
        }
        // The holders are in the crates' paragraphs.
        let lines: Vec<&str> = wording.lines().filter(|line| !is_notice(line)).collect();
        text.push_str(&indented(&lines.join("\n")));
    }
    text
}

/// The licenses whose texts these words contain.
fn licenses_of(text: &str) -> Vec<&'static str> {
    let text = words(text);
    let found = LICENSES
        .iter()
        .filter(|(_, phrase)| text.contains(phrase))
        .map(|&(name, _)| match name {
            "BSD-2-Clause" if text.contains(THIRD_CLAUSE) => "BSD-3-Clause",
            name => name,
        });
    found.collect()
}

/// An SPDX expression, or the older form with slashes, as Debian writes it.
fn debian_expression(spdx: &str) -> String {
    spdx.replace(" / ", " or ")
        .replace('/', " or ")
        .replace(") AND ", ", and ")
        .replace(['(', ')'], "")
        .replace("WITH LLVM-exception", "with LLVM exception")
        .replace(" OR ", " or ")
        .replace(" AND ", " and ")
}

/// The names of the licenses in Debian's expression.
fn names_in(expression: &str) -> Vec<String> {
    expression
        .replace(", and ", " or ")
        .replace(" and ", " or ")
        .split(" or ")
        .map(str::to_owned)
        .collect()
}

/// The text with a reference in place of the Apache license's terms.
fn without_apache(text: &str) -> String {
    let mut kept = Vec::new();
    let mut terms = Vec::new();
    for line in text.lines() {
        let plain = line.trim().to_lowercase();
        if terms.is_empty() && plain != APACHE[0] {
            kept.push(line);
            continue;
        }
        terms.push(line);
        if plain == APACHE[1] {
            kept.push("Apache-2.0: /usr/share/common-licenses/Apache-2.0");
            terms.clear();
        }
    }
    // Without its last line, it was something else.
    kept.extend(terms);
    kept.join("\n")
}

/// The holders of the copyright that a text names.
fn holders_in(text: &str) -> Vec<String> {
    let holder = |line: &str| {
        let line = line.trim_start_matches([' ', '\t', '/', '*', '#', '-']);
        let rest = line.get("copyright".len()..)?.trim_start();
        let rest = ["(c)", "(C)", "©"]
            .iter()
            .find_map(|mark| rest.strip_prefix(mark))
            .unwrap_or(rest);
        let rest = rest.trim().trim_end_matches(['.', ',']);
        (!rest.is_empty()).then(|| rest.to_owned())
    };
    text.lines()
        .filter(|line| is_notice(line))
        .filter_map(holder)
        .collect()
}

/// Whether a line names a holder of the copyright, and not a template's `[name of copyright owner]`.
fn is_notice(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '\t', '/', '*', '#', '-']);
    let Some(rest) = line
        .get(.."copyright".len())
        .filter(|start| start.eq_ignore_ascii_case("copyright"))
        .map(|start| line[start.len()..].trim_start())
    else {
        return false;
    };
    let names = rest.starts_with(|first: char| {
        first.is_ascii_digit() || first.is_uppercase() || "(©".contains(first)
    });
    names && !rest.contains(['[', '{']) && rest.len() > 3
}

/// The words of a text, without differences of case and space.
fn words(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").to_lowercase()
}

/// The letters of a license without notices and headings, which are the same in two copies.
fn normal(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !is_notice(line))
        .filter(|line| {
            let line = line.trim().to_lowercase();
            !(line.ends_with("license")
                || line.ends_with("license (mit)")
                || line == "all rights reserved.")
        })
        .collect();
    lines
        .join(" ")
        .to_lowercase()
        .replace(|letter: char| !letter.is_ascii_lowercase(), "")
}

/// The text as a field's continuation lines.
fn indented(text: &str) -> String {
    let lines = text.trim_matches('\n').lines();
    let line = |line: &str| match line.trim_end() {
        "" => " .\n".to_owned(),
        line => format!(" {line}\n"),
    };
    lines.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIT: &str = "MIT License\n\nCopyright (c) 2020 Ada\n\nThe above copyright notice and this\npermission notice \
                       shall be included in all copies.\n";

    const GNU: &str = "x86_64-unknown-linux-gnu";

    fn one(name: &str, license: &str, files: &[(&str, &str)]) -> Crate {
        Crate {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            authors: vec!["Grace <grace@example.org>".to_owned()],
            license: license.to_owned(),
            files: files
                .iter()
                .map(|&(name, text)| (name.to_owned(), text.to_owned()))
                .collect(),
        }
    }

    #[test]
    fn each_crate_has_its_holders_and_each_license_one_text() {
        let own = one("weir", "MIT OR Apache-2.0", &[("LICENSE-MIT", MIT)]);
        let apache = "                    Apache License\nterms\n   END OF TERMS AND CONDITIONS\n\nCopyright [yyyy] [name]\n";
        let crates = [
            one(
                "a",
                "MIT/Apache-2.0",
                &[
                    ("LICENSE-APACHE", apache),
                    ("LICENSE-MIT", &MIT.replace("Ada", "Bob")),
                ],
            ),
            one("b", "MIT", &[]),
        ];
        let text = document(&own, &crates, GNU).unwrap();
        assert!(text.contains(
            "\nFiles: vendor/a-1.0.0/*\nCopyright: 2020 Bob\nLicense: MIT or Apache-2.0\n"
        ));
        assert!(text.contains(
            "\nFiles: vendor/b-1.0.0/*\nCopyright: Grace <grace@example.org>\nLicense: MIT\n"
        ));
        assert_eq!(text.matches("permission notice shall").count(), 1);
        assert!(text.contains(
            "\nLicense: Apache-2.0\n The text is in /usr/share/common-licenses/Apache-2.0 "
        ));
        assert!(!text.contains("terms\n"));
    }

    #[test]
    fn another_wording_names_its_crates() {
        let own = one("weir", "MIT", &[("LICENSE-MIT", MIT)]);
        let other = format!("{MIT}\nNo liability.\n");
        let crates = [one("a", "MIT", &[("LICENSE", &other)])];
        let text = document(&own, &crates, GNU).unwrap();
        assert!(text.contains(" .\n In the words of a-1.0.0:\n .\n"));
        assert!(text.contains(" No liability.\n"));
    }

    #[test]
    fn a_file_of_two_licenses_is_in_its_crates_paragraph() {
        let own = one("weir", "MIT", &[("LICENSE-MIT", MIT)]);
        let both = format!("{MIT}\nRedistribution and use in source and binary forms\n");
        let text = document(&own, &[one("a", "MIT", &[("LICENSE", &both)])], GNU).unwrap();
        assert!(text.contains(
            "License: MIT\nComment:\n The crate's file LICENSE:\n .\n MIT License\n .\n Copyright"
        ));
    }

    #[test]
    fn a_static_program_names_its_c_library() {
        let own = one("weir", "MIT", &[("LICENSE-MIT", MIT)]);
        let llvm = "LLVM Exceptions to the Apache 2.0 License\n";
        let crates = [one(
            "a",
            "Apache-2.0 WITH LLVM-exception",
            &[("LICENSE", llvm)],
        )];
        let text = document(&own, &crates, "x86_64-unknown-linux-musl").unwrap();
        assert!(text.contains("\nFiles: vendor/musl/*\n"));
        assert!(!document(&own, &crates, GNU).unwrap().contains("musl"));
    }

    #[test]
    fn a_license_without_a_text_is_an_error() {
        let own = one("weir", "MIT", &[("LICENSE-MIT", MIT)]);
        let error = document(&own, &[one("a", "Zlib", &[])], GNU).unwrap_err();
        assert!(error.to_string().contains("Zlib"));
    }

    #[test]
    fn expressions_are_written_as_debian_does() {
        assert_eq!(
            debian_expression("(MIT OR Apache-2.0) AND Unicode-3.0"),
            "MIT or Apache-2.0, and Unicode-3.0"
        );
        assert_eq!(debian_expression("Apache-2.0 / MIT"), "Apache-2.0 or MIT");
        assert_eq!(
            names_in("Apache-2.0 with LLVM exception or MIT, and ISC"),
            ["Apache-2.0 with LLVM exception", "MIT", "ISC"]
        );
    }

    #[test]
    fn notices_are_told_from_terms() {
        assert!(is_notice("   Copyright 2017 The Authors"));
        assert!(is_notice("// Copyright © 2017 Ada"));
        assert!(!is_notice("copyright notice and this permission notice"));
        assert!(!is_notice("Copyright [yyyy] [name of copyright owner]"));
        assert_eq!(holders_in("Copyright (c) 2020 Ada.\n"), ["2020 Ada"]);
    }
}
