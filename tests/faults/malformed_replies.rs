//! Malformed replies: the client returns an error of the right kind, and never panics or hangs.
//!
//! No error and no log line contains a password.

use std::error::Error as _;
use std::io::{BufReader, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use leasehold::{Builder, Error, Guard};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::fake_server::*;
use crate::harness::faults::{BRISK, stress};
use crate::harness::resp::read_request;
use crate::harness::wait::holds_within;
use crate::harness::{Impostor, eventually};

// ---------------------------------------------------------------------------------
// Replies to HELLO.

/// Returns the error of `build` for a server that sends these bytes after `HELLO` and closes.
fn build_error(reply: &[u8]) -> Error {
    let reply = reply.to_vec();
    let impostor = Impostor::start(move |stream| {
        let _ = read_request(&mut BufReader::new(&stream));
        // Fails if the client has closed the connection after the first bytes.
        let _ = (&stream).write_all(&reply);
    });
    let url = format!("redis://user:{SECRET}@{}/3", impostor.addr());
    let built = run_in_time(move || hasty_settings(&url).build().map(drop));
    built.expect("the client returns").expect_err("the reply is malformed")
}

#[test]
fn a_server_that_is_not_redis_is_a_connection_error() {
    let _log_check = LogCheck::start();
    let replies: [&[u8]; 14] = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\x00\x00\x00\x00",
        b"\xff\xfe\xfd\r\n",
        b"\r\n\r\n\r\n",
        b":99999999999999999999\r\n",
        b":twelve\r\n",
        b"#maybe\r\n",
        b"*x\r\n",
        b"+\xff\xff\r\n",
        b">1\r\n:1\r\n",
        b"%4611686018427387904\r\n",
        b"=3\r\nabc\r\n",
    ];
    for reply in replies {
        let error = build_error(reply);
        let shown = String::from_utf8_lossy(reply);
        assert!(error.is_connection(), "{shown:?}: {error:?}");
        assert!(message_of(&error).contains("127.0.0.1:"), "{shown:?}: no server in {error}");
        assert!(error.source().is_some(), "{shown:?}: no cause in {error:?}");
    }
    let deep = "*1\r\n".repeat(100_000);
    assert!(build_error(deep.as_bytes()).is_connection(), "100,000 nested arrays");
}

#[test]
fn an_incomplete_reply_to_hello_is_an_error() {
    let _log_check = LogCheck::start();
    for at in 0..HELLO.len() {
        let error = build_error(&HELLO.as_bytes()[..at]);
        assert!(error.is_connection(), "closed after {at} bytes: {error:?}");
        message_of(&error);
    }
    let huge = ["$", "*", "%", "~", ">", "|", "=", "!"].map(|kind| format!("{kind}1073741824\r\n"));
    for start in
        huge.iter().map(String::as_str).chain(["", "+", "%2\r\n", "$5\r\nred", "*-5", "$-5"])
    {
        let fake = FakeServer::start();
        fake.reply_always("HELLO", start);
        let url = fake.url_with_password();
        let built = run_in_time(move || hasty_settings(&url).build().map(drop));
        let built = built.unwrap_or_else(|hang| panic!("silence after {start:?}: {hang}"));
        let error = built.expect_err("the reply is incomplete");
        assert!(error.is_timeout(), "silence after {start:?}: {error:?}");
        message_of(&error);
    }
}

#[test]
fn a_reply_to_hello_of_the_wrong_type_is_an_error() {
    let _log_check = LogCheck::start();
    let replies = [
        "+OK\r\n",
        ":5\r\n",
        "$-1\r\n",
        "_\r\n",
        "*0\r\n",
        "*-1\r\n",
        "*1\r\n$2\r\nid\r\n",
        "%0\r\n",
        "%1\r\n$2\r\nid\r\n$1\r\n7\r\n",
        "%1\r\n$4\r\nname\r\n:7\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(12345678901234567890\r\n",
        "=7\r\ntxt:abc\r\n",
        ">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n",
        "|1\r\n+a\r\n+b\r\n+OK\r\n",
    ];
    for reply in replies {
        let fake = FakeServer::start();
        fake.reply_always("HELLO", reply);
        let built = hasty_settings(&fake.url_with_password()).build();
        let error = built.expect_err("the reply is of the wrong type");
        assert!(is_server_fault(&error), "{reply:?}: {error:?}");
        message_of(&error);
    }
}

// ---------------------------------------------------------------------------------
// Replies without end.

/// A server that sends push messages again and again, until the client closes.
///
/// The messages begin in reply to `HELLO`, the first request, or in reply to the second one.
fn endless_server(in_reply_to_hello: bool) -> Impostor {
    Impostor::start(move |stream| {
        let mut requests = BufReader::new(&stream);
        if !in_reply_to_hello {
            let _ = read_request(&mut requests);
            let _ = (&stream).write_all(HELLO.as_bytes());
        }
        let _ = read_request(&mut requests);
        while (&stream).write_all(b">3\r\n+message\r\n+a\r\n+b\r\n").is_ok() {
            // Far shorter than the response time-out, so that the client never meets silence.
            thread::sleep(RESPONSE_TIMEOUT / 20);
        }
    })
}

/// `tests/api/exact_deadlines.rs` tests one reply whose bytes trickle in without end.
#[test]
fn push_messages_without_end_do_not_extend_the_response_timeout() {
    let _log_check = LogCheck::start();
    // Both at the same time, because each takes a response time-out.
    let calls = [true, false].map(|in_reply_to_hello| {
        let impostor = endless_server(in_reply_to_hello);
        let url = impostor.url();
        let ended = start_in_time(move || {
            let client = hasty_settings(&url).build()?;
            client.lock("a").try_lock().map(drop)
        });
        (in_reply_to_hello, impostor, ended)
    });
    for (in_reply_to_hello, _impostor, ended) in calls {
        let outcome = ended();
        let is_fault = matches!(&outcome, Ok(Err(error)) if is_server_fault(error));
        assert!(is_fault, "in reply to HELLO: {in_reply_to_hello}: {outcome:?}");
    }
}

// ---------------------------------------------------------------------------------
// Replies to scripts and queries.

/// Replies of types that no script returns.
const WRONG_TYPES: [&str; 12] = [
    "*0\r\n",
    "*2\r\n:1\r\n:2\r\n",
    "*1\r\n-ERR inside\r\n",
    "_\r\n",
    "$-1\r\n",
    "+OK\r\n",
    "$3\r\nabc\r\n",
    "%1\r\n+a\r\n+b\r\n",
    "~1\r\n:1\r\n",
    ",1.5\r\n",
    "(123456789012345678901234567890\r\n",
    "=7\r\ntxt:abc\r\n",
];

#[test]
fn a_reply_of_the_wrong_type_is_a_server_error() {
    let _log_check = LogCheck::start();
    for reply in WRONG_TYPES {
        let fake = FakeServer::start();
        let client = fake.client();
        let lock = limited(&client, "a");
        let fails = |outcome: Result<(), Error>, verb: &str| {
            let error = outcome.err().unwrap_or_else(|| panic!("{verb} accepts {reply:?}"));
            assert!(error.is_server(), "{verb}, {reply:?}: {error:?}");
            message_of(&error);
        };
        fake.reply_next(ACQUIRE, &[reply, reply]);
        fails(lock.try_lock().map(drop), "try_lock");
        fails(lock.lock().map(drop), "lock");
        fake.reply_next("PTTL", &[reply, reply, reply, ":1\r\n"]).reply_next(FORCE, &[reply]);
        fails(lock.is_locked().map(drop), "is_locked");
        fails(lock.remaining().map(drop), "remaining");
        fails(lock.force_unlock().map(drop), "force_unlock");
        fails(lock.force_unlock().map(drop), "force_unlock");

        // Each of the two acquires may have been granted, so both are released.
        eventually("both acquires are undone", || fake.requests(RELEASE) == 2);

        // The connection still pairs requests and replies correctly.
        let guard = lock.try_lock().expect("a good reply").expect("granted");
        fake.reply_next(RELEASE, &[reply]);
        fails(guard.unlock(), "unlock");
        let guard = lock.lock().expect("a good reply");
        fake.reply_next(RELEASE, &[reply]);
        drop(guard);
        eventually("the release is sent", || fake.requests(RELEASE) == 4);
        lock.lock().and_then(Guard::unlock).expect("good replies");
        client.close();
    }
}

/// Part of a reply arrives, followed by silence or by the end of the connection.
///
/// After a broken connection the request is repeated once over a second one. An acquire without a
/// complete reply is undone.
#[test]
fn an_incomplete_reply_is_no_reply() {
    let _log_check = LogCheck::start();
    for at in 0..GRANTED.len() {
        let part = &GRANTED[..at];
        let fake = FakeServer::start();
        let client = hasty_settings(&fake.url()).build().expect("a good reply to HELLO");
        let lock = limited(&client, "a");
        fake.reply_next(ACQUIRE, &[part]);
        let error = lock.try_lock().expect_err("silence after part of a reply");
        assert!(error.is_timeout(), "silence after {part:?}: {error:?}");
        eventually("the acquire is undone", || fake.requests(RELEASE) >= 1);
        lock.lock().and_then(Guard::unlock).expect("the next connection is good");

        let impostor = closing_after(part, 1);
        let client = hasty_settings(&impostor.url()).build().expect("a good reply to HELLO");
        let guard = limited(&client, "a").try_lock().expect("a reply on the second connection");
        assert!(guard.is_some(), "closed after {part:?}");

        let impostor = closing_after(part, usize::MAX);
        let client = hasty_settings(&impostor.url()).build().expect("a good reply to HELLO");
        let error = limited(&client, "a").lock().expect_err("no acquire gets a reply");
        assert!(error.is_connection(), "always closed after {part:?}: {error:?}");
        message_of(&error);
    }
}

/// A server that sends `part` in reply to the first `times` acquires, and closes the connection.
fn closing_after(part: &'static str, times: usize) -> Impostor {
    let remaining = AtomicUsize::new(times);
    Impostor::start(move |stream| {
        let mut requests = BufReader::new(&stream);
        while let Ok(Some(request)) = read_request(&mut requests) {
            let name = name_of(&request);
            let one_less = |remaining: usize| remaining.checked_sub(1);
            let closes = name == ACQUIRE
                && remaining.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
            let reply = if closes { part.to_owned() } else { default_reply(&name, &request) };
            let sent = (&stream).write_all(reply.as_bytes());
            if closes || sent.is_err() {
                return;
            }
        }
    })
}

#[test]
fn any_number_but_the_grant_is_a_refusal() {
    let _log_check = LogCheck::start();
    for number in [i64::MIN, -1_000_000, -3, -1, 0, 1, i64::MAX] {
        let fake = FakeServer::start();
        let client = fake.client();
        let lock = limited(&client, "a");
        let reply = format!(":{number}\r\n");
        fake.reply_next(ACQUIRE, &[&reply, &reply]).reply_next("PTTL", &[&reply, &reply]);
        assert!(lock.try_lock().expect("a number is a reply").is_none(), "{number}");
        // The call is refused, asks again at the poll interval, and is granted.
        let guard = lock.lock().unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(lock.remaining().is_ok() && lock.is_locked().is_ok(), "{number}");
        fake.reply_next(RELEASE, &[&reply]);
        let released = guard.unlock();
        assert_eq!(released.is_err(), number < 0, "{number}: {released:?}");
    }
}

/// With RESP3 a server may send messages before a reply. The next request must get its own reply.
#[test]
fn a_push_message_is_not_taken_for_a_reply() {
    let _log_check = LogCheck::start();
    let messages = [
        ">2\r\n+invalidate\r\n*1\r\n+a\r\n",
        ">3\r\n+message\r\n+a\r\n+b\r\n",
        ">0\r\n",
        ">1\r\n+odd\r\n",
    ];
    for message in messages {
        let fake = FakeServer::start();
        let client =
            hasty_settings(&fake.url()).pool_size(1).build().expect("a good reply to HELLO");
        fake.reply_next(ACQUIRE, &[&format!("{message}{GRANTED}"), HELD, HELD]);
        fake.reply_next("PTTL", &[":11111\r\n"]);
        let first = client.lock("first").try_lock();
        let remaining = client.lock("other").remaining().expect("a good reply");
        assert_eq!(remaining, Some(Duration::from_millis(11_111)), "{message:?}: another reply");
        let second = client.lock("second").try_lock().expect("a good reply");
        assert!(second.is_none(), "{message:?}: granted by the reply to the first acquire");
        let third = client.lock("third").try_lock().expect("a good reply");
        assert!(third.is_none(), "{message:?}: granted by the reply to another acquire");
        assert!(first.is_ok_and(|guard| guard.is_some()), "{message:?} is taken for a reply");
    }
    // A message without a reply.
    let fake = FakeServer::start();
    let client = hasty_settings(&fake.url()).build().expect("a good reply to HELLO");
    fake.reply_next(ACQUIRE, &[messages[0]]);
    let error = client.lock("a").try_lock().expect_err("no reply arrives");
    assert!(error.is_timeout(), "{error:?}");
}

/// A reply to a renewal lists the positions of lost leases. Some of these positions do not exist.
#[test]
fn the_watchdog_survives_malformed_replies() {
    let _log_check = LogCheck::start();
    let replies = [
        "*1\r\n:-9223372036854775808\r\n",
        "*1\r\n:9223372036854775807\r\n",
        "*1\r\n:0\r\n",
        "*3\r\n:7\r\n:8\r\n:9\r\n",
        "*2\r\n:1\r\n:1\r\n",
        "*1\r\n+one\r\n",
        "*1\r\n*1\r\n:1\r\n",
        "*1\r\n-ERR inside\r\n",
        ":1\r\n",
        "_\r\n",
        "-ERR it will not\r\n",
        "-NOSCRIPT no\r\n",
        "\r\n\r\n",
        "",
    ];
    // All at the same time, because each takes several leases.
    thread::scope(|scope| {
        for reply in replies {
            scope.spawn(move || reply_to_a_renewal(reply));
        }
    });
}

/// Asserts that renewals go on after this reply to the first renewal.
fn reply_to_a_renewal(reply: &str) {
    let fake = FakeServer::start();
    let renewals = RenewalCount::default();
    let count = Arc::clone(&renewals.0);
    let client = settings(&fake.url())
        .watchdog_timeout(BRISK)
        .events(renewals)
        .build()
        .expect("a good reply to HELLO");
    fake.reply_next(RENEW, &[reply]);
    let first = limited(&client, "first").lock().expect("granted");
    eventually("a renewal is requested", || fake.requests(RENEW) >= 1);
    let second = limited(&client, "second").lock().expect("granted");
    let before = count.load(Ordering::SeqCst);
    let renewed =
        holds_within(RESPONSE_TIMEOUT * 50, || count.load(Ordering::SeqCst) >= before + 3);
    assert!(renewed, "no renewal after {reply:?}");
    drop((first, second));
}

/// The waiter polls while its listener receives no message.
#[test]
fn a_waiter_survives_malformed_replies_to_its_listener() {
    let _log_check = LogCheck::start();
    let replies = [
        "-ERR unknown command 'SUBSCRIBE'\r\n",
        "-NOPERM no\r\n",
        "+OK\r\n",
        ":1\r\n",
        "HTTP/1.1 400 Bad Request\r\n",
        ">3\r\n+subscribe\r\n_\r\n:1\r\n",
        ">3\r\n:1\r\n:2\r\n:3\r\n",
        ">1\r\n+message\r\n",
        ">3\r\n+message\r\n_\r\n_\r\n",
        "",
    ];
    for reply in replies {
        let fake = FakeServer::start();
        fake.reply_always(SUBSCRIBE, reply).reply_always(ACQUIRE, HELD);
        let client = fake.client();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| limited(&client, "a").lock().map(drop));
            eventually("the listener subscribes", || fake.requests(SUBSCRIBE) > 0);
            fake.reply_always(ACQUIRE, GRANTED);
            let outcome = waiter.join().expect("no panic");
            outcome.unwrap_or_else(|error| panic!("{reply:?}: {error}"));
        });
    }
}

// ---------------------------------------------------------------------------------
// Random bytes.

/// Random bytes, many of which are parts of RESP replies.
fn random_bytes() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        4 => prop::sample::select(TOKENS.as_slice()).prop_map(|token| token.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => (prop::sample::select(b"$*%~>|=!:,(".as_slice()), any::<i64>())
            .prop_map(|(kind, count)| format!("{}{count}\r\n", char::from(kind)).into_bytes()),
    ];
    prop::collection::vec(token, 0..8).prop_map(|tokens| tokens.concat())
}

const TOKENS: [&str; 30] = [
    HELLO,
    GRANTED,
    HELD,
    "*0\r\n",
    "*1\r\n",
    "*2\r\n",
    "%1\r\n",
    "%2\r\n",
    "$2\r\nid\r\n",
    "$3\r\n",
    "abc\r\n",
    ":7\r\n",
    ":-1\r\n",
    "+OK\r\n",
    "-ERR no\r\n",
    "-\r\n",
    "-NOSCRIPT no\r\n",
    "-LOADING no\r\n",
    "_\r\n",
    "#t\r\n",
    ",inf\r\n",
    "(1\r\n",
    "=7\r\ntxt:abc\r\n",
    "!5\r\nERR x\r\n",
    "~1\r\n",
    ">3\r\n+message\r\n+a\r\n+b\r\n",
    ">3\r\n+subscribe\r\n+a\r\n:1\r\n",
    ">1\r\n",
    "|1\r\n",
    "\r\n",
];

/// A server that sends the same bytes in reply to every request, and then may close.
struct RandomServer {
    impostor: Impostor,
    reply: Arc<Mutex<Vec<u8>>>,
    closes: Arc<AtomicBool>,
}

impl RandomServer {
    /// `good_hello` exempts `HELLO`, which then gets a good reply and no close.
    fn start(good_hello: bool) -> RandomServer {
        let reply = Arc::new(Mutex::new(Vec::new()));
        let closes = Arc::new(AtomicBool::new(false));
        let impostor = Impostor::start({
            let (reply, closes) = (Arc::clone(&reply), Arc::clone(&closes));
            move |stream| {
                let mut requests = BufReader::new(&stream);
                while let Ok(Some(request)) = read_request(&mut requests) {
                    let exempt = good_hello && request.first().is_some_and(|word| word == "HELLO");
                    let reply = if exempt { HELLO.into() } else { locked(&reply).clone() };
                    let sent = (&stream).write_all(&reply);
                    if sent.is_err() || (!exempt && closes.load(Ordering::SeqCst)) {
                        return;
                    }
                }
            }
        });
        RandomServer { impostor, reply, closes }
    }

    fn try_all(&self, cases: u32, work: impl Fn(Builder) -> Result<(), Error>) {
        let cases = cases * u32::try_from(stress()).expect("a small factor");
        let config = Config { cases, failure_persistence: None, ..Config::default() };
        let timeout = Duration::from_millis(40);
        let tried =
            TestRunner::new(config).run(&(random_bytes(), any::<bool>()), |(bytes, closes)| {
                *locked(&self.reply) = bytes;
                self.closes.store(closes, Ordering::SeqCst);
                let url = format!("redis://user:{SECRET}@{}/", self.impostor.addr());
                let builder = hasty_settings(&url).response_timeout(timeout).pool_timeout(timeout);
                if let Err(error) = work(builder) {
                    message_of(&error);
                }
                Ok(())
            });
        tried.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn random_replies_to_hello_open_a_client_or_fail() {
    let _log_check = LogCheck::start();
    RandomServer::start(false).try_all(150, |builder| builder.build().map(|client| client.close()));
}

#[test]
fn random_replies_give_a_lock_or_an_error() {
    let _log_check = LogCheck::start();
    RandomServer::start(true).try_all(60, |builder| {
        let client = builder.build()?;
        let lock = client.lock("a").with_lease(Duration::from_millis(20));
        let outcome = lock.try_lock_for(Duration::from_millis(30)).map(drop);
        let queries = [lock.is_locked().map(drop), lock.remaining().map(drop)];
        client.close();
        queries.into_iter().chain([outcome]).collect()
    });
}
