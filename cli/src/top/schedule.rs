//! [`Schedule`]: the times of looks. Pure. Bounds the load of the servers.
//!
//! The thread that looks has three tasks. It *searches* all locks step by step. It looks at the
//! *visible* rows by name, and more often at the *followed* lock. After each look the server has a
//! rest ([`rest_after`]). So each task takes 5 % of a server's time at most,
//! and a long search lasts longer instead of taking more.

use std::time::{Duration, Instant};

use crate::observe::rest_after;

/// The number of round trips of a look, at least.
const ROUND_TRIPS: u32 = 4;

/// The shortest time between two looks by name.
const BY_NAME: Duration = Duration::from_millis(200);

/// The pause after a failed look.
const AFTER_FAILURE: Duration = Duration::from_millis(500);

/// The times of a look, and the length of the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) begun: Instant,
    pub(crate) ended: Instant,
    /// The shortest time between a request and its reply.
    pub(crate) round_trip: Duration,
}

impl Cost {
    /// Returns the duration of the look.
    pub(crate) fn took(self) -> Duration {
        self.ended.saturating_duration_since(self.begun)
    }

    /// Returns the end of the rest that the server has after the look.
    ///
    /// The server has worked no longer than the look took, and not while its requests and replies
    /// were on a long line. At least a tenth of the look counts as work.
    fn rested(self) -> Instant {
        let line = self.round_trip.saturating_mul(ROUND_TRIPS);
        let work = self.took().saturating_sub(line).max(self.took() / 10);
        self.ended + rest_after(work)
    }
}

/// A task of the thread that looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// The next step of a search. Begins a search if none runs.
    Search,
    Visible,
    Followed,
}

/// The times of the next looks.
#[derive(Debug)]
pub(crate) struct Schedule {
    every: Duration,
    search: Instant,
    visible: Instant,
    followed: Instant,
    /// The earliest time of the next look at the visible rows.
    earliest: Instant,
    /// The begin of the present search, or of the last one.
    begun: Instant,
    /// Whether no search has ended yet. The first search has no rests: the user waits for it.
    is_first: bool,
}

impl Schedule {
    pub(crate) fn new(every: Duration, now: Instant) -> Schedule {
        let later = now + every;
        Schedule {
            every,
            search: now,
            visible: later,
            followed: now,
            earliest: now,
            begun: now,
            is_first: true,
        }
    }

    /// Returns the next task and its time. `is_following`: a lock is followed.
    pub(crate) fn next(&self, is_following: bool) -> (Task, Instant) {
        let search = (Task::Search, self.search);
        let visible = (Task::Visible, self.visible);
        let followed = is_following.then_some((Task::Followed, self.followed));
        let tasks = [followed, Some(visible), Some(search)];
        tasks.into_iter().flatten().min_by_key(|(_, due)| *due).unwrap_or(search)
    }

    /// Notes the begin of a search.
    pub(crate) fn search_begins(&mut self, now: Instant) {
        self.begun = now;
    }

    /// Notes a step of a search that goes on.
    pub(crate) fn searched_step(&mut self, cost: Cost) {
        self.search = if self.is_first { cost.ended } else { cost.rested() };
    }

    /// Notes the last step of a search. Returns the time from its begin to that of the next one.
    pub(crate) fn search_ends(&mut self, cost: Cost) -> Duration {
        self.is_first = false;
        self.search = (self.begun + self.every).max(cost.rested());
        let every = self.search - self.begun;
        if every <= self.every + self.every / 4 {
            // The next search sees the visible rows too.
            self.visible = self.search + self.every;
        }
        every
    }

    /// Notes a look at the visible rows.
    pub(crate) fn looked_at_visible(&mut self, cost: Cost) {
        self.earliest = (cost.begun + BY_NAME).max(cost.rested());
        self.visible = self.earliest.max(cost.begun + self.every);
    }

    /// Notes a look at the followed lock.
    pub(crate) fn looked_at_followed(&mut self, cost: Cost) {
        self.followed = (cost.begun + BY_NAME.min(self.every)).max(cost.rested());
    }

    /// Notes a failure: the next look at anything comes after a pause.
    pub(crate) fn failed(&mut self, ended: Instant) {
        let next = ended + AFTER_FAILURE.min(self.every);
        for due in [&mut self.search, &mut self.visible, &mut self.followed] {
            *due = next.max(*due);
        }
    }

    /// Makes the looks by name due soon: the user has chosen other rows.
    pub(crate) fn hurry(&mut self, now: Instant) {
        self.followed = now;
        self.visible = self.visible.min(now.max(self.earliest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Returns the cost of a look that took this long, at the due time of the task.
    fn cost(due: Instant, took: Duration, round_trip: Duration) -> Cost {
        Cost { begun: due, ended: due + took, round_trip }
    }

    /// Runs searches of `steps` steps, and all other looks, for ten minutes.
    ///
    /// Returns the work of each task, and the last time from search to search.
    fn run(steps: u32, took: Duration, round_trip: Duration) -> ([Duration; 3], Duration) {
        let begin = Instant::now();
        let mut schedule = Schedule::new(SECOND, begin);
        let (mut now, mut step) = (begin, 0);
        let (mut work, mut every) = ([Duration::ZERO; 3], Duration::ZERO);
        while now < begin + 600 * SECOND {
            let (task, due) = schedule.next(true);
            let cost = cost(now.max(due), took, round_trip);
            now = cost.ended;
            match task {
                Task::Search if step == 0 => schedule.search_begins(cost.begun),
                _ => {}
            }
            match task {
                Task::Search if step + 1 < steps => schedule.searched_step(cost),
                Task::Search => every = schedule.search_ends(cost),
                Task::Visible => schedule.looked_at_visible(cost),
                Task::Followed => schedule.looked_at_followed(cost),
            }
            let is_first = task == Task::Search && now < begin + steps * took + SECOND / 2;
            if task == Task::Search {
                step = (step + 1) % steps;
            }
            if !is_first {
                work[task as usize] += cost.took();
            }
        }
        (work, every)
    }

    #[test]
    fn few_locks_are_searched_at_each_interval_and_not_looked_at_besides() {
        let ([search, visible, followed], every) = run(1, millis(2), Duration::ZERO);
        assert_eq!(every, SECOND);
        assert!(search >= millis(2 * 590) && visible.is_zero(), "{search:?}, {visible:?}");
        assert!(followed >= millis(2 * 2900), "five times a second: {followed:?}");
    }

    #[test]
    fn each_task_takes_a_twentieth_of_the_time() {
        for (steps, took) in [(1, millis(2)), (300, millis(2)), (300, millis(8)), (10, millis(300))]
        {
            let (work, every) = run(steps, took, Duration::ZERO);
            // The looks at the end have no rest within the ten minutes.
            let most = 30 * SECOND + 2 * took;
            assert!(
                work.iter().all(|work| *work <= most),
                "{work:?} for {steps} steps of {took:?}"
            );
            assert!(every >= SECOND.max(took * steps * 19), "{every:?}");
        }
    }

    #[test]
    fn a_long_line_is_no_work_of_the_server() {
        let (_, every) = run(100, millis(203), millis(50));
        // The work counts as a tenth of a step, and the other looks have their time too.
        assert!(every < 100 * 3 * millis(203 + 20 * 20), "{every:?}");
    }

    #[test]
    fn the_first_search_has_no_rests() {
        let now = Instant::now();
        let mut schedule = Schedule::new(SECOND, now);
        assert_eq!(schedule.next(false), (Task::Search, now));
        schedule.search_begins(now);
        schedule.searched_step(cost(now, millis(10), Duration::ZERO));
        assert_eq!(schedule.next(false), (Task::Search, now + millis(10)));
    }

    #[test]
    fn a_failure_is_followed_by_a_pause() {
        let now = Instant::now();
        let mut schedule = Schedule::new(SECOND, now);
        schedule.failed(now);
        assert_eq!(schedule.next(true).1, now + AFTER_FAILURE);
    }

    #[test]
    fn other_visible_rows_are_looked_at_soon() {
        let now = Instant::now();
        let mut schedule = Schedule::new(10 * SECOND, now);
        schedule.search_begins(now);
        schedule.search_ends(cost(now, millis(1), Duration::ZERO));
        schedule.looked_at_visible(cost(now, millis(1), Duration::ZERO));
        schedule.hurry(now + SECOND);
        assert_eq!(schedule.next(false), (Task::Visible, now + SECOND));
        schedule.looked_at_visible(cost(now + SECOND, millis(1), Duration::ZERO));
        schedule.hurry(now + SECOND + millis(2));
        assert_eq!(schedule.next(false).1, now + SECOND + BY_NAME);
    }
}
