//! Loggers that block, use the library or are slow disturb no call and no thread of a client.
//!
//! Each test runs in its own process, because a logger cannot be removed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use leasehold::{CancelToken, Client, Result};

use crate::fork::in_child;
use crate::harness::faults::BRISK;
use crate::harness::process::alone;
use crate::harness::wait::threads_named;
use crate::harness::{Server, eventually, exists, join, sleeping};

const MINUTE: Duration = Duration::from_secs(60);

/// What the logger does with the text of each line.
type Act = Box<dyn Fn(&str) + Send + Sync>;

/// A logger that runs code of a test for each line of the library.
struct Acting(OnceLock<Act>);

static LOG: Acting = Acting(OnceLock::new());

impl log::Log for Acting {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("leasehold::") {
            self.0.get().expect("set before the logger")(&record.args().to_string());
        }
    }

    fn flush(&self) {}
}

fn log_with(act: impl Fn(&str) + Send + Sync + 'static) {
    assert!(LOG.0.set(Box::new(act)).is_ok(), "each process sets one logger");
    log::set_logger(&LOG).expect("no other logger is set");
    log::set_max_level(log::LevelFilter::Debug);
}

/// Makes a lock that is held without a time to live. Each attempt to take it logs a line.
fn hold_endlessly(server: &Server, name: &str) {
    server.ask::<()>(&["HSET", name, "somebody", "1"]);
}

#[test]
fn a_logger_that_blocks_stops_no_renewal() -> Result<()> {
    if !alone("loggers::a_logger_that_blocks_stops_no_renewal") {
        return Ok(());
    }
    let gate = Arc::new(Barrier::new(2));
    let (blocks, blocked) = (Arc::clone(&gate), Arc::new(AtomicBool::new(false)));
    let is_blocked = Arc::clone(&blocked);
    log_with(move |text| {
        if text.contains("has ended") {
            is_blocked.store(true, Ordering::SeqCst);
            blocks.wait();
        }
    });
    let server = Server::start();
    let client = Client::builder().single(server.url()).watchdog_timeout(BRISK).build()?;
    let held = client.lock("held").lock_owned()?;
    let orphan = client.lock("orphan");
    join(thread::spawn(move || orphan.lock().map(std::mem::forget)))?;
    eventually("the logger blocks", || blocked.load(Ordering::SeqCst));
    client.lock("clock").with_lease(3 * BRISK).lock_owned()?.detach();
    eventually("three leases pass", || !exists(&server, "clock"));
    assert!(held.is_held() && exists(&server, "held"));
    // A loss and a release, whose lines wait for the logger.
    server.ask::<()>(&["DEL", "held"]);
    assert!(held.wait_lost(MINUTE) && held.unlock().is_err());
    gate.wait();
    client.close();
    Ok(())
}

#[test]
fn a_logger_may_use_the_only_connection_of_its_client() -> Result<()> {
    if !alone("loggers::a_logger_may_use_the_only_connection_of_its_client") {
        return Ok(());
    }
    let (sender, outcomes) = mpsc::channel();
    let (client, calls) = (Arc::new(OnceLock::<Client>::new()), AtomicUsize::new(0));
    let of_logger = Arc::clone(&client);
    log_with(move |text| {
        let Some(client) = of_logger.get() else { return };
        // The call of the logger itself may log too.
        if text.contains("loading the script") && calls.fetch_add(1, Ordering::SeqCst) == 0 {
            let taken = client.lock("of the logger").try_lock_for(MINUTE).map(|it| it.is_some());
            sender.send(taken).expect("the test receives it");
        }
    });
    let server = Server::start();
    let client = client.get_or_init(|| {
        let builder = Client::builder().single(server.url()).pool_size(1);
        builder.build().expect("the server answers")
    });
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    client.lock("a").lock()?.unlock()?;
    assert!(outcomes.recv_timeout(MINUTE).expect("the logger is called")?);
    client.close();
    Ok(())
}

/// The logger waits for a lock, with the token of the call that logs and waits itself.
#[test]
fn a_logger_that_waits_for_a_lock_leaves_a_call_its_end() -> Result<()> {
    if !alone("loggers::a_logger_that_waits_for_a_lock_leaves_a_call_its_end") {
        return Ok(());
    }
    let (sender, waits) = mpsc::channel();
    let (client, calls) = (Arc::new(OnceLock::<Client>::new()), AtomicUsize::new(0));
    let (of_logger, shared) = (Arc::clone(&client), CancelToken::new());
    let shared_with_logger = shared.clone();
    log_with(move |text| {
        let is_endless = text.contains("without a time to live");
        if is_endless && calls.fetch_add(1, Ordering::SeqCst) == 1 {
            let client = of_logger.get().expect("the client logs");
            sender.send(()).expect("the test receives it");
            let taken = client.lock("other").with_cancel(&shared_with_logger).lock().map(drop);
            taken.expect("the lock becomes free");
            sender.send(()).expect("the test receives it");
        }
    });
    let server = Server::start();
    let client = client.get_or_init(|| {
        let builder = Client::builder().single(server.url()).poll_interval(MINUTE);
        builder.build().expect("the server answers")
    });
    let (other, token) = (client.lock("other").lock_owned()?, CancelToken::new());
    hold_endlessly(&server, "endless");
    let first = client.lock("endless").with_cancel(&token);
    let first = sleeping("first", move || first.lock().map(drop));
    let second = client.lock("endless").with_cancel(&shared);
    let second = sleeping("second", move || second.lock().map(drop));
    // The second call sleeps behind the first, asks when that leaves, and logs.
    token.cancel();
    assert!(join(first).is_err_and(|error| error.is_cancelled()));
    waits.recv_timeout(MINUTE).expect("the logger is called");
    other.unlock()?;
    waits.recv_timeout(MINUTE).expect("the logger takes the lock");
    shared.cancel();
    assert!(join(second).is_err_and(|error| error.is_cancelled()));
    client.close();
    Ok(())
}

#[test]
fn a_close_waits_for_a_slow_logger_and_leaves_no_thread() -> Result<()> {
    const LINES: usize = 50;
    if !alone("loggers::a_close_waits_for_a_slow_logger_and_leaves_no_thread") {
        return Ok(());
    }
    static TEXTS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    log_with(|text| {
        thread::sleep(Duration::from_millis(10));
        if text.contains("without a time to live") {
            TEXTS.lock().expect("no panic").push(text.to_owned());
        }
    });
    let server = Server::start();
    let client = Client::open(server.url())?;
    let names: Vec<_> = (0..LINES).map(|number| format!("endless {number:02}")).collect();
    for name in &names {
        hold_endlessly(&server, name);
        assert!(client.lock(name).try_lock()?.is_none());
    }
    client.close();
    let texts = TEXTS.lock().expect("no panic").clone();
    assert_eq!(texts.len(), LINES);
    assert!(texts.iter().zip(&names).all(|(text, name)| text.contains(name)), "{texts:#?}");
    eventually("the thread ends", || threads_named("leasehold-log") == 0);
    Ok(())
}

#[test]
fn a_forked_child_has_a_log_of_its_own() -> Result<()> {
    if !alone("loggers::a_forked_child_has_a_log_of_its_own") {
        return Ok(());
    }
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    static GATE: Barrier = Barrier::new(2);
    log_with(|text| {
        if text.contains("\"of the parent\"") {
            GATE.wait();
        }
        COUNT.fetch_add(1, Ordering::SeqCst);
    });
    let server = Server::start();
    hold_endlessly(&server, "of the parent");
    hold_endlessly(&server, "of the child");
    let client = Client::open(server.url())?;
    assert!(client.lock("of the parent").try_lock()?.is_none());
    // The logger of the parent blocks, and has no thread in the child.
    let code = in_child(|| {
        let before = COUNT.load(Ordering::SeqCst);
        let client = Client::open(server.url()).expect("the server answers");
        assert!(client.lock("of the child").try_lock().is_ok_and(|guard| guard.is_none()));
        client.close();
        i32::from(COUNT.load(Ordering::SeqCst) == before)
    });
    assert_eq!(code, 0, "the child logs");
    GATE.wait();
    client.close();
    Ok(())
}
