//! The blocks of docs/RECIPES.md, by the name after `recipe=`.

use std::collections::BTreeMap;
use std::path::Path;

/// A block: its language and its text.
pub type Block = (String, String);

/// Every block.
pub fn all() -> BTreeMap<String, Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/RECIPES.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut blocks = BTreeMap::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some((language, name)) = line
            .strip_prefix("```")
            .and_then(|rest| rest.split_once(" recipe="))
        else {
            continue;
        };
        let text: String = lines
            .by_ref()
            .take_while(|line| *line != "```")
            .map(|line| format!("{line}\n"))
            .collect();
        assert!(
            blocks
                .insert(name.to_owned(), (language.to_owned(), text))
                .is_none(),
            "two recipes {name}"
        );
    }
    blocks
}

/// The text of one block.
pub fn recipe(name: &str) -> String {
    all()
        .remove(name)
        .unwrap_or_else(|| panic!("docs/RECIPES.md has no recipe {name}"))
        .1
}
