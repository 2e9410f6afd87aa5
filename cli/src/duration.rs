//! Durations of the command line: `500ms`, `4s`, `10m`, `2h`.

use std::time::Duration;

/// The units, the longest name first.
const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Reads a number with a unit. A number without a unit counts seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration: write 500ms, 4s, 10m or 2h");
    let (number, factor) = UNITS
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .unwrap_or((text, 1.0));
    let is_number = number.chars().all(|sign| sign.is_ascii_digit() || sign == '.');
    let number: f64 = number.parse().ok().filter(|_| is_number).ok_or_else(wrong)?;
    Duration::try_from_secs_f64(number * factor).map_err(|_| wrong())
}

/// Reads the lease of a lock, which the library renews: at least 100 ms.
pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_millis(100), text)
}

/// Reads the limit of a hold: at least 10 ms.
pub(crate) fn limit(text: &str) -> Result<Duration, String> {
    at_least(Duration::from_millis(10), text)
}

fn at_least(least: Duration, text: &str) -> Result<Duration, String> {
    match parse(text)? {
        time if time < least => Err(format!("`{text}` is below {least:?}")),
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_and_limits_have_a_minimum() {
        assert_eq!(lease("99ms"), Err("`99ms` is below 100ms".to_owned()));
        assert_eq!(lease("100ms"), Ok(Duration::from_millis(100)));
        assert!(limit("0").is_err() && limit("10ms").is_ok());
    }

    #[test]
    fn a_duration_has_a_unit_or_counts_seconds() {
        for (text, millis) in
            [("500ms", 500), ("4s", 4000), ("10m", 600_000), ("2h", 7_200_000), ("1.5", 1500)]
        {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn other_texts_are_errors() {
        for text in ["", "s", "-1s", "1d", "4 s", "1e3s", "inf", "NaN", "1.2.3s", "4s4s"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"9".repeat(40)).is_err());
    }
}
