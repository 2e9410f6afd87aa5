//! The comparison of looks, on looks that tests make.

use super::Observer;
use super::event::{Happening, LockEvent};
use super::snapshot::{Caller, LockSnapshot, Look};

/// A time in seconds since 1970, as the clock of a computer shows it.
const T: f64 = 1_800_000_000.0;

fn look(at: f64, locks: &[LockSnapshot]) -> Look {
    let locks = locks.to_vec();
    Look { begun: T + at, ended: T + at + 0.001, locks, ..Look::default() }
}

fn lock(kind: &str, holders: &[Caller]) -> LockSnapshot {
    LockSnapshot { holders: holders.to_vec(), ..free(kind) }
}

fn free(kind: &str) -> LockSnapshot {
    LockSnapshot { name: "a".into(), kind: kind.into(), ..LockSnapshot::default() }
}

/// Returns a holder whose process has not answered.
fn caller(owner: &str) -> Caller {
    let client_id = Some(format!("client of {owner}"));
    Caller { owner: owner.into(), client_id, remaining: Some(30.0), ..Caller::default() }
}

/// Returns a holder whose process has answered.
fn live(owner: &str, thread: u64, since: f64) -> Caller {
    let (thread_number, since) = (Some(thread), Some(T + since));
    Caller { thread: Some(format!("t{thread}")), thread_number, since, ..caller(owner) }
}

/// Returns the events of the last look: time, event and owner.
fn last(looks: &[Look]) -> Vec<(f64, Happening, String)> {
    events(looks).iter().map(brief).collect()
}

fn events(looks: &[Look]) -> Vec<LockEvent> {
    let mut observer = Observer::default();
    looks.iter().map(|look| observer.compare(look)).last().unwrap_or_default()
}

fn brief(event: &LockEvent) -> (f64, Happening, String) {
    let at = ((event.at - T) * 1000.0).round() / 1000.0;
    (at, event.event, event.owner.clone().unwrap_or_default())
}

fn told(at: f64, event: Happening, owner: &str) -> (f64, Happening, String) {
    (at, event, owner.to_owned())
}

#[test]
fn the_first_look_tells_the_present_state() {
    let mut held = lock("fair lock", &[live("x", 1, -60.0)]);
    held.queue.push(Caller { since: Some(T - 5.0), ..caller("y") });
    let events = events(&[look(1.0, &[held])]);
    let expected = [told(1.0, Happening::Acquired, "x"), told(1.0, Happening::Waiting, "y")];
    assert_eq!(Vec::from_iter(events.iter().map(brief)), expected);
    assert!(events.iter().all(|event| event.present));
    assert_eq!(Vec::from_iter(events.iter().map(|it| it.since)), [Some(T - 60.0), Some(T - 5.0)]);
}

#[test]
fn a_minimum_that_keeps_the_lock_is_told_once() {
    let held = lock("lock", &[live("x", 1, 0.0)]);
    let kept = |left| {
        let former = Caller { remaining: Some(left), ..caller("x") };
        LockSnapshot { former_holder: Some(former), ..free("lock") }
    };
    let looks = [look(1.0, &[held]), look(2.0, &[kept(5.0)]), look(3.0, &[kept(4.0)])];
    let expected = [told(2.0, Happening::Released, "x"), told(2.0, Happening::Kept, "x")];
    assert_eq!(last(&looks[..2]), expected);
    assert_eq!(events(&looks[..2])[1].until, Some(T + 7.0));
    assert!(last(&looks).is_empty());
    assert!(last(&[&looks[..], &[look(4.0, &[])]].concat()).is_empty());
}

/// The process answers the first look before it has read the grant.
#[test]
fn a_hold_that_its_process_did_not_count_yet_is_no_hand_off() {
    let count = |caller, acquired| Caller { acquired: Some(acquired), ..caller };
    let early = lock("queue lock", &[count(caller("x"), 4)]);
    let later = |acquired| lock("queue lock", &[count(live("x", 1, 0.0), acquired)]);
    assert!(last(&[look(1.0, &[early]), look(2.0, &[later(5)])]).is_empty());
    let handed_off = last(&[look(1.0, &[later(5)]), look(2.0, &[later(6)])]);
    assert_eq!(handed_off.len(), 2, "{handed_off:?}");
}

#[test]
fn equal_looks_tell_nothing() {
    let held = lock("lock", &[live("x", 1, 0.0)]);
    let renewed = Caller { remaining: Some(29.0), ..live("x", 1, 0.000_4) };
    assert!(last(&[look(1.0, &[held]), look(2.0, &[lock("lock", &[renewed])])]).is_empty());
    assert!(last(&[look(1.0, &[]), look(2.0, &[])]).is_empty());
}

#[test]
fn a_hold_begins_at_the_time_that_its_process_tells() {
    let begins = |since| {
        let held = lock("lock", &[live("x", 1, since)]);
        last(&[look(1.0, &[]), look(2.0, &[held])])
    };
    assert_eq!(begins(1.3), [told(1.3, Happening::Acquired, "x")]);
    // The clock of this machine was set, or the answer is wrong.
    assert_eq!(begins(0.2), [told(1.0, Happening::Acquired, "x")]);
    assert_eq!(begins(9.0), [told(2.001, Happening::Acquired, "x")]);
    let silent = Caller { since: Some(T + 1.3), ..caller("x") };
    let events = last(&[look(1.0, &[]), look(2.0, &[lock("lock", &[silent])])]);
    assert_eq!(events, [told(2.0, Happening::Acquired, "x")], "the time of a call");
}

#[test]
fn a_hold_ends_by_a_release_or_with_its_lease() {
    let ends = |remaining| {
        let holder = Caller { remaining, ..live("x", 1, 0.5) };
        events(&[look(1.0, &[lock("lock", &[holder])]), look(2.0, &[])])
    };
    let released = ends(Some(30.0));
    assert_eq!(Vec::from_iter(released.iter().map(brief)), [told(2.0, Happening::Released, "x")]);
    assert_eq!(released[0].held, Some(1.5));
    let expired = ends(Some(0.75));
    assert_eq!(Vec::from_iter(expired.iter().map(brief)), [told(1.75, Happening::Expired, "x")]);
    assert_eq!(expired[0].held, Some(1.25));
    // The server rounds: a lease of 0 ms may last for a part of a millisecond.
    let rounded = ends(Some(1.0015));
    assert_eq!(Vec::from_iter(rounded.iter().map(brief)), [told(2.001, Happening::Expired, "x")]);
    let endless = ends(None);
    assert_eq!(endless[0].event, Happening::Released);
}

#[test]
fn the_next_holder_tells_how_the_hold_before_ended() {
    let ends = |remaining, since| {
        let holder = Caller { remaining: Some(remaining), ..live("x", 1, 0.0) };
        let next = lock("lock", &[live("y", 1, since)]);
        last(&[look(1.0, &[lock("lock", &[holder])]), look(2.0, &[next])])
    };
    let (x, y) = ("x", "y");
    let [released, expired, acquired] =
        [Happening::Released, Happening::Expired, Happening::Acquired];
    assert_eq!(ends(30.0, 1.4), [told(1.4, released, x), told(1.4, acquired, y)]);
    assert_eq!(ends(0.8, 1.4), [told(1.4, released, x), told(1.4, acquired, y)]);
    assert_eq!(ends(0.3, 1.4), [told(1.3, expired, x), told(1.4, acquired, y)]);
}

#[test]
fn readers_come_and_go_by_themselves() {
    let reader = |owner, left| Caller { remaining: Some(left), ..live(owner, 1, 0.0) };
    let before = lock("read lock", &[reader("x", 30.0), reader("y", 0.2)]);
    let after = lock("read lock", &[reader("x", 29.0), live("z", 3, 1.5)]);
    let events = last(&[look(1.0, &[before]), look(2.0, &[after])]);
    let expected = [told(1.2, Happening::Expired, "y"), told(1.5, Happening::Acquired, "z")];
    assert_eq!(events, expected);
}

#[test]
fn a_hand_off_within_a_process_is_a_release_and_an_acquire() {
    let looks =
        [(1, 0.0), (2, 1.6)].map(|(thread, since)| lock("lock", &[live("x", thread, since)]));
    let [before, after] = looks;
    let events = events(&[look(1.0, &[before]), look(2.0, &[after])]);
    let expected = [told(1.6, Happening::Released, "x"), told(1.6, Happening::Acquired, "x")];
    assert_eq!(Vec::from_iter(events.iter().map(brief)), expected);
    assert!(events.iter().all(|event| event.handed_off));
    let threads = events.iter().map(|event| event.thread.as_deref());
    assert_eq!(Vec::from_iter(threads), [Some("t1"), Some("t2")]);
}

#[test]
fn a_silent_process_hands_nothing_off_and_keeps_its_thread() {
    let looks = [live("x", 1, 0.0), caller("x"), live("x", 1, 0.0)].map(|it| lock("lock", &[it]));
    let [told_thread, silent, told_again] = looks;
    let looks = [look(1.0, &[told_thread]), look(2.0, &[silent]), look(3.0, &[told_again])];
    assert!(last(&looks[..2]).is_empty() && last(&looks).is_empty());
    let released = events(&[&looks[..2], &[look(4.0, &[])]].concat());
    assert_eq!(released[0].thread.as_deref(), Some("t1"));
}

#[test]
fn a_hold_that_lingers_is_told_once_for_each_guard() {
    let used = |acquired| Caller { acquired: Some(acquired), ..live("x", 1, 0.0) };
    let idle = |acquired| Caller { is_idle: true, ..used(acquired) };
    let silent = || caller("x");
    let looks = [used(1), idle(1), idle(1), silent(), idle(1), used(2), idle(2), idle(5)];
    let looks: Vec<_> =
        (0..).zip(looks).map(|(at, it)| look(at.into(), &[lock("lock", &[it])])).collect();
    let told = |at: usize| events(&looks[..at]).iter().map(|it| it.event).collect::<Vec<_>>();
    let passed_on = [Happening::Released, Happening::Acquired];
    assert_eq!(told(2), [Happening::Idle]);
    assert!(told(3).is_empty() && told(4).is_empty() && told(5).is_empty());
    assert_eq!((told(6), told(7)), (passed_on.to_vec(), vec![Happening::Idle]));
    assert_eq!(told(8), passed_on, "it is idle again");
    let idle_at_first = events(&[look(1.0, &[lock("lock", &[idle(1)])])]);
    let told = idle_at_first.iter().map(|it| it.event).collect::<Vec<_>>();
    assert_eq!(told, [Happening::Acquired, Happening::Idle]);
}

#[test]
fn counts_of_holds_tell_of_holds_that_no_look_saw() {
    let counted = |owner: &str, acquired| Caller {
        client_id: Some("c".into()),
        acquired: Some(acquired),
        ..live(owner, 1, 0.0)
    };
    let holds = |kind, before: &[Caller], after: &[Caller]| -> Vec<_> {
        let looks = [look(1.0, &[lock(kind, before)]), look(2.0, &[lock(kind, after)])];
        events(&looks).iter().map(|it| (it.event, it.holds)).collect()
    };
    let [released, acquired] = [(Happening::Released, None), (Happening::Acquired, Some(5))];
    let passed_on = holds("lock", &[counted("x", 3)], &[counted("x", 8)]);
    assert_eq!(passed_on, [released, acquired], "a hand-off to the same thread");
    assert_eq!(holds("lock", &[counted("x", 3)], &[counted("y", 8)]), [released, acquired]);
    let reader = holds("read lock", &[counted("x", 3)], &[counted("x", 8)]);
    assert!(reader.is_empty(), "other readers of the process");
    let after = [counted("x", 8), counted("y", 8), counted("z", 8)];
    let more = holds("read lock", &[counted("x", 3)], &after);
    assert_eq!(more, [(Happening::Acquired, Some(4)), (Happening::Acquired, Some(1))]);
    let forgotten = holds("lock", &[counted("x", 8)], &[counted("y", 1)]);
    assert_eq!(forgotten, [released, (Happening::Acquired, Some(1))]);
}

#[test]
fn the_counts_of_former_holders_are_forgotten_after_thousands_of_clients() {
    let of_client = |at: u32, client: u32, acquired| {
        let client_id = Some(format!("client {client}"));
        let acquired = Some(acquired);
        let holder = Caller { client_id, acquired, ..caller(&format!("{client}:1")) };
        look(f64::from(at), &[lock("lock", &[holder])])
    };
    let holds = |clients: u32| {
        let looks = (0..clients).map(|client| of_client(client, client, 1));
        let looks: Vec<_> = looks.chain([of_client(clients, 0, 5)]).collect();
        events(&looks).pop().and_then(|event| event.holds)
    };
    assert_eq!((holds(100), holds(5000)), (Some(4), None));
}

#[test]
fn waits_in_a_queue_begin_and_end() {
    let queued = |callers: &[&str]| {
        let queue = callers.iter().map(|it| Caller { since: Some(T + 1.5), ..caller(it) });
        LockSnapshot { queue: queue.collect(), ..lock("fair lock", &[live("x", 1, 0.0)]) }
    };
    let looks = [
        look(1.0, &[queued(&[])]),
        look(2.0, &[queued(&["y", "z"])]),
        look(3.0, &[queued(&["y"])]),
    ];
    let [waiting, left] = [Happening::Waiting, Happening::Left];
    assert_eq!(last(&looks[..2]), [told(1.5, waiting, "y"), told(1.5, waiting, "z")]);
    let gone = events(&looks);
    assert_eq!(Vec::from_iter(gone.iter().map(brief)), [told(3.0, left, "z")]);
    assert_eq!(gone[0].waited, Some(1.5));
}

/// Between the looks `y` may have had the lock, unless the tokens tell that nobody had it.
#[test]
fn a_waiter_that_may_have_had_the_lock_is_gone() {
    let held = |holder: &str, token: u64, queue: &[&str]| {
        let queue = queue.iter().map(|it| Caller { since: Some(T + 0.5), ..caller(it) });
        let held = lock("queue lock", &[live(holder, 1, 0.0)]);
        LockSnapshot { token: Some(token), queue: queue.collect(), ..held }
    };
    let end_of_y = |holder: &str, token: u64| {
        let looks =
            [look(1.0, &[held("x", 7, &["y", "z"])]), look(2.0, &[held(holder, token, &[])])];
        let told = events(&looks);
        let end = told.iter().find(|event| event.owner.as_deref() == Some("y"));
        end.map(|event| event.event)
    };
    assert_eq!(end_of_y("z", 9), Some(Happening::Gone));
    assert_eq!(end_of_y("z", 7), Some(Happening::Left), "the server has granted nothing");
    assert_eq!(end_of_y("x", 9), Some(Happening::Left), "x kept the lock");
}

/// The looks see the lock free while it passes from `x` to `y`.
#[test]
fn a_waiter_that_gets_the_lock_has_not_left() {
    let queue = vec![Caller { since: Some(T + 0.5), ..caller("y") }];
    let before = LockSnapshot { queue, ..lock("fair lock", &[live("x", 1, 0.0)]) };
    let after = lock("fair lock", &[live("y", 1, 2.5)]);
    let looks = [look(1.0, &[before]), look(2.0, &[]), look(3.0, &[after])];
    assert_eq!(last(&looks[..2]), [told(2.0, Happening::Released, "x")]);
    let acquired = events(&looks);
    assert_eq!(Vec::from_iter(acquired.iter().map(brief)), [told(2.5, Happening::Acquired, "y")]);
    assert_eq!(acquired[0].waited, Some(2.0));
    let looks = [&looks[..2], &[look(3.0, &[]), look(4.0, &[]), look(5.0, &[])]].concat();
    assert!(last(&looks[..3]).is_empty());
    assert_eq!(last(&looks[..4]), [told(2.0, Happening::Gone, "y")], "still free: nobody waits");
    assert!(last(&looks).is_empty());
}

#[test]
fn the_number_of_waiting_processes_is_told_without_an_owner() {
    let waiting = |processes| LockSnapshot { processes, ..lock("lock", &[live("x", 1, 0.0)]) };
    let looks = [0, 2, 1].map(|count| look(count as f64, &[waiting(count)]));
    let [none, two, one] = &looks;
    let told = |looks: &[&Look]| -> Vec<_> {
        let events = events(&looks.iter().map(|it| (*it).clone()).collect::<Vec<_>>());
        events.into_iter().map(|it| (it.event, it.owner, it.processes)).collect()
    };
    assert_eq!(told(&[none, two]), [(Happening::Waiting, None, Some(2))]);
    assert_eq!(told(&[none, two, one]), [(Happening::Left, None, Some(1))]);
}

#[test]
fn the_holds_of_a_named_holder_are_told_apart_by_their_clients() {
    let hold = |client: &str| Caller { client_id: Some(client.into()), ..caller("job") };
    let kind = "lock of a named holder";
    let [before, after] = [vec![hold("c"), hold("c")], vec![hold("c"), hold("d")]];
    let events = events(&[look(1.0, &[lock(kind, &before)]), look(2.0, &[lock(kind, &after)])]);
    let told: Vec<_> = events.iter().map(|it| (it.event, it.client_id.as_deref())).collect();
    assert_eq!(told, [(Happening::Released, Some("c")), (Happening::Acquired, Some("d"))]);
}

#[test]
fn a_process_that_becomes_known_is_told_once() {
    let known = |owner: &str| Caller { pid: Some(7), host: Some("h".into()), ..caller(owner) };
    let state = |x, y| LockSnapshot { queue: vec![y], ..lock("fair lock", &[x]) };
    let looks = [
        look(1.0, &[state(caller("x"), caller("y"))]),
        look(2.0, &[state(known("x"), known("y"))]),
        look(3.0, &[state(known("x"), known("y"))]),
    ];
    let identified = events(&looks[..2]);
    let expected = ["x", "y"].map(|owner| told(2.0, Happening::Identified, owner));
    assert_eq!(Vec::from_iter(identified.iter().map(brief)), expected);
    assert!(identified.iter().all(|event| event.pid == Some(7) && event.host.is_some()));
    assert!(last(&looks).is_empty());
    let lost = [&looks[..2], &[look(3.0, &[state(caller("x"), caller("y"))])], &looks[2..]];
    assert!(last(&lost.concat()).is_empty(), "the record of a client expires");
}

#[test]
fn a_lock_that_stays_free_is_forgotten() {
    let mut observer = Observer::default();
    observer.compare(&look(0.0, &[lock("lock", &[caller("x")])]));
    assert_eq!(observer.locks.len(), 1);
    (1..=super::MEMORY).for_each(|at| drop(observer.compare(&look(at as f64, &[]))));
    assert!(observer.locks.is_empty());
}

#[test]
fn an_event_is_a_line_of_json_without_unknown_facts() {
    let event = LockEvent { at: T, name: "a".into(), ..LockEvent::default() };
    let line = serde_json::to_string(&event).expect("numbers and texts");
    assert_eq!(line, r#"{"at":1800000000.0,"name":"a","event":"mark"}"#);
    let held = lock("lock", &[live("x", 1, 0.0)]);
    for event in events(&[look(1.0, &[held])]) {
        let line = serde_json::to_string(&event).expect("numbers and texts");
        assert_eq!(serde_json::from_str::<LockEvent>(&line).ok(), Some(event), "{line}");
    }
}

#[test]
fn a_lock_of_unknown_state_has_no_events_until_its_server_answers() {
    let unknown = |at: f64| Look { unknown: ["a".to_owned()].into(), ..look(at, &[]) };
    let held = |owner: &str| lock("lock", &[caller(owner)]);
    assert_eq!(last(&[look(1.0, &[held("x")]), unknown(2.0)]), []);
    // The hold may have ended at any time since the last look that saw it.
    let looks = [look(1.0, &[held("x")]), unknown(2.0), unknown(3.0), look(4.0, &[])];
    assert_eq!(last(&looks).len(), 1);
    assert_eq!(last(&looks)[0].1, Happening::Released);
    let first = events(&[unknown(1.0), look(2.0, &[held("x")])]);
    assert!(first.len() == 1 && first[0].present, "{first:?}");
}
