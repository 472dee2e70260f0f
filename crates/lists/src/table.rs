//! Comma-separated values.

use config::policy::Column;

use crate::entry::LONGEST_LINE;
use crate::error::ListError;

/// The shape of a table.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// The column of the addresses, from 0.
    column: usize,
    delimiter: char,
    /// The line with the names of columns; from 1.
    header: Option<u64>,
    /// The first line that is no comment, which may have the names of columns if the column is a number; else 0.
    first: u64,
}

impl Table {
    /// From the first line that is no comment, and for the name of a column also the comment before it.
    pub fn of(column: &Column, text: &[u8]) -> Result<Self, ListError> {
        let mut comment = None;
        let mut first = (String::new(), 1);
        for (line, number) in text.split(|byte| *byte == b'\n').zip(1u64..) {
            // The rest of a longer one would be invalid.
            let line = String::from_utf8_lossy(&line[..line.len().min(LONGEST_LINE)]);
            if !is_comment(&line) {
                first = (line.into_owned(), number);
                break;
            }
            if !line.trim().is_empty() {
                comment = Some(line.into_owned());
            }
        }
        let (head, first) = first;
        let delimiter = delimiter(&head);
        let is_numbered = matches!(column, Column::Number(_));
        let (column, header) = match column {
            Column::Number(number) => (number - 1, None),
            Column::Name(name) => {
                let named = |head: &str| {
                    fields(head, self::delimiter(head))
                        .iter()
                        .position(|field| field.eq_ignore_ascii_case(name))
                };
                // `# first_seen,address`.
                let in_comment = || named(comment.as_deref()?.trim_start_matches(['#', ' ']));
                match named(&head) {
                    Some(column) => (column, Some(first)),
                    None => (
                        in_comment().ok_or_else(|| ListError::NoColumn(name.clone()))?,
                        None,
                    ),
                }
            }
        };
        Ok(Self {
            column,
            delimiter,
            header,
            first: if is_numbered { first } else { 0 },
        })
    }

    /// The address of a row; `None` for a comment or the names of columns.
    pub fn cell(&self, line: &str, number: u64) -> Result<Option<String>, ()> {
        if is_comment(line) || self.header == Some(number) {
            return Ok(None);
        }
        let cell = fields(line.trim(), self.delimiter)
            .into_iter()
            .nth(self.column);
        cell.map(Some).ok_or(())
    }

    /// Whether an invalid line has the names of columns.
    pub fn may_be_header(&self, line: &[u8], number: u64) -> bool {
        if self.first != number || line.len() > LONGEST_LINE {
            return false;
        }
        let cell = fields(String::from_utf8_lossy(line).trim(), self.delimiter)
            .into_iter()
            .nth(self.column);
        cell.is_some_and(|cell| !cell.starts_with(|c: char| c.is_ascii_digit()))
    }
}

fn is_comment(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// The separator of a table: the first of comma, semicolon and tab in its first line, outside quotation marks.
fn delimiter(head: &str) -> char {
    let mut is_quoted = false;
    head.chars()
        .find(|c| {
            is_quoted ^= *c == '"';
            !is_quoted && matches!(c, ',' | ';' | '\t')
        })
        .unwrap_or(',')
}

/// The fields of a line, without quotation marks.
fn fields(line: &str, delimiter: char) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in line.trim_end().chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            c if c == delimiter && !is_quoted => fields.push(String::new()),
            c => fields
                .last_mut()
                .into_iter()
                .for_each(|field| field.push(c)),
        }
    }
    fields
        .iter_mut()
        .for_each(|field| *field = field.trim().to_owned());
    fields
}
