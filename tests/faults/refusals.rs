//! Refusals: the error names the reason and a remedy; temporary refusals do not end a wait.
//!
//! Real servers send the refusals that they can be made to send, a fake server the rest. No error
//! and no log line contains a password.

use std::fs;
use std::thread;
use std::time::Duration;

use leasehold::{CancelToken, Client, Error, Guard};

use super::fake_server::*;
use crate::harness::faults::channel_of;
use crate::harness::{
    CancelOnDrop, Direction, Proxy, Server, eventually, eventually_some, in_time,
};

// ---------------------------------------------------------------------------------
// Refusals of HELLO.

/// Old servers and some proxies repeat the arguments of unknown commands, here the password.
#[test]
fn a_server_without_the_command_hello_is_too_old() {
    let _log_check = LogCheck::start();
    let redis_5 = format!(
        "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `user`, \
         `{SECRET}`, \r\n"
    );
    for reply in [
        "-ERR unknown command 'HELLO'\r\n",
        "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n",
        "-NOPROTO unsupported protocol version\r\n",
        &redis_5,
    ] {
        let fake = FakeServer::start();
        fake.reply_always("HELLO", reply);
        let built = settings(&fake.url_with_password()).build();
        assert_refused(&built.expect_err("HELLO is unknown"), "RESP3", "6.2");
    }
}

#[test]
fn the_error_of_a_real_server_without_hello_contains_no_password() {
    let _log_check = LogCheck::start();
    let server = Server::with(|config| config.line("rename-command HELLO \"\""));
    let url = server.login_url("user", SECRET);
    assert_refused(&settings(&url).build().expect_err("HELLO is unknown"), "RESP3", "6.2");
}

#[test]
fn a_refusal_of_hello_is_reported_with_advice() {
    let _log_check = LogCheck::start();
    let refusals = [
        ("LOADING Redis is loading the dataset in memory", "try again"),
        ("NOAUTH HELLO must be called with the client already authenticated", "URL"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "URL"),
        ("MASTERDOWN Link with MASTER is down", "try again"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL"),
        ("NOPERM this user has no permissions to run the 'hello' command", "docs/permissions.md"),
        ("ERR max number of clients reached", ""),
        ("DENIED Redis is running in protected mode because protected mode is enabled", ""),
    ];
    for (refusal, advice) in refusals {
        let fake = FakeServer::start();
        fake.reply_always("HELLO", &format!("-{refusal}\r\n"));
        let error = settings(&fake.url_with_password()).build().expect_err("refused");
        assert_refused(&error, refusal, advice);
    }
}

#[test]
fn a_wrong_password_user_or_database_is_reported() {
    let _log_check = LogCheck::start();
    let server = Server::with(|config| config.password("the-right-one"));
    let refused = |url: &str| settings(url).build().expect_err("the login is wrong");
    assert_refused(&refused(&server.url()), "NOAUTH", "URL");
    assert_refused(&refused(&server.login_url("default", SECRET)), "WRONGPASS", "URL");
    assert_refused(&refused(&server.login_url("nobody", SECRET)), "WRONGPASS", "URL");
    let url = server.login_url("", "the-right-one");
    settings(&url).build().expect("the password is right").close();
    let built = settings(&format!("{url}4711")).build();
    assert_refused(&built.expect_err("the database does not exist"), "DB index", "");
}

// ---------------------------------------------------------------------------------
// Temporary and permanent refusals.

/// Refusals that do not end a wait, and the advice in their errors.
const TEMPORARY: [(&str, &str); 9] = [
    ("LOADING Redis is loading the dataset in memory", "try again"),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "SCRIPT KILL"),
    ("READONLY You can't write against a read only replica.", "replica"),
    ("MASTERDOWN Link with MASTER is down", "try again"),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "try again"),
    ("CLUSTERDOWN The cluster is down", "try again"),
    ("OOM command not allowed when used memory > 'maxmemory'.", "maxmemory"),
    ("MISCONF Redis is configured to save RDB snapshots, but", "log"),
    ("NOREPLICAS Not enough good replicas to write.", "replicas"),
];

/// Refusals that end a wait, and the advice in their errors.
const PERMANENT: [(&str, &str); 6] = [
    ("WRONGTYPE Operation against a key holding the wrong kind of value", "of another kind"),
    ("NOAUTH Authentication required.", "password"),
    ("NOPERM this user has no permissions to run the 'evalsha' command", "docs/permissions.md"),
    ("CROSSSLOT Keys in request don't hash to the same slot", "slot"),
    ("ERR something else", ""),
    ("ODD", ""),
];

/// Returns whether an administrator may end this permanent refusal while a lease lasts.
///
/// A release is then repeated, even without a waiting caller.
fn may_end_within_a_lease(refusal: &str) -> bool {
    refusal.starts_with("NOAUTH")
}

/// Returns the refusal as a RESP error.
fn line(refusal: &str) -> String {
    format!("-{refusal}\r\n")
}

/// The script stays unknown although the client loads it: the client gives up soon.
#[test]
fn a_server_that_never_knows_a_script_is_an_error() {
    let _log_check = LogCheck::start();
    let fake = FakeServer::start();
    fake.reply_always(ACQUIRE, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    let client = fake.client();
    let error = run_in_time(move || client.lock("a").lock().map(drop));
    let error = error.expect("the call returns").expect_err("the script is unknown");
    assert!(fake.requests(ACQUIRE) <= 10, "{} requests", fake.requests(ACQUIRE));
    assert!(fake.requests("SCRIPT") >= 1, "the script is loaded");
    assert_refused(&error, "NOSCRIPT", "(");
}

#[test]
fn a_refused_first_request_fails_every_verb() {
    let _log_check = LogCheck::start();
    for (refusal, advice) in TEMPORARY.into_iter().chain(PERMANENT) {
        let fake = FakeServer::start();
        let line = line(refusal);
        fake.reply_always(ACQUIRE, &line).reply_always("PTTL", &line).reply_always(FORCE, &line);
        let client = fake.client();
        let lock = limited(&client, "a");
        let refused = |outcome: Result<(), Error>| {
            assert_refused(&outcome.expect_err(refusal), refusal, advice);
        };
        refused(lock.lock().map(drop));
        refused(lock.try_lock().map(drop));
        refused(lock.try_lock_for(Duration::MAX).map(drop));
        refused(lock.lock_owned().map(drop));
        refused(lock.is_locked().map(drop));
        refused(lock.force_unlock().map(drop));
        fake.reply_always(ACQUIRE, GRANTED);
        let guard = lock.lock().unwrap_or_else(|error| panic!("{refusal}: {error}"));
        fake.reply_always(RELEASE, &line).reply_always(RENEW, &line);
        refused(guard.extend(Duration::from_secs(60)));
        if refusal.starts_with("WRONGTYPE") {
            assert!(guard.unlock().is_err_and(|error| error.is_lost()), "overwritten")
        } else {
            refused(guard.unlock())
        }
    }
}

#[test]
fn a_temporary_refusal_does_not_end_a_wait() {
    let _log_check = LogCheck::start();
    for (refusal, _) in TEMPORARY {
        let fake = FakeServer::start();
        let line = line(refusal);
        fake.reply_next(ACQUIRE, &[HELD, &line, &line, &line, HELD, &line, GRANTED]);
        let client = fake.client();
        let guard =
            limited(&client, "a").lock().unwrap_or_else(|error| panic!("{refusal}: {error}"));
        assert!(fake.requests(ACQUIRE) >= 7, "{refusal}");
        guard.unlock().expect("released");

        // At the deadline the last refusal is the error: whether the lock is held is unknown. On a
        // busy machine the last request may get no answer before the deadline.
        let error = eventually_some("the last request is answered", || {
            fake.reply_next(ACQUIRE, &[HELD]).reply_always(ACQUIRE, &line);
            let waited = client.lock("a").try_lock_for(Duration::from_millis(700));
            waited.err().filter(|error| !error.is_timeout())
        });
        assert_refused(&error, refusal, "");
    }
}

#[test]
fn a_permanent_refusal_ends_a_wait_at_once() {
    let _log_check = LogCheck::start();
    for (refusal, advice) in PERMANENT {
        let fake = FakeServer::start();
        let client = fake.client();
        fake.reply_next(ACQUIRE, &[HELD, HELD, &line(refusal)]);
        let error = limited(&client, "a").lock().expect_err(refusal);
        assert_refused(&error, refusal, advice);
        assert_eq!(fake.requests(ACQUIRE), 3, "{refusal}: repeated");
    }
}

/// A release with a permanent refusal is sent once, any other until it succeeds.
///
/// The rule also holds for an `unlock` that has returned the refusal to its caller.
#[test]
fn a_refused_release_is_repeated_if_it_may_succeed_later() {
    let _log_check = LogCheck::start();
    let may_end = PERMANENT.into_iter().filter(|(refusal, _)| may_end_within_a_lease(refusal));
    for (refusal, advice) in TEMPORARY.into_iter().chain(may_end) {
        let fake = FakeServer::start();
        let client = fake.client();
        let line = line(refusal);
        let lock = limited(&client, "a");
        let guard = lock.lock().expect("granted");
        fake.reply_next(RELEASE, &[&line, &line]);
        let error = guard.unlock().expect_err(refusal);
        assert_refused(&error, refusal, advice);
        eventually("the release is sent until it succeeds", || fake.requests(RELEASE) == 3);

        let guard = lock.lock().expect("granted");
        fake.reply_next(RELEASE, &[&line, &line]);
        drop(guard);
        eventually("the release is sent until it succeeds", || fake.requests(RELEASE) == 6);
        client.close();
        assert_eq!(fake.requests(RELEASE), 6, "{refusal}");
    }
    for (refusal, _) in PERMANENT.into_iter().filter(|(it, _)| !may_end_within_a_lease(it)) {
        let fake = FakeServer::start();
        let client = fake.client();
        let guard = limited(&client, "a").lock().expect("granted");
        fake.reply_next(RELEASE, &[&line(refusal)]);
        drop(guard);
        // Blocks until no background request is left.
        client.close();
        assert_eq!(fake.requests(RELEASE), 1, "{refusal}");
    }
}

/// The same two rules for a connection that a waiter has to open again.
#[test]
fn a_refusal_of_hello_ends_a_wait_only_if_it_is_permanent() {
    let _log_check = LogCheck::start();
    let fake = FakeServer::start();
    let client = fake.client();
    let loading = line(TEMPORARY[0].0);
    fake.reply_next(ACQUIRE, &[HELD]).close_next(ACQUIRE);
    fake.reply_next("HELLO", &[&loading, &loading, &loading, &loading, &loading, &loading]);
    limited(&client, "a").lock().and_then(Guard::unlock).expect("the server has loaded");

    fake.reply_next(ACQUIRE, &[HELD]).close_next(ACQUIRE);
    fake.reply_always("HELLO", &line("NOAUTH Log in."));
    let error = limited(&client, "a").lock().expect_err("the server demands a password");
    assert_refused(&error, "NOAUTH", "URL");
}

// ---------------------------------------------------------------------------------
// Refusals of real servers.

fn open(server: &Server) -> Client {
    settings(&server.url()).build().expect("the server answers")
}

/// Returns the outcome of a wait for a held lock, during which `act` changes the server.
///
/// `act` gets a function that frees the lock.
#[track_caller]
fn outcome_of_a_wait(
    server: &Server,
    url: &str,
    name: &str,
    act: impl FnOnce(&mut dyn FnMut()),
) -> Result<(), Error> {
    server.ask::<()>(&["HSET", name, "another", "1"]);
    let client = settings(url).build().expect("the server answers");
    let mut admin = server.connection();
    thread::scope(|scope| {
        let token = CancelOnDrop(CancelToken::new());
        let lock = client.lock(name).with_cancel(&token.0);
        let waiter = scope.spawn(move || lock.lock().and_then(Guard::unlock));
        eventually("the waiter is subscribed", || server.numsub(&channel_of(name)) == 1);
        act(&mut || {
            let freed = redis::cmd("DEL").arg(name).query::<()>(&mut admin);
            freed.expect("the lock can be deleted");
        });
        in_time("the wait ends", waiter)
    })
}

/// Returns how often the server has refused a command with this code.
fn refusals(server: &Server, code: &str) -> u64 {
    let errors = server.info("errorstats");
    let count = errors.get(&format!("errorstat_{code}")).and_then(|it| it.strip_prefix("count="));
    count.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn a_key_of_another_type_is_refused() {
    let _log_check = LogCheck::start();
    let server = Server::start();
    let client = open(&server);
    server.ask::<()>(&["SET", "a", "a text"]);
    let lock = limited(&client, "a");
    assert_refused(&lock.lock().expect_err("no lock"), "WRONGTYPE", "of another kind");
    assert_refused(&lock.try_lock().expect_err("no lock"), "WRONGTYPE", "of another kind");
    assert_refused(&lock.force_unlock().expect_err("no lock"), "WRONGTYPE", "of another kind");
    assert_eq!(server.ask::<String>(&["GET", "a"]), "a text");

    // The key is overwritten while the lock is held.
    let guard = limited(&client, "b").lock().expect("free");
    server.ask::<()>(&["SET", "b", "a text"]);
    let error = guard.extend(Duration::from_secs(60)).expect_err("no lock");
    assert!(error.is_lost() || message_of(&error).contains("WRONGTYPE"), "{error:?}");
    let error = guard.unlock().expect_err("no lock");
    assert!(error.is_lost() || message_of(&error).contains("WRONGTYPE"), "{error:?}");

    // The key is overwritten while a caller waits.
    let waited = outcome_of_a_wait(&server, &server.url(), "c", |_| {
        server.ask::<()>(&["SET", "c", "a text"]);
    });
    assert_refused(&waited.expect_err("no lock"), "WRONGTYPE", "of another kind");
}

#[test]
fn a_wait_continues_while_the_server_is_full() {
    let _log_check = LogCheck::start();
    let server = Server::start();
    let waited = outcome_of_a_wait(&server, &server.url(), "a", |free| {
        server.refuse_memory();
        free();
        eventually("the waiter is refused", || refusals(&server, "OOM") > 3);
        let error = limited(&open(&server), "b").lock().map(drop).expect_err("the server is full");
        assert_refused(&error, "OOM", "maxmemory");
        server.grant_memory();
    });
    waited.expect("the server has memory again");
}

#[test]
fn a_wait_continues_while_the_server_cannot_save() {
    let _log_check = LogCheck::start();
    let server =
        Server::with(|config| config.line("save 3600 1").line("stop-writes-on-bgsave-error no"));
    fs::create_dir(server.path("dump.rdb")).expect("the server's folder is writable");
    server.ask::<String>(&["BGSAVE"]);
    let failed = || server.info("persistence")["rdb_last_bgsave_status"] == "err";
    eventually("a save fails", failed);

    let writes_stop = |stop: &str| {
        let mut both = redis::pipe();
        both.atomic().cmd("DEL").arg("a").cmd("CONFIG");
        both.arg(&["SET", "stop-writes-on-bgsave-error", stop]);
        both.query::<redis::Value>(&mut server.connection()).expect("an administrator may");
    };
    let waited = outcome_of_a_wait(&server, &server.url(), "a", |_| {
        writes_stop("yes");
        eventually("the waiter is refused", || refusals(&server, "MISCONF") > 3);
        let client = open(&server);
        let error = limited(&client, "a").lock().map(drop).expect_err("the server cannot save");
        assert_refused(&error, "MISCONF", "log");
        server.ask::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    });
    waited.expect("the server need not save");
}

#[test]
fn a_wait_continues_while_the_server_is_busy() {
    let _log_check = LogCheck::start();
    let server = Server::with(|config| config.line("lua-time-limit 1"));
    let proxy = Proxy::start(server.addr());
    let client = open(&server);
    limited(&client, "b").lock().and_then(Guard::unlock).expect("free");
    let (mut looping, mut admin) = (server.connection(), server.connection());
    let waited = outcome_of_a_wait(&server, &proxy.url(), "a", |free| {
        thread::scope(|scope| {
            scope.spawn(move || {
                let script = redis::cmd("EVAL").arg("while true do end").arg(0).to_owned();
                script.query::<()>(&mut looping).expect_err("the script is killed");
            });
            let mut ping = || redis::cmd("PING").query::<()>(&mut admin);
            eventually("the server is busy", || ping().is_err_and(|e| e.code() == Some("BUSY")));

            let error = limited(&client, "b").lock().map(drop).expect_err("the server is busy");
            let forwarded = || proxy.stats().traffic(Direction::Requests).forwarded;
            let before = forwarded();
            eventually("the waiter sends more requests", || forwarded() > before + 1000);
            redis::cmd("SCRIPT").arg("KILL").query::<()>(&mut admin).expect("killed");
            assert_refused(&error, "BUSY", "SCRIPT KILL");
        });
        free();
    });
    waited.expect("the script has ended");
    limited(&client, "b").lock().and_then(Guard::unlock).expect("the script has ended");
}

/// A master becomes a replica and a master again, as in a fail-over and back.
#[test]
fn a_wait_continues_while_the_server_is_a_replica() {
    let _log_check = LogCheck::start();
    for line in
        ["replica-serve-stale-data yes", "replica-serve-stale-data no", "replica-read-only no"]
    {
        let server = Server::with(|config| config.line(line));
        let proxy = Proxy::start(server.addr());
        let client = open(&server);
        limited(&client, "b").lock().and_then(Guard::unlock).expect("free");
        let waited = outcome_of_a_wait(&server, &proxy.url(), "a", |_| {
            // The lease ends only after the server is a replica. Its master does not exist.
            let mut both = redis::pipe();
            both.atomic().cmd("PEXPIRE").arg("a").arg(20);
            both.cmd("REPLICAOF").arg("127.0.0.1").arg(1);
            both.query::<redis::Value>(&mut server.connection()).expect("an administrator may");
            // A replica that accepts writes is noticed at the next connection.
            server.client_kill_type("normal");
            let error = limited(&client, "b").lock().map(drop).expect_err("it is a replica");
            assert_eq!(error.code(), Some("READONLY"), "{error}");
            assert_refused(&error, "role of replica", "Builder::allow_replica");

            let forwarded = || proxy.stats().traffic(Direction::Requests).forwarded;
            let before = forwarded();
            eventually("the waiter sends more requests", || forwarded() > before + 2000);
            server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
        });
        waited.expect("the server is a master again");
    }
}

#[test]
fn a_server_that_begins_to_demand_a_password_ends_a_wait() {
    let _log_check = LogCheck::start();
    let server = Server::start();
    let waited = outcome_of_a_wait(&server, &server.url(), "a", |_| {
        let mut admin = server.connection();
        let mut ask = |words: &[&str]| {
            let reply = redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut admin);
            reply.expect("an administrator may");
        };
        ask(&["CONFIG", "SET", "requirepass", "something"]);
        ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    });
    assert_refused(&waited.expect_err("the client has no password"), "NOAUTH", "URL");
}
