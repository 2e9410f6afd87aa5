//! [`Theme`]: the styles of the screen. Colours only support what texts and attributes say.

use ratatui::style::{Color, Modifier, Style};

/// The styles of the screen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theme {
    has_colours: bool,
}

impl Theme {
    pub(crate) fn new(has_colours: bool) -> Theme {
        Theme { has_colours }
    }

    /// The name of the program, and keys.
    pub(crate) fn strong(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Titles of columns and sections.
    pub(crate) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// The title of the column that orders the rows.
    pub(crate) fn sorted(self) -> Style {
        self.strong().add_modifier(Modifier::UNDERLINED)
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Free locks, and facts of less interest.
    pub(crate) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Waiting callers, and the pause.
    pub(crate) fn notice(self) -> Style {
        self.coloured(Color::Yellow)
    }

    /// Outages, and lost holds.
    pub(crate) fn alarm(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    fn coloured(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }
}
