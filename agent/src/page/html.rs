//! Writes HTML: every text and every value of an attribute is escaped.

/// HTML in progress.
#[derive(Debug, Default)]
pub struct Html(String);

/// Names and values of attributes.
pub type Attributes<'a> = &'a [(&'static str, &'a str)];

impl Html {
    /// Appends a text.
    pub fn text(&mut self, text: &str) {
        escape(&mut self.0, text);
    }

    /// Appends an element with content.
    pub fn element(
        &mut self,
        tag: &'static str,
        attributes: Attributes<'_>,
        content: impl FnOnce(&mut Self),
    ) {
        self.open(tag, attributes);
        content(self);
        self.0.push_str("</");
        self.0.push_str(tag);
        self.0.push('>');
    }

    /// Appends an element with a text.
    pub fn leaf(&mut self, tag: &'static str, attributes: Attributes<'_>, text: &str) {
        self.element(tag, attributes, |html| html.text(text));
    }

    /// Appends the start tag of an element without content, such as `meta`.
    pub fn open(&mut self, tag: &'static str, attributes: Attributes<'_>) {
        self.0.push('<');
        self.0.push_str(tag);
        for (name, value) in attributes {
            self.0.push(' ');
            self.0.push_str(name);
            self.0.push_str("=\"");
            escape(&mut self.0, value);
            self.0.push('"');
        }
        self.0.push('>');
    }

    /// Appends a line break between elements, which browsers ignore.
    pub fn line(&mut self) {
        self.0.push('\n');
    }

    /// Appends constant HTML, CSS or JavaScript as it is.
    pub(super) fn verbatim(&mut self, text: &'static str) {
        self.0.push_str(text);
    }

    /// The HTML.
    #[must_use]
    pub fn finish(self) -> String {
        self.0
    }
}

/// Escapes a text for content and for quoted attributes. Control characters, and those that reorder text, are replaced:
/// names in a page may come from anybody who sends packets or files.
fn escape(out: &mut String, text: &str) {
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(letter),
            '\r' if letters.peek() == Some(&'\n') => {}
            '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}' => {
                out.push('\u{fffd}');
            }
            letter if letter.is_control() => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_attributes_cannot_end_what_they_are_in() {
        let mut html = Html::default();
        html.leaf(
            "p",
            &[("title", "\"><script>alert('x')</script>&amp;")],
            "</p><script>1 && 2</script>]]>-->",
        );
        assert_eq!(
            html.finish(),
            "<p title=\"&quot;&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;amp;\">\
             &lt;/p&gt;&lt;script&gt;1 &amp;&amp; 2&lt;/script&gt;]]&gt;--&gt;</p>"
        );
    }

    #[test]
    fn control_characters_and_those_that_reorder_text_are_replaced() {
        let mut html = Html::default();
        html.text("a\r\nb\0c\u{1b}[2Jd\u{202e}e\rf\tg");
        assert_eq!(
            html.finish(),
            "a\nb\u{fffd}c\u{fffd}[2Jd\u{fffd}e\u{fffd}f\tg"
        );
    }
}
