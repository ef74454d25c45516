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

/// Longest part of a text that [`quoted`] repeats, in characters.
const QUOTED_CHARACTERS: usize = 64;

/// A text that anybody may write, as it stands in messages and logs: in quotation marks, escaped, and cut.
pub fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(QUOTED_CHARACTERS).collect();
    let rest = if shown.len() < text.len() { "…" } else { "" };
    format!("{shown:?}{rest}")
}

/// The text on one line, cut to `bytes` bytes.
pub fn one_line(text: &str, bytes: usize) -> String {
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    truncate(&mut line, bytes);
    line
}

/// A list of names as it may stand in messages: at most ten.
pub fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.as_slice() {
        [] => "none".to_owned(),
        names if names.len() <= 10 => names.join(", "),
        names => format!("{} and {} more", names[..10].join(", "), names.len() - 10),
    }
}

/// A way from name to name as it may stand in messages: the first nine, and the last.
pub fn way(names: &[&str]) -> String {
    match names {
        [first @ .., last] if names.len() > 10 => {
            let (shown, left) = first.split_at(9);
            format!("{} -> {} more -> {last}", shown.join(" -> "), left.len())
        }
        names => names.join(" -> "),
    }
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
    fn what_anybody_writes_is_escaped_and_bounded_when_it_is_quoted() {
        let long = "ä".repeat(65);
        for (text, expected) in [
            ("40gi", r#""40gi""#.to_owned()),
            ("", r#""""#.to_owned()),
            ("a\nlevel=\"x\"", r#""a\nlevel=\"x\"""#.to_owned()),
            ("\u{1b}[2J", r#""\u{1b}[2J""#.to_owned()),
            (&long[2..], format!("\"{}\"", &long[2..])),
            (&long, format!("\"{}\"…", &long[2..])),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    #[test]
    fn many_lines_become_one() {
        assert_eq!(one_line("a\n  b\tc", 100), "a b c");
    }
}
