//! The semaphore with leased permits.

use crate::harness::bare::script;
use crate::harness::faults::{BRISK, NEVER, build, nothing_is_left, other, patient, watched};
use crate::harness::process::{self, ChildProcess};
use crate::harness::synchronizers::WaitLog;
use crate::harness::wait::BOUND;
use crate::harness::{
    Config, Direction, Flow, Proxy, Server, eventually, eventually_some, in_time, or_too_late,
};
use leasehold::kind::Kind;
use leasehold::{CancelToken, Client, LostReason, Permit, Semaphore};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// A poll interval that passes soon.
const SOON: Duration = Duration::from_millis(100);

const EXPIRIES: &str = "{a}:timeout";
const CHANNEL: &str = "redisson_sc:{a}";
const CLAIM: &str = "leasehold_claim:{a}";

/// A client whose waits end only by messages and expiries.
fn client(server: &Server) -> Client {
    build(patient(server.url()))
}

/// A client that polls soon.
fn polling(server: &Server) -> Client {
    build(patient(server.url()).poll_interval(SOON))
}

/// Returns a semaphore with that capacity.
fn semaphore(client: &Client, permits: u32) -> Semaphore {
    client.semaphore("a").with_permits(permits)
}

/// Returns the available permits, the permits in use and the capacity.
fn counts(semaphore: &Semaphore) -> (i64, u64, i64) {
    let available = semaphore.available().expect("the server answers");
    let in_use = semaphore.in_use().expect("the server answers");
    (available, in_use, semaphore.permits().expect("the server answers"))
}

fn take(semaphore: &Semaphore, permits: u32) -> Permit {
    let taken = semaphore.try_acquire_many(permits).expect("the server answers");
    taken.unwrap_or_else(|| panic!("{permits} permits are free"))
}

fn is_refused(semaphore: &Semaphore, permits: u32) -> bool {
    semaphore.try_acquire_many(permits).expect("the server answers").is_none()
}

/// Blocks until that many calls of a client wait and its listener hears the channel.
fn wait_for_waiters(server: &Server, client: &Client, waiters: u64) {
    eventually("the calls wait", || client.stats().waiting_now() == waiters);
    eventually("a listener hears", || server.numsub(CHANNEL) > 0);
}

#[test]
fn the_verbs_take_permits_up_to_the_capacity_and_give_them_back() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let jobs = semaphore(&client, 5);
    assert_eq!((jobs.name(), counts(&jobs)), ("a", (5, 0, 5)), "nothing is written yet");
    assert!(server.keys().is_empty());
    let permit = jobs.acquire().expect("it is free");
    let two = jobs.acquire_many(2).expect("they are free");
    assert_eq!((permit.count(), two.count(), counts(&jobs)), (1, 2, (2, 3, 5)));
    // Another handle finds the capacity; its own number has no effect.
    let others = semaphore(&direct, 99);
    assert!(is_refused(&others, 3), "all or none");
    let rest = take(&direct.semaphore("a"), 2);
    assert!(is_refused(&jobs, 1) && is_refused(&others, 1));
    assert_eq!(counts(&others), (0, 5, 5));
    two.release().expect("they are held");
    drop(permit);
    eventually("the drop gives it back", || counts(&others) == (3, 2, 5));
    assert!(others.try_acquire_for(Duration::ZERO).expect("the server answers").is_some());
    let until = others.try_acquire_many_until(3, Instant::now()).expect("the server answers");
    until.expect("they are free").release().expect("they are held");
    assert!(others.try_acquire_many_for(4, 3 * SOON).expect("the server answers").is_none());
    assert!(others.try_acquire_until(Instant::now()).expect("the server answers").is_some());
    rest.release().expect("they are held");
    eventually("only the capacity is left", || server.keys() == ["a"]);
    assert_eq!(server.ask::<String>(&["GET", "a"]), "5");
}

#[test]
fn a_permit_belongs_to_no_thread() {
    let server = Server::start();
    let jobs = semaphore(&client(&server), 2);
    let (one, two) = (take(&jobs, 1), take(&jobs, 1));
    assert!(one.is_held() && one.check().is_ok() && one.remaining() > NEVER / 2, "{one:?}");
    thread::spawn(move || one.release()).join().expect("no panic").expect("it is held");
    let jobs = jobs.with_lease(Duration::from_secs(60));
    let fixed = take(&jobs, 1);
    assert!(fixed.remaining() <= Duration::from_secs(60) && two.is_held());
    assert!(!fixed.wait_lost(Duration::ZERO));
}

#[test]
fn renewals_keep_permits_beyond_their_lease() {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let jobs = semaphore(&client, 300);
    let (one, many) = (take(&jobs, 1), take(&jobs, 200));
    let start = Instant::now();
    eventually("the first lease is over", || start.elapsed() > 2 * BRISK);
    assert!(one.is_held() && many.is_held());
    assert_eq!(counts(&jobs).1, 201);
    one.release().expect("it is held");
    many.release().expect("they are held");
    assert_eq!(counts(&jobs).1, 0);
    assert_eq!(client.stats().lost(LostReason::Expired), 0);
    drop(events);
}

#[test]
fn the_permits_of_a_dead_process_come_back_after_their_lease() {
    if let Some(role) = process::role() {
        let builder = Client::builder().single(role.arg(0)).watchdog_timeout(BRISK);
        let client = builder.build().expect("the server is there");
        let permit = semaphore(&client, 3).acquire_many(2).expect("they are free");
        role.say("taken");
        role.hear();
        drop(permit);
        return;
    }
    let server = Server::start();
    let entry = "semaphore::the_permits_of_a_dead_process_come_back_after_their_lease";
    let mut child = ChildProcess::start(entry, "holder", &[&server.url()]);
    child.expect_line("taken");
    let client = build(patient(server.url()));
    let jobs = semaphore(&client, 3);
    assert!(is_refused(&jobs, 2));
    thread::scope(|scope| {
        // No message comes and no poll is due: the expiry ends the wait.
        let waiter = scope.spawn(|| jobs.acquire_many(3));
        wait_for_waiters(&server, &client, 1);
        child.kill();
        let permit = in_time("the waiter returns", waiter).expect("they are free");
        assert_eq!((permit.count(), counts(&jobs)), (3, (0, 3, 3)));
    });
}

#[test]
fn a_release_by_another_process_wakes_a_waiter() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let (jobs, others) = (semaphore(&client, 2), semaphore(&direct, 2));
    for dropped in [false, true] {
        let taken = take(&others, 2);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| jobs.acquire());
            wait_for_waiters(&server, &client, 1);
            assert_eq!(others.waiting().expect("the server answers").processes(), 1);
            if dropped {
                drop(taken)
            } else {
                taken.release().expect("they are held")
            }
            let permit = in_time("the waiter returns", waiter).expect("it is free");
            permit.release().expect("it is held");
        });
    }
}

#[test]
fn a_waiter_for_many_leaves_the_permits_to_a_waiter_for_one() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let (jobs, others) = (semaphore(&client, 6), semaphore(&direct, 6));
    let (one, five) = (take(&others, 1), take(&others, 5));
    thread::scope(|scope| {
        let many = scope.spawn(|| jobs.acquire_many(5));
        wait_for_waiters(&server, &client, 1);
        let single = scope.spawn(|| jobs.acquire());
        wait_for_waiters(&server, &client, 2);
        one.release().expect("it is held");
        let single = in_time("the second waiter returns", single).expect("it is free");
        assert!(!many.is_finished());
        five.release().expect("they are held");
        let many = in_time("the first waiter returns", many).expect("they are free");
        assert_eq!((single.count(), many.count(), counts(&jobs)), (1, 5, (0, 6, 6)));
    });
}

/// The message of one release frees permits for several waiters, of two clients.
#[test]
fn one_release_wakes_all_waiters_that_fit() {
    let server = Server::start();
    let (one, two, direct) = (client(&server), client(&server), other(&server));
    let others = semaphore(&direct, 10);
    let taken = take(&others, 10);
    thread::scope(|scope| {
        let waiters = [(&one, 1), (&two, 2), (&one, 3), (&two, 4)].map(|(client, permits)| {
            scope.spawn(move || client.semaphore("a").acquire_many(permits))
        });
        wait_for_waiters(&server, &one, 2);
        wait_for_waiters(&server, &two, 2);
        eventually("both listen", || server.numsub(CHANNEL) == 2);
        taken.release().expect("they are held");
        let permits =
            waiters.map(|waiter| in_time("a waiter returns", waiter).expect("they are free"));
        assert!(permits.iter().all(Permit::is_held));
        assert_eq!(counts(&others), (0, 10, 10));
    });
}

/// The permits come back without a message.
#[test]
fn a_poll_ends_a_wait() {
    let server = Server::start();
    let client = polling(&server);
    let jobs = semaphore(&client, 1);
    let taken = take(&jobs, 1);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| jobs.acquire());
        wait_for_waiters(&server, &client, 1);
        // In one step: a semaphore without permits ends the wait with an error.
        let free = "redis.call('del', KEYS[2]) redis.call('incr', KEYS[1])";
        server.ask::<()>(&["EVAL", free, "2", "a", EXPIRIES]);
        drop(in_time("the waiter returns", waiter).expect("it is free"));
    });
    assert!(taken.release().is_err_and(|error| error.is_lost()));
}

#[test]
fn a_resize_wakes_waiters_and_limits_later_calls() {
    let server = Server::start();
    let (client, direct) = (polling(&server), other(&server));
    let (jobs, others) = (semaphore(&client, 2), semaphore(&direct, 2));
    let taken = take(&others, 2);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| jobs.acquire());
        wait_for_waiters(&server, &client, 1);
        others.resize(3).expect("the server answers");
        let more = in_time("the waiter returns", waiter).expect("it is free");
        assert_eq!(counts(&jobs), (0, 3, 3));

        // Fewer than are in use: those stay valid.
        let waiter = scope.spawn(|| jobs.acquire_many(2));
        wait_for_waiters(&server, &client, 1);
        others.resize(1).expect("the server answers");
        let error = in_time("the waiter returns", waiter).expect_err("one is left");
        assert!(error.is_configuration(), "{error}");
        assert_eq!(error.to_string(), "2 permits requested, and the semaphore has 1 [lock \"a\"]");
        assert!(more.is_held() && taken.is_held());
        assert_eq!(counts(&jobs), (-2, 3, 1));
        taken.release().expect("they are held");
        assert!(is_refused(&jobs, 1));
        more.release().expect("it is held");
        take(&jobs, 1).release().expect("it is held");
    });
    eventually("the request records are deleted", || server.keys() == ["a"]);
}

#[test]
fn a_semaphore_without_a_capacity_and_a_request_beyond_it_are_errors() {
    let server = Server::start();
    let client = client(&server);
    let jobs = client.semaphore("a");
    assert_eq!(counts(&jobs), (0, 0, 0));
    for outcome in [jobs.try_acquire(), jobs.acquire().map(Some), jobs.try_acquire_for(NEVER)] {
        let error = outcome.expect_err("it has no permits");
        assert!(error.is_configuration() && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains("no capacity"), "{error}");
    }
    jobs.resize(3).expect("the server answers");
    let error = jobs.acquire_many(4).expect_err("it has 3 permits");
    assert!(error.to_string().contains("4 permits requested, and the semaphore has 3"), "{error}");
    drop(take(&jobs, 3));
    for bad in [jobs.try_acquire_many(0), jobs.try_acquire_many(1001)] {
        assert!(bad.is_err_and(|error| error.is_configuration() && error.lock_name() == Some("a")));
    }
    assert!(jobs.resize(0).is_err_and(|error| error.is_configuration()));
    let zero = client.semaphore("a").with_permits(0);
    assert!(zero.available().is_err_and(|error| error.is_configuration()));
    let brief = client.semaphore("a").with_lease(Duration::from_millis(9));
    assert!(brief.acquire().is_err_and(|error| error.is_configuration()));
    let brief = client.semaphore("a").with_max_hold(Duration::from_millis(9));
    assert!(brief.acquire().is_err_and(|error| error.is_configuration()));
}

#[test]
fn a_key_of_another_type_is_an_error() {
    let server = Server::start();
    let client = client(&server);
    for command in [&["SET", "a", "text"][..], &["HSET", "a", "f", "1"]] {
        server.ask::<()>(&["DEL", "a"]);
        server.ask::<redis::Value>(command);
        let jobs = semaphore(&client, 1);
        for error in [jobs.acquire().err(), jobs.available().err(), jobs.resize(2).err()] {
            let error = error.unwrap_or_else(|| panic!("{command:?} makes no semaphore"));
            assert!(error.is_server() && error.code() == Some("WRONGTYPE"), "{error}");
        }
    }
    server.ask::<()>(&["DEL", "a"]);
    let other = self::client(&server);
    let guard = other.lock("a").lock().expect("free");
    let error = semaphore(&client, 1).acquire().expect_err("a lock is no semaphore");
    assert!(error.to_string().contains("the key holds a value of another kind"), "{error}");
    guard.unlock().expect("it is still held");
}

#[test]
fn a_thousand_permits_are_taken_renewed_and_given_back_together() {
    let server = Server::start();
    // A renewal of so many permits takes a while.
    let lease = 2 * BRISK;
    let (client, _events) = watched(&server, lease);
    let jobs = semaphore(&client, 2500);
    let (one, two) = (take(&jobs, 1000), take(&jobs, 1000));
    assert!(is_refused(&jobs, 501));
    let start = Instant::now();
    eventually("the first lease is over", || start.elapsed() > lease);
    assert!(one.is_held() && two.is_held());
    assert_eq!(counts(&jobs), (500, 2000, 2500));
    one.release().expect("they are held");
    two.release().expect("they are held");
    assert_eq!(counts(&jobs), (2500, 0, 2500));
}

/// A call reclaims the permits that it needs, and 500 more.
#[test]
fn twenty_thousand_expired_permits_come_back_in_bounded_steps() {
    const EXPIRED: u32 = 20_000;
    let server = Server::start();
    let expired: Vec<[String; 2]> =
        (0..EXPIRED).map(|at| [(1000 + at).to_string(), format!("expired {at}")]).collect();
    let expired = expired.iter().flatten().map(String::as_str);
    server.ask::<()>(&["SET", "a", "0"]);
    server.ask::<()>(&["ZADD", EXPIRIES].into_iter().chain(expired).collect::<Vec<_>>());
    let client = client(&server);
    let jobs = semaphore(&client, EXPIRED);
    let members = || server.ask::<u32>(&["ZCARD", EXPIRIES]);
    assert_eq!(counts(&jobs), (EXPIRED.into(), 0, EXPIRED.into()));
    assert_eq!(members(), EXPIRED, "a query reclaims nothing");

    let take_thousand = |_| {
        let before = members();
        let permit = take(&jobs, 1000);
        let reclaimed = before + 1000 - members();
        assert!(reclaimed <= 1500, "one call reclaimed {reclaimed} permits");
        permit
    };
    let all: Vec<Permit> = (0..20).map(take_thousand).collect();
    assert_eq!((counts(&jobs), members()), ((0, EXPIRED.into(), EXPIRED.into()), EXPIRED));
    assert!(is_refused(&jobs, 1), "the expired permits are counted once");
    all.into_iter().for_each(|permit| permit.release().expect("they are held"));
    assert_eq!((counts(&jobs), members()), ((EXPIRED.into(), 0, EXPIRED.into()), 0));
}

/// Redisson can give back one permit of a hold.
#[test]
fn a_hold_without_one_of_its_permits_is_lost() {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let jobs = semaphore(&client, 5);
    let permit = take(&jobs, 3);
    let fine = take(&jobs, 1);
    let ids: Vec<Vec<u8>> = server.ask(&["ZRANGE", EXPIRIES, "0", "-1"]);
    let mut connection = server.connection();
    redis::cmd("ZREM").arg(EXPIRIES).arg(&ids[1]).query::<()>(&mut connection).expect("a reply");
    server.ask::<u32>(&["INCR", "a"]);
    assert!(permit.wait_lost(BOUND), "a renewal notices");
    assert!(fine.is_held());
    let lost = events.lost();
    assert_eq!((lost.kind, lost.reason), (Kind::Semaphore, LostReason::Gone));
    // No script reclaims expired permits here, so only a release gives them back.
    let stored = || (server.ask::<i64>(&["GET", "a"]), server.ask::<u32>(&["ZCARD", EXPIRIES]));
    eventually("the others come back before the end of the guard", || stored() == (4, 1));
    let error = permit.release().expect_err("it is lost");
    assert!(error.is_lost() && error.to_string().starts_with("the permit was lost"), "{error}");
    assert_eq!(counts(&jobs), (4, 1, 5));
}

/// The lease outlives the test, so no renewal notices the loss.
#[test]
fn a_query_that_finds_a_hold_without_one_of_its_permits_gives_the_others_back() {
    let server = Server::start();
    let client = client(&server);
    let jobs = semaphore(&client, 5);
    let permit = take(&jobs, 3);
    let ids: Vec<Vec<u8>> = server.ask(&["ZRANGE", EXPIRIES, "0", "-1"]);
    let mut connection = server.connection();
    redis::cmd("ZREM").arg(EXPIRIES).arg(&ids[0]).query::<()>(&mut connection).expect("a reply");
    server.ask::<u32>(&["INCR", "a"]);
    assert_eq!(jobs.holders().expect("a reply").len(), 1);
    assert!(permit.check().is_err_and(|error| error.is_lost()));
    eventually("the others come back", || counts(&jobs) == (5, 0, 5));
    assert!(permit.release().is_err_and(|error| error.is_lost()));
    assert_eq!(counts(&jobs), (5, 0, 5));
}

#[test]
fn a_token_and_the_close_end_waits() {
    let server = Server::start();
    let (stop, client) = (CancelToken::new(), client(&server));
    let jobs = semaphore(&client, 1);
    let taken = take(&jobs, 1);
    let stopped = jobs.clone().with_cancel(&stop);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stopped.acquire());
        wait_for_waiters(&server, &client, 1);
        stop.cancel();
        let error = in_time("the waiter returns", waiter).expect_err("the wait was cancelled");
        assert!(error.is_cancelled() && error.lock_name() == Some("a"), "{error}");
        assert!(stopped.try_acquire().is_err_and(|error| error.is_cancelled()));
        let waiter = scope.spawn(|| jobs.acquire());
        wait_for_waiters(&server, &client, 1);
        client.close();
        let error = in_time("the waiter returns", waiter).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
    });
    assert!(jobs.available().is_err_and(|error| error.is_closed()));
    assert!(taken.is_held(), "the lease lasts");
    drop(taken);
    eventually("the drop gives the permit back", || server.ask::<String>(&["GET", "a"]) == "1");
}

/// A waiter that leaves passes its wake-up on.
#[test]
fn a_waiter_that_gives_up_leaves_the_permits_to_others() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let (jobs, others) = (semaphore(&client, 3), semaphore(&direct, 3));
    for _ in 0..20 {
        let taken = take(&others, 3);
        let stop = CancelToken::new();
        thread::scope(|scope| {
            let stopped = jobs.clone().with_cancel(&stop);
            let first = scope.spawn(move || stopped.acquire_many(3));
            wait_for_waiters(&server, &client, 1);
            let second = scope.spawn(|| jobs.acquire_many(2));
            wait_for_waiters(&server, &client, 2);
            // The message and the cancellation race.
            let release = scope.spawn(|| taken.release().expect("they are held"));
            stop.cancel();
            let first = in_time("the first returns", first);
            in_time("the release returns", release);
            drop(first);
            let second = in_time("the second returns", second).expect("they are free");
            second.release().expect("they are held");
        });
        eventually("all come back", || counts(&others) == (3, 0, 3));
    }
}

/// Callers for one permit that never leave two free at a moment, without a claim.
#[test]
fn requests_for_one_do_not_starve_a_request_for_many() {
    let server = Server::start();
    let (busy, client) = (polling(&server), polling(&server));
    let many = semaphore(&client, 4);
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let jobs = semaphore(&busy, 4).with_cancel(&stop);
                scope.spawn(move || {
                    while let Ok(permit) = jobs.acquire() {
                        // The next one comes before this one goes.
                        let next = jobs.try_acquire();
                        drop(permit);
                        drop(next);
                    }
                })
            })
            .collect();
        eventually("the workers are busy", || busy.stats().contended() > 100);
        for _ in 0..3 {
            let waiter = scope.spawn(|| many.acquire_many(4));
            let permit = in_time("the large request is served", waiter).expect("its claim counts");
            assert_eq!(counts(&many), (0, 4, 4));
            permit.release().expect("they are held");
        }
        stop.cancel();
        workers.into_iter().for_each(|worker| in_time("a worker ends", worker));
    });
    eventually("no claim is left", || server.keys() == ["a"]);
}

/// The claim of the oldest caller refuses later requests of all clients.
#[test]
fn a_claim_reserves_permits_for_the_oldest_caller() {
    let server = Server::start();
    let (client, direct) = (polling(&server), other(&server));
    let (jobs, others) = (semaphore(&client, 3), semaphore(&direct, 3));
    let (one, two) = (take(&others, 1), take(&others, 1));
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let first = jobs.clone().with_cancel(&stop);
        let first = scope.spawn(move || first.acquire_many(3));
        wait_for_waiters(&server, &client, 1);
        eventually("its claim counts", || is_refused(&others, 1));
        assert_eq!(others.available().expect("the server answers"), 1);
        assert!(!first.is_finished());
        // A caller that gives up withdraws its claim.
        stop.cancel();
        in_time("the first returns", first).expect_err("it was cancelled");
        let later = eventually_some("the claim ends", || others.try_acquire().expect("a reply"));
        later.release().expect("it is held");

        let second = scope.spawn(|| jobs.acquire_many(3));
        eventually("its claim counts", || is_refused(&others, 1));
        one.release().expect("it is held");
        assert!(is_refused(&others, 1) && !second.is_finished());
        two.release().expect("it is held");
        let second = in_time("the second returns", second).expect("they are free");
        second.release().expect("they are held");
        take(&others, 3).release().expect("the claim has ended with its grant");
    });
}

/// The server runs the acquire before a poll of the same caller, and the reply comes after it.
#[test]
fn a_poll_after_the_grant_leaves_no_claim() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let (client, direct) = (build(patient(proxy.url()).poll_interval(SOON)), other(&server));
    let taken = take(&semaphore(&direct, 3), 3);
    let acquire: String = server.ask(&["SCRIPT", "LOAD", &script("semaphore_acquire").source()]);
    let ids = || server.ask::<Vec<Vec<u8>>>(&["ZRANGE", EXPIRIES, "0", "-1"]);
    let is_claimed = || server.ask::<bool>(&["EXISTS", CLAIM]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| semaphore(&client, 3).acquire_many(3));
        eventually("its claim counts", is_claimed);
        proxy.on_request(acquire.as_bytes(), Direction::Replies, Flow::Hold);
        let before = ids();
        taken.release().expect("they are held");
        eventually("the server grants the permits", || ids().len() == 3 && ids() != before);
        eventually("a poll sets the claim again", is_claimed);
        proxy.release_held();
        let permit = in_time("the waiter returns", waiter).expect("they are free");
        // Without an end by its lifetime.
        server.ask::<u32>(&["PERSIST", CLAIM]);
        eventually("the claim is withdrawn", || !is_claimed());
        permit.release().expect("they are held");
    });
}

#[test]
fn holders_are_shown_with_their_permits() {
    let server = Server::start();
    let client = Client::builder().single(server.url()).label("worker").build().expect("a client");
    let direct = other(&server);
    let jobs = semaphore(&client, 10);
    assert!(jobs.holders().expect("the server answers").is_empty());
    let (three, one) = (take(&jobs, 3), take(&jobs, 1));
    // A permit of Redisson that never expires.
    server.ask::<u32>(&["ZADD", EXPIRIES, "922337203685477", "0123456789abcdef"]);
    let holders = eventually_some("the record of the client is there", || {
        let holders = direct.semaphore("a").holders().expect("the server answers");
        holders.iter().any(|it| it.label() == Some("worker")).then_some(holders)
    });
    let mut seen: Vec<_> = holders.iter().map(|it| (it.client_id(), it.count())).collect();
    seen.sort_unstable();
    let id = client.id();
    assert_eq!(seen, [(None, 1), (Some(id), 1), (Some(id), 3)], "{holders:?}");
    let java = holders.iter().find(|it| it.client_id().is_none()).expect("a permit of Redisson");
    assert_eq!(java.owner(), "30313233343536373839616263646566");
    assert_eq!(java.remaining(), None);
    let ours = holders.iter().find(|it| it.count() == 3).expect("three permits");
    assert!(format!("{three:?}").contains(ours.owner()), "{three:?}: {ours:?}");
    assert!(ours.remaining().is_some_and(|left| left > Duration::from_secs(10)), "{ours:?}");
    assert_eq!(ours.pid(), Some(std::process::id()));
    drop((three, one));
}

#[test]
fn permits_are_counted_and_reported_as_holds() {
    let server = Server::start();
    let (client, waits) = (client(&server), Arc::new(WaitLog::default()));
    let jobs = semaphore(&client, 3).with_events(waits.clone()).with_label("jobs");
    let permit = take(&jobs, 3);
    assert!(is_refused(&jobs, 1));
    assert!(jobs.try_acquire_for(3 * SOON).expect("the server answers").is_none());
    let event = waits.only();
    assert_eq!((&*event.name, event.kind, event.hold), ("a", Kind::Semaphore, None));
    let stats = client.stats();
    assert_eq!((stats.acquired(), stats.held_now(), stats.waiting_now()), (1, 1, 0));
    assert_eq!((stats.timed_out(), stats.refused(), stats.contended()), (1, 1, 1));
    permit.release().expect("they are held");
    let stats = client.stats();
    assert_eq!((stats.released(), stats.held_now()), (1, 0));
}

#[test]
fn an_overdue_permit_is_not_renewed() {
    let server = Server::start();
    let (client, events) = watched(&server, BRISK);
    let jobs = semaphore(&client, 1).with_max_hold(SOON);
    let permit = take(&jobs, 1);
    assert!(permit.wait_lost(BOUND), "its lease ends");
    let lost = events.lost();
    assert_eq!(lost.reason, LostReason::HeldTooLong);
    eventually("the permit is free", || counts(&jobs) == (1, 0, 1));
    drop(permit);
}

#[test]
fn a_minimum_keeps_permits_in_use_without_a_holder() {
    let server = Server::with(Config::movable_clock);
    let (client, direct) = (client(&server), other(&server));
    let minimum = Duration::from_secs(1000);
    let (jobs, others) = (semaphore(&client, 3).with_min_hold(minimum), semaphore(&direct, 3));
    take(&jobs, 2).release().expect("they are held");
    drop(take(&jobs, 1));
    eventually("the last hold ends", || others.holders().expect("a reply").is_empty());
    assert_eq!((counts(&others), client.stats().held_now()), ((0, 3, 3), 0));
    assert!(is_refused(&others, 1) && is_refused(&jobs, 1));
    server.set_clock(999_000);
    assert!(is_refused(&others, 1));
    server.set_clock(1_001_000);
    take(&others, 3).release().expect("they are held");
    assert_eq!(counts(&others), (3, 0, 3));
}

#[test]
fn a_waiter_gets_a_permit_at_the_end_of_its_minimum() {
    let server = Server::start();
    let (client, direct) = (client(&server), other(&server));
    let jobs = semaphore(&direct, 1).with_min_hold(3 * SOON);
    let (permit, start) = (take(&jobs, 1), Instant::now());
    permit.release().expect("it is held");
    // No message comes and no poll is due: the expiry ends the wait.
    let next = semaphore(&client, 1).acquire().expect("it is free in the end");
    assert!(next.is_held() && start.elapsed() >= 2 * SOON);
}

#[test]
fn a_release_after_the_minimum_frees_the_permit() {
    let server = Server::start();
    let jobs = semaphore(&client(&server), 1).with_min_hold(Duration::from_millis(1));
    let permit = take(&jobs, 1);
    let start = Instant::now();
    eventually("the minimum ends", || start.elapsed() > Duration::from_millis(5));
    permit.release().expect("it is held");
    take(&jobs, 1).release().expect("it is held");
}

/// The key of the free permits alone is lost: the next call computes it from the capacity.
#[test]
fn a_lost_key_of_the_free_permits_is_restored() {
    let server = Server::start();
    let client = client(&server);
    let jobs = semaphore(&client, 5);
    let (one, two) = (take(&jobs, 1), take(&jobs, 2));
    server.ask::<u32>(&["DEL", "a"]);
    one.release().expect("it is held");
    let three = take(&jobs, 3);
    assert_eq!(counts(&jobs), (0, 5, 5));
    drop((two, three));
    eventually("all come back", || counts(&jobs) == (5, 0, 5));
}

/// The server's clock decides, and not that of a client.
#[test]
fn expiries_follow_the_clock_of_the_server() {
    let server = Server::with(Config::movable_clock);
    let client = client(&server);
    let jobs = semaphore(&client, 1).with_lease(Duration::from_secs(100));
    let taken = take(&jobs, 1);
    server.set_clock(99_000);
    assert!(is_refused(&jobs, 1));
    server.set_clock(101_000);
    assert_eq!(counts(&jobs), (1, 0, 1), "an expired permit is available");
    take(&jobs, 1).release().expect("it is held");
    assert!(taken.release().is_err_and(|error| error.is_lost()));
}

/// Whatever happens, the free permits and those in use are the capacity.
#[test]
fn many_threads_of_two_clients_never_take_more_than_the_capacity() {
    const CAPACITY: u32 = 7;
    let server = Server::start();
    let (one, two, direct) = (polling(&server), polling(&server), other(&server));
    let in_use = Arc::new(Mutex::new(0));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..8_u32)
            .map(|n| {
                let jobs = semaphore([&one, &two][n as usize % 2], CAPACITY);
                let in_use = Arc::clone(&in_use);
                scope.spawn(move || {
                    for round in 0..60 {
                        let permits = (n + round) % 3 + 1;
                        let permit = match round % 4 {
                            0 => jobs.try_acquire_many(permits).expect("a reply"),
                            1 => or_too_late(jobs.try_acquire_many_for(permits, SOON))
                                .expect("no error"),
                            _ => Some(jobs.acquire_many(permits).expect("a reply")),
                        };
                        let Some(permit) = permit else { continue };
                        let change = |by: i64| {
                            let mut in_use = in_use.lock().expect("no panic");
                            *in_use += by;
                            assert!(*in_use <= i64::from(CAPACITY), "{in_use} are in use");
                        };
                        change(permits.into());
                        change(-i64::from(permits));
                        match round % 3 {
                            0 => permit.release().expect("they are held"),
                            _ => drop(permit),
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| in_time("a worker ends", worker));
    });
    let others = semaphore(&direct, CAPACITY);
    eventually("all come back", || counts(&others) == (CAPACITY.into(), 0, CAPACITY.into()));
    server.ask::<u32>(&["DEL", "a"]);
    drop((one, two, direct, others));
    nothing_is_left(&server);
}

/// Returns the slots of permits.
fn slots_of<'p>(permits: impl IntoIterator<Item = &'p Permit>) -> Vec<u32> {
    permits.into_iter().flat_map(Permit::slots).copied().collect()
}

#[test]
fn a_permit_has_the_smallest_slot_that_is_free() {
    let server = Server::start();
    let (client, other) = (client(&server), other(&server));
    let gpus = semaphore(&client, 4).with_slots();
    let (first, two) = (take(&gpus, 1), take(&semaphore(&other, 4).with_slots(), 2));
    assert_eq!((first.slot(), two.slots()), (Some(0), &[1, 2][..]));
    first.release().expect("held");
    let rest = take(&gpus, 2);
    assert_eq!(rest.slots(), [0, 3]);
    assert!(format!("{rest:?}").contains("slots: [0, 3]"), "{rest:?}");
    let infos = gpus.holders().expect("the server answers");
    let mut slots: Vec<_> = infos.iter().map(|holder| holder.slots().to_vec()).collect();
    slots.sort();
    assert_eq!(slots, [[0, 3], [1, 2]]);
    let locks = client.lock_info("a").expect("the server answers").expect("a semaphore");
    assert!(locks.holders().iter().all(|holder| holder.slots().len() == 2));
}

#[test]
fn permits_without_slots_take_none() {
    let server = Server::start();
    let client = client(&server);
    let plain = take(&semaphore(&client, 3), 1);
    assert_eq!((plain.slot(), plain.slots().len()), (None, 0));
    let gpus = semaphore(&client, 3).with_slots();
    let permits = [take(&gpus, 1), take(&gpus, 1)];
    assert_eq!(slots_of(&permits), [0, 1]);
    // The permit of another library.
    server.ask::<()>(&["ZADD", EXPIRIES, "99999999999999", "java"]);
    let [first, _second] = permits;
    drop(first);
    eventually("the permit is back", || counts(&gpus).1 == 3);
    assert_eq!(take(&gpus, 1).slot(), Some(0));
}

#[test]
fn after_a_resize_to_fewer_slots_are_below_the_new_capacity() {
    let server = Server::start();
    let gpus = semaphore(&client(&server), 4).with_slots();
    let permits: Vec<_> = (0..4).map(|_| take(&gpus, 1)).collect();
    gpus.resize(2).expect("the server answers");
    assert_eq!(slots_of(&permits), [0, 1, 2, 3], "permits in use keep theirs");
    let mut permits = permits.into_iter();
    drop(permits.by_ref().take(3).collect::<Vec<_>>());
    eventually("permits are back", || counts(&gpus).1 == 1);
    assert_eq!(take(&gpus, 1).slot(), Some(0));
    assert_eq!(slots_of(permits.as_slice()), [3]);
}

#[test]
fn the_slots_of_a_permit_whose_lease_has_ended_are_free() {
    let server = Server::start();
    let gpus = semaphore(&client(&server), 2).with_slots();
    let brief = take(&gpus.clone().with_lease(BRISK), 2);
    assert_eq!(brief.slots(), [0, 1]);
    let next = gpus.acquire().expect("after the lease");
    assert_eq!((next.slot(), brief.is_held()), (Some(0), false));
    // Only the keys that a semaphore leaves behind.
    drop((brief, next));
    eventually("all permits are back", || server.ask::<u32>(&["ZCARD", EXPIRIES]) == 0);
    assert_eq!(server.keys(), ["a", "leasehold_slots:{a}"]);
}

/// Threads of several clients take one to three permits, without a pause.
#[test]
fn no_two_valid_permits_have_one_slot() {
    let server = Server::start();
    let used = Mutex::new(std::collections::HashSet::new());
    thread::scope(|scope| {
        for worker in 0..8 {
            let gpus = semaphore(&polling(&server), 7).with_slots();
            let used = &used;
            scope.spawn(move || {
                for round in 0..60 {
                    let permit = gpus.acquire_many(1 + (worker + round) % 3).expect("free soon");
                    assert!(permit.slots().iter().all(|slot| *slot < 7), "{permit:?}");
                    let own = || permit.slots().iter().copied();
                    let mut all = used.lock().expect("no panic");
                    assert!(own().all(|slot| all.insert(slot)), "{permit:?} beside {all:?}");
                    drop(all);
                    thread::yield_now();
                    let mut all = used.lock().expect("no panic");
                    own().for_each(|slot| assert!(all.remove(&slot)));
                    drop(all);
                    permit.release().expect("held");
                }
            });
        }
    });
}

/// A copy of an acquire finds the permits, and tells the same slots.
#[test]
fn a_repeated_acquire_tells_the_same_slots() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let gpus = semaphore(&build(patient(proxy.url())), 3).with_slots();
    let other = take(&semaphore(&client(&server), 3).with_slots(), 1);
    let acquire = script("semaphore_acquire").source();
    let digest = server.ask::<String>(&["SCRIPT", "LOAD", &acquire]);
    proxy.on_request(digest.as_bytes(), Direction::Replies, Flow::CutAfter(0));
    let permit = take(&gpus, 2);
    assert_eq!((other.slots(), permit.slots()), (&[0][..], &[1, 2][..]));
    assert_eq!(server.ask::<u32>(&["HLEN", "leasehold_slots:{a}"]), 3);
}
