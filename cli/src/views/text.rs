//! Texts for people: printable names, short durations, local times.

use std::borrow::Cow;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use leasehold::HolderInfo;

use crate::observe::snapshot::{now, since_1970};

/// The sign for an unknown fact.
pub(crate) const UNKNOWN: &str = "-";

/// The words for a holder whose process is known and does not answer: it may have died.
pub(crate) const SILENT: &str = "no answer";

/// The word for a hold that lingers: nobody has it.
pub(crate) const IDLE: &str = "idle";

/// The words for the holder of a lock that the minimum of its ended hold keeps taken.
pub(crate) const ENDED: &str = "min hold";

/// Returns the slots of the permits of a holder.
pub(crate) fn slots(holder: &HolderInfo) -> String {
    let slots: Vec<_> = holder.slots().iter().map(u32::to_string).collect();
    slots.join(" ")
}

/// Returns whether the process of a holder is known and does not answer.
///
/// An answer has the number of the thread, or, behind the end of this hold, the count of the holds.
/// A hold of Redisson has the number of the thread too.
pub(crate) fn is_silent(holder: &HolderInfo) -> bool {
    holder.pid().is_some() && holder.thread_number().is_none() && holder.acquired().is_none()
}

/// Returns the text on one line, without anything that a terminal obeys.
///
/// Names and labels come from other programs. Control characters, invisible characters and
/// backslashes are shown as escapes, such as `\n` and `\u{202e}`.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |sign: u8| matches!(sign, b' '..=b'~') && sign != b'\\';
    if text.bytes().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'"))
}

/// The units of long durations, with their lengths in seconds and the next smaller unit.
const UNITS: [(f64, &str, f64, &str); 3] =
    [(86_400.0, "d", 3600.0, "h"), (3600.0, "h", 60.0, "m"), (60.0, "m", 1.0, "s")];

/// Returns a duration in two units at most: `1.2s`, `72s`, `12m4s`, `3h20m`.
pub(crate) fn brief(seconds: f64) -> String {
    let tenths = (seconds.max(0.0) * 10.0).floor() / 10.0;
    let whole = tenths.floor();
    match UNITS.into_iter().find(|unit| whole >= 2.0 * unit.0) {
        Some((length, unit, small, small_unit)) => {
            let rest = ((whole % length) / small).floor();
            let rest = if rest > 0.0 { format!("{rest}{small_unit}") } else { String::new() };
            format!("{}{unit}{rest}", (whole / length).floor())
        }
        None if tenths < 10.0 => format!("{tenths}s"),
        None => format!("{whole}s"),
    }
}

/// Returns the age of a hold or a wait in seconds.
pub(crate) fn age(caller: &HolderInfo) -> Option<f64> {
    // The clock of another host may be ahead.
    Some((now() - since_1970(caller.since()?)).max(0.0))
}

/// Returns a short name of a holder within its process or client.
///
/// The thread, if it is known; the owner itself, if the caller has named it; else the start of the
/// client's id, and the number of a Redisson thread.
pub(crate) fn short_owner(caller: &HolderInfo) -> String {
    let id = caller.client_id().map(|id| id.to_string());
    let Some(id) = id.filter(|id| caller.owner().starts_with(id)) else {
        return printable(caller.owner()).into_owned();
    };
    match caller.thread().filter(|thread| !thread.is_empty()) {
        Some(thread) if caller.pid().is_some() => printable(thread).into_owned(),
        Some(thread) => format!("{}:{}", &id[..8], printable(thread)),
        None => id[..8].to_owned(),
    }
}

/// Returns a kind in one word: `fair` for `fair lock`, `plain` for `lock`.
pub(crate) fn short_kind(kind: &str) -> &str {
    match kind {
        "lock" => "plain",
        "lock of a named holder" => "named",
        "work done once" => "once",
        kind => kind.strip_suffix(" lock").unwrap_or(kind),
    }
}

/// Returns the local time of the day with milliseconds; the time is in seconds since 1970.
pub(crate) fn time_of_day(time: f64) -> String {
    local(time, "%H:%M:%S%.3f")
}

/// Returns the local date and time; the time is in seconds since 1970.
pub(crate) fn date_and_time(time: f64) -> String {
    local(time, "%Y-%m-%d %H:%M:%S")
}

/// Returns the time in the local time zone. UTC if the system has no time zone.
fn local(time: f64, format: &str) -> String {
    let millis = (time * 1000.0).round();
    match Timestamp::from_millisecond(millis as i64) {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime(format).to_string(),
        Err(_) => format!("{time}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printable_text_has_nothing_that_a_terminal_obeys() {
        for same in ["", "orders:42", "a \"b\" 'c'", "{tag}", "ä ö", "漢字", "🔒", "e\u{301}"]
        {
            assert_eq!(printable(same), same);
        }
        let escaped = [
            ("a\nb", r"a\nb"),
            ("\u{1b}[2J", r"\u{1b}[2J"),
            ("a\u{9b}2J", r"a\u{9b}2J"),
            ("a\u{202e}b", r"a\u{202e}b"),
            ("a\u{200b}b", r"a\u{200b}b"),
            ("a\\\"b", r#"a\\"b"#),
            ("\\", r"\\"),
            ("\u{301}", r"\u{301}"),
        ];
        for (text, shown) in escaped {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn a_brief_duration_has_two_units_at_most() {
        let brief_durations = [
            (-1.0, "0s"),
            (0.04, "0s"),
            (1.29, "1.2s"),
            (9.99, "9.9s"),
            (72.9, "72s"),
            (120.0, "2m"),
            (724.0, "12m4s"),
            (7100.0, "118m20s"),
            (12_000.0, "3h20m"),
            (200_000.0, "2d7h"),
        ];
        for (seconds, shown) in brief_durations {
            assert_eq!(brief(seconds), shown, "{seconds}");
        }
    }

    #[test]
    fn a_time_is_shown_in_the_local_zone() {
        let time = time_of_day(1_800_000_000.123);
        assert!(time.len() == 12 && time.ends_with(":00.123"), "{time}");
        assert_eq!(date_and_time(1_800_000_000.0).len(), "2027-01-15 08:00:00".len());
        assert_eq!(time_of_day(f64::MAX).len(), time_of_day(f64::MAX).trim().len());
    }
}
