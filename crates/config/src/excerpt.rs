//! Some tables of a config's text.

use toml::Table;

/// The tables with these names, as they are written, with their comments. No other value of the text is in the result:
/// other tables may have secrets. Empty if the text is invalid.
#[must_use]
pub fn excerpt(text: &str, names: &[&str]) -> String {
    let Ok(mut wanted) = text.parse::<Table>() else {
        return String::new();
    };
    wanted.retain(|name, _| names.contains(&name));
    let written = written(text, names);
    match written.parse::<Table>() {
        Ok(found) if found == wanted => written,
        // Not by headers on lines of their own, such as inline tables.
        _ => toml::to_string(&wanted).unwrap_or_default(),
    }
}

/// The lines from each header with one of the names to the next header. A comment above a header belongs to it.
fn written(text: &str, names: &[&str]) -> String {
    let mut out = String::new();
    // Comments that may belong to the next header.
    let mut comment = String::new();
    let mut is_wanted = false;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('#') {
            comment.push_str(line);
            continue;
        }
        if let Some(name) = header(line) {
            is_wanted = names.contains(&name);
        }
        if is_wanted {
            out.push_str(&comment);
            out.push_str(line);
        }
        comment.clear();
    }
    if is_wanted {
        out.push_str(&comment);
    }
    let out = out.trim_end();
    if out.is_empty() {
        String::new()
    } else {
        format!("{out}\n")
    }
}

/// The first key of a line that looks like a header.
fn header(line: &str) -> Option<&str> {
    let keys = line
        .trim_start()
        .strip_prefix('[')?
        .trim_start_matches('[')
        .trim_start();
    let end = keys.find([']', '.', ' ', '\t'])?;
    Some(keys[..end].trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["agent", "limit"];

    #[test]
    fn tables_are_as_written_and_others_are_left_out_with_their_comments() {
        let text = "# All of it.\n\n# Here.\n[agent]\ninterfaces = [\"eth0\"] # one\n\n# password = \"old\"\n\
            [cluster]\nstore = \"redis://:secret@host\"\n\n# Not too many.\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n# end\n";
        assert_eq!(
            excerpt(text, &NAMES),
            "# Here.\n[agent]\ninterfaces = [\"eth0\"] # one\n\n# Not too many.\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n# end\n"
        );
    }

    #[test]
    fn no_way_of_writing_shows_another_tables_values() {
        for text in [
            "cluster.store = \"secret\"\nlimit = [{ name = \"a\" }]\n[agent]\nmode = \"observe\"\n",
            "cluster = { store = \"secret\" }\nagent.mode = \"observe\"\nlimit = [{ name = \"a\" }]\n",
            "[cluster]\nstore = \"\"\"\n[agent]\nsecret\"\"\"\n[agent]\nmode = \"observe\"\n[[limit]]\nname = \"a\"\n",
            "[cluster]\nstore = '''\n[[limit]]\nname = \"a\"\nsecret = '''\n[agent]\nmode = \"observe\"\n[[limit]]\nname = \"a\"\n",
            "[\"agent\"]\nmode = \"observe\"\n['cluster']\nstore = \"secret\"\n[[ limit ]]\nname = \"a\"\n[cluster.more]\na = \"secret\"\n",
        ] {
            let found = excerpt(text, &NAMES);
            assert!(!found.contains("secret"), "{found}");
            let table: Table = found.parse().unwrap();
            assert_eq!(table["agent"]["mode"].as_str(), Some("observe"), "{found}");
            assert_eq!(table["limit"][0]["name"].as_str(), Some("a"), "{found}");
            assert_eq!(table.len(), 2, "{found}");
        }
        assert_eq!(excerpt("[agent", &NAMES), "");
    }
}
