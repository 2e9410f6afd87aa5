//! Tasks, processes, clocks, locks and channels of simulated machines.

use simulated::channel::{self, RecvTimeoutError, Select, TrySendError};
use simulated::sync::{Condvar, Mutex, OnceLock};
use simulated::world::{self, Outcome, Settings};
use simulated::{clock, local, thread};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

fn run(seed: u64, main: impl FnOnce() + 'static) -> Outcome {
    let settings = Settings { seed, preempted: 4, is_traced: true, longest: 1000 * SECOND };
    world::run(settings, main)
}

/// Runs a test with several seeds. Fails if it panics or gets stuck.
fn check(main: impl Fn() + Copy + 'static) {
    for seed in 0..50 {
        let outcome = run(seed, main);
        assert_eq!(outcome.stuck, None, "seed {seed}");
    }
}

/// Three tasks that add to a list under a mutex, with sleeps. Returns the order of the tasks.
fn order(seed: u64) -> (Vec<u32>, u64) {
    let list = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&list);
    let outcome = run(seed, move || {
        let order = Arc::new(Mutex::new(Vec::new()));
        thread::scope(|scope| {
            for task in 0..3 {
                let order = &order;
                scope.spawn(move || {
                    for _ in 0..3 {
                        order.lock().push(task);
                        thread::sleep(Duration::from_micros(world::random() % 10));
                    }
                });
            }
        });
        *list.borrow_mut() = std::mem::take(&mut *order.lock());
        world::note(|| "done".to_owned());
    });
    assert_eq!(outcome.stuck, None);
    (seen.take(), outcome.hash)
}

#[test]
fn a_seed_decides_everything_and_seeds_differ() {
    let all: Vec<_> = (0..20).map(order).collect();
    assert_eq!(all, (0..20).map(order).collect::<Vec<_>>(), "the same again");
    let orders: BTreeSet<_> = all.iter().map(|(order, _)| order).collect();
    assert!(orders.len() > 10, "{} orders", orders.len());
}

#[test]
fn a_mutex_admits_one_task_and_a_condition_wakes_its_waiters() {
    check(|| {
        let shared = Arc::new((Mutex::new(0), Condvar::default(), AtomicU32::new(0)));
        thread::scope(|scope| {
            for _ in 0..3 {
                let (value, changed, inside) = &*shared;
                scope.spawn(move || {
                    let mut value = value.lock();
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                    // Another task may run here.
                    drop(Mutex::new(()).lock());
                    inside.fetch_sub(1, Ordering::Relaxed);
                    *value += 1;
                    changed.notify_all();
                });
            }
            let (value, changed, _) = &*shared;
            let mut value = value.lock();
            while *value < 3 {
                changed.wait_for(&mut value, 100 * SECOND);
            }
        });
        assert!(world::now() < 1_000_000_000, "woken, and not by the time-out");
    });
}

#[test]
fn a_wait_ends_at_its_time_on_the_clock_of_its_process() {
    check(|| {
        for drift in [-10_000, 0, 10_000] {
            let process = world::start_process(drift);
            let begun = world::now();
            let sleeping = world::spawn_in(process, "sleeper", || {
                let (lock, condition) = (Mutex::new(()), Condvar::default());
                let begun = clock::since_boot();
                condition.wait_for(&mut lock.lock(), 10 * SECOND);
                clock::since_boot() - begun
            });
            let shown = sleeping.join().expect("no panic");
            assert!((10_000_000_000..10_001_000_000).contains(&shown), "{shown}");
            let passed = i64::try_from(world::now() - begun).expect("a short time");
            let expected = 10_000_000_000 - drift * 10_000;
            assert!((passed - expected).abs() < 5_000_000, "{passed} with {drift}");
        }
    });
}

#[test]
fn a_paused_process_does_nothing_and_goes_on_later() {
    check(|| {
        let process = world::start_process(0);
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let counting = world::spawn_in(process, "counter", move || {
            for _ in 0..100 {
                counted.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        thread::sleep(Duration::from_millis(20));
        world::pause(process);
        let before = count.load(Ordering::Relaxed);
        thread::sleep(SECOND);
        assert_eq!(count.load(Ordering::Relaxed), before);
        world::resume(process);
        counting.join().expect("no panic");
        assert_eq!(count.load(Ordering::Relaxed), 100);
    });
}

struct Dropped(Arc<AtomicU32>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_killed_process_runs_no_code_and_leaves_no_task() {
    check(|| {
        let process = world::start_process(0);
        let drops = Arc::new(AtomicU32::new(0));
        let guard = Dropped(Arc::clone(&drops));
        let killed = world::spawn_in(process, "victim", move || {
            let _guard = guard;
            thread::spawn(|| thread::sleep(100 * SECOND));
            thread::sleep(100 * SECOND);
        });
        thread::sleep(SECOND);
        assert_eq!(world::live_tasks(process), ["victim", "thread"]);
        let joining = thread::spawn(move || killed.join().is_err());
        thread::sleep(SECOND);
        world::kill(process);
        assert!(joining.join().expect("no panic"), "the join ends with an error");
        assert!(world::live_tasks(process).is_empty());
        assert_eq!(drops.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn a_panic_ends_its_task_and_is_the_result_of_the_join() {
    std::panic::set_hook(Box::new(|_| {}));
    check(|| {
        let panicked = thread::spawn(|| panic!("on purpose"));
        let panic = panicked.join().expect_err("it panicked");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
        let finished = thread::spawn(|| 7);
        assert_eq!(finished.join().expect("no panic"), 7);
    });
    drop(std::panic::take_hook());
}

#[test]
fn what_cannot_go_on_and_what_never_ends_is_told() {
    let stuck = run(1, || {
        let (_sender, receiver) = channel::unbounded::<()>();
        let _ = receiver.recv();
    });
    assert!(stuck.stuck.is_some_and(|text| text.contains("no task can run")));
    let endless = run(1, || {
        loop {
            thread::sleep(SECOND);
        }
    });
    assert!(endless.stuck.is_some_and(|text| text.contains("not ended")));
}

#[test]
fn channels_keep_their_order_their_bounds_and_tell_of_their_ends() {
    check(|| {
        let (sender, receiver) = channel::bounded(2);
        assert_eq!(sender.try_send(1), Ok(()));
        assert_eq!(sender.try_send(2), Ok(()));
        assert_eq!(sender.try_send(3), Err(TrySendError::Full(3)));
        let sending = thread::spawn(move || sender.send(3));
        thread::sleep(SECOND);
        assert_eq!(receiver.len(), 2);
        assert_eq!(receiver.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(sending.join().expect("no panic"), Ok(()));

        let (sender, receiver) = channel::unbounded::<u8>();
        assert_eq!(receiver.recv_timeout(SECOND), Err(RecvTimeoutError::Timeout));
        drop(receiver);
        assert!(sender.send(1).is_err());
    });
}

#[test]
fn a_channel_without_capacity_hands_over_only_to_a_waiting_receiver() {
    check(|| {
        let (sender, receiver) = channel::bounded(0);
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
        let receiving = thread::spawn(move || receiver.recv_timeout(10 * SECOND));
        let (_wake, woken) = channel::bounded::<()>(1);
        let mut select = Select::new();
        select.send(&sender);
        select.recv(&woken);
        let ready = select.select_timeout(20 * SECOND).expect("the receiver waits");
        assert_eq!(ready.index(), 0);
        ready.send(&sender, 2).expect("the receiver is there");
        assert_eq!(receiving.join().expect("no panic"), Ok(2));
    });
}

static PER_PROCESS: local::PerProcess<AtomicU32> = local::PerProcess::new(|| AtomicU32::new(0));

simulated::thread_local!(static OF_TASK: Cell<u32> = const { Cell::new(0) });

#[test]
fn statics_belong_to_a_process_and_locals_to_a_task() {
    check(|| {
        let count = || {
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        OF_TASK.set(OF_TASK.get() + 1);
                        assert_eq!(OF_TASK.get(), 1);
                        PER_PROCESS.fetch_add(1, Ordering::Relaxed)
                    });
                }
            });
            PER_PROCESS.load(Ordering::Relaxed)
        };
        let processes = [0, 0].map(world::start_process);
        let counts =
            processes.map(|it| world::spawn_in(it, "main", count).join().expect("no panic"));
        assert_eq!(counts, [2, 2], "also in the next run");
    });
}

#[test]
fn a_cell_is_set_once_by_one_task() {
    check(|| {
        let cell = Arc::new(OnceLock::new());
        let made = Arc::new(AtomicU32::new(0));
        thread::scope(|scope| {
            for value in 0..3 {
                let (cell, made) = (&cell, &made);
                scope.spawn(move || {
                    cell.get_or_init(|| {
                        made.fetch_add(1, Ordering::Relaxed);
                        thread::sleep(SECOND);
                        value
                    });
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
        assert!(cell.set(9).is_err() && cell.get().is_some());
    });
}
