//! Numbers as Redis reads and writes them.

/// Reads an integer: no sign `+`, no leading zero, no space.
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => Some(0),
        [b'1'..=b'9', ..] => std::str::from_utf8(text).ok()?.parse().ok(),
        _ => None,
    }
}

/// Reads a floating-point number as the scores of sorted sets are read.
///
/// A number that is too great or too small to be told from zero is none, nor is NaN.
pub(crate) fn parse_float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let is_nonzero = |byte: &u8| (b'1'..=b'9').contains(byte);
    let mut mantissa = text.iter().take_while(|byte| !byte.eq_ignore_ascii_case(&b'e'));
    let is_too_small = number == 0.0 && mantissa.any(is_nonzero);
    let is_named = || text.iter().any(|byte| byte.eq_ignore_ascii_case(&b'n'));
    let is_too_great = number.is_infinite() && text.iter().any(is_nonzero) && !is_named();
    (!number.is_nan() && !is_too_small && !is_too_great).then_some(number)
}

/// Reads an end of a range of scores: infinities may overflow, and spaces may precede.
///
/// Redis reads it as a string of C, which a zero byte ends.
pub(crate) fn parse_bound(text: &[u8]) -> Option<f64> {
    let end = text.iter().position(|byte| *byte == 0);
    let text = &text[..end.unwrap_or(text.len())];
    if text.is_empty() {
        return Some(0.0);
    }
    let text = text.trim_ascii_start();
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// Tells whether the C library would read the text as a hexadecimal number, which this one cannot.
pub(crate) fn is_hexadecimal(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    digits.starts_with(b"0x") || digits.starts_with(b"0X")
}

/// Writes a number with up to 17 significant digits, as `%.17g` of C does.
pub(crate) fn format_float(number: f64) -> String {
    const DIGITS: i32 = 17;
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan".to_owned() } else { "nan".to_owned() };
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    // Most numbers here are whole.
    if number == number.trunc() && number.abs() < 1e17 {
        return if number == 0.0 && number.is_sign_negative() {
            "-0".to_owned()
        } else {
            (number as i64).to_string()
        };
    }
    let scientific = format!("{number:.*e}", DIGITS as usize - 1);
    let (mantissa, exponent) = scientific.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a whole exponent");
    let is_negative = mantissa.starts_with('-');
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_end_matches('0');
    let text = if (-4..DIGITS).contains(&exponent) {
        positional(digits, exponent)
    } else {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{first}{point}{rest}e{sign}{:02}", exponent.abs())
    };
    if is_negative { format!("-{text}") } else { text }
}

/// Writes digits whose first has the given power of ten, without an exponent.
fn positional(digits: &str, exponent: i32) -> String {
    if exponent < 0 {
        return format!("0.{}{digits}", "0".repeat((-exponent - 1) as usize));
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        return format!("{digits}{}", "0".repeat(whole - digits.len()));
    }
    format!("{}.{}", &digits[..whole], &digits[whole..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_c_does() {
        for (number, text) in [
            (0.1, "0.10000000000000001"),
            (1.5, "1.5"),
            (-2.25, "-2.25"),
            (1e17, "1e+17"),
            (1.5e-7, "1.4999999999999999e-07"),
            (0.0001, "0.0001"),
            (-0.0, "-0"),
            (123_456_789_012_345_680.0, "1.2345678901234568e+17"),
            (f64::NEG_INFINITY, "-inf"),
            (5e-324, "4.9406564584124654e-324"),
        ] {
            assert_eq!(format_float(number), text);
        }
    }

    #[test]
    fn a_zero_byte_ends_a_bound() {
        for (text, number) in
            [("\0x", Some(0.0)), ("5\0x", Some(5.0)), ("x\0", None), (" \0", None)]
        {
            assert_eq!(parse_bound(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn integers_are_read_strictly() {
        for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "1e3"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_integer(b"-9223372036854775808"), Some(i64::MIN));
    }
}
