//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::address::Server;
use crate::duration;
use crate::failure::{Code, Failure, Output, Result};

/// Distributed locks on Redis: run a command under a lock, see who holds which lock.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, disable_help_subcommand = true)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    server: Server,
    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    verb: Verb,
}

/// The command line, checked.
#[derive(Debug)]
pub(crate) struct Arguments {
    pub(crate) server: Server,
    pub(crate) output: Output,
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(Box<RunArgs>),
    /// List the held locks whose names match a pattern
    Ls(LsArgs),
    /// Show one lock: its holders and the waiting callers
    Show(ShowArgs),
    /// Print events of locks as they happen, until interrupted
    Watch(WatchArgs),
    /// Take a lock away from its holders
    Force(ForceArgs),
    /// Check the servers' settings for dangers to locks
    Audit,
    /// Show the held locks live, like top(1)
    Top(TopArgs),
    /// Draw which process held which lock when, as an SVG file
    Timeline(TimelineArgs),
    /// Print shell completions
    Completions {
        shell: Shell,
    },
    /// Print the man page
    Man,
}

/// Run a command while holding a lock
///
/// Takes the lock NAME, runs CMD, and releases the lock when CMD ends. Exits with the code of CMD.
#[derive(Args, Debug)]
#[command(override_usage = "leasehold run [OPTIONS] NAME -- CMD [ARGS]...")]
pub(crate) struct RunArgs {
    /// Fail at once if the lock is held
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long (4s, 500ms, 10m); without it, wait for ever
    #[arg(short = 'w', long, value_name = "D", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit code if the lock was not acquired
    #[arg(short = 'E', long, value_name = "CODE", default_value_t = 1)]
    pub(crate) conflict_exit_code: u8,
    /// Share the lock with other `run -s` of this name; exclude plain `run`
    #[arg(short = 's', long, group = "kind")]
    pub(crate) shared: bool,
    /// Use a fair lock: first come, first served
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,
    /// Use a queue lock: order by arrival and weight, sets LEASEHOLD_TOKEN
    #[arg(long, group = "kind")]
    pub(crate) queue: bool,
    /// Weight in the queue, 1 to 10: a higher weight overtakes
    #[arg(long, value_name = "N", requires = "queue", value_parser = clap::value_parser!(u32).range(1..=10))]
    pub(crate) weight: Option<u32>,
    /// Use a semaphore: at most N commands run at once
    #[arg(long, value_name = "N", group = "kind", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) permits: Option<u32>,
    /// Keep the lock at least this long, also if CMD ends before
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) min_hold: Option<Duration>,
    /// Stop CMD after this time, as if the lock were lost
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// Lease: after a crash the lock is free within this time [default: 30s]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// Name of the lock
    pub(crate) name: String,
    /// Command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Pattern with *, ? and [ab]
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    pub(crate) name: String,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Names of locks
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Time between two looks
    #[arg(long, value_name = "D", default_value = "50ms", value_parser = duration::parse)]
    pub(crate) every: Duration,
}

#[derive(Args, Debug)]
pub(crate) struct ForceArgs {
    pub(crate) name: String,
}

/// The order of the rows of `top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortBy {
    Name,
    /// The longest held first
    #[default]
    Age,
    Left,
    /// The most waiting callers first
    Waiters,
    /// The most hand-offs per second first
    Handoffs,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// Pattern with *, ? and [ab]
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Time between two looks
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// First order of the rows
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: SortBy,
}

#[derive(Args, Debug)]
pub(crate) struct TimelineArgs {
    /// Names of locks to observe
    #[arg(required_unless_present = "input", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Time for which the locks are observed
    #[arg(long = "for", value_name = "D", default_value = "10s", value_parser = duration::parse)]
    pub(crate) length: Duration,
    /// Time between two looks
    #[arg(long, value_name = "D", default_value = "20ms", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// Draw the events of this file (lines of `watch --json`) instead of observing
    #[arg(long, value_name = "FILE", conflicts_with = "names")]
    pub(crate) input: Option<PathBuf>,
    /// The picture
    #[arg(short, long, value_name = "FILE.svg")]
    pub(crate) output: PathBuf,
}

impl Arguments {
    /// Reads and checks the command line. Prints help and version, and exits then.
    pub(crate) fn read() -> Result<Arguments> {
        let line = CommandLine::try_parse().map_err(refused)?;
        let output = if line.json { Output::Json } else { Output::Text };
        Ok(Arguments { server: line.server, output, verb: line.verb })
    }
}

/// Returns the failure for a command line that cannot be read; exits for help and version.
fn refused(error: clap::Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = CommandLine::command().print_help();
            process::exit(Code::Usage as i32)
        }
        _ => Failure::usage(summary(&error)),
    }
}

/// Returns the text of the error in one line: its first paragraph.
fn summary(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let first = text.split("\n\n").next().unwrap_or(text);
    let first = first.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{first}; see leasehold --help")
}
