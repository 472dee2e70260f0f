//! JSON lines: one object a line.

use serde_json::Value;

/// The address of a line, in this field; `None` for metadata and for the brackets of an array with one object a line.
pub(crate) fn cell(line: &str, field: &str) -> Result<Option<String>, ()> {
    let line = line.trim();
    let line = line.strip_suffix(',').unwrap_or(line);
    if matches!(line, "" | "[" | "]") {
        return Ok(None);
    }
    match serde_json::from_str(line).map_err(drop)? {
        Value::String(text) => Ok(Some(text)),
        Value::Object(object) => match object.get(field) {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            // The last line of Spamhaus's lists.
            None if object.get("type").and_then(Value::as_str) == Some("metadata") => Ok(None),
            _ => Err(()),
        },
        _ => Err(()),
    }
}
