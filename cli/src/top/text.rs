//! Texts of the screen: safe, of a given width, and short.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ratatui::style::Style;
use ratatui::text::Span;

/// Returns the text without characters that change the terminal or the direction of the text.
///
/// Each such character is shown by its number, as in `\u{1b}`.
pub(crate) fn safe(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for sign in text.chars() {
        match is_harmful(sign) {
            true => shown.extend(sign.escape_unicode()),
            false => shown.push(sign),
        }
    }
    shown
}

/// Returns whether a character is a control character or invisible.
fn is_harmful(sign: char) -> bool {
    let is_invisible = matches!(sign,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    sign.is_control() || is_invisible
}

/// Returns the number of columns of a text.
pub(crate) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Returns the text if it fits into `most` columns, else its beginning and `…`.
pub(crate) fn fit(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let (mut shown, mut left) = (String::new(), most.saturating_sub(1));
    for sign in Span::raw(text).styled_graphemes(Style::new()) {
        match left.checked_sub(width(sign.symbol)) {
            Some(rest) => left = rest,
            None => break,
        }
        shown.push_str(sign.symbol);
    }
    if most > 0 {
        shown.push('…');
    }
    shown
}

/// Returns a duration in five columns at most: `0.4s`, `27s`, `4m12s`, `3h05m`, `12d`.
pub(crate) fn duration(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{:.1}s", span.as_millis() as f64 / 1000.0),
        1..100 => format!("{seconds}s"),
        100..6000 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        6000..360_000 => format!("{}h{:02}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d", seconds / 86400),
    }
}

/// Returns an interval or the duration of a look: `3 ms`, `1.5 s`, `12 s`.
pub(crate) fn interval(span: Duration) -> String {
    match span.as_millis() {
        0 => "less than 1 ms".to_owned(),
        millis @ 1..1000 => format!("{millis} ms"),
        millis @ 1000..10_000 if millis % 1000 >= 50 => format!("{:.1} s", span.as_secs_f64()),
        _ => format!("{:.0} s", span.as_secs_f64()),
    }
}

/// Returns a number of hand-offs per second in four columns.
pub(crate) fn rate(rate: f64) -> String {
    match rate {
        ..0.005 => "0".to_owned(),
        ..0.95 => format!("{rate:.1}").replace("0.0", "<0.1"),
        ..9.95 => format!("{rate:.1}"),
        ..9999.5 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}

/// Returns the time of day, UTC: `06:07:12`.
pub(crate) fn time_of_day(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() % 86400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Returns a number of things: `1 lock`, `2 locks`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_change_the_terminal() {
        assert_eq!(safe("a\x1b[2Jb\u{202e}c\n\u{9b}"), r"a\u{1b}[2Jb\u{202e}c\u{a}\u{9b}");
        assert_eq!(safe("bestellung:ü:注文"), "bestellung:ü:注文");
    }

    #[test]
    fn a_long_text_ends_with_an_ellipsis() {
        assert_eq!(fit("orders:42", 9), "orders:42");
        assert_eq!(fit("orders:42", 8), "orders:…");
        assert_eq!(fit("注文注文", 7), "注文注…");
        assert_eq!(fit("注文注文", 6), "注文…", "half of a character has no room");
        assert_eq!((fit("ab", 1), fit("ab", 0)), ("…".to_owned(), String::new()));
        assert!(width(&fit(&"e\u{301}".repeat(9), 5)) <= 5);
    }

    #[test]
    fn durations_are_short() {
        let shown = |millis| duration(Duration::from_millis(millis));
        for (millis, text) in [
            (0, "0.0s"),
            (940, "0.9s"),
            (1000, "1s"),
            (99_000, "99s"),
            (100_000, "1m40s"),
            (5_999_000, "99m59s"),
            (11_100_000, "3h05m"),
            (400_000_000, "4d"),
        ] {
            assert_eq!(shown(millis), text);
        }
    }

    #[test]
    fn intervals_and_rates_are_short() {
        let shown = |millis| interval(Duration::from_millis(millis));
        assert_eq!([0, 3, 1000, 1500, 12_300].map(shown).join(", "),
            "less than 1 ms, 3 ms, 1 s, 1.5 s, 12 s");
        let rates = [0.0, 0.01, 0.3, 1.0, 9.94, 9.96, 123.4, 9999.0, 12_345.0].map(rate);
        assert_eq!(rates.join(" "), "0 <0.1 0.3 1.0 9.9 10 123 9999 12k");
    }

    #[test]
    fn the_time_of_day_is_utc() {
        let at = UNIX_EPOCH + Duration::from_secs(86400 * 3 + 3600 * 6 + 60 * 7 + 12);
        assert_eq!(time_of_day(at), "06:07:12");
    }
}
