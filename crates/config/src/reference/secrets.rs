//! Masking secrets in the text of a config, which errors quote.

use super::TABLES;
use crate::schema::{Key, Mask, inner_keys};

/// A config's text without secrets, with the same length.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    fn masks(keys: &mut dyn Iterator<Item = &Key>, all: &mut Vec<(Mask, &'static str)>) {
        for key in keys {
            all.extend(key.mask.map(|mask| (mask, key.name)));
            masks(&mut inner_keys(&key.kind).into_iter(), all);
        }
    }
    let mut all = Vec::new();
    masks(&mut TABLES.iter().flat_map(|table| table.keys), &mut all);
    all.into_iter()
        .fold(text.to_owned(), |text, (mask, key)| mask(&text, key))
}
