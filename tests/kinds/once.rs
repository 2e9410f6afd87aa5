//! Work that is done once.

use crate::harness::bare::script;
use crate::harness::faults::{BRISK, NEVER, build, other, patient, watched};
use crate::harness::wait::BOUND;
use crate::harness::{Direction, Flow, Proxy, Server, eventually, join};
use leasehold::kind::Kind;
use leasehold::{Begin, CancelToken, Client, Error, LockInfo, Once, OnceOutcome, OnceRun};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

const RESULT: &str = "leasehold_once:{a}";

fn client(server: &Server) -> Client {
    build(patient(server.url()))
}

/// Returns the run of a caller that has to work.
#[track_caller]
fn runs(once: &Once) -> OnceRun {
    match once.begin().expect("the server answers") {
        Begin::Run(run) => run,
        Begin::Done(done) => panic!("it is done: {done:?}"),
    }
}

/// Returns the result that a caller gets.
#[track_caller]
fn done(once: &Once) -> OnceOutcome {
    match once.begin().expect("the server answers") {
        Begin::Done(done) => done,
        Begin::Run(run) => panic!("it is not done: {run:?}"),
    }
}

#[test]
fn the_first_caller_runs_and_later_callers_get_its_result() {
    let server = Server::start();
    let (client, others) = (client(&server), other(&server));
    let (once, theirs) = (client.once("a"), others.once("a"));
    assert_eq!(theirs.outcome().expect("an answer"), None);
    let run = runs(&once);
    assert!(run.is_held() && run.check().is_ok() && run.remaining() > Duration::ZERO);
    assert!(theirs.try_begin().expect("an answer").is_none(), "another caller runs");
    assert!(once.try_begin().expect("an answer").is_none(), "this process runs");
    let token = run.token();
    let begun = SystemTime::now();
    let own = run.commit(b"\xff42").expect("held");
    assert_eq!((own.value(), own.token()), (&b"\xff42"[..], token));
    for done in [done(&once), done(&theirs), theirs.outcome().expect("an answer").expect("done")] {
        assert_eq!(done, own);
        let age = done.at().duration_since(begun).unwrap_or_default();
        assert!(age < BOUND, "{done:?}");
    }
    assert_eq!(server.keys(), ["leasehold_once:{a}", "redisson_lock_token:{a}"]);
    let left: i64 = server.ask(&["PTTL", RESULT]);
    assert!((1..=24 * 3600 * 1000).contains(&left), "a day by default: {left}");
}

#[test]
fn waiting_callers_get_the_result_of_a_commit() {
    let server = Server::start();
    let (client, others) = (client(&server), other(&server));
    let run = runs(&client.once("a"));
    let waiters: Vec<_> = (0..6)
        .map(|number| {
            let once = if number % 2 == 0 { client.once("a") } else { others.once("a") };
            thread::spawn(move || done(&once).value().to_vec())
        })
        .collect();
    eventually("all wait", || {
        client.stats().waiting_now() == 3 && others.stats().waiting_now() == 3
    });
    run.commit("x").expect("held");
    for waiter in waiters {
        assert_eq!(join(waiter), b"x");
    }
    assert_eq!(client.stats().acquired() + others.stats().acquired(), 1);
}

/// The callers of one process do not wait for each other: the first question may answer them all.
#[test]
fn work_that_is_done_is_found_done_whoever_else_asks() {
    let server = Server::start();
    let client = client(&server);
    let once = client.once("a");
    runs(&once).commit("x").expect("held");
    let found = client.stats().found_done();
    let askers: Vec<_> = (0..4)
        .map(|_| {
            let once = once.clone();
            thread::spawn(move || (0..100).for_each(|_| drop(done(&once))))
        })
        .collect();
    for _ in 0..100 {
        let begun = once.try_begin().expect("the server answers");
        assert!(matches!(begun, Some(Begin::Done(_))), "nobody works on it: {begun:?}");
    }
    askers.into_iter().for_each(join);
    let stats = client.stats();
    assert_eq!((stats.found_done() - found, stats.refused(), stats.acquired()), (500, 0, 1));
}

#[test]
fn a_run_without_a_commit_passes_to_the_next_caller() {
    let server = Server::start();
    let client = client(&server);
    let once = client.once("a");
    let first = runs(&once);
    let token = first.token();
    let waiter = thread::spawn({
        let once = once.clone();
        move || {
            let run = runs(&once);
            (run.token(), run.commit("second").expect("held"))
        }
    });
    eventually("it waits", || client.stats().waiting_now() == 1);
    drop(first);
    let (next, outcome) = join(waiter);
    assert!(next > token && done(&once) == outcome);

    // An error of the closure, and its panic.
    let other = client.once("b");
    let failed: Result<OnceOutcome, Error> = other.run(|run| run.check().and(Err(run_error())));
    assert!(failed.is_err_and(|error| error.is_not_held()));
    let panicked = std::panic::catch_unwind(|| {
        other.run(|_| -> Result<Vec<u8>, Error> { panic!("this is expected") })
    });
    assert!(panicked.is_err());
    let outcome = other.run(|_| Ok::<_, Error>(b"y".to_vec())).expect("held");
    assert_eq!(outcome.value(), b"y");
    let again = other.run(|_| -> Result<Vec<u8>, Error> { panic!("it is done") });
    assert_eq!(again, Ok(outcome));
}

/// Returns some error.
fn run_error() -> Error {
    let client = Client::builder().single("redis://127.0.0.1:1/").build_lazily().expect("good");
    client.lock("x").unlock().expect_err("nothing is detached")
}

#[test]
fn a_result_expires_and_can_be_forgotten() {
    let server = Server::start();
    let once = client(&server).once("a").with_keep(Duration::from_millis(300));
    runs(&once).commit("first").expect("held");
    eventually("it expires", || once.outcome().expect("an answer").is_none());
    runs(&once).commit("second").expect("held");
    let kept = once.clone().with_keep(NEVER);
    assert!(once.forget().expect("an answer") && !once.forget().expect("an answer"));
    let run = runs(&kept);
    assert!(!once.forget().expect("an answer"), "the run goes on");
    run.commit("third").expect("held");
    assert_eq!(done(&once).value(), b"third");
}

#[test]
fn a_caller_that_has_lost_the_run_commits_nothing() {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let once = client.once("a");
    let run = runs(&once);
    server.ask::<()>(&["DEL", "a"]);
    let theirs = runs(&other(&server).once("a"));
    let error = run.commit("late").expect_err("it is lost");
    assert!(error.is_lost(), "{error}");
    assert_eq!(&*events.lost().name, "a");
    assert_eq!(once.outcome().expect("an answer"), None);
    theirs.commit("right").expect("held");
    assert_eq!(done(&once).value(), b"right");

    // After the end of its own lease there is no round trip.
    let brief = client.once("b").with_renewed_lease(Duration::from_millis(100));
    let run = runs(&brief);
    server.stop();
    assert!(run.wait_lost(BOUND));
    assert!(run.commit("late").is_err_and(|error| error.is_lost()));
    server.resume();
}

#[test]
fn a_commit_whose_reply_is_lost_finds_what_it_did() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let client = build(patient(proxy.url()));
    let digest: String = server.ask(&["SCRIPT", "LOAD", &script("once_commit").source()]);
    for (number, direction) in [Direction::Replies, Direction::Requests].into_iter().enumerate() {
        let once = client.once(format!("a{number}"));
        let run = runs(&once);
        proxy.on_request(digest.as_bytes(), direction, Flow::CutAfter(0));
        let outcome = run.commit("x").expect("committed once");
        assert_eq!(done(&once), outcome, "{direction:?}");
        assert_eq!(other(&server).once(once.name()).outcome(), Ok(Some(outcome)));
    }
    assert_eq!(client.stats().lost_in_total(), 0);
}

#[test]
fn a_commit_waits_through_an_outage() {
    let server = Server::start();
    let client = build(patient(server.url()).response_timeout(Duration::from_millis(200)));
    let once = client.once("a");
    let run = runs(&once);
    server.stop();
    let committing = thread::spawn(move || run.commit("x"));
    eventually("requests time out", || client.stats().reconnects() > 0 || client.ping().is_err());
    server.resume();
    let outcome = join(committing).expect("the lease goes on");
    assert_eq!(done(&once), outcome);
}

#[test]
fn odd_values_and_settings() {
    let server = Server::start();
    let client = client(&server);
    let most = vec![7; 512 * 1024];
    for (number, value) in [&b""[..], b"\0\r\n", &most].into_iter().enumerate() {
        let once = client.once(format!("a{number}"));
        runs(&once).commit(value).expect("held");
        assert_eq!(done(&once).value(), value);
    }
    let once = client.once("b");
    let error = runs(&once).commit([&most[..], &[1]].concat()).expect_err("too long");
    assert!(error.is_configuration() && error.lock_name() == Some("b"), "{error}");
    drop(runs(&once));
    let brief = once.clone().with_keep(Duration::from_millis(9));
    assert!(brief.begin().is_err_and(|error| error.is_configuration()));
    let longest = once.with_keep(Duration::MAX);
    runs(&longest).commit("for a hundred years").expect("held");
    assert!(server.ask::<i64>(&["PTTL", "leasehold_once:{b}"]) > 3_000_000_000_000);
    assert!(client.once("").begin().is_err_and(|error| error.is_invalid_name()));

    // Keys of another type.
    server.ask::<()>(&["SET", "leasehold_once:{c}", "text"]);
    server.ask::<()>(&["SET", "d", "text"]);
    for name in ["c", "d"] {
        let error = client.once(name).begin().expect_err("another type");
        assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
    }
    let run = runs(&client.once("e"));
    server.ask::<()>(&["SET", "leasehold_once:{e}", "text"]);
    let error = run.commit("x").expect_err("another type");
    assert_eq!(error.code(), Some("WRONGTYPE"), "{error}");
    eventually("the run is released", || !server.ask::<bool>(&["EXISTS", "e"]));
}

#[test]
fn waits_end_by_deadline_cancellation_and_close() {
    let server = Server::start();
    let (client, others) = (client(&server), other(&server));
    let _run = runs(&others.once("a"));
    let once = client.once("a");
    assert!(once.try_begin_for(Duration::from_millis(50)).expect("an answer").is_none());
    let stop = CancelToken::new();
    let waiter = thread::spawn({
        let once = once.clone().with_cancel(&stop);
        move || once.begin().map(drop)
    });
    eventually("it waits", || client.stats().waiting_now() == 1);
    stop.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    let waiter = thread::spawn(move || once.begin().map(drop));
    eventually("it waits", || client.stats().waiting_now() == 1);
    client.close();
    assert!(join(waiter).is_err_and(|error| error.is_closed()));
}

#[test]
fn others_see_a_run_and_can_take_it_away() {
    let server = Server::start();
    let client = client(&server);
    let once = client.once("a");
    let run = runs(&once);
    let kind = |info: Option<LockInfo>| info.map(|info| info.kind().to_owned());
    assert_eq!(kind(client.lock_info("a").expect("an answer")), Some(Kind::Once.to_string()));
    assert!(client.lock("a").try_lock().expect("an answer").is_none(), "a lock excludes a run");
    assert!(client.force_unlock("a").expect("an answer"));
    assert!(run.commit("x").is_err_and(|error| error.is_lost()));
    runs(&once).commit("y").expect("held");
    assert_eq!(kind(client.lock_info("a").expect("an answer")), None);
}

/// Threads of several clients meet at each key; nothing fails.
#[test]
fn no_work_runs_twice_without_a_fault() {
    const KEYS: usize = 200;
    let server = Server::start();
    let clients: Vec<_> = (0..4).map(|_| client(&server)).collect();
    let ran: Vec<AtomicUsize> = (0..KEYS).map(|_| AtomicUsize::new(0)).collect();
    thread::scope(|scope| {
        for (worker, client) in clients.iter().flat_map(|client| [client; 3]).enumerate() {
            let ran = &ran;
            scope.spawn(move || {
                for at in 0..KEYS {
                    let key = (at + worker * 7) % KEYS;
                    let outcome = client.once(format!("key-{key}")).run(|_| {
                        ran[key].fetch_add(1, Ordering::SeqCst);
                        Ok::<_, Error>(format!("{key}").into_bytes())
                    });
                    assert_eq!(outcome.expect("no fault").value(), format!("{key}").as_bytes());
                }
            });
        }
    });
    assert!(ran.iter().all(|ran| ran.load(Ordering::SeqCst) == 1));
}
