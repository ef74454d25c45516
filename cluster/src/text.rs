//! Text for people and for limited fields.

/// Cuts the text to at most `bytes` bytes, at a character, and ends what was cut with an ellipsis if one fits.
pub fn truncate(text: &mut String, bytes: usize) {
    const ELLIPSIS: &str = "…";
    if text.len() <= bytes {
        return;
    }
    let fits = bytes >= ELLIPSIS.len();
    let end = text.floor_char_boundary(bytes.saturating_sub(if fits { ELLIPSIS.len() } else { 0 }));
    text.truncate(end);
    if fits {
        text.push_str(ELLIPSIS);
    }
}

/// The text on one line, cut to `bytes` bytes.
pub fn one_line(text: &str, bytes: usize) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    truncate(&mut line, bytes);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_at_a_character_and_never_longer_than_asked() {
        for (text, bytes, expected) in [
            ("abc", 3, "abc"),
            ("abcd", 3, "…"),
            ("abcdefg", 6, "abc…"),
            ("äöü", 5, "ä…"),
            ("äöü", 2, "ä"),
            ("äöü", 1, ""),
            ("abc", 0, ""),
        ] {
            let mut cut = text.to_owned();
            truncate(&mut cut, bytes);
            assert_eq!(cut, expected, "{text} to {bytes}");
        }
    }

    #[test]
    fn many_lines_become_one() {
        assert_eq!(one_line("a\n  b\tc", 100), "a b c");
    }
}
