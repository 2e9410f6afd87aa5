//! Random owner fields, and random descriptions of locks.

use super::lock_state::{LockState, Side};
use super::pattern;
use crate::command::owner_field::OwnerField;
use crate::command::permit;
use crate::transport::connection::parse;
use crate::util::fuzz::fuzz;

const OWNERS: [&[u8]; 5] = [
    b"6ba7b810-9dad-81d1-80b4-00c04fd430c8:1700000000000000",
    b"6ba7b810-9dad-41d1-80b4-00c04fd430c8:94:write",
    b"6ba7b810-9dad-81d1-80b4-00c04fd430c8:1700000000000000:write:min_hold",
    b"mode",
    b"job-17",
];

const LOCKS: [&[u8]; 3] = [
    b"*4\r\n:1000\r\n*2\r\n$38\r\n6ba7b810-9dad-81d1-80b4-00c04fd430c8:1\r\n$1\r\n1\r\n*0\r\n$1\r\n7\r\n",
    b"*6\r\n:-1\r\n*4\r\n$4\r\nmode\r\n$4\r\nread\r\n$38\r\n6ba7b810-9dad-81d1-80b4-00c04fd430c8:1\r\n\
      $1\r\n2\r\n*2\r\n:-2\r\n:900\r\n$0\r\n\r\n*0\r\n*1\r\n$1\r\na\r\n",
    b"*8\r\n:-2\r\n*0\r\n*0\r\n$0\r\n\r\n*0\r\n*0\r\n*0\r\n*5\r\n$1\r\n3\r\n$1\r\n1\r\n$1\r\n4\r\n*2\r\n\
      $16\r\n0123456789abcdef\r\n$13\r\n1700000000000\r\n$13\r\n1699999999999\r\n",
];

#[test]
fn random_owner_fields_are_read_or_left() {
    fuzz(&OWNERS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Some(field) = OwnerField::parse(&text) {
            let begin = format!("{}:{}", &text[..36], field.number);
            // A number may have zeros in front.
            let digits = text[37..].trim_start_matches('0');
            let known = begin.trim_start_matches(&text[..37]).trim_start_matches('0');
            assert!(digits.starts_with(known), "{text:?} is read as {field:?}");
        }
        let _ = permit::read(bytes);
        let half = text.len() / 2;
        let at = (0..=half).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let _: bool = pattern::matches(&text[..at], &text[at..]);
    });
}

#[test]
fn random_descriptions_of_locks_are_read_or_refused() {
    fuzz(&LOCKS, |bytes| {
        let Some(reply) = parse(bytes) else { return };
        let Ok(Some(state)) = LockState::read(reply) else { return };
        let holders = state.holders(Side::Both);
        assert!(holders.iter().all(|holder| holder.record().is_none()));
        let _ = (state.is_lock(), state.kind(), state.queue(), state.token(), state.remaining());
        let _ = (state.leader_value().map(str::len), state.permits().map(|it| it.counts));
    });
}
