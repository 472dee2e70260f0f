//! The blocks of pages, by the name after `recipe=`.

use std::collections::BTreeMap;

use crate::documents;

/// A block: its language and its text.
pub type Block = (String, String);

const RECIPES: &str = "RECIPES.md";

/// Every block of docs/RECIPES.md.
pub fn all() -> BTreeMap<String, Block> {
    blocks_of(RECIPES)
}

/// Every block with a name of a page below docs.
pub fn blocks_of(page: &str) -> BTreeMap<String, Block> {
    let mut blocks = BTreeMap::new();
    for block in documents::page(&format!("docs/{page}")).blocks() {
        let Some((language, name)) = block.marks.split_once(" recipe=") else {
            continue;
        };
        assert!(
            blocks
                .insert(name.to_owned(), (language.to_owned(), block.text.clone()))
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
