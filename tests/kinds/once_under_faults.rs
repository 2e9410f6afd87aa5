//! Work that is done once, by processes that are killed and stopped, and whose connections are cut.
//!
//! Each process does the work of all keys. The processes of a team meet at each key, and each team
//! begins elsewhere. A process that is killed has a successor, which goes on at the same key.

use crate::harness::faults::{other, patient};
use crate::harness::process::{self, ChildProcess, Role};
use crate::harness::{Proxy, Server, join};
use leasehold::{Error, OnceRun};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(1);

/// Callers look for the process of a run this often.
const POLL: Duration = Duration::from_millis(50);

/// What the clocks of a client and of the server may differ by within a lease.
const MARGIN: Duration = Duration::from_millis(20);

/// The longest work, in ms.
const WORK: u64 = 20;

/// The processes that meet at each key.
const TEAM: usize = 4;

#[test]
fn child_entry() {
    match process::role() {
        None => {}
        Some(role) if role.name() == "work" => work(&role),
        Some(role) => panic!("unknown: {role:?}"),
    }
}

/// Returns the time by a clock that all processes share.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("after the start");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("below a second"))
}

/// Tells the parent of a panic, which would look like a kill.
struct TellsPanic<'a>(&'a Role);

impl Drop for TellsPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.say("panics");
        }
    }
}

/// Does the work of all keys from a place on, and tells each run and each result that it gets.
fn work(role: &Role) {
    let _tells = TellsPanic(role);
    let number = |at: usize| role.arg(at).parse::<usize>().expect("a number");
    let [begin, done, keys] = [1, 2, 3].map(number);
    let client = loop {
        let settings = patient(role.arg(0)).announce(true).release_on_death(true);
        match settings.poll_interval(POLL).build() {
            Ok(client) => break client,
            Err(error) => assert!(error.is_connection(), "it was not cut: {error:?}"),
        }
    };
    for key in (done..keys).map(|at| (begin + at) % keys) {
        let once = client.once(format!("key-{key}")).with_renewed_lease(LEASE);
        loop {
            let (asked, mut token, mut worked) = (now(), 0, now());
            let value = |run: &OnceRun| {
                token = run.token();
                let (at, left) = (now(), run.remaining());
                let sent = if left.is_zero() { asked } else { (at + left - LEASE).max(asked) };
                let [sent, at] = [sent, at].map(|time| time.as_micros());
                role.say(&format!("runs {key} {token} {sent} {at}"));
                thread::sleep(Duration::from_millis(fastrand::u64(..=WORK)));
                worked = now();
                Ok::<_, Error>(token.to_string().into_bytes())
            };
            let outcome = once.run(value);
            let at = now().as_micros();
            match outcome {
                Ok(done) => {
                    assert_eq!(done.value(), done.token().to_string().as_bytes());
                    role.say(&format!("got {key} {token} {at} {}", done.token()));
                }
                // Two cuts have met the first request.
                Err(error) if token == 0 && error.is_connection() => continue,
                Err(error) => {
                    // Waits are endless, so only a run fails.
                    let is_late = error.is_timeout() || error.is_connection();
                    assert!(token > 0 && (error.is_lost() || is_late), "{error:?}");
                    let what = if error.is_lost() { "lost" } else { "late" };
                    role.say(&format!("{what} {key} {token} {at} {}", worked.as_micros()));
                }
            }
            break;
        }
    }
    role.say("done");
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The process has said nothing since.
    Open,
    Killed,
    Committed,
    Lost,
    /// The reply to the commit came too late.
    Late,
}

/// One run of the work of a key. Times are those of [`now`].
#[derive(Clone, Debug)]
struct Run {
    token: u64,
    worker: usize,
    /// Not later than the request that got the lease.
    sent: Duration,
    /// Not earlier than the grant.
    begun: Duration,
    /// The end of the work, before the commit. Known only of a run that failed.
    worked: Option<Duration>,
    ended: Duration,
    end: End,
}

/// The begin and the end of a fault.
type Fault = (Duration, Duration);

/// A process, which may be the successor of another one.
struct Worker {
    number: usize,
    process: ChildProcess,
    /// Where the first process of the line began.
    begin: usize,
    /// The number of keys that the line has done.
    done: usize,
    open: Option<usize>,
    is_done: bool,
}

/// All runs and results of all keys, and the faults.
#[derive(Default)]
struct Record {
    runs: Vec<Vec<Run>>,
    /// The token of the run whose result some process got.
    results: Vec<Option<u64>>,
    /// The stops, each with its worker.
    stops: Vec<(usize, Fault)>,
    cuts: Vec<Fault>,
    /// When the server or the proxy left a question without an answer for a quarter of a lease.
    stalls: Vec<Fault>,
    kills: usize,
}

impl Record {
    fn new(keys: usize) -> Record {
        let (runs, results) = (vec![Vec::new(); keys], vec![None; keys]);
        Record { runs, results, ..Record::default() }
    }

    fn hear(&mut self, worker: &mut Worker, lines: Vec<String>) {
        for line in lines {
            if line == "done" {
                worker.is_done = true;
                continue;
            }
            let (what, numbers) = line.split_once(' ').unwrap_or((&line, ""));
            assert!(!numbers.is_empty(), "{what}; {:?}", worker.process.said_to_the_end());
            let numbers: Vec<u64> =
                numbers.split(' ').map(|it| it.parse().expect("a number")).collect();
            let (key, token) = (usize::try_from(numbers[0]).expect("a key"), numbers[1]);
            let time = |at: usize| Duration::from_micros(numbers[at]);
            if what == "runs" {
                let (sent, begun) = (time(2), time(3));
                let (worker_number, ended) = (worker.number, begun);
                self.runs[key].push(Run {
                    token,
                    worker: worker_number,
                    sent,
                    begun,
                    worked: None,
                    ended,
                    end: End::Open,
                });
                worker.open = Some(key);
                continue;
            }
            let end = match what {
                "got" => End::Committed,
                "lost" => End::Lost,
                "late" => End::Late,
                _ => panic!("unknown: {line}"),
            };
            if end == End::Committed {
                let first = self.results[key].get_or_insert(numbers[3]);
                assert_eq!(*first, numbers[3], "two results of {key}");
                assert!(token == 0 || token == numbers[3], "a run gets its own result: {line}");
            }
            if let Some(run) = self.end_run(worker, end, time(2))
                && end != End::Committed
            {
                run.worked = Some(time(3));
            }
            worker.done += 1;
        }
    }

    /// Hears all workers, and removes those that are done. Returns one of the others for the next
    /// fault: mostly one with a run.
    fn hear_all(&mut self, workers: &mut Vec<Worker>) -> usize {
        for worker in &mut *workers {
            let lines = worker.process.said_already();
            self.hear(worker, lines);
        }
        workers.retain(|worker| !worker.is_done);
        let mut places: Vec<_> = (0..workers.len()).collect();
        fastrand::shuffle(&mut places);
        let wants_run = fastrand::u8(..4) > 0;
        let runs = places.iter().find(|at| wants_run && workers[**at].open.is_some());
        runs.or(places.first()).copied().unwrap_or(0)
    }

    /// Notes the end of the run of a worker, if it has one.
    fn end_run(&mut self, worker: &mut Worker, end: End, ended: Duration) -> Option<&mut Run> {
        let key = worker.open.take()?;
        let mine = self.runs[key].iter_mut().rfind(|run| run.worker == worker.number);
        let run = mine.expect("it has begun");
        (run.end, run.ended) = (end, ended);
        Some(run)
    }

    /// Asserts that a fault of this worker explains the end of a run without a result, or a stall of
    /// the machine. Returns the place of the cause in the list of kills, stops, cuts and stalls.
    fn cause(&self, key: usize, run: &Run, next: &Run) -> usize {
        if run.end == End::Killed {
            assert!(next.begun >= run.ended, "{key}: {next:?} before the kill of {run:?}");
            return 0;
        }
        assert!(matches!(run.end, End::Lost | End::Late), "{key}: {next:?} beside {run:?}");
        let leased = run.sent + LEASE - MARGIN;
        assert!(next.begun >= leased && run.ended >= leased, "{key}: {next:?} early after {run:?}");
        let touches = |(begin, end): &Fault| *begin <= run.ended && *end >= run.sent;
        if self.stops.iter().any(|(worker, fault)| *worker == run.worker && touches(fault)) {
            return 1;
        }
        if self.cuts.iter().any(touches) {
            return 2;
        }
        let slept_long = run.worked.is_some_and(|at| at - run.begun > LEASE / 4);
        let stalls: Vec<_> = self.stalls.iter().filter(|it| touches(it)).collect();
        eprintln!("{key}: {run:?} before {next:?}; {stalls:?}");
        assert!(slept_long || !stalls.is_empty(), "{key}: no fault touched {run:?}");
        3
    }

    /// Asserts that each key has one result, of its last run, and that a fault explains each run
    /// before it. Returns the number of these faults: kills, stops, cuts, and stalls of the machine.
    fn check(&mut self) -> [usize; 4] {
        let mut causes = [0; 4];
        for (key, runs) in self.runs.iter().enumerate() {
            let mut runs = runs.clone();
            runs.sort_by_key(|run| run.token);
            let winner = self.results[key].expect("all keys have a result");
            let last = runs.last().expect("it has run");
            assert_eq!(last.token, winner, "{key}: the work runs after the result: {runs:?}");
            assert!(last.end != End::Lost, "{key}: a lost run has committed: {runs:?}");
            let committed = runs.iter().filter(|run| run.end == End::Committed);
            assert!(committed.count() <= 1, "{key}: two commits: {runs:?}");
            for pair in runs.windows(2) {
                causes[self.cause(key, &pair[0], &pair[1])] += 1;
            }
        }
        causes
    }
}

/// Starts to ask the server again and again, which is slow while the machine stalls.
fn find_stalls(server: &Server, is_over: &Arc<AtomicBool>) -> JoinHandle<Vec<Fault>> {
    let (client, is_over) = (other(server), Arc::clone(is_over));
    thread::spawn(move || {
        let mut stalls = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let begin = now();
            thread::sleep(Duration::from_millis(20));
            client.ping().expect("the server runs");
            let end = now();
            if end - begin > LEASE / 4 {
                stalls.push((begin, end));
            }
        }
        stalls
    })
}

/// Processes are killed and stopped, and connections are cut. `LEASEHOLD_ONCE_KEYS` is the number of
/// keys, `LEASEHOLD_ONCE_PROCESSES` that of processes.
///
/// Exactly one result is committed for each key, by its last run. Each run before was ended by a
/// kill of its process, or lost its lease after a stop of its process, a cut, or a stall of the
/// machine.
#[test]
fn each_key_has_one_result_and_runs_again_only_after_a_fault() {
    let size =
        |name, usual: usize| std::env::var(name).map_or(usual, |it| it.parse().expect("a number"));
    let (keys, processes) = (size("LEASEHOLD_ONCE_KEYS", 300), size("LEASEHOLD_ONCE_PROCESSES", 4));
    let teams = processes.div_ceil(TEAM);
    let server = Server::start();
    let proxy = Proxy::start(server.addr());
    let mut started = 0;
    let mut start = |begin: usize, done: usize| {
        let numbers = [begin, done, keys].map(|it| it.to_string());
        let args = [&*proxy.url(), &numbers[0], &numbers[1], &numbers[2]];
        let process = ChildProcess::start("once_under_faults::child_entry", "work", &args);
        started += 1;
        Worker { number: started, process, begin, done, open: None, is_done: false }
    };
    let mut workers: Vec<_> =
        (0..processes).map(|number| start(number % teams * keys / teams, 0)).collect();
    let mut record = Record::new(keys);
    let is_over = Arc::new(AtomicBool::new(false));
    let stalls = find_stalls(&server, &is_over);
    let mut target = 0;
    while !workers.is_empty() {
        let worker = &mut workers[target];
        match fastrand::usize(..3) {
            0 => {
                let at = now();
                worker.process.kill();
                let lines = worker.process.said_to_the_end();
                record.hear(worker, lines);
                record.end_run(worker, End::Killed, at);
                record.kills += 1;
                *worker = start(worker.begin, worker.done);
            }
            1 => {
                let begin = now();
                worker.process.stop();
                thread::sleep(Duration::from_millis(fastrand::u64(..1500)));
                worker.process.resume();
                record.stops.push((worker.number, (begin, now())));
            }
            _ => {
                let begin = now();
                proxy.kill_all();
                record.cuts.push((begin, now()));
            }
        }
        thread::sleep(Duration::from_millis(fastrand::u64(..100)));
        target = record.hear_all(&mut workers);
    }
    is_over.store(true, Ordering::Relaxed);
    record.stalls = join(stalls);
    let causes = record.check();
    let runs: usize = record.runs.iter().map(Vec::len).sum();
    let faults = [record.kills, record.stops.len(), record.cuts.len()];
    eprintln!(
        "{keys} keys, {processes} processes, {faults:?} kills, stops and cuts: {runs} runs, \
         {causes:?} of them ended by kills, stops, cuts, and stalls of the machine"
    );
    let client = other(&server);
    for (key, token) in record.results.iter().enumerate() {
        let outcome = client.once(format!("key-{key}")).outcome().expect("an answer");
        assert_eq!(outcome.map(|it| it.token()), *token, "{key}");
    }
}
