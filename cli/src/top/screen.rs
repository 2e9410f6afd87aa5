//! [`Screen`]: the terminal, which is restored however the program ends.

use std::io::{self, IsTerminal, stdout};

use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, enable_raw_mode};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::SIGTSTP;
use signal_hook::low_level::emulate_default_handler;

use crate::failure::{Failure, Result};

/// The full screen of the terminal.
///
/// Dropping the value restores the terminal; a panic of any thread restores it too.
pub(crate) struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the whole screen.
    ///
    /// # Errors
    /// A usage error without a terminal.
    pub(crate) fn open() -> Result<Screen> {
        Screen::check()?;
        Ok(Screen(ratatui::try_init().inspect_err(|_| ratatui::restore())?))
    }

    /// Fails without a terminal.
    pub(crate) fn check() -> Result<()> {
        if io::stdin().is_terminal() && stdout().is_terminal() {
            Ok(())
        } else {
            Err(Failure::usage("top needs a terminal; leasehold ls prints a list"))
        }
    }

    pub(crate) fn draw(&mut self, view: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.0.draw(view).map(drop)
    }

    /// Makes the next drawing write every character.
    ///
    /// `Terminal::clear` would ask the terminal for the position of its cursor, and the thread that
    /// reads keys would take the answer.
    pub(crate) fn redraw(&mut self) -> io::Result<()> {
        execute!(stdout(), Clear(ClearType::All))?;
        // Leaves two empty buffers, so that the next drawing differs from the last one everywhere.
        self.0.swap_buffers();
        Ok(())
    }

    /// Restores the terminal. It may be gone, so errors do not matter.
    pub(crate) fn restore(&mut self) {
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }

    /// Takes the screen again, after [`restore`](Screen::restore) or a stop of the process.
    pub(crate) fn take_again(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        let _ = self.0.hide_cursor();
        self.redraw()
    }

    /// Stops the process as Ctrl-Z does. Returns when it goes on in the foreground.
    pub(crate) fn suspend(&mut self) -> io::Result<()> {
        self.restore();
        emulate_default_handler(SIGTSTP)?;
        self.take_again()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.restore();
    }
}
