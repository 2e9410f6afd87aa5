//! Conversion of the redis crate's parsed values into replies.

use redis::{PushKind, Value};

use crate::error::Refusal;
use crate::transport::reply::{Push, Reply};

/// Parses a value that arrived as the payload of a message. `None` if it is no valid RESP.
pub(crate) fn parse(bytes: &[u8]) -> Option<Reply> {
    redis::parse_redis_value(bytes).ok().map(reply)
}

/// Converts a value of the redis crate. Types without a counterpart become nil.
pub(super) fn reply(value: Value) -> Reply {
    match value {
        Value::Int(number) => Reply::Int(number),
        Value::Boolean(truth) => Reply::Int(i64::from(truth)),
        Value::BulkString(text) => Reply::Text(text),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => {
            Reply::Text(text.into_bytes())
        }
        Value::Okay => Reply::Text(b"OK".to_vec()),
        Value::Double(number) => Reply::Text(number.to_string().into_bytes()),
        Value::Array(parts) | Value::Set(parts) => {
            Reply::List(parts.into_iter().map(reply).collect())
        }
        Value::Map(pairs) => {
            Reply::List(pairs.into_iter().flat_map(|(k, v)| [reply(k), reply(v)]).collect())
        }
        Value::Attribute { data, .. } => reply(*data),
        Value::Push { kind, data } => Reply::Push(push(&kind, data)),
        Value::ServerError(error) => {
            Reply::Refused(Refusal::new(error.code(), error.details().unwrap_or_default()))
        }
        _ => Reply::Nil,
    }
}

/// Converts a push message. Kinds other than pub/sub become [`Push::Other`].
fn push(kind: &PushKind, data: Vec<Value>) -> Push {
    let mut texts = data.into_iter().map(|value| match value {
        Value::BulkString(text) => text,
        Value::SimpleString(text) => text.into_bytes(),
        _ => Vec::new(),
    });
    let mut next = || texts.next().unwrap_or_default();
    match kind {
        PushKind::Message | PushKind::SMessage => {
            Push::Message { channel: next(), payload: next() }
        }
        PushKind::Subscribe | PushKind::SSubscribe => Push::Subscribed { channel: next() },
        PushKind::Unsubscribe | PushKind::SUnsubscribe => Push::Unsubscribed { channel: next() },
        _ => Push::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_parsed_or_refused_and_never_trusted() {
        let list = Reply::List(vec![Reply::Text(b"a".to_vec())]);
        assert_eq!(parse(b"*1\r\n$1\r\na\r\n"), Some(list));
        let nested = "*1\r\n".repeat(10_000);
        let huge: [&[u8]; 3] =
            [b"*9223372036854775807\r\n", b"*99999999999\r\n:1\r\n", b"$99999999999\r\na\r\n"];
        for garbage in huge.into_iter().chain([&b""[..], b"*", b"*x\r\n", nested.as_bytes()]) {
            assert_eq!(parse(garbage), None, "{:?}", String::from_utf8_lossy(garbage));
        }
    }
}
