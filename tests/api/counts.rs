//! Bad input to plain semaphores and latches, and settings that make their calls fail.

use crate::harness::Server;
use leasehold::{Client, Error, Result};
use std::time::Duration;

/// A client without a server: a call that needs no round trip fails with its own error.
fn offline() -> Client {
    let builder = Client::builder().single("redis://127.0.0.1:1/");
    builder.build_lazily().expect("it does not connect")
}

/// A client and its server.
fn online() -> (Server, Client) {
    let server = Server::start();
    let client = Client::builder().single(server.url()).build().expect("the server answers");
    (server, client)
}

#[track_caller]
fn assert_configuration<T: std::fmt::Debug>(outcome: Result<T>, text: &str) {
    let error = outcome.expect_err("the input is bad");
    assert!(error.is_configuration() && !error.is_retryable(), "{error}");
    assert_eq!(error.lock_name(), Some("a"), "{error}");
    assert!(error.to_string().contains(text), "{error}");
}

#[test]
fn zero_permits_are_refused_without_a_round_trip() {
    let stock = offline().plain_semaphore("a");
    let text = "must not be 0";
    assert_configuration(stock.try_set_permits(0), text);
    assert_configuration(stock.add_permits(0), text);
    assert_configuration(stock.release(0), text);
    assert_configuration(stock.acquire(0), text);
    assert_configuration(stock.try_acquire(0), text);
    assert_configuration(stock.try_acquire_for(0, Duration::MAX), text);
}

#[test]
fn a_call_for_more_permits_than_the_limit_is_refused_without_a_round_trip() {
    let stock = offline().plain_semaphore("a");
    for permits in [1001, u32::MAX] {
        assert_configuration(stock.acquire(permits), "at most 1000 permits");
        assert_configuration(stock.try_acquire(permits), "at most 1000 permits");
    }
    let (_server, client) = online();
    let stock = client.plain_semaphore("a");
    stock.release(1001).expect("the limit holds for calls that take");
    assert!(stock.try_acquire(1000).expect("the server answers"));
}

#[test]
fn a_latch_refuses_counts_that_redis_cannot_count_down() {
    let latch = offline().latch("a");
    for count in [0, 1 << 63, u64::MAX] {
        assert_configuration(latch.try_set_count(count), "from 1 to 2^63 - 1");
    }
    let (_server, client) = online();
    let latch = client.latch("a");
    assert!(latch.try_set_count(i64::MAX.unsigned_abs()).expect("the server answers"));
    latch.count_down().expect("the server answers");
    assert_eq!(latch.count().expect("the server answers"), i64::MAX.unsigned_abs() - 1);
    assert!(!latch.wait_for(Duration::ZERO).expect("the server answers"));
}

#[test]
fn a_key_of_another_type_is_refused_and_stays() {
    let (server, client) = online();
    let (stock, latch) = (client.plain_semaphore("a"), client.latch("a"));
    let wrong: [(&[&str], &str); 3] = [
        (&["HSET", "a", "field", "1"], "hash"),
        (&["SET", "a", "text"], "string"),
        (&["SET", "a", "2.5"], "fraction"),
    ];
    for (command, kind) in wrong {
        server.ask::<()>(&["DEL", "a"]);
        server.ask::<()>(command);
        let content = server.content("a");
        let outcomes: [(&str, Result<()>); 11] = [
            ("try_set_permits", stock.try_set_permits(1).map(drop)),
            ("acquire", stock.acquire(1)),
            ("try_acquire", stock.try_acquire(1).map(drop)),
            ("drain", stock.drain().map(drop)),
            ("available", stock.available().map(drop)),
            ("release", stock.release(1)),
            ("try_set_count", latch.try_set_count(1).map(drop)),
            ("count_down", latch.count_down()),
            ("delete", latch.delete().map(drop)),
            ("wait", latch.wait()),
            ("count", latch.count().map(drop)),
        ];
        for (verb, outcome) in outcomes {
            let error = outcome.expect_err("the key is no count");
            assert!(error.is_server() && !error.is_retryable(), "{verb} of a {kind}: {error}");
            assert_eq!(error.code(), Some("WRONGTYPE"), "{verb} of a {kind}: {error}");
        }
        assert_eq!(server.content("a"), content, "{kind}");
        let records = || server.keys().iter().any(|key| key.starts_with("leasehold_request"));
        assert!(!records(), "a refused request leaves a record: {:?}", server.keys());
    }
}

#[test]
fn names_and_settings_are_checked_as_those_of_locks() {
    let client = offline();
    for name in ["", "a}b", "a{}b"] {
        let outcomes = [
            client.plain_semaphore(name).acquire(1),
            client.latch(name).wait(),
            client.latch(name).count_down(),
        ];
        for outcome in outcomes {
            assert!(outcome.is_err_and(|error| error.is_invalid_name()), "{name:?}");
        }
        drop(client.latch(name).count_down_on_drop());
    }
    let label = |error: Error| error.is_configuration() && error.to_string().contains("label");
    assert!(client.plain_semaphore("a").with_label("").available().is_err_and(label));
    assert!(client.latch("a").with_label("a\tb").count().is_err_and(label));
    assert_eq!((client.latch("b").name(), client.plain_semaphore("c").name()), ("b", "c"));
    let debug = format!("{:?}", client.plain_semaphore("a").with_label("orders"));
    assert!(debug.starts_with("PlainSemaphore") && debug.contains("orders"), "{debug}");
}

/// Redisson's channel of such a latch is in another slot than its key.
#[test]
fn the_name_of_a_latch_in_a_cluster_has_no_braces() {
    let builder = Client::builder().cluster(["redis://127.0.0.1:1/"]);
    let client = builder.build_lazily().expect("it does not connect");
    let error = client.latch("a{b}c").wait().expect_err("the name has braces");
    assert!(error.is_invalid_name() && error.lock_name() == Some("a{b}c"), "{error}");
    let (_server, single) = online();
    single.latch("a{b}c").wait().expect("one server has no slots");
    let prefixed = Client::builder().cluster(["redis://127.0.0.1:1/"]).name_prefix("{p}:");
    let prefixed = prefixed.build_lazily().expect("it does not connect");
    assert!(prefixed.latch("a").count_down().is_err_and(|error| error.is_invalid_name()));
}

#[test]
fn handles_can_be_sent_and_shared() {
    fn check<T: Send + Sync + std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    check::<leasehold::PlainSemaphore>();
    check::<leasehold::CountDownLatch>();
    check::<leasehold::CountDownGuard>();
}

#[test]
fn names_have_the_prefix_of_the_client() {
    let server = Server::start();
    let client = Client::builder().single(server.url()).name_prefix("app:").announce(false);
    let client = client.build().expect("the server answers");
    assert!(client.plain_semaphore("a").try_set_permits(1).expect("the server answers"));
    assert!(client.latch("b").try_set_count(1).expect("the server answers"));
    assert_eq!(server.ask::<u32>(&["EXISTS", "app:a", "app:b"]), 2);
    assert_eq!(server.ask::<u32>(&["EXISTS", "leasehold_round:{app:b}"]), 1);
}
