//! Comments of a generated config.

use config::human;

/// The width of comments.
const WIDTH: usize = 110;

/// Appends the lines of a comment, wrapped between words.
pub(crate) fn comment(out: &mut String, text: &str) {
    let mut columns = 0;
    for word in text.split_whitespace() {
        if columns == 0 || columns + 1 + human::columns(word) > WIDTH {
            if columns > 0 {
                out.push('\n');
            }
            out.push('#');
            columns = 1;
        }
        out.push(' ');
        out.push_str(word);
        columns += 1 + human::columns(word);
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_broken_between_words() {
        let mut out = String::new();
        comment(&mut out, &"word ".repeat(50));
        assert!(
            out.lines()
                .all(|line| line.starts_with("# word") && line.len() <= WIDTH),
            "{out}"
        );
        assert_eq!(out.matches("word").count(), 50);
    }
}
