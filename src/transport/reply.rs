//! Replies of a server, and the messages that it pushes to subscribers.

use crate::error::{Error, ErrorKind, Refusal, Result};

/// A server's reply to one command, or a pushed message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Int(i64),
    Text(Vec<u8>),
    Nil,
    List(Vec<Reply>),
    Push(Push),
    Refused(Refusal),
}

/// A message that a server sends without a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Push {
    Message { channel: Vec<u8>, payload: Vec<u8> },
    Subscribed { channel: Vec<u8> },
    Unsubscribed { channel: Vec<u8> },
    Other,
}

impl Reply {
    /// Returns the number of an integer reply. A refusal or any other shape is an error.
    pub(crate) fn into_int(self) -> Result<i64> {
        match self {
            Reply::Int(number) => Ok(number),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the bytes of a text reply. A refusal or any other shape is an error.
    pub(crate) fn into_text(self) -> Result<Vec<u8>> {
        match self {
            Reply::Text(text) => Ok(text),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the parts of a list. A refusal or any other shape is an error.
    pub(crate) fn into_list(self) -> Result<Vec<Reply>> {
        match self {
            Reply::List(parts) => Ok(parts),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// Returns the numbers of a list of integers. A refusal or any other shape is an error.
    pub(crate) fn into_ints(self) -> Result<Vec<i64>> {
        self.into_list()?.into_iter().map(Reply::into_int).collect()
    }

    /// Returns the bytes of a list of texts. A refusal or any other shape is an error.
    pub(crate) fn into_texts(self) -> Result<Vec<Vec<u8>>> {
        self.into_list()?.into_iter().map(Reply::into_text).collect()
    }

    /// Returns the value of `name` in a list of alternating names and values.
    pub(crate) fn field(&self, name: &str) -> Option<&Reply> {
        let Reply::List(parts) = self else { return None };
        parts.chunks_exact(2).find_map(|pair| match pair {
            [Reply::Text(key), value] if key == name.as_bytes() => Some(value),
            _ => None,
        })
    }

    /// Returns the bytes of a text reply.
    pub(crate) fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns whether the reply is a refusal with this error code.
    pub(crate) fn is_refused(&self, code: &str) -> bool {
        matches!(self, Reply::Refused(refusal) if refusal.is(code))
    }
}

/// Returns the error for a reply of a shape that its command never has.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    let shape = shape(reply);
    Error::new(ErrorKind::Server, format!("unexpected reply from the server: {shape}"))
}

/// Returns the error for a reply of the wrong shape to this command.
pub(crate) fn unexpected_to(command: &str, reply: &Reply) -> Error {
    let shape = shape(reply);
    let message = format!("unexpected reply from the server to {command}: {shape}");
    Error::new(ErrorKind::Server, message)
}

fn shape(reply: &Reply) -> &'static str {
    match reply {
        Reply::Int(_) => "an integer",
        Reply::Text(_) => "a string",
        Reply::Nil => "nil",
        Reply::List(_) => "an array",
        Reply::Push(_) => "a pushed message",
        Reply::Refused(_) => "an error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_of_the_wrong_shape_is_a_server_error() {
        assert_eq!(Reply::Int(3).into_int().ok(), Some(3));
        assert!(Reply::Nil.into_int().is_err_and(|e| e.is_server()));
        assert!(Reply::Int(3).into_ints().is_err_and(|e| e.is_server()));
        let list = Reply::List(vec![Reply::Int(1), Reply::Int(2)]);
        assert_eq!(list.into_ints().ok(), Some(vec![1, 2]));
    }
}
