//! The check of short texts of the program: labels and patterns.

use crate::error::{Error, Result};
use crate::util::text::{self, TextFault};

/// Checks that a text is not empty, is at most 256 bytes long and has no control characters.
///
/// `what` is the name of the text in the message of the error, such as "the label".
///
/// # Errors
/// `is_configuration`.
pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    let fault = match text::check(text) {
        Ok(()) => return Ok(()),
        Err(TextFault::Empty) => "is empty".to_owned(),
        Err(TextFault::HasControlCharacters) => "contains control characters".to_owned(),
        Err(TextFault::TooLong) => format!("is longer than {} bytes", text::MAX_LENGTH),
    };
    Err(Error::configuration(format!("{what} {fault}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_text_and_its_fault() {
        let message = |text: &str| check_text("the label", text).map_err(|error| error.to_string());
        assert_eq!(message("billing"), Ok(()));
        assert_eq!(message("").unwrap_err(), "the label is empty");
        assert_eq!(message("a\tb").unwrap_err(), "the label contains control characters");
        let long = "x".repeat(257);
        assert_eq!(message(&long).unwrap_err(), "the label is longer than 256 bytes");
    }
}
