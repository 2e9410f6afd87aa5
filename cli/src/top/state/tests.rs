use super::*;
use crate::observe::event::Happening;
use crate::observe::snapshot::Caller;

/// A state with a clock that the test moves.
struct Stage {
    state: State,
    now: Now,
}

impl Stage {
    fn new() -> Stage {
        let state = State::new("redis.example".to_owned(), Duration::from_secs(1), SortBy::Name);
        Stage { state, now: Now { instant: Instant::now(), wall: 1000.0 } }
    }

    /// Returns a state that has found these locks.
    fn with(names: &[&str]) -> Stage {
        let mut stage = Stage::new();
        stage.find(names.iter().map(|name| held(name, 1000.0)));
        stage
    }

    fn find(&mut self, sights: impl IntoIterator<Item = Sight>) {
        let sights = sights.into_iter().collect();
        let finding = Finding { at: self.now.instant, took: Duration::ZERO, sights, missing: None };
        self.apply(Report::Found(finding));
    }

    fn apply(&mut self, report: Report) {
        self.state.apply(report, self.now);
    }

    fn pass(&mut self, seconds: u64) {
        self.now.instant += Duration::from_secs(seconds);
        self.now.wall += seconds as f64;
    }

    fn perform(&mut self, actions: &[Action]) {
        actions.iter().for_each(|action| self.state.perform(*action, self.now));
    }

    fn press(&mut self, text: &str) {
        text.chars().for_each(|sign| self.perform(&[Action::Type(sign)]));
    }

    fn rows(&mut self) -> Vec<String> {
        self.state.scroll(100);
        self.state.visible().to_vec()
    }
}

fn held(name: &str, since: f64) -> Sight {
    let mut sight = Sight::free(name);
    sight.lock.kind = "lock".to_owned();
    sight.lock.holders = vec![Caller { since: Some(since), ..Caller::default() }];
    sight.remaining = Some(Duration::from_secs(30));
    sight
}

#[test]
fn each_order_has_its_first_row_and_can_be_reversed() {
    let mut stage = Stage::new();
    let counted = |mut sight: Sight, acquired| {
        sight.lock.holders[0].acquired = Some(acquired);
        sight.lock.holders[0].client_id = Some(sight.lock.name.clone());
        sight
    };
    let mut waited = held("waited", 998.0);
    waited.lock.processes = 2;
    let soon = Sight { remaining: Some(Duration::from_secs(3)), ..held("soon", 999.0) };
    let sights = [held("old", 900.0), waited, soon, counted(held("busy", 999.5), 1)];
    stage.find(sights.clone());
    stage.pass(1);
    stage.find(sights.into_iter().take(3).chain([counted(held("busy", 999.5), 9)]));
    for (sort, first) in [
        (SortBy::Name, "busy"),
        (SortBy::Age, "old"),
        (SortBy::Left, "soon"),
        (SortBy::Waiters, "waited"),
        (SortBy::Handoffs, "busy"),
    ] {
        stage.perform(&[Action::SortBy(sort)]);
        assert_eq!(stage.rows()[0], first, "{sort:?}");
        stage.perform(&[Action::Reverse]);
        assert_eq!(stage.rows()[3], first, "{sort:?}");
        stage.perform(&[Action::Reverse]);
    }
    stage.perform(&[Action::SortBy(SortBy::Handoffs), Action::SortNext]);
    assert_eq!(stage.state.sort, SortBy::Name, "after the last comes the first");
    stage.perform(&[Action::SortPrevious]);
    assert_eq!(stage.state.sort, SortBy::Handoffs);
}

#[test]
fn a_filter_is_typed_kept_and_dropped() {
    let mut stage = Stage::with(&["orders:1", "orders:2", "users:1"]);
    stage.perform(&[Action::EditFilter]);
    stage.press("ORDx");
    assert!(stage.rows().is_empty());
    stage.perform(&[Action::Erase]);
    assert_eq!(stage.rows(), ["orders:1", "orders:2"]);
    stage.perform(&[Action::Accept]);
    assert_eq!((stage.state.mode, stage.rows().len()), (Mode::Table, 2));
    assert_eq!(stage.state.totals().locks, 3, "the header counts all");
    stage.perform(&[Action::Back]);
    assert_eq!(stage.rows().len(), 3);
}

#[test]
fn the_selection_stays_with_its_lock_and_on_the_screen() {
    let mut stage = Stage::with(&["a", "b", "c", "d", "e"]);
    let down = Action::Move(Motion::Down);
    assert_eq!(stage.state.scroll(3), 0..3);
    assert_eq!(stage.state.selected(), Some("a"));
    stage.perform(&[down, down, down]);
    assert_eq!((stage.state.scroll(3), stage.state.selected()), (1..4, Some("d")));
    stage.find([held("aa", 1000.0)]);
    assert_eq!((stage.state.scroll(3), stage.state.selected()), (2..5, Some("d")));
    stage.perform(&[Action::Move(Motion::PageUp)]);
    assert_eq!((stage.state.scroll(3), stage.state.selected()), (1..4, Some("aa")));
    stage.perform(&[Action::Move(Motion::Last), down]);
    assert_eq!((stage.state.scroll(3), stage.state.selected()), (3..6, Some("e")));
    stage.perform(&[Action::Move(Motion::First)]);
    assert_eq!(stage.state.scroll(0), 0..0, "a window without room for rows");
    assert_eq!(stage.state.scroll(9), 0..6);
}

#[test]
fn a_selected_lock_that_is_gone_leaves_the_selection_in_its_place() {
    let mut stage = Stage::with(&["a", "b", "c"]);
    stage.state.scroll(3);
    stage.perform(&[Action::Move(Motion::Down)]);
    stage.pass(9);
    stage.find([held("a", 1000.0), held("c", 1000.0), Sight::free("b")]);
    assert_eq!(stage.rows(), ["a", "c"]);
    assert_eq!(stage.state.selected(), Some("c"));
}

#[test]
fn a_free_lock_keeps_its_row_for_a_moment() {
    let mut stage = Stage::with(&["a"]);
    stage.pass(1);
    stage.find([Sight::free("a"), Sight::free("never-held")]);
    assert_eq!(stage.rows(), ["a"]);
    assert_eq!(stage.state.row("a").map(|row| &*row.sight.lock.kind), Some("lock"));
    assert_eq!(stage.state.totals(), Totals::default());
    stage.pass(4);
    stage.find([Sight::free("a")]);
    assert!(stage.rows().is_empty());
}

#[test]
fn a_search_frees_the_locks_that_it_has_not_seen() {
    let mut stage = Stage::with(&["a", "b"]);
    stage.pass(1);
    let begun = stage.now.instant;
    stage.find([held("b", 1000.0)]);
    stage.pass(1);
    let (took, every) = (Duration::ZERO, Duration::from_secs(1));
    stage.apply(Report::Searched { begun, took, every });
    assert_eq!(stage.state.totals().locks, 1);
    stage.pass(5);
    stage.apply(Report::Searched { begun, took, every });
    assert_eq!(stage.rows(), ["b"]);
}

#[test]
fn an_older_sighting_changes_nothing() {
    let mut stage = Stage::with(&["a"]);
    let early = stage.now.instant;
    stage.pass(1);
    stage.find([Sight::free("a")]);
    let finding =
        Finding { at: early, took: Duration::ZERO, sights: vec![held("a", 1.0)], missing: None };
    stage.apply(Report::Found(finding));
    assert!(stage.state.row("a").is_some_and(|row| row.sight.is_free()));
}

#[test]
fn the_followed_lock_has_its_events_and_stays_while_it_is_free() {
    let mut stage = Stage::with(&["a", "b"]);
    let event = |name: &str| LockEvent {
        name: name.to_owned(),
        event: Happening::Acquired,
        ..LockEvent::default()
    };
    stage.state.scroll(5);
    stage.perform(&[Action::Follow]);
    assert_eq!((stage.state.mode, stage.state.followed()), (Mode::Follow, Some("a")));
    stage.apply(Report::Happened(vec![event("a"), event("b")]));
    assert_eq!(stage.state.events.len(), 1, "late events of another lock do not count");
    stage.apply(Report::Happened((0..2 * EVENTS_KEPT).map(|_| event("a")).collect()));
    assert_eq!(stage.state.events.len(), EVENTS_KEPT);
    stage.pass(60);
    stage.find([Sight::free("a")]);
    assert!(stage.state.row("a").is_some());
    stage.perform(&[Action::Help, Action::Back]);
    assert_eq!(stage.state.mode, Mode::Follow);
    stage.perform(&[Action::Back]);
    assert_eq!((stage.state.mode, stage.state.followed()), (Mode::Table, None));
}

#[test]
fn nothing_changes_while_paused() {
    let mut stage = Stage::with(&["a"]);
    stage.perform(&[Action::Pause]);
    stage.pass(5);
    stage.find([held("b", 1000.0)]);
    assert_eq!(stage.rows(), ["a"]);
    let shown = stage.state.shown_moment(stage.now);
    assert_eq!(stage.state.row("a").and_then(|row| row.age(shown)), Some(0.0));
    stage.perform(&[Action::Pause]);
    stage.find([held("b", 1000.0)]);
    assert_eq!(stage.rows(), ["a", "b"]);
}

#[test]
fn an_outage_lasts_until_a_look_succeeds() {
    let mut stage = Stage::with(&["a"]);
    let begin = stage.now.instant;
    stage.apply(Report::Failed("no answer".to_owned()));
    stage.pass(3);
    stage.apply(Report::Failed("refused".to_owned()));
    let outage = stage.state.outage.as_ref().map(|outage| (outage.since, &*outage.error));
    assert_eq!(outage, Some((begin, "refused")));
    assert_eq!(stage.rows(), ["a"]);
    stage.find([]);
    assert!(stage.state.outage.is_none());
}

#[test]
fn the_lines_of_a_followed_lock_can_be_scrolled() {
    let mut stage = Stage::with(&["a"]);
    stage.state.scroll(5);
    stage.perform(&[Action::Follow]);
    assert_eq!(stage.state.scroll_lines(20, 5), 0);
    stage.perform(&[Action::Move(Motion::PageDown), Action::Move(Motion::Down)]);
    assert_eq!(stage.state.scroll_lines(20, 5), 6);
    stage.perform(&[Action::Move(Motion::Last)]);
    assert_eq!(stage.state.scroll_lines(20, 5), 15);
    assert_eq!(stage.state.scroll_lines(3, 5), 0);
}
