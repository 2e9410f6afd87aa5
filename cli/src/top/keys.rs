//! The keys of `top`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::args::SortBy;

/// The part of the screen that receives the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Table,
    /// The filter is typed, below the table.
    Filter,
    /// One lock in detail.
    Follow,
    Help,
}

/// A movement of the selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Motion {
    Up,
    Down,
    PageUp,
    PageDown,
    First,
    Last,
}

impl Motion {
    /// Returns the place after the motion, from place `at` of `count` places.
    pub(crate) fn from(self, at: usize, page: usize, count: usize) -> usize {
        let last = count.saturating_sub(1);
        let to = match self {
            Motion::Up => at.saturating_sub(1),
            Motion::Down => at + 1,
            Motion::PageUp => at.saturating_sub(page.max(1)),
            Motion::PageDown => at + page.max(1),
            Motion::First => 0,
            Motion::Last => last,
        };
        to.min(last)
    }
}

/// The meaning of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Move(Motion),
    /// Shows the selected lock in detail.
    Follow,
    /// Leaves the present view; in the table, drops the filter.
    Back,
    EditFilter,
    Type(char),
    Erase,
    /// Keeps the typed filter.
    Accept,
    SortBy(SortBy),
    SortNext,
    SortPrevious,
    Reverse,
    Pause,
    Help,
    Quit,
    Suspend,
    Redraw,
}

/// A line of the help: keys, and their meaning.
pub(crate) const HELP: [(&str, &str); 12] = [
    ("↑ ↓ PgUp PgDn Home End", "select a lock (also k and j)"),
    ("Enter", "follow the selected lock: holders, queue, events"),
    ("Esc", "leave this view; in the table, drop the filter"),
    ("/", "show only locks with a text in any column"),
    ("n  a  l  w  o", "sort by name, age, lease left, waiters, hand-offs"),
    ("<  >", "sort by the column to the left, to the right"),
    ("r", "reverse the order"),
    ("p", "pause: no more looks; again: go on"),
    ("Ctrl-L", "draw the screen anew"),
    ("Ctrl-Z", "suspend; fg resumes"),
    ("?", "this help"),
    ("q", "quit (also Ctrl-C)"),
];

/// The end of the help: the meaning of some columns.
pub(crate) const NOTES: [&str; 6] = [
    "AGE        time since the oldest holder acquired the lock",
    "LEFT       rest of the lease, which a running holder renews",
    "WAIT       callers in the queue of a fair lock or a queue lock; else waiting",
    "           processes, and callers in the process of the holder",
    "HAND-OFFS  holds per second; > marks a lower bound",
    "+2         further holders of the lock",
];

/// The keys at the bottom of the screen, the most important first.
pub(crate) fn shown(mode: Mode) -> &'static [(&'static str, &'static str)] {
    match mode {
        Mode::Table => &[
            ("q", "quit"),
            ("↑↓", "select"),
            ("Enter", "follow"),
            ("/", "filter"),
            ("<>", "sort"),
            ("r", "reverse"),
            ("p", "pause"),
            ("?", "help"),
        ],
        Mode::Filter => &[("Enter", "keep"), ("Esc", "drop")],
        Mode::Follow => {
            &[("q", "quit"), ("Esc", "back"), ("↑↓", "scroll"), ("p", "pause"), ("?", "help")]
        }
        Mode::Help => &[("q", "quit"), ("Esc", "back")],
    }
}

/// Returns the meaning of a key, `None` for keys without one.
pub(crate) fn action(key: KeyEvent, mode: Mode) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(Action::Quit),
            KeyCode::Char('z') => Some(Action::Suspend),
            KeyCode::Char('l') => Some(Action::Redraw),
            // Backspace, as some terminals send it.
            KeyCode::Char('h') if mode == Mode::Filter => Some(Action::Erase),
            _ => None,
        };
    }
    match mode {
        Mode::Filter => match key.code {
            KeyCode::Enter => Some(Action::Accept),
            KeyCode::Esc => Some(Action::Back),
            KeyCode::Backspace => Some(Action::Erase),
            KeyCode::Char(sign) => Some(Action::Type(sign)),
            code => motion(code).map(Action::Move),
        },
        Mode::Table => match key.code {
            KeyCode::Enter => Some(Action::Follow),
            KeyCode::Char('/') => Some(Action::EditFilter),
            KeyCode::Char('<') | KeyCode::Left => Some(Action::SortPrevious),
            KeyCode::Char('>') | KeyCode::Right => Some(Action::SortNext),
            KeyCode::Char('n') => Some(Action::SortBy(SortBy::Name)),
            KeyCode::Char('a') => Some(Action::SortBy(SortBy::Age)),
            KeyCode::Char('l') => Some(Action::SortBy(SortBy::Left)),
            KeyCode::Char('w') => Some(Action::SortBy(SortBy::Waiters)),
            KeyCode::Char('o') => Some(Action::SortBy(SortBy::Handoffs)),
            KeyCode::Char('r') => Some(Action::Reverse),
            code => moved(code).or_else(|| everywhere(code)),
        },
        Mode::Follow => match key.code {
            KeyCode::Enter | KeyCode::Backspace | KeyCode::Left => Some(Action::Back),
            code => moved(code).or_else(|| everywhere(code)),
        },
        Mode::Help => match everywhere(key.code) {
            Some(Action::Help) | None => Some(Action::Back),
            other => other,
        },
    }
}

fn moved(code: KeyCode) -> Option<Action> {
    let motion = match code {
        KeyCode::Char('j') => Some(Motion::Down),
        KeyCode::Char('k') => Some(Motion::Up),
        code => motion(code),
    };
    motion.map(Action::Move)
}

fn motion(code: KeyCode) -> Option<Motion> {
    match code {
        KeyCode::Up => Some(Motion::Up),
        KeyCode::Down => Some(Motion::Down),
        KeyCode::PageUp => Some(Motion::PageUp),
        KeyCode::PageDown => Some(Motion::PageDown),
        KeyCode::Home => Some(Motion::First),
        KeyCode::End => Some(Motion::Last),
        _ => None,
    }
}

fn everywhere(code: KeyCode) -> Option<Action> {
    match code {
        KeyCode::Char('q') => Some(Action::Quit),
        KeyCode::Char('p' | ' ') => Some(Action::Pause),
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Some(Action::Help),
        KeyCode::Esc => Some(Action::Back),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(code: KeyCode, mode: Mode) -> Option<Action> {
        action(KeyEvent::new(code, KeyModifiers::NONE), mode)
    }

    #[test]
    fn letters_are_text_in_the_filter_and_commands_elsewhere() {
        assert_eq!(press(KeyCode::Char('q'), Mode::Filter), Some(Action::Type('q')));
        for mode in [Mode::Table, Mode::Follow, Mode::Help] {
            assert_eq!(press(KeyCode::Char('q'), mode), Some(Action::Quit));
        }
    }

    #[test]
    fn control_keys_work_in_every_mode() {
        for mode in [Mode::Table, Mode::Filter, Mode::Follow, Mode::Help] {
            let press =
                |sign| action(KeyEvent::new(KeyCode::Char(sign), KeyModifiers::CONTROL), mode);
            let expected = [Action::Quit, Action::Suspend, Action::Redraw].map(Some);
            assert_eq!(['c', 'z', 'l'].map(press), expected);
        }
    }

    #[test]
    fn each_key_at_the_bottom_does_something() {
        for mode in [Mode::Table, Mode::Filter, Mode::Follow, Mode::Help] {
            for (keys, _) in shown(mode) {
                let codes: Vec<KeyCode> = match *keys {
                    "Enter" => vec![KeyCode::Enter],
                    "Esc" => vec![KeyCode::Esc],
                    "↑↓" => vec![KeyCode::Up, KeyCode::Down],
                    letters => letters.chars().map(KeyCode::Char).collect(),
                };
                let actions = codes.into_iter().map(|code| press(code, mode));
                let is_text = |action| matches!(action, None | Some(Action::Type(_)));
                assert!(!actions.into_iter().any(is_text), "{keys} in {mode:?}");
            }
        }
    }

    #[test]
    fn a_released_key_means_nothing() {
        let mut key = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        key.kind = KeyEventKind::Release;
        assert_eq!(action(key, Mode::Table), None);
    }
}
