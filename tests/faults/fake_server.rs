//! A fake Redis server whose replies a test chooses, and checks of errors, panics and the log.
//!
//! `malformed_replies`, `refusals` and `storms` use it for replies that a real server cannot be
//! made to give.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error as _;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, CancelToken, Client, Error, Events, Lock, Renewed};

use crate::harness::faults::BRISK;
use crate::harness::wait::{holds_within, log_is_written};
use crate::harness::{Impostor, eventually};

// ---------------------------------------------------------------------------------
// Checks of the log, of panics and of errors.

/// The password in the URLs of these tests.
pub(crate) const SECRET: &str = "sesame-7f3";

/// Records the log lines of all levels.
struct LogRecorder(Mutex<Vec<String>>);

static LOGGED: LogRecorder = LogRecorder(Mutex::new(Vec::new()));

/// The panics of the library's threads.
static PANICKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl log::Log for LogRecorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        locked(&self.0).push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

/// Returns the log lines of all tests of this process so far.
pub(crate) fn logged() -> Vec<String> {
    locked(&LOGGED.0).clone()
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asserts at the end of a test that no library thread panicked and no password was logged.
///
/// A test that fails skips the check.
pub(crate) struct LogCheck;

impl LogCheck {
    pub(crate) fn start() -> LogCheck {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            log::set_logger(&LOGGED).expect("this process has no other logger");
            log::set_max_level(log::LevelFilter::Trace);
            let default_hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                let thread = thread::current();
                if thread.name().is_some_and(|name| name.starts_with("leasehold")) {
                    locked(&PANICKED).push(format!("{:?}: {panic}", thread.name()));
                }
                default_hook(panic);
            }));
        });
        LogCheck
    }
}

impl Drop for LogCheck {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let panics = std::mem::take(&mut *locked(&PANICKED));
        assert!(panics.is_empty(), "in this test or a parallel one: {panics:#?}");
        log_is_written();
        let leak = locked(&LOGGED.0).iter().find(|line| line.contains(SECRET)).cloned();
        assert_eq!(leak, None, "the log contains the password");
    }
}

/// Returns the message of an error. Asserts that no form of the error contains the password.
#[track_caller]
pub(crate) fn message_of(error: &Error) -> String {
    let mut forms = format!("{error}\n{error:?}\n{error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        forms.push_str(&format!("\n{error}\n{error:?}"));
        cause = error.source();
    }
    assert!(!forms.contains(SECRET), "the error contains the password: {forms}");
    assert!(!error.to_string().is_empty());
    error.to_string()
}

/// Asserts that the error is a refusal, with the words of the server and this advice.
#[track_caller]
pub(crate) fn assert_refused(error: &Error, words: &str, advice: &str) {
    let message = message_of(error);
    assert!(error.is_server(), "{error:?}");
    assert!(message.contains(words), "{words:?} is not in {message:?}");
    assert!(message.contains(advice), "{advice:?} is not in {message:?}");
}

/// Returns whether the error is a refusal, a broken connection or a time-out.
pub(crate) fn is_server_fault(error: &Error) -> bool {
    error.is_server() || error.is_connection() || error.is_timeout()
}

// ---------------------------------------------------------------------------------
// Clients and limits.

/// Returns the settings of a client with a short poll interval.
pub(crate) fn settings(url: &str) -> Builder {
    Client::builder().single(url).poll_interval(Duration::from_millis(30))
}

/// A response time-out that is longer than a reply takes, and short enough to wait for.
pub(crate) const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// Returns the settings of a client with a short response time-out, for silent servers.
pub(crate) fn hasty_settings(url: &str) -> Builder {
    settings(url).response_timeout(RESPONSE_TIMEOUT)
}

/// Returns the result of `work`, or an error after 30 response time-outs.
///
/// After such an error the thread of `work` goes on.
pub(crate) fn run_in_time<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    start_in_time(work)()
}

/// Starts `work`, and returns a function that waits for its result as `run_in_time` does.
pub(crate) fn start_in_time<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl FnOnce() -> Result<T, String> {
    let started = Instant::now();
    let thread = thread::spawn(work);
    let remaining = move || (RESPONSE_TIMEOUT * 30).saturating_sub(started.elapsed());
    move || {
        if holds_within(remaining(), || thread.is_finished()) {
            thread.join().map_err(|_| "panicked".to_owned())
        } else {
            Err(format!("hangs for more than {:?}", RESPONSE_TIMEOUT * 30))
        }
    }
}

/// A lock whose waits are cancelled after 50 response time-outs.
///
/// A test then fails with an error where it would hang.
pub(crate) struct LimitedLock {
    lock: Lock,
    _in_use: Sender<()>,
}

pub(crate) fn limited(client: &Client, name: &str) -> LimitedLock {
    let token = CancelToken::new();
    let lock = client.lock(name).with_cancel(&token);
    let (in_use, is_in_use) = channel();
    thread::spawn(move || {
        if is_in_use.recv_timeout(RESPONSE_TIMEOUT * 50) == Err(RecvTimeoutError::Timeout) {
            token.cancel();
        }
    });
    LimitedLock { lock, _in_use: in_use }
}

impl Deref for LimitedLock {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.lock
    }
}

// ---------------------------------------------------------------------------------
// The fake server.

/// A server on which every lock is free, unless a test sets other replies.
///
/// Requests are named by their script, or by their command if they call no script.
pub(crate) struct FakeServer {
    impostor: Impostor,
    replies: Arc<Replies>,
}

#[derive(Default)]
struct Replies {
    /// The next replies to each request; `None` closes the connection.
    next: Mutex<BTreeMap<String, VecDeque<Option<Vec<u8>>>>>,
    /// The replies after the next ones.
    always: Mutex<BTreeMap<String, Vec<u8>>>,
    requests: Mutex<BTreeMap<String, usize>>,
}

pub(crate) const ACQUIRE: &str = "plain_acquire";
pub(crate) const RELEASE: &str = "plain_release";
pub(crate) const RENEW: &str = "plain_renew";
pub(crate) const FORCE: &str = "plain_force_unlock";
const POLL: &str = "poll_many";
pub(crate) const SUBSCRIBE: &str = "SUBSCRIBE";

pub(crate) const GRANTED: &str = ":-2\r\n";
pub(crate) const HELD: &str = ":60000\r\n";
/// A good reply to the command `HELLO`.
pub(crate) const HELLO: &str = "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:7\r\n";

impl FakeServer {
    pub(crate) fn start() -> FakeServer {
        let replies = Arc::new(Replies::default());
        let reply = {
            let replies = Arc::clone(&replies);
            move |request: &[String]| replies.reply(request)
        };
        FakeServer { impostor: Impostor::answering(reply), replies }
    }

    /// Sets the replies to the next requests of this name.
    pub(crate) fn reply_next(&self, name: &str, replies: &[&str]) -> &FakeServer {
        let replies = replies.iter().map(|reply| Some(reply.as_bytes().to_vec()));
        locked(&self.replies.next).entry(name.to_owned()).or_default().extend(replies);
        self
    }

    /// Closes the connection at the request of this name that follows those with a set reply.
    pub(crate) fn close_next(&self, name: &str) -> &FakeServer {
        locked(&self.replies.next).entry(name.to_owned()).or_default().push_back(None);
        self
    }

    /// Sets the reply to all requests of this name for which no next reply is left.
    pub(crate) fn reply_always(&self, name: &str, reply: &str) -> &FakeServer {
        locked(&self.replies.always).insert(name.to_owned(), reply.as_bytes().to_vec());
        self
    }

    /// Returns the number of requests of this name so far.
    pub(crate) fn requests(&self, name: &str) -> usize {
        locked(&self.replies.requests).get(name).copied().unwrap_or(0)
    }

    pub(crate) fn url(&self) -> String {
        self.impostor.url()
    }

    pub(crate) fn url_with_password(&self) -> String {
        format!("redis://user:{SECRET}@{}/", self.impostor.addr())
    }

    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        settings(&self.url()).build().expect("the fake server replies to HELLO")
    }
}

impl Replies {
    fn reply(&self, request: &[String]) -> Option<Vec<u8>> {
        let name = name_of(request);
        *locked(&self.requests).entry(name.clone()).or_default() += 1;
        if let Some(reply) = locked(&self.next).get_mut(&name).and_then(VecDeque::pop_front) {
            return reply;
        }
        let always = locked(&self.always).get(&name).cloned();
        Some(always.unwrap_or_else(|| default_reply(&name, request).into_bytes()))
    }
}

/// Returns the name of the called script, or of the command if it calls no script.
pub(crate) fn name_of(request: &[String]) -> String {
    match request[0].to_uppercase().as_str() {
        "EVALSHA" => crate::harness::bare::name_of(&request[1]),
        command => command.to_owned(),
    }
}

/// Returns the reply of a server on which every lock is free.
pub(crate) fn default_reply(name: &str, request: &[String]) -> String {
    let confirmations = |kind: &str| {
        let channels = request[1..].iter();
        channels
            .map(|channel| format!(">3\r\n+{kind}\r\n${}\r\n{channel}\r\n:1\r\n", channel.len()))
            .collect()
    };
    match name {
        "HELLO" => HELLO.to_owned(),
        SUBSCRIBE => confirmations("subscribe"),
        "UNSUBSCRIBE" => confirmations("unsubscribe"),
        "CLIENT" if request[1] == "LIST" => "$0\r\n\r\n".to_owned(),
        "SCRIPT" | "SELECT" => "+OK\r\n".to_owned(),
        "PTTL" | ACQUIRE => GRANTED.to_owned(),
        RENEW => "*0\r\n".to_owned(),
        POLL => "*1\r\n:1\r\n".to_owned(),
        _ => ":0\r\n".to_owned(),
    }
}

/// Counts the renewals that a client reports.
#[derive(Default)]
pub(crate) struct RenewalCount(pub(crate) Arc<AtomicUsize>);

impl Events for RenewalCount {
    fn renewed(&self, event: &Renewed) {
        self.0.fetch_add(event.holds.len(), Ordering::SeqCst);
    }
}

/// Shows that failures in the other tests come from the replies that they set.
#[test]
fn the_fake_server_serves_the_whole_life_of_a_lock() {
    let _log_check = LogCheck::start();
    let fake = FakeServer::start();
    let renewals = RenewalCount::default();
    let count = Arc::clone(&renewals.0);
    let client = settings(&fake.url_with_password())
        .watchdog_timeout(BRISK)
        .events(renewals)
        .build()
        .expect("the fake server replies to HELLO");
    fake.reply_next(ACQUIRE, &[HELD, HELD]);
    let guard = limited(&client, "a").lock().expect("refused at first, then granted");
    assert!(fake.requests(ACQUIRE) >= 3);
    eventually("leases are renewed", || count.load(Ordering::SeqCst) >= 2);
    guard.extend(Duration::from_secs(60)).expect("extended");
    guard.unlock().expect("released");
    assert!(client.lock("a").force_unlock().is_ok());
    client.close();
}
