//! One run: its tasks, its processes, its time, and what a test does to them.

use crate::clock::{START, nanos};
use crate::local::{AccessError, Values};
use crate::memory;
use crate::net;
use crate::thread::{JoinHandle, SCOPED};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// The size of a task's stack. Only the pages that are used take memory.
const STACK: usize = 512 * 1024;

/// The time that a reading of a clock takes, in nanoseconds.
const READING: u64 = 1_000;

/// A task that gives way loses the processor for a while in one of this many cases: for the first
/// span in nanoseconds, doubled up to that many times.
const DESCHEDULED: (u64, u64, u64) = (16, 10_000, 11);

/// The moment on every machine at which a run begins, in nanoseconds since its start.
const BOOTED: u64 = 1_000_000_000;

/// The number of a task in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskId(usize);

/// The number of a process in its run. The first process runs the test itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(usize);

impl ProcessId {
    /// The process of the test, whose clock is true.
    pub const FIRST: ProcessId = ProcessId(0);

    pub fn index(self) -> usize {
        self.0
    }

    /// Returns the machine on which the process runs: one of two.
    pub fn machine(self) -> u32 {
        u32::from(self.0 % 2 == 1)
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{}", self.0)
    }
}

/// What a run is made from.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Decides everything.
    pub seed: u64,
    /// A task gives way at one of this many steps on a mutex or a channel; 0 for never.
    pub preempted: u64,
    /// Whether the run records what happens, as text.
    pub is_traced: bool,
    /// The virtual time after which the run counts as endless.
    pub longest: Duration,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// A hash of all bytes on the network and of their moments.
    pub hash: u64,
    /// The virtual time of the run.
    pub span: Duration,
    pub counts: Counts,
    /// What happened, if the run was traced: moments in nanoseconds, and texts.
    pub trace: Vec<(u64, String)>,
    /// Why the test itself did not end, if it did not.
    pub stuck: Option<String>,
}

/// How often things happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub switches: u64,
    pub messages: u64,
    pub tasks: u64,
    /// Faults of all sorts, one per act: a pause, a kill, a cut, a message that was held back, ..
    pub faults: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runnable,
    Parked,
    /// Without the processor for a while, in the middle of its work.
    Descheduled,
    Running,
    Ended,
}

struct Task {
    name: String,
    process: ProcessId,
    coroutine: Option<Coroutine<(), (), ()>>,
    yielder: *const Yielder<(), ()>,
    state: State,
    /// An unpark that came before the park.
    is_unparked: bool,
    /// Counts the parks, so that the timer of an earlier one wakes nobody.
    parks: u64,
    /// `None` once the task has ended.
    values: Option<Values>,
    joiners: Vec<TaskId>,
}

struct Process {
    is_paused: bool,
    is_dead: bool,
    /// The tasks that could run if the process were not paused.
    held: Vec<TaskId>,
    values: Values,
    /// The tasks without those of scopes, and the most of them at once.
    tasks: usize,
    most_tasks: usize,
    /// By how many millionths the clock is fast.
    drift: i64,
    /// How far the time of day is off, in microseconds.
    wall_offset: i64,
}

enum Event {
    Wake(TaskId, u64),
    Net(net::Event),
    Call(Box<dyn FnOnce()>),
}

/// An event with its moment. Events of the same moment happen in the order of their making.
struct Timed {
    at: u64,
    number: u64,
    event: Event,
}

impl Timed {
    fn key(&self) -> (u64, u64) {
        (self.at, self.number)
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Timed) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Timed) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    fn cmp(&self, other: &Timed) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Everything of one run.
pub(crate) struct World {
    now: u64,
    numbers: u64,
    random: u64,
    tasks: Vec<Task>,
    runnable: Vec<TaskId>,
    events: BinaryHeap<Reverse<Timed>>,
    /// The task that runs; `None` while an event happens.
    current: Option<TaskId>,
    processes: Vec<Process>,
    stacks: Vec<DefaultStack>,
    pub(crate) net: net::Net,
    hash: u64,
    trace: Option<Vec<(u64, String)>>,
    pub(crate) counts: Counts,
    preempted: u64,
}

std::thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Stacks of ended tasks, for the next run.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Uses the world of the run, whose memory belongs to no process. Must not be nested.
pub(crate) fn with<R>(f: impl FnOnce(&mut World) -> R) -> R {
    let uses = |world: &RefCell<Option<World>>| {
        f(world.borrow_mut().as_mut().expect("called outside of a run"))
    };
    memory::of_nobody(|| WORLD.with(uses))
}

impl World {
    fn new(settings: &Settings) -> World {
        World {
            now: 0,
            numbers: 0,
            random: settings.seed,
            tasks: Vec::new(),
            runnable: Vec::new(),
            events: BinaryHeap::new(),
            current: None,
            processes: Vec::new(),
            stacks: STACKS.take(),
            net: net::Net::default(),
            hash: 0xcbf2_9ce4_8422_2325,
            trace: settings.is_traced.then(Vec::new),
            counts: Counts::default(),
            preempted: settings.preempted,
        }
    }

    /// Returns a random number: SplitMix64.
    pub(crate) fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.random() % bound.max(1)
    }

    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Adds bytes to the hash of the run, and a text to its trace.
    pub(crate) fn note(&mut self, bytes: &[u8], text: impl FnOnce(&World) -> String) {
        // FNV-1a.
        let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.hash = self.now.to_le_bytes().iter().chain(bytes).fold(self.hash, mix);
        if let Some(mut trace) = self.trace.take() {
            trace.push((self.now, text(self)));
            self.trace = Some(trace);
        }
    }

    fn event(&mut self, at: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Reverse(Timed { at: at.max(self.now), number: self.numbers, event }));
    }

    pub(crate) fn net_event(&mut self, at: u64, event: net::Event) {
        self.event(at, Event::Net(event));
    }

    pub(crate) fn current(&self) -> TaskId {
        self.current.expect("only a task may block")
    }

    pub(crate) fn process(&self) -> ProcessId {
        self.current.map_or(ProcessId::FIRST, |task| self.tasks[task.0].process)
    }

    /// Returns what the clock of a process shows now.
    pub(crate) fn clock_of(&self, process: ProcessId) -> u64 {
        let now = i128::from(self.now);
        let drift = now * i128::from(self.processes[process.0].drift) / 1_000_000;
        BOOTED + u64::try_from(now + drift).expect("a small drift")
    }

    /// Returns the first moment at which the clock of a process shows `shown` or more.
    fn moment_of(&self, process: ProcessId, shown: u64) -> u64 {
        let drift = 1_000_000 + i128::from(self.processes[process.0].drift);
        let since = i128::from(shown.saturating_sub(BOOTED));
        u64::try_from(since * 1_000_000 / drift + 1).unwrap_or(u64::MAX)
    }

    fn make_runnable(&mut self, task: TaskId) {
        let process = &mut self.processes[self.tasks[task.0].process.0];
        if process.is_dead {
            return;
        }
        self.tasks[task.0].state = State::Runnable;
        if process.is_paused {
            process.held.push(task);
        } else {
            self.runnable.push(task);
        }
    }

    pub(crate) fn unpark(&mut self, task: TaskId) {
        match self.tasks[task.0].state {
            State::Parked => self.make_runnable(task),
            _ => self.tasks[task.0].is_unparked = true,
        }
    }

    fn add_process(&mut self, drift: i64) -> ProcessId {
        self.processes.push(Process {
            is_paused: false,
            is_dead: false,
            held: Vec::new(),
            values: Values::default(),
            tasks: 0,
            most_tasks: 0,
            drift,
            wall_offset: 0,
        });
        ProcessId(self.processes.len() - 1)
    }

    fn add_task(&mut self, process: ProcessId, name: &str, run: Box<dyn FnOnce()>) -> TaskId {
        let id = TaskId(self.tasks.len());
        let stack = self.stacks.pop();
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let coroutine = Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
            with(|world| world.tasks[id.0].yielder = yielder);
            run();
            // As those of a thread, they are dropped by the task itself.
            drop(with(|world| world.tasks[id.0].values.take()));
        });
        self.tasks.push(Task {
            name: name.to_owned(),
            process,
            coroutine: Some(coroutine),
            yielder: std::ptr::null(),
            state: State::Runnable,
            is_unparked: false,
            parks: 0,
            values: Some(Values::default()),
            joiners: Vec::new(),
        });
        self.counts.tasks += 1;
        if name != SCOPED {
            let process = &mut self.processes[process.0];
            process.tasks += 1;
            process.most_tasks = process.most_tasks.max(process.tasks);
        }
        self.make_runnable(id);
        id
    }

    /// Returns the name of the current task and its process, for the trace.
    pub(crate) fn who(&self) -> String {
        match self.current {
            Some(task) => {
                format!("{} {}", self.tasks[task.0].process, self.tasks[task.0].name)
            }
            None => "-".to_owned(),
        }
    }
}

/// Gives the processor back to the scheduler.
fn suspend() {
    let yielder = with(|world| {
        world.counts.switches += 1;
        let task = world.current();
        world.tasks[task.0].yielder
    });
    // SAFETY: the yielder lives on the stack on which this code runs.
    unsafe { &*yielder }.suspend(());
}

/// Blocks the current task until it is unparked, or until the clock of its process shows `end`.
pub(crate) fn park(end: Option<u64>) {
    let sleeps = with(|world| {
        let id = world.current();
        if std::mem::take(&mut world.tasks[id.0].is_unparked) {
            return false;
        }
        let task = &mut world.tasks[id.0];
        task.parks += 1;
        task.state = State::Parked;
        if let Some(end) = end.filter(|end| *end < u64::MAX) {
            let (process, parks) = (task.process, task.parks);
            let at = world.moment_of(process, end);
            world.event(at, Event::Wake(id, parks));
        }
        true
    });
    if sleeps {
        suspend();
    }
}

/// Lets other tasks run, if the random numbers say so.
pub(crate) fn maybe_give_way() {
    let gives_way = with(|world| {
        let Some(task) = world.current else { return false };
        let gives_way = world.preempted > 0 && world.below(world.preempted) == 0;
        let (one_of, span, doublings) = DESCHEDULED;
        if gives_way && world.below(one_of) == 0 {
            // Events happen meanwhile, faults too.
            let span = span << world.below(doublings + 1);
            let it = &mut world.tasks[task.0];
            (it.state, it.parks) = (State::Descheduled, it.parks + 1);
            let parks = it.parks;
            world.event(world.now + span, Event::Wake(task, parks));
        } else if gives_way {
            world.make_runnable(task);
        }
        gives_way
    });
    if gives_way {
        suspend();
    }
}

pub(crate) fn unpark(task: TaskId) {
    with(|world| world.unpark(task));
}

pub(crate) fn current() -> TaskId {
    with(|world| world.current())
}

pub(crate) fn task_name() -> String {
    with(|world| world.tasks[world.current().0].name.clone())
}

pub(crate) fn task_has_ended(task: TaskId) -> bool {
    with(|world| world.tasks[task.0].state == State::Ended)
}

/// Blocks the current task until another one has ended.
pub(crate) fn wait_for_end(task: TaskId) {
    while !task_has_ended(task) {
        with(|world| {
            let joiner = world.current();
            world.tasks[task.0].joiners.push(joiner);
        });
        park(None);
    }
}

pub(crate) fn read_clock() -> u64 {
    with(|world| {
        world.now += READING;
        world.clock_of(world.process())
    })
}

/// Returns the clock of the current process without letting time pass.
pub(crate) fn peek_clock() -> u64 {
    with(|world| world.clock_of(world.process()))
}

pub(crate) fn read_wall_clock() -> i64 {
    with(|world| {
        world.now += READING;
        let process = world.process();
        let since = (world.clock_of(process) - BOOTED) / 1_000;
        START + i64::try_from(since).expect("a short run") + world.processes[process.0].wall_offset
    })
}

pub(crate) fn task_value(key: usize) -> Result<Option<Rc<dyn Any>>, AccessError> {
    with(|world| {
        let values = world.tasks[world.current().0].values.as_ref().ok_or(AccessError)?;
        Ok(values.get(&key).cloned())
    })
}

pub(crate) fn set_task_value(key: usize, value: Rc<dyn Any>) -> Result<(), AccessError> {
    let former = with(|world| {
        let task = world.current();
        let values = world.tasks[task.0].values.as_mut().ok_or(AccessError)?;
        Ok(values.insert(key, value))
    })?;
    drop(former);
    Ok(())
}

pub(crate) fn process_value(key: usize) -> Option<Rc<dyn Any>> {
    with(|world| world.processes[world.process().0].values.get(&key).cloned())
}

pub(crate) fn set_process_value(key: usize, value: Rc<dyn Any>) {
    with(|world| {
        let process = world.process();
        world.processes[process.0].values.insert(key, value)
    });
}

pub(crate) fn spawn(process: ProcessId, name: &str, run: Box<dyn FnOnce()>) -> TaskId {
    with(|world| world.add_task(process, name, run))
}

// --- what a test does

/// Returns the process of the current task.
pub fn current_process() -> ProcessId {
    with(|world| world.process())
}

/// Returns the nanoseconds since the start of the run, on a clock that is true.
pub fn now() -> u64 {
    with(|world| world.now)
}

/// Returns a random number that follows from the seed.
pub fn random() -> u64 {
    with(World::random)
}

/// Adds a line to the trace of the run. Its hash changes with the line's moment.
pub fn note(text: impl FnOnce() -> String) {
    // The text may ask the world something.
    let text = || if with(|world| world.trace.is_some()) { text() } else { String::new() };
    let text = memory::of_nobody(text);
    with(|world| world.note(&[], |_| text));
}

/// Counts a fault, and notes it.
pub fn note_fault(text: impl FnOnce() -> String) {
    with(|world| world.counts.faults += 1);
    note(text);
}

/// Calls `act` in `span` from now. Events do not block.
pub fn after(span: Duration, act: impl FnOnce() + 'static) {
    with(|world| world.event(world.now.saturating_add(nanos(span)), Event::Call(Box::new(act))));
}

/// Adds a process whose clock is fast by `drift` millionths.
pub fn start_process(drift: i64) -> ProcessId {
    with(|world| world.add_process(drift))
}

/// Starts a task of a process.
pub fn spawn_in<T: 'static>(
    process: ProcessId,
    name: &str,
    run: impl FnOnce() -> T + 'static,
) -> JoinHandle<T> {
    JoinHandle::start(process, name, run)
}

/// Lets no task of a process run until [`resume`]. Its connections stay open.
pub fn pause(process: ProcessId) {
    with(|world| {
        world.processes[process.0].is_paused = true;
        let World { runnable, tasks, processes, .. } = world;
        let held = runnable.extract_if(.., |task| tasks[task.0].process == process);
        processes[process.0].held.extend(held);
    });
    note_fault(|| format!("{process} is paused"));
}

/// Ends a pause.
pub fn resume(process: ProcessId) {
    with(|world| {
        let process = &mut world.processes[process.0];
        process.is_paused = false;
        let held = std::mem::take(&mut process.held);
        world.runnable.extend(held);
    });
    note(|| format!("{process} goes on"));
}

/// Moves the time of day of a process. Its other clock stays.
pub fn step_wall_clock(process: ProcessId, span: i64) {
    with(|world| world.processes[process.0].wall_offset += span);
    note_fault(|| format!("the time of day of {process} steps by {span} us"));
}

/// Ends a process. No code of it runs any more, not even a destructor, and its connections end.
pub fn kill(process: ProcessId) {
    note_fault(|| format!("{process} is killed"));
    end_process(process);
    net::end_connections_of(process);
}

/// Returns the process with this index, if there has been one.
pub(crate) fn process_with_index(index: u32) -> Option<ProcessId> {
    let process = ProcessId(index as usize);
    with(|world| (process.0 < world.processes.len()).then_some(process))
}

/// Returns whether a process has been killed, or has ended.
pub(crate) fn is_dead(process: ProcessId) -> bool {
    with(|world| world.processes[process.0].is_dead)
}

fn end_process(process: ProcessId) {
    let (coroutines, left) = with(|world| {
        let World { tasks, processes, runnable, .. } = world;
        processes[process.0].is_dead = true;
        processes[process.0].held.clear();
        runnable.retain(|task| tasks[task.0].process != process);
        let (mut coroutines, mut left, mut joiners) = (Vec::new(), Vec::new(), Vec::new());
        for task in tasks.iter_mut().filter(|task| task.process == process) {
            task.state = State::Ended;
            coroutines.extend(task.coroutine.take());
            left.push(task.values.take());
            joiners.append(&mut task.joiners);
        }
        for joiner in joiners {
            if world.tasks[joiner.0].process != process {
                world.unpark(joiner);
            }
        }
        (coroutines, (left, std::mem::take(&mut world.processes[process.0].values)))
    });
    // No destructor of a killed process runs.
    std::mem::forget(left);
    for coroutine in coroutines {
        abandon(coroutine);
    }
}

/// Ends a coroutine without its destructors, and keeps its stack for another one.
fn abandon(mut coroutine: Coroutine<(), (), ()>) {
    if coroutine.started() && !coroutine.done() {
        // SAFETY: what is on the stack is leaked, and nothing outside refers to it: tasks refer to
        // the stacks of other tasks only within their process, whose tasks all end together.
        unsafe { coroutine.force_reset() };
    }
    if coroutine.done() {
        let stack = coroutine.into_stack();
        with(|world| world.stacks.push(stack));
    } else {
        // The coroutine has not begun: its drop would drop what it was to run.
        std::mem::forget(coroutine);
    }
}

/// Runs `main` as the first task of the first process until it returns, and everything with it.
pub fn run(settings: Settings, main: impl FnOnce() + 'static) -> Outcome {
    memory::begin_run();
    let former = WORLD.with(|world| world.borrow_mut().replace(World::new(&settings)));
    assert!(former.is_none(), "runs do not nest");
    let first = with(|world| world.add_process(0));
    let main = spawn_in(first, "test", main);
    let end = nanos(settings.longest);
    let stuck = loop {
        if task_has_ended(main.task()) {
            break main.join().err().map(|panic| format!("the test panicked: {}", words(&*panic)));
        }
        if end < now() {
            break Some(format!("the run has not ended by {:?}", settings.longest));
        }
        if !step() {
            break Some(format!("no task can run: {:?}", waiting_tasks()));
        }
    };
    let count = with(|world| world.processes.len());
    for process in 0..count {
        end_process(ProcessId(process));
    }
    drop(with(|world| std::mem::take(&mut world.net)));
    drop(with(|world| std::mem::take(&mut world.events)));
    let world = WORLD.with(|world| world.borrow_mut().take()).expect("the run has a world");
    STACKS.set(world.stacks);
    Outcome {
        hash: world.hash,
        span: Duration::from_nanos(world.now),
        counts: world.counts,
        trace: world.trace.unwrap_or_default(),
        stuck,
    }
}

/// Returns the text of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

/// Returns the names of the tasks of a process that have not ended.
pub fn live_tasks(process: ProcessId) -> Vec<String> {
    with(|world| {
        let tasks = world.tasks.iter().filter(|task| task.process == process);
        let live = tasks.filter(|task| task.state != State::Ended);
        live.map(|task| task.name.clone()).collect()
    })
}

/// Returns the most tasks that a process had at once, without those of scopes.
pub fn most_tasks(process: ProcessId) -> usize {
    with(|world| world.processes[process.0].most_tasks)
}

fn waiting_tasks() -> Vec<String> {
    with(|world| {
        let waiting = world.tasks.iter().filter(|task| task.state != State::Ended);
        waiting.map(|task| format!("{} {}", task.process, task.name)).collect()
    })
}

/// Runs a task that can run, chosen at random, or lets the next event happen.
///
/// Returns whether there was one.
fn step() -> bool {
    let task = with(|world| {
        let count = world.runnable.len() as u64;
        let at = if count > 1 { world.below(count) } else { 0 };
        (count > 0).then(|| world.runnable.swap_remove(at as usize))
    });
    match task {
        Some(task) => {
            resume_task(task);
            true
        }
        None => next_event(),
    }
}

fn resume_task(id: TaskId) {
    let mut coroutine = with(|world| {
        world.current = Some(id);
        let task = &mut world.tasks[id.0];
        task.state = State::Running;
        task.coroutine.take().expect("a task that can run has a stack")
    });
    memory::set_owner(with(|world| world.process()).index());
    let outcome = coroutine.resume(());
    memory::set_owner(ProcessId::FIRST.index());
    with(|world| world.current = None);
    if matches!(outcome, CoroutineResult::Return(())) {
        return with(|world| {
            world.stacks.push(coroutine.into_stack());
            let task = &mut world.tasks[id.0];
            task.state = State::Ended;
            world.processes[task.process.0].tasks -= usize::from(task.name != SCOPED);
            for joiner in std::mem::take(&mut world.tasks[id.0].joiners) {
                world.unpark(joiner);
            }
        });
    }
    let killed = with(|world| {
        // A task may kill its own process.
        let is_dead = world.processes[world.tasks[id.0].process.0].is_dead;
        if is_dead {
            return Some(coroutine);
        }
        world.tasks[id.0].coroutine = Some(coroutine);
        None
    });
    if let Some(coroutine) = killed {
        abandon(coroutine);
    }
}

/// Lets the next event happen. Returns whether there was one.
fn next_event() -> bool {
    let event = with(|world| {
        let Reverse(Timed { at, event, .. }) = world.events.pop()?;
        world.now = world.now.max(at);
        Some(event)
    });
    match event {
        None => return false,
        Some(Event::Wake(task, parks)) => with(|world| {
            let it = &world.tasks[task.0];
            let sleeps = matches!(it.state, State::Parked | State::Descheduled);
            if sleeps && it.parks == parks {
                world.make_runnable(task);
            }
        }),
        Some(Event::Net(event)) => net::happen(event),
        Some(Event::Call(act)) => act(),
    }
    true
}
