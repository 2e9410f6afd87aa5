//! `leasehold top`: the held locks, live.
//!
//! Reading order: [`sight`] (a lock as a look found it), [`rates`] (hand-offs), [`report`],
//! [`keys`], [`state`] (rows, order, filter, selection), [`view`] (draws a state), [`schedule`] and
//! [`looking`] (the thread that looks), [`screen`] (the terminal), and the loop in this file.
//!
//! Keys, signals and looks have a thread each, and send messages to the loop. The loop alone
//! changes the state and draws.

mod keys;
mod looking;
mod rates;
mod report;
mod schedule;
mod screen;
mod sight;
mod state;
mod view;

use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use std::{io, thread};

use ratatui::crossterm::event::{self, Event};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGTERM, SIGTSTP};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::address::Server;
use crate::args::TopArgs;
use crate::failure::{Code, Failure, Output, Result};
use crate::observe::snapshot;
use keys::{Action, Mode};
use looking::Wish;
use report::Report;
use screen::Screen;
use state::{Now, State};
use view::Theme;

/// The bounds of `--every`.
const EVERY: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3600)];

/// The time between two drawings without news: ages grow.
const TICK: Duration = Duration::from_secs(1);

/// The time after a drawing in which news of looks are not drawn.
const FRAME: Duration = Duration::from_millis(100);

/// The reason for the loop to do something.
#[derive(Debug)]
enum Message {
    Terminal(io::Result<Event>),
    Signal(i32),
    /// The outcome of a look, or the end of the thread that looks.
    Look(Option<Report>),
}

/// The time at which the loop draws next.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Quit,
    DrawNow,
    DrawSoon,
}

pub(crate) fn run(server: &Server, arguments: &TopArgs) -> Result<ExitCode> {
    Screen::check()?;
    let client = server.connect()?;
    // Finds a wrong pattern; asks no server.
    drop(client.locks(&arguments.pattern)?);
    let every = arguments.every.clamp(EVERY[0], EVERY[1]);
    let state = State::new(server.shown()?, every, arguments.sort);
    let (sender, messages) = mpsc::channel();
    forward_signals(sender.clone())?;
    let screen = Screen::open()?;
    forward_keys(sender.clone())?;
    let tell = move |report| drop(sender.send(Message::Look(report)));
    let wishes = looking::start(client, arguments.pattern.clone(), every, tell)?;
    let theme = Theme::new(Output::Text.has_colours());
    let drawn = Instant::now();
    Top { state, screen, theme, messages, wishes, wish: Wish::default(), drawn }.run()
}

/// Starts a thread that forwards keys and changes of the window's size.
fn forward_keys(sender: Sender<Message>) -> io::Result<()> {
    let forward = move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if sender.send(Message::Terminal(event)).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(forward).map(drop)
}

/// Starts a thread that forwards signals.
fn forward_signals(sender: Sender<Message>) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT])?;
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(Message::Signal(signal)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("signals".into()).spawn(forward).map(drop)
}

/// The loop, and everything that it uses.
struct Top {
    state: State,
    screen: Screen,
    theme: Theme,
    messages: Receiver<Message>,
    wishes: Sender<Wish>,
    /// The last wish that was sent.
    wish: Wish,
    drawn: Instant,
}

impl Top {
    /// Draws and handles messages until the user quits.
    fn run(mut self) -> Result<ExitCode> {
        loop {
            self.draw()?;
            self.send_wish();
            let mut due = self.drawn + TICK;
            loop {
                let left = due.saturating_duration_since(Instant::now());
                match self.messages.recv_timeout(left) {
                    Ok(message) => match self.handle(message)? {
                        Next::Quit => return Ok(ExitCode::SUCCESS),
                        Next::DrawNow => break,
                        Next::DrawSoon => due = due.min(self.drawn + FRAME),
                    },
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Err(ended()),
                }
            }
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        let (state, theme, now) = (&mut self.state, self.theme, now());
        self.screen.draw(|frame| view::draw(frame, state, now, theme))?;
        self.drawn = now.instant;
        Ok(())
    }

    /// Tells the thread that looks about other rows on the screen.
    fn send_wish(&mut self) {
        let is_table = matches!(self.state.mode, Mode::Table | Mode::Filter);
        let mut visible = if is_table { self.state.visible().to_vec() } else { Vec::new() };
        // Another order is no other wish.
        visible.sort();
        let wish = Wish {
            visible,
            followed: self.state.followed().map(str::to_owned),
            is_paused: self.state.paused.is_some(),
        };
        if wish != self.wish {
            // The thread tells its end itself.
            let _ = self.wishes.send(wish.clone());
            self.wish = wish;
        }
    }

    fn handle(&mut self, message: Message) -> Result<Next> {
        match message {
            Message::Terminal(event) => self.handle_event(event?),
            Message::Signal(signal) => self.handle_signal(signal),
            Message::Look(Some(report)) => {
                self.state.apply(report, now());
                Ok(Next::DrawSoon)
            }
            Message::Look(None) => Err(ended()),
        }
    }

    fn handle_event(&mut self, event: Event) -> Result<Next> {
        let Event::Key(key) = event else { return Ok(Next::DrawNow) };
        match keys::action(key, self.state.mode) {
            None => return Ok(Next::DrawSoon),
            Some(Action::Quit) => return Ok(Next::Quit),
            Some(Action::Suspend) => self.screen.suspend()?,
            Some(Action::Redraw) => self.screen.redraw()?,
            Some(action) => self.state.perform(action, now()),
        }
        Ok(Next::DrawNow)
    }

    /// Ends, stops or resumes the program as the signal asks, with a restored terminal meanwhile.
    fn handle_signal(&mut self, signal: i32) -> Result<Next> {
        match signal {
            SIGTSTP => self.screen.suspend()?,
            SIGCONT => self.screen.take_again()?,
            _ => {
                self.screen.restore();
                emulate_default_handler(signal)?;
            }
        }
        Ok(Next::DrawNow)
    }
}

fn now() -> Now {
    Now { instant: Instant::now(), wall: snapshot::now() }
}

fn ended() -> Failure {
    Failure::new(Code::Internal, "the thread that looks at locks has ended")
}
