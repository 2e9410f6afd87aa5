//! The output of the demo: aligned lines, coloured on a terminal only.

use std::env;
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";

/// The length of the bar of a whole lease.
const BAR: u32 = 30;

/// Prints lines with the time since the start.
pub(crate) struct Output {
    start: Instant,
    colours: bool,
}

impl Output {
    pub(crate) fn begin() -> Output {
        let colours = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
        Output { start: Instant::now(), colours }
    }

    pub(crate) fn heading(&self, text: &str) {
        println!("\n{}", self.paint(BOLD, text));
    }

    pub(crate) fn text(&self, text: &str) {
        text.lines().for_each(|line| println!("  {}", line.trim()));
    }

    /// Prints a line about the present.
    pub(crate) fn tell(&self, who: &str, what: impl Display) {
        self.tell_at(Instant::now(), who, what);
    }

    /// Prints a line about an earlier moment.
    pub(crate) fn tell_at(&self, at: Instant, who: &str, what: impl Display) {
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        let time = self.paint(DIM, &format!("{seconds:6.2} s"));
        println!("  {time}  {who:<7} {what}");
    }

    /// Prints a line of the result. `good` colours the figure.
    pub(crate) fn row(&self, what: &str, figure: impl Display, good: Option<bool>) {
        let figure = format!("{figure:>8}");
        let figure = match good {
            None => figure,
            Some(true) => self.paint(GREEN, &figure),
            Some(false) => self.paint(RED, &figure),
        };
        println!("  {what:<46}{figure}");
    }

    fn paint(&self, colour: &str, text: &str) -> String {
        if self.colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Returns a bar whose filled part is `left` of `whole`.
pub(crate) fn bar(left: Duration, whole: Duration) -> String {
    let filled = (left.min(whole).as_millis() * u128::from(BAR)).div_ceil(whole.as_millis());
    (0..u128::from(BAR)).map(|place| if place < filled { '=' } else { ' ' }).collect()
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
