//! Elections: terms, values and tokens, observers, and `run`.

use crate::harness::elections::*;
use crate::harness::faults::{BRISK, NEVER, build, nothing_is_left, patient};
use crate::harness::queued::{polling, queue_length};
use crate::harness::wait::BOUND;
use crate::harness::{Server, await_unchanged, eventually, in_time};
use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};
use leasehold::{CancelToken, Client, Leader, Leadership};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// A time in which a message that must not come would come.
const MOMENT: Duration = Duration::from_millis(300);

/// Returns a server and two clients whose waits end only by messages.
fn two_patient_clients() -> (Server, Client, Client) {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(patient(server.url())));
    (server, one, two)
}

/// Blocks until this number of candidates of a client wait, and have read their places.
///
/// A grant passes over a candidate whose client does not listen yet.
fn await_candidates(client: &Client, count: u64) {
    eventually("the candidates wait", || client.stats().waiting_now() == count);
}

#[test]
fn a_leader_is_announced_with_value_token_and_client() {
    let (server, one, two) = two_patient_clients();
    assert_eq!(leader(&two), None);
    let term = campaign(&candidate(&one, "host:1"));
    term.check().expect("the term has begun");
    assert!(term.is_held() && !term.wait_lost(Duration::ZERO) && !term.remaining().is_zero());
    let found = leader(&two).expect("a leader");
    assert_eq!((found.value(), found.token()), ("host:1", term.token()));
    assert_eq!(found.holder().client_id(), Some(one.id()));
    assert!(found.holder().remaining().is_some_and(|left| left <= NEVER));
    assert!(format!("{term:?}").contains(found.holder().owner()), "{term:?}");
    assert_eq!(found, leader(&one).expect("a leader"));
    term.resign().expect("the term is valid");
    assert_eq!(leader(&two), None);
    drop((one, two));
    nothing_is_left(&server);
}

/// No client polls: only the message of the resignation can end the wait.
#[test]
fn a_leader_that_has_waited_shows_the_time_of_its_grant() {
    let (_server, one, two) = two_patient_clients();
    let term = campaign(&candidate(&one, "x"));
    thread::scope(|scope| {
        let waits = scope.spawn(|| campaign(&candidate(&two, "y")));
        await_candidates(&two, 1);
        thread::sleep(MOMENT);
        let before = SystemTime::now() - Duration::from_millis(1);
        drop(term);
        let _term = in_time("it leads", waits);
        let since = leader(&one).and_then(|leader| leader.holder().since()).expect("a time");
        assert!(before <= since && since <= SystemTime::now(), "{since:?} after {before:?}");
    });
}

#[test]
fn a_resignation_makes_the_next_candidate_the_leader() {
    let (server, one, two) = two_patient_clients();
    let first = campaign(&candidate(&one, "first"));
    let token = first.token();
    thread::scope(|scope| {
        let second = scope.spawn(|| campaign(&candidate(&two, "second")));
        eventually("the second candidate waits", || queue_length(&server, "a") == 1);
        assert_eq!(one.election("a").waiting().expect("an answer").queue().len(), 1);
        assert_eq!(value_and_token(&two), Some(("first".to_owned(), token)));
        first.resign().expect("the term is valid");
        let second = in_time("the second candidate wins", second);
        assert!(second.token() > token);
        assert_eq!(value_and_token(&one), Some(("second".to_owned(), second.token())));
        drop(second);
    });
    eventually("the drop resigns", || leader(&one).is_none());
    drop((one, two));
    nothing_is_left(&server);
}

#[test]
fn a_term_costs_three_script_calls_and_two_messages() {
    let (server, one, two) = two_patient_clients();
    let term = || campaign(&candidate(&one, "x"));
    term().resign().expect("the term is valid");
    assert_eq!(leader(&two), None, "the scripts are loaded");
    server.reset_stats();
    let term = term();
    assert_eq!((server.calls("evalsha"), server.calls("publish")), (2, 1));
    assert!(leader(&two).is_some());
    assert_eq!(server.calls("evalsha"), 3);
    term.resign().expect("the term is valid");
    assert_eq!((server.calls("evalsha"), server.calls("publish")), (4, 2));
}

#[test]
fn a_call_without_patience_or_time_returns_nothing() {
    let (server, one, two) = two_patient_clients();
    let term = one.election("a").try_campaign().expect("an answer").expect("nobody leads");
    let other = two.election("a");
    assert!(other.try_campaign().expect("an answer").is_none());
    assert!(other.try_campaign_for(MOMENT).expect("an answer").is_none());
    assert!(other.try_campaign_until(Instant::now()).expect("an answer").is_none());
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| other.clone().with_cancel(&stop).campaign());
        eventually("the candidate waits", || queue_length(&server, "a") == 1);
        stop.cancel();
        let outcome = in_time("the candidate returns", waiter);
        assert!(outcome.is_err_and(|error| error.is_cancelled()));
    });
    eventually("the candidate leaves", || queue_length(&server, "a") == 0);
    term.check().expect("a cancelled campaign of another candidate ends no term");
    drop(term);
    let term = other.try_campaign_for(BOUND).expect("an answer").expect("nobody leads");
    drop((term, other, one, two));
    nothing_is_left(&server);
}

#[test]
fn a_heavy_candidate_comes_first() {
    let server = Server::start();
    let client = build(patient(server.url()).weight_step(NEVER));
    let election = client.election("a");
    let term = campaign(&election);
    thread::scope(|scope| {
        let light = scope.spawn(|| campaign(&election));
        await_candidates(&client, 1);
        let heavy = scope.spawn(|| campaign(&election.clone().with_weight(10)));
        await_candidates(&client, 2);
        drop(term);
        let heavy = in_time("the heavy one wins", heavy);
        assert!(!light.is_finished());
        drop(heavy);
        drop(in_time("the light one wins", light));
    });
    let invalid = election.clone().with_weight(11).try_campaign();
    assert!(invalid.is_err_and(|error| error.is_configuration()));
}

#[test]
fn a_value_is_any_text_of_up_to_4096_bytes() {
    let (_server, one, two) = two_patient_clients();
    let longest = "ä".repeat(2048);
    for value in ["", "host:1", "two\nlines\r\n", "nul \0 and \u{1f980}", &longest] {
        let term = campaign(&candidate(&one, value));
        assert_eq!(value_and_token(&two), Some((value.to_owned(), term.token())));
        term.resign().expect("the term is valid");
    }
    assert_eq!(candidate(&one, "x").with_value("").name(), "a");
    for too_long in ["x".repeat(4097), longest + "x"] {
        let invalid = candidate(&one, &too_long);
        let outcomes =
            [invalid.campaign().map(drop), invalid.leader().map(drop), invalid.observe().map(drop)];
        for outcome in outcomes {
            let error = outcome.expect_err("the value is too long");
            assert!(error.is_configuration() && error.lock_name() == Some("a"), "{error}");
        }
    }
}

#[test]
fn an_invalid_name_is_an_error_of_every_verb() {
    let (_server, client, _) = two_patient_clients();
    let invalid = client.election("a{b");
    let stop = CancelToken::new();
    let outcomes = [
        invalid.campaign().map(drop),
        invalid.try_campaign().map(drop),
        invalid.run(&stop, |_| unreachable!("there is no term")),
        invalid.leader().map(drop),
        invalid.waiting().map(drop),
        invalid.observe().map(drop),
    ];
    for outcome in outcomes {
        assert!(outcome.is_err_and(|error| error.is_invalid_name()));
    }
}

/// Another program wrote the value.
#[test]
fn a_value_that_is_not_utf8_is_shown_with_replacements() {
    let (server, one, two) = two_patient_clients();
    let term = campaign(&candidate(&one, "x"));
    let script = format!("return redis.call('hset', '{RECORD}', 'value', 'a\\255z')");
    server.ask::<u32>(&["EVAL", &script, "0"]);
    assert_eq!(value_and_token(&two), Some(("a\u{fffd}z".to_owned(), term.token())));
}

/// A record counts only while its owner holds the lock.
#[test]
fn the_record_of_an_earlier_term_names_no_leader() {
    let (server, one, two) = two_patient_clients();
    let term = campaign(&candidate(&one, "first"));
    server.ask::<u32>(&["DEL", "a"]);
    assert!(server.keys().contains(&RECORD.to_owned()));
    assert_eq!(leader(&two), None, "the lock is free");
    let guard = two.queue_lock("a").try_lock().expect("an answer").expect("it is free");
    assert_eq!(leader(&one), None, "the holder has announced nothing");
    guard.unlock().expect("it is held");
    let next = campaign(&candidate(&two, "second"));
    assert_eq!(value_and_token(&one), Some(("second".to_owned(), next.token())));
    let lost = term.resign();
    assert!(lost.is_err_and(|error| error.is_lost()));
    assert_eq!(value_and_token(&one), Some(("second".to_owned(), next.token())));
}

#[test]
fn a_record_that_is_deleted_comes_back_while_the_term_is_valid() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(patient(server.url()).watchdog_timeout(BRISK)));
    let term = campaign(&candidate(&one, "x"));
    for _ in 0..2 {
        assert_eq!(server.ask::<u32>(&["DEL", RECORD]), 1);
        eventually("the leader is announced again", || leader(&two).is_some());
        assert_eq!(value_and_token(&two), Some(("x".to_owned(), term.token())));
    }
    let left: u64 = server.ask(&["PTTL", RECORD]);
    assert!(left <= 2 * BRISK.as_millis() as u64, "the record expires by itself");
    drop(term);
    eventually("the resignation deletes the record", || !server.keys().contains(&RECORD.into()));
}

#[test]
fn an_observer_gets_the_present_state_and_each_change() {
    let (server, one, two) = two_patient_clients();
    let observer = observe(&server, &two);
    assert_eq!(next_value(&observer), None);
    for value in ["first", "second"] {
        let term = campaign(&candidate(&one, value));
        let state = observer.recv_timeout(BOUND).expect("a message").expect("a leader");
        assert_eq!((state.value(), state.token()), (value, term.token()));
        term.resign().expect("the term is valid");
        assert_eq!(next_value(&observer), None);
    }
    assert_eq!(observer.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout), "no change");
}

#[test]
fn an_observer_of_a_leader_gets_it_first() {
    let (server, one, two) = two_patient_clients();
    let term = campaign(&candidate(&one, "x"));
    let observers = [observe(&server, &two), observe(&server, &two)];
    for observer in &observers {
        assert_eq!(next_value(observer).as_deref(), Some("x"));
    }
    drop(term);
    for observer in &observers {
        assert_eq!(next_value(observer), None);
    }
}

/// The record of the leader's client follows the announcement, and no poll is near.
#[test]
fn an_observer_learns_the_process_of_a_leader_that_wins_at_once() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(patient(server.url()).announce(true)));
    let observer = observe(&server, &two);
    assert_eq!(next_value(&observer), None);
    let term = campaign(&candidate(&one, "x"));
    let pid = || {
        let state = observer.recv_timeout(BOUND).expect("a message").expect("a leader");
        assert_eq!((state.value(), state.token()), ("x", term.token()));
        state.holder().pid()
    };
    // The record may come before the look of the observer.
    let pid = pid().or_else(pid);
    assert_eq!(pid, Some(std::process::id()));
    assert_eq!(observer.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout), "no change");
}

/// The observers of one client share the looks at an election.
#[test]
fn twenty_observers_cost_as_much_as_one() {
    let (server, one, two) = two_patient_clients();
    let first = observe(&server, &two);
    let others: Vec<_> =
        (0..19).map(|_| two.election("a").observe().expect("the server answers")).collect();
    let observers = || [&first].into_iter().chain(&others);
    observers().for_each(|observer| assert_eq!(next_value(observer), None));
    // The looks that follow the joins are over when nothing more is asked.
    let scripts = || server.calls("evalsha");
    await_unchanged("no look follows", MOMENT, || Some(scripts()));
    let before = scripts();
    let _term = campaign(&candidate(&one, "x"));
    observers().for_each(|observer| sees(observer, "x"));
    assert!(scripts() <= before + 6, "{} scripts", scripts() - before);
}

#[test]
fn an_observer_that_reads_slowly_gets_the_latest_state() {
    let (server, one, two) = two_patient_clients();
    let observer = observe(&server, &two);
    for number in 0..20 {
        let term = campaign(&candidate(&one, &number.to_string()));
        term.resign().expect("the term is valid");
    }
    let last = campaign(&candidate(&one, "last"));
    // The state that waits may be older than the last change, and so may be that of the next look.
    let mut states = (0..3).map(|_| observer.recv_timeout(BOUND).expect("a message"));
    let state = states.find_map(|state| state.filter(|state| state.value() == "last"));
    assert_eq!(state.map(|state| state.token()), Some(last.token()));
    assert_eq!(observer.recv_timeout(MOMENT), Err(RecvTimeoutError::Timeout), "nothing is kept");
}

/// The lease ends without a message, and no poll is near.
#[test]
fn an_observer_looks_at_the_end_of_a_lease() {
    let (server, one, two) = two_patient_clients();
    let _term = campaign(&candidate(&one, "x"));
    let observer = observe(&server, &two);
    sees(&observer, "x");
    drop(observer);
    server.ask::<u32>(&["PEXPIRE", "a", "1000"]);
    let observer = two.election("a").observe().expect("the server answers");
    assert_eq!(next_value(&observer).as_deref(), Some("x"));
    assert_eq!(next_value(&observer), None);
}

/// The changes are made without a message.
#[test]
fn an_observer_finds_changes_by_polls() {
    let server = Server::start();
    let [one, two] = [(); 2].map(|()| build(polling(server.url())));
    let observer = observe(&server, &two);
    assert_eq!(next_value(&observer), None);
    let _term = campaign(&candidate(&one, "x"));
    sees(&observer, "x");
    server.ask::<u32>(&["HSET", RECORD, "value", "y"]);
    assert_eq!(next_value(&observer).as_deref(), Some("y"));
    server.ask::<u32>(&["DEL", "a"]);
    assert_eq!(next_value(&observer), None);
}

/// No change occurs: the observation finds the drop by itself.
#[test]
fn the_drop_of_a_receiver_ends_the_subscription() {
    let server = Server::start();
    let client = build(polling(server.url()).poll_interval(Duration::from_millis(40)));
    let observer = observe(&server, &client);
    assert_eq!(next_value(&observer), None);
    let waits = observe(&server, &client);
    assert_eq!(next_value(&waits), None);
    drop(observer);
    assert_eq!(next_value(&waits), None, "a receiver that waits for long gets the state again");
    drop(waits);
    eventually("the subscription ends", || server.numsub(CHANNEL) == 0);
    // A receiver with a state that nobody took.
    let observer = observe(&server, &client);
    drop(observer);
    eventually("the subscription ends", || server.numsub(CHANNEL) == 0);
}

#[test]
fn the_close_of_the_client_disconnects_a_receiver_and_its_drop_does_not() {
    let (server, one, two) = two_patient_clients();
    let closed = observe(&server, &one);
    one.close();
    let state = eventually_disconnected(&closed);
    assert!(state.is_none_or(|state| state.is_none()), "the first state");
    assert!(one.election("a").observe().is_err_and(|error| error.is_closed()));

    let observer = observe(&server, &two);
    assert_eq!(next_value(&observer), None);
    drop((one, two));
    let candidates = build(patient(server.url()));
    let term = campaign(&candidate(&candidates, "x"));
    sees(&observer, "x");
    drop((observer, term));
    // The next change finds that the receiver is gone.
    drop(campaign(&candidate(&candidates, "y")));
    drop(candidates);
    nothing_is_left(&server);
}

/// Blocks until the receiver is disconnected; returns the last state before.
fn eventually_disconnected(observer: &Receiver<Option<Leader>>) -> Option<Option<Leader>> {
    let mut last = None;
    eventually("the receiver is disconnected", || match observer.try_recv() {
        Ok(state) => {
            last = Some(state);
            false
        }
        Err(error) => error == TryRecvError::Disconnected,
    });
    last
}

#[test]
fn run_leads_until_it_is_stopped_and_hands_over() {
    let (server, one, two) = two_patient_clients();
    let (stop, leads) = (CancelToken::new(), AtomicBool::new(false));
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            candidate(&one, "runs").run(&stop, |term| {
                term.check().expect("the term has begun");
                assert!(!term.wait_lost(Duration::ZERO));
                leads.store(true, Ordering::Relaxed);
                assert!(term.wait_lost(BOUND), "the stop ends the wait");
                assert!(!term.is_held() && term.check().is_err_and(|error| error.is_cancelled()));
                assert!(!term.remaining().is_zero(), "nobody else can lead yet");
            })
        });
        let next = scope.spawn(|| {
            eventually("the first one leads", || leader(&two).is_some());
            campaign(&candidate(&two, "next"))
        });
        await_candidates(&two, 1);
        eventually("the term has begun", || leads.load(Ordering::Relaxed));
        assert!(!runner.is_finished());
        stop.cancel();
        in_time("run returns", runner).expect("it was stopped");
        let owner: Vec<String> = server.ask(&["HKEYS", "a"]);
        assert!(owner.iter().all(|owner| owner.starts_with(&two.id().to_string())), "{owner:?}");
        drop(in_time("the next one leads", next));
    });
    drop((one, two));
    nothing_is_left(&server);
}

#[test]
fn a_stop_ends_the_wait_of_run() {
    let (server, one, two) = two_patient_clients();
    let term = campaign(&one.election("a"));
    let stop = CancelToken::new();
    let run = || two.election("a").run(&stop, |_| unreachable!("another one leads"));
    thread::scope(|scope| {
        let runner = scope.spawn(run);
        eventually("the candidate waits", || queue_length(&server, "a") == 1);
        stop.cancel();
        in_time("run returns", runner).expect("it was stopped");
        assert_eq!(queue_length(&server, "a"), 0, "the candidate has left");
    });
    run().expect("a cancelled token ends the call at once");
    term.check().expect("the term of another candidate goes on");
}

/// The closure returns while the term is valid: the next candidate comes first.
#[test]
fn run_resigns_when_the_closure_returns_and_campaigns_again() {
    let (_server, one, two) = two_patient_clients();
    let (stop, tokens) = (CancelToken::new(), Mutex::new(Vec::new()));
    let push = |term: &Leadership| tokens.lock().expect("no panic").push(term.token());
    let returns = AtomicBool::new(false);
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            one.election("a").run(&stop, |term| {
                push(term);
                eventually("the test goes on", || returns.load(Ordering::Relaxed));
                if tokens.lock().expect("no panic").len() > 2 {
                    stop.cancel();
                }
            })
        });
        eventually("the first term begins", || !tokens.lock().expect("no panic").is_empty());
        let other = scope.spawn(|| push(&campaign(&two.election("a"))));
        await_candidates(&two, 1);
        returns.store(true, Ordering::Relaxed);
        in_time("the other candidate leads", other);
        in_time("run returns", runner).expect("it was stopped");
    });
    let tokens = tokens.into_inner().expect("no panic");
    assert!(tokens.is_sorted() && tokens.len() >= 3, "{tokens:?}");
}

#[test]
fn run_campaigns_again_after_a_loss() {
    let server = Server::start();
    let client = build(polling(server.url()).watchdog_timeout(BRISK));
    let (stop, mut tokens) = (CancelToken::new(), Vec::new());
    let election = candidate(&client, "x");
    let outcome = election.run(&stop, |term| {
        tokens.push(term.token());
        if tokens.len() == 3 {
            return stop.cancel();
        }
        server.ask::<u32>(&["DEL", "a"]);
        assert!(term.wait_lost(BOUND), "the renewal finds the loss");
        assert!(term.check().is_err_and(|error| error.is_lost()));
    });
    outcome.expect("it was stopped");
    assert!(tokens.is_sorted_by(|a, b| a < b) && tokens.len() == 3, "{tokens:?}");
    assert_eq!(leader(&client), None);
}

#[test]
fn a_panic_in_the_closure_resigns() {
    let (server, one, two) = two_patient_clients();
    let stop = CancelToken::new();
    thread::scope(|scope| {
        let runner = scope.spawn(|| one.election("a").run(&stop, |_| panic!("this is expected")));
        assert!(runner.join().is_err(), "the panic goes on");
        let next = scope.spawn(|| campaign(&candidate(&two, "next")));
        drop(in_time("the next one leads", next));
    });
    drop((one, two));
    nothing_is_left(&server);
}

#[test]
fn errors_that_do_not_end_by_themselves_end_run() {
    let server = Server::start();
    let (client, stop) = (build(polling(server.url())), CancelToken::new());
    let never = |_: &Leadership| unreachable!("there is no term");
    server.ask::<()>(&["SET", "a", "of another program"]);
    let error = client.election("a").run(&stop, never).expect_err("the key is no lock");
    assert!(error.is_server() && error.code() == Some("WRONGTYPE"), "{error}");
    server.ask::<u32>(&["DEL", "a"]);
    let leads = AtomicBool::new(false);
    thread::scope(|scope| {
        let runner = scope.spawn(|| {
            client.election("a").run(&stop, |term| {
                leads.store(true, Ordering::Relaxed);
                eventually("the client is closed", || client.ping().is_err());
                assert!(term.is_held(), "the lease goes on");
            })
        });
        eventually("it leads", || leads.load(Ordering::Relaxed));
        client.close();
        let error = in_time("run returns", runner).expect_err("the client is closed");
        assert!(error.is_closed(), "{error}");
    });
}

/// The record cannot be written: the key has another type.
#[test]
fn a_campaign_whose_announcement_is_refused_resigns() {
    let (server, one, two) = two_patient_clients();
    server.ask::<()>(&["SET", RECORD, "of another program"]);
    let outcome = candidate(&one, "x").campaign();
    let error = outcome.map(drop).expect_err("the announcement is refused");
    assert!(error.is_server() && error.code() == Some("WRONGTYPE"), "{error}");
    eventually("the candidate has resigned", || !server.keys().contains(&"a".to_owned()));
    assert_eq!(server.ask::<u32>(&["DEL", RECORD]), 1);
    drop(campaign(&candidate(&two, "y")));
    drop((one, two));
    nothing_is_left(&server);
}

#[test]
fn a_lost_term_calls_its_closures_and_a_resignation_does_not() {
    let server = Server::start();
    let client = build(polling(server.url()).watchdog_timeout(BRISK));
    let (sender, lost) = crossbeam_channel::unbounded();
    for loses in [false, true] {
        let term = campaign(&client.election("a"));
        let sender = sender.clone();
        term.on_lost(move || sender.send(()).expect("the test receives it"));
        if loses {
            server.ask::<u32>(&["DEL", "a"]);
            lost.recv_timeout(BOUND).expect("the closure is called");
        } else {
            term.resign().expect("the term is valid")
        }
        assert!(lost.is_empty());
    }
}

#[test]
fn a_campaign_does_not_wait_for_a_guard_of_its_own_thread() {
    let server = Server::start();
    let client = build(polling(server.url()));
    let guard = client.queue_lock("a").lock().expect("the lock is free");
    let election = client.election("a");
    let is_deadlock = |error: leasehold::Error| error.is_deadlock();
    assert!(election.campaign().is_err_and(is_deadlock));
    assert!(election.try_campaign_for(BOUND).is_err_and(is_deadlock));
    assert!(election.run(&CancelToken::new(), |_| panic!("no term")).is_err_and(is_deadlock));
    assert!(election.try_campaign().expect("the server answers").is_none());
    guard.unlock().expect("the lock is held");
    campaign(&election).resign().expect("the term is valid");
}
