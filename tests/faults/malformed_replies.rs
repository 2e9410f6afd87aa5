//! Strange answers: each becomes an error of the right kind that says what to do, never
//! a panic, a hang or a password. Those that pass by themselves are waited through.
//!
//! Real servers give them where they can; a fake one, which otherwise behaves, gives
//! the rest.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error as _;
use std::fs;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use leasehold::{Builder, CancelToken, Client, Error, Events, Guard, Lock, Renewed};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::harness::resp::read_request;
use crate::harness::wait::holds_within;
use crate::harness::{Direction, Impostor, Proxy, Server, eventually, in_time};

// ---------------------------------------------------------------------------------
// What every test watches.

/// Stands in every URL that has a password, and nowhere else.
const SECRET: &str = "sesame-7f3";

/// Everything that was logged, at any level, and by which threads of the library
/// panicked.
struct Witness(Mutex<Vec<String>>);

static LOGGED: Witness = Witness(Mutex::new(Vec::new()));
static PANICKED: Mutex<Vec<String>> = Mutex::new(Vec::new());

impl log::Log for Witness {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        locked(&self.0).push(format!("{} {}", record.level(), record.args()));
    }

    fn flush(&self) {}
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Watches the log and the library's threads for as long as a test runs; looks at both
/// when it ends well.
struct Watching;

fn watch() -> Watching {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&LOGGED).expect("nobody else logs here");
        log::set_max_level(log::LevelFilter::Trace);
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = thread::current();
            if thread.name().is_some_and(|name| name.starts_with("leasehold")) {
                locked(&PANICKED).push(format!("{:?}: {panic}", thread.name()));
            }
            usual(panic);
        }));
    });
    Watching
}

impl Drop for Watching {
    fn drop(&mut self) {
        if thread::panicking() {
            return;
        }
        let panics = std::mem::take(&mut *locked(&PANICKED));
        assert!(panics.is_empty(), "in this test or one beside it: {panics:#?}");
        let told = locked(&LOGGED.0).iter().find(|line| line.contains(SECRET)).cloned();
        assert_eq!(told, None, "the log has the password");
    }
}

/// An error in all its forms, without a password in any of them.
#[track_caller]
fn told(error: &Error) -> String {
    let mut forms = format!("{error}\n{error:?}\n{error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        forms.push_str(&format!("\n{error}\n{error:?}"));
        cause = error.source();
    }
    assert!(!forms.contains(SECRET), "the password is shown: {forms}");
    assert!(!error.to_string().is_empty());
    error.to_string()
}

/// A refusal, with the server's words and advice in brackets after them.
#[track_caller]
fn assert_refused(error: &Error, words: &str, advice: &str) {
    let told = told(error);
    assert!(error.is_server(), "{error:?}");
    assert!(told.contains(words), "{words:?} is not in {told:?}");
    assert!(told.contains(advice), "{advice:?} is not in {told:?}");
}

/// A client that asks often.
fn asking(url: &str) -> Builder {
    Client::builder().single(url).poll_interval(Duration::from_millis(30))
}

/// Long enough for an answer that comes, short for one that does not.
const PATIENCE: Duration = Duration::from_millis(400);

/// A client that also loses patience soon: for servers that fall silent.
fn brief(url: &str) -> Builder {
    asking(url).response_timeout(PATIENCE)
}

/// What `work` returns; an error if it is not done within many response time-outs. It
/// then goes on by itself.
fn in_bounds<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    start_in_bounds(work)()
}

/// The same in two steps: starts the work, and gives what waits for it.
fn start_in_bounds<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl FnOnce() -> Result<T, String> {
    let started = Instant::now();
    let thread = thread::spawn(work);
    let left = move || (PATIENCE * 30).saturating_sub(started.elapsed());
    move || match holds_within(left(), || thread.is_finished()) {
        true => thread.join().map_err(|_| "panicked".to_owned()),
        false => Err(format!("hangs for more than {:?}", PATIENCE * 30)),
    }
}

/// Ends the wait of a thread when a test fails: or its scope would wait with it.
struct Cancelling(CancelToken);

impl Drop for Cancelling {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A lock whose waits are cancelled if they last far too long: then a test fails at
/// the error, where it would hang.
struct Limited {
    lock: Lock,
    _tested: Sender<()>,
}

fn limited(client: &Client, name: &str) -> Limited {
    let token = CancelToken::new();
    let lock = client.lock(name).with_cancel(&token);
    let (tested, still_tested) = channel();
    thread::spawn(move || {
        if still_tested.recv_timeout(PATIENCE * 50) == Err(RecvTimeoutError::Timeout) {
            token.cancel();
        }
    });
    Limited { lock, _tested: tested }
}

impl Deref for Limited {
    type Target = Lock;

    fn deref(&self) -> &Lock {
        &self.lock
    }
}

// ---------------------------------------------------------------------------------
// A fake server.

/// A server with one free lock of any name, which says what a test wants said in
/// between. Keys to its answers are the names of scripts, and of commands.
struct Fake {
    impostor: Impostor,
    play: Arc<Play>,
}

#[derive(Default)]
struct Play {
    /// What is said next; `None` closes the connection.
    next: Mutex<BTreeMap<String, VecDeque<Option<Vec<u8>>>>>,
    /// What is said after that.
    always: Mutex<BTreeMap<String, Vec<u8>>>,
    asked: Mutex<BTreeMap<String, usize>>,
}

const ACQUIRE: &str = "plain_acquire";
const RELEASE: &str = "plain_release";
const RENEW: &str = "plain_renew";
const FORCE: &str = "plain_force_unlock";
const POLL: &str = "poll_many";

const GRANTED: &str = ":-2\r\n";
const HELD: &str = ":60000\r\n";
const HELLO: &str = "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:7\r\n";

impl Fake {
    fn start() -> Fake {
        let play = Arc::new(Play::default());
        let answer = {
            let play = Arc::clone(&play);
            move |request: &[String]| play.answer(request)
        };
        Fake { impostor: Impostor::answering(answer), play }
    }

    /// What it says next when it is asked for `what`.
    fn next(&self, what: &str, answers: &[&str]) -> &Fake {
        let answers = answers.iter().map(|answer| Some(answer.as_bytes().to_vec()));
        locked(&self.play.next).entry(what.to_owned()).or_default().extend(answers);
        self
    }

    /// It closes the connection when it is asked for `what` the next time.
    fn then_close(&self, what: &str) -> &Fake {
        locked(&self.play.next).entry(what.to_owned()).or_default().push_back(None);
        self
    }

    /// What it says when nothing else is set.
    fn always(&self, what: &str, answer: &str) -> &Fake {
        locked(&self.play.always).insert(what.to_owned(), answer.as_bytes().to_vec());
        self
    }

    fn asked(&self, what: &str) -> usize {
        locked(&self.play.asked).get(what).copied().unwrap_or(0)
    }

    fn url(&self) -> String {
        self.impostor.url()
    }

    fn url_with_password(&self) -> String {
        format!("redis://user:{SECRET}@{}/", self.impostor.addr())
    }

    #[track_caller]
    fn client(&self) -> Client {
        asking(&self.url()).build().expect("the fake server says hello")
    }
}

impl Play {
    fn answer(&self, request: &[String]) -> Option<Vec<u8>> {
        let what = what(request);
        *locked(&self.asked).entry(what.clone()).or_default() += 1;
        if let Some(answer) = locked(&self.next).get_mut(&what).and_then(VecDeque::pop_front) {
            return answer;
        }
        let set = locked(&self.always).get(&what).cloned();
        Some(set.unwrap_or_else(|| usual(&what, request).into_bytes()))
    }
}

/// Returns the name of the called script, or of the command if it calls no script.
fn what(request: &[String]) -> String {
    match request[0].to_uppercase().as_str() {
        "EVALSHA" => crate::harness::bare::name_of(&request[1]),
        command => command.to_owned(),
    }
}

/// What a server says whose locks are free.
fn usual(what: &str, request: &[String]) -> String {
    let confirmed = |kind: &str| {
        let all = request[1..].iter();
        all.map(|channel| format!(">3\r\n+{kind}\r\n${}\r\n{channel}\r\n:1\r\n", channel.len()))
            .collect()
    };
    match what {
        "HELLO" => HELLO.to_owned(),
        "SUBSCRIBE" => confirmed("subscribe"),
        "UNSUBSCRIBE" => confirmed("unsubscribe"),
        "CLIENT" if request[1] == "LIST" => "$0\r\n\r\n".to_owned(),
        "SCRIPT" | "SELECT" => "+OK\r\n".to_owned(),
        "PTTL" | ACQUIRE => GRANTED.to_owned(),
        RENEW => "*0\r\n".to_owned(),
        POLL => "*1\r\n:1\r\n".to_owned(),
        _ => ":0\r\n".to_owned(),
    }
}

/// The fake server is good enough for a lock's whole life, so that what goes wrong in
/// the tests below is what they made go wrong.
/// Refused, broken off, or silent.
fn is_of_the_server(error: &Error) -> bool {
    error.is_server() || error.is_connection() || error.is_timeout()
}

#[test]
fn the_fake_server_passes_for_one() {
    let _watching = watch();
    let fake = Fake::start();
    let renewals = Renewals::default();
    let count = Arc::clone(&renewals.0);
    let client = asking(&fake.url_with_password())
        .watchdog_timeout(Duration::from_millis(900))
        .events(renewals)
        .build()
        .expect("the fake server says hello");
    fake.next(ACQUIRE, &[HELD, HELD]);
    let guard = limited(&client, "a").lock().expect("refused at first, then granted");
    assert!(fake.asked(ACQUIRE) >= 3);
    eventually("leases are renewed", || count.load(Ordering::SeqCst) >= 2);
    guard.extend(Duration::from_secs(60)).expect("extended");
    guard.unlock().expect("released");
    assert!(client.lock("a").force_unlock().is_ok());
    client.close();
}

#[derive(Default)]
struct Renewals(Arc<AtomicUsize>);

impl Events for Renewals {
    fn renewed(&self, event: &Renewed) {
        self.0.fetch_add(event.holds.len(), Ordering::SeqCst);
    }
}

// ---------------------------------------------------------------------------------
// Who connects to something that is no Redis, or none that will do.

/// What `open` says to a server that answers the greeting like this, and then closes.
fn open_error(answer: &[u8]) -> Error {
    let answer = answer.to_vec();
    let impostor = Impostor::start(move |stream| {
        let _ = read_request(&mut BufReader::new(&stream));
        // Who reads no further may have closed.
        let _ = (&stream).write_all(&answer);
    });
    let url = format!("redis://user:{SECRET}@{}/3", impostor.addr());
    let opened = in_bounds(move || brief(&url).build().map(drop));
    opened.expect("an answer is enough").expect_err("nobody may take this for a greeting")
}

#[test]
fn what_is_no_redis_is_a_connection_error() {
    let _watching = watch();
    let answers: [&[u8]; 14] = [
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"\x00\x00\x00\x00",
        b"\xff\xfe\xfd\r\n",
        b"\r\n\r\n\r\n",
        b":99999999999999999999\r\n",
        b":twelve\r\n",
        b"#maybe\r\n",
        b"*x\r\n",
        b"+\xff\xff\r\n",
        b">1\r\n:1\r\n",
        b"%4611686018427387904\r\n",
        b"=3\r\nabc\r\n",
    ];
    for answer in answers {
        let error = open_error(answer);
        let shown = String::from_utf8_lossy(answer);
        assert!(error.is_connection(), "{shown:?}: {error:?}");
        assert!(told(&error).contains("127.0.0.1:"), "{shown:?}: it names the server: {error}");
        assert!(error.source().is_some(), "{shown:?}: it has a cause: {error:?}");
    }
    let deep = "*1\r\n".repeat(100_000);
    assert!(open_error(deep.as_bytes()).is_connection(), "nested without end");
}

#[test]
fn half_a_greeting_is_a_connection_error() {
    let _watching = watch();
    for at in 0..HELLO.len() {
        let error = open_error(&HELLO.as_bytes()[..at]);
        assert!(error.is_connection(), "closed after {at} bytes: {error:?}");
        told(&error);
    }
    let huge = ["$", "*", "%", "~", ">", "|", "=", "!"].map(|kind| format!("{kind}1073741824\r\n"));
    for begun in
        huge.iter().map(String::as_str).chain(["", "+", "%2\r\n", "$5\r\nred", "*-5", "$-5"])
    {
        let fake = Fake::start();
        fake.always("HELLO", begun);
        let url = fake.url_with_password();
        let opened = in_bounds(move || brief(&url).build().map(drop));
        let opened = opened.unwrap_or_else(|hang| panic!("silence after {begun:?}: {hang}"));
        let error = opened.expect_err("that is no greeting");
        assert!(error.is_timeout(), "silence after {begun:?}: {error:?}");
        told(&error);
    }
}

#[test]
fn a_greeting_of_the_wrong_shape_is_an_error() {
    let _watching = watch();
    let greetings = [
        "+OK\r\n",
        ":5\r\n",
        "$-1\r\n",
        "_\r\n",
        "*0\r\n",
        "*-1\r\n",
        "*1\r\n$2\r\nid\r\n",
        "%0\r\n",
        "%1\r\n$2\r\nid\r\n$1\r\n7\r\n",
        "%1\r\n$4\r\nname\r\n:7\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(12345678901234567890\r\n",
        "=7\r\ntxt:abc\r\n",
        ">2\r\n$7\r\nmessage\r\n$1\r\nx\r\n",
        "|1\r\n+a\r\n+b\r\n+OK\r\n",
    ];
    for greeting in greetings {
        let fake = Fake::start();
        fake.always("HELLO", greeting);
        let error = brief(&fake.url_with_password()).build().expect_err("that is no greeting");
        assert!(is_of_the_server(&error), "{greeting:?}: {error:?}");
        told(&error);
    }
}

/// Old servers and some proxies repeat the arguments of a command that they do not
/// know: the password is one of them.
#[test]
fn a_server_that_does_not_know_hello_is_too_old() {
    let _watching = watch();
    let redis_5 = format!(
        "-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `user`, `{SECRET}`, \r\n"
    );
    for answer in [
        "-ERR unknown command 'HELLO'\r\n",
        "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n",
        "-NOPROTO unsupported protocol version\r\n",
        &redis_5,
    ] {
        let fake = Fake::start();
        fake.always("HELLO", answer);
        let error = asking(&fake.url_with_password()).build().expect_err("there is no hello");
        assert_refused(&error, "RESP3", "6.2");
    }
}

#[test]
fn a_real_server_without_hello_keeps_the_password() {
    let _watching = watch();
    let server = Server::with(|config| config.line("rename-command HELLO \"\""));
    let url = server.login_url("user", SECRET);
    assert_refused(&asking(&url).build().expect_err("there is no hello"), "RESP3", "6.2");
}

#[test]
fn a_greeting_that_is_refused_says_so() {
    let _watching = watch();
    let refusals = [
        ("LOADING Redis is loading the dataset in memory", "try again"),
        ("NOAUTH HELLO must be called with the client already authenticated", "URL"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "URL"),
        ("MASTERDOWN Link with MASTER is down", "try again"),
        ("BUSY Redis is busy running a script.", "SCRIPT KILL"),
        ("NOPERM this user has no permissions to run the 'hello' command", "docs/permissions.md"),
        ("ERR max number of clients reached", ""),
        ("DENIED Redis is running in protected mode because protected mode is enabled", ""),
    ];
    for (refusal, advice) in refusals {
        let fake = Fake::start();
        fake.always("HELLO", &format!("-{refusal}\r\n"));
        let error = asking(&fake.url_with_password()).build().expect_err("refused");
        assert_refused(&error, refusal, advice);
    }
}

#[test]
fn a_real_server_refuses_whom_it_does_not_know() {
    let _watching = watch();
    let server = Server::with(|config| config.password("the-right-one"));
    let refused = |url: &str| asking(url).build().expect_err("the server wants a password");
    assert_refused(&refused(&server.url()), "NOAUTH", "URL");
    assert_refused(&refused(&server.login_url("default", SECRET)), "WRONGPASS", "URL");
    assert_refused(&refused(&server.login_url("nobody", SECRET)), "WRONGPASS", "URL");
    let url = server.login_url("", "the-right-one");
    asking(&url).build().expect("the password is right").close();
    let error = asking(&format!("{}4711", server.login_url("", "the-right-one"))).build();
    assert_refused(&error.expect_err("there is no such database"), "DB index", "");
}

// ---------------------------------------------------------------------------------
// Answers that never end.

/// Answers the greeting, unless that is where it begins to talk, and then talks on and
/// on; says whether somebody still listened after many response time-outs.
fn talking(from_the_start: bool, begin: &'static str, word: &'static str) -> Impostor {
    Impostor::start(move |stream| {
        let mut requests = BufReader::new(&stream);
        if !from_the_start {
            let _ = read_request(&mut requests);
            let _ = (&stream).write_all(HELLO.as_bytes());
        }
        let _ = read_request(&mut requests);
        talk(&stream, begin, word);
    })
}

fn talk(mut stream: &TcpStream, begin: &str, word: &str) {
    let mut told = stream.write_all(begin.as_bytes());
    while told.is_ok() {
        // Slow, but never as slow as a response time-out.
        thread::sleep(PATIENCE / 20);
        told = stream.write_all(word.as_bytes());
    }
}

/// The response time-out is for the answer, whatever the server says before it.
#[test]
fn an_answer_without_end_is_given_up() {
    let _watching = watch();
    let talks = [
        // Not in here: one answer whose bytes trickle in without end. The redis crate
        // gives no way to bound that (DESIGN.md, "What is not bounded").
        ("nothing but messages", "", ">3\r\n+message\r\n+a\r\n+b\r\n"),
    ];
    let try_lock = |(what, begin, word), from_the_start| {
        let impostor = talking(from_the_start, begin, word);
        let url = impostor.url();
        let ended = start_in_bounds(move || {
            let client = brief(&url).build()?;
            client.lock("a").try_lock().map(drop)
        });
        (format!("{what}, from the start: {from_the_start}"), impostor, ended)
    };
    // All at once: each that fails takes its time.
    let all: Vec<_> = talks.iter().map(|talk| try_lock(*talk, true)).collect();
    let more: Vec<_> = talks.iter().map(|talk| try_lock(*talk, false)).collect();
    let mut bad = Vec::new();
    for (what, _impostor, ended) in all.into_iter().chain(more) {
        match ended() {
            Ok(Err(error)) if is_of_the_server(&error) => {}
            other => bad.push(format!("{what}: {other:?}")),
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

// ---------------------------------------------------------------------------------
// Strange answers to scripts and queries.

/// Answers that no script gives.
const SHAPES: [&str; 12] = [
    "*0\r\n",
    "*2\r\n:1\r\n:2\r\n",
    "*1\r\n-ERR inside\r\n",
    "_\r\n",
    "$-1\r\n",
    "+OK\r\n",
    "$3\r\nabc\r\n",
    "%1\r\n+a\r\n+b\r\n",
    "~1\r\n:1\r\n",
    ",1.5\r\n",
    "(123456789012345678901234567890\r\n",
    "=7\r\ntxt:abc\r\n",
];

#[test]
fn an_answer_of_the_wrong_shape_is_the_servers_fault() {
    let _watching = watch();
    for shape in SHAPES {
        let fake = Fake::start();
        let client = fake.client();
        let lock = limited(&client, "a");
        let wrong = |outcome: Result<(), Error>, verb: &str| {
            let error = outcome.err().unwrap_or_else(|| panic!("{verb} takes {shape:?}"));
            assert!(error.is_server(), "{verb}, {shape:?}: {error:?}");
            told(&error);
        };
        fake.next(ACQUIRE, &[shape, shape]);
        wrong(lock.try_lock().map(drop), "try_lock");
        wrong(lock.lock().map(drop), "lock");
        fake.next("PTTL", &[shape, shape, shape, ":1\r\n"]).next(FORCE, &[shape]);
        wrong(lock.is_locked().map(drop), "is_locked");
        wrong(lock.remaining().map(drop), "remaining");
        wrong(lock.force_unlock().map(drop), "force_unlock");
        wrong(lock.force_unlock().map(drop), "force_unlock");

        // Nobody knows whether such an answer granted the lock: both are released.
        eventually("the clean-ups are sent", || fake.asked(RELEASE) == 2);

        // The line is not out of step.
        let guard = lock.try_lock().expect("a good answer").expect("granted");
        fake.next(RELEASE, &[shape]);
        wrong(guard.unlock(), "unlock");
        let guard = lock.lock().expect("a good answer");
        fake.next(RELEASE, &[shape]);
        drop(guard);
        eventually("the release is sent", || fake.asked(RELEASE) == 4);
        lock.lock().and_then(Guard::unlock).expect("good answers");
        client.close();
    }
}

/// Half an answer, and then nothing or the end. The second connection is asked once
/// more if the first one broke; what may have been granted is given back.
#[test]
fn half_an_answer_is_none() {
    let _watching = watch();
    for at in 0..GRANTED.len() {
        let half = &GRANTED[..at];
        let fake = Fake::start();
        let client = brief(&fake.url()).build().expect("it says hello");
        let lock = limited(&client, "a");
        fake.next(ACQUIRE, &[half]);
        let error = lock.try_lock().expect_err("silence after half an answer");
        assert!(error.is_timeout(), "silence after {half:?}: {error:?}");
        eventually("the clean-up is sent", || fake.asked(RELEASE) >= 1);
        lock.lock().and_then(Guard::unlock).expect("the next connection is good");

        let impostor = closing_after(half, 1);
        let client = brief(&impostor.url()).build().expect("it says hello");
        let guard = limited(&client, "a").try_lock().expect("the second connection answers");
        assert!(guard.is_some(), "closed after {half:?}");

        let impostor = closing_after(half, usize::MAX);
        let client = brief(&impostor.url()).build().expect("it says hello");
        let error = limited(&client, "a").lock().expect_err("nobody answers");
        assert!(error.is_connection(), "closed after {half:?}, for ever: {error:?}");
        told(&error);
    }
}

/// Answers so many questions of an acquire with half an answer and the end.
fn closing_after(half: &'static str, times: usize) -> Impostor {
    let left = AtomicUsize::new(times);
    Impostor::start(move |stream| {
        let mut requests = BufReader::new(&stream);
        while let Ok(Some(request)) = read_request(&mut requests) {
            let what = what(&request);
            let one_less = |left: usize| left.checked_sub(1);
            let breaks = what == ACQUIRE
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok();
            let answer = if breaks { half.to_owned() } else { usual(&what, &request) };
            let told = (&stream).write_all(answer.as_bytes());
            if breaks || told.is_err() {
                return;
            }
        }
    })
}

/// A number that is none of the documented ones is a time to live, or none.
#[test]
fn odd_numbers_do_no_harm() {
    let _watching = watch();
    for number in [i64::MIN, -1_000_000, -3, -1, 0, 1, i64::MAX] {
        let fake = Fake::start();
        let client = fake.client();
        let lock = limited(&client, "a");
        let answer = format!(":{number}\r\n");
        fake.next(ACQUIRE, &[&answer, &answer]).next("PTTL", &[&answer, &answer]);
        assert!(lock.try_lock().expect("a number is an answer").is_none(), "{number}");
        // Waits for a while, asks again at the poll interval, and is granted.
        let guard = lock.lock().unwrap_or_else(|error| panic!("{number}: {error}"));
        assert!(lock.remaining().is_ok() && lock.is_locked().is_ok(), "{number}");
        fake.next(RELEASE, &[&answer]);
        let released = guard.unlock();
        assert_eq!(released.is_err(), number < 0, "{number}: {released:?}");
    }
}

/// RESP3 servers may say something in between; that answers no question, and the next
/// question must not get this one's answer.
#[test]
fn a_message_in_between_is_no_answer() {
    let _watching = watch();
    let messages = [
        ">2\r\n+invalidate\r\n*1\r\n+a\r\n",
        ">3\r\n+message\r\n+a\r\n+b\r\n",
        ">0\r\n",
        ">1\r\n+odd\r\n",
    ];
    for message in messages {
        let fake = Fake::start();
        let client = brief(&fake.url()).pool_size(1).build().expect("it says hello");
        fake.next(ACQUIRE, &[&format!("{message}{GRANTED}"), HELD, HELD]);
        fake.next("PTTL", &[":11111\r\n"]);
        let first = client.lock("first").try_lock();
        let left = client.lock("other").remaining().expect("a good answer");
        assert_eq!(left, Some(Duration::from_millis(11_111)), "{message:?}: out of step");
        let second = client.lock("second").try_lock().expect("a good answer");
        assert!(second.is_none(), "{message:?}: got the lock with the first one's answer");
        let third = client.lock("third").try_lock().expect("a good answer");
        assert!(third.is_none(), "{message:?}: got the lock with somebody else's answer");
        assert!(first.is_ok_and(|guard| guard.is_some()), "{message:?} is no answer");
    }
    // Nothing but a message: no answer in time.
    let fake = Fake::start();
    let client = brief(&fake.url()).build().expect("it says hello");
    fake.next(ACQUIRE, &[messages[0]]);
    let error = client.lock("a").try_lock().expect_err("no answer came");
    assert!(error.is_timeout(), "{error:?}");
}

/// Positions of lost leases that cannot be: the watchdog has to survive them.
#[test]
fn the_watchdog_outlives_strange_answers() {
    let _watching = watch();
    let answers = [
        "*1\r\n:-9223372036854775808\r\n",
        "*1\r\n:9223372036854775807\r\n",
        "*1\r\n:0\r\n",
        "*3\r\n:7\r\n:8\r\n:9\r\n",
        "*2\r\n:1\r\n:1\r\n",
        "*1\r\n+one\r\n",
        "*1\r\n*1\r\n:1\r\n",
        "*1\r\n-ERR inside\r\n",
        ":1\r\n",
        "_\r\n",
        "-ERR it will not\r\n",
        "-NOSCRIPT no\r\n",
        "\r\n\r\n",
        "",
    ];
    // Side by side, since leases that outlive a slow machine take their time.
    thread::scope(|scope| {
        for answer in answers {
            scope.spawn(move || answer_a_renewal_with(answer));
        }
    });
}

/// Answers the first renewal like that, and all others well.
fn answer_a_renewal_with(answer: &str) {
    let fake = Fake::start();
    let renewals = Renewals::default();
    let count = Arc::clone(&renewals.0);
    let client = asking(&fake.url())
        .watchdog_timeout(Duration::from_millis(900))
        .events(renewals)
        .build()
        .expect("it says hello");
    fake.next(RENEW, &[answer]);
    let odd = limited(&client, "odd").lock().expect("granted");
    eventually("a renewal is asked for", || fake.asked(RENEW) >= 1);
    let guard = limited(&client, "even").lock().expect("granted");
    let before = count.load(Ordering::SeqCst);
    let alive = holds_within(PATIENCE * 50, || count.load(Ordering::SeqCst) >= before + 3);
    assert!(alive, "after {answer:?} nothing is renewed any more");
    drop((odd, guard));
}

/// The listener hears nonsense: who waits still polls.
#[test]
fn who_waits_outlives_a_listener_that_hears_nonsense() {
    let _watching = watch();
    let nonsense = [
        "-ERR unknown command 'SUBSCRIBE'\r\n",
        "-NOPERM no\r\n",
        "+OK\r\n",
        ":1\r\n",
        "HTTP/1.1 400 Bad Request\r\n",
        ">3\r\n+subscribe\r\n_\r\n:1\r\n",
        ">3\r\n:1\r\n:2\r\n:3\r\n",
        ">1\r\n+message\r\n",
        ">3\r\n+message\r\n_\r\n_\r\n",
        "",
    ];
    for answer in nonsense {
        let fake = Fake::start();
        fake.always(SUBSCRIBE, answer).always(ACQUIRE, HELD);
        let client = fake.client();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| limited(&client, "a").lock().map(drop));
            eventually("the nonsense was heard", || fake.asked(SUBSCRIBE) > 0);
            fake.always(ACQUIRE, GRANTED);
            let got_in = waiter.join().expect("it does not panic");
            got_in.unwrap_or_else(|error| panic!("{answer:?}: {error}"));
        });
    }
}

const SUBSCRIBE: &str = "SUBSCRIBE";

/// A server that forgets scripts as soon as it has learnt them.
#[test]
fn a_server_that_knows_no_script_ever_is_given_up() {
    let _watching = watch();
    let fake = Fake::start();
    fake.always(ACQUIRE, "-NOSCRIPT No matching script. Please use EVAL.\r\n");
    let client = fake.client();
    let error = in_bounds(move || client.lock("a").lock().map(drop));
    let error = error.expect("an answer is enough").expect_err("it cannot be had");
    assert!(fake.asked(ACQUIRE) <= 10, "asked {} times", fake.asked(ACQUIRE));
    assert!(fake.asked("SCRIPT") >= 1, "it was loaded");
    assert_refused(&error, "NOSCRIPT", "(");
}

// ---------------------------------------------------------------------------------
// Refusals: which are waited through.

const PASSING: [(&str, &str); 6] = [
    ("LOADING Redis is loading the dataset in memory", "try again"),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL", "SCRIPT KILL"),
    ("READONLY You can't write against a read only replica.", "replica"),
    ("MASTERDOWN Link with MASTER is down", "try again"),
    ("TRYAGAIN Multiple keys request during rehashing of slot", "try again"),
    ("CLUSTERDOWN The cluster is down", "try again"),
];

const LASTING: [(&str, &str); 9] = [
    ("OOM command not allowed when used memory > 'maxmemory'.", "maxmemory"),
    ("MISCONF Redis is configured to save RDB snapshots, but", "log"),
    ("NOREPLICAS Not enough good replicas to write.", "replicas"),
    ("WRONGTYPE Operation against a key holding the wrong kind of value", "no lock"),
    ("NOAUTH Authentication required.", "password"),
    ("NOPERM this user has no permissions to run the 'evalsha' command", "docs/permissions.md"),
    ("CROSSSLOT Keys in request don't hash to the same slot", "slot"),
    ("ERR something else", ""),
    ("ODD", ""),
];

/// Whether somebody may mend that while a lease lasts: a release is then worth sending
/// again, though nobody waits for it.
fn may_be_mended(refusal: &str) -> bool {
    ["OOM", "MISCONF", "NOREPLICAS", "NOAUTH"].iter().any(|code| refusal.starts_with(code))
}

fn line(refusal: &str) -> String {
    format!("-{refusal}\r\n")
}

/// Every verb's first question fails, whatever the refusal.
#[test]
fn a_refusal_fails_the_first_question() {
    let _watching = watch();
    for (refusal, advice) in PASSING.into_iter().chain(LASTING) {
        let fake = Fake::start();
        let line = line(refusal);
        fake.always(ACQUIRE, &line).always("PTTL", &line).always(FORCE, &line);
        let client = fake.client();
        let lock = limited(&client, "a");
        let refused = |outcome: Result<(), Error>| {
            assert_refused(&outcome.expect_err(refusal), refusal, advice);
        };
        refused(lock.lock().map(drop));
        refused(lock.try_lock().map(drop));
        refused(lock.try_lock_for(Duration::MAX).map(drop));
        refused(lock.lock_owned().map(drop));
        refused(lock.is_locked().map(drop));
        refused(lock.force_unlock().map(drop));
        fake.always(ACQUIRE, GRANTED);
        let guard = lock.lock().unwrap_or_else(|error| panic!("{refusal}: {error}"));
        fake.always(RELEASE, &line).always(RENEW, &line);
        refused(guard.extend(Duration::from_secs(60)));
        refused(guard.unlock());
    }
}

#[test]
fn what_passes_by_itself_is_waited_through() {
    let _watching = watch();
    for (refusal, _) in PASSING {
        let fake = Fake::start();
        let line = line(refusal);
        fake.next(ACQUIRE, &[HELD, &line, &line, &line, HELD, &line, GRANTED]);
        let client = fake.client();
        let guard =
            limited(&client, "a").lock().unwrap_or_else(|error| panic!("{refusal}: {error}"));
        assert!(fake.asked(ACQUIRE) >= 7, "{refusal}");
        guard.unlock().expect("released");

        // Until the deadline; then the last refusal is the answer, not "somebody holds it".
        fake.next(ACQUIRE, &[HELD]).always(ACQUIRE, &line);
        let waited = client.lock("a").try_lock_for(Duration::from_millis(700));
        assert_refused(&waited.expect_err("nobody knows"), refusal, "");
    }
}

#[test]
fn what_lasts_ends_a_wait_at_once() {
    let _watching = watch();
    for (refusal, advice) in LASTING {
        let fake = Fake::start();
        let client = fake.client();
        fake.next(ACQUIRE, &[HELD, HELD, &line(refusal)]);
        let error = limited(&client, "a").lock().expect_err(refusal);
        assert_refused(&error, refusal, advice);
        assert_eq!(fake.asked(ACQUIRE), 3, "{refusal}: asked on");
    }
}

/// A release that is refused for now is sent again, also when its caller was told; one
/// that is refused for good is not.
#[test]
fn a_refused_release_is_sent_again_if_that_may_help() {
    let _watching = watch();
    let mended = LASTING.into_iter().filter(|(refusal, _)| may_be_mended(refusal));
    for (refusal, advice) in PASSING.into_iter().chain(mended) {
        let fake = Fake::start();
        let client = fake.client();
        let line = line(refusal);
        let lock = limited(&client, "a");
        let guard = lock.lock().expect("granted");
        fake.next(RELEASE, &[&line, &line]);
        let error = guard.unlock().expect_err(refusal);
        assert_refused(&error, refusal, advice);
        eventually("the release is sent until it passes", || fake.asked(RELEASE) == 3);

        let guard = lock.lock().expect("granted");
        fake.next(RELEASE, &[&line, &line]);
        drop(guard);
        eventually("the release is sent until it passes", || fake.asked(RELEASE) == 6);
        client.close();
        assert_eq!(fake.asked(RELEASE), 6, "{refusal}");
    }
    for (refusal, _) in LASTING.into_iter().filter(|(refusal, _)| !may_be_mended(refusal)) {
        let fake = Fake::start();
        let client = fake.client();
        let guard = limited(&client, "a").lock().expect("granted");
        fake.next(RELEASE, &[&line(refusal)]);
        drop(guard);
        // Waits for what is owed.
        client.close();
        assert_eq!(fake.asked(RELEASE), 1, "{refusal}");
    }
}

/// The same for what a new connection is told.
#[test]
fn a_wait_meets_a_greeting_that_is_refused() {
    let _watching = watch();
    let fake = Fake::start();
    let client = fake.client();
    let loading = line(PASSING[0].0);
    fake.next(ACQUIRE, &[HELD]).then_close(ACQUIRE);
    fake.next("HELLO", &[&loading, &loading, &loading, &loading, &loading, &loading]);
    limited(&client, "a").lock().and_then(Guard::unlock).expect("it has loaded");

    fake.next(ACQUIRE, &[HELD]).then_close(ACQUIRE).always("HELLO", &line("NOAUTH Log in."));
    let error = limited(&client, "a").lock().expect_err("it wants a password now");
    assert_refused(&error, "NOAUTH", "URL");
}

// ---------------------------------------------------------------------------------
// Refusals of real servers.

fn open(server: &Server) -> Client {
    asking(&server.url()).build().expect("the server is there")
}

/// Holds a lock from elsewhere, and lets somebody wait for it.
#[track_caller]
fn while_somebody_waits(
    server: &Server,
    url: &str,
    name: &str,
    act: impl FnOnce(&mut dyn FnMut()),
) -> Result<(), Error> {
    server.ask::<()>(&["HSET", name, "another", "1"]);
    let client = asking(url).build().expect("the server is there");
    let mut admin = server.connection();
    thread::scope(|scope| {
        let token = Cancelling(CancelToken::new());
        let lock = client.lock(name).with_cancel(&token.0);
        let waiting = scope.spawn(move || lock.lock().and_then(Guard::unlock));
        let channel = format!("redisson_lock__channel:{{{name}}}");
        eventually("somebody waits", || server.numsub(&channel) == 1);
        act(&mut || {
            let freed = redis::cmd("DEL").arg(name).query::<()>(&mut admin);
            freed.expect("the lock can be deleted");
        });
        in_time("the wait ends", waiting)
    })
}

#[test]
fn a_key_that_is_no_lock() {
    let _watching = watch();
    let server = Server::start();
    let client = open(&server);
    server.ask::<()>(&["SET", "a", "a text"]);
    let lock = limited(&client, "a");
    assert_refused(&lock.lock().expect_err("no lock"), "WRONGTYPE", "no lock");
    assert_refused(&lock.try_lock().expect_err("no lock"), "WRONGTYPE", "no lock");
    assert_refused(&lock.force_unlock().expect_err("no lock"), "WRONGTYPE", "no lock");
    assert_eq!(server.ask::<String>(&["GET", "a"]), "a text");

    // Under a holder's feet.
    let guard = limited(&client, "b").lock().expect("free");
    server.ask::<()>(&["SET", "b", "a text"]);
    let error = guard.extend(Duration::from_secs(60)).expect_err("no lock");
    assert!(error.is_lost() || told(&error).contains("WRONGTYPE"), "{error:?}");
    let error = guard.unlock().expect_err("no lock");
    assert!(error.is_lost() || told(&error).contains("WRONGTYPE"), "{error:?}");

    // And while somebody waits.
    let waited = while_somebody_waits(&server, &server.url(), "c", |_| {
        server.ask::<()>(&["SET", "c", "a text"]);
    });
    assert_refused(&waited.expect_err("no lock"), "WRONGTYPE", "no lock");
}

#[test]
fn a_full_server_ends_a_wait() {
    let _watching = watch();
    let server = Server::start();
    server.ask::<()>(&["SET", "data", &"x".repeat(4 << 20)]);
    let waited = while_somebody_waits(&server, &server.url(), "a", |free| {
        let limit = (server.used() - (2 << 20)).to_string();
        server.ask::<()>(&["CONFIG", "SET", "maxmemory", &limit]);
        free();
    });
    assert_refused(&waited.expect_err("it is full"), "OOM", "maxmemory");
}

#[test]
fn a_server_that_cannot_save() {
    let _watching = watch();
    let server =
        Server::with(|config| config.line("save 3600 1").line("stop-writes-on-bgsave-error no"));
    fs::create_dir(server.path("dump.rdb")).expect("our own folder is writable");
    server.ask::<String>(&["BGSAVE"]);
    let failed = || server.info("persistence")["rdb_last_bgsave_status"] == "err";
    eventually("the server cannot save", failed);

    let writes_stop = |stop: &str| {
        let mut both = redis::pipe();
        both.atomic().cmd("DEL").arg("a").cmd("CONFIG");
        both.arg(&["SET", "stop-writes-on-bgsave-error", stop]);
        both.query::<redis::Value>(&mut server.connection()).expect("the administrator may");
    };
    let waited = while_somebody_waits(&server, &server.url(), "a", |_| writes_stop("yes"));
    assert_refused(&waited.expect_err("it cannot save"), "MISCONF", "log");
    let client = open(&server);
    assert_refused(&limited(&client, "a").lock().expect_err("it cannot save"), "MISCONF", "log");
    server.ask::<()>(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    limited(&client, "a").lock().and_then(Guard::unlock).expect("it need not save");
}

#[test]
fn a_busy_server_is_waited_for() {
    let _watching = watch();
    let server = Server::with(|config| config.line("lua-time-limit 1"));
    let proxy = Proxy::start(server.addr());
    let client = open(&server);
    limited(&client, "b").lock().and_then(Guard::unlock).expect("free");
    let (mut looping, mut admin) = (server.connection(), server.connection());
    let waited = while_somebody_waits(&server, &proxy.url(), "a", |free| {
        thread::scope(|scope| {
            scope.spawn(move || {
                let script = redis::cmd("EVAL").arg("while true do end").arg(0).to_owned();
                script.query::<()>(&mut looping).expect_err("it is killed");
            });
            let mut ping = || redis::cmd("PING").query::<()>(&mut admin);
            eventually("the server is busy", || ping().is_err_and(|e| e.code() == Some("BUSY")));

            let error = limited(&client, "b").lock().map(drop).expect_err("it is busy");
            let asked = || proxy.stats().traffic(Direction::Requests).forwarded;
            let before = asked();
            eventually("the waiter asks on", || asked() > before + 1000);
            redis::cmd("SCRIPT").arg("KILL").query::<()>(&mut admin).expect("killed");
            assert_refused(&error, "BUSY", "SCRIPT KILL");
        });
        free();
    });
    waited.expect("it is busy no more");
    limited(&client, "b").lock().and_then(Guard::unlock).expect("it is busy no more");
}

/// A master becomes somebody's replica and master again, as in a fail-over and back.
#[test]
fn a_replica_is_waited_for_until_it_is_a_master() {
    let _watching = watch();
    for (stale, words, advice) in
        [("yes", "READONLY", "master"), ("no", "MASTERDOWN", "try again later")]
    {
        let server =
            Server::with(|config| config.line(format!("replica-serve-stale-data {stale}")));
        let proxy = Proxy::start(server.addr());
        let client = open(&server);
        limited(&client, "b").lock().and_then(Guard::unlock).expect("free");
        let waited = while_somebody_waits(&server, &proxy.url(), "a", |_| {
            // The lock is not free before it is a replica, whose master never comes.
            let mut both = redis::pipe();
            both.atomic().cmd("PEXPIRE").arg("a").arg(20);
            both.cmd("REPLICAOF").arg("127.0.0.1").arg(1);
            both.query::<redis::Value>(&mut server.connection()).expect("the administrator may");
            let error = limited(&client, "b").lock().map(drop).expect_err("it is a replica");
            assert_refused(&error, words, advice);

            let asked = || proxy.stats().traffic(Direction::Requests).forwarded;
            let before = asked();
            eventually("the waiter asks on", || asked() > before + 2000);
            server.ask::<()>(&["REPLICAOF", "NO", "ONE"]);
        });
        waited.expect("it is a master again");
    }
}

/// The server wants a password from now on, and throws everybody out.
#[test]
fn a_server_that_closes_its_doors_ends_a_wait() {
    let _watching = watch();
    let server = Server::start();
    let waited = while_somebody_waits(&server, &server.url(), "a", |_| {
        let mut admin = server.connection();
        let mut ask = |words: &[&str]| {
            let asked = redis::cmd(words[0]).arg(&words[1..]).query::<redis::Value>(&mut admin);
            asked.expect("the administrator may do that");
        };
        ask(&["CONFIG", "SET", "requirepass", "something"]);
        ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    });
    assert_refused(&waited.expect_err("it has no password"), "NOAUTH", "URL");
}

// ---------------------------------------------------------------------------------
// Random bytes.

/// How much more than usual is tried.
fn stress() -> u32 {
    std::env::var("LEASEHOLD_STRESS").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// Bytes, many of which mean something to a reader of RESP.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let token = prop_oneof![
        4 => prop::sample::select(TOKENS.as_slice()).prop_map(|token| token.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..12),
        1 => (prop::sample::select(b"$*%~>|=!:,(".as_slice()), any::<i64>())
            .prop_map(|(kind, count)| format!("{}{count}\r\n", char::from(kind)).into_bytes()),
    ];
    prop::collection::vec(token, 0..8).prop_map(|tokens| tokens.concat())
}

const TOKENS: [&str; 30] = [
    HELLO,
    GRANTED,
    HELD,
    "*0\r\n",
    "*1\r\n",
    "*2\r\n",
    "%1\r\n",
    "%2\r\n",
    "$2\r\nid\r\n",
    "$3\r\n",
    "abc\r\n",
    ":7\r\n",
    ":-1\r\n",
    "+OK\r\n",
    "-ERR no\r\n",
    "-\r\n",
    "-NOSCRIPT no\r\n",
    "-LOADING no\r\n",
    "_\r\n",
    "#t\r\n",
    ",inf\r\n",
    "(1\r\n",
    "=7\r\ntxt:abc\r\n",
    "!5\r\nERR x\r\n",
    "~1\r\n",
    ">3\r\n+message\r\n+a\r\n+b\r\n",
    ">3\r\n+subscribe\r\n+a\r\n:1\r\n",
    ">1\r\n",
    "|1\r\n",
    "\r\n",
];

/// A server that says these bytes to everything, and then closes or stays.
struct Babbler {
    impostor: Impostor,
    words: Arc<Mutex<Vec<u8>>>,
    closes: Arc<AtomicBool>,
}

impl Babbler {
    /// Answers the greeting well, or babbles from there on.
    fn start(greets: bool) -> Babbler {
        let words = Arc::new(Mutex::new(Vec::new()));
        let closes = Arc::new(AtomicBool::new(false));
        let impostor = Impostor::start({
            let (words, closes) = (Arc::clone(&words), Arc::clone(&closes));
            move |stream| {
                let mut requests = BufReader::new(&stream);
                while let Ok(Some(request)) = read_request(&mut requests) {
                    let greeting = greets && request.first().is_some_and(|word| word == "HELLO");
                    let answer = if greeting { HELLO.into() } else { locked(&words).clone() };
                    let told = (&stream).write_all(&answer);
                    if told.is_err() || (!greeting && closes.load(Ordering::SeqCst)) {
                        return;
                    }
                }
            }
        });
        Babbler { impostor, words, closes }
    }

    fn try_all(&self, cases: u32, work: impl Fn(Builder) -> Result<(), Error>) {
        let config =
            Config { cases: cases * stress(), failure_persistence: None, ..Config::default() };
        let patience = Duration::from_millis(40);
        let tried = TestRunner::new(config).run(&(bytes(), any::<bool>()), |(bytes, closes)| {
            *locked(&self.words) = bytes;
            self.closes.store(closes, Ordering::SeqCst);
            let url = format!("redis://user:{SECRET}@{}/", self.impostor.addr());
            let builder = brief(&url).response_timeout(patience).pool_timeout(patience);
            if let Err(error) = work(builder) {
                told(&error);
            }
            Ok(())
        });
        tried.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn any_greeting_opens_a_client_or_fails() {
    let _watching = watch();
    Babbler::start(false).try_all(150, |builder| builder.build().map(|client| client.close()));
}

#[test]
fn any_answer_gives_a_lock_or_an_error() {
    let _watching = watch();
    Babbler::start(true).try_all(60, |builder| {
        let client = builder.build()?;
        let lock = client.lock("a").with_lease(Duration::from_millis(20));
        let outcome = lock.try_lock_for(Duration::from_millis(30)).map(drop);
        let queries = [lock.is_locked().map(drop), lock.remaining().map(drop)];
        client.close();
        queries.into_iter().chain([outcome]).collect()
    });
}
