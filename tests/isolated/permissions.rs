//! A user with the permissions of the `ACL SETUSER` line in docs/permissions.md.
//!
//! The permissions suffice for every operation, each is needed, and errors name a missing one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use leasehold::{AuditPolicy, Builder, CancelToken, Client, Error, Guard};
use redis::Value;

use crate::harness::faults::{BRISK, Renewals, channel_of};
use crate::harness::permissions::rules_of_a_plain_lock;
use crate::harness::wait::log_is_written;
use crate::harness::{CancelOnDrop, Server, details, eventually, eventually_some, in_time};

// ---------------------------------------------------------------------------------
// The rule.

/// The rules of a user, as the words of `ACL SETUSER`.
#[derive(Clone)]
struct Rule(Vec<String>);

impl Rule {
    /// Reads the one line of docs/permissions.md that begins with `ACL SETUSER`.
    fn documented() -> Rule {
        Rule(rules_of_a_plain_lock().into_iter().map(str::to_owned).collect())
    }

    /// Returns the permitted commands, keys and channels.
    fn permissions(&self) -> BTreeSet<String> {
        let permits = |word: &&String| word.starts_with(['+', '~', '&']);
        self.0.iter().filter(permits).cloned().collect()
    }

    fn without(&self, permission: &str) -> Rule {
        let words: Vec<String> =
            self.0.iter().filter(|word| *word != permission).cloned().collect();
        assert_eq!(words.len() + 1, self.0.len(), "{permission} occurs once");
        Rule(words)
    }

    fn with(&self, more: &[&str]) -> Rule {
        let more = more.iter().map(|word| (*word).to_owned());
        Rule(self.0.iter().cloned().chain(more).collect())
    }

    fn password(&self) -> &str {
        let password = self.0.iter().find_map(|word| word.strip_prefix('>'));
        password.expect("the documented user has a password")
    }

    /// Gives the user these permissions and no others.
    fn grant(&self, server: &Server, user: &str) {
        let mut words = vec!["ACL", "SETUSER", user, "reset"];
        words.extend(self.0.iter().map(String::as_str));
        server.ask::<()>(&words);
    }

    /// Returns the address of the server with the credentials of the user.
    fn url(&self, server: &Server, user: &str) -> String {
        server.login_url(user, self.password())
    }
}

const USER: &str = "worker";

// ---------------------------------------------------------------------------------
// The log.

/// Records warnings and errors.
struct Recorder(Mutex<Vec<String>>);

static RECORDER: Recorder = Recorder(Mutex::new(Vec::new()));

impl log::Log for Recorder {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.lines().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

impl Recorder {
    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the warnings about permissions.
    fn of_permissions(&self) -> Vec<String> {
        let lines = self.lines();
        lines.iter().filter(|line| names_a_permission(line)).cloned().collect()
    }
}

/// Held by each test that reads the log, because the tests share one log.
static LOG_IN_USE: Mutex<()> = Mutex::new(());

/// Empties the log, and excludes other tests from it until the guard is dropped.
fn fresh_log() -> MutexGuard<'static, ()> {
    let alone = LOG_IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    // Fails if another test has installed the recorder.
    let _ = log::set_logger(&RECORDER);
    log::set_max_level(log::LevelFilter::Warn);
    log_is_written();
    RECORDER.lines().clear();
    alone
}

/// Returns whether a text has the server's words for a missing permission.
///
/// The words differ between commands and scripts, and between versions.
fn names_a_permission(text: &str) -> bool {
    ["NOPERM", "no permission", "executing the script can't", "ACL failure in script"]
        .iter()
        .any(|words| text.contains(words))
}

// ---------------------------------------------------------------------------------
// The whole rule.

/// Longer than any wait of these tests, so that only messages wake waiters.
const NEVER: Duration = Duration::from_secs(60);

fn open(builder: Builder) -> Client {
    // The user has no permissions for the audit and for the record of the client.
    builder.audit_policy(AuditPolicy::Ignore).announce(false).build().expect("the user may connect")
}

/// Passes a lock from one client to another by the message of its release.
#[track_caller]
fn pass_by_message(server: &Server, holder: &Client, waiter: &Client, name: &str) {
    let guard = holder.lock(name).lock().expect("the lock is free");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.lock(name).lock().and_then(Guard::unlock));
        eventually("the waiter is subscribed", || server.numsub(&channel_of(name)) == 1);
        guard.unlock().expect("the holder may release");
        in_time("the waiter is woken", waiting).expect("the waiter may take the lock");
    });
}

#[test]
fn the_documented_user_can_do_everything() {
    let server = Server::start();
    let rule = Rule::documented();
    rule.grant(&server, USER);
    let url = rule.url(&server, USER);
    server.reset_stats();

    let patient =
        || Client::builder().single(&url).watchdog_timeout(NEVER * 10).poll_interval(NEVER);
    let (one, two) = (open(patient()), open(patient()));
    pass_by_message(&server, &one, &two, "orders:1");
    // The listener exists: the refused script wakes it with a message.
    pass_by_message(&server, &one, &two, "orders:2");

    let guard = one.lock("orders:1").lock().expect("the lock is free");
    assert!(two.lock("orders:1").try_lock().expect("the user may ask").is_none());
    assert!(two.lock("orders:1").is_locked().expect("the user may ask"));
    assert!(two.lock("orders:1").remaining().expect("the user may ask").is_some());
    guard.extend(NEVER * 20).expect("the user may extend");
    assert!(two.lock("orders:1").force_unlock().expect("the user may force"));
    assert!(!two.lock("orders:1").is_locked().expect("the user may ask"));
    drop(guard);

    let renewals = Renewals::default();
    let builder = Client::builder().single(&url).watchdog_timeout(BRISK);
    let renewing = open(builder.events(renewals.clone()));
    let guard = renewing.lock("orders:3").lock_owned().expect("the lock is free");
    renewals.await_more(3);
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    renewals.await_more(3);
    guard.check().expect("still held");
    drop(guard);
    eventually("the dropped lock is free", || server.keys().is_empty());

    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    pass_by_message(&server, &one, &two, "orders:4");

    assert!(server.client_kill_type("normal") > 0);
    assert!(server.client_kill_type("pubsub") > 0);
    pass_by_message(&server, &one, &two, "orders:5");

    let polling = open(Client::builder().single(&url).poll_interval(Duration::from_millis(50)));
    pass_by_message(&server, &one, &polling, "orders:6");
    eventually("no subscriber is left", || server.numsub(&channel_of("orders:6")) == 0);

    let in_database = open(Client::builder().single(format!("{url}3")));
    in_database.lock("orders:1").lock().and_then(Guard::unlock).expect("in another database");

    let unused: Vec<String> =
        rule.permissions().into_iter().filter(|p| !is_used(&server, p)).collect();
    assert_eq!(unused, Vec::<String>::new(), "permissions that no operation above used");
    for client in [one, two, renewing, polling, in_database] {
        client.close();
    }
    eventually("all clients have disconnected", || server.clients().is_empty());
    assert_eq!(server.keys(), Vec::<String>::new());
    let denied = denied(&server);
    assert!(denied.is_empty(), "the server refused commands: {denied:#?}");
}

/// The permissions with which a client announces itself.
const TO_ANNOUNCE: [&str; 2] = ["~leasehold_client:*", "&leasehold:reply:*"];

fn denied(server: &Server) -> Vec<BTreeMap<String, Value>> {
    server.ask(&["ACL", "LOG"])
}

#[test]
fn a_client_announces_itself_with_the_documented_permissions() {
    let _alone = fresh_log();
    assert!(include_str!("../../docs/permissions.md").contains(&TO_ANNOUNCE.join(" ")));
    let server = Server::start();
    let rule = Rule::documented().with(&TO_ANNOUNCE);
    rule.grant(&server, USER);
    let builder = Client::builder().single(rule.url(&server, USER));
    let client = builder.audit_policy(AuditPolicy::Ignore).build().expect("the user may connect");
    let _guard = client.lock("orders:1").lock().expect("the lock is free");
    eventually("the record is written", || !server.client_records().is_empty());
    let wake = details::wake_channel(client.id());
    eventually("the client listens", || server.numsub(&wake) == 1);
    let answer = details::ask_details(&server, &server, client.id(), &[]);
    assert_eq!(answer, ["details".to_owned(), client.id().to_string()]);
    client.close();
    assert_eq!(server.client_records(), Vec::<String>::new());
    assert_eq!((denied(&server), RECORDER.of_permissions()), (Vec::new(), Vec::new()));
}

#[test]
fn a_client_that_may_not_write_its_record_warns_once_and_gets_its_locks() {
    let _alone = fresh_log();
    let server = Server::start();
    let rule = Rule::documented();
    rule.grant(&server, USER);
    let builder = Client::builder().single(rule.url(&server, USER));
    let builder = builder.audit_policy(AuditPolicy::Ignore);
    let client = builder.watchdog_timeout(Duration::from_millis(1500)).build();
    let client = client.expect("the user may connect");
    let guard = client.lock("orders:1").lock().expect("the lock is free");
    let warning = eventually_some("a warning", || RECORDER.of_permissions().pop());
    let names = |text: &str| warning.contains(text);
    assert!(names("~leasehold_client:*") && names("docs/permissions.md"), "{warning}");
    let renewals = server.calls("hexists");
    // More than the pause after a failed attempt.
    eventually("renewals for 3.5 s", || server.calls("hexists") > renewals + 7);
    guard.unlock().expect("the lease was renewed");
    client.lock("orders:2").lock().and_then(Guard::unlock).expect("the lock is free");
    client.close();
    assert_eq!(RECORDER.of_permissions().len(), 1);
    assert_eq!(denied(&server).len(), 1, "one refusal");
    assert_eq!(server.client_records(), Vec::<String>::new());
}

#[test]
fn a_client_that_may_not_subscribe_announces_itself_without_details() {
    let _alone = fresh_log();
    let server = Server::start();
    let rule = Rule::documented().with(&TO_ANNOUNCE).without("+subscribe");
    rule.grant(&server, USER);
    let builder = Client::builder().single(rule.url(&server, USER));
    let client = builder.audit_policy(AuditPolicy::Ignore).build().expect("the user may connect");
    let _guard = client.lock("orders:1").lock().expect("the lock is free");
    eventually("the subscription is refused", || denied(&server).len() == 1);
    let listens = || server.clients().iter().any(|peer| peer.name.ends_with(":listener"));
    eventually("the connection is closed", || !listens());
    // A second refusal would change the entry.
    let refusals = |entry: &BTreeMap<String, Value>| entry.get("count").cloned();
    let renewals = server.calls("pexpire");
    server.client_kill_type("normal");
    eventually("the record is renewed", || server.calls("pexpire") > renewals);
    assert_eq!(denied(&server).iter().map(refusals).collect::<Vec<_>>(), [Some(Value::Int(1))]);
    assert_eq!(RECORDER.of_permissions(), Vec::<String>::new());
    client.close();
}

/// Returns whether a permission was used. Keys and channels count as used.
fn is_used(server: &Server, permission: &str) -> bool {
    let Some(command) = permission.strip_prefix('+') else { return true };
    // Servers before 7 count all subcommands of a command together.
    let container = command.split('|').next().expect("a command has a name");
    server.calls(command) + server.calls(container) > 0
}

// ---------------------------------------------------------------------------------
// The rule without one of its permissions.

/// The operations that a user with a missing permission tries.
const USES: [&str; 12] = [
    "open",
    "open a database",
    "take a free lock",
    "ask for a held lock",
    "take it after a flush",
    "extend",
    "unlock",
    "is_locked",
    "remaining",
    "force_unlock",
    "wait",
    "listen",
];

/// The uses that fail without each permission. A use with a question mark may fail.
const NEEDED: [(&str, &[&str]); 18] = [
    (
        "+evalsha",
        &[
            "take a free lock",
            "ask for a held lock",
            "take it after a flush",
            "extend",
            "unlock",
            "force_unlock",
            "wait",
        ],
    ),
    ("+script|load", &["force_unlock", "take it after a flush"]),
    ("+hset", &["take a free lock", "take it after a flush", "wait"]),
    ("+pexpire", &["take a free lock", "take it after a flush", "extend", "wait"]),
    (
        "+pttl",
        &[
            "take a free lock",
            "ask for a held lock",
            "take it after a flush",
            "extend",
            "is_locked",
            "remaining",
            "force_unlock",
            "wait",
        ],
    ),
    ("+hexists", &["ask for a held lock", "extend", "wait"]),
    ("+hdel", &["unlock"]),
    ("+publish", &["unlock", "force_unlock", "wait?", "listen?"]),
    ("+hlen", &["force_unlock"]),
    ("+hrandfield", &["force_unlock"]),
    ("+del", &["force_unlock"]),
    ("+subscribe", &["listen"]),
    ("+unsubscribe", &["listen"]),
    ("+select", &["open a database"]),
    (
        "~orders:*",
        &[
            "take a free lock",
            "ask for a held lock",
            "take it after a flush",
            "extend",
            "unlock",
            "is_locked",
            "remaining",
            "force_unlock",
            "wait",
        ],
    ),
    ("&redisson_lock__channel:*", &["unlock", "force_unlock", "listen"]),
    ("&leasehold:wake:*", &["listen"]),
    // Without a missing permission, every operation works.
    ("", &[]),
];

/// The prefix of an error of the wrong kind.
const NO_REFUSAL: &str = "not is_server(): ";

/// Returns the error of each operation that fails without this permission.
///
/// For `listen`, the text is a warning in the log.
fn failures(permission: &str) -> BTreeMap<&'static str, String> {
    let server = Server::start();
    let whole = Rule::documented();
    whole.grant(&server, USER);
    let url = whole.url(&server, USER);
    let client = open(Client::builder().single(&url).poll_interval(Duration::from_millis(50)));
    let take = |name: &str| client.lock(name).lock().expect("nothing is missing yet");
    let (extended, unlocked) = (take("orders:extended"), take("orders:unlocked"));
    const OTHER: &str = "6ba7b810-9dad-41d1-80b4-00c04fd430c8:1";
    for name in ["orders:held", "orders:forced", "orders:waited"] {
        server.ask::<()>(&["HSET", name, OTHER, "1"]);
    }
    load_all_scripts(&client);

    if !permission.is_empty() {
        whole.without(permission).grant(&server, USER);
    }
    let mut failures = BTreeMap::new();
    let mut tried = BTreeSet::new();
    let mut attempt = |what: &'static str, outcome: Result<(), Error>| {
        tried.insert(what);
        if let Err(error) = outcome {
            let refused = error.is_server().then(|| error.to_string());
            failures.insert(what, refused.unwrap_or_else(|| format!("{NO_REFUSAL}{error:?}")));
        }
    };
    let connect = |url: &str| Client::open(url).map(|client| client.close());
    let take_free = |name: &str| -> Result<(), Error> {
        if let Some(guard) = client.lock(name).try_lock()? {
            guard.detach();
        }
        Ok(())
    };
    attempt("open", connect(&url));
    attempt("open a database", connect(&format!("{url}3")));
    attempt("take a free lock", take_free("orders:free"));
    let held = client.lock("orders:held").try_lock();
    attempt("ask for a held lock", held.map(|guard| assert!(guard.is_none())));
    attempt("extend", extended.extend(Duration::from_secs(120)));
    attempt("unlock", unlocked.unlock());
    attempt("is_locked", client.lock("orders:held").is_locked().map(|held| assert!(held)));
    attempt(
        "remaining",
        client.lock("orders:held").remaining().map(|left| assert!(left.is_some())),
    );
    attempt(
        "force_unlock",
        client.lock("orders:forced").force_unlock().map(|freed| assert!(freed)),
    );
    let to_the_end = ["", "+unsubscribe"].contains(&permission);
    attempt("wait", wait_and_listen(&server, &client, to_the_end));
    server.ask::<()>(&["SCRIPT", "FLUSH"]);
    attempt("take it after a flush", take_free("orders:again"));
    tried.insert("listen");
    // Waits for the lines of the client.
    client.close();
    if let Some(warning) =
        RECORDER.of_permissions().iter().find(|line| line.contains("cannot listen"))
    {
        failures.insert("listen", warning.clone());
    }
    assert_eq!(tried, BTreeSet::from(USES));
    failures
}

/// Loads every script to the server by using each once.
fn load_all_scripts(client: &Client) {
    let guard = client.lock("orders:warm").lock().expect("the lock is free");
    guard.extend(NEVER).expect("it is held");
    guard.unlock().expect("it is held");
    client.lock("orders:warm").force_unlock().expect("the lock may be free");
}

/// Waits for a lock without expiry until its key is deleted without a message.
///
/// With `to_the_end`, also waits for the end of the subscription.
fn wait_and_listen(server: &Server, client: &Client, to_the_end: bool) -> Result<(), Error> {
    let name = "orders:waited";
    let listens = || server.numsub(&channel_of(name)) == 1;
    let complained = || RECORDER.of_permissions().iter().any(|line| line.contains("cannot listen"));
    thread::scope(|scope| {
        let token = CancelOnDrop(CancelToken::new());
        let lock = client.lock(name).with_cancel(&token.0);
        let waiting = scope.spawn(move || lock.lock().map(Guard::detach));
        let settled = || listens() || complained() || waiting.is_finished();
        eventually("the waiter is subscribed, or the log has a warning", settled);
        server.ask::<()>(&["DEL", name]);
        in_time("the waiter polls", waiting)
    })?;
    if to_the_end {
        eventually("no subscriber is left, or the log has a warning", || {
            !listens() || complained()
        });
    }
    Ok(())
}

#[test]
fn the_table_has_the_documented_permissions() {
    let listed: BTreeSet<String> = NEEDED.map(|(permission, _)| permission.to_owned()).into();
    let mut granted = Rule::documented().permissions();
    granted.insert(String::new());
    assert_eq!(listed, granted, "NEEDED in this file against the line of docs/permissions.md");
}

/// The failed operations without each permission, computed once.
static FAILURES: LazyLock<Vec<(&str, BTreeMap<&str, String>)>> = LazyLock::new(|| {
    let _alone = fresh_log();
    let without = |permission| {
        RECORDER.lines().clear();
        (permission, failures(permission))
    };
    NEEDED.map(|(permission, _)| without(permission)).into()
});

#[test]
fn every_permission_is_needed_for_what_the_table_says() {
    for ((permission, needed), (_, failures)) in NEEDED.iter().zip(FAILURES.iter()) {
        let may_fail: Vec<&str> = needed.iter().filter_map(|what| what.strip_suffix('?')).collect();
        let must_fail = needed.iter().copied().filter(|what| !what.ends_with('?'));
        let failed = failures.keys().copied().filter(|what| !may_fail.contains(what));
        let (failed, must_fail): (BTreeSet<_>, BTreeSet<_>) =
            (failed.collect(), must_fail.collect());
        assert_eq!(failed, must_fail, "without {permission:?}");
        assert_eq!(must_fail.is_empty(), permission.is_empty(), "without {permission:?}");
    }
}

#[test]
fn an_error_names_the_missing_permission_and_the_document() {
    let mut silent = Vec::new();
    for (permission, failures) in FAILURES.iter() {
        let good = |text: &str| {
            names_a_permission(text)
                && text.contains("docs/permissions.md")
                && !text.contains(NO_REFUSAL)
        };
        let bad = failures.iter().filter(|(_, text)| !good(text));
        silent.extend(bad.map(|(what, text)| format!("without {permission}, {what}: {text}")));
    }
    assert!(silent.is_empty(), "these errors do not say what to do:\n{}", silent.join("\n"));
}

/// A server may refuse a command in the middle of an acquire script.
#[test]
fn a_half_acquired_lock_is_released() {
    let _alone = fresh_log();
    let server = Server::start();
    let rule = Rule::documented();
    rule.without("+pexpire").grant(&server, USER);
    let client = open(Client::builder().single(rule.url(&server, USER)));
    let error = client.lock("orders:1").try_lock().expect_err("there is no lease without pexpire");
    assert!(error.is_server(), "{error:?}");
    eventually("nothing is left", || server.keys().is_empty());
}

/// The time in which polls and warnings are counted.
///
/// A waiter with a poll interval of 100 ms polls 20 times, or a few times more because polls are
/// jittered. A listener tries to subscribe with pauses that grow to a second.
const COUNTED: Duration = Duration::from_secs(2);

/// The waiter polls at its interval only, and the log has a few warnings.
#[test]
fn a_client_that_may_not_listen_polls() {
    for missing in ["+subscribe", "&redisson_lock__channel:*", "&leasehold:wake:*"] {
        let _alone = fresh_log();
        let server = Server::start();
        let rule = Rule::documented();
        rule.without(missing).grant(&server, USER);
        server.ask::<()>(&["HSET", "orders:1", "another", "1"]);
        let poll = Duration::from_millis(100);
        let client = open(Client::builder().single(rule.url(&server, USER)).poll_interval(poll));
        thread::scope(|scope| {
            let token = CancelOnDrop(CancelToken::new());
            let lock = client.lock("orders:1").with_cancel(&token.0);
            let waiting = scope.spawn(move || lock.lock().map(Guard::detach));
            let warning = eventually_some("a warning", || RECORDER.of_permissions().pop());
            assert!(
                warning.contains("poll") && warning.contains("docs/permissions.md"),
                "{warning}"
            );

            // The sleep is the time to count in. A slow machine sends fewer polls.
            let (warnings, polls) = (RECORDER.of_permissions().len(), server.calls("evalsha"));
            thread::sleep(COUNTED);
            let warnings = RECORDER.of_permissions().len() - warnings;
            let polls = server.calls("evalsha") - polls;
            assert!(!waiting.is_finished(), "without {missing} a wait ends too early");
            let too_many = warnings > 2 || polls > 90;
            assert!(
                !too_many,
                "without {missing}: {warnings} warnings, {polls} polls in {COUNTED:?}"
            );

            server.ask::<()>(&["DEL", "orders:1"]);
            in_time("the waiter polls", waiting).expect("no error");
        });
    }
}

/// `close()` ends the pause of a listener between two refused subscriptions.
#[test]
fn a_client_that_may_not_listen_can_be_closed() {
    let _alone = fresh_log();
    let server = Server::start();
    let rule = Rule::documented();
    rule.without("+subscribe").grant(&server, USER);
    server.ask::<()>(&["HSET", "orders:1", "another", "1"]);
    let client = open(Client::builder().single(rule.url(&server, USER)));
    thread::scope(|scope| {
        let token = CancelOnDrop(CancelToken::new());
        let lock = client.lock("orders:1").with_cancel(&token.0);
        let waiting = scope.spawn(move || lock.lock().map(drop));
        eventually("a warning", || RECORDER.of_permissions().len() == 1);
        // After several refusals the pause is longer than a refusal takes.
        let connections = server.calls("hello");
        eventually("the listener connects again", || server.calls("hello") >= connections + 4);
        assert_eq!(RECORDER.of_permissions().len(), 1, "each state has one warning");
        client.close();
        let error = in_time("close ends the wait", waiting).expect_err("the client is closed");
        assert!(error.is_closed(), "{error:?}");
    });
    let busy = RECORDER.lines().iter().any(|line| line.contains("of a closed client"));
    assert!(!busy, "a thread runs after close(): {:?}", RECORDER.lines());
}
