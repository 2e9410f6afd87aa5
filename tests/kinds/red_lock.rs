//! `RedLock`: a lock on most of several servers, some of which fail or lose data.

use crate::harness::faults::{BRIEF, NEVER, build, patient};
use crate::harness::wait::BOUND;
use crate::harness::{Direction, Proxy, Server, eventually, exists, in_time, pttl};
use leasehold::{Builder, Client, Error, MultiGuard, RedLock};
use std::thread;
use std::time::{Duration, Instant};

/// Two locks of one name on the same servers, and the proxies and clients of `mine`.
struct Setup {
    servers: Vec<Server>,
    proxies: Vec<Proxy>,
    mine: RedLock,
    theirs: RedLock,
    clients: Vec<Client>,
}

/// Returns a setup with a lease that outlives the test.
fn setup(servers: usize) -> Setup {
    setup_of(servers, |builder| builder)
}

/// Returns a setup of three servers with this lease.
fn setup_with(watchdog: Duration) -> Setup {
    setup_of(3, |builder| builder.watchdog_timeout(watchdog))
}

fn setup_of(servers: usize, settings: impl Fn(Builder) -> Builder) -> Setup {
    let servers: Vec<_> = (0..servers).map(|_| Server::start()).collect();
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(server.addr())).collect();
    let client = |url: String| build(settings(patient(url).response_timeout(BRIEF)));
    let clients: Vec<_> = proxies.iter().map(|proxy| client(proxy.url())).collect();
    let others: Vec<_> = servers.iter().map(|server| client(server.url())).collect();
    let (mine, theirs) = (RedLock::new(clients.clone(), "a"), RedLock::new(others, "a"));
    Setup { servers, proxies, mine, theirs, clients }
}

/// Returns a setup of three servers with a response time-out that outlives the test.
fn patient_setup() -> Setup {
    setup_of(3, |builder| builder.response_timeout(BOUND))
}

impl Setup {
    /// Returns the number of servers that keep the lock.
    fn servers_with_the_lock(&self) -> usize {
        self.servers.iter().filter(|server| exists(server, "a")).count()
    }

    /// Blocks until all servers know the scripts, no server keeps the lock, and no reply is unread.
    fn settle(&self) {
        let guard = self.mine.lock().expect("all is well");
        // A question that starts late would find the next hold in its way.
        let all = self.servers.len();
        eventually("no question is open", || self.servers_with_the_lock() == all);
        guard.unlock().expect("all is well");
        eventually("nothing is left", || self.servers_with_the_lock() == 0);
        self.drain_the_third();
    }

    /// Takes the lock with the first two servers, then has the third join the hold.
    ///
    /// A hold is lost if a server of its first majority is lost before a late grant has joined. So
    /// without the third, its loss ends nothing.
    fn lock_without_the_third<G>(&self, lock: impl FnOnce() -> G) -> G {
        self.proxies[2].hold_replies();
        let guard = lock();
        self.proxies[2].pass();
        eventually("all have granted the lock", || self.servers_with_the_lock() == 3);
        guard
    }

    /// Has the third client read all replies on its only connection.
    fn drain_the_third(&self) {
        self.clients[2].lock("quiet").is_locked().expect("a reply");
    }

    /// Returns the remaining lease on the third server in ms.
    fn lease_on_the_third(&self) -> i64 {
        pttl(&self.servers[2], "a")
    }
}

#[test]
fn all_servers_grant_the_lock_and_a_majority_keeps_it() {
    let setup = setup(5);
    let guard = setup.mine.lock().expect("free");
    eventually("all have granted the lock", || setup.servers_with_the_lock() == 5);
    // Two servers lose their data: another caller gets no majority.
    setup.servers[..2].iter().for_each(|server| server.ask::<()>(&["FLUSHALL"]));
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    eventually("the minority is released", || setup.servers_with_the_lock() == 3);
    assert!(guard.is_held());
    guard.unlock().expect("three of five");
    eventually("all have released the lock", || setup.servers_with_the_lock() == 0);
    drop(setup.theirs.try_lock().expect("a reply").expect("free"));
}

#[test]
fn a_dead_server_prevents_neither_lock_nor_renewal() {
    let setup = setup_with(Duration::from_millis(1500));
    setup.servers[1].kill();
    let guard = setup.mine.lock().expect("two of three");
    assert!(setup.theirs.try_lock().expect("a reply").is_none());
    // The watchdog renews the lease on a majority.
    assert!(!guard.wait_lost(Duration::from_secs(3)));
    guard.unlock().expect("two of three");
    setup.servers[1].restart();
    let guard = setup.theirs.lock().expect("three of three");
    eventually("the restarted server grants the lock", || exists(&setup.servers[1], "a"));
    drop(guard);
}

#[test]
fn a_stopped_server_delays_neither_lock_nor_unlock() {
    // The response time-out outlives the test.
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let client = |server: &Server| build(patient(server.url()).response_timeout(NEVER));
    let lock = RedLock::new(servers.iter().map(client), "a");
    lock.lock().and_then(MultiGuard::unlock).expect("all is well");
    servers[2].stop();
    thread::scope(|scope| {
        let pairs = scope.spawn(|| {
            (0..3).try_for_each(|_| lock.lock().and_then(MultiGuard::unlock)).map_err(drop)
        });
        assert_eq!(in_time("three pairs return", pairs), Ok(()), "two of three");
    });
    servers[2].resume();
    eventually("nothing is left", || servers.iter().all(|server| server.keys().is_empty()));
}

#[test]
fn a_first_request_that_no_majority_answers_is_an_error() {
    let setup = setup(3);
    setup.servers[0].kill();
    setup.servers[1].stop();
    let began = Instant::now();
    let error = setup.mine.lock().map(drop).expect_err("one of three");
    assert!(error.is_connection(), "{error}");
    assert!(began.elapsed() < BOUND, "longer than one time-out");
    let error = setup.theirs.is_locked().expect_err("one of three");
    assert!(error.is_connection(), "{error}");
    setup.servers[1].resume();
    setup.servers[0].restart();
    eventually("the third server is released", || setup.servers_with_the_lock() == 0);
    drop(setup.mine.lock().expect("three of three"));
}

#[test]
fn a_waiter_survives_an_outage_of_a_majority() {
    let setup = setup(3);
    let guard = setup.theirs.lock().expect("free");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| setup.mine.lock().map(drop));
        let waits = |server: &Server| server.numsub("redisson_lock__channel:{a}") > 0;
        eventually("the caller waits", || setup.servers.iter().all(waits));
        setup.proxies[..2].iter().for_each(Proxy::refuse);
        setup.proxies[..2].iter().for_each(Proxy::kill_all);
        guard.unlock().expect("held");
        assert!(!waiter.is_finished());
        setup.proxies.iter().for_each(Proxy::heal);
        in_time("the waiter returns", waiter).expect("three of three");
    });
    eventually("nothing is left", || setup.servers_with_the_lock() == 0);
}

#[test]
fn the_loss_of_a_majority_is_final() {
    let setup = setup_with(Duration::from_millis(900));
    let guard = setup.lock_without_the_third(|| setup.mine.lock_owned().expect("two of three"));
    setup.servers[2].ask::<()>(&["DEL", "a"]);
    assert!(!guard.wait_lost(Duration::from_millis(1500)), "two of three");
    setup.servers[1].ask::<()>(&["DEL", "a"]);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| guard.wait_lost(NEVER));
        assert!(in_time("wait_lost returns", waiting));
    });
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    assert!(guard.remaining().is_zero());
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    eventually("the first server is released", || setup.servers_with_the_lock() == 0);
}

/// A grant that arrives after the call has returned joins the hold, or is released after its end.
#[test]
fn a_late_grant_joins_the_hold_or_is_released() {
    let setup = patient_setup();
    setup.settle();
    setup.proxies[2].hold_replies();
    let guard = setup.mine.lock().expect("two of three");
    eventually("the third server has granted the lock", || setup.servers_with_the_lock() == 3);
    setup.proxies[2].pass();
    // The third server belongs to the hold: an extension reaches it too.
    let extended = || guard.extend(NEVER).is_ok() && setup.lease_on_the_third() > 60_000;
    eventually("the grant joins the hold", extended);
    guard.unlock().expect("held");
    // A majority has released the lock here, perhaps not the third server.
    eventually("all have released the lock", || setup.servers_with_the_lock() == 0);

    setup.drain_the_third();
    setup.proxies[2].hold_replies();
    let guard = setup.mine.lock().expect("two of three");
    eventually("the third server has granted the lock", || setup.servers_with_the_lock() == 3);
    drop(guard);
    setup.proxies[2].pass();
    eventually("the late grant is released", || setup.servers_with_the_lock() == 0);
}

/// A longer lease that is requested before the grant arrives applies to the grant too.
#[test]
fn a_late_grant_gets_the_lease_of_the_others() {
    let setup = patient_setup();
    let brief = setup.mine.clone().with_lease(NEVER / 4);
    type Prolong = fn(&Setup, &MultiGuard);
    let extend: Prolong = |_, guard| guard.extend(NEVER).expect("two of three");
    let renew: Prolong = |setup, _| drop(setup.mine.lock().expect("re-entry"));
    for prolong in [extend, renew] {
        setup.settle();
        setup.proxies[2].hold_replies();
        let guard = brief.lock().expect("two of three");
        eventually("the third server has granted the lock", || setup.servers_with_the_lock() == 3);
        prolong(&setup, &guard);
        setup.proxies[2].pass();
        let quarter = (NEVER / 4).as_millis() as i64;
        eventually("the late grant is extended", || setup.lease_on_the_third() > quarter);
        guard.unlock().expect("held");
        eventually("all have released the lock", || setup.servers_with_the_lock() == 0);
    }
}

/// A server on which a late grant is being extended does not count as released.
#[test]
fn an_unlocked_lock_is_free_on_a_majority() {
    const SLOW: Duration = Duration::from_millis(300);
    let setup = patient_setup();
    let brief = setup.mine.clone().with_lease(NEVER / 4);
    setup.settle();
    setup.proxies[2].delay(Direction::Replies, SLOW);
    let guard = brief.lock().expect("two of three");
    guard.extend(NEVER).expect("two of three");
    let quarter = (NEVER / 4).as_millis() as i64;
    eventually("the third server extends the lease late", || setup.lease_on_the_third() > quarter);
    setup.proxies[0].hold_requests();
    if guard.unlock().is_ok() {
        assert!(setup.servers_with_the_lock() <= 1, "a majority keeps the lock");
    }
    setup.proxies[0].pass();
    eventually("nothing is left", || setup.servers_with_the_lock() == 0);
}

/// Two callers at the same time may each get a minority. One of them has to succeed.
#[test]
fn callers_that_split_the_servers_get_the_lock_in_the_end() {
    const EACH: usize = 25;
    let setup = setup(3);
    let inside = std::sync::Mutex::new(());
    let work = |lock: &RedLock| {
        for _ in 0..EACH {
            let guard = lock.lock().expect("the lock is granted in the end");
            let alone = inside.try_lock().expect("no other caller is inside");
            thread::yield_now();
            drop(alone);
            guard.unlock().expect("held");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| work(&setup.mine));
        scope.spawn(|| work(&setup.theirs));
    });
    eventually("nothing is left", || setup.servers_with_the_lock() == 0);
}

/// A waiter releases the grants of a minority, and receives the messages of these releases itself.
#[test]
fn a_waiter_does_not_wake_itself() {
    let setup = patient_setup();
    let guard = setup.theirs.lock().expect("free");
    eventually("all have granted the lock", || setup.servers_with_the_lock() == 3);
    setup.servers[2].ask::<()>(&["DEL", "a"]);
    assert!(setup.mine.try_lock_for(Duration::from_secs(2)).expect("a reply").is_none());
    let messages = setup.servers[2].calls("publish");
    assert!(messages < 150, "{messages} messages in two seconds");
    drop(guard);
}

/// Waits one after the other use the same listener.
#[test]
fn each_wait_subscribes_and_unsubscribes() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let brief = Duration::from_millis(200);
    let client = |server: &Server| build(patient(server.url()).poll_interval(brief));
    let mine = RedLock::new(servers.iter().map(client), "a");
    let theirs = RedLock::new(servers.iter().map(client), "a");
    let subscribed = |count: usize| {
        servers.iter().all(|server| server.numsub("redisson_lock__channel:{a}") == count)
    };
    for _ in 0..3 {
        let guard = theirs.lock().expect("free");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| mine.lock().and_then(MultiGuard::unlock));
            eventually("the waiter is subscribed to all servers", || subscribed(1));
            guard.unlock().expect("held");
            in_time("the waiter returns", waiter).expect("free");
        });
        eventually("the waiter is unsubscribed", || subscribed(0));
    }
}

#[test]
fn a_hold_leaked_by_an_ended_thread_is_not_renewed_and_can_be_unlocked() {
    let setup = setup_with(Duration::from_millis(900));
    let leak = |lock: &RedLock| {
        let lock = lock.clone();
        thread::spawn(move || std::mem::forget(lock.lock().expect("free")))
            .join()
            .expect("no panic");
    };
    leak(&setup.mine);
    eventually("the leases end", || setup.servers_with_the_lock() == 0);
    leak(&setup.mine);
    setup.mine.unlock().expect("the hold was leaked");
    eventually("the hold is released", || setup.servers_with_the_lock() == 0);
    assert!(setup.mine.unlock().is_err_and(|error| error.is_not_held()));
}

#[test]
fn an_unlock_after_the_close_of_its_clients_succeeds() {
    let setup = setup(3);
    let guard = setup.mine.lock().expect("free");
    setup.clients.iter().for_each(Client::close);
    guard.unlock().expect("it was held");
    // A majority has released the lock here.
    eventually("nothing is left", || setup.servers_with_the_lock() == 0);
}

/// The waiter in the holder's process learns of it at a poll, not at the end of the lease.
#[test]
fn a_local_waiter_learns_that_the_lock_was_deleted() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let client =
        |server: &Server| build(patient(server.url()).poll_interval(Duration::from_millis(200)));
    let lock = RedLock::new(servers.iter().map(client), "a").with_lease(NEVER);
    let guard = lock.lock_owned().expect("free");
    eventually("all have granted the lock", || servers.iter().all(|server| exists(server, "a")));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        servers.iter().for_each(|server| server.ask::<()>(&["DEL", "a"]));
        in_time("the waiter returns", waiter).expect("it is free");
    });
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
}

/// Deletes the lock on the third server, and slows down the replies of the first.
fn delete_on_one_and_slow_down_one(setup: &Setup) {
    setup.servers[2].ask::<()>(&["DEL", "a"]);
    setup.proxies[0].delay(Direction::Replies, Duration::from_secs(1));
}

/// The slow server decides while the other two disagree.
#[test]
fn a_lock_is_reported_free_only_by_a_majority() {
    let setup = patient_setup();
    let guard = setup.lock_without_the_third(|| setup.mine.lock().expect("two of three"));
    delete_on_one_and_slow_down_one(&setup);
    assert!(setup.mine.is_locked().expect("a reply"), "two of three keep it");
    assert!(setup.mine.remaining().expect("a reply").is_some());
    // Two servers report the lock free: the reply of the slow server does not matter.
    setup.servers[1].ask::<()>(&["DEL", "a"]);
    assert!(!setup.mine.is_locked().expect("a reply"), "one of three keeps it");
    assert!(!setup.mine.force_unlock().expect("a reply"), "no majority kept it");
    setup.proxies[0].pass();
    drop(guard);
    eventually("nothing is left", || setup.servers_with_the_lock() == 0);
    setup.clients.iter().for_each(Client::close);
}

/// One server keeps the lock, one does not, and one is dead.
#[test]
fn a_query_that_no_majority_answers_is_an_error() {
    let setup = setup(3);
    let guard = setup.theirs.lock().expect("free");
    eventually("all have granted the lock", || setup.servers_with_the_lock() == 3);
    setup.servers[2].ask::<()>(&["DEL", "a"]);
    setup.servers[0].kill();
    assert!(setup.mine.is_locked().is_err_and(|error| error.is_connection()));
    assert!(setup.mine.remaining().is_err_and(|error| error.is_connection()));
    assert!(setup.mine.force_unlock().is_err_and(|error| error.is_connection()));
    drop(guard);
}

#[test]
fn a_local_waiter_does_not_end_a_hold_that_a_minority_lost() {
    let brief = Duration::from_millis(100);
    let setup = setup_of(3, |builder| builder.poll_interval(brief).response_timeout(BOUND));
    let lock = setup.mine.clone().with_lease(NEVER);
    let guard = setup.lock_without_the_third(|| lock.lock_owned().expect("two of three"));
    delete_on_one_and_slow_down_one(&setup);
    let waited = lock.try_lock_for(Duration::from_secs(3)).expect("a reply");
    assert!(waited.is_none() && guard.is_held(), "two of three keep it");
    // A waiter does not wait for the reply to its query when the lock becomes free.
    setup.proxies[0].hold_replies();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.lock().and_then(MultiGuard::unlock));
        let before = setup.servers[1].calls("pttl");
        eventually("the waiter queries the servers", || setup.servers[1].calls("pttl") > before);
        drop(guard);
        in_time("the waiter returns", waiter).expect("two of three");
    });
    setup.proxies[0].pass();
    eventually("nothing is left", || setup.servers_with_the_lock() == 0);
    setup.clients.iter().for_each(Client::close);
}

/// Whether the lock is held is unknown to all callers in the queue.
#[test]
fn a_deadline_behind_the_head_of_the_queue_in_an_outage_is_an_error() {
    let setup = setup(3);
    let guard = setup.theirs.lock().expect("free");
    thread::scope(|scope| {
        let head = scope.spawn(|| setup.mine.try_lock_for(Duration::from_secs(6)).map(drop));
        let waits = |server: &Server| server.numsub("redisson_lock__channel:{a}") > 0;
        eventually("the caller waits", || setup.servers.iter().all(waits));
        setup.proxies.iter().for_each(Proxy::refuse);
        setup.proxies.iter().for_each(Proxy::kill_all);
        let behind = setup.mine.try_lock_for(Duration::from_secs(4)).map(drop);
        let is_unknown = |error: Error| error.is_connection() || error.is_timeout();
        assert!(behind.is_err_and(is_unknown));
        assert!(in_time("the head returns", head).is_err_and(is_unknown));
        setup.proxies.iter().for_each(Proxy::heal);
    });
    drop(guard);
}

/// The thread would wait for itself otherwise.
#[test]
fn a_thread_that_holds_the_plain_locks_of_the_name_re_enters_them() {
    let setup = setup(3);
    let plain = setup.clients.iter().map(|client| client.lock("a").lock().expect("free"));
    let plain: Vec<_> = plain.collect();
    let guard = setup.mine.try_lock().expect("a reply").expect("re-entry");
    // The call ends with the majority of the answers.
    let has_re_entered = |client: &Client| client.lock("a").hold_count() == 2;
    eventually("the last server is re-entered too", || setup.clients.iter().all(has_re_entered));
    drop(plain);
    assert!(guard.is_held() && setup.servers_with_the_lock() == 3);
    guard.unlock().expect("held");
    eventually("all have released the lock", || setup.servers_with_the_lock() == 0);
}

/// The order of the clients and repetitions do not matter.
#[test]
fn the_same_clients_and_name_are_one_lock_for_a_thread() {
    let setup = setup(3);
    let reversed = RedLock::new(setup.clients.iter().rev().cloned(), "a");
    let twice = RedLock::new(setup.clients.iter().chain(&setup.clients).cloned(), "a");
    let guard = setup.mine.lock().expect("free");
    let (second, third) = (reversed.lock().expect("re-entry"), twice.try_lock().expect("a reply"));
    assert_eq!((twice.hold_count(), twice.name()), (3, "a"));
    drop((guard, second));
    assert!(third.expect("re-entry").is_held());
    assert!(RedLock::new([], "a").lock().is_err_and(|error| error.is_configuration()));
}
