//! The feature `metrics`: the export agrees with `Client::stats`, by kind and label.
//!
//! Each test has a process of its own, because a recorder cannot be removed.

use crate::harness::faults::BRISK;
use crate::harness::process::alone;
use crate::harness::spawned::Spawned;
use crate::harness::{Server, eventually, join, or_too_late, sleeping};
use leasehold::kind::LockKind;
use leasehold::{CancelToken, Client, Lock, LostReason, MultiLock, RedLock, Result, Stats};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

fn client(server: &Server) -> Client {
    Client::builder().single(server.url()).watchdog_timeout(MINUTE).build().expect("it answers")
}

fn recorder() -> PrometheusHandle {
    let builder = PrometheusBuilder::new().set_buckets(&[1.0]).expect("a bucket");
    builder.install_recorder().expect("the first recorder of the process")
}

/// One line of a page: a name, its labels between the braces, and a value.
struct Sample {
    name: String,
    labels: String,
    value: f64,
}

/// A page in the format of Prometheus.
struct Page(Vec<Sample>);

impl Page {
    fn read(text: &str) -> Page {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.strip_suffix('}').expect("a closing brace");
            let value = value.parse().expect("a number");
            Sample { name: name.to_owned(), labels: labels.to_owned(), value }
        };
        Page(lines.map(sample).collect())
    }

    fn of(recorder: &PrometheusHandle) -> Page {
        Page::read(&recorder.render())
    }

    /// Returns the sum of all series with this name and these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &Sample, (key, value): &(&str, &str)| {
            sample.labels.split(',').any(|label| label == format!("{key}=\"{value}\""))
        };
        let fits =
            |sample: &&Sample| sample.name == name && labels.iter().all(|label| has(sample, label));
        self.0.iter().filter(fits).map(|sample| sample.value).sum()
    }

    /// Returns the values of one kind and label: acquired, passed locally, released, held.
    fn holds(&self, kind: &str, label: &str) -> [f64; 4] {
        let names = [
            "leasehold_lock_acquired_total",
            "leasehold_lock_passed_locally_total",
            "leasehold_lock_released_total",
            "leasehold_locks_held",
        ];
        names.map(|name| self.sum(name, &[("kind", kind), ("label", label)]))
    }

    /// Returns the values of one kind and label: refused, timed out, cancelled, contended, waiting.
    fn calls(&self, kind: &str, label: &str) -> [f64; 5] {
        let names = [
            "leasehold_lock_refused_total",
            "leasehold_lock_timed_out_total",
            "leasehold_lock_cancelled_total",
            "leasehold_lock_contended_total",
            "leasehold_locks_waiting",
        ];
        names.map(|name| self.sum(name, &[("kind", kind), ("label", label)]))
    }

    /// Checks that the sums over all kinds and labels are these statistics.
    #[track_caller]
    fn assert_agrees(&self, stats: &Stats) {
        let total = |name: &str| self.sum(name, &[]);
        let lost = |reason| self.sum("leasehold_lock_lost_total", &[("reason", reason)]);
        let exported = [
            ("acquired", total("leasehold_lock_acquired_total"), stats.acquired()),
            ("passed", total("leasehold_lock_passed_locally_total"), stats.passed_locally()),
            ("released", total("leasehold_lock_released_total"), stats.released()),
            (
                "released after expiry",
                total("leasehold_lock_released_after_expiry_total"),
                stats.released_after_expiry(),
            ),
            ("lost", total("leasehold_lock_lost_total"), stats.lost_in_total()),
            ("expired", lost("expired"), stats.lost(LostReason::Expired)),
            ("gone", lost("gone"), stats.lost(LostReason::Gone)),
            ("held too long", lost("held_too_long"), stats.lost(LostReason::HeldTooLong)),
            ("refused", total("leasehold_lock_refused_total"), stats.refused()),
            ("timed out", total("leasehold_lock_timed_out_total"), stats.timed_out()),
            ("cancelled", total("leasehold_lock_cancelled_total"), stats.cancelled()),
            ("contended", total("leasehold_lock_contended_total"), stats.contended()),
            ("renewals", total("leasehold_lock_renewals_total"), stats.renewals()),
            (
                "renewal failures",
                total("leasehold_lock_renewal_failures_total"),
                stats.renewal_failures(),
            ),
            ("reconnects", total("leasehold_reconnects_total"), stats.reconnects()),
            ("held", total("leasehold_locks_held"), stats.held_now()),
            ("waiting", total("leasehold_locks_waiting"), stats.waiting_now()),
        ];
        for (number, exported, counted) in exported {
            assert_eq!(exported, counted as f64, "{number}: {stats:#?}");
        }
        let histograms = [
            ("leasehold_lock_wait_seconds", stats.wait_time()),
            ("leasehold_lock_hold_seconds", stats.hold_time()),
            ("leasehold_lock_renewal_lag_seconds", stats.renewal_lag()),
            ("leasehold_lock_round_trip_seconds", stats.round_trip()),
        ];
        for (name, histogram) in histograms {
            assert_eq!(total(&format!("{name}_count")), histogram.count() as f64, "{name}");
            let (exported, counted) =
                (total(&format!("{name}_sum")), histogram.sum().as_secs_f64());
            let rounding = 1e-9 * counted;
            assert!((exported - counted).abs() <= rounding, "{name}: {exported}, {counted}");
        }
    }
}

/// Makes one call of one of three verbs, and releases the lock if the call took it.
fn work<K: LockKind>(lock: &Lock<K>, number: usize) -> Result<()> {
    match number % 3 {
        0 => drop(lock.lock()?),
        1 => drop(lock.try_lock()?),
        _ => drop(or_too_late(lock.try_lock_for(Duration::from_millis(1)))?),
    }
    Ok(())
}

#[test]
fn every_number_is_exported_exactly_under_64_threads() -> Result<()> {
    if !alone("metrics::every_number_is_exported_exactly_under_64_threads") {
        return Ok(());
    }
    const THREADS: usize = 64;
    const CALLS: usize = 90;
    let (server, recorder) = (Server::start(), recorder());
    let client = client(&server);
    let call_many = |client: Client, thread: usize| -> Result<()> {
        for call in 0..CALLS {
            let name = format!("secret {}", (7 * thread + call) % 8);
            match thread % 4 {
                0 => work(&client.lock(name), call)?,
                1 => work(&client.lock(name).with_label("one"), call)?,
                2 => work(&client.lock(name).with_label("two"), call)?,
                _ => work(&client.fenced_lock(format!("{name} f")).with_label("two"), call)?,
            }
        }
        Ok(())
    };
    let start = |number: usize| {
        let client = client.clone();
        thread::spawn(move || call_many(client, number))
    };
    let threads: Vec<_> = (0..THREADS).map(start).collect();
    threads.into_iter().try_for_each(join)?;
    let (page, stats) = (Page::of(&recorder), client.stats());
    page.assert_agrees(&stats);
    assert_eq!((stats.held_now(), stats.waiting_now()), (0, 0));
    assert!(stats.passed_locally() > 0 && stats.refused() > 0, "{stats:#?}");
    let series = [("plain", ""), ("plain", "one"), ("plain", "two"), ("fenced", "two")];
    for (kind, label) in series {
        let [acquired, passed, _, held] = page.holds(kind, label);
        // A third of the calls get the lock in any case.
        let least = (THREADS / series.len() * CALLS / 3) as f64;
        assert!(acquired + passed >= least && held == 0.0, "{kind} {label}: {acquired} {passed}");
        assert_eq!(page.calls(kind, label)[4], 0.0);
    }
    assert_eq!(page.holds("fenced", ""), [0.0; 4]);
    assert!(!recorder.render().contains("secret"), "the name of a lock is no label");
    Ok(())
}

#[test]
fn a_hand_off_moves_the_hold_to_the_label_of_its_receiver() -> Result<()> {
    if !alone("metrics::a_hand_off_moves_the_hold_to_the_label_of_its_receiver") {
        return Ok(());
    }
    let (server, recorder) = (Server::start(), recorder());
    let client = Client::builder().single(server.url()).local_handoff(512, MINUTE).build()?;
    let [one, two] = ["one", "two"].map(|label| client.lock("a").with_label(label));
    let guard = one.lock()?;
    let nested = two.lock()?;
    assert_eq!(Page::of(&recorder).holds("plain", "one"), [1.0, 0.0, 0.0, 1.0]);
    let waiter = sleeping("next", move || two.lock_owned());
    let page = Page::of(&recorder);
    assert_eq!(page.calls("plain", "two"), [0.0, 0.0, 0.0, 1.0, 1.0]);
    drop((nested, guard));
    let guard = join(waiter)?;
    let page = Page::of(&recorder);
    assert_eq!(page.holds("plain", "one"), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(page.holds("plain", "two"), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(page.calls("plain", "two"), [0.0, 0.0, 0.0, 1.0, 0.0]);
    page.assert_agrees(&client.stats());
    guard.unlock()?;
    let page = Page::of(&recorder);
    assert_eq!(page.holds("plain", "two"), [0.0, 1.0, 1.0, 0.0]);
    page.assert_agrees(&client.stats());
    Ok(())
}

#[test]
fn losses_and_ends_of_calls_have_the_label_of_their_handle() -> Result<()> {
    if !alone("metrics::losses_and_ends_of_calls_have_the_label_of_their_handle") {
        return Ok(());
    }
    let (server, recorder) = (Server::start(), recorder());
    let client = client(&server);
    let lost = |label: &str| {
        let page = Page::of(&recorder);
        page.assert_agrees(&client.stats());
        let of =
            |reason| page.sum("leasehold_lock_lost_total", &[("label", label), ("reason", reason)]);
        [of("expired"), of("gone"), page.holds("plain", label)[3]]
    };
    let await_losses = |losses: u64| {
        let exported = || Page::of(&recorder).sum("leasehold_lock_lost_total", &[]);
        eventually("the loss is counted", || {
            exported() == losses as f64 && client.stats().lost_in_total() == losses
        });
    };
    let guard = client.lock("a").with_label("expires").with_lease(SHORT).lock()?;
    assert!(guard.wait_lost(MINUTE));
    await_losses(1);
    assert_eq!(lost("expires"), [1.0, 0.0, 0.0]);
    drop(guard);
    assert_eq!(lost("expires"), [1.0, 0.0, 0.0]);

    let guard = client.lock("a").with_label("freed").lock()?;
    assert!(client.lock("a").force_unlock()?);
    assert_eq!(lost("freed"), [0.0, 1.0, 0.0]);
    drop(guard);

    let guard = client.lock("a").with_label("deleted").lock()?;
    server.ask::<()>(&["DEL", "a"]);
    assert_eq!(lost("deleted"), [0.0, 0.0, 1.0]);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    assert_eq!(lost("deleted"), [0.0, 1.0, 0.0]);

    let overdue = client.lock("a").with_label("overdue").with_lease(4 * SHORT);
    let guard = overdue.with_max_hold(SHORT).lock()?;
    assert!(guard.wait_lost(MINUTE));
    drop(guard);
    await_losses(4);
    assert_eq!(lost("overdue"), [0.0, 0.0, 0.0]);
    let too_long = [("label", "overdue"), ("reason", "held_too_long")];
    assert_eq!(Page::of(&recorder).sum("leasehold_lock_lost_total", &too_long), 1.0);

    let held = client.lock("b").with_label("holder").lock_owned()?;
    let lock = client.lock("b").with_label("waiter");
    assert!(lock.try_lock_owned()?.is_none());
    assert!(lock.try_lock_for(SHORT).is_ok_and(|guard| guard.is_none()));
    let token = CancelToken::new();
    let waiter = sleeping("waiter", {
        let lock = lock.with_cancel(&token);
        move || lock.lock_owned()
    });
    token.cancel();
    assert!(join(waiter).is_err_and(|error| error.is_cancelled()));
    let page = Page::of(&recorder);
    assert_eq!(page.calls("plain", "waiter"), [1.0, 1.0, 1.0, 2.0, 0.0]);
    assert_eq!(page.calls("plain", "holder"), [0.0; 5]);
    page.assert_agrees(&client.stats());
    drop(held);
    Ok(())
}

#[test]
fn members_of_a_multi_lock_and_of_a_red_lock_count_for_themselves() -> Result<()> {
    if !alone("metrics::members_of_a_multi_lock_and_of_a_red_lock_count_for_themselves") {
        return Ok(());
    }
    let (server, recorder) = (Server::start(), recorder());
    let client = client(&server);
    let members = ["one", "two"].map(|label| client.lock(label).with_label(label));
    let same = ["c", "d"].map(|name| client.lock(name).with_label("same"));
    let (lock, agreed) = (MultiLock::new(members), MultiLock::new(same));
    let guards = [lock.lock_owned()?, agreed.lock_owned()?];
    assert!(lock.try_lock_owned()?.is_none() && agreed.try_lock_owned()?.is_none());
    let page = Page::of(&recorder);
    assert_eq!(page.holds("plain", "one"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(page.holds("plain", "two"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(page.holds("plain", "same"), [2.0, 0.0, 0.0, 2.0]);
    assert_eq!(page.calls("multi", ""), [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(page.calls("multi", "same"), [1.0, 0.0, 0.0, 0.0, 0.0]);
    page.assert_agrees(&client.stats());
    drop(guards);

    let red = RedLock::new([client.clone()], "r").with_label("red");
    let guard = red.lock_owned()?;
    assert!(red.try_lock_owned()?.is_none());
    let page = Page::of(&recorder);
    assert_eq!(page.holds("plain", "red"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(page.calls("red", "red"), [1.0, 0.0, 0.0, 0.0, 0.0]);
    drop(guard);
    let rw = client.rw_lock("w").with_label("prices");
    drop((rw.write()?, rw.read()?));
    let page = Page::of(&recorder);
    for kind in ["read", "write"] {
        assert_eq!(page.holds(kind, "prices"), [1.0, 0.0, 1.0, 0.0], "{kind}");
    }
    page.assert_agrees(&client.stats());
    Ok(())
}

#[test]
fn semaphores_and_latches_are_exported_by_their_kinds() -> Result<()> {
    if !alone("metrics::semaphores_and_latches_are_exported_by_their_kinds") {
        return Ok(());
    }
    let (server, recorder) = (Server::start(), recorder());
    let client = client(&server);
    let jobs = client.semaphore("jobs").with_permits(1).with_label("x");
    let stock = client.plain_semaphore("stock").with_label("x");
    let latch = client.latch("latch").with_label("x");
    let permit = jobs.acquire()?;
    assert!(jobs.try_acquire()?.is_none());
    assert!(stock.try_set_permits(1)? && stock.try_acquire(1)? && !stock.try_acquire(1)?);
    assert!(latch.try_set_count(1)? && !latch.wait_for(SHORT)?);
    let page = Page::of(&recorder);
    page.assert_agrees(&client.stats());
    assert_eq!(page.holds("semaphore", "x"), [1.0, 0.0, 0.0, 1.0]);
    assert_eq!(page.calls("semaphore", "x"), [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(page.calls("plain_semaphore", "x"), [1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(page.calls("latch", "x"), [0.0, 1.0, 0.0, 1.0, 0.0]);
    for kind in ["semaphore", "plain_semaphore", "latch"] {
        let labels = [("kind", kind), ("label", "x")];
        assert!(page.sum("leasehold_lock_round_trip_seconds_count", &labels) > 0.0, "{kind}");
    }
    permit.release()?;
    assert_eq!(Page::of(&recorder).holds("semaphore", "x"), [1.0, 0.0, 1.0, 0.0]);
    Ok(())
}

#[test]
fn renewals_their_failures_and_reconnects_are_exported() -> Result<()> {
    if !alone("metrics::renewals_their_failures_and_reconnects_are_exported") {
        return Ok(());
    }
    let (server, recorder) = (Server::start(), recorder());
    let client = Client::builder().single(server.url()).watchdog_timeout(BRISK).build()?;
    let guard = client.lock("a").with_label("renewed").lock_owned()?;
    eventually("the lease is renewed", || client.stats().renewals() >= 2);
    server.stop();
    eventually("a renewal fails", || client.stats().renewal_failures() > 0);
    server.resume();
    assert!(server.client_kill_type("normal") > 0);
    // A fixed lease, because the watchdog renews all others when the server is back.
    let lock = client.lock("b").with_lease(MINUTE);
    eventually("the client reconnects", || {
        lock.try_lock().is_ok() && client.stats().reconnects() > 0
    });
    drop(guard);
    eventually("nothing is held", || client.stats().held_now() == 0);
    client.close();
    let (page, stats) = (Page::of(&recorder), client.stats());
    page.assert_agrees(&stats);
    let renewals = page.sum("leasehold_lock_renewals_total", &[("label", "renewed")]);
    assert_eq!(renewals, stats.renewals() as f64);
    Ok(())
}

#[test]
fn a_detached_hold_does_not_count_as_held_after_its_client() -> Result<()> {
    if !alone("metrics::a_detached_hold_does_not_count_as_held_after_its_client") {
        return Ok(());
    }
    let (server, recorder) = (Server::start(), recorder());
    let client = client(&server);
    let (gone, stays) = (client.lock("a").with_label("x"), client.lock("b").with_label("x"));
    gone.with_lease(MINUTE).lock_owned()?.detach();
    let guard = stays.lock_owned()?;
    drop((stays, client));
    assert_eq!(Page::of(&recorder).holds("plain", "x"), [2.0, 0.0, 0.0, 2.0]);
    guard.unlock()?;
    eventually("the client is gone", || {
        Page::of(&recorder).holds("plain", "x") == [2.0, 0.0, 1.0, 0.0]
    });
    assert_eq!(Page::of(&recorder).sum("leasehold_lock_lost_total", &[]), 0.0);
    Ok(())
}

/// A recorder whose metrics cannot be registered.
struct Panicking;

impl metrics::Recorder for Panicking {
    fn describe_counter(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_gauge(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn describe_histogram(
        &self,
        _: metrics::KeyName,
        _: Option<metrics::Unit>,
        _: metrics::SharedString,
    ) {
    }
    fn register_counter(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        panic!("the panic of the recorder")
    }
    fn register_gauge(&self, _: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        panic!("the panic of the recorder")
    }
    fn register_histogram(
        &self,
        _: &metrics::Key,
        _: &metrics::Metadata<'_>,
    ) -> metrics::Histogram {
        panic!("the panic of the recorder")
    }
}

#[test]
fn a_recorder_that_panics_breaks_nothing() -> Result<()> {
    if !alone("metrics::a_recorder_that_panics_breaks_nothing") {
        return Ok(());
    }
    // The default hook would print many panics.
    std::panic::set_hook(Box::new(|_| {}));
    metrics::set_global_recorder(Panicking).expect("the first recorder of the process");
    let server = Server::start();
    let client = client(&server);
    client.lock("a").with_label("x").lock()?.unlock()?;
    drop(client.lock("a").lock()?);
    let stats = client.stats();
    assert_eq!((stats.acquired(), stats.released(), stats.held_now()), (2, 2, 0));
    Ok(())
}

/// Builds the example with the toolchain and the folder of this test, and returns its path.
///
/// In a run of all tests the example is built already.
fn example() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--offline", "--workspace", "--all-features"]);
    build.args(["--example", "metrics", "--message-format", "json"]);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = build.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).expect("UTF-8");
    let path = |line: &str| Some(line.split_once("\"executable\":\"")?.1.split_once('"')?.0.into());
    messages.lines().find_map(path).expect("cargo names the program")
}

#[test]
fn the_page_of_the_example_has_the_numbers_of_its_work() {
    let mut command = Command::new(example());
    command.arg("0").env_remove("REDIS_URL").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut example = Spawned::start(&mut command, None);
    let input = example.take_input().expect("a pipe");
    let mut output = BufReader::new(example.take_output().expect("a pipe")).lines();
    let url = output.next().expect("the first line").expect("UTF-8");
    let done = output.next().expect("the second line").expect("UTF-8");
    assert!(done.starts_with("the work is done"), "{done}");

    let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let mut stream = TcpStream::connect(address.expect("an address")).expect("the example listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it reads");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("the response ends");
    let (head, text) = response.split_once("\r\n\r\n").expect("a head and a body");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(!text.contains("example:"), "the name of a lock is no label");

    let page = Page::read(text);
    assert_eq!(page.holds("plain", "orders"), [60.0, 0.0, 60.0, 0.0]);
    assert_eq!(page.calls("plain", "orders"), [0.0; 5]);
    assert_eq!(page.holds("fair", "counter"), [3.0, 0.0, 3.0, 0.0]);
    assert_eq!(page.calls("fair", "counter"), [0.0, 0.0, 0.0, 2.0, 0.0]);
    assert_eq!(page.sum("leasehold_lock_wait_seconds_count", &[("label", "counter")]), 2.0);
    assert!(page.sum("leasehold_lock_wait_seconds_sum", &[("label", "counter")]) > 0.0);
    assert_eq!(page.sum("leasehold_lock_hold_seconds_count", &[]), 64.0);
    let lost = [("kind", "plain"), ("label", "report"), ("reason", "expired")];
    assert_eq!(page.sum("leasehold_lock_lost_total", &lost), 1.0);
    assert_eq!(page.sum("leasehold_lock_lost_total", &[]), 1.0);
    assert!(text.contains("# TYPE leasehold_lock_wait_seconds histogram"), "{text}");

    drop(input);
    eventually("the example ends", || example.try_wait().is_some());
    assert!(example.try_wait().is_some_and(|status| status.success()));
}
