//! The parser of requests, with the rules of Redis.

use std::io::{BufRead, Error, Result};

/// Reads one request and returns its words, or `None` at the end of the stream.
pub fn read_request(stream: &mut impl BufRead) -> Result<Option<Vec<String>>> {
    let Some(line) = read_line(stream)? else {
        return Ok(None);
    };
    let Some(count) = line.strip_prefix('*') else {
        // An inline request, for people at a terminal.
        return Ok(Some(line.split_whitespace().map(str::to_owned).collect()));
    };
    let words: Result<Vec<String>> = (0..number(count)?).map(|_| read_word(stream)).collect();
    words.map(Some)
}

/// Reads a bulk string: `$<length>`, then that many bytes.
fn read_word(stream: &mut impl BufRead) -> Result<String> {
    let header = read_line(stream)?.unwrap_or_default();
    let length = header.strip_prefix('$').map(number);
    let length = length.ok_or_else(|| Error::other(format!("{header:?} is no bulk string")))??;
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn read_line(stream: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    stream.read_line(&mut line)?;
    let ended = line.is_empty();
    Ok((!ended).then(|| line.trim_end().to_owned()))
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(Error::other)
}
