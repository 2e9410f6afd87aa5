//! The turns at a read-write lock: nobody starves, with and without callers that ignore them.

use crate::harness::bare::Bare;
use crate::harness::faults::{build, patient};
use crate::harness::{Server, eventually, exists, in_time, join, pttl, sleeping};
use leasehold::{CancelToken, Client, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const CHANNEL: &str = "redisson_rwlock:{a}";
const TURNS: &str = "leasehold_turns:{a}";

fn clients(server: &Server) -> [Client; 3] {
    [(); 3].map(|()| build(patient(server.url())))
}

fn entry(server: &Server, field: &str) -> Option<String> {
    server.ask(&["HGET", TURNS, field])
}

/// Blocks until a writer is announced.
fn writer_waits(server: &Server) {
    eventually("the writer is announced", || entry(server, "writer").is_some());
}

#[test]
fn a_writer_that_waits_keeps_further_readers_out() {
    let server = Server::start();
    let [first, second, third] = clients(&server).map(|it| it.rw_lock("a"));
    let reading = first.read_owned().expect("free");
    let nested = first.read().expect("shared");
    thread::scope(|scope| {
        let writing = scope.spawn(|| second.write_owned());
        writer_waits(&server);
        assert!(third.try_read().expect("a reply").is_none(), "the writer is the next");
        drop(first.read().expect("its thread reads already"));
        let later = scope.spawn(|| third.read_owned());
        eventually("the reader waits", || server.numsub(CHANNEL) == 2);
        nested.unlock().expect("held");
        reading.unlock().expect("held");
        let writing = in_time("the writer has its turn", writing).expect("granted");
        assert!(!later.is_finished());
        writing.unlock().expect("held");
        in_time("then the reader", later).expect("granted").unlock().expect("held");
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// Both hear of the release at the same time.
#[test]
fn readers_that_wait_for_a_writer_come_before_the_next_writer() {
    let server = Server::start();
    for _ in 0..10 {
        let [first, second, third] = clients(&server).map(|it| it.rw_lock("a"));
        let writing = first.write_owned().expect("free");
        thread::scope(|scope| {
            let next = scope.spawn(|| second.write_owned().expect("granted"));
            writer_waits(&server);
            let reading = scope.spawn(|| third.read_owned().expect("granted"));
            eventually("the reader waits", || entry(&server, "readers").is_some());
            writing.unlock().expect("held");
            let reading = in_time("the reader has its turn", reading);
            assert!(!next.is_finished() && first.try_write().expect("a reply").is_none());
            reading.unlock().expect("held");
            in_time("then the writer", next).unlock().expect("held");
        });
        eventually("nothing is left", || server.keys().is_empty());
    }
}

/// The process of the last writer would be the first to ask again.
#[test]
fn the_last_writer_leaves_the_next_turn_to_another_writer() {
    let server = Server::start();
    let [first, second, third] = clients(&server);
    let (lock, other) = (first.rw_lock("a"), second.rw_lock("a"));
    server.ask::<()>(&["HSET", TURNS, "turn", &format!("99999999999999 {}", first.id())]);
    let reading = third.rw_lock("a").with_reader_preference().read_owned().expect("free");
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let again = scope.spawn(|| lock.write_lock().with_cancel(&stop).lock_owned());
        eventually("it waits", || server.numsub(CHANNEL) == 1);
        assert_eq!(entry(&server, "writer"), None);
        let next = scope.spawn(|| other.write_lock().with_cancel(&stop).lock_owned());
        writer_waits(&server);
        let writer = entry(&server, "writer").expect("it is announced");
        assert!(writer.ends_with(&second.id().to_string()), "{writer}");
        stop.cancel();
        for waiting in [again, next] {
            let error = in_time("it ends", waiting).expect_err("cancelled");
            assert!(error.is_cancelled(), "{error}");
        }
    });
    reading.unlock().expect("held");
}

#[test]
fn a_writer_that_gives_up_lets_readers_in_at_once() {
    let server = Server::start();
    let [first, second, third] = clients(&server).map(|it| it.rw_lock("a"));
    let reading = first.read_owned().expect("free");
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| second.write_lock().with_cancel(&stop).lock_owned());
        writer_waits(&server);
        let later = scope.spawn(|| third.read_owned());
        eventually("the reader waits", || server.numsub(CHANNEL) == 2);
        stop.cancel();
        assert!(in_time("it ends", waiting).is_err_and(|error| error.is_cancelled()));
        in_time("the reader enters", later).expect("granted").unlock().expect("held");
    });
    reading.unlock().expect("held");
    eventually("nothing is left", || server.keys().is_empty());
}

#[test]
fn a_writer_that_dies_while_it_waits_keeps_readers_out_for_a_poll_interval_at_most() {
    const POLL: Duration = Duration::from_millis(500);
    let mut bare = Bare::start();
    let url = bare.server.url();
    let [first, second, third] = [(); 3].map(|()| build(patient(url.clone()).poll_interval(POLL)));
    let reading = first.rw_lock("a").read_owned().expect("free");
    let ttl = i64::try_from(POLL.as_millis()).expect("a short time");
    // A process that was killed after its question.
    let dead = format!("{}:1", second.id());
    let refused = bare.call("write_acquire", &["a", TURNS], &["60000", &dead, &ttl.to_string()]);
    assert!(refused > 0 && (1..=ttl).contains(&pttl(&bare.server, TURNS)));
    assert!(third.rw_lock("a").try_read().expect("a reply").is_none());
    let begin = Instant::now();
    third.rw_lock("a").read_owned().expect("granted").unlock().expect("held");
    assert!(begin.elapsed() >= POLL / 2, "the announcement was in the way");
    reading.unlock().expect("held");
}

#[test]
fn readers_that_ignore_turns_enter_while_a_writer_waits() {
    let server = Server::start();
    let [first, second, third] = clients(&server).map(|it| it.rw_lock("a"));
    let preferring = third.clone().with_reader_preference();
    let reading = first.read_owned().expect("free");
    thread::scope(|scope| {
        let writing = scope.spawn(|| second.write_owned());
        writer_waits(&server);
        preferring.try_read().expect("a reply").expect("as in Redisson").unlock().expect("held");
        reading.unlock().expect("held");
        in_time("the writer has its turn", writing).expect("granted").unlock().expect("held");
    });
    let other = first.with_reader_preference();
    let reading = second.read_owned().expect("free");
    let writing = {
        let other = other.clone();
        sleeping("writer", move || other.write_owned())
    };
    assert!(!exists(&server, TURNS), "such a writer is not announced");
    third.try_read().expect("a reply").expect("nobody is announced").unlock().expect("held");
    reading.unlock().expect("held");
    join(writing).expect("granted").unlock().expect("held");
}

#[test]
fn a_thread_that_writes_may_read_while_another_writer_waits() {
    let server = Server::start();
    let [first, second, _] = clients(&server).map(|it| it.rw_lock("a"));
    let writing = first.write().expect("free");
    thread::scope(|scope| {
        let next = scope.spawn(|| second.write_owned());
        writer_waits(&server);
        let reading = first.read().expect("under its own write hold");
        writing.unlock().expect("held");
        assert!(reading.is_held());
        reading.unlock().expect("held");
        in_time("the writer has its turn", next).expect("granted").unlock().expect("held");
    });
}

/// Readers and writers of eight threads of three processes, none of which pauses.
#[test]
fn nobody_starves_among_readers_and_writers_without_pauses() {
    const ROUNDS: usize = 30;
    let server = Server::start();
    let clients = [(); 4].map(|()| build(Client::builder().single(server.url())));
    let locks: Vec<RwLock> = clients.iter().map(|client| client.rw_lock("a")).collect();
    thread::scope(|scope| {
        let callers: Vec<_> = (0..8)
            .map(|number| {
                let lock = &locks[number % locks.len()];
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        if number < 2 {
                            drop(lock.write_owned().expect("granted"));
                        } else {
                            drop(lock.read_owned().expect("granted"));
                        }
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| in_time("all rounds end", caller));
    });
}
