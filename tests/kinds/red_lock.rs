//! A lock on most of several servers, some of which are dead, silent, or have forgotten.

use crate::harness::faults::{BRIEF, NEVER, build, patient};
use crate::harness::wait::BOUND;
use crate::harness::{Direction, Proxy, Server, eventually, exists, in_time, pttl};
use leasehold::{Builder, Client, MultiGuard, RedLock};
use std::thread;
use std::time::{Duration, Instant};

struct Stage {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
    mine: RedLock,
    theirs: RedLock,
    clients: Vec<Client>,
}

/// Two holders; the way of one to the servers leads over proxies.
fn stage(servers: usize) -> Stage {
    stage_with(servers, NEVER)
}

fn stage_with(servers: usize, watchdog: Duration) -> Stage {
    stage_of(servers, |builder| builder.watchdog_timeout(watchdog))
}

fn stage_of(servers: usize, settings: impl Fn(Builder) -> Builder) -> Stage {
    let servers: Vec<_> = (0..servers).map(|_| Server::start()).collect();
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
    let client = |url: String| build(settings(patient(url).response_timeout(BRIEF)));
    let clients: Vec<_> = proxies.iter().map(|proxy| client(proxy.url())).collect();
    let others: Vec<_> = servers.iter().map(|server| client(server.url())).collect();
    let (mine, theirs) = (RedLock::new(clients.clone(), "a"), RedLock::new(others, "a"));
    Stage { servers, proxies, mine, theirs, clients }
}

/// A server may answer as late as the test makes it.
fn unhurried_stage(servers: usize) -> Stage {
    stage_of(servers, |builder| builder.response_timeout(BOUND))
}

impl Stage {
    fn holders(&self) -> usize {
        self.servers.iter().filter(|server| exists(server, "a")).count()
    }

    /// All servers know the scripts, none keeps the lock, and the third client has nothing to read.
    fn is_at_rest(&self) {
        self.mine.lock().and_then(MultiGuard::unlock).expect("all is well");
        eventually("nothing is left", || self.holders() == 0);
        self.third_has_read_all();
    }

    /// Has the third client read on its only connection what was answered there.
    fn third_has_read_all(&self) {
        self.clients[2].lock("quiet").is_locked().expect("an answer");
    }

    fn third_keeps_it_for(&self) -> i64 {
        pttl(&self.servers[2], "a")
    }
}

#[test]
fn all_servers_keep_it_and_most_are_enough() {
    let stage = stage(5);
    let guard = stage.mine.lock().expect("free");
    eventually("the last grants are taken in", || stage.holders() == 5);
    // Two forget it: others get no majority there.
    stage.servers[..2].iter().for_each(|server| server.ask::<()>(&["FLUSHALL"]));
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    eventually("what they were granted is given back", || stage.holders() == 3);
    assert!(guard.is_held());
    guard.unlock().expect("three of five");
    eventually("all is released", || stage.holders() == 0);
    drop(stage.theirs.try_lock().expect("an answer").expect("free"));
}

#[test]
fn a_dead_server_costs_nothing() {
    let stage = stage_with(3, Duration::from_millis(1500));
    stage.servers[1].kill();
    let guard = stage.mine.lock().expect("two of three");
    assert!(stage.theirs.try_lock().expect("an answer").is_none());
    // The watchdog keeps a majority.
    assert!(!guard.wait_lost(Duration::from_secs(3)));
    guard.unlock().expect("two of three");
    stage.servers[1].restart();
    let guard = stage.theirs.lock().expect("three of three");
    eventually("it is asked again", || exists(&stage.servers[1], "a"));
    drop(guard);
}

/// A server that stands still is not waited for, neither by who locks nor by who unlocks.
#[test]
fn a_silent_server_is_not_waited_for() {
    // Its answers are waited for longer than the test lasts.
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let client = |server: &Server| build(patient(server.url()).response_timeout(NEVER));
    let lock = RedLock::new(servers.iter().map(client), "a");
    lock.lock().and_then(MultiGuard::unlock).expect("all is well");
    servers[2].stop();
    thread::scope(|scope| {
        let pairs = scope.spawn(|| {
            (0..3).try_for_each(|_| lock.lock().and_then(MultiGuard::unlock)).map_err(drop)
        });
        assert_eq!(in_time("three pairs", pairs), Ok(()), "two of three");
    });
    servers[2].resume();
    eventually("nothing is left", || servers.iter().all(|server| server.keys().is_empty()));
}

#[test]
fn where_most_are_dead_or_silent_the_first_question_is_an_error() {
    let stage = stage(3);
    stage.servers[0].kill();
    stage.servers[1].stop();
    let began = Instant::now();
    let error = stage.mine.lock().map(drop).expect_err("one of three");
    assert!(error.is_connection(), "{error}");
    assert!(began.elapsed() < BOUND, "one time-out, and not for ever");
    let error = stage.theirs.is_locked().expect_err("one of three");
    assert!(error.is_connection(), "{error}");
    stage.servers[1].resume();
    stage.servers[0].restart();
    eventually("what the third granted is given back", || stage.holders() == 0);
    drop(stage.mine.lock().expect("three of three"));
}

/// Who waits already waits through it.
#[test]
fn a_waiter_goes_through_an_outage_of_most() {
    let stage = stage(3);
    let guard = stage.theirs.lock().expect("free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| stage.mine.lock().map(drop));
        let waits = |server: &Server| server.numsub("redisson_lock__channel:{a}") > 0;
        eventually("it waits", || stage.servers.iter().all(waits));
        stage.proxies[..2].iter().for_each(Proxy::refuse);
        stage.proxies[..2].iter().for_each(Proxy::kill_all);
        guard.unlock().expect("held");
        assert!(!waiter.is_finished());
        stage.proxies.iter().for_each(Proxy::heal);
        in_time("the waiter", waiter).expect("three of three");
    });
    eventually("nothing is left", || stage.holders() == 0);
}

#[test]
fn the_loss_of_most_is_the_loss_of_all_and_final() {
    let stage = stage_with(3, Duration::from_millis(900));
    let guard = stage.mine.lock_owned().expect("free");
    eventually("all have granted it", || stage.holders() == 3);
    stage.servers[0].ask::<()>(&["DEL", "a"]);
    assert!(!guard.wait_lost(Duration::from_millis(1500)), "two of three");
    stage.servers[1].ask::<()>(&["DEL", "a"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.wait_lost(NEVER));
        assert!(in_time("who waits for the loss", waiting));
    });
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    assert!(guard.remaining().is_zero());
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the third is released", || stage.holders() == 0);
}

/// An answer that comes after the decision belongs to the hold while it counts, and is given
/// back when it does not.
#[test]
fn late_grants_are_taken_in_or_given_back() {
    let stage = unhurried_stage(3);
    stage.is_at_rest();
    stage.proxies[2].hold_replies();
    let guard = stage.mine.lock().expect("two of three");
    eventually("the third has granted it", || stage.holders() == 3);
    stage.proxies[2].pass();
    // It counts from then on: another may go.
    let three = || guard.extend(NEVER).is_ok() && stage.third_keeps_it_for() > 60_000;
    eventually("it is taken in", three);
    guard.unlock().expect("held");
    // Most have released it by then, perhaps not the third.
    eventually("all have released it", || stage.holders() == 0);

    stage.third_has_read_all();
    stage.proxies[2].hold_replies();
    let guard = stage.mine.lock().expect("two of three");
    eventually("the third has granted it", || stage.holders() == 3);
    drop(guard);
    stage.proxies[2].pass();
    eventually("it is given back", || stage.holders() == 0);
}

/// What was asked of all before it came is asked of it, too.
#[test]
fn a_late_grant_lasts_as_long_as_the_others() {
    let stage = unhurried_stage(3);
    let brief = stage.mine.clone().with_lease(NEVER / 4);
    type Prolong = fn(&Stage, &MultiGuard);
    let extend: Prolong = |_, guard| guard.extend(NEVER).expect("two of three");
    let renew: Prolong = |stage, _| drop(stage.mine.lock().expect("it is held here"));
    for prolong in [extend, renew] {
        stage.is_at_rest();
        stage.proxies[2].hold_replies();
        let guard = brief.lock().expect("two of three");
        eventually("the third has granted it", || stage.holders() == 3);
        prolong(&stage, &guard);
        stage.proxies[2].pass();
        let quarter = (NEVER / 4).as_millis() as i64;
        eventually("it lasts", || stage.third_keeps_it_for() > quarter);
        guard.unlock().expect("held");
        eventually("all have released it", || stage.holders() == 0);
    }
}

/// One that is being extended is not taken for released.
#[test]
fn what_is_unlocked_is_free_on_most_servers() {
    const SLOW: Duration = Duration::from_millis(300);
    let stage = unhurried_stage(3);
    let brief = stage.mine.clone().with_lease(NEVER / 4);
    stage.is_at_rest();
    stage.proxies[2].delay(Direction::Replies, SLOW);
    let guard = brief.lock().expect("two of three");
    guard.extend(NEVER).expect("two of three");
    let quarter = (NEVER / 4).as_millis() as i64;
    eventually("the third extends it, late", || stage.third_keeps_it_for() > quarter);
    stage.proxies[0].hold_requests();
    if guard.unlock().is_ok() {
        assert!(stage.holders() <= 1, "most keep it still");
    }
    stage.proxies[0].pass();
    eventually("nothing is left", || stage.holders() == 0);
}

/// Two that ask at the same moment may split the servers between them; one gets through.
#[test]
fn a_split_vote_is_no_end() {
    const EACH: usize = 25;
    let stage = stage(3);
    let inside = std::sync::Mutex::new(());
    let work = |lock: &RedLock| {
        for _ in 0..EACH {
            let guard = lock.lock().expect("it comes round");
            let alone = inside.try_lock().expect("nobody else is in there");
            thread::yield_now();
            drop(alone);
            guard.unlock().expect("held");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| work(&stage.mine));
        scope.spawn(|| work(&stage.theirs));
    });
    eventually("nothing is left", || stage.holders() == 0);
}

/// A waiter is given what a minority has to give, gives it back, and hears that itself: it
/// must not take that for news each time.
#[test]
fn a_waiter_does_not_wake_itself() {
    let stage = stage(3);
    let guard = stage.theirs.lock().expect("free");
    eventually("all have granted it", || stage.holders() == 3);
    stage.servers[2].ask::<()>(&["DEL", "a"]);
    let asked = |stage: &Stage| stage.servers[2].calls("publish");
    assert!(stage.mine.try_lock_for(Duration::from_secs(2)).expect("an answer").is_none());
    let asked = asked(&stage);
    assert!(asked < 150, "{asked} messages in two seconds");
    drop(guard);
}

/// While the listener stands its channels are told to it, however often somebody waits.
#[test]
fn every_wait_subscribes() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let brief = Duration::from_millis(200);
    let client = |server: &Server| build(patient(server.url()).poll_interval(brief));
    let mine = RedLock::new(servers.iter().map(client), "a");
    let theirs = RedLock::new(servers.iter().map(client), "a");
    let listening = |count: usize| {
        servers.iter().all(|server| server.numsub("redisson_lock__channel:{a}") == count)
    };
    for _ in 0..3 {
        let guard = theirs.lock().expect("free");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| mine.lock().and_then(MultiGuard::unlock));
            eventually("it listens to all", || listening(1));
            guard.unlock().expect("held");
            in_time("the waiter", waiter).expect("free");
        });
        eventually("it listens no more", || listening(0));
    }
}

#[test]
fn what_a_thread_left_behind_is_renewed_no_more_and_can_be_ended() {
    let stage = stage_with(3, Duration::from_millis(900));
    let forget = |lock: &RedLock| {
        let lock = lock.clone();
        thread::spawn(move || std::mem::forget(lock.lock().expect("free")))
            .join()
            .expect("no panic");
    };
    forget(&stage.mine);
    eventually("its leases run out", || stage.holders() == 0);
    forget(&stage.mine);
    stage.mine.unlock().expect("it was left behind");
    eventually("it is ended", || stage.holders() == 0);
    assert!(stage.mine.unlock().is_err_and(|error| error.is_not_held()));
}

#[test]
fn an_unlock_after_close_is_one() {
    let stage = stage(3);
    let guard = stage.mine.lock().expect("free");
    stage.clients.iter().for_each(Client::close);
    guard.unlock().expect("it was held");
    // Most have released it by then.
    eventually("nothing is left", || stage.holders() == 0);
}

/// Somebody takes it away by hand: who waits in the holder's own process finds out at the poll
/// bound, not at the end of the lease.
#[test]
fn a_local_waiter_finds_out_that_the_lock_was_taken_away() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let client =
        |server: &Server| build(patient(server.url()).poll_interval(Duration::from_millis(200)));
    let lock = RedLock::new(servers.iter().map(client), "a").with_lease(NEVER);
    let guard = lock.lock_owned().expect("free");
    eventually("all have granted it", || servers.iter().all(|server| exists(server, "a")));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        servers.iter().for_each(|server| server.ask::<()>(&["DEL", "a"]));
        in_time("the waiter", waiter).expect("it is free");
    });
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
}

/// One server has forgotten the lock and another is slow to confirm it.
fn one_forgets_and_one_is_slow(stage: &Stage) {
    eventually("all have granted it", || stage.holders() == 3);
    stage.servers[2].ask::<()>(&["DEL", "a"]);
    stage.proxies[0].delay(Direction::Replies, Duration::from_secs(1));
}

/// A minority that does not keep a lock says nothing about the others.
#[test]
fn a_lock_is_reported_free_only_by_a_majority() {
    let stage = stage_of(3, |builder| builder.response_timeout(BOUND));
    let guard = stage.mine.lock().expect("free");
    one_forgets_and_one_is_slow(&stage);
    assert!(stage.mine.is_locked().expect("an answer"), "two of three keep it");
    assert!(stage.mine.remaining().expect("an answer").is_some());
    // A second server has forgotten it: the slow one decides nothing.
    stage.servers[1].ask::<()>(&["DEL", "a"]);
    assert!(!stage.mine.is_locked().expect("an answer"), "one of three keeps it");
    assert!(!stage.mine.force_unlock().expect("an answer"), "it was not held on most");
    stage.proxies[0].pass();
    drop(guard);
    eventually("nothing is left", || stage.holders() == 0);
    stage.clients.iter().for_each(Client::close);
}

/// One server keeps the lock, one does not, and one is dead: nobody knows.
#[test]
fn a_query_that_no_majority_answers_is_an_error() {
    let stage = stage(3);
    let guard = stage.theirs.lock().expect("free");
    eventually("all have granted it", || stage.holders() == 3);
    stage.servers[2].ask::<()>(&["DEL", "a"]);
    stage.servers[0].kill();
    assert!(stage.mine.is_locked().is_err_and(|error| error.is_connection()));
    assert!(stage.mine.remaining().is_err_and(|error| error.is_connection()));
    assert!(stage.mine.force_unlock().is_err_and(|error| error.is_connection()));
    drop(guard);
}

#[test]
fn a_local_waiter_leaves_a_hold_alone_that_a_minority_has_forgotten() {
    let brief = Duration::from_millis(100);
    let stage = stage_of(3, |builder| builder.poll_interval(brief).response_timeout(BOUND));
    let lock = stage.mine.clone().with_lease(NEVER);
    let guard = lock.lock_owned().expect("free");
    one_forgets_and_one_is_slow(&stage);
    let waited = lock.try_lock_for(Duration::from_secs(3)).expect("an answer");
    assert!(waited.is_none() && guard.is_held(), "two of three keep it");
    // The waiter does not wait for the query when the lock becomes free.
    stage.proxies[0].hold_replies();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        let asked = stage.servers[1].calls("pttl");
        eventually("the waiter queries the servers", || stage.servers[1].calls("pttl") > asked);
        drop(guard);
        in_time("the waiter", waiter).expect("two of three");
    });
    stage.proxies[0].pass();
    eventually("nothing is left", || stage.holders() == 0);
    stage.clients.iter().for_each(Client::close);
}

/// Who stands behind one that gets no answer does not know more than that one.
#[test]
fn a_deadline_in_an_outage_is_an_error_also_behind_others() {
    let stage = stage(3);
    let guard = stage.theirs.lock().expect("free");
    thread::scope(|scope| {
        let front = scope.spawn(|| stage.mine.try_lock_for(Duration::from_secs(6)).map(drop));
        let waits = |server: &Server| server.numsub("redisson_lock__channel:{a}") > 0;
        eventually("it waits", || stage.servers.iter().all(waits));
        stage.proxies.iter().for_each(Proxy::refuse);
        stage.proxies.iter().for_each(Proxy::kill_all);
        let behind = stage.mine.try_lock_for(Duration::from_secs(4)).map(drop);
        assert!(behind.is_err_and(|error| error.is_connection()));
        assert!(in_time("the front", front).is_err_and(|error| error.is_connection()));
        stage.proxies.iter().for_each(Proxy::heal);
    });
    drop(guard);
}

/// A thread that has the plain lock of that name on the servers does not wait for itself.
#[test]
fn a_thread_that_has_the_plain_locks_has_them_again() {
    let stage = stage(3);
    let plain = stage.clients.iter().map(|client| client.lock("a").lock().expect("free"));
    let plain: Vec<_> = plain.collect();
    let guard = stage.mine.try_lock().expect("an answer").expect("its own");
    drop(plain);
    assert!(guard.is_held() && stage.holders() == 3);
    guard.unlock().expect("held");
    eventually("all is released", || stage.holders() == 0);
}

/// Handles of the same clients and name share their line, whatever the order.
#[test]
fn the_same_clients_and_name_are_one_lock_for_a_thread() {
    let stage = stage(3);
    let reversed = RedLock::new(stage.clients.iter().rev().cloned(), "a");
    let twice = RedLock::new(stage.clients.iter().chain(&stage.clients).cloned(), "a");
    let guard = stage.mine.lock().expect("free");
    let (second, third) = (reversed.lock().expect("again"), twice.try_lock().expect("an answer"));
    assert_eq!((twice.hold_count(), twice.name()), (3, "a"));
    drop((guard, second));
    assert!(third.expect("again").is_held());
    assert!(RedLock::new([], "a").lock().is_err_and(|error| error.is_configuration()));
}
