//! limits.toml as a JSON Schema (draft 7, which TOML editors support).

use serde_json::{Map, Value, json};

use super::TABLES;
use crate::schema::{Absent, Key, Kind, TableReference};

/// Patterns of rates, sizes and so on. The parser is stricter: the schema serves completion and catches typos.
const RATE: &str = r"^\s*[0-9][0-9_.]*\s*([kKMGT]i?B|B|[kKmMgGtT]?[bB]it)?\s*/\s*[0-9_]*\s*(ms|s|sec|second|m|min|minute|h|hour|d|day|week|month|calendar-day|calendar-month)\s*$";
const SIZE: &str = r"^[0-9][0-9_.]*\s*([kKMGT]i?B|B)$";
const TIME: &str = r"^\s*[0-9][0-9_]*\s*(ms|s|sec|second|m|min|minute|h|hour|d|day|week|month)\s*$";
const PERCENT: &str = r"^\s*[0-9.]+\s*%$";

/// The schema of the whole file.
#[must_use]
pub fn schema() -> Value {
    let mut properties = Map::new();
    for table in TABLES.iter().filter(|table| table.variant.is_none()) {
        let variant = TABLES
            .iter()
            .find(|other| other.heading == table.heading && other.variant.is_some());
        let item = match variant {
            None => table_schema(table),
            Some(variant) => json!({
                "if": { "required": ["scope"], "properties": { "scope": { "const": "request" } } },
                "then": table_schema(variant),
                "else": table_schema(table),
            }),
        };
        let is_array = table.heading.starts_with("[[");
        let name = table.heading.trim_matches(['[', ']']).to_owned();
        properties.insert(
            name,
            if is_array {
                json!({ "type": "array", "items": item })
            } else {
                item
            },
        );
    }
    json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "limits.toml",
        "description": "The limits that Weir enforces on a host",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
}

fn table_schema(table: &TableReference) -> Value {
    let mut schema = object(table.keys);
    schema["description"] = json!(table.summary);
    schema
}

fn object(keys: &[Key]) -> Value {
    let properties: Map<String, Value> = keys
        .iter()
        .map(|key| (key.name.to_owned(), key_schema(key)))
        .collect();
    let is_required = |key: &&Key| matches!(key.default, Absent::Invalid);
    let required: Vec<&str> = keys
        .iter()
        .filter(is_required)
        .map(|key| key.name)
        .collect();
    let mut schema =
        json!({ "type": "object", "additionalProperties": false, "properties": properties });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    let instead = |key: &Key| match key.default {
        Absent::Unless(other) => Some(json!([{ "required": [key.name] }, { "required": [other] }])),
        _ => None,
    };
    if let Some(either) = keys.iter().find_map(instead) {
        schema["anyOf"] = either;
    }
    schema
}

fn key_schema(key: &Key) -> Value {
    let mut schema = kind(&key.kind, key);
    schema["description"] = json!(key.text);
    // An editor offers a literal default; a described one cannot be offered.
    if let Some(value) = key.default.toml()
        && let Ok(table) = format!("value = {value}").parse::<toml::Table>()
        && let Ok(value) = serde_json::to_value(&table["value"])
    {
        schema["default"] = value;
    }
    schema
}

fn kind(of: &Kind, key: &Key) -> Value {
    let text = |pattern: Option<&str>, examples: &[&str]| {
        text(
            pattern,
            if examples.is_empty() {
                key.examples
            } else {
                examples
            },
        )
    };
    match of {
        Kind::Boolean => json!({ "type": "boolean" }),
        Kind::Integer(..) => {
            let (least, most) = key.bounds(of);
            json!({ "type": "integer", "minimum": least as u64, "maximum": most as u64 })
        }
        Kind::Number(..) => {
            let (least, most) = key.bounds(of);
            json!({ "type": "number", "minimum": least, "maximum": most })
        }
        Kind::Text(examples) => text(None, examples),
        // The parser ignores case; an editor completes these.
        Kind::Words(words) => json!({ "type": "string", "enum": words() }),
        Kind::Rate(examples) => text(Some(RATE), examples),
        Kind::Size(examples) => text(Some(SIZE), examples),
        Kind::Time(examples) => text(Some(TIME), examples),
        Kind::Percent(examples) => text(Some(PERCENT), examples),
        Kind::Path(examples) => text(Some("^/"), examples),
        Kind::Prefix(examples) => text(None, examples),
        Kind::List(element) => json!({ "type": "array", "items": kind(element, key) }),
        Kind::Table(keys) => object(keys),
        Kind::OneKey(keys) => {
            let mut schema = object(keys);
            schema["minProperties"] = json!(1);
            schema["maxProperties"] = json!(1);
            schema
        }
        Kind::Map(value) => {
            json!({ "type": "object", "additionalProperties": kind(value, key) })
        }
        Kind::Either(kinds) => {
            json!({ "anyOf": kinds.iter().map(|of| kind(of, key)).collect::<Vec<_>>() })
        }
    }
}

fn text(pattern: Option<&str>, examples: &[&str]) -> Value {
    let mut schema = json!({ "type": "string" });
    if let Some(pattern) = pattern {
        schema["pattern"] = json!(pattern);
    }
    if !examples.is_empty() {
        schema["examples"] = json!(examples);
    }
    schema
}
