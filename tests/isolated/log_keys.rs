//! The targets and the key-values of log lines.
//!
//! The test runs in its own process, because the logger belongs to the process.

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::{Acquired, Client, Events, Lost, Result};

use crate::harness::process::alone;
use crate::harness::{Server, eventually_some};

const MINUTE: Duration = Duration::from_secs(60);

/// A log line: target, text, and key-values as `Display` shows the values.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LogLine {
    target: String,
    text: String,
    keys: BTreeMap<String, String>,
}

/// A logger that keeps all lines.
struct KeyRecorder(Mutex<Vec<LogLine>>);

static LINES: KeyRecorder = KeyRecorder(Mutex::new(Vec::new()));

impl KeyRecorder {
    fn lines(&self) -> MutexGuard<'_, Vec<LogLine>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a line with this text, and returns its target and its key-values.
    fn wait_for(&self, text: &str) -> (String, BTreeMap<String, String>) {
        let line = eventually_some(text, || {
            self.lines().iter().find(|line| line.text.contains(text)).cloned()
        });
        (line.target, line.keys)
    }
}

struct KeyCollector<'a>(&'a mut BTreeMap<String, String>);

impl<'kvs> log::kv::VisitSource<'kvs> for KeyCollector<'_> {
    fn visit_pair(
        &mut self,
        key: log::kv::Key<'kvs>,
        value: log::kv::Value<'kvs>,
    ) -> std::result::Result<(), log::kv::Error> {
        self.0.insert(key.to_string(), value.to_string());
        Ok(())
    }
}

impl log::Log for KeyRecorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        let mut keys = BTreeMap::new();
        record.key_values().visit(&mut KeyCollector(&mut keys)).expect("the collector never fails");
        let (target, text) = (record.target().to_owned(), record.args().to_string());
        self.lines().push(LogLine { target, text, keys });
    }
    fn flush(&self) {}
}

fn keys<const N: usize>(keys: [(&str, &str); N]) -> BTreeMap<String, String> {
    keys.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Sends the number of each lost hold, and panics at each acquisition.
struct LossRecorder(Mutex<Sender<u64>>);

impl Events for LossRecorder {
    fn acquired(&self, _: &Acquired) {
        panic!("the panic of this callback");
    }
    fn lost(&self, event: &Lost) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The receiver is gone if the test has failed.
        let _ = sender.send(event.hold);
    }
}

#[test]
fn log_lines_have_the_target_of_their_subject_and_facts_as_key_values() -> Result<()> {
    if !alone("log_keys::log_lines_have_the_target_of_their_subject_and_facts_as_key_values") {
        return Ok(());
    }
    log::set_logger(&LINES).expect("no other logger is set");
    log::set_max_level(log::LevelFilter::Debug);
    let server = Server::start();
    let (sender, losses) = mpsc::channel();
    let builder = Client::builder().single(server.url()).name_prefix("app:");
    let client = builder.events(LossRecorder(Mutex::new(sender))).build()?;
    let next_loss = || losses.recv_timeout(MINUTE).expect("a loss is reported").to_string();
    let address = server.addr().to_string();

    let lock = client.fair_lock("expires").with_lease(Duration::from_millis(200));
    let guard = lock.lock()?;
    assert!(guard.wait_lost(MINUTE));
    let number = next_loss();
    let (target, found) = LINES.wait_for("\"expires\" was lost: the lease expired");
    let lost = [("lock", "expires"), ("kind", "Fair"), ("hold", &*number), ("reason", "Expired")];
    assert_eq!((&*target, found), ("leasehold::lease", keys(lost)));

    let guard = client.lock("deleted").lock()?;
    server.ask::<()>(&["DEL", "app:deleted"]);
    drop(guard);
    let number = next_loss();
    let (target, found) = LINES.wait_for("\"deleted\" was lost: the server no longer has the hold");
    let lost = [("lock", "deleted"), ("kind", "Plain"), ("hold", &*number), ("reason", "Gone")];
    assert_eq!((&*target, found), ("leasehold::lease", keys(lost)));
    let (target, mut found) = LINES.wait_for("a release failed");
    assert!(found.remove("error").is_some_and(|error| error.contains("the lock was lost")));
    found.remove("server").expect("a line with an error has a server");
    let released = [("lock", "deleted"), ("kind", "Plain"), ("hold", &*number)];
    assert_eq!((&*target, found), ("leasehold::lease", keys(released)));

    client.semaphore("jobs").with_permits(4).acquire()?.release()?;
    let semaphore = client.semaphore("jobs").with_permits(8);
    assert!(semaphore.try_acquire_many(5).is_err_and(|error| error.is_configuration()));
    for _ in 0..3 {
        client.semaphore("jobs").with_permits(8).acquire()?.release()?;
    }
    let text = "has 4 permits already, and not 8";
    let (target, found) = LINES.wait_for(text);
    let capacity = [("lock", "jobs"), ("capacity", "4"), ("wanted", "8")];
    assert_eq!((&*target, found), ("leasehold::lease", keys(capacity)));
    semaphore.resize(8)?;
    semaphore.acquire_many(8)?.release()?;
    let count = LINES.lines().iter().filter(|line| line.text.contains(text)).count();
    assert_eq!(count, 1, "once per semaphore");

    server.client_kill_type("normal");
    client.lock("again").lock()?.unlock()?;
    let (target, found) = LINES.wait_for("reconnected to");
    assert_eq!((&*target, found), ("leasehold::connection", keys([("server", &*address)])));

    let (target, found) = LINES.wait_for("keeps nothing on disk");
    assert_eq!((&*target, found), ("leasehold::audit", keys([("server", &*address)])));
    let (target, found) = LINES.wait_for("panicked while reporting Acquired");
    assert_eq!((&*target, found), ("leasehold::events", keys([])));

    // Only polls use this command, so the caller itself sees no error.
    server.ask::<()>(&["ACL", "SETUSER", "default", "-mget"]);
    let stock = client.plain_semaphore("stock");
    let caller = std::thread::spawn(move || stock.acquire(1));
    let (target, mut found) = LINES.wait_for("a count poll of 1 locks failed");
    assert!(found.remove("error").is_some_and(|error| error.contains("NOPERM")));
    assert_eq!((&*target, found), ("leasehold::connection", keys([("server", &*address)])));
    server.ask::<()>(&["ACL", "SETUSER", "default", "+mget"]);
    client.plain_semaphore("stock").release(1)?;
    caller.join().expect("no panic")?;

    let foreign = |line: &&LogLine| !line.target.starts_with("leasehold::");
    assert_eq!(LINES.lines().iter().find(foreign), None);
    Ok(())
}
