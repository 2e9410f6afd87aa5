//! The command line.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{
    Arg, ArgAction, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum,
};
use clap_complete::Shell;

use crate::address::Server;
use crate::duration;
use crate::failure::{Code, Failure, Output, Result, print_note};
use crate::views::print;

/// The width of the help text.
const WIDTH: usize = 80;

/// The verbs that use no server.
const WITHOUT_SERVER: [&str; 2] = ["completions", "man"];

/// The verbs that print no JSON.
const WITHOUT_JSON: [&str; 9] =
    ["run", "once", "acquire", "extend", "release", "top", "timeline", "completions", "man"];

/// The options of TLS.
const TLS: [&str; 4] = ["cacert", "cert", "key", "sni"];

/// The form of a duration D, below the help of the verbs with such options.
const DURATIONS: &str = "A duration D is 500ms, 4s, 10m, 2h, or a number of seconds.";

/// The exit codes of `run`, below its help.
const RUN_CODES: &str = "\
Exit codes: that of CMD; 128+N if signal N ended CMD or the wait; 1 (or -E) if
the lock was not acquired; 64 wrong usage; 69 no server answers; 70 the program
or the system failed; 75 lock lost or --max-hold reached, CMD was terminated or
not started; 77 refused by the server; 126 CMD not executable; 127 CMD not
found.";

/// The exit codes of `once`, below its help.
const ONCE_CODES: &str = "\
Exit codes: 0 a result is committed or was kept; that of CMD if it failed; 128+N
if signal N ended CMD or the wait; 1 (or -E) if another caller still runs CMD;
64 wrong usage; 65 the output is too large for a result; 69 no server answers;
70 the program or the system failed; 75 lock lost or --max-hold reached; 77
refused by the server; 126 CMD not executable; 127 CMD not found. With --forget:
0 there was a result; 1 there was none.";

/// The exit codes of `show` and `force`, below their help.
const LOCK_CODES: &str = "Exit codes: 0 the lock was held; 1 it was free.";

/// The exit codes of `acquire`, below its help.
const ACQUIRE_CODES: &str = "Exit codes: 0 acquired; 1 another holder has the lock.";

/// The exit codes of `extend` and `release`, below their help.
const HOLDER_CODES: &str = "Exit codes: 0 done; 1 this holder does not have the lock.";

/// The exit codes of `audit`, below its help.
const AUDIT_CODES: &str = "Exit codes: 0 no findings; 1 findings.";

/// The exit codes of `timeline`, below its help.
const TIMELINE_CODES: &str = "\
Exit codes: 0 the picture is written; 64 also if the input cannot be read; 73
the picture cannot be written.";

/// The servers and the exit codes of all verbs, in the man page.
const NOTES: &str = "A URL is redis://[user][:password]@host[:port][/database], or with \
    ?db=database for the database; the same with rediss:// (TLS); or \
    redis+unix:///path/to/socket[?db=database&user=user&pass=password]. User and password are \
    percent-encoded. Commas separate several URLs. Other users can see --url in the list of \
    processes: put a URL with a password into LEASEHOLD_URL. LEASEHOLD_LOGIN=user:password is for \
    the servers with the data, of any deployment, in place of the login in their URLs; the login \
    in the URL of a sentinel is for the sentinel. Exit codes of all verbs: 0 success; 64 wrong \
    usage; 69 no server answers; \
    70 the program or the system failed; 77 refused by the server. The sections of run, once, \
    show, force, audit and timeline name further codes.";

/// Distributed locks on Redis: run a command under a lock, see who holds which lock.
#[derive(Debug, Parser)]
#[command(
    name = "leasehold",
    version,
    disable_help_flag = true,
    disable_help_subcommand = true,
    max_term_width = WIDTH,
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    after_long_help = NOTES
)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    server: Server,
    /// Print JSON, for programs
    #[arg(long, global = true, display_order = 907)]
    json: bool,
    /// Print help
    #[arg(short, long, global = true, action = ArgAction::HelpShort, display_order = 908)]
    help: Option<bool>,
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
    Once(Box<OnceArgs>),
    /// Take a lock for a named holder, which keeps it after this command
    Acquire(AcquireArgs),
    /// Extend the lease of a named holder
    Extend(ExtendArgs),
    /// Release the lock of a named holder
    Release(ReleaseArgs),
    /// List the held locks whose names match a pattern
    Ls(LsArgs),
    /// Show one lock: its holders and the waiting callers
    Show(ShowArgs),
    /// Print events of locks as they happen, until interrupted
    Watch(WatchArgs),
    /// Take a lock away from its holders
    Force(ForceArgs),
    /// Check the servers' settings for dangers to locks
    #[command(after_help = AUDIT_CODES)]
    Audit,
    /// Show the held locks live, like top(1)
    Top(TopArgs),
    /// Draw which process held which lock when, as an SVG file
    Timeline(TimelineArgs),
    /// Print shell completions
    Completions {
        /// The shell that reads them
        shell: Shell,
    },
    /// Print the man page
    Man,
}

impl Verb {
    fn name(&self) -> &'static str {
        match self {
            Verb::Run(_) => "run",
            Verb::Once(_) => "once",
            Verb::Acquire(_) => "acquire",
            Verb::Extend(_) => "extend",
            Verb::Release(_) => "release",
            Verb::Ls(_) => "ls",
            Verb::Show(_) => "show",
            Verb::Watch(_) => "watch",
            Verb::Force(_) => "force",
            Verb::Audit => "audit",
            Verb::Top(_) => "top",
            Verb::Timeline(_) => "timeline",
            Verb::Completions { .. } => "completions",
            Verb::Man => "man",
        }
    }
}

/// The lock and the holder of the verbs for scripts.
#[derive(Args, Debug)]
pub(crate) struct HolderArgs {
    /// Name of the lock
    pub(crate) name: String,
    /// Name of the holder, such as the id of a job
    #[arg(long, value_name = "ID")]
    pub(crate) holder: String,
}

#[derive(Args, Debug)]
#[command(after_help = with_durations(ACQUIRE_CODES))]
pub(crate) struct AcquireArgs {
    #[command(flatten)]
    pub(crate) of: HolderArgs,
    /// The lock is free after this time, unless it is extended
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) lease: Duration,
    /// Do not wait if the lock is held
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long; without it, wait for ever
    #[arg(short = 'w', long, value_name = "D", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
}

#[derive(Args, Debug)]
#[command(after_help = with_durations(HOLDER_CODES))]
pub(crate) struct ExtendArgs {
    #[command(flatten)]
    pub(crate) of: HolderArgs,
    /// The lock is free after this time from now, if that is later than before
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    pub(crate) lease: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = HOLDER_CODES)]
pub(crate) struct ReleaseArgs {
    #[command(flatten)]
    pub(crate) of: HolderArgs,
}

/// How `run` and `once` wait for the lock and hold it, and the command that they run.
#[derive(Args, Debug)]
pub(crate) struct CommandArgs {
    /// Do not wait if the lock is held
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long; without it, wait for ever
    #[arg(short = 'w', long, value_name = "D", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit code if the lock was not acquired
    #[arg(
        short = 'E',
        long = "code",
        alias = "conflict-exit-code",
        value_name = "N",
        default_value_t = 1
    )]
    pub(crate) conflict_exit_code: u8,
    /// Name the holder if the lock is not acquired, or soon
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Terminate CMD after this time, exit with 75
    #[arg(long, value_name = "D", value_parser = duration::limit)]
    pub(crate) max_hold: Option<Duration>,
    /// Free this long after a crash [default: 30s]
    #[arg(long, value_name = "D", value_parser = duration::lease)]
    pub(crate) lease: Option<Duration>,
    /// Free after a crash when no process of CMD is left
    #[arg(long)]
    pub(crate) release_on_death: bool,
    /// Name of the lock
    #[arg(required_unless_present = "name_option", conflicts_with = "name_option")]
    pub(crate) name: Option<String>,
    /// Name of the lock, also with a hyphen in front: --name=-x
    #[arg(long = "name", id = "name_option", value_name = "NAME", allow_hyphen_values = true)]
    pub(crate) name_option: Option<String>,
    /// Command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl CommandArgs {
    /// Returns the name of the lock.
    pub(crate) fn lock_name(&self) -> &str {
        self.name.as_ref().or(self.name_option.as_ref()).map_or("", String::as_str)
    }
}

/// Run a command while holding a lock
///
/// Takes the lock NAME, runs CMD, and releases the lock when CMD ends. Exits with the code of CMD.
#[derive(Args, Debug)]
#[command(override_usage = "leasehold run [OPTIONS] NAME -- CMD [ARGS]...", after_help = with_durations(RUN_CODES))]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) call: CommandArgs,
    /// Accepted for the users of flock(1): the lock is exclusive without `-s`
    #[arg(short = 'x', short_alias = 'e', long, hide = true, conflicts_with = "shared")]
    exclusive: bool,
    /// Share with other `run -s`, exclude plain `run`
    #[arg(short = 's', long, group = "kind")]
    pub(crate) shared: bool,
    /// Fair lock: first come, first served
    #[arg(long, group = "kind")]
    pub(crate) fair: bool,
    /// By arrival and weight, sets LEASEHOLD_TOKEN
    #[arg(long, group = "kind")]
    pub(crate) queue: bool,
    /// Weight in the queue, 1 to 10: a higher one overtakes
    #[arg(
        long,
        value_name = "N",
        requires = "queue",
        value_parser = clap::value_parser!(u32).range(1..=10)
    )]
    pub(crate) weight: Option<u32>,
    /// Semaphore: at most N commands run at once
    #[arg(
        long,
        value_name = "N",
        group = "kind",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) permits: Option<u32>,
    /// Make N of --permits the number of permits, if it is another
    #[arg(long, requires = "permits")]
    pub(crate) resize: bool,
    /// Keep the lock this long, also if CMD ends before
    #[arg(long, value_name = "D", conflicts_with = "shared", value_parser = duration::parse)]
    pub(crate) min_hold: Option<Duration>,
}

/// Run a command unless its result is kept
///
/// Runs CMD under the lock KEY and commits its result, if CMD exits with 0. Later callers do not
/// run CMD while the result is kept.
#[derive(Args, Debug)]
#[command(
    override_usage = "leasehold once [OPTIONS] KEY (-- CMD [ARGS]... | --forget)",
    after_help = with_durations(ONCE_CODES),
    mut_arg("name", |it| it.value_name("KEY").help("Name of the work, and of its lock")),
    mut_arg("name_option", |it| it.value_name("KEY").help("KEY, also with a hyphen in front: --name=-x")),
    mut_arg("conflict_exit_code", |it| it.help("Exit code if another caller runs CMD")),
    mut_arg("nonblock", |it| it.help("Do not wait while another caller runs CMD")),
    mut_arg("verbose", |it| it.help("Name the caller that runs CMD, tell if CMD is not run")),
    mut_arg("command", |it| it.required(false).required_unless_present("forget")),
)]
pub(crate) struct OnceArgs {
    /// Keep the result this long
    #[arg(long, value_name = "D", default_value = "24h", value_parser = duration::limit)]
    pub(crate) keep: Duration,
    /// The result is the output of CMD: later callers print it
    #[arg(long)]
    pub(crate) output: bool,
    /// Delete the result, so that the next caller runs CMD
    #[arg(
        long,
        conflicts_with_all = [
            "keep",
            "output",
            "nonblock",
            "wait",
            "conflict_exit_code",
            "max_hold",
            "lease",
            "release_on_death",
            "command",
        ]
    )]
    pub(crate) forget: bool,
    #[command(flatten)]
    pub(crate) call: CommandArgs,
}

#[derive(Args, Debug)]
pub(crate) struct LsArgs {
    /// Names: `*` any text, `?` and `[ab]` one character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
}

#[derive(Args, Debug)]
#[command(after_help = LOCK_CODES)]
pub(crate) struct ShowArgs {
    /// Name of the lock or semaphore, or a pattern as for `ls`
    pub(crate) name: String,
}

#[derive(Args, Debug)]
#[command(after_help = DURATIONS)]
pub(crate) struct WatchArgs {
    /// Names of locks, or patterns as for `ls`
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Time between two looks
    #[arg(long, value_name = "D", default_value = "50ms", value_parser = duration::parse)]
    pub(crate) every: Duration,
}

#[derive(Args, Debug)]
#[command(after_help = LOCK_CODES)]
pub(crate) struct ForceArgs {
    /// Name of the lock
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
#[command(after_help = DURATIONS)]
pub(crate) struct TopArgs {
    /// Names: `*` any text, `?` and `[ab]` one character
    #[arg(default_value = "*")]
    pub(crate) pattern: String,
    /// Time between two looks
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// Order of the rows at the start
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sort: SortBy,
}

#[derive(Args, Debug)]
#[command(after_help = with_durations(TIMELINE_CODES))]
pub(crate) struct TimelineArgs {
    /// Names of locks to observe, or patterns as for `ls`
    #[arg(required_unless_present = "input", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Time for which the locks are observed
    #[arg(long = "for", value_name = "D", default_value = "10s", value_parser = duration::parse)]
    pub(crate) length: Duration,
    /// Time between two looks
    #[arg(long, value_name = "D", default_value = "20ms", value_parser = duration::parse)]
    pub(crate) every: Duration,
    /// Draw this file (of `watch --json`), observe nothing
    #[arg(long, value_name = "FILE", conflicts_with = "names")]
    pub(crate) input: Option<PathBuf>,
    /// File for the picture
    #[arg(short, long, value_name = "FILE.svg")]
    pub(crate) output: PathBuf,
}

fn with_durations(codes: &str) -> String {
    format!("{codes}\n{DURATIONS}")
}

/// Returns the definition of the command line.
///
/// A verb hides the global options that it does not use. The overview of all verbs hides those of
/// TLS, so that it fits a small screen.
pub(crate) fn definition() -> Command {
    let command = CommandLine::command();
    let options: Vec<Arg> = command.get_arguments().cloned().collect();
    let command = command.mut_subcommands(|verb| {
        let is_hidden = |option: &str| match option {
            "json" => WITHOUT_JSON.contains(&verb.get_name()),
            "help" => false,
            _ => WITHOUT_SERVER.contains(&verb.get_name()),
        };
        let options = options.iter().map(|option| {
            let hidden = is_hidden(option.get_id().as_str());
            option.clone().hide(hidden)
        });
        let options: Vec<Arg> = options.collect();
        verb.args(options)
    });
    command.mut_args(|option| {
        let hidden = TLS.contains(&option.get_id().as_str());
        option.hide(hidden)
    })
}

impl Arguments {
    /// Reads and checks the command line. Prints help and version, and exits then.
    pub(crate) fn read() -> Result<Arguments> {
        let line = definition()
            .try_get_matches()
            .and_then(|matches| CommandLine::from_arg_matches(&matches))
            .map_err(refused)?;
        let verb = line.verb.name();
        if line.json && WITHOUT_JSON.contains(&verb) {
            return Err(Failure::usage(format!("{verb} prints no JSON; leave --json out")));
        }
        let output = if line.json { Output::Json } else { Output::Text };
        Ok(Arguments { server: line.server, output, verb: line.verb })
    }
}

/// Returns the failure for a command line that cannot be read; exits for help and version.
fn refused(error: clap::Error) -> Failure {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            match print::print(&error.render().to_string()) {
                Ok(()) => process::exit(0),
                Err(failure) => failure,
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            print_note(definition().render_help().to_string().trim_end());
            process::exit(Code::Usage as i32)
        }
        _ => {
            let words = env::args_os().map(|word| word.to_string_lossy().into_owned());
            Failure::usage(summary(&error, &words.collect::<Vec<_>>()))
        }
    }
}

/// Returns the text of the error in one line: its first paragraph, and the usage.
///
/// Does not repeat a word of the command line that may be a URL with a password.
fn summary(error: &clap::Error, words: &[String]) -> String {
    let rendered = error.render().to_string();
    let mut text = rendered.strip_prefix("error: ").unwrap_or(&rendered).to_owned();
    for word in words {
        if let Some(url) = repeated_url(word, &text) {
            text = text.replace(url, "(URL)");
        }
    }
    let paragraphs: Vec<String> = text.split("\n\n").map(in_one_line).collect();
    let usage = paragraphs.iter().find_map(|paragraph| paragraph.strip_prefix("Usage: "));
    let advice = match (flock_advice(error), usage) {
        (Some(advice), _) => advice.to_owned(),
        (None, Some(usage)) => format!("usage: {usage}"),
        (None, None) => help_command(words),
    };
    format!("{}; {advice}", paragraphs.first().map_or("wrong usage", String::as_str))
}

/// Returns what `run` has in the place of an option of flock(1).
fn flock_advice(error: &clap::Error) -> Option<&'static str> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    match option.as_str() {
        "-c" | "--command" => Some("a shell is a command: leasehold run NAME -- sh -c 'CMD'"),
        "-o" | "--close" | "-F" | "--no-fork" => {
            Some("CMD inherits no lock, so run needs no such option")
        }
        "-u" | "--unlock" => {
            Some("run releases the lock when CMD ends; leasehold force NAME frees it at once")
        }
        _ => None,
    }
}

/// Returns the advice to read the help of the verb in the command line, or that of the program.
fn help_command(words: &[String]) -> String {
    let program = definition();
    let verb = words.iter().skip(1).find_map(|word| program.find_subcommand(word));
    verb.map_or("see leasehold --help".to_owned(), |verb| {
        format!("see leasehold {} --help", verb.get_name())
    })
}

/// Returns the longest end of a word that the text repeats, if it may be a URL with a password.
///
/// The word may begin with an option: `--every=redis://...`, `-wredis://...`.
fn repeated_url<'a>(word: &'a str, text: &str) -> Option<&'a str> {
    let may_be_url = |end: &&str| ["://", "@", "pass="].iter().any(|sign| end.contains(sign));
    let ends = word.char_indices().map(|(at, _)| &word[at..]);
    ends.take_while(may_be_url).find(|end| text.contains(end))
}

fn in_one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        definition().debug_assert();
    }

    #[test]
    fn the_notes_have_the_servers_of_the_readme() {
        for part in [
            "redis://[user][:password]@host[:port][/database]",
            "?db=database",
            "redis+unix:///path/to/socket[?db=database&user=user&pass=password]",
            "LEASEHOLD_LOGIN=user:password",
            "of any deployment, in place of the login in their URLs",
        ] {
            let readme = in_one_line(include_str!("../README.md"));
            assert!(NOTES.contains(part) && readme.contains(part), "{part}");
        }
    }

    fn error(words: &[&str]) -> String {
        let error = definition().try_get_matches_from(words).expect_err("wrong usage");
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        summary(&error, &words)
    }

    #[test]
    fn an_error_is_one_line_with_advice() {
        let text = error(&["leasehold", "run", "-n", "x", "true"]);
        let usage = "usage: leasehold run [OPTIONS] NAME -- CMD [ARGS]...";
        assert_eq!(text, format!("unexpected argument 'true' found; {usage}"));
        let text = error(&["leasehold", "run", "-w", "soon", "x", "--", "true"]);
        assert!(
            text.contains("`soon` is no duration") && text.contains("see leasehold run --help")
        );
        let text = error(&["leasehold", "--sentinel"]);
        assert!(text.ends_with("see leasehold --help"), "{text}");
    }

    #[test]
    fn options_of_flock_are_understood_or_the_error_says_what_to_use() {
        for option in ["-x", "-e", "--exclusive", "-n", "-s", "--verbose"] {
            let words = ["leasehold", "run", option, "x", "--", "true"];
            assert!(definition().try_get_matches_from(words).is_ok(), "{option}");
        }
        for (option, advice) in [
            ("-c", "sh -c 'CMD'"),
            ("-o", "inherits"),
            ("-F", "inherits"),
            ("-u", "leasehold force"),
        ] {
            let text = error(&["leasehold", "run", option, "x", "--", "true"]);
            assert!(text.contains(&format!("'{option}'")) && text.contains(advice), "{text}");
        }
    }

    #[test]
    fn an_error_shows_no_password() {
        for words in [
            &["leasehold", "redis://u:a secret@h/", "ls"][..],
            &["leasehold", "ls", "x", "redis://:a secret@h"],
            &["leasehold", "ls", "--uri=redis:/:a secret@h"],
            &["leasehold", "run", "--permits", "redis://:a secret", "x", "--", "true"],
            &["leasehold", "watch", "--every=:a secret@h", "x"],
            &["leasehold", "run", "-nwredis://:secret@h", "x", "--", "true"],
            &["leasehold", "ls", "x", "redis://:secret=secret@h"],
            &["leasehold", "ls", "x", "redis+unix:///run/redis.sock?user=a&pass=secret"],
        ] {
            let text = error(words);
            assert!(!text.contains("secret") && !text.contains('\n'), "{text}");
        }
    }
}
