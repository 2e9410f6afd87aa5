//! The client: its connections, its settings, its end.

use crate::harness::ports::free_port;
use crate::harness::wait::{open_descriptors, threads};
use crate::harness::{ChildProcess, Direction, Proxy, Server, eventually, exists, join, process};
use leasehold::{Client, Error, Guard, Lock, OwnedGuard, Result};
use std::error::Error as _;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_millis(100);

/// Returns the displayed and the debug texts of an error and its causes.
fn all_texts(error: &Error) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    text
}

/// Returns the error of a client that cannot be opened.
fn open_error(url: impl AsRef<str>) -> Error {
    Client::open(url).expect_err("no client can be opened")
}

#[test]
fn a_url_that_cannot_be_used_is_a_configuration_error() {
    for url in [
        "",
        "localhost",
        "http://127.0.0.1/",
        "redis://",
        "redis://:geheim@",
        "redis://127.0.0.1:port/",
        "redis://127.0.0.1/database",
        "rediss+unix:///tmp/geheim",
        "redis://127.0.0.1:6379#geheim@redis.example/",
        "redis://127.0.0.1:6379?geheim@redis.example/",
        "redis://127.0.0.1/-1",
        "redis://127.0.0.1/?database=2",
        "redis://127.0.0.1/?user=worker&password=geheim",
    ] {
        let error = open_error(url);
        assert!(error.is_configuration(), "{url}: {error:?}");
        assert!(!all_texts(&error).contains("geheim"), "{url}: {error:?}");
    }
    let shown = format!("{:?}", Client::builder().single("redis://worker:4711#geheim@h/"));
    assert!(!shown.contains("geheim") && !shown.contains("4711"), "{shown}");
    let [first, other] = ["redis://127.0.0.1:1/", "redis://127.0.0.1:1/?db=2"];
    for builder in [
        Client::builder().cluster([first, other]),
        Client::builder().sentinel("master", [first, other]),
        Client::builder().sentinel("master", ["redis://127.0.0.1:1/1", other]),
        Client::builder().sentinel("master", [other, "redis://127.0.0.1:1/0"]),
        Client::builder().sentinel("master", [other, first, "redis://127.0.0.1:1/?db=0"]),
    ] {
        let error = builder.build_lazily().expect_err("two databases");
        assert!(error.is_configuration() && error.to_string().contains("database"), "{error}");
    }
    for builder in [
        Client::builder().sentinel("master", [other, first, "redis://127.0.0.1:2/2"]),
        Client::builder().sentinel("master", [first, "redis://127.0.0.1:2/0"]),
        Client::builder().cluster([first, "redis://127.0.0.1:2/0"]),
    ] {
        drop(builder.build_lazily().expect("one database"));
    }
    let nowhere = Client::builder().build().expect_err("the builder names no server");
    assert!(nowhere.is_configuration());
}

#[cfg(not(feature = "tls"))]
#[test]
fn tls_without_its_feature_is_a_configuration_error_that_names_it() {
    let error = open_error("rediss://127.0.0.1/");
    assert!(error.is_configuration(), "{error:?}");
    assert!(error.to_string().contains("feature \"tls\""), "{error}");
}

#[test]
fn a_server_that_cannot_be_reached_is_a_connection_error_at_once() {
    let port = free_port();
    let refused = open_error(format!("redis://user:geheim@127.0.0.1:{port}/"));
    let no_socket = open_error("redis+unix:///nowhere/redis.sock?pass=geheim");
    assert!(refused.is_connection() && no_socket.is_connection(), "{refused:?} {no_socket:?}");
    assert!(refused.to_string().contains(&format!("127.0.0.1:{port}")), "{refused}");
    assert!(refused.source().is_some(), "the error has a cause");
    assert!(!all_texts(&refused).contains("geheim") && !all_texts(&no_socket).contains("geheim"));
}

#[test]
fn a_wrong_or_missing_password_is_reported_with_the_reply_of_the_server() {
    let server = Server::with(|config| config.password("geheim"));
    let none = open_error(server.url());
    assert!(none.is_server() && none.to_string().contains("NOAUTH"), "{none:?}");
    let wrong = open_error(server.login_url("", "verkehrt"));
    assert!(wrong.is_server() && wrong.to_string().contains("WRONGPASS"), "{wrong:?}");
    assert!(!all_texts(&wrong).contains("verkehrt"), "{wrong:?}");
    let unknown = open_error(server.login_url("nobody", "geheim"));
    assert!(unknown.is_server() && !all_texts(&unknown).contains("geheim"), "{unknown:?}");
}

#[test]
fn a_database_that_the_server_does_not_have_is_refused() {
    let server = Server::start();
    let error = open_error(format!("{}4711", server.url()));
    assert!(error.is_server(), "{error:?}");
    assert!(error.to_string().contains("DB index"), "{error}");
}

#[test]
fn user_password_and_database_of_a_url_are_used_over_tcp_and_unix_sockets() -> Result<()> {
    let server = Server::start();
    let password = ">p@s:s/w ö%d+e";
    server.ask::<()>(&["ACL", "SETUSER", "ann", "on", password, "~*", "&*", "+@all"]);
    server.ask::<()>(&["ACL", "SETUSER", "default", "-@all", "+client", "+info", "+acl"]);
    server.ask::<()>(&["ACL", "SETUSER", "default", "+select", "+exists", "+keys"]);
    let encoded = "p%40s%3As%2Fw%20%C3%B6%25d+e";
    let tcp = format!("redis://ann:{encoded}@{}/3", server.addr());
    let parameter = format!("redis://ann:{encoded}@{}?db=3", server.addr());
    let unix = format!("{}?db=3&user=ann&pass={encoded}", server.unix_url());
    let mut connection = server.connection();
    redis::cmd("SELECT").arg(3).exec(&mut connection).expect("the server has 16 databases");
    for url in [tcp, parameter, unix] {
        let client = Client::open(&url)?;
        let guard = client.lock("a").lock()?;
        let found: bool = redis::cmd("EXISTS").arg("a").query(&mut connection).expect("EXISTS");
        assert!(found && server.keys().is_empty(), "the key is in database 3, not in 0");
        guard.unlock()?;
    }
    Ok(())
}

#[test]
fn a_waiter_over_a_unix_socket_is_woken_by_a_message() -> Result<()> {
    let server = Server::start();
    let holder = Client::open(server.unix_url())?;
    let client = Client::builder().single(server.unix_url()).poll_interval(MINUTE).build()?;
    let guard = holder.lock("a").with_lease(MINUTE).lock()?;
    let lock = client.lock("a");
    let waiter = thread::spawn(move || lock.lock()?.unlock());
    eventually("the waiter subscribes", || server.numsub("redisson_lock__channel:{a}") == 1);
    guard.unlock()?;
    join(waiter)
}

#[test]
fn no_printed_text_shows_the_password() -> Result<()> {
    let server = Server::with(|config| config.password("geheim"));
    let url = server.login_url("default", "geheim");
    let builder = Client::builder().single(&url).response_timeout(5 * SOON);
    let mut texts = vec![format!("{builder:?}")];
    let client = builder.build()?;
    let guard = client.lock("a").lock()?;
    let owned = client.lock("b").lock_owned()?;
    texts.push(format!("{client:?} {:?} {guard:?} {owned:?}", client.lock("a")));
    server.kill();
    texts.push(all_texts(&guard.unlock().expect_err("the server was killed")));
    texts.push(all_texts(&client.lock("c").lock().map(drop).expect_err("the server was killed")));
    let leaks: Vec<_> = texts.iter().filter(|text| text.contains("geheim")).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
    Ok(())
}

#[test]
fn settings_out_of_bounds_are_configuration_errors_and_the_bounds_work() {
    let server = Server::start();
    let settings = || Client::builder().single(server.url());
    let millis = Duration::from_millis;
    for builder in [
        settings().pool_size(0),
        settings().watchdog_timeout(Duration::ZERO),
        settings().watchdog_timeout(millis(99)),
        settings().watchdog_timeout(Duration::MAX),
        settings().poll_interval(millis(9)),
        settings().poll_interval(Duration::MAX),
        settings().connect_timeout(Duration::ZERO),
        settings().connect_timeout(Duration::MAX),
        settings().response_timeout(Duration::ZERO),
        settings().response_timeout(Duration::MAX),
    ] {
        let text = format!("{builder:?}");
        let error = builder.build().expect_err(&text);
        assert!(error.is_configuration(), "{text}: {error:?}");
    }
    let least = settings().watchdog_timeout(millis(100)).poll_interval(millis(10)).pool_size(1);
    assert!(least.build().is_ok());
    let longest = settings().pool_timeout(Duration::MAX).local_handoff(u32::MAX, Duration::MAX);
    let client = longest.build().expect("long time-outs are accepted");
    assert!(client.lock("a").lock().is_ok_and(|guard| guard.unlock().is_ok()));
}

#[test]
fn many_threads_use_no_more_connections_than_the_pool_size() -> Result<()> {
    for size in [1, 3] {
        let server = Server::start();
        let client = Client::builder().single(server.url()).pool_size(size).build()?;
        let work = |number: usize| {
            let client = client.clone();
            thread::spawn(move || {
                for turn in 0..20 {
                    let lock = client.lock(format!("lock {}", number % 8));
                    let guard = lock.lock()?;
                    assert!(lock.is_locked()?);
                    if turn % 2 == 0 { drop(guard) } else { guard.unlock()? }
                }
                Result::Ok(())
            })
        };
        let threads: Vec<_> = (0..24).map(work).collect();
        threads.into_iter().try_for_each(join)?;
        let others = 2; // the watchdog's and the listener's
        assert!(server.clients().len() <= size + others, "{:#?}", server.clients());
        eventually("all locks are free", || server.keys().is_empty());
    }
    Ok(())
}

#[test]
fn a_caller_without_a_free_connection_fails_after_the_pool_timeout() -> Result<()> {
    let server = Server::start();
    // The record of a client is a background request.
    let builder = Client::builder().single(server.url()).pool_size(1).announce(false);
    let client = builder.pool_timeout(SOON).response_timeout(MINUTE).build()?;
    client.lock("warm").lock()?.unlock()?;
    client.lock("warm").lock()?.unlock()?; // no background request is pending
    let (ends, ended) = mpsc::channel();
    server.stop();
    for name in ["a", "b"] {
        let (lock, ends) = (client.lock(name), ends.clone());
        thread::spawn(move || ends.send(lock.lock().map(drop)).expect("the test listens"));
    }
    // The other thread has the connection and waits for its reply.
    let first =
        ended.recv_timeout(MINUTE).expect("one call ends").expect_err("the connection is busy");
    assert!(first.is_pool_timeout() && first.is_retryable(), "{first:?}");
    let addr = server.addr().to_string();
    assert!(first.lock_name().is_some() && first.server() == Some(&addr), "{first:?}");
    server.resume();
    ended.recv_timeout(MINUTE).expect("the other call ends")
}

/// Returns a client whose requests are delayed by its proxy.
fn delayed_client(server: &Server) -> Result<(Client, Proxy)> {
    let proxy = Proxy::start(server.addr());
    let client = Client::open(proxy.url())?;
    client.lock("warm").lock()?.unlock()?; // the server knows the scripts from here on
    proxy.delay(Direction::Requests, 2 * SOON);
    Ok((client, proxy))
}

#[test]
fn dropping_the_last_handle_of_a_client_waits_for_its_releases() -> Result<()> {
    let server = Server::start();
    let (client, _proxy) = delayed_client(&server)?;
    let clone = client.clone();
    drop(client.lock("a").lock()?);
    drop(client);
    drop(clone);
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn closing_a_client_waits_for_its_releases() -> Result<()> {
    let server = Server::start();
    let (client, _proxy) = delayed_client(&server)?;
    drop(client.lock("a").lock()?);
    client.close();
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn a_client_of_a_silent_server_is_closed_and_dropped_within_one_response_timeout() -> Result<()> {
    let server = Server::start();
    let builder = Client::builder().single(server.url()).response_timeout(20 * SOON);
    let client = builder.build()?;
    let guard = client.lock("a").lock()?;
    server.stop();
    drop(guard);
    let begin = Instant::now();
    client.close();
    client.close();
    drop(client);
    // A second wait for the release would end after twice the time-out.
    assert!(begin.elapsed() < 30 * SOON, "{:?}", begin.elapsed());
    Ok(())
}

#[test]
fn the_drop_of_a_closed_client_waits_for_later_releases() -> Result<()> {
    let server = Server::start();
    let (client, _proxy) = delayed_client(&server)?;
    let guard = client.lock("a").lock()?;
    client.close();
    drop(guard);
    drop(client);
    assert!(!exists(&server, "a"));
    Ok(())
}

#[test]
fn a_close_does_not_wait_for_the_listener_of_a_silent_server() -> Result<()> {
    let server = Server::start();
    let builder = Client::builder().single(server.url()).announce(false);
    let client = builder.response_timeout(MINUTE).build()?;
    server.ask::<()>(&["HSET", "java", "java:1", "1"]);
    assert!(client.lock("java").try_lock_for(SOON)?.is_none()); // starts the listener
    eventually("it subscribes", || server.numsub("redisson_lock__channel:{java}") == 1);
    server.stop();
    let begin = Instant::now();
    client.close();
    // A connected listener notices a silent server after 3 s.
    assert!(begin.elapsed() < 15 * SOON, "{:?}", begin.elapsed());
    Ok(())
}

#[test]
fn closing_ends_all_waits() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).poll_interval(MINUTE).build()?;
    let guard = client.lock("local").lock()?;
    server.ask::<()>(&["HSET", "java", "java:1", "1"]);
    let waits: [fn(Lock) -> Result<()>; 3] = [
        |lock| lock.lock().map(drop),
        |lock| lock.try_lock_for(MINUTE).map(drop),
        |lock| lock.lock_owned().map(drop),
    ];
    let start = |name: &'static str| {
        waits.map(|wait| {
            let lock = client.lock(name);
            thread::spawn(move || wait(lock))
        })
    };
    let waiters = [start("local"), start("java")];
    eventually("a waiter subscribes", || server.numsub("redisson_lock__channel:{java}") == 1);
    client.clone().close();
    for waiter in waiters.into_iter().flatten() {
        let ended = join(waiter);
        assert!(ended.as_ref().is_err_and(Error::is_closed), "{ended:?}");
    }
    assert!(guard.is_held());
    guard.unlock()?;
    assert_eq!(server.keys(), ["java"]);
    Ok(())
}

#[test]
fn a_closed_client_refuses_every_verb_and_query_without_a_command() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    let held = client.lock("held").lock()?;
    client.close();
    client.close();
    client.clone().close();
    server.reset_stats();
    for lock in [client.lock("a"), client.lock("held"), client.lock("b").with_lease(MINUTE)] {
        let later = Instant::now() + MINUTE;
        let ended: [Result<()>; 10] = [
            lock.lock().map(drop),
            lock.try_lock().map(drop::<Option<Guard>>),
            lock.try_lock_for(MINUTE).map(drop),
            lock.try_lock_until(later).map(drop),
            lock.lock_owned().map(drop),
            lock.try_lock_owned().map(drop::<Option<OwnedGuard>>),
            lock.try_lock_for_owned(MINUTE).map(drop),
            lock.try_lock_until_owned(later).map(drop),
            lock.is_locked().map(drop),
            lock.remaining().map(drop),
        ];
        assert!(ended.iter().all(|one| one.as_ref().is_err_and(Error::is_closed)), "{ended:?}");
    }
    assert!(held.is_held() && client.lock("held").hold_count() == 1);
    assert_eq!(server.calls("evalsha") + server.calls("exists") + server.calls("pttl"), 0);
    held.unlock()
}

#[test]
fn a_closed_client_refuses_force_unlock() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    client.close();
    let forced = client.lock("a").force_unlock();
    assert!(forced.as_ref().is_err_and(Error::is_closed), "{forced:?}");
    assert!(exists(&server, "a"));
    Ok(())
}

#[test]
fn guards_of_a_closed_client_stay_valid_to_their_deadline_and_can_be_released() -> Result<()> {
    let server = Server::start();
    let client = Client::builder().single(server.url()).watchdog_timeout(15 * SOON).build()?;
    let watched = client.lock("watched").lock()?;
    let fixed = ["unlock", "drop", "detach"].map(|name| client.lock(name).with_lease(MINUTE));
    let [to_unlock, to_drop, to_detach] = [fixed[0].lock()?, fixed[1].lock()?, fixed[2].lock()?];
    client.close();
    assert!(to_unlock.is_held() && to_drop.is_held() && exists(&server, "drop"));
    to_unlock.unlock()?;
    assert!(!exists(&server, "unlock"));
    drop(to_drop);
    eventually("the release of the dropped guard is sent", || !exists(&server, "drop"));
    to_detach.detach();
    fixed[2].unlock()?;
    assert!(!exists(&server, "detach"));
    assert!(watched.wait_lost(MINUTE), "a closed client renews no lease");
    Ok(())
}

#[test]
fn many_threads_can_close_a_client_at_once() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| client.close());
        }
    });
    assert!(client.lock("a").lock().is_err_and(|e| e.is_closed()));
    Ok(())
}

#[test]
fn the_connections_of_a_client_end_with_its_last_handle() -> Result<()> {
    let server = Server::start();
    let client = Client::open(server.url())?;
    server.ask::<()>(&["HSET", "a", "java:1", "1"]);
    assert!(client.lock("a").try_lock_for(SOON)?.is_none()); // starts the listener
    let guard = client.lock("b").lock()?;
    drop(client);
    assert!(!server.clients().is_empty(), "the guard is a handle too");
    drop(guard);
    eventually("all connections are closed", || server.clients().is_empty());
    assert!(!exists(&server, "b"), "the release is sent before the connections close");
    Ok(())
}

#[test]
fn a_closed_and_dropped_client_leaves_no_thread_and_no_descriptor() {
    let server = Server::start();
    server.ask::<()>(&["HSET", "java", "java:1", "1"]);
    let mut child =
        ChildProcess::start("client::child_entry", "open and end clients", &[&server.url()]);
    assert!(child.wait().success(), "the output of the child has the reason");
}

#[test]
fn child_entry() -> Result<()> {
    let Some(role) = process::role() else { return Ok(()) };
    assert_eq!(role.name(), "open and end clients");
    let library_threads =
        || threads().into_keys().filter(|name| name.starts_with("leasehold")).count();
    let before = open_descriptors();
    for closed in [true, false] {
        let client = Client::open(role.arg(0))?;
        assert!(client.lock("java").try_lock_for(SOON)?.is_none());
        drop(client.lock("a").lock()?);
        eventually("a watchdog, a listener and a reaper run", || library_threads() == 3);
        if closed {
            client.close();
            eventually("all threads have ended", || library_threads() == 0);
        }
        drop(client);
        eventually("all threads have ended", || library_threads() == 0);
        eventually("all descriptors are closed", || open_descriptors() == before);
    }
    Ok(())
}

/// Compiles if the public types have the traits that a program expects of them.
#[test]
fn the_public_types_have_the_expected_traits() {
    use leasehold::kind::Kind;
    use leasehold::*;
    use std::fmt::{Debug, Display};
    use std::panic::{RefUnwindSafe, UnwindSafe};

    fn unwinds<T: Debug + UnwindSafe + RefUnwindSafe>() {}
    fn handle<T: Debug + Clone + Send + Sync + UnwindSafe + RefUnwindSafe + 'static>() {}
    fn value<T: Debug + Clone + PartialEq + Send + Sync + UnwindSafe + 'static>() {}
    fn setting<T: Debug + Copy + Default + Eq + Send + Sync + 'static>() {}
    fn shown<T: Display + Debug + Copy + Eq + std::hash::Hash + Send + Sync + 'static>() {}

    handle::<Client>();
    handle::<Builder>();
    handle::<CancelToken>();
    handle::<Lock>();
    handle::<FairLock>();
    handle::<RwLock>();
    handle::<AnyLock>();
    handle::<MultiLock>();
    handle::<RedLock>();
    handle::<Election>();
    unwinds::<Leadership>();
    value::<Leader>();
    unwinds::<Guard>();
    unwinds::<OwnedGuard>();
    unwinds::<MultiGuard>();
    unwinds::<OwnedMultiGuard>();
    value::<Error>();
    value::<Acquired>();
    value::<Waited>();
    value::<Released>();
    value::<Renewed>();
    value::<RenewalFailed>();
    value::<Lost>();
    value::<Reconnected>();
    value::<Audit>();
    setting::<AuditPolicy>();
    setting::<Sharding>();
    setting::<BackOff>();
    shown::<ErrorKind>();
    shown::<LostReason>();
    shown::<Kind>();
    let into_io: std::io::Error = Error::new(ErrorKind::Timeout, "no answer").into();
    assert_eq!(into_io.kind(), std::io::ErrorKind::TimedOut);
}

#[test]
fn a_builder_can_be_used_again() -> Result<()> {
    let server = Server::start();
    let builder = Client::builder().single(server.url()).name_prefix("app:");
    let [first, second] = [builder.clone().build()?, builder.build()?];
    assert_ne!(first.id(), second.id());
    let guard = first.lock("a").lock()?;
    assert!(second.lock("a").try_lock()?.is_none(), "the prefix is the same");
    guard.unlock()
}
