//! Questions to processes, with a server.

use std::process::{Child, Command, Stdio};

use super::*;
use crate::cancel::Limit;
use crate::config::Builder;
use crate::error::ErrorKind;
use crate::util::sync::Parker;

/// A time in which a slow machine does all that a test waits for.
const LONG: Duration = Duration::from_secs(30);

/// A redis-server on a Unix socket in a folder of its own.
struct Server {
    process: Child,
    folder: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket"])
            .arg(folder.path().join("redis.sock"))
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Server { process, folder };
        eventually("the server answers", || server.engine(true).is_ok());
        server
    }

    fn engine(&self, announce: bool) -> Result<Arc<Engine>> {
        let socket = self.folder.path().join("redis.sock");
        let builder = Builder::default().single(format!("redis+unix://{}", socket.display()));
        Engine::start(builder.announce(announce), false)
    }

    /// Returns an engine that listens for requests.
    fn listening(&self) -> Arc<Engine> {
        let engine = self.engine(true).expect("the server runs");
        engine.listeners.stay_connected();
        let is_connected = || engine.channels.message_to_listener(None, "").is_some();
        eventually("the listener is connected", is_connected);
        engine
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended by itself.
        let _ = self.process.kill().and_then(|()| self.process.wait());
    }
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let end = clock::now() + LONG;
    while !condition() {
        assert!(clock::now() < end, "{what}");
        Parker::default().park_until(clock::now() + Duration::from_millis(2));
    }
}

fn patient_session(engine: &Arc<Engine>) -> LiveSession {
    LiveSession::with_patience(engine, LONG)
}

/// Takes a lock in this thread. Returns key and number of the hold, and its guard.
fn hold(engine: &Arc<Engine>, name: &str) -> ((String, u64), crate::Guard) {
    let lock = crate::lock::handle::Lock::new(Arc::clone(engine), name.to_owned());
    let guard = lock.lock().expect("the lock is free");
    let local = engine.local(&name.into()).expect("a good name");
    let number = local.holds()[0].id().number();
    ((name.to_owned(), number), guard)
}

#[test]
fn a_running_process_tells_details_of_its_holds() {
    let server = Server::start();
    let (asking, holding) = (server.engine(false).expect("it runs"), server.listening());
    let ((key, number), guard) = hold(&holding, "a");
    let (other, _other_guard) = hold(&holding, "b");
    let mut session = patient_session(&asking);
    let unknown = ("c".to_owned(), number);
    let ended = (key.clone(), number - 1);
    let all = vec![(key.clone(), number), other.clone(), unknown, ended.clone()];
    let all = [(holding.id, all)];
    let answers = session.ask(&all);
    let mut numbers: Vec<_> = answers.details.keys().copied().collect();
    numbers.sort();
    assert_eq!(numbers, [(holding.id, number), (holding.id, other.1)]);
    let counts = [(ended.1, 1), (number, 1), (other.1, 1)];
    assert_eq!(answers.acquired, counts.map(|(it, count)| ((holding.id, it), count)).into());
    let first = &answers.details[&(holding.id, number)];
    assert_eq!((first.hold, first.guards), (number, 1));
    assert_eq!(first.thread_name.as_deref(), std::thread::current().name());
    assert_eq!((first.guards, first.waiters), (1, 0));
    assert!(first.remaining > Duration::ZERO && first.remaining <= Duration::from_secs(30));
    assert!(first.held_for < Duration::from_secs(30));
    drop(guard);
    let answers = session.ask(&[(holding.id, vec![(key, number)])]);
    assert_eq!((answers.details.len(), answers.acquired.len()), (0, 1), "it has ended");
    assert_eq!(session.ask(&all).details.len(), 1, "an answer without details is an answer");
    assert_eq!(session.patience_left, LONG, "no client was silent");
}

#[test]
fn more_holds_than_fit_into_one_request_are_asked_for_in_several() {
    let server = Server::start();
    let holding = server.listening();
    let ((key, number), _guard) = hold(&holding, "a");
    let unknown = (0..3 * MAX_HOLDS as u64).map(|hold| ("b".to_owned(), hold));
    let holds = unknown.chain([(key, number)]).collect();
    let details = patient_session(&holding).ask(&[(holding.id, holds)]);
    assert_eq!(details.details.len(), 1, "a client may ask itself");
}

#[test]
fn a_client_without_a_listener_is_not_waited_for() {
    let server = Server::start();
    let (asking, silent) = (server.engine(false).expect("it runs"), server.listening());
    silent.close();
    let mut session = patient_session(&asking);
    assert!(session.ask(&[(silent.id, vec![("a".to_owned(), 1)])]).details.is_empty());
    assert_eq!((session.patience_left, session.silent.len()), (LONG, 1));
    // The session goes on with other clients.
    let holding = server.listening();
    let (held, _guard) = hold(&holding, "a");
    let both = [(silent.id, vec![held.clone()]), (holding.id, vec![held])];
    assert_eq!(session.ask(&both).details.len(), 1);
}

#[test]
fn a_client_that_does_not_answer_costs_half_of_the_patience_once() {
    let server = Server::start();
    let (asking, holding) = (server.engine(false).expect("it runs"), server.listening());
    let (held, _guard) = hold(&holding, "a");
    // A subscriber that never answers, as a stopped process.
    let silent = Uuid::new_v4();
    let subscriber = ReplyLink::open(&asking, LONG).and_then(|mut link| {
        let channel = details::wake_channel(silent);
        let subscribe = Call::command(&[b"SUBSCRIBE", channel.as_bytes()]);
        link.routed.conn.send(&subscribe.bytes).map_err(|fault| fault.error)?;
        link.receive(clock::now() + LONG)?;
        Ok(link)
    });
    let _subscriber = subscriber.expect("the server runs");
    // The other client answers within a half of it.
    let patience = Duration::from_secs(3);
    let mut session = LiveSession::with_patience(&asking, patience);
    let both = [(silent, vec![("b".to_owned(), 1)]), (holding.id, vec![held])];
    let begun = clock::now();
    assert_eq!(session.ask(&both).details.len(), 1);
    let (waited, left) = (begun.until(clock::now()), session.patience_left);
    assert!(waited >= patience / 2 && left <= patience / 2, "{waited:?}, {left:?}");
    assert_eq!(session.ask(&both).details.len(), 1);
    assert_eq!(session.patience_left, left, "the silent client was not asked again");
}

#[test]
fn a_session_without_a_connection_or_permission_has_no_answers() {
    let server = Server::start();
    let holding = server.listening();
    let (held, _guard) = hold(&holding, "a");
    let asked = [(holding.id, vec![held])];
    let acl = |words: &[&[u8]]| {
        let parts = [&[b"ACL".as_slice(), b"SETUSER", b"default"], words].concat();
        let (call, limit) = (Call::command(&parts), Limit::none());
        holding
            .router
            .call(call, crate::transport::pool::Target::Any, &limit)
            .expect("it is permitted");
    };
    acl(&[b"resetchannels", b"&leasehold:wake:*"]);
    let mut refused = patient_session(&holding);
    assert!(
        refused.ask(&asked).details.is_empty() && refused.failure.is_some(),
        "no channel for the answers"
    );
    acl(&[b"&leasehold:reply:*"]);
    assert_eq!(patient_session(&holding).ask(&asked).details.len(), 1);
    drop(server);
    let mut cut_off = patient_session(&holding);
    assert!(cut_off.ask(&asked).details.is_empty() && cut_off.failure.is_some());
    let error = ReplyLink::open(&holding, LONG).err().map(|error| error.kind());
    assert_eq!(error, Some(ErrorKind::Connection));
}
