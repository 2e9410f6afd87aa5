//! Requests and replies of real servers, as bytes.

use std::io::{Read, Write};

/// A connection to a real server.
pub(crate) struct Connection<S> {
    stream: S,
    input: Vec<u8>,
}

impl<S: Read + Write> Connection<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, input: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    /// Waits until the server closes the connection, which has no reply.
    #[allow(dead_code, reason = "one of the two tests that share this file uses it")]
    pub(crate) fn ends(&mut self) {
        let read = self.stream.read(&mut [0]).expect("the connection ends in time");
        assert!(read == 0 && self.input.is_empty(), "a reply instead of the end");
    }

    /// Returns the bytes of one reply or message. `to` says to what.
    pub(crate) fn reply(&mut self, to: &str) -> Vec<u8> {
        loop {
            if let Some(len) = reply_len(&self.input) {
                return self.input.drain(..len).collect();
            }
            let mut buffer = [0; 1 << 16];
            let count = match self.stream.read(&mut buffer) {
                Ok(0) => panic!("redis-server has closed the connection at {to}"),
                Ok(count) => count,
                Err(error) => panic!("redis-server has not answered {to}: {error}"),
            };
            self.input.extend_from_slice(&buffer[..count]);
        }
    }
}

/// Returns the length of the reply at the start of the bytes, if all of it has come.
pub(crate) fn reply_len(bytes: &[u8]) -> Option<usize> {
    let line = bytes.iter().position(|byte| *byte == b'\n')? + 1;
    let number = || {
        let text = std::str::from_utf8(&bytes[1..line - 2]).ok()?;
        text.parse::<i64>().ok()
    };
    let items = match bytes[0] {
        b'$' | b'=' => {
            let len = number()?;
            let end = if len < 0 { line } else { line + len as usize + 2 };
            return (bytes.len() >= end).then_some(end);
        }
        b'*' | b'~' | b'>' => number()?,
        b'%' => 2 * number()?,
        _ => return Some(line),
    };
    let mut end = line;
    for _ in 0..items {
        end += reply_len(&bytes[end..])?;
    }
    Some(end)
}

/// Returns the bytes of a request.
pub(crate) fn encode(request: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", request.len()).into_bytes();
    for word in request {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}
