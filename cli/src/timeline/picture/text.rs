//! Texts of unknown origin: cleaned, measured and shortened.

use unicode_width::UnicodeWidthChar;

/// The width of a letter of average width, as a part of the font size.
const AVERAGE: f64 = 0.6;

/// Returns the text without the signs that XML forbids or that change the direction of writing.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|sign| if is_forbidden(sign) { '\u{fffd}' } else { sign }).collect()
}

fn is_forbidden(sign: char) -> bool {
    let is_direction =
        matches!(sign, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    sign.is_control() || is_direction || matches!(sign, '\u{fffe}' | '\u{ffff}')
}

/// Returns the approximate width of a text, for fonts of which nothing is known.
pub(crate) fn width(text: &str, size: f64) -> f64 {
    text.chars().map(sign_width).sum::<f64>() * size
}

fn sign_width(sign: char) -> f64 {
    match sign {
        'i' | 'j' | 'l' | 't' | 'f' | 'r' | ' ' | '.' | ',' | ':' | ';' | '\'' | '|' | '!'
        | '(' | ')' | '[' | ']' | '/' => 0.38,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '<' | '>' | '&' | '=' | '+' => 0.95,
        'A'..='Z' => 0.7,
        _ if sign.width() == Some(0) => 0.0,
        // Signs of East Asia and emoji.
        _ if sign.width() == Some(2) => 1.1,
        _ => AVERAGE,
    }
}

/// Returns the text, shortened in its middle if it is wider than `most`.
pub(crate) fn shorten(text: &str, size: f64, most: f64) -> String {
    // The room may have been computed from the width.
    let most = most + 1e-6;
    if width(text, size) <= most {
        return text.to_owned();
    }
    let signs: Vec<char> = text.chars().collect();
    let halves = |kept: usize| -> String {
        let (head, tail) = (kept.div_ceil(2), kept / 2);
        let tail = &signs[signs.len() - tail..];
        signs[..head].iter().chain(&['…']).chain(tail).collect()
    };
    let kept = (0..signs.len()).rev().find(|&kept| width(&halves(kept), size) <= most);
    halves(kept.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_signs_are_replaced() {
        assert_eq!(clean("a\u{0}b\nc\u{1b}d\u{ffff}e\u{202e}f"), "a�b�c�d�e�f");
        assert_eq!(clean("<&\"'> é 日本 🦀"), "<&\"'> é 日本 🦀");
    }

    #[test]
    fn a_long_text_loses_its_middle() {
        assert_eq!(shorten("short", 10.0, 100.0), "short");
        let name = "a".repeat(30) + &"z".repeat(30);
        let short = shorten(&name, 10.0, 60.0);
        assert!(width(&short, 10.0) <= 60.0, "{short}");
        assert!(
            short.starts_with("aaa") && short.contains('…') && short.ends_with("zzz"),
            "{short}"
        );
        assert_eq!(shorten("é日本", 10.0, 0.0), "…");
    }
}
