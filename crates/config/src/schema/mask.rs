//! Masking the values of a key in the text of a config, which errors quote.

/// Masks the whole values of a key. It finds them by the key's name, since the text may be invalid.
#[must_use]
pub fn masked_value(text: &str, key: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (start, _) in text.match_indices(key) {
        let rest = &text[start + key.len()..];
        let value = rest.trim_start_matches([' ', '\t', '"', '\'']);
        let Some(value) = value.strip_prefix('=') else {
            continue;
        };
        let value = value.trim_start_matches([' ', '\t']);
        let long = ["\"\"\"", "'''"]
            .into_iter()
            .find(|quotes| value.starts_with(quotes));
        let end = match long {
            Some(quotes) => value[3..].find(quotes).map_or(value.len(), |end| end + 6),
            // To the end of the line, since an invalid value may end anywhere.
            None => value.find(['\n', '\r']).unwrap_or(value.len()),
        };
        let from = text.len() - value.len();
        for byte in &mut bytes[from..from + end] {
            if !matches!(*byte, b'\n' | b'\r') {
                *byte = b'*';
            }
        }
    }
    // Only whole values were replaced.
    String::from_utf8(bytes).unwrap_or_default()
}
