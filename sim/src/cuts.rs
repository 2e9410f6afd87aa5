//! Calls whose request or reply is cut after each byte, one cut in each run.
//!
//! The outcome that a call returns has to be true, its effect has to happen once, and nothing may
//! be left on the server. Searches cut too, but not each call after each byte.

use crate::deployment::wait_until;
use crate::left::Inspected;
use crate::run::{LONGEST, PREEMPTED};
use crate::server::Server;
use crate::system::thread;
use leasehold::{Begin, Client, Error, Events, OnceRun, Released, Result, Semaphore};
use leasehold_testserver::core::{Address, Core};
use simulated::net::{self, Direction};
use simulated::world::{self, Settings};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than a run. Leases end, and callers ask again, only by what happens in a run.
const NEVER: Duration = Duration::from_secs(300);

/// The time after which all that has begun is done, unless it waits for something. Listeners, which
/// ask for a sign of life each second, are quiet then.
const AT_REST: Duration = Duration::from_millis(700);

/// The permits of a semaphore.
const CAPACITY: u32 = 5;

/// The fewest bytes of a request.
const SHORTEST: usize = 100;

/// Whether the server accepts new connections after the cut.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Accepts,
    Refuses,
}

/// The connection breaks after this many bytes of a request or of its reply.
#[derive(Clone, Copy, Debug)]
struct Cut {
    direction: Direction,
    after: usize,
    then: Then,
}

/// Something that is cut.
struct Case {
    name: &'static str,
    /// Runs it with a cut.
    run: fn(&Setup),
}

const CASES: [Case; 23] = [
    Case { name: "an acquire", run: acquire },
    Case { name: "an unlock", run: unlock },
    Case { name: "the release of a dropped guard", run: drop_guard },
    Case { name: "the acquire of a waiter", run: wait },
    Case { name: "an acquire of a queue lock", run: acquire_queued },
    Case { name: "the acquire of a waiter for a queue lock", run: wait_queued },
    Case { name: "an unlock of a queue lock", run: unlock_queued },
    Case { name: "a begin of work", run: begin_work },
    Case { name: "a commit", run: commit },
    Case { name: "a deletion of a result", run: forget },
    Case { name: "an acquire of permits", run: acquire_permits },
    Case { name: "a release of permits", run: release_permits },
    Case { name: "the release of a dropped permit", run: drop_permits },
    Case { name: "a resize beside permits", run: resize },
    Case { name: "a take", run: |setup| change(setup, &TAKE) },
    Case { name: "a drain", run: |setup| change(setup, &DRAIN) },
    Case { name: "an addition", run: |setup| change(setup, &ADD) },
    Case { name: "a set of permits", run: |setup| change(setup, &SET) },
    Case { name: "a count-down", run: |setup| change(setup, &COUNT_DOWN) },
    Case { name: "a count-down by a guard", run: count_down_on_drop },
    Case { name: "a set of a latch", run: |setup| change(setup, &SET_COUNT) },
    Case { name: "a deletion of a latch", run: |setup| change(setup, &DELETE) },
    Case { name: "a resize", run: |setup| change(setup, &RESIZE) },
];

/// Runs all cases. Returns whether all went well.
pub fn run_all() -> bool {
    let (mut is_good, mut runs) = (true, 0);
    for case in &CASES {
        for direction in [Direction::Requests, Direction::Replies] {
            for then in [Then::Accepts, Then::Refuses] {
                let cut = |after| Cut { direction, after, then };
                let mut cuts = 0;
                // A cut behind the last byte does not happen.
                while let Some(went_well) = run_once(case, cut(cuts)) {
                    is_good &= went_well;
                    cuts += 1;
                }
                if cuts < if direction == Direction::Requests { SHORTEST } else { 1 } {
                    println!("{}: {direction:?} are cut {cuts} times only", case.name);
                    is_good = false;
                }
                runs += cuts;
            }
        }
    }
    println!("{} calls, {runs} cuts", CASES.len());
    is_good
}

/// Runs a case with a cut. Returns whether it went well; `None` if the cut did not happen.
fn run_once(case: &Case, cut: Cut) -> Option<bool> {
    let run = case.run;
    let was_cut = Arc::new(Mutex::new(false));
    let cut_happens = Arc::clone(&was_cut);
    let seed = cut.after as u64;
    let settings = Settings { seed, preempted: PREEMPTED, is_traced: false, longest: LONGEST };
    let outcome = world::run(settings, move || {
        let setup = Setup::new(cut);
        run(&setup);
        setup.end();
        *cut_happens.lock().expect("no panic") = net::cuts() > 0;
    });
    let panics = crate::watch::take_panics();
    if outcome.stuck.is_some() || !panics.is_empty() {
        println!("{} with {cut:?}: {:?} {panics:?}", case.name, outcome.stuck);
        // A case that fails at each cut would go on for ever.
        return (cut.after < 2_000).then_some(false);
    }
    let was_cut = *was_cut.lock().expect("no panic");
    was_cut.then_some(true)
}

/// A server, a client whose next request or reply is cut, and another client.
struct Setup {
    server: Server,
    client: Client,
    direct: Client,
    cut: Cut,
    released: Releases,
}

/// The releases that a client has reported.
#[derive(Clone, Default)]
struct Releases(Arc<Mutex<Vec<Released>>>);

impl Events for Releases {
    fn released(&self, released: &Released) {
        self.0.lock().expect("no panic").push(released.clone());
    }
}

impl Setup {
    fn new(cut: Cut) -> Setup {
        let server = Server::start(Address::new("10.0.0.1", 6379), Core::new(1));
        let settings = || {
            let spans = Client::builder().watchdog_timeout(NEVER).poll_interval(NEVER);
            spans.single(server.url()).pool_size(1).announce(false)
        };
        let direct = settings().build().expect("it is well");
        let released = Releases::default();
        let client = settings().events(released.clone()).build().expect("it is well");
        Setup { server, client, direct, cut, released }
    }

    /// Has the next request, or its reply, cut. All scripts must be known to the server.
    fn prepare(&self) {
        thread::sleep(AT_REST);
        self.client.lock("quiet").is_locked().expect("nothing is cut so far");
        net::cut_latest_after(self.cut.direction, self.cut.after);
        net::refuse_connections(self.server.id, self.cut.then == Then::Refuses);
    }

    /// Lets the server accept connections again. A later request is not cut.
    fn heal(&self) {
        net::heal();
        net::refuse_connections(self.server.id, false);
    }

    /// Asserts that a call that failed cannot have received a complete reply.
    fn assert_may_fail(&self, error: &Error) {
        assert!(net::cuts() > 0 && self.cut.then == Then::Refuses, "{error}");
        assert!(error.is_connection(), "{error}");
    }

    fn exists(&self, key: &str) -> bool {
        self.server.keys().iter().any(|it| it == key)
    }

    fn keys_of(&self, prefix: &str) -> Vec<String> {
        self.server.keys().into_iter().filter(|key| key.starts_with(prefix)).collect()
    }

    /// Waits for the report of the release, which tells of no error.
    fn assert_released(&self) {
        let reports = || self.released.0.lock().expect("no panic").clone();
        wait_until("the release is reported", || !reports().is_empty());
        assert!(reports().iter().all(|it| it.error.is_none()), "{:?}", reports());
    }

    /// Another caller takes the lock and gives it back.
    fn assert_others_can_take(&self, name: &str) {
        let guard = self.direct.lock(name).try_lock().expect("it is well");
        guard.expect("the lock is free").unlock().expect("it is held");
        assert!(!self.exists(name));
    }

    /// Closes the clients. No connection may be left.
    fn end(self) {
        self.heal();
        drop((self.client, self.direct));
        wait_until("all connections end", || self.server.connections().is_empty());
    }
}

// --- locks

fn use_directly(setup: &Setup) {
    setup.direct.lock("warm").lock().expect("free").unlock().expect("held");
}

fn acquire(setup: &Setup) {
    use_directly(setup);
    setup.prepare();
    let outcome = setup.client.lock("a").try_lock();
    setup.heal();
    match outcome {
        Ok(guard) => {
            let guard = guard.expect("no other caller wants the lock");
            assert!(guard.is_held() && setup.exists("a"));
            assert!(setup.direct.lock("a").try_lock().expect("it is well").is_none());
            guard.unlock().expect("it is held");
        }
        Err(error) => {
            setup.assert_may_fail(&error);
            wait_until("the acquire is undone", || !setup.exists("a"));
        }
    }
    setup.assert_others_can_take("a");
}

/// Asserts that a release takes effect once, and does not touch the hold of another caller.
fn check_release(setup: &Setup, is_done: bool) {
    let other = setup.direct.lock("a").try_lock().expect("it is well");
    assert!(other.is_some() || !is_done, "the lock was released, and is not free");
    setup.heal();
    setup.assert_released();
    match other {
        Some(guard) => {
            assert!(setup.exists("a"));
            guard.unlock().expect("a repeated release does not touch another hold");
        }
        None => setup.assert_others_can_take("a"),
    }
    assert!(!setup.exists("a"));
}

fn unlock(setup: &Setup) {
    use_directly(setup);
    let guard = setup.client.lock("a").lock().expect("free");
    setup.prepare();
    let outcome = guard.unlock();
    if let Err(error) = &outcome {
        setup.assert_may_fail(error);
    }
    check_release(setup, outcome.is_ok());
}

fn drop_guard(setup: &Setup) {
    use_directly(setup);
    let guard = setup.client.lock("a").lock().expect("free");
    setup.prepare();
    drop(guard);
    let is_reported = || !setup.released.0.lock().expect("no panic").is_empty();
    wait_until("the release is cut or done", || net::cuts() > 0 || is_reported());
    check_release(setup, is_reported());
}

fn wait(setup: &Setup) {
    let holder = setup.direct.lock("a").lock().expect("free");
    thread::scope(|scope| {
        let lock = setup.client.lock("a");
        let waiter = scope.spawn(move || lock.lock_owned());
        setup.prepare();
        holder.unlock().expect("it is held");
        thread::sleep(AT_REST);
        setup.heal();
        let guard = waiter.join().expect("no panic").expect("a waiter survives a cut");
        assert!(guard.is_held() && setup.exists("a"));
    });
    wait_until("the lock is free", || !setup.exists("a"));
}

// --- queue locks

fn acquire_queued(setup: &Setup) {
    setup.direct.queue_lock("a").lock().expect("free").unlock().expect("held");
    setup.prepare();
    let outcome = setup.client.queue_lock("a").try_lock();
    setup.heal();
    match outcome {
        Ok(guard) => {
            let guard = guard.expect("no other caller wants the lock");
            assert!(guard.is_held() && setup.exists("a"));
            guard.unlock().expect("it is held");
        }
        Err(error) => setup.assert_may_fail(&error),
    }
    assert_queue_is_gone(setup);
}

fn assert_queue_is_gone(setup: &Setup) {
    let is_gone = || !setup.exists("a") && setup.keys_of("leasehold_queue:").is_empty();
    wait_until("nobody has the lock or waits", is_gone);
}

fn wait_queued(setup: &Setup) {
    let holder = setup.direct.queue_lock("a").lock().expect("free");
    // The listener connects with the first wait.
    let first = setup.direct.queue_lock("warm").lock().expect("free");
    let wait = |name| {
        let lock = setup.client.queue_lock(name);
        thread::spawn(move || lock.lock_owned())
    };
    let waiter = wait("warm");
    thread::sleep(AT_REST);
    first.unlock().expect("it is held");
    drop(waiter.join().expect("no panic").expect("it is granted"));
    setup.prepare();
    let waiter = wait("a");
    thread::sleep(AT_REST);
    holder.unlock().expect("it is held");
    thread::sleep(AT_REST);
    setup.heal();
    match waiter.join().expect("no panic") {
        Ok(guard) => {
            assert!(guard.is_held() && setup.exists("a"));
            guard.unlock().expect("it is held");
        }
        Err(error) => setup.assert_may_fail(&error),
    }
    assert_queue_is_gone(setup);
}

fn unlock_queued(setup: &Setup) {
    let guard = setup.client.queue_lock("a").lock().expect("free");
    let warm = setup.direct.queue_lock("warm").lock().expect("free");
    warm.unlock().expect("it is held");
    let lock = setup.direct.queue_lock("a");
    let waiter = thread::spawn(move || lock.lock_owned());
    setup.prepare();
    let outcome = guard.unlock();
    setup.heal();
    if let Err(error) = &outcome {
        setup.assert_may_fail(error);
    }
    setup.assert_released();
    let next = waiter.join().expect("no panic").expect("it is granted");
    thread::sleep(AT_REST);
    next.unlock().expect("a repeated release has not touched this hold");
    assert_queue_is_gone(setup);
}

// --- work that is done once

/// Runs work that nobody does.
fn run_of(client: &Client, name: &str) -> Result<OnceRun> {
    match client.once(name).try_begin()? {
        Some(Begin::Run(run)) => Ok(run),
        other => panic!("nobody does the work: {other:?}"),
    }
}

/// Has the server learn the scripts.
fn use_once_directly(setup: &Setup) {
    run_of(&setup.direct, "warm").expect("it is well").commit("x").expect("it is held");
    assert!(setup.direct.once("warm").forget().expect("it is well"));
}

fn begin_work(setup: &Setup) {
    use_once_directly(setup);
    setup.prepare();
    let outcome = run_of(&setup.client, "a");
    setup.heal();
    match outcome {
        Ok(run) => {
            assert!(run.is_held() && setup.exists("a"));
            run.commit("x").expect("it is held");
        }
        Err(error) => {
            setup.assert_may_fail(&error);
            wait_until("the begin is undone", || !setup.exists("a"));
        }
    }
    assert!(!setup.exists("a"));
}

/// A commit goes on without a reply until its lease is over: here that is never.
fn commit(setup: &Setup) {
    use_once_directly(setup);
    let run = run_of(&setup.client, "a").expect("it is well");
    setup.prepare();
    let healed = thread::spawn({
        let server = setup.server.clone();
        move || {
            thread::sleep(AT_REST);
            net::heal();
            net::refuse_connections(server.id, false);
        }
    });
    let own = run.commit("x").expect("a commit survives a cut");
    healed.join().expect("no panic");
    assert_eq!(setup.direct.once("a").outcome(), Ok(Some(own)));
    setup.assert_released();
    assert!(!setup.exists("a"));
}

fn forget(setup: &Setup) {
    use_once_directly(setup);
    run_of(&setup.direct, "a").expect("it is well").commit("x").expect("it is held");
    setup.prepare();
    let outcome = setup.client.once("a").forget();
    setup.heal();
    match &outcome {
        Ok(was_there) => assert!(*was_there),
        Err(error) => {
            setup.assert_may_fail(error);
            wait_until("the request is closed", || !records(setup).is_empty());
        }
    }
    let is_open = records(setup).iter().any(|it| setup.server.text(it).as_deref() == Some("0"));
    let left = setup.direct.once("a").outcome().expect("it is well");
    assert_eq!(left.is_some(), is_open && outcome.is_err());
}

// --- permits with a lease

fn semaphore(client: &Client) -> Semaphore {
    client.semaphore("a").with_permits(CAPACITY)
}

/// Returns whether so many permits are in use, and the others free.
fn are_in_use(setup: &Setup, permits: u32) -> bool {
    let free = (CAPACITY - permits).to_string();
    setup.server.text("a") == Some(free) && setup.exists("{a}:timeout") == (permits > 0)
}

fn take_all_directly(setup: &Setup) {
    let all = semaphore(&setup.direct).try_acquire_many(CAPACITY).expect("it is well");
    all.expect("all permits are free").release().expect("they are held");
}

fn acquire_permits(setup: &Setup) {
    take_all_directly(setup);
    setup.prepare();
    let outcome = semaphore(&setup.client).try_acquire_many(3);
    setup.heal();
    match outcome {
        Ok(permit) => {
            let permit = permit.expect("no other caller wants permits");
            assert!(permit.is_held());
            assert!(are_in_use(setup, 3));
            permit.release().expect("they are held");
        }
        Err(error) => {
            setup.assert_may_fail(&error);
            wait_until("the acquire is undone", || are_in_use(setup, 0));
        }
    }
    take_all_directly(setup);
}

fn release_permits(setup: &Setup) {
    take_all_directly(setup);
    let permit = semaphore(&setup.client).acquire_many(3).expect("they are free");
    setup.prepare();
    let outcome = permit.release();
    let other = semaphore(&setup.direct).try_acquire_many(3).expect("it is well");
    assert!(other.is_some() || outcome.is_err(), "the permits were released, and are not free");
    setup.heal();
    if let Err(error) = &outcome {
        setup.assert_may_fail(error);
    }
    setup.assert_released();
    assert!(are_in_use(setup, if other.is_some() { 3 } else { 0 }));
    if let Some(other) = other {
        other.release().expect("they are held");
    }
}

fn drop_permits(setup: &Setup) {
    take_all_directly(setup);
    let permit = semaphore(&setup.client).acquire_many(2).expect("they are free");
    setup.prepare();
    drop(permit);
    thread::sleep(AT_REST);
    setup.heal();
    setup.assert_released();
    assert!(are_in_use(setup, 0));
}

fn resize(setup: &Setup) {
    take_all_directly(setup);
    setup.direct.semaphore("warm").resize(9).expect("it is well");
    setup.prepare();
    let outcome = semaphore(&setup.client).resize(9);
    setup.heal();
    if let Err(error) = &outcome {
        setup.assert_may_fail(error);
        wait_until("it is settled", || !records(setup).is_empty());
    }
    let capacity = semaphore(&setup.direct).permits().expect("it is well");
    let is_undone = capacity == i64::from(CAPACITY) && outcome.is_err();
    assert!(capacity == 9 || is_undone, "{capacity}");
}

// --- counts

/// A change of a count that begins at 10.
struct Change {
    /// Whether the key exists before the change.
    exists: bool,
    run: fn(&Client, &str) -> Result<()>,
    /// The count after the change.
    done: Option<&'static str>,
    unanswered: Unanswered,
}

/// The end of a change without a reply.
#[derive(Clone, Copy, PartialEq)]
enum Unanswered {
    Undone,
    Completed,
    /// Done before its close, or never. Then the content of its record is 0.
    Closed,
}

const TAKE: Change = Change {
    exists: true,
    run: |client, name| client.plain_semaphore(name).try_acquire(3).map(|taken| assert!(taken)),
    done: Some("7"),
    unanswered: Unanswered::Undone,
};

const DRAIN: Change = Change {
    exists: true,
    run: |client, name| client.plain_semaphore(name).drain().map(|taken| assert_eq!(taken, 10)),
    done: Some("0"),
    unanswered: Unanswered::Undone,
};

const ADD: Change = Change {
    exists: true,
    run: |client, name| client.plain_semaphore(name).release(4),
    done: Some("14"),
    unanswered: Unanswered::Completed,
};

const SET: Change = Change {
    exists: false,
    run: |client, name| client.plain_semaphore(name).try_set_permits(10).map(|set| assert!(set)),
    done: Some("10"),
    unanswered: Unanswered::Closed,
};

const COUNT_DOWN: Change = Change {
    exists: true,
    run: |client, name| client.latch(name).count_down(),
    done: Some("9"),
    unanswered: Unanswered::Completed,
};

const SET_COUNT: Change = Change {
    exists: false,
    run: |client, name| client.latch(name).try_set_count(10).map(|set| assert!(set)),
    done: Some("10"),
    unanswered: Unanswered::Closed,
};

const DELETE: Change = Change {
    exists: true,
    run: |client, name| client.latch(name).delete().map(|deleted| assert!(deleted)),
    done: None,
    unanswered: Unanswered::Closed,
};

/// The capacity of a semaphore, none of whose permits is in use.
const RESIZE: Change = Change {
    exists: true,
    run: |client, name| client.semaphore(name).resize(25),
    done: Some("25"),
    unanswered: Unanswered::Closed,
};

impl Change {
    /// Sets the count, and has the server learn the script by a change of another count.
    fn prepare(&self, setup: &Setup) {
        if self.exists {
            for name in ["a", "warm"] {
                setup.server.ask(&["SET", name, "10"]);
            }
        }
        (self.run)(&setup.direct, "warm").expect("it is well");
        setup.prepare();
    }

    fn assert_count(&self, setup: &Setup, is_done: bool) {
        let before = self.exists.then_some("10");
        let expected = if is_done { self.done } else { before };
        assert_eq!(setup.server.text("a").as_deref(), expected);
    }

    /// Waits until a change without a reply is settled, and checks the count.
    fn assert_settled(&self, setup: &Setup, error: &Error) {
        let is_repeatable = self.unanswered != Unanswered::Completed;
        assert!(is_repeatable || !error.is_retryable(), "a second call would count twice: {error}");
        let content = || {
            let records = records(setup);
            assert!(records.len() <= 1, "one request has one record: {records:?}");
            records.first().and_then(|record| setup.server.text(record))
        };
        match self.unanswered {
            Unanswered::Undone => {
                wait_until("it is undone", || content().as_deref() == Some("undone"));
                self.assert_count(setup, false);
            }
            Unanswered::Completed => {
                wait_until("it is completed", || content().is_some());
                self.assert_count(setup, true);
            }
            Unanswered::Closed => {
                wait_until("it is closed", || content().is_some());
                self.assert_count(setup, content().as_deref() != Some("0"));
            }
        }
    }

    /// Asserts that the change is done, and that its record stays only if a copy may run late.
    fn assert_done(&self, setup: &Setup) {
        self.assert_count(setup, true);
        wait_until("the record is deleted", || net::cuts() > 0 || records(setup).is_empty());
    }
}

fn records(setup: &Setup) -> Vec<String> {
    setup.keys_of("leasehold_request:{a}:")
}

fn change(setup: &Setup, change: &Change) {
    change.prepare(setup);
    let outcome = (change.run)(&setup.client, "a");
    setup.heal();
    match outcome {
        Ok(()) => change.assert_done(setup),
        Err(error) => {
            setup.assert_may_fail(&error);
            change.assert_settled(setup, &error);
        }
    }
    // The end of the client changes nothing.
    let before = setup.server.text("a");
    setup.client.close();
    thread::sleep(AT_REST);
    assert_eq!(setup.server.text("a"), before);
}

fn count_down_on_drop(setup: &Setup) {
    COUNT_DOWN.prepare(setup);
    drop(setup.client.latch("a").count_down_on_drop());
    thread::sleep(AT_REST);
    setup.heal();
    wait_until("the guard counts", || setup.server.text("a").as_deref() == Some("9"));
    COUNT_DOWN.assert_done(setup);
}
