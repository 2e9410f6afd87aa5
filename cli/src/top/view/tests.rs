use std::sync::LazyLock;
use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::*;
use crate::args::SortBy;
use crate::observe::event::{Happening, LockEvent};
use crate::observe::snapshot::Caller;
use crate::top::keys::Action;
use crate::top::report::{Finding, Report};
use crate::top::sight::Sight;

/// Returns the same moment always.
fn now() -> Now {
    static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
    Now { instant: *BEGIN, wall: 1_800_000_000.0 }
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

/// Returns a held lock with every fact, and `callers` callers in its queue.
fn held(name: &str, callers: usize) -> Sight {
    let caller = Caller {
        owner: "6ba7b810-9dad-81d1-80b4-00c04fd430c8:1".to_owned(),
        client_id: text("6ba7b810-9dad-81d1-80b4-00c04fd430c8"),
        host: text("web-1"),
        pid: Some(4711),
        program: text("billing"),
        label: text("blue"),
        thread: text("worker"),
        since: Some(now().wall - 72.0),
        remaining: Some(27.5),
        ..Caller::default()
    };
    let mut sight = Sight::free(name);
    sight.lock.kind = "queue lock".to_owned();
    sight.lock.queue = vec![caller.clone(); callers];
    sight.lock.holders = vec![caller];
    sight.remaining = Some(Duration::from_secs(27));
    sight
}

fn found(sights: Vec<Sight>) -> State {
    let mut state =
        State::new("redis.example:6379".to_owned(), Duration::from_secs(1), SortBy::Age);
    let finding =
        Finding { at: now().instant, took: Duration::from_millis(3), sights, missing: None };
    state.apply(Report::Found(finding), now());
    state
}

fn drawn(state: &mut State, columns: u16, rows: u16, theme: Theme) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a test terminal");
    terminal.draw(|frame| draw(frame, state, now(), theme)).expect("a test terminal");
    terminal.backend().buffer().clone()
}

/// Returns the lines of the screen, without spaces at their ends.
fn lines(state: &mut State, columns: u16, rows: u16) -> Vec<String> {
    let buffer = drawn(state, columns, rows, Theme::new(true));
    let line = |row: u16| -> String {
        (0..columns).map(|column| buffer[(column, row)].symbol().to_owned()).collect()
    };
    (0..rows).map(|row| line(row).trim_end().to_owned()).collect()
}

#[test]
fn eighty_columns_show_a_row_with_all_facts() {
    let lines = lines(&mut found(vec![held("orders:42", 2)]), 80, 24);
    assert_eq!(
        lines[..4],
        [
            "leasehold top  redis.example:6379                     looked at ".to_owned()
                + &time_of_day()
                + " in 3 ms",
            "1 lock, 1 holder, 2 waiting  every 1 s".to_owned(),
            "LOCK        KIND      AGE▼    LEFT  WAIT  HAND-OFFS HOST      PID PROGRAM LABEL"
                .to_owned(),
            "orders:42   queue      72s     27s     2          - web-1    4711 billing blue"
                .to_owned(),
        ]
    );
    assert!(lines[23].starts_with("q quit   ↑↓ select   Enter follow   / filter"), "{lines:?}");
}

fn time_of_day() -> String {
    crate::views::text::time_of_day(now().wall)[..8].to_owned()
}

#[test]
fn wide_windows_show_long_names_and_the_thread() {
    let name = "a-long-name-of-a-lock:".repeat(3);
    let lines = lines(&mut found(vec![held(&name, 0)]), 180, 10);
    assert!(lines[3].contains(&name) && lines[3].ends_with("worker"), "{lines:?}");
}

#[test]
fn every_size_can_be_drawn_in_every_mode() {
    let modes: [&[Action]; 4] =
        [&[], &[Action::EditFilter, Action::Type('o')], &[Action::Follow], &[Action::Help]];
    for actions in modes {
        let mut state = found((0..40).map(|number| held(&format!("o{number}"), 30)).collect());
        lines(&mut state, 80, 24);
        actions.iter().for_each(|action| state.perform(*action, now()));
        for columns in [1, 2, 5, 13, 20, 40, 80, 300] {
            for rows in [1, 2, 3, 4, 5, 8, 24, 60] {
                lines(&mut state, columns, rows);
            }
        }
    }
}

#[test]
fn small_windows_keep_rows_before_anything_else() {
    let mut state = found(vec![held("a", 0), held("b", 0), held("c", 0)]);
    assert_eq!(lines(&mut state, 12, 1), ["a"]);
    assert_eq!(lines(&mut state, 12, 2), ["LOCK", "a"]);
    let four = lines(&mut state, 30, 4);
    assert_eq!(four[0], "leasehold top  redis.example:6");
    assert!(four[1].starts_with("LOCK") && four[2].starts_with('a'), "{four:?}");
    assert!(four[3].starts_with("q quit"));
}

#[test]
fn names_cannot_change_the_terminal() {
    let mut evil = held("evil\u{1b}[2J\u{202e}name", 0);
    evil.lock.holders[0].label = text("\u{9b}1mlabel\n");
    evil.lock.holders[0].program = text("注文");
    let lines = lines(&mut found(vec![evil]), 120, 6);
    assert!(lines[2].contains(r"evil\u{1b}[2J\u{202e}name"), "{lines:?}");
    assert!(lines[2].contains(r"\u{9b}1mlabel\n"), "{lines:?}");
    assert!(lines[2].contains("注 文"), "a wide character has two cells: {lines:?}");
    let all = lines.concat();
    assert!(!all.contains(|sign: char| sign.is_control() || sign == '\u{202e}'), "{lines:?}");
}

#[test]
fn several_holders_nobody_and_unknown_holders_are_told_apart() {
    let mut readers = held("readers", 0);
    readers.lock.holders = vec![readers.lock.holders[0].clone(); 3];
    let mut nobody = held("nobody", 0);
    nobody.lock.holders.clear();
    let mut java = held("java", 0);
    java.lock.holders[0] = Caller {
        host: None,
        pid: None,
        program: None,
        label: None,
        ..java.lock.holders[0].clone()
    };
    let lines = lines(&mut found(vec![readers, nobody, java]), 120, 8).join("\n");
    for part in ["billing +2", "nobody", "client 6ba7b810"] {
        assert!(lines.contains(part), "{part}: {lines}");
    }
}

#[test]
fn an_outage_is_shown_and_the_rows_stay() {
    let mut state = found(vec![held("a", 0)]);
    state.apply(Report::Failed("no server\nanswers".to_owned()), now());
    let lines = lines(&mut state, 80, 10);
    assert_eq!(lines[2], "no look for 0s: no server\\nanswers");
    assert!(lines[4].starts_with('a'), "{lines:?}");
}

#[test]
fn the_header_tells_of_the_pause_the_filter_and_the_intervals() {
    let mut state = found(vec![held("a", 0), held("z", 0)]);
    let (took, every) = (Duration::from_millis(400), Duration::from_secs(8));
    state.apply(Report::Searched { begun: now().instant, took, every }, now());
    state.perform(Action::EditFilter, now());
    state.perform(Action::Type('z'), now());
    state.perform(Action::Accept, now());
    state.perform(Action::Pause, now());
    let lines = lines(&mut state, 120, 10);
    assert!(lines[0].starts_with("leasehold top  PAUSED"), "{lines:?}");
    let told =
        "filter \"z\": 1 shown  visible rows every 1 s, all locks every 8 s (400 ms of looks)";
    assert!(lines[1].ends_with(told), "{lines:?}");
}

#[test]
fn an_empty_table_says_why() {
    let mut state = found(Vec::new());
    assert_eq!(lines(&mut state, 80, 10)[3], "no lock is held");
    state.filter = "x".to_owned();
    assert_eq!(lines(&mut state, 80, 10)[3], "no lock matches \"x\"");
}

#[test]
fn a_followed_lock_shows_holders_queue_and_events() {
    let mut state = found(vec![Sight { token: Some(7), ..held("orders:42", 2) }]);
    lines(&mut state, 100, 30);
    state.perform(Action::Follow, now());
    let event = LockEvent {
        at: now().wall,
        name: "orders:42".to_owned(),
        event: Happening::Expired,
        host: text("web-2"),
        held: Some(3.0),
        ..LockEvent::default()
    };
    state.apply(Report::Happened(vec![event]), now());
    let lines = lines(&mut state, 100, 30);
    let shown = [
        (3, "orders:42"),
        (5, "HELD by 1 holder"),
        (6, "  web-1 billing[4711] (blue) worker  held for 72s  lease left 27s"),
        (8, "QUEUE of 2 callers"),
        (10, "   2  web-1 billing[4711] (blue) worker  waits for 72s"),
        (12, "EVENTS, the latest first"),
        (13, &format!("  {}.000  expired   web-2  held 3s", time_of_day())),
    ];
    for (line, start) in shown {
        assert!(lines[line].starts_with(start), "{line}, {start}: {lines:#?}");
    }
    assert!(lines[3].ends_with("queue lock  token 7"), "{lines:#?}");
}

#[test]
fn a_long_queue_leaves_room_for_events() {
    let mut state = found(vec![held("a", 100)]);
    lines(&mut state, 80, 24);
    state.perform(Action::Follow, now());
    let first = lines(&mut state, 80, 24);
    assert!(first.iter().any(|line| line.starts_with("EVENTS")), "{first:#?}");
    state.perform(Action::Move(crate::top::keys::Motion::Last), now());
    let last = lines(&mut state, 80, 24);
    assert!(last.iter().any(|line| line.starts_with(" 100  web-1")), "{last:#?}");
}

#[test]
fn a_screen_without_colours_has_none() {
    let mut state = found(vec![held("a", 2)]);
    state.apply(Report::Failed("no answer".to_owned()), now());
    let has_colours = |theme| {
        let buffer = drawn(&mut found(vec![held("a", 2)]), 80, 24, theme);
        buffer.content().iter().any(|cell| (cell.fg, cell.bg) != (Color::Reset, Color::Reset))
    };
    assert!(has_colours(Theme::new(true)));
    assert!(!has_colours(Theme::new(false)));
}

#[test]
fn the_help_fits_eighty_columns() {
    let mut state = found(Vec::new());
    state.perform(Action::Help, now());
    assert_eq!(lines(&mut state, 80, 24)[1..], lines(&mut state, 160, 24)[1..]);
    let lines = lines(&mut state, 80, 24).join("\n");
    for (keys, meaning) in keys::HELP {
        assert!(lines.contains(keys) && lines.contains(meaning), "{meaning}: {lines}");
    }
    assert!(keys::NOTES.iter().all(|note| lines.contains(note)), "{lines}");
}
