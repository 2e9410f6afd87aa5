//! Requests and replies as bytes: RESP2 and RESP3.

use super::number;

/// An argument, a key or a value: any bytes.
pub(crate) type Bytes = Vec<u8>;

/// The greatest number of arguments of a request.
const MAX_ARGUMENTS: i64 = i32::MAX as i64;

/// The greatest length of an argument.
const MAX_LENGTH: i64 = 512 * 1024 * 1024;

/// The greatest length of a line.
const MAX_LINE: usize = 64 * 1024;

/// Returns any bytes as a text with one character each, for [`Reply::Error`] and
/// [`Reply::Status`]. As in C, a zero ends the text.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

/// Returns the bytes that [`text_of`] took.
pub(crate) fn bytes_of(text: &str) -> Bytes {
    text.chars().map(|character| u8::try_from(character).unwrap_or(b'?')).collect()
}

/// A reply of the server. The protocol of a connection decides its bytes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A short text of the server, such as `OK`. Each character stands for one byte.
    Status(String),
    /// An error with its code, without the leading `-`. Each character stands for one byte, because
    /// errors quote what was sent.
    Error(String),
    Integer(i64),
    Bulk(Bytes),
    /// A text with a format, which RESP2 sends as any other text.
    Verbatim(String),
    /// A number that RESP2 sends as text.
    Double(f64),
    Nil,
    /// No array, which RESP2 tells from no text.
    NilArray,
    Array(Vec<Reply>),
    /// Keys and values, which RESP2 sends as a flat array.
    Map(Vec<(Reply, Reply)>),
    /// Pairs that RESP3 nests and RESP2 sends as a flat array.
    Pairs(Vec<(Reply, Reply)>),
    /// Items in no order, which RESP2 sends as an array.
    Set(Vec<Reply>),
    /// A message that answers no request, which RESP2 sends as an array.
    Push(Vec<Reply>),
    /// Nothing: the command has sent its messages itself.
    Sent,
}

impl Reply {
    pub(crate) fn ok() -> Self {
        Self::Status("OK".to_owned())
    }

    pub(crate) fn bulk(text: impl Into<Bytes>) -> Self {
        Self::Bulk(text.into())
    }

    /// Returns the text, or nil for `None`.
    pub(crate) fn bulk_or_nil(text: Option<&Bytes>) -> Self {
        text.map_or(Self::Nil, |text| Self::Bulk(text.clone()))
    }

    /// Returns an array of texts.
    pub(crate) fn bulks<T: Into<Bytes>>(texts: impl IntoIterator<Item = T>) -> Self {
        Self::Array(texts.into_iter().map(Self::bulk).collect())
    }

    /// Returns the number of items as an integer.
    pub(crate) fn count(count: usize) -> Self {
        Self::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Appends the reply's bytes to `out`.
    pub(crate) fn encode(&self, resp3: bool, out: &mut Bytes) {
        match self {
            Self::Status(text) => short(out, b'+', text),
            Self::Error(text) => short(out, b'-', &one_line(text)),
            Self::Integer(number) => line(out, ':', &number.to_string()),
            Self::Bulk(bytes) => bulk(out, bytes),
            Self::Verbatim(text) if resp3 => {
                line(out, '=', &(text.len() + 4).to_string());
                out.extend_from_slice(b"txt:");
                out.extend_from_slice(text.as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Self::Verbatim(text) => bulk(out, text.as_bytes()),
            Self::Double(number) if resp3 => line(out, ',', &number::format_float(*number)),
            Self::Double(number) => bulk(out, number::format_float(*number).as_bytes()),
            Self::Nil | Self::NilArray if resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::NilArray => out.extend_from_slice(b"*-1\r\n"),
            Self::Array(items) => all(out, resp3, '*', items),
            Self::Set(items) => all(out, resp3, if resp3 { '~' } else { '*' }, items),
            Self::Push(items) => all(out, resp3, if resp3 { '>' } else { '*' }, items),
            Self::Map(pairs) | Self::Pairs(pairs) => {
                match (resp3, self) {
                    (true, Self::Map(_)) => line(out, '%', &pairs.len().to_string()),
                    (true, _) => line(out, '*', &pairs.len().to_string()),
                    (false, _) => line(out, '*', &(2 * pairs.len()).to_string()),
                }
                for (key, value) in pairs {
                    if resp3 && matches!(self, Self::Pairs(_)) {
                        line(out, '*', "2");
                    }
                    key.encode(resp3, out);
                    value.encode(resp3, out);
                }
            }
            Self::Sent => {}
        }
    }
}

/// Appends an array of any kind.
fn all(out: &mut Bytes, resp3: bool, mark: char, items: &[Reply]) {
    line(out, mark, &items.len().to_string());
    for item in items {
        item.encode(resp3, out);
    }
}

fn short(out: &mut Bytes, mark: u8, text: &str) {
    out.push(mark);
    out.extend_from_slice(&bytes_of(text));
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Bytes, mark: char, text: &str) {
    out.push(mark as u8);
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn bulk(out: &mut Bytes, bytes: &[u8]) {
    line(out, '$', &bytes.len().to_string());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Returns an error's text without the ends of lines, which would end the reply.
fn one_line(text: &str) -> String {
    text.trim_end_matches(['\r', '\n']).replace(['\r', '\n'], " ")
}

/// Takes the first request from `input`, from `at` on.
///
/// Moves `at` behind the request. `None` means that its bytes have not all come.
///
/// # Errors
///
/// The bytes are no request. The text is the error to answer with, before the connection ends.
pub(crate) fn take_request(input: &[u8], at: &mut usize) -> Result<Option<Vec<Bytes>>, String> {
    let mut here = *at;
    let Some(first) = input.get(here) else { return Ok(None) };
    if *first != b'*' {
        let Some(text) = take_line(input, &mut here, "too big inline request")? else {
            return Ok(None);
        };
        if text.iter().any(|byte| [b'"', b'\''].contains(byte)) {
            return Err(super::commands::refusal("quotes in inline requests"));
        }
        *at = here;
        let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        return Ok(Some(words.map(<[u8]>::to_vec).collect()));
    }
    here += 1;
    let Some(text) = take_line(input, &mut here, "too big mbulk count string")? else {
        return Ok(None);
    };
    let count = number::parse_integer(text).filter(|count| *count <= MAX_ARGUMENTS);
    let count = count.ok_or_else(|| protocol_error("invalid multibulk length"))?;
    let mut request = Vec::new();
    for _ in 0..count.max(0) {
        let Some(mark) = input.get(here) else { return Ok(None) };
        if *mark != b'$' {
            return Err(protocol_error(&format!("expected '$', got '{}'", *mark as char)));
        }
        here += 1;
        let Some(text) = take_line(input, &mut here, "too big bulk count string")? else {
            return Ok(None);
        };
        let length = number::parse_integer(text).filter(|it| (0..=MAX_LENGTH).contains(it));
        let length = length.ok_or_else(|| protocol_error("invalid bulk length"))? as usize;
        if input.len() < here + length + 2 {
            return Ok(None);
        }
        request.push(input[here..here + length].to_vec());
        here += length + 2;
    }
    *at = here;
    Ok(Some(request))
}

/// Takes a line without its end.
fn take_line<'a>(
    input: &'a [u8],
    at: &mut usize,
    too_long: &str,
) -> Result<Option<&'a [u8]>, String> {
    let rest = &input[*at..];
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else {
        return if rest.len() > MAX_LINE { Err(protocol_error(too_long)) } else { Ok(None) };
    };
    *at += end + 1;
    Ok(Some(rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end])))
}

fn protocol_error(what: &str) -> String {
    format!("ERR Protocol error: {what}")
}
