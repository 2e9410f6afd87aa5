//! Tests of errors, their text and their documentation.

use super::*;
use std::error::Error as _;
use std::io;

fn refusal(code: &str) -> Error {
    Error::refused(&Refusal::new(code, "something"))
}

#[test]
fn the_source_is_kept_and_not_part_of_the_text() {
    let io = std::io::Error::new(std::io::ErrorKind::TimedOut, "no bytes");
    let error = Error::connection("no answer").with_source(io);
    assert_eq!(error.to_string(), "no answer");
    assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("no bytes"));
    assert!(error.is_connection() && error.is_transient());
}

#[test]
fn the_causes_of_the_system_are_shown_once() {
    for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::HostUnreachable] {
        let cause = io::Error::from(kind);
        let error = Error::connection("no connection").with_source(io::Error::from(kind));
        assert_eq!(error.with_causes().to_string(), format!("no connection: {cause}"));
        // An `io::Error` with an error inside has its text.
        let nested = Error::connection("no round").with_source(io::Error::other(error.clone()));
        assert_eq!(nested.with_causes().to_string(), format!("no round: no connection: {cause}"));
    }
}

#[test]
fn a_refusal_has_the_text_of_the_server_and_advice() {
    let error = refusal("NOPERM");
    assert_eq!(error.kind(), ErrorKind::Server);
    assert!(error.to_string().contains("NOPERM something"));
    assert!(error.to_string().contains("docs/permissions.md"));
}

#[test]
fn the_wrapping_of_an_error_inside_a_script_is_removed() {
    let wrapped = "Error running script (call to f_0a): @user_script:9: @user_script: 9: \
                   -OOM command not allowed when used memory > 'maxmemory'.";
    let refusal = Refusal::new("ERR", wrapped);
    assert_eq!(refusal.code, "OOM");
    assert_eq!(refusal.detail, "command not allowed when used memory > 'maxmemory'.");
    let answered = "Error running script (call to f_0a): @user_script:14: \
                    WRONGTYPE Operation against a key";
    let refusal = Refusal::new("ERR", answered);
    assert_eq!((&*refusal.code, &*refusal.detail), ("WRONGTYPE", "Operation against a key"));
    let joined = "Error running script: @user_script: 24: -READONLY You can't write";
    assert_eq!(Refusal::new("ERR", joined).code, "READONLY");
    let uncoded = "Error running script (call to f_0a): @user_script:9: @user_script: 9: \
                   The user executing the script can't run this command";
    assert_eq!(Refusal::new("ERR", uncoded).detail, uncoded);
    let of_redis_7 = "The user executing the script can't run this command or subcommand script: \
                      0a, on @user_script:86.";
    let of_redis_8 = "ACL failure in script: User w has no permissions to run the 'hget' command";
    for uncoded in [uncoded, of_redis_7, of_redis_8] {
        assert_eq!(Refusal::new("ERR", uncoded).code, "NOPERM");
    }
    assert_eq!(Refusal::new("ERR", "a: -b c").detail, "a: -b c");
}

#[test]
fn redirects_are_parsed() {
    let redirect = |code, detail| Refusal::new(code, detail).redirect();
    let node = |host: Option<&str>| NodeAddress { host: host.map(str::to_owned), port: 6381 };
    let moved = Some(Redirect::Moved(3999, node(Some("127.0.0.1"))));
    assert_eq!(redirect("MOVED", "3999 127.0.0.1:6381"), moved);
    assert_eq!(redirect("MOVED", "3999 ::1:6381"), Some(Redirect::Moved(3999, node(Some("::1")))));
    assert_eq!(redirect("ASK", "1 :6381"), Some(Redirect::Ask(node(None))));
    assert_eq!(redirect("ASK", "1 ?:6381 more"), Some(Redirect::Ask(node(None))));
    assert_eq!(redirect("CLUSTERDOWN", "Hash slot not served"), Some(Redirect::RetryLater));
    for (code, detail) in [("MOVED", "nothing"), ("MOVED", "1 host"), ("ERR", "unknown")] {
        assert_eq!(redirect(code, detail), None, "{code} {detail}");
    }
}

#[test]
fn a_refusal_because_of_keys_is_told_from_a_temporary_one() {
    for code in ["CROSSSLOT", "TRYAGAIN", "WRONGTYPE", "NOPERM", "MOVED", "ERR"] {
        assert!(refusal(code).is_caused_by_keys(), "{code}");
    }
    for code in ["LOADING", "BUSY", "READONLY", "CLUSTERDOWN", "OOM", "NOAUTH", "NOSCRIPT"] {
        assert!(!refusal(code).is_caused_by_keys(), "{code}");
    }
}

#[test]
fn a_refusal_is_final_if_neither_time_nor_an_operator_ends_it() {
    for code in ["WRONGTYPE", "NOPERM", "ERR"] {
        assert!(refusal(code).is_final(), "{code}");
    }
    for code in ["LOADING", "MISCONF", "NOREPLICAS", "NOAUTH", "WRONGPASS"] {
        assert!(!refusal(code).is_final(), "{code}");
    }
}

#[test]
fn a_refusal_is_retryable_if_it_can_end_without_a_change_to_the_program() {
    let docs: String = DOCS.lines().map(|line| format!("{}\n", line.trim())).collect();
    let (_, rest) = docs
        .split_once("A refusal by the server is retryable if")
        .expect("the docs list the retryable codes");
    let (named, others) = rest.split_once("Others").expect("the docs list other codes");
    let (others, _) = others.split_once("The text").expect("the next paragraph");
    for (text, retryable) in [(named, true), (others, false)] {
        let codes: Vec<_> = text.split('`').skip(1).step_by(2).collect();
        assert!(codes.len() > 1, "{text}");
        for code in codes {
            assert_eq!(refusal(code).is_retryable(), retryable, "{code}");
            assert_eq!(refusal(code).code(), Some(code));
            let made = Error::new(ErrorKind::Server, "").with_code(code);
            assert_eq!(made.is_retryable(), retryable, "{code}");
        }
    }
}

const DOCS: &str = include_str!("mod.rs");

#[test]
fn the_documented_table_has_a_row_for_each_kind() {
    use ErrorKind::*;
    let kinds = [
        (Lost, "is_lost"),
        (NotHeld, "is_not_held"),
        (Cancelled, "is_cancelled"),
        (Closed, "is_closed"),
        (Connection, "is_connection"),
        (Timeout, "is_timeout"),
        (PoolTimeout, "is_pool_timeout"),
        (NotReplicated, "is_not_replicated"),
        (InvalidName, "is_invalid_name"),
        (Deadlock, "is_deadlock"),
        (Configuration, "is_configuration"),
    ];
    for (kind, predicate) in kinds {
        let begin = format!("/// | [`{predicate}`](Error::{predicate}) | ");
        let row = DOCS.lines().find_map(|line| line.strip_prefix(&begin));
        let row = row.unwrap_or_else(|| panic!("no row for {kind:?}"));
        let stated = row.split(" | ").nth(1);
        let retryable = if Error::new(kind, "").is_retryable() { "yes" } else { "no" };
        assert_eq!(stated, Some(retryable), "{kind:?}");
    }
}

#[test]
fn the_text_names_lock_server_and_reason_once_and_keeps_the_first() {
    let error = Error::lost(LostReason::Gone, "the lock was lost");
    assert_eq!(error.to_string(), "the lock was lost: the server no longer has the hold");
    let error = error.with_lock_name("a").with_server("h:1");
    let text = "the lock was lost: the server no longer has the hold [lock \"a\", server h:1]";
    assert_eq!(error.to_string(), text);
    assert_eq!(error.clone().with_lock_name("b").with_server("h:2"), error);
    let long = Error::closed().with_lock_name("x".repeat(1 << 20));
    assert_eq!(long.lock_name().map(str::len), Some(1 << 20));
    assert!(long.to_string().len() < 400, "the text is shortened");
}

#[test]
fn naming_an_error_does_not_change_its_clones() {
    let error = Error::timeout();
    let named = error.clone().with_lock_name("a");
    assert_eq!((error.lock_name(), named.lock_name()), (None, Some("a")));
    assert_ne!(error, named);
    assert!(error.with_code("ERR").is_retryable(), "a code matters only for refusals");
}

#[test]
fn an_io_error_has_a_matching_kind_and_returns_the_error() {
    let io = |error: &Error| io::Error::from(error.clone());
    assert_eq!(io(&Error::timeout()).kind(), io::ErrorKind::TimedOut);
    assert_eq!(io(&refusal("NOPERM")).kind(), io::ErrorKind::PermissionDenied);
    assert_eq!(io(&Error::closed()).kind(), io::ErrorKind::NotConnected);
    let back = io(&refusal("OOM")).downcast::<Error>().expect("the error is inside");
    assert_eq!(back, refusal("OOM"));
}

#[test]
fn a_waiting_call_survives_what_can_end_without_a_change_to_the_program() {
    let retryable = ["LOADING", "READONLY", "CLUSTERDOWN", "OOM", "MISCONF", "NOREPLICAS"];
    for error in retryable.map(refusal).into_iter().chain([Error::timeout()]) {
        assert!(error.is_outage(), "{error}");
    }
    for error in ["NOAUTH", "NOPERM", "WRONGTYPE", "ERR"].map(refusal) {
        assert!(!error.is_outage(), "{error}");
    }
    assert!(!Error::new(ErrorKind::NotReplicated, "").is_outage(), "the lock was granted");
    assert!(refusal("UNBLOCKED").unacknowledged().is_outage());
    assert!(!refusal("NOPERM").unacknowledged().is_outage());
}

#[test]
fn a_refusal_is_transient_only_if_it_ends_by_itself() {
    for code in ["LOADING", "BUSY", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN"] {
        assert!(refusal(code).is_transient(), "{code}");
    }
    for code in ["OOM", "WRONGTYPE", "NOAUTH", "NOPERM", "ERR", "MISCONF"] {
        assert!(!refusal(code).is_transient(), "{code}");
    }
}

#[test]
fn a_refusal_has_nothing_that_a_terminal_obeys() {
    let error = Error::refused(&Refusal::new("ER\u{7}R", "a\u{1b}[2J\rb"));
    assert!(!format!("{error} {error:?}").contains(char::is_control), "{error:?}");
    assert!(error.to_string().contains(r"a\u{1b}[2J\rb"), "{error}");
}
