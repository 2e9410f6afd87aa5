//! Holders that are killed, and whose holds end with them; and holders that only seem so.

use crate::harness::faults::*;
use crate::harness::held::{KINDS, opposite, take};
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::wait::BOUND;
use crate::harness::{Server, eventually};
use leasehold::{Builder, Client, LockInfo};
use std::collections::HashMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// A lease that outlives every test.
const NEVER: Duration = Duration::from_secs(1000);

/// The poll interval of the clients that wait.
const POLL: Duration = Duration::from_millis(200);

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "hold" => hold(&role),
        Some(role) if role.name() == "namespace" => in_a_namespace(&role),
        Some(role) => panic!("unknown: {role:?}"),
    }
}

/// Returns the settings of a client with a record.
fn settings(url: impl Into<String>) -> Builder {
    patient(url).announce(true)
}

/// Holds a lock with this kind and these settings, until the process is killed or told to leave.
fn hold(role: &Role) {
    let [url, name, kind, options] = [0, 1, 2, 3].map(|at| role.arg(at));
    let mut builder = settings(url).watchdog_timeout(NEVER);
    for setting in options.split(' ').filter(|it| !it.is_empty()) {
        builder = match setting.split_once('=') {
            None => builder.release_on_death(setting == "dies"),
            Some((_, instance)) => builder.instance(instance),
        };
    }
    let client = build(builder);
    let held = take(&client, name, kind, Some(BOUND)).expect("nobody else holds it");
    let mut child = None;
    role.say("held");
    while let Some(order) = role.hear() {
        match &*order {
            "leave" => break,
            "child" => {
                // The test ends it.
                let mut command = Command::new("sleep");
                let sleep = command.arg("100").process_group(0).spawn().expect("a program");
                client.end_with_group(sleep.id()).expect("Linux");
                role.say(&sleep.id().to_string());
                child = Some(sleep);
            }
            order => panic!("{order:?} is no order"),
        }
    }
    drop((held, child));
    client.close();
}

/// Starts a process that holds a lock of this kind.
fn holder(server: &Server, name: &str, kind: &str, settings: &str) -> ChildProcess {
    let args = [&server.url(), name, kind, settings];
    let mut child = ChildProcess::start("dead_holders::child_entry", "hold", &args);
    child.expect_line("held");
    child
}

/// Returns a client that polls often.
fn brisk(server: &Server) -> Client {
    build(settings(server.url()).poll_interval(POLL).watchdog_timeout(NEVER))
}

#[test]
fn the_lock_of_a_killed_process_passes_on_to_its_waiters() {
    for kind in KINDS {
        let server = Server::start();
        let mut child = holder(&server, "a", kind, "dies");
        let client = brisk(&server);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&client, "a", opposite(kind), Some(BOUND)).is_some());
            eventually("the caller waits", || client.stats().waiting_now() > 0);
            assert_eq!(client.stats().freed(), 0, "{kind}: its process lives");
            child.kill();
            assert!(waiter.join().expect("no panic"), "{kind}: the lock stays taken");
        });
        // The grant by message may come before the reply to the release.
        eventually("the release is counted", || client.stats().freed() > 0);
    }
}

#[test]
fn a_caller_that_does_not_wait_takes_the_lock_of_a_killed_process() {
    for kind in KINDS.into_iter().chain(["multi", "red"]) {
        let server = Server::start();
        let held = if matches!(kind, "multi" | "red") { "plain" } else { kind };
        let mut child = holder(&server, "a", held, "dies");
        assert!(take(&brisk(&server), "a", opposite(kind), None).is_none(), "{kind} is held");
        child.kill();
        assert!(take(&brisk(&server), "a", opposite(kind), None).is_some(), "{kind} is free");
    }
}

#[test]
fn without_the_setting_the_lock_of_a_killed_process_stays_taken() {
    let server = Server::start();
    for settings in ["", "instance=x"] {
        let mut child = holder(&server, "a", "plain", settings);
        child.kill();
        let client = brisk(&server);
        assert!(take(&client, "a", "plain", Some(3 * POLL)).is_none(), "{settings:?}");
        assert_eq!(client.stats().freed(), 0);
        server.ask::<()>(&["FLUSHALL"]);
    }
}

#[test]
fn a_process_that_is_stopped_keeps_its_lock() {
    let server = Server::start();
    let child = holder(&server, "a", "plain", "dies");
    child.stop();
    let client = brisk(&server);
    assert!(take(&client, "a", "plain", Some(3 * POLL)).is_none());
    assert!(take(&client, "a", "plain", None).is_none());
    child.resume();
}

/// Returns the key of the record of the holder of `a`.
fn record_of_holder(client: &Client) -> String {
    let holder = client.lock("a").holder().expect("the server answers").expect("a holder");
    format!("leasehold_client:{{{}}}", holder.client_id().expect("of leasehold"))
}

/// The record says another boot, another namespace, another machine.
#[test]
fn a_process_elsewhere_is_not_taken_for_gone() {
    let server = Server::start();
    let client = brisk(&server);
    let mut child = holder(&server, "a", "plain", "dies");
    let record = record_of_holder(&client);
    child.kill();
    for (field, other) in [("place", "another boot"), ("host", "another"), ("pid", "0")] {
        let own: String = server.ask(&["HGET", &record, field]);
        server.ask::<()>(&["HSET", &record, field, other]);
        let client = brisk(&server);
        assert!(take(&client, "a", "plain", None).is_none(), "{field}");
        server.ask::<()>(&["HSET", &record, field, &own]);
    }
    assert!(take(&client, "a", "plain", None).is_some(), "now it is seen");
}

/// The id of a process may be that of another one by now, which started later.
#[test]
fn a_process_with_the_id_of_the_holder_does_not_keep_the_lock() {
    let server = Server::start();
    let (client, child) = (brisk(&server), holder(&server, "a", "plain", "dies"));
    let record = record_of_holder(&client);
    let born: u64 = server.ask(&["HGET", &record, "born"]);
    server.ask::<()>(&["HSET", &record, "born", &(born - 1).to_string()]);
    assert!(take(&client, "a", "plain", None).is_some());
    drop(child);
}

#[test]
fn a_lock_stays_taken_until_its_process_group_is_gone() {
    let server = Server::start();
    let mut child = holder(&server, "a", "plain", "");
    child.send_line("child");
    let group: i32 = child.next_line().parse().expect("an id");
    let record = record_of_holder(&brisk(&server));
    eventually("the record is written again", || {
        server.ask::<Option<i32>>(&["HGET", &record, "group"]) == Some(group)
    });
    child.kill();
    assert!(take(&brisk(&server), "a", "plain", Some(3 * POLL)).is_none());
    let group = rustix::process::Pid::from_raw(group).expect("an id");
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("it runs");
    assert!(take(&brisk(&server), "a", "plain", Some(BOUND)).is_some());
}

#[test]
fn a_process_that_starts_again_takes_over_the_locks_of_its_instance() {
    let server = Server::start();
    let mut child = holder(&server, "a", "plain", "instance=billing-0");
    child.kill();
    let of_instance = |name| build(settings(server.url()).poll_interval(POLL).instance(name));
    assert!(take(&of_instance("billing-1"), "a", "plain", None).is_none(), "another instance");
    let client = of_instance("billing-0");
    let same = of_instance("billing-0");
    let held = take(&client, "a", "plain", None);
    assert!(held.is_some() && client.stats().freed() == 1);
    assert!(take(&same, "a", "plain", None).is_none(), "both clients are of this process");
}

/// Two processes with one instance name break exclusion. The earlier one learns of it at once.
#[test]
fn a_process_whose_instance_started_again_learns_of_its_losses() {
    let server = Server::start();
    let of_instance = settings(server.url()).instance("x").watchdog_timeout(NEVER);
    let (builder, events) = EventLog::from(of_instance);
    let before = build(builder);
    let guard = before.lock("a").lock().expect("free");
    let record = record_of_holder(&before);
    server.ask::<()>(&["HSET", &record, "born", "1"]);
    let control = format!("leasehold:wake:{{{}}}", before.id());
    eventually("the client listens", || server.numsub(&control) > 0);
    let after = build(settings(server.url()).instance("x"));
    assert!(take(&after, "a", "plain", None).is_some(), "it takes the lock over");
    assert_eq!((&*events.lost().name, guard.is_held()), ("a", false));
}

#[test]
fn the_name_of_an_instance_is_any_short_text_without_control_characters() {
    let server = Server::start();
    let named = |name: &str| settings(server.url()).instance(name);
    let long = "n".repeat(256);
    for bad in ["", "a\nb", "\0", &format!("{long}n")] {
        assert!(named(bad).build().is_err_and(|error| error.is_configuration()), "{bad:?}");
    }
    let unannounced = named("x").announce(false).build();
    assert!(unannounced.is_err_and(|error| error.is_configuration()));
    for odd in [" ", "billing-0 {a}:*%s\"'\\", "ärger/日本", &long] {
        let before = build(named(odd).watchdog_timeout(NEVER));
        let guard = before.lock("a").lock().expect("free");
        let holder = before.lock("a").holder().expect("the server answers").expect("a holder");
        assert_eq!(holder.instance(), Some(odd));
        // Another process.
        server.ask::<()>(&["HSET", &record_of_holder(&before), "born", "1"]);
        assert!(take(&build(named(odd)), "a", "plain", None).is_some(), "{odd:?}");
        drop(guard);
    }
}

/// A program may take a lock for an hour, detach it, and end.
#[test]
fn what_a_process_has_detached_before_it_closed_its_client_stays_taken() {
    let server = Server::start();
    let mut child = holder(&server, "a", "detached", "dies");
    child.send_line("leave");
    assert!(child.wait().success());
    let records = || server.ask::<Vec<String>>(&["KEYS", "leasehold_client:*"]);
    eventually("the record is deleted", || records().is_empty());
    assert!(take(&brisk(&server), "a", "plain", Some(3 * POLL)).is_none());
}

#[test]
fn a_record_lives_as_long_as_the_longest_lease() {
    let server = Server::start();
    let lease = Duration::from_secs(10);
    let client = build(settings(server.url()).watchdog_timeout(lease).release_on_death(true));
    let record = format!("leasehold_client:{{{}}}", client.id());
    let left = || Duration::from_millis(server.ask(&["PTTL", &record]));
    assert!(left() > Duration::from_secs(20), "it is written by `build`");
    let guard = client.lock("a").with_lease(NEVER).lock().expect("free");
    eventually("it is renewed", || left() > NEVER / 2);
    guard.extend(2 * NEVER).expect("held");
    eventually("it is renewed", || left() > NEVER);
}

#[test]
fn a_refused_call_looks_for_the_holder_once_per_poll_interval() {
    let server = Server::start();
    let client = build(settings(server.url()).poll_interval(NEVER));
    let _guard = brisk(&server).lock("a").lock_owned().expect("free");
    let looks = || server.calls("hrandfield");
    let before = looks();
    for _ in 0..3 {
        assert!(take(&client, "a", "plain", None).is_none());
    }
    // Each refusal asks for a hold that lingers, and the first one looks.
    assert_eq!(looks(), before + 4);
    let quiet = build(patient(server.url()));
    assert!(take(&quiet, "a", "plain", None).is_none());
    assert_eq!(looks(), before + 5, "without a record of its own it does not look");
}

#[test]
fn a_client_without_the_permission_to_read_records_waits_for_the_lease() {
    let server = Server::start();
    server.ask::<()>(&["ACL", "SETUSER", "u", "on", ">p", "+@all", "~a", "&*"]);
    let mut child = holder(&server, "a", "plain", "dies");
    child.kill();
    let url = server.url().replace("redis://", "redis://u:p@");
    let client = build(settings(url).poll_interval(POLL));
    assert!(take(&client, "a", "plain", Some(3 * POLL)).is_none());
    let denied = || server.ask::<Vec<redis::Value>>(&["ACL", "LOG"]).len();
    let before = denied();
    assert!(take(&client, "a", "plain", Some(3 * POLL)).is_none());
    assert_eq!(denied(), before, "it looks no more");
    assert!(take(&brisk(&server), "a", "plain", None).is_some());
}

/// Returns the time from each of some SIGKILLs to the next grant.
fn times_to_the_next_grant(server: &Server, kind: &str, kills: usize) -> Vec<Duration> {
    let poll = Duration::from_secs(1);
    let client = build(settings(server.url()).poll_interval(poll).watchdog_timeout(NEVER));
    let time = |round| {
        let name = format!("{kind}-{round}");
        let mut child = holder(server, &name, kind, "dies");
        std::thread::scope(|scope| {
            let take = || take(&client, &name, opposite(kind), Some(BOUND));
            let waiter = scope.spawn(move || take().map(|_| Instant::now()));
            eventually("the caller waits", || client.stats().waiting_now() > 0);
            // At any moment between two polls.
            std::thread::sleep(poll.mul_f64(fastrand::f64()));
            let killed = Instant::now();
            child.kill();
            waiter.join().expect("no panic").expect("the holder died") - killed
        })
    };
    let times = (0..kills).map(time).collect();
    eventually("all are counted", || client.stats().freed() >= kills as u64);
    times
}

/// Measures the time from a SIGKILL to the next grant with a poll interval of a second, for all
/// kinds at the same time. `LEASEHOLD_KILLS` is the number of kills of each kind.
#[test]
fn a_killed_holder_costs_its_waiters_about_one_poll_interval() {
    let kills = std::env::var("LEASEHOLD_KILLS").map_or(1, |it| it.parse().expect("a number"));
    let server = Server::start();
    let show = |what: &str, mut times: Vec<Duration>| {
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let (median, p99, longest) = (at(0.5), at(0.99), at(1.0));
        let kills = times.len();
        eprintln!("{what}: {kills} kills, median {median:?}, p99 {p99:?}, longest {longest:?}");
        times
    };
    std::thread::scope(|scope| {
        let server = &server;
        let measure = |kind| scope.spawn(move || times_to_the_next_grant(server, kind, kills));
        let all = KINDS.map(|kind| (kind, measure(kind)));
        let all = all.map(|(kind, times)| show(kind, times.join().expect("no panic")));
        show("all kinds", all.concat());
    });
}

/// Starts a process in a PID namespace of its own, in which it sees only its children.
///
/// `None` if the system does not permit that, as it does only for root.
fn in_new_namespace(server: &Server, settings: &str) -> Option<ChildProcess> {
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let is_permitted = Command::new(wrapper[0]).args(&wrapper[1..]).arg("true").output();
    if !is_permitted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this system permits no PID namespaces");
        return None;
    }
    let args = [&server.url(), "a", "plain", settings];
    Some(ChildProcess::start_by(&wrapper, "dead_holders::child_entry", "namespace", &args))
}

/// In a PID namespace: holds a lock, or has a process hold it whose id another one gets.
fn in_a_namespace(role: &Role) {
    if role.arg(3) == "dies" {
        return hold(role);
    }
    let args: Vec<&str> = role.args().iter().map(String::as_str).collect();
    let args = [args[0], args[1], args[2], "dies"];
    let mut child = ChildProcess::start("dead_holders::child_entry", "hold", &args);
    child.expect_line("held");
    let pid = child.pid();
    // The time of start has a resolution of 10 ms: a process that starts at the same time counts as
    // the same one.
    let start = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let (_, numbers) = status.rsplit_once(')').expect("a name");
        numbers.split_whitespace().nth(19).expect("a start").to_owned()
    };
    let born = start();
    child.kill();
    role.say("killed");
    let last = "/proc/sys/kernel/ns_last_pid";
    let mut other = None;
    eventually("another process gets the id", || {
        std::fs::write(last, (pid - 1).to_string()).expect("root");
        let sleep = Command::new("sleep").arg("100").spawn().expect("a program");
        let got = sleep.id() == pid && start() != born;
        if let Some(mut before) = other.replace(sleep) {
            let _ = (before.kill(), before.wait());
        }
        got
    });
    role.say("replaced");
    let client = build(settings(args[0]).poll_interval(POLL).watchdog_timeout(NEVER));
    let is_free = take(&client, args[1], args[2], Some(BOUND / 2)).is_some();
    let seen = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let known = client.lock_info(args[1]);
    role.say(&if is_free { "free".to_owned() } else { format!("held: {known:?}, {seen:?}") });
    let mut other = other.expect("a process");
    let _ = (other.kill(), other.wait());
}

#[test]
fn a_killed_process_in_another_pid_namespace_keeps_its_lock() {
    let server = Server::start();
    let Some(mut child) = in_new_namespace(&server, "dies") else { return };
    child.expect_line("held");
    let info = brisk(&server).lock_info("a").expect("the server answers");
    let pids: HashMap<_, _> = info
        .iter()
        .flat_map(LockInfo::holders)
        .map(|it| (it.pid(), it.ends_with_process()))
        .collect();
    assert_eq!(pids.values().copied().collect::<Vec<_>>(), [true]);
    // Its id is that of another process here, or of none.
    assert!(take(&brisk(&server), "a", "plain", Some(3 * POLL)).is_none());
    child.kill();
    assert!(take(&brisk(&server), "a", "plain", Some(3 * POLL)).is_none());
}

#[test]
fn a_process_that_got_the_id_of_a_killed_holder_does_not_keep_its_lock() {
    let server = Server::start();
    let Some(mut child) = in_new_namespace(&server, "reuse") else { return };
    ["killed", "replaced", "free"].iter().for_each(|line| child.expect_line(line));
}
