//! The queue lock: order of arrival and weight, grants in messages, and its use beside other kinds.

use crate::harness::bare::digest;
use crate::harness::faults::{BRISK, NEVER, build, patient};
use crate::harness::queued::*;
use crate::harness::{Server, eventually, exists, in_time, join, pttl};
use leasehold::{CancelToken, Client, MultiLock};
use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::{Duration, Instant};

/// A hold of Redisson's plain lock.
const JAVA: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8:1";

const CHANNEL: &str = "redisson_lock__channel:{a}";

/// Returns a server and two clients that send no commands on their own account.
fn two_patient_clients() -> (Server, Client, Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(patient(server.url())));
    (server, one, two)
}

/// Returns a server and two clients with a short poll interval.
fn two_polling_clients() -> (Server, Client, Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(polling(server.url())));
    (server, one, two)
}

#[test]
fn callers_of_several_clients_get_the_lock_in_the_order_of_their_requests() {
    let server = Server::start();
    let clients: Vec<_> = (0..3).map(|_| build(patient(server.url()))).collect();
    let guard = clients[0].queue_lock("a").lock().expect("it is free");
    let client = |number: usize| clients[number % 3].queue_lock("a");
    let waiters: Vec<_> =
        (0..9).map(|number| QueueWaiter::queued(&server, &client(number))).collect();
    let waiting = places(&server, "a");
    // The first client's lock would be re-entered.
    for client in &clients[1..] {
        assert!(client.queue_lock("a").try_lock().expect("a reply").is_none());
    }
    assert_eq!(waiting, places(&server, "a"), "a caller that does not wait queues");
    guard.unlock().expect("it is held");
    get_it_in_order(waiters);
    only_tokens_are_left(&server);
}

/// The lock is free, because its hold has ended without a release.
#[test]
fn a_caller_that_does_not_wait_never_overtakes_a_waiter() {
    let (server, one, two) = two_patient_clients();
    one.queue_lock("a").lock().expect("it is free").detach();
    let waiter = QueueWaiter::queued(&server, &one.queue_lock("a"));
    server.ask::<()>(&["DEL", "a"]);
    assert!(two.queue_lock("a").try_lock().expect("a reply").is_none());
    waiter.gets_it();
    waiter.releases();
    assert!(two.queue_lock("a").try_lock().expect("a reply").is_some());
}

/// The steps are long, so that the arrivals of the test are within them.
#[test]
fn a_greater_weight_comes_first() {
    let server = Server::start();
    let client = build(patient(server.url()).weight_step(NEVER));
    let lock = client.queue_lock("a");
    let guard = lock.lock().expect("it is free");
    let [light, heavy, middle, light_too] =
        [1, 10, 5, 1].map(|weight| QueueWaiter::queued(&server, &lock.clone().with_weight(weight)));
    guard.unlock().expect("it is held");
    get_it_in_order([heavy, middle, light, light_too]);
    only_tokens_are_left(&server);
}

/// The clock of the server moves to a minute before the bound, and to the bound.
#[test]
fn a_waiter_is_overtaken_only_by_those_that_come_less_than_nine_steps_later() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = Server::with(|config| config.movable_clock());
    let settings = patient(server.url()).weight_step(Duration::from_secs(100));
    let client = build(settings.watchdog_timeout(HOUR * 3).poll_interval(HOUR));
    let lock = client.queue_lock("a");
    let guard = lock.lock().expect("it is free");
    let heavy = lock.clone().with_weight(10);
    let first = QueueWaiter::queued(&server, &lock);
    server.set_clock(840_000);
    let before_the_bound = QueueWaiter::queued(&server, &heavy);
    server.set_clock(900_000);
    let at_the_bound = QueueWaiter::queued(&server, &heavy);
    guard.unlock().expect("it is held");
    get_it_in_order([before_the_bound, first, at_the_bound]);
}

/// Returns the number of calls of each command from a release to the return of the next caller,
/// and the number of grant messages.
///
/// The control channel gets heartbeats at any time, so other messages do not count.
fn cost_of_a_hand_off(waiting: usize) -> (BTreeMap<String, u64>, usize) {
    let (server, holder, client) = two_patient_clients();
    load_scripts(&server);
    // The listener connects without a caller that waits for a grant, so no heartbeat is sent.
    pass_plain_lock(&server, &holder, &client);
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let lock = client.queue_lock("a");
    let best = QueueWaiter::queued(&server, &lock);
    let others: Vec<_> = (1..waiting).map(|_| QueueWaiter::spawn(&lock)).collect();
    eventually("all callers are queued", || queue_length(&server, "a") == waiting);
    let mut messages = server.connection();
    let mut messages = messages.as_pubsub();
    messages.psubscribe("leasehold:wake:*").expect("the server answers");
    let before = server.commandstats();
    guard.unlock().expect("it is held");
    best.gets_it();
    let after = server.commandstats();
    others.iter().for_each(QueueWaiter::still_waits);
    server.ask::<()>(&["PUBLISH", "leasehold:wake:end", "end"]);
    let texts = std::iter::from_fn(|| messages.get_message().ok()?.get_payload::<String>().ok());
    let grants = texts.take_while(|text| text != "end").filter(|it| it.starts_with("granted "));
    let grants = grants.count();
    client.close();
    others.into_iter().for_each(|waiter| assert!(waiter.fails().is_closed()));
    (calls_between(before, after), grants)
}

/// Returns the calls of each command between two counts, without those of the test and of
/// heartbeats.
fn calls_between(
    before: HashMap<String, u64>,
    after: HashMap<String, u64>,
) -> BTreeMap<String, u64> {
    let of_others = ["publish", "info", "auth", "hello", "select"];
    let is_counted = |name: &str| !of_others.contains(&name) && !name.starts_with("client");
    let calls = after.into_iter().map(|(name, calls)| {
        let calls = calls - before.get(&name).copied().unwrap_or(0);
        (name, calls)
    });
    calls.filter(|(name, calls)| *calls > 0 && is_counted(name)).collect()
}

/// Has the client wait for a plain lock, which the holder releases.
fn pass_plain_lock(server: &Server, holder: &Client, client: &Client) {
    let guard = holder.lock("plain").lock().expect("it is free");
    let lock = client.lock("plain");
    let waiter = thread::spawn(move || lock.lock_owned().map(drop));
    let channel = "redisson_lock__channel:{plain}";
    eventually("the waiter is subscribed", || server.numsub(channel) == 1);
    guard.unlock().expect("it is held");
    join(waiter).expect("it is granted");
    eventually("the lock is released", || !exists(server, "plain"));
}

#[test]
fn a_hand_off_costs_one_message_and_the_same_commands_for_any_number_of_waiters() {
    let (commands, grants) = cost_of_a_hand_off(1);
    assert_eq!(grants, 1);
    assert_eq!(commands["evalsha"], 1, "only the release is sent: {commands:?}");
    assert_eq!(cost_of_a_hand_off(10), (commands.clone(), 1));
    assert_eq!(cost_of_a_hand_off(1_000), (commands, 1));
}

#[test]
fn waits_for_many_locks_share_one_subscription() {
    let (server, holder, client) = two_patient_clients();
    let names = ["a", "b", "c"];
    let guards = names.map(|name| holder.queue_lock(name).lock_owned().expect("it is free"));
    let waiters = names.map(|name| QueueWaiter::queued(&server, &client.queue_lock(name)));
    assert_eq!(server.channels(), [wake_channel(client.id())]);
    for (guard, waiter) in guards.into_iter().zip(waiters).rev() {
        guard.unlock().expect("it is held");
        get_it_in_order([waiter]);
    }
    assert_eq!(server.channels(), [wake_channel(client.id())]);
}

#[test]
fn tokens_come_from_the_counter_of_the_fenced_lock() {
    let (server, one, two) = two_patient_clients();
    let fenced = || {
        let guard = one.fenced_lock("a").lock().expect("it is free");
        let token = guard.token();
        guard.unlock().expect("it is held");
        token
    };
    let first = fenced();
    let guard = one.queue_lock("a").lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &two.queue_lock("a"));
    let second = guard.token();
    guard.unlock().expect("it is held");
    let third = waiter.gets_it();
    assert_eq!(last_token(&server, "a"), third, "the message has the token of the hold");
    waiter.releases();
    assert!(first < second && second < third && third < fenced());
}

#[test]
fn a_call_with_a_fixed_lease_asks_for_it_after_the_grant() {
    let server = Server::start();
    let (holder, client) = (build(polling(server.url())), build(polling(server.url())));
    load_scripts(&server);
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a").with_lease(NEVER / 2));
    guard.unlock().expect("it is held");
    waiter.gets_it();
    let left = Duration::from_millis(pttl(&server, "a").unsigned_abs());
    assert!(left > NEVER / 4 && left <= NEVER / 2, "{left:?} are left");
    waiter.releases();
    only_tokens_are_left(&server);
}

#[test]
fn a_call_with_a_fixed_lease_makes_one_round_trip_after_the_grant() {
    let (server, holder, client) = two_patient_clients();
    load_scripts(&server);
    let acquire = digest("queue_acquire");
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a").with_lease(NEVER / 2));
    eventually("the client listens", || is_listening(&server, &client));
    log_commands(&server);
    guard.unlock().expect("it is held");
    waiter.gets_it();
    assert_eq!(logged(&server, &acquire), 1);
    waiter.releases();
}

/// The grant lease is as long as a test may take, so the lock does not become free by itself.
#[test]
fn a_fixed_lease_that_is_shorter_than_the_grant_lease_ends_at_its_own_time() {
    let (server, holder, client) = two_patient_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let short = client.queue_lock("a").with_lease(Duration::from_secs(1));
    let next = thread::spawn(move || short.lock().map(std::mem::forget));
    eventually("it is queued", || queue_length(&server, "a") == 1);
    eventually("the client listens", || is_listening(&server, &client));
    guard.unlock().expect("it is held");
    join(next).expect("it is granted");
    eventually("the lock is free", || !exists(&server, "a"));
}

/// Makes the server log all commands, without those of scripts.
fn log_commands(server: &Server) {
    server.ask::<()>(&["CONFIG", "SET", "slowlog-max-len", "10000"]);
    server.ask::<()>(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]);
    server.ask::<()>(&["SLOWLOG", "RESET"]);
}

/// Returns the number of logged commands with this argument.
fn logged(server: &Server, argument: &str) -> usize {
    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let entries: Vec<Entry> = server.ask(&["SLOWLOG", "GET", "-1"]);
    entries.iter().filter(|entry| entry.3.iter().any(|word| word == argument)).count()
}

#[test]
fn the_first_renewal_extends_the_lease_of_a_grant() {
    let (server, holder, client) = two_polling_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let lock = client.queue_lock("a");
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let guard = lock.lock().expect("it is granted");
            eventually("the hold is renewed", || guard.remaining() > GRANT_LEASE * 2);
            guard.unlock().expect("it is held");
        });
        eventually("the waiter is queued", || queue_length(&server, "a") == 1);
        eventually("the client listens", || is_listening(&server, &client));
        guard.unlock().expect("it is held");
        let renewed = || pttl(&server, "a") > i64::try_from(NEVER.as_millis() / 2).expect("small");
        eventually("the server has the full lease", || renewed() || waiter.is_finished());
        in_time("the waiter ends", waiter);
    });
    only_tokens_are_left(&server);
}

#[test]
fn a_granted_thread_re_enters_without_a_round_trip() {
    let (server, holder, client) = two_patient_clients();
    load_scripts(&server);
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let lock = client.queue_lock("a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let outer = lock.lock().expect("it is granted");
            // A queue heartbeat may come at any time; it uses neither command.
            let requests = || ["hexists", "hdel"].map(|command| server.calls(command));
            let before = requests();
            let inner = lock.lock().expect("the thread has it");
            assert_eq!((lock.hold_count(), inner.token()), (2, outer.token()));
            inner.unlock().expect("it is held");
            assert!(outer.is_held());
            assert_eq!(requests(), before, "no request");
            outer.unlock().expect("it is held");
        });
        eventually("the waiter is queued", || queue_length(&server, "a") == 1);
        guard.unlock().expect("it is held");
        in_time("the waiter ends", waiter);
    });
    only_tokens_are_left(&server);
}

#[test]
fn an_owned_guard_of_a_grant_moves_between_threads() {
    let (server, holder, client) = two_patient_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let lock = client.queue_lock("a");
    let waiting = thread::spawn(move || lock.lock_owned().expect("it is granted"));
    eventually("the waiter is queued", || queue_length(&server, "a") == 1);
    guard.unlock().expect("it is held");
    let granted = join(waiting);
    assert!(granted.is_held() && granted.token() == last_token(&server, "a"));
    granted.unlock().expect("it is held");
    only_tokens_are_left(&server);
}

#[test]
fn a_multi_lock_of_queue_locks_waits_for_all() {
    let (server, holder, client) = two_polling_clients();
    let multi = |client: &Client| MultiLock::new(["a", "b"].map(|name| client.queue_lock(name)));
    let guard = holder.queue_lock("b").lock().expect("it is free");
    assert!(multi(&client).try_lock().expect("a reply").is_none());
    eventually("only b is held", || !exists(&server, "a") && exists(&server, "b"));
    let waiting = multi(&client);
    let waiter = thread::spawn(move || waiting.lock_owned().expect("all become free"));
    eventually("the multi-lock waits", || queue_length(&server, "b") == 1);
    guard.unlock().expect("it is held");
    let all = join(waiter);
    assert!(["a", "b"].iter().all(|name| exists(&server, name)));
    assert!(multi(&holder).try_lock().expect("a reply").is_none());
    all.unlock().expect("all are held");
    only_tokens_are_left(&server);
}

#[test]
fn a_waiter_gets_the_lock_after_the_minimum_of_a_hold() {
    const MINIMUM: Duration = Duration::from_millis(600);
    let (server, holder, client) = two_polling_clients();
    let started = Instant::now();
    let guard = holder.queue_lock("a").with_min_hold(MINIMUM).lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a"));
    guard.unlock().expect("it is held");
    waiter.gets_it();
    // Redis counts whole milliseconds.
    let held = started.elapsed() + Duration::from_millis(2);
    assert!(held >= MINIMUM, "the lock was free after {held:?}");
    waiter.releases();
    only_tokens_are_left(&server);
}

#[test]
fn a_waiter_gets_the_lock_after_the_limit_of_a_hold() {
    let server = Server::start();
    let holder = build(polling(server.url()).watchdog_timeout(BRISK));
    let client = build(polling(server.url()));
    let lock = holder.queue_lock("a").with_max_hold(Duration::from_millis(50));
    let guard = lock.lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a"));
    waiter.gets_it();
    assert!(guard.check().is_err_and(|error| error.is_lost()));
    waiter.releases();
    drop(guard);
    only_tokens_are_left(&server);
}

#[test]
fn a_closed_client_leaves_the_queue() {
    let (server, holder, closing) = two_patient_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let leaving = [(); 3].map(|()| QueueWaiter::queued(&server, &closing.queue_lock("a")));
    let staying = QueueWaiter::queued(&server, &holder.queue_lock("a"));
    closing.close();
    assert!(leaving.into_iter().all(|waiter| waiter.fails().is_closed()));
    eventually("the calls have left", || queue_length(&server, "a") == 1);
    guard.unlock().expect("it is held");
    get_it_in_order([staying]);
    only_tokens_are_left(&server);
}

#[test]
fn a_call_that_is_cancelled_or_times_out_leaves_the_queue() {
    let (server, holder, client) = two_patient_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let (token, lock) = (CancelToken::new(), client.queue_lock("a"));
    let cancelled = QueueWaiter::queued(&server, &lock.clone().with_cancel(&token));
    let staying = QueueWaiter::queued(&server, &lock);
    let before = places(&server, "a");
    assert!(lock.try_lock_for(Duration::from_millis(300)).expect("a reply").is_none());
    eventually("the call has left", || places(&server, "a") == before);
    token.cancel();
    assert!(cancelled.fails().is_cancelled());
    eventually("the other call has left", || places(&server, "a") == before[1..]);
    guard.unlock().expect("it is held");
    get_it_in_order([staying]);
    only_tokens_are_left(&server);
}

#[test]
fn a_lock_freed_by_force_goes_to_the_next_waiter() {
    let (server, holder, client) = two_patient_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let waiters = [(); 2].map(|()| QueueWaiter::queued(&server, &client.queue_lock("a")));
    assert!(holder.queue_lock("a").force_unlock().expect("a reply"));
    get_it_in_order(waiters);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert!(!holder.queue_lock("a").force_unlock().expect("a reply"), "it is free");
    only_tokens_are_left(&server);
}

#[test]
fn a_plain_lock_excludes_the_queue_lock_and_its_release_is_noticed() {
    let (server, plain, client) = two_polling_clients();
    let guard = plain.lock("a").lock().expect("it is free");
    assert!(client.queue_lock("a").try_lock().expect("a reply").is_none());
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a"));
    waiter.still_waits();
    guard.unlock().expect("it is held");
    waiter.gets_it();
    assert!(plain.lock("a").try_lock().expect("a reply").is_none());
    waiter.releases();
    only_tokens_are_left(&server);
}

#[test]
fn a_hold_of_redisson_excludes_the_queue_lock_and_its_end_is_noticed() {
    let (server, client, _) = two_polling_clients();
    let lock = client.queue_lock("a");
    for (lease, is_deleted) in [("600000", true), ("400", false)] {
        server.ask::<()>(&["HSET", "a", JAVA, "1"]);
        assert!(lock.try_lock().expect("a reply").is_none());
        server.ask::<()>(&["PEXPIRE", "a", lease]);
        let waiter = QueueWaiter::spawn(&lock);
        if is_deleted {
            eventually("the waiter is queued", || queue_length(&server, "a") == 1);
            waiter.still_waits();
            server.ask::<()>(&["DEL", "a"]);
        }
        get_it_in_order([waiter]);
    }
    only_tokens_are_left(&server);
}

/// The grant lease, after which a silent client counts as gone, is shorter than the poll interval.
#[test]
fn a_waiter_of_a_client_with_short_leases_stays_alive() {
    let server = Server::start();
    let holder = build(patient(server.url()));
    let client = build(patient(server.url()).watchdog_timeout(BRISK));
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let waiter = QueueWaiter::queued(&server, &client.queue_lock("a"));
    let queued = gone_at(&server, &client);
    let later = queued + 2 * u64::try_from(BRISK.as_millis()).expect("a short time");
    eventually("the client is kept alive", || gone_at(&server, &client) > later);
    guard.unlock().expect("it is held");
    get_it_in_order([waiter]);
    only_tokens_are_left(&server);
}

/// Returns the server's time in milliseconds at which the client counts as gone.
fn gone_at(server: &Server, client: &Client) -> u64 {
    let id = client.id().to_string();
    let terms: String = server.ask(&["HGET", &clients_key("a"), &id]);
    terms.split(' ').next().and_then(|text| text.parse().ok()).expect("a time")
}

/// No poll comes, so the waiter of the plain lock is woken by the message of the release.
#[test]
fn a_waiter_of_a_plain_lock_is_woken_by_the_release_of_a_queue_lock() {
    let (server, holder, client) = two_patient_clients();
    let guard = holder.queue_lock("a").lock().expect("it is free");
    let lock = client.lock("a");
    let plain = thread::spawn(move || lock.lock_owned().expect("it is granted"));
    eventually("the waiter is subscribed", || server.numsub(CHANNEL) == 1);
    guard.unlock().expect("it is held");
    let held = join(plain);
    held.unlock().expect("it is held");
    only_tokens_are_left(&server);
}
