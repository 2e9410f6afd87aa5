//! Output on stdout: JSON, and the end of the reader.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::failure::Result;

/// Prints a text. Fails if stdout does.
///
/// A reader that has ended (`| head`) is no failure.
pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Prints any bytes. Fails as [`print()`] does.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<()> {
    write_while_read(bytes).map(drop)
}

/// Prints a text at once. Returns whether the output still has a reader.
pub(crate) fn print_while_read(text: &str) -> Result<bool> {
    write_while_read(text.as_bytes())
}

fn write_while_read(bytes: &[u8]) -> Result<bool> {
    let mut output = io::stdout().lock();
    match output.write_all(bytes).and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns a value as a line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    let mut line = Vec::new();
    let written = value.serialize(&mut Serializer::with_formatter(&mut line, SafeJson));
    written.map_err(io::Error::from)?;
    line.push(b'\n');
    Ok(String::from_utf8_lossy(&line).into_owned())
}

/// Returns a sequence as an array with one line per value.
pub(crate) fn json_array(values: impl IntoIterator<Item: Serialize>) -> Result<String> {
    let lines = values.into_iter().map(|value| json(&value)).collect::<Result<Vec<_>>>()?;
    let lines: Vec<_> = lines.iter().map(|line| line.trim_end()).collect();
    Ok(format!("[{}]\n", lines.join(",\n")))
}

/// Compact JSON, without any character that a terminal obeys.
struct SafeJson;

impl Formatter for SafeJson {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        for sign in fragment.chars() {
            if is_harmless(sign) {
                writer.write_all(sign.encode_utf8(&mut [0; 4]).as_bytes())?;
            } else {
                for unit in sign.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

/// Returns whether the character, within a text, is printed as it is.
pub(crate) fn is_harmless(sign: char) -> bool {
    // The debug form escapes control characters and invisible characters.
    matches!(sign, ' '..='~') || sign.is_alphanumeric() || sign.escape_debug().count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        json(&text).expect("a text")
    }

    #[test]
    fn a_text_in_json_has_nothing_that_a_terminal_obeys() {
        assert_eq!(line("a \"b\" \\ 漢字 🔒"), "\"a \\\"b\\\" \\\\ 漢字 🔒\"\n");
        for (text, shown) in [
            ("\u{1b}[2J", r"\u001b[2J"),
            ("\u{9b}2J\u{7f}", r"\u009b2J\u007f"),
            ("\u{202e}a", r"\u202ea"),
            ("\u{e0001}", r"\udb40\udc01"),
        ] {
            assert_eq!(line(text), format!("\"{shown}\"\n"));
            assert_eq!(serde_json::from_str::<String>(&line(text)).ok().as_deref(), Some(text));
        }
    }

    #[test]
    fn an_array_has_one_line_per_value() {
        assert_eq!(json_array([1, 2]).expect("numbers"), "[1,\n2]\n");
        assert_eq!(json_array([0; 0]).expect("numbers"), "[]\n");
    }
}
