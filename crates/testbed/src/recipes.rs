//! The blocks of pages, by the name after `recipe=`.

use std::collections::BTreeMap;
use std::path::Path;

/// A block: its language and its text.
pub type Block = (String, String);

const RECIPES: &str = "RECIPES.md";

/// Every block of docs/RECIPES.md.
pub fn all() -> BTreeMap<String, Block> {
    blocks_of(RECIPES)
}

/// Every block of a page below docs.
pub fn blocks_of(page: &str) -> BTreeMap<String, Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
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

/// The text of one block of docs/RECIPES.md.
pub fn recipe(name: &str) -> String {
    recipe_of(RECIPES, name)
}

/// The text of one block of a page below docs.
pub fn recipe_of(page: &str, name: &str) -> String {
    let block = blocks_of(page).remove(name);
    block
        .unwrap_or_else(|| panic!("docs/{page} has no recipe {name}"))
        .1
}
