//! Replies and messages of a server.

use crate::error::{Error, ErrorKind, Refusal, Result};

/// What a server answered to one command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    Int(i64),
    Text(Vec<u8>),
    Nil,
    List(Vec<Reply>),
    Push(Push),
    Refused(Refusal),
}

/// What a server says without having been asked.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Push {
    Message { channel: Vec<u8>, payload: Vec<u8> },
    Subscribed { channel: Vec<u8> },
    Unsubscribed { channel: Vec<u8> },
    Other,
}

impl Reply {
    pub(crate) fn into_int(self) -> Result<i64> {
        match self {
            Reply::Int(number) => Ok(number),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    pub(crate) fn into_ints(self) -> Result<Vec<i64>> {
        match self {
            Reply::List(parts) => parts.into_iter().map(Reply::into_int).collect(),
            Reply::Refused(refusal) => Err(Error::refused(&refusal)),
            other => Err(unexpected(&other)),
        }
    }

    /// The value of that name, in a list of names and values.
    pub(crate) fn field(&self, name: &str) -> Option<&Reply> {
        let Reply::List(parts) = self else { return None };
        parts.chunks_exact(2).find_map(|pair| match pair {
            [Reply::Text(key), value] if key == name.as_bytes() => Some(value),
            _ => None,
        })
    }

    pub(crate) fn text(&self) -> Option<&[u8]> {
        match self {
            Reply::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_refused(&self, code: &str) -> bool {
        matches!(self, Reply::Refused(refusal) if refusal.is(code))
    }
}

/// An answer of a shape that no server gives to our commands.
pub(crate) fn unexpected(reply: &Reply) -> Error {
    let shape = match reply {
        Reply::Int(_) => "a number",
        Reply::Text(_) => "a text",
        Reply::Nil => "nothing",
        Reply::List(_) => "a list",
        Reply::Push(_) => "a message",
        Reply::Refused(_) => "an error",
    };
    Error::new(ErrorKind::Server, format!("the server gave {shape} where it should not"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_a_wrong_shape_are_errors_of_the_server() {
        assert_eq!(Reply::Int(3).into_int().ok(), Some(3));
        assert!(Reply::Nil.into_int().is_err_and(|e| e.is_server()));
        assert!(Reply::Int(3).into_ints().is_err_and(|e| e.is_server()));
        let list = Reply::List(vec![Reply::Int(1), Reply::Int(2)]);
        assert_eq!(list.into_ints().ok(), Some(vec![1, 2]));
    }
}
