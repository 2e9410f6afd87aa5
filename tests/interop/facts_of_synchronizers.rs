//! Facts about Redisson's semaphores and latches on which leasehold's format relies.
//!
//! The library takes no part: the other side is a connection of the harness, with ids of permits
//! and payloads as the library makes them.

use crate::harness::faults::NEVER;
use crate::harness::{Cluster, Peer, eventually};
use crate::java::{Java, Ordered};
use crate::shared::{ID_FOR_JAVA, Redisson, latch_channel, permits_channel, with_java};

#[test]
fn a_payload_that_is_no_number_is_dropped_and_the_connection_stays() {
    let redisson = with_java!(Redisson::start());
    let waiting = redisson.waits("t", "acquire semaphore 1", "a");
    let listener = |it: &Peer| it.sub > 0;
    let ids = || redisson.server.clients().into_iter().filter(listener).map(|it| it.id);
    let before: Vec<_> = ids().collect();
    redisson.set("a", "1");
    let calls = redisson.calls();
    redisson.publish(&permits_channel("a"), "text");
    assert!(waiting.is_open());
    assert_eq!(ids().collect::<Vec<_>>(), before);
    assert_eq!(redisson.calls(), calls, "the waiter does not ask");
    redisson.publish(&permits_channel("a"), "1");
    assert_eq!(waiting.answer(), Ok("acquired".to_owned()));
}

#[test]
fn a_waiter_for_many_takes_the_message_of_a_waiter_for_one() {
    let redisson = with_java!(Redisson::start());
    // Each waiter asks before and after it subscribes, and then parks in the order of arrival.
    let parks = |thread: &str, order: &str| {
        let calls = redisson.calls();
        let waiting = redisson.waits(thread, order, "a");
        eventually("it asks twice", || redisson.calls() >= calls + 2);
        waiting
    };
    let (five, one) = (parks("t", "acquire semaphore 5"), parks("u", "acquire semaphore 1"));
    redisson.set("a", "1");
    let calls = redisson.calls();
    redisson.publish(&permits_channel("a"), "1");
    eventually("the first waiter asks", || redisson.calls() > calls);
    assert!(five.is_open() && one.is_open(), "a permit is free, and the other waiter sleeps");
    assert_eq!(redisson.calls(), calls + 1);
    // As many local permits as waiters.
    redisson.publish(&permits_channel("a"), "2");
    assert_eq!(one.answer(), Ok("acquired".to_owned()));
    assert!(five.is_open());
}

#[test]
fn ten_thousand_expired_permits_break_all_verbs_but_an_acquire() {
    let redisson = with_java!(Redisson::start());
    let fill = |name: &str, count: &str| {
        redisson.does(name, "set permits 1");
        let fill = "for i = 1, ARGV[1] do redis.call('zadd', KEYS[1], 1, i) end";
        redisson.server.ask::<()>(&["EVAL", fill, "1", &format!("{{{name}}}:timeout"), count]);
    };
    fill("thousands", "7000");
    let few = [("available permits", "7001"), ("acquired permits", "0")];
    redisson.answers("thousands", &few);
    fill("too-many", "10000");
    for verb in ["available", "acquired", "capacity"] {
        let error = redisson.fails("too-many", &format!("{verb} permits"));
        assert!(error.contains("too many results to unpack"), "{verb}: {error}");
    }
    // An acquire takes the free permit, and reclaims one of the 10,000.
    redisson.does("too-many", "try permits 1");
    assert_eq!(redisson.value("too-many"), Some(1));
}

#[test]
fn a_doubled_id_in_a_list_is_an_error_after_the_release() {
    let redisson = with_java!(Redisson::start());
    redisson.does("doubled", "set permits 3");
    let id = redisson.does("doubled", "acquire permits 1");
    let error = redisson.fails("doubled", &format!("releaseAll permits {id},{id}"));
    assert!(error.starts_with("RedisException"), "{error}");
    assert_eq!(redisson.value("doubled"), Some(3), "the permit is back, once");
}

#[test]
fn an_acquire_of_no_permits_waits_for_ever() {
    let redisson = with_java!(Redisson::start());
    let none =
        [("set permits 3", "true"), ("try permits 0", ""), ("acquire semaphore 0", "acquired")];
    redisson.answers("none", &none);
    let waiting = redisson.waits("none", "acquire permits 0", "none");
    redisson.publish(&permits_channel("none"), "3");
    assert!(waiting.is_open());
}

#[test]
fn permits_of_a_plain_semaphore_are_unknown_to_the_other_kind() {
    let redisson = with_java!(Redisson::start());
    redisson.answers(
        "both",
        &[
            ("set permits 3", "true"),
            ("acquire semaphore 1", "acquired"),
            ("capacity permits", "2"),
            ("acquired permits", "0"),
            ("resize permits 3", "resized"),
            ("release semaphore 1", "released"),
            ("capacity permits", "4"),
        ],
    );
}

#[test]
fn a_zero_after_a_delete_ends_the_waits_for_a_latch() {
    let redisson = with_java!(Redisson::start());
    redisson.does("deleted", "set latch 2");
    let waiting = redisson.waits("deleted", "await latch", "deleted");
    redisson.server.ask::<()>(&["DEL", "deleted"]);
    redisson.publish(&latch_channel("deleted"), "0");
    assert_eq!(waiting.answer(), Ok("open".to_owned()));
}

#[test]
fn a_delete_by_redisson_leaves_its_waiters_parked() {
    let redisson = with_java!(Redisson::start());
    redisson.does("parked", "set latch 2");
    let waiting = redisson.waits("waiter", "await latch", "parked");
    redisson.does("parked", "delete latch");
    assert!(waiting.is_open());
    redisson.publish(&latch_channel("parked"), "0");
    assert_eq!(waiting.answer(), Ok("open".to_owned()));
}

#[test]
fn a_latch_of_zero_is_open_and_its_end_is_silent() {
    let redisson = with_java!(Redisson::start());
    let zero = [("set latch 0", "true"), ("await latch", "open"), ("count latch", "0")];
    redisson.answers("zero", &zero);
    redisson.answers("zero", &[("set latch 2", "false")]);
    let mut connection = redisson.server.connection();
    let mut messages = connection.as_pubsub();
    messages.subscribe(latch_channel("zero")).expect("the server takes subscriptions");
    redisson.does("zero", "down latch");
    assert_eq!(redisson.value("zero"), None);
    redisson.publish(&latch_channel("zero"), "mark");
    let message = messages.get_message().and_then(|it| it.get_payload::<String>());
    assert_eq!(message, Ok("mark".to_owned()), "the count-down sends no message");
}

#[test]
fn a_negative_latch_is_open_and_a_count_down_deletes_it() {
    let redisson = with_java!(Redisson::start());
    redisson.set("negative", "-2");
    let open = [("await latch", "open"), ("count latch", "-2"), ("down latch", "counted")];
    redisson.answers("negative", &open);
    assert_eq!(redisson.value("negative"), None);
}

#[test]
fn a_zero_before_the_last_count_down_makes_waiters_ask_without_pause() {
    let redisson = with_java!(Redisson::start());
    redisson.does("a", "set latch 1");
    let waiting = redisson.waits("t", "await latch", "a");
    let reads = redisson.server.calls("get");
    redisson.publish(&latch_channel("a"), "0");
    eventually("a thousand questions", || redisson.server.calls("get") > reads + 1000);
    redisson.does("a", "down latch");
    assert_eq!(waiting.answer(), Ok("open".to_owned()));
}

/// Asserts whether a message with this payload wakes three waiters of both kinds.
fn wakes_waiters(payload: &str, expected: bool) {
    let redisson = with_java!(Redisson::start());
    for kind in ["semaphore", "permits"] {
        let name = format!("{kind}{payload}");
        redisson.set(&name, "0");
        let order = format!("acquire {kind} 1");
        let waits = |number| redisson.waits(&format!("{name}-{number}"), &order, &name);
        let waiting = [1, 2, 3].map(waits);
        redisson.set(&name, "3");
        redisson.publish(&permits_channel(&name), payload);
        if !expected {
            assert!(waiting.iter().all(Ordered::is_open), "{kind}");
            redisson.publish(&permits_channel(&name), "3");
        }
        for waiting in waiting {
            waiting.answer().expect("a permit");
        }
        assert_eq!(redisson.value(&name), Some(0));
    }
}

#[test]
fn the_total_wakes_all_waiters_that_it_suffices_for() {
    wakes_waiters("3", true);
}

#[test]
fn the_greatest_total_wakes_all_waiters() {
    wakes_waiters("2147483647", true);
}

#[test]
fn a_total_beyond_32_bits_wakes_nobody() {
    wakes_waiters("2147483648", false);
}

#[test]
fn a_total_of_zero_or_less_wakes_nobody() {
    wakes_waiters("0", false);
    wakes_waiters("-1", false);
}

#[test]
fn ids_of_ours_count_and_can_be_renewed_and_released() {
    let redisson = with_java!(Redisson::start());
    redisson.does("ids", "set permits 2");
    redisson.add_ours("ids");
    let counts = [("capacity permits", "3"), ("acquired permits", "1"), ("available permits", "2")];
    redisson.answers("ids", &counts);
    assert_eq!(redisson.does("ids", &format!("left permits {ID_FOR_JAVA}")), "-1");
    assert_eq!(redisson.does("ids", &format!("lease permits {ID_FOR_JAVA} 600000")), "true");
    let left = redisson.does("ids", &format!("left permits {ID_FOR_JAVA}"));
    assert!((1..=600_000).contains(&left.parse::<u64>().expect("a number")), "{left}");
    redisson.does("ids", &format!("release permits {ID_FOR_JAVA}"));
    assert_eq!(redisson.value("ids"), Some(3));
}

#[test]
fn a_latch_with_a_hash_tag_fails_in_a_cluster() {
    let cluster = Cluster::start(3, 0);
    let java = with_java!(Java::start_in(&cluster, NEVER));
    for order in ["set latch a{b}c 1", "down latch a{b}c", "delete latch a{b}c"] {
        let error = java.order("t", order).answer().expect_err("Redisson throws");
        assert!(error.contains("CROSSSLOT"), "{order}: {error}");
    }
    // A brace without its counterpart is no tag.
    for name in ["a{b", "a"] {
        assert_eq!(java.does("t", &format!("set latch {name} 1")), "true");
        java.does("t", &format!("down latch {name}"));
        java.does("t", &format!("await latch {name}"));
    }
}

#[test]
fn a_capacity_wakes_a_waiter_for_a_missing_key() {
    let redisson = with_java!(Redisson::start());
    for kind in ["semaphore", "permits"] {
        let name = format!("missing-{kind}");
        let waiting = redisson.waits(&name, &format!("acquire {kind} 1"), &name);
        // As an acquire with `with_permits(3)` does.
        redisson.set(&name, "2");
        redisson.add_ours(&name);
        redisson.publish(&permits_channel(&name), "2");
        waiting.answer().expect("a permit");
        assert_eq!(redisson.value(&name), Some(1));
    }
}
