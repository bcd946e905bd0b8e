//! Text into HTML. What comes from a file is text, never markup.

use crate::show::printable;

/// Text for an element or a quoted attribute.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in printable(text).chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter => out.push(letter),
        }
    }
    out
}

/// JSON for the inside of a script element: `<` occurs in strings only, where its escape means
/// the same, and without it no string can end the element.
#[must_use]
pub fn script_safe(json: &str) -> String {
    json.replace('<', "\\u003c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_never_becomes_markup() {
        assert_eq!(escape("<a href='x'>&\"\u{1b}"), {
            "&lt;a href=&#39;x&#39;&gt;&amp;&quot;\\u{1b}"
        });
        assert_eq!(script_safe("{\"a\":\"</script>\"}"), "{\"a\":\"\\u003c/script>\"}");
    }
}
