//! The answers of a running client to questions about its holds.

use std::sync::Arc;
use std::{iter, thread};

use crate::client_record::record_key;
use crate::harness::details::{REPLY_CHANNEL, ask_details, packed, wake_channel};
use crate::harness::faults::{channel_of, written_together};
use crate::harness::{
    ChildProcess, Proxy, Server, eventually, exists, in_time, join, process, pttl, sleeping,
};
use leasehold::{Builder, Client, Result};

fn builder(server: &Server) -> Builder {
    Client::builder().single(server.url())
}

/// Returns a client that answers questions.
fn announced(server: &Server) -> Result<Client> {
    let client = builder(server).build()?;
    client.lock("first").lock()?.unlock()?;
    await_listener(server, &client);
    Ok(client)
}

fn await_listener(server: &Server, client: &Client) {
    eventually("the client listens", || server.numsub(&wake_channel(client.id())) == 1);
}

/// Returns the id of the connection on which a client listens.
fn listener(server: &Server) -> Option<u64> {
    let mut peers = server.clients().into_iter();
    peers.find(|peer| peer.name.ends_with(":listener")).map(|peer| peer.id)
}

/// Returns the number of the only hold of a lock.
fn number(server: &Server, name: &str) -> String {
    let fields: Vec<String> = server.ask(&["HKEYS", name]);
    let number = fields.iter().find_map(|field| field.split(':').nth(1));
    number.expect("an owner field").to_owned()
}

/// Returns the answer of a client about one hold, without its head.
fn details(server: &Server, client: &Client, key: &str, hold: &str) -> Vec<String> {
    let mut answer = ask_details(server, server, client.id(), &[(key, hold)]);
    assert_eq!(answer[..2], ["details".to_owned(), client.id().to_string()]);
    answer.split_off(2)
}

/// Returns the values that tell the number of holds so far.
fn count(hold: &str, acquired: &str) -> [String; 7] {
    ["0", "", hold, acquired, "0", "0", "0"].map(str::to_owned)
}

fn millis(text: &str) -> u64 {
    text.parse().expect("milliseconds")
}

#[test]
fn an_answer_tells_thread_guards_deadline_and_waiters() -> Result<()> {
    let server = Server::start();
    let client = announced(&server)?;
    let (lock, begun) = (client.lock("a"), std::time::Instant::now());
    let holder = thread::Builder::new().name("worker-7".to_owned()).spawn({
        let (server_url, lock) = (server.url(), lock.clone());
        move || -> Result<()> {
            let guards = (lock.lock()?, lock.lock()?);
            let mut connection = redis::Client::open(server_url)
                .and_then(|client| client.get_connection())
                .expect("the server runs");
            // Another thread sets this key when it has asked.
            eventually("the answer is checked", || {
                redis::cmd("EXISTS").arg("done").query(&mut connection).expect("it answers")
            });
            drop(guards);
            Ok(())
        }
    });
    let holder = holder.expect("a thread starts");
    eventually("the lock is held", || exists(&server, "a"));
    let waiters = ["one", "two"].map(|name| {
        let lock = client.lock("a");
        sleeping(name, move || lock.lock()?.unlock())
    });
    let hold = number(&server, "a");
    let mut answer = Vec::new();
    eventually("both guards and both waiters are there", || {
        answer = details(&server, &client, "a", &hold);
        answer[3] == "2" && answer[6] == "2"
    });
    assert_eq!(answer[7..], count(&hold, "1"), "the first hold of this name");
    assert_eq!(answer[..2], [&*hold, "worker-7"].map(str::to_owned));
    assert!(millis(&answer[2]) > 0, "the number of the thread");
    assert!((1..=30_000).contains(&millis(&answer[4])), "to the deadline");
    assert!(u128::from(millis(&answer[5])) <= begun.elapsed().as_millis(), "since the grant");
    server.ask::<()>(&["SET", "done", ""]);
    join(holder)?;
    waiters.into_iter().try_for_each(join)?;
    assert_eq!(details(&server, &client, "a", &hold), count(&hold, "3"), "the hold has ended");
    assert_eq!(details(&server, &client, "unknown", &hold), Vec::<String>::new());
    Ok(())
}

#[test]
fn an_owned_guard_shows_the_thread_that_took_it() -> Result<()> {
    let server = Server::start();
    let client = announced(&server)?;
    let lock = client.fair_lock("a");
    let taker = thread::Builder::new().name("taker".to_owned());
    let guard = join(taker.spawn(move || lock.lock_owned()).expect("a thread starts"))?;
    let answer = details(&server, &client, "a", &number(&server, "a"));
    assert_eq!((&*answer[1], &*answer[3]), ("taker", "1"));
    guard.unlock()
}

#[test]
fn waiters_of_a_read_write_lock_are_counted() -> Result<()> {
    let server = Server::start();
    let client = announced(&server)?;
    let guard = client.rw_lock("a").write()?;
    let hold = number(&server, "a");
    let readers = ["one", "two"].map(|name| {
        let lock = client.rw_lock("a").read_lock();
        sleeping(name, move || lock.lock()?.unlock())
    });
    eventually("both are counted", || details(&server, &client, "a", &hold)[6] == "2");
    guard.unlock()?;
    readers.into_iter().try_for_each(join)
}

#[test]
fn invalid_requests_are_ignored() -> Result<()> {
    let server = Server::start();
    let client = announced(&server)?;
    let before = listener(&server);
    let reply = REPLY_CHANNEL;
    let many: Vec<&str> = ["details", reply].into_iter().chain(["k"; 1000]).collect();
    let long = "x".repeat(2 << 20);
    let invalid = [
        "*".to_owned(),
        "*x\r\n".to_owned(),
        "*-1\r\n".to_owned(),
        "*99999999999\r\n".to_owned(),
        "*1\r\n".repeat(1000),
        packed(&[]),
        packed(&["details"]),
        packed(&["details", "redisson_lock__channel:{a}", "k", "1"]),
        packed(&["details", reply, "k"]),
        packed(&["details", reply, "k", "no number"]),
        packed(&["other", reply, "k", "1"]),
        packed(&["details", reply, &long, "1"]),
        packed(&many),
    ];
    for request in &invalid {
        let receivers: u64 = server.ask(&["PUBLISH", &wake_channel(client.id()), request]);
        assert_eq!(receivers, 1);
    }
    let guard = client.lock("a").lock()?;
    assert_eq!(details(&server, &client, "a", &number(&server, "a")).len(), 14);
    assert_eq!(listener(&server), before, "the connection stays");
    guard.unlock()
}

#[test]
fn a_killed_listener_connection_is_made_again_without_a_waiter() -> Result<()> {
    let server = Server::start();
    let client = announced(&server)?;
    assert_eq!(server.client_kill_type("pubsub"), 1);
    await_listener(&server, &client);
    let guard = client.lock("a").lock()?;
    assert_eq!(details(&server, &client, "a", &number(&server, "a")).len(), 14);
    guard.unlock()
}

/// A request behind one whose script is missing runs twice. A second answer would be taken for that
/// to the next question.
#[test]
fn an_answer_behind_a_missing_script_is_sent_once() -> Result<()> {
    const REQUESTS: usize = 20;
    let server = Arc::new(Server::start());
    let proxy = Proxy::start(server.addr());
    let client = Client::builder().single(proxy.url()).pool_size(1).build()?;
    client.lock("first").lock()?.unlock()?;
    await_listener(&server, &client);
    let latch = client.latch("open");
    let (asking, asked) = (Arc::clone(&server), client.clone());
    let count_answers = move || {
        let mut connection = asking.connection();
        let mut answers = connection.as_pubsub();
        answers.subscribe(REPLY_CHANNEL).expect("the server answers");
        let request = packed(&["details", REPLY_CHANNEL]);
        for _ in 0..REQUESTS {
            asking.ask::<()>(&["PUBLISH", &wake_channel(asked.id()), &request]);
        }
        let mut payloads = iter::from_fn(|| answers.get_message().ok()?.get_payload().ok());
        let first: Vec<String> = payloads.by_ref().take(REQUESTS).collect();
        asked.ping().expect("the server has all requests before this one");
        asking.ask::<()>(&["PUBLISH", REPLY_CHANNEL, "end"]);
        first.len() + payloads.take_while(|payload| payload != "end").count()
    };
    let (waited, answers) = written_together(&proxy, &client, move || latch.wait(), count_answers);
    waited?;
    assert_eq!(answers, REQUESTS);
    Ok(())
}

/// The record is renewed once in 10 s, and one heartbeat goes with it.
#[test]
fn an_idle_holder_costs_two_small_commands_in_ten_seconds() -> Result<()> {
    let server = Server::start();
    let client = announced(&server)?;
    let _guard = client.lock("a").with_lease(std::time::Duration::from_secs(600)).lock()?;
    let before = listener(&server);
    let record = record_key(client.id());
    server.ask::<()>(&["PEXPIRE", &record, "29000"]);
    server.reset_stats();
    eventually("the record is renewed", || pttl(&server, &record) > 29_000);
    eventually("the heartbeat follows", || server.commandstats().contains_key("publish"));
    let mut stats = server.commandstats();
    // The commands of the harness, and the verification of a fixed lease with its connection.
    let harness = ["info", "pttl", "config|resetstat", "client|setname", "client|list"];
    let verification = ["hello", "script|load", "evalsha", "hexists"];
    stats.retain(|command, _| ![&harness[..], &verification[..]].concat().contains(&&**command));
    let expected = [("pexpire", 1), ("publish", 1)];
    let expected = expected.map(|(command, calls)| (command.to_owned(), calls));
    assert_eq!(stats, expected.into());
    assert_eq!(listener(&server), before, "the listener's connection is still open");
    Ok(())
}

/// Neither a poll nor the end of the lease wakes the waiter in time.
#[test]
fn a_quiet_listener_subscribes_for_the_first_waiter() -> Result<()> {
    let server = Server::start();
    let client = builder(&server).poll_interval(std::time::Duration::from_secs(600)).build()?;
    client.lock("first").lock()?.unlock()?;
    await_listener(&server, &client);
    let holder = builder(&server).build()?;
    for name in ["a", "b"] {
        let guard = holder.lock(name).lock()?;
        let lock = client.lock(name);
        let waiter = sleeping(name, move || lock.lock()?.unlock());
        eventually("the waiter is subscribed", || server.numsub(&channel_of(name)) == 1);
        guard.unlock()?;
        join(waiter)?;
    }
    Ok(())
}

#[test]
fn a_client_that_announces_nothing_does_not_listen() -> Result<()> {
    let server = Server::start();
    let silent = builder(&server).announce(false).build()?;
    let _guard = silent.lock("a").lock()?;
    // The other client has had the same time.
    let _client = announced(&server)?;
    assert_eq!(server.numsub(&wake_channel(silent.id())), 0);
    Ok(())
}

#[test]
fn a_stopped_process_answers_when_it_is_resumed() {
    let server = Server::start();
    let mut child = ChildProcess::start("live_details::child_entry", "answers", &[&server.url()]);
    let id = child.next_line();
    eventually("the client listens", || server.numsub(&wake_channel(&id)) == 1);
    child.stop();
    let hold = number(&server, "a");
    thread::scope(|scope| {
        let ask = || ask_details(&server, &server, &id, &[("a", &hold)]);
        let answer = scope.spawn(ask);
        eventually("the question is asked", || server.numsub(REPLY_CHANNEL) == 1);
        child.resume();
        assert_eq!(in_time("an answer", answer).len(), 2 + 14);
    });
    child.close_input();
    assert!(child.wait().success());
}

#[test]
fn child_entry() {
    let Some(role) = process::role().filter(|role| role.name() == "answers") else { return };
    let client = Client::open(role.arg(0)).expect("the server runs");
    let _guard = client.lock("a").lock().expect("the lock is free");
    role.say(&client.id().to_string());
    role.hear();
}
