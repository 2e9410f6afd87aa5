//! The check of short texts that the program gives.

use crate::error::{Error, Result};

/// The longest text, in bytes.
const MAX_LENGTH: usize = 256;

/// Returns `is_configuration` for a text that is empty, too long, or has control characters.
///
/// `what` names the text in the message of the error, as in "the label".
pub(crate) fn check_text(what: &str, text: &str) -> Result<()> {
    let fault = match text {
        "" => "is empty".to_owned(),
        _ if text.len() > MAX_LENGTH => format!("is longer than {MAX_LENGTH} bytes"),
        _ if text.contains(char::is_control) => "contains control characters".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::configuration(format!("{what} {fault}")))
}
