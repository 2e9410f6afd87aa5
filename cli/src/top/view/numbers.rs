//! Numbers in a few columns.

use std::time::Duration;

use crate::top::rates::Rate;

/// Returns an interval or the duration of a look: `3 ms`, `1.5 s`, `12 s`.
pub(crate) fn interval(span: Duration) -> String {
    match span.as_millis() {
        0 => "less than 1 ms".to_owned(),
        millis @ 1..1000 => format!("{millis} ms"),
        millis @ 1000..10_000 if millis % 1000 >= 50 => format!("{:.1} s", span.as_secs_f64()),
        _ => format!("{:.0} s", span.as_secs_f64()),
    }
}

/// Returns a number of hand-offs per second: `12/s`, `>3.0/s` for a lower bound.
///
/// `None` for a lower bound of zero, which says nothing.
pub(crate) fn handoffs(rate: Rate) -> Option<String> {
    let shown = number(rate.per_second());
    match rate {
        Rate::Counted(_) => Some(format!("{shown}/s")),
        Rate::AtLeast(_) if shown == "0" => None,
        Rate::AtLeast(_) => Some(format!(">{shown}/s")),
    }
}

/// Returns a number in four columns.
fn number(rate: f64) -> String {
    match rate {
        ..0.005 => "0".to_owned(),
        ..0.095 => format!("{rate:.2}"),
        ..9.95 => format!("{rate:.1}"),
        ..9999.5 => format!("{rate:.0}"),
        _ => format!("{:.0}k", rate / 1000.0),
    }
}

/// Returns a number of things: `1 lock`, `2 locks`.
pub(crate) fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_short() {
        let shown = |millis| interval(Duration::from_millis(millis));
        let shown = [0, 3, 1000, 1500, 12_300].map(shown);
        assert_eq!(shown, ["less than 1 ms", "3 ms", "1 s", "1.5 s", "12 s"]);
    }

    #[test]
    fn rates_are_short_and_a_lower_bound_is_marked() {
        let rates = [0.0, 0.01, 0.3, 1.0, 9.94, 9.96, 123.4, 9999.0, 12_345.0];
        let shown = rates.map(number);
        assert_eq!(shown, ["0", "0.01", "0.3", "1.0", "9.9", "10", "123", "9999", "12k"]);
        assert_eq!(handoffs(Rate::Counted(0.0)).as_deref(), Some("0/s"));
        assert_eq!(handoffs(Rate::AtLeast(12.0)).as_deref(), Some(">12/s"));
        assert_eq!(handoffs(Rate::AtLeast(0.0)), None);
    }

    #[test]
    fn one_is_no_plural() {
        let shown = [0, 1, 2].map(|number| count(number, "lock", "locks"));
        assert_eq!(shown, ["0 locks", "1 lock", "2 locks"]);
    }
}
