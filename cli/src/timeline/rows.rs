//! [`Timeline`]: the threads in rows, grouped by process.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use crate::observe::event::LockEvent;
use crate::timeline::identity::{Identity, ProcessKey};
use crate::timeline::recorder::record;
use crate::timeline::spans::{Activity, Actor, Level, Mark, Outage, Span, Unseen, Window};

/// The most rows of a picture. The threads with the first events have them.
const MOST_ROWS: usize = 400;

/// The name of the row of unknown threads, if the process has other rows.
const UNKNOWN: &str = "other threads";

/// The content of a picture.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    pub(crate) window: Window,
    pub(crate) locks: Vec<String>,
    pub(crate) processes: Vec<Process>,
    pub(crate) marks: Vec<Mark>,
    pub(crate) outages: Vec<Outage>,
    /// The numbers of waiting processes, by the number of the lock.
    pub(crate) levels: BTreeMap<usize, Vec<Level>>,
    /// The number of holds that were too short for any look.
    pub(crate) unseen: u64,
    /// The number of threads that have no row.
    pub(crate) left_out: usize,
}

/// A process with a row for each of its threads, or the processes that share one row.
#[derive(Clone, Debug, Default)]
pub(crate) struct Process {
    pub(crate) identity: Identity,
    /// The further processes in the row, in the order of their starts.
    pub(crate) later: Vec<Identity>,
    pub(crate) rows: Vec<Row>,
}

/// A thread, or all threads of a process whose threads are unknown.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// The name of the thread, else its number; empty if the threads of the process are unknown.
    pub(crate) thread: String,
    /// Spans that overlap are in different lanes.
    pub(crate) lanes: Vec<Vec<Span>>,
    pub(crate) unseen: Vec<Unseen>,
    pub(crate) noticed: Vec<f64>,
}

impl Timeline {
    /// Returns the content of the events. `locks` are the names of the first locks.
    pub(crate) fn new(events: &[LockEvent], window: Window, locks: &[String]) -> Timeline {
        let mut recorded = record(events, window, locks);
        recorded.actors.retain(|actor| !(actor.spans.is_empty() && actor.noticed.is_empty()));
        let mut actors = share_rows(recorded.actors);
        let left_out = actors.len().saturating_sub(MOST_ROWS);
        actors.truncate(MOST_ROWS);
        Timeline {
            window,
            locks: recorded.locks,
            processes: group(actors),
            marks: recorded.marks,
            outages: recorded.outages,
            levels: recorded.levels,
            unseen: recorded.unseen,
            left_out,
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.processes.iter().flat_map(|process| &process.rows)
    }

    /// Returns the number of spans with this activity.
    pub(crate) fn count(&self, activity: Activity) -> usize {
        self.rows().flat_map(Row::spans).filter(|span| span.activity == activity).count()
    }
}

impl Row {
    fn new(actor: Actor) -> Row {
        let Identity { thread, thread_number: number, .. } = actor.identity;
        let number = number.map(|number| format!("thread {number}"));
        let thread = thread.or(number).unwrap_or_default();
        let Actor { spans, unseen, noticed, .. } = actor;
        Row { thread, lanes: lanes(spans), unseen, noticed }
    }

    pub(crate) fn spans(&self) -> impl Iterator<Item = &Span> {
        self.lanes.iter().flatten()
    }
}

impl Process {
    /// Returns the label, else the name of the program, else that of the client.
    pub(crate) fn name(&self) -> &str {
        let Identity { label, program, client, .. } = &self.identity;
        let name = label.as_ref().or(program.as_ref()).or(client.as_ref());
        name.map_or("unknown process", String::as_str)
    }

    /// Returns the number of processes in the row.
    pub(crate) fn count(&self) -> usize {
        1 + self.later.len()
    }

    /// Returns whether a mark is about this process.
    pub(crate) fn is_marked_by(&self, mark: &Mark) -> bool {
        let same_host = mark.host.is_none() || mark.host == self.identity.host;
        let mut processes = self.later.iter().chain([&self.identity]);
        same_host && mark.pid.is_some() && processes.any(|process| process.pid == mark.pid)
    }
}

/// Puts threads of one host and label into one row, one after the other, if each is the only one of
/// its process: the runs of a job of cron.
fn share_rows(actors: Vec<Actor>) -> Vec<Actor> {
    let mut threads: HashMap<ProcessKey, usize> = HashMap::new();
    for actor in &actors {
        *threads.entry(actor.identity.key()).or_default() += 1;
    }
    let mut rows: Vec<Actor> = Vec::new();
    let mut places: HashMap<_, Vec<usize>> = HashMap::new();
    for mut actor in actors {
        let Identity { host, label, .. } = &actor.identity;
        if label.is_some() && threads[&actor.identity.key()] == 1 {
            let places = places.entry((host.clone(), label.clone())).or_default();
            let is_free = |place: &&usize| rows[**place].end() <= actor.start();
            if let Some(place) = places.iter().find(is_free) {
                rows[*place].append(&mut actor);
                continue;
            }
            places.push(rows.len());
        }
        rows.push(actor);
    }
    rows
}

impl Actor {
    fn start(&self) -> f64 {
        let noticed = self.noticed.iter().copied();
        self.spans.iter().map(|span| span.from).chain(noticed).fold(f64::INFINITY, f64::min)
    }

    fn end(&self) -> f64 {
        let noticed = self.noticed.iter().copied();
        self.spans.iter().map(|span| span.until).chain(noticed).fold(f64::NEG_INFINITY, f64::max)
    }

    fn append(&mut self, later: &mut Actor) {
        if self.identity.thread.is_none() {
            self.identity.thread.clone_from(&later.identity.thread);
        }
        self.later_processes.push(later.identity.clone());
        self.spans.append(&mut later.spans);
        self.unseen.append(&mut later.unseen);
        self.noticed.append(&mut later.noticed);
    }
}

/// Groups the threads by process, in the order of hosts, names and numbers; the rows of a process
/// are in the order of threads.
fn group(actors: Vec<Actor>) -> Vec<Process> {
    let mut processes: Vec<Process> = Vec::new();
    let mut places: HashMap<ProcessKey, usize> = HashMap::new();
    for actor in actors {
        let place = *places.entry(actor.identity.key()).or_insert_with(|| {
            processes.push(Process::default());
            processes.len() - 1
        });
        let process = &mut processes[place];
        process.identity.add(&actor.identity);
        process.later.extend_from_slice(&actor.later_processes);
        process.rows.push(Row::new(actor));
    }
    processes.sort_by(|a, b| {
        natural(text(&a.identity.host), text(&b.identity.host))
            .then_with(|| natural(a.name(), b.name()))
            .then_with(|| a.identity.pid.cmp(&b.identity.pid))
    });
    for Process { rows, .. } in &mut processes {
        rows.sort_by(|a, b| {
            let unknown_last = a.thread.is_empty().cmp(&b.thread.is_empty());
            unknown_last.then_with(|| natural(&a.thread, &b.thread))
        });
        if let [_, .., last] = &mut rows[..]
            && last.thread.is_empty()
        {
            last.thread = UNKNOWN.to_owned();
        }
    }
    processes
}

fn text(fact: &Option<String>) -> &str {
    fact.as_deref().unwrap_or_default()
}

/// Compares texts such that `worker-2` comes before `worker-10`.
fn natural(a: &str, b: &str) -> Ordering {
    parts(a).cmp(parts(b)).then_with(|| a.cmp(b))
}

/// Returns the digits and the other signs of a text as `(number, signs)`.
fn parts(text: &str) -> impl Iterator<Item = (u128, &str)> {
    let is_digit = |sign: char| sign.is_ascii_digit();
    text.split_inclusive(move |sign| !is_digit(sign)).map(move |part| {
        let digits = part.trim_end_matches(|sign| !is_digit(sign));
        (digits.parse().unwrap_or_default(), &part[digits.len()..])
    })
}

/// Distributes spans over lanes, the first lane that is free at the start of the span.
fn lanes(spans: Vec<Span>) -> Vec<Vec<Span>> {
    let mut lanes: Vec<Vec<Span>> = Vec::new();
    for span in spans {
        let is_free =
            |lane: &&mut Vec<Span>| lane.last().is_none_or(|last| last.until <= span.from);
        match lanes.iter_mut().find(is_free) {
            Some(lane) => lane.push(span),
            None => lanes.push(vec![span]),
        }
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::Happening;
    use crate::timeline::fixtures::{event, hold, of_thread, timeline};

    #[test]
    fn processes_and_threads_are_in_natural_order() {
        let events: Vec<LockEvent> = [(9, "w-10"), (9, "w-2"), (80, "main"), (8, "x")]
            .into_iter()
            .flat_map(|(pid, thread)| hold(f64::from(pid), 100.0, pid, thread))
            .collect();
        let timeline = timeline(&events);
        let threads = |process: &Process| {
            process.rows.iter().map(|row| row.thread.clone()).collect::<Vec<_>>().join(" ")
        };
        let rows: Vec<_> =
            timeline.processes.iter().map(|it| (it.identity.pid, threads(it))).collect();
        let expected = [(Some(8), "x"), (Some(9), "w-2 w-10"), (Some(80), "main")];
        assert_eq!(rows, expected.map(|(pid, threads)| (pid, threads.to_owned())));
    }

    #[test]
    fn unknown_threads_have_the_last_row_and_a_name_beside_others() {
        let alone = hold(0.0, 1.0, 8, "");
        let mut events = [hold(0.0, 1.0, 7, ""), hold(2.0, 3.0, 7, "x"), alone].concat();
        events
            .iter_mut()
            .for_each(|event| event.thread = event.thread.take().filter(|it| it == "x"));
        let timeline = timeline(&events);
        let threads: Vec<&str> = timeline.rows().map(|row| &*row.thread).collect();
        assert_eq!(threads, ["x", UNKNOWN, ""]);
    }

    #[test]
    fn numbers_in_texts_count() {
        let mut texts = ["b", "a10", "a9b", "a9", "", "10", "9", "a", "a9b2", "é"];
        texts.sort_by(|a, b| natural(a, b));
        assert_eq!(texts, ["", "a", "a9", "a9b", "a9b2", "a10", "b", "é", "9", "10"]);
    }

    #[test]
    fn holds_at_the_same_time_are_in_lanes() {
        let mut events: Vec<LockEvent> = hold(0.0, 4.0, 7, "x").into();
        for (from, until, name) in
            [(1.0, 2.0, "b"), (2.0, 3.0, "c"), (2.5, 5.0, "d"), (5.0, 6.0, "b")]
        {
            events
                .extend(hold(from, until, 7, "x").map(|it| LockEvent { name: name.into(), ..it }));
        }
        let timeline = timeline(&events);
        let row = &timeline.processes[0].rows[0];
        let lanes: Vec<Vec<f64>> =
            row.lanes.iter().map(|lane| lane.iter().map(|span| span.from).collect()).collect();
        assert_eq!(lanes, [vec![0.0, 5.0], vec![1.0, 2.0], vec![2.5]]);
    }

    #[test]
    fn a_process_has_its_label_else_its_program_else_its_client() {
        let mut events = vec![
            of_thread(0.0, Happening::Acquired, 1, "x"),
            of_thread(0.0, Happening::Acquired, 2, "x"),
            event(0.0, Happening::Acquired, "client:3"),
            event(0.0, Happening::Acquired, "other"),
        ];
        events[1].label = Some("label".into());
        let timeline = timeline(&events);
        let mut names: Vec<&str> = timeline.processes.iter().map(Process::name).collect();
        names.sort_unstable();
        assert_eq!(names, ["client", "label", "program", "unknown process"]);
    }

    #[test]
    fn the_runs_of_a_job_share_a_row_unless_they_overlap() {
        let run = |from: f64, pid| {
            hold(from, from + 2.0, pid, "main")
                .map(|it| LockEvent { label: Some("job".into()), ..it })
        };
        let service = [(20.0, "x"), (21.0, "y")].map(|(from, thread)| {
            hold(from, 30.0, 9, thread).map(|it| LockEvent { label: Some("job".into()), ..it })
        });
        let runs = [run(0.0, 1), run(2.0, 2), run(3.0, 3), run(5.0, 4)].concat();
        let timeline = timeline(&[runs, service.concat()].concat());
        let pids = |process: &Process| {
            let all = [&process.identity].into_iter().chain(&process.later);
            all.filter_map(|it| it.pid).collect::<Vec<_>>()
        };
        let found: Vec<_> = timeline.processes.iter().map(pids).collect();
        assert_eq!(found, [vec![1, 2, 4], vec![3], vec![9]]);
        let mark = Mark { at: 0.0, text: String::new(), host: None, pid: Some(4) };
        assert!(timeline.processes[0].is_marked_by(&mark));
    }

    #[test]
    fn the_number_of_rows_is_bounded() {
        let pids = 0..MOST_ROWS as u32 + 7;
        let events: Vec<LockEvent> =
            pids.flat_map(|pid| hold(f64::from(pid), 1e6, pid, "x")).collect();
        let timeline = timeline(&events);
        assert_eq!((timeline.rows().count(), timeline.left_out), (MOST_ROWS, 7));
    }

    #[test]
    fn a_mark_is_about_one_process() {
        let timeline = timeline(&[hold(0.0, 1.0, 7, "x"), hold(0.0, 1.0, 8, "x")].concat());
        let mark = |host: Option<&str>, pid| Mark {
            at: 0.0,
            text: String::new(),
            host: host.map(str::to_owned),
            pid,
        };
        let marked = |mark: &Mark| {
            let marked = timeline.processes.iter().filter(|it| it.is_marked_by(mark));
            marked.filter_map(|it| it.identity.pid).collect::<Vec<_>>()
        };
        assert_eq!(marked(&mark(None, Some(7))), [7]);
        assert_eq!(marked(&mark(Some("host"), Some(8))), [8]);
        assert!(marked(&mark(Some("elsewhere"), Some(7))).is_empty());
        assert!(marked(&mark(None, None)).is_empty());
    }
}
