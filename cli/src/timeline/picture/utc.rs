//! Dates and times, in UTC.

/// Returns a time in seconds since 1970 as `2026-11-24 06:12:03 UTC`.
pub(crate) fn text(time: f64) -> String {
    let seconds = time.floor() as i64;
    let (days, seconds) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Returns the year, month and day of a day since 1970.
///
/// Counts from 1 March, so that the leap day is the last day of a year.
fn date(days: i64) -> (i64, i64, i64) {
    const ERA: i64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(ERA), days.rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_dates() {
        for (time, expected) in [
            (0.0, "1970-01-01 00:00:00 UTC"),
            (951_782_400.5, "2000-02-29 00:00:00 UTC"),
            (1_795_500_723.9, "2026-11-24 06:12:03 UTC"),
            (4_107_542_399.0, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400.0, "2100-03-01 00:00:00 UTC"),
            (-1.0, "1969-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(text(time), expected);
        }
    }
}
