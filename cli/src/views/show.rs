//! `leasehold show`: all facts about one lock, or about all locks that match a pattern.

use std::process::ExitCode;
use std::time::SystemTime;

use leasehold::{Client, HolderInfo, LockInfo, WaitingInfo};
use serde::Serialize;

use super::count::Count;
use super::json::LockView;
use super::kept::Kept;
use super::pattern;
use super::print;
use super::table::{self, Column};
use super::text::{self, UNKNOWN};
use crate::address::Server;
use crate::args::ShowArgs;
use crate::failure::{Code, Output, Result};
use crate::observe::snapshot::since_1970;

/// The columns of the queue.
const QUEUE: [Column; 7] = [
    Column::number("PLACE", 9),
    Column::text("CALLER", 8, 2),
    Column::text("HOST", 6, 4),
    Column::number("PID", 5),
    Column::text("PROGRAM", 7, 3),
    Column::text("LABEL", 5, 1),
    Column::number("WAITED", 8),
];

/// The fact about a process that is known and does not answer.
const NO_ANSWER: &str = "none: the process may have died, be stopped or cut off";

/// The width of the names of facts.
const TITLES: usize = 14;

pub(crate) fn run(server: &Server, arguments: &ShowArgs, output: Output) -> Result<ExitCode> {
    let (client, name) = (server.connect()?, &arguments.name);
    if pattern::is_pattern(name) {
        return show_all(&client, name, output);
    }
    let shown = match client.lock_info(name)? {
        Some(lock) => one(&lock, output)?,
        None => match not_held(&client, name, output)? {
            Some(shown) => shown,
            None => return is_free(name, output),
        },
    };
    print::print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns what a name without a holder stands for: a number, or the result of work.
fn not_held(client: &Client, name: &str, output: Output) -> Result<Option<String>> {
    if let Some(count) = Count::find(client, name)? {
        return shown(&count, Count::describe, output).map(Some);
    }
    let kept = Kept::find(client, name)?;
    kept.map(|kept| shown(&kept, Kept::describe, output)).transpose()
}

fn shown<T: Serialize>(it: &T, describe: fn(&T) -> String, output: Output) -> Result<String> {
    match output {
        Output::Json => print::json(it),
        Output::Text => Ok(describe(it)),
    }
}

/// Shows the locks whose names match the pattern.
fn show_all(client: &Client, pattern: &str, output: Output) -> Result<ExitCode> {
    let mut locks = client.locks(pattern)?.collect::<leasehold::Result<Vec<_>>>()?;
    locks.sort_by(|a, b| a.name().cmp(b.name()));
    let shown = match output {
        Output::Json => print::json_array(locks.iter().map(LockView::of))?,
        Output::Text if locks.is_empty() => return is_free(pattern, output),
        Output::Text => {
            let width = table::terminal_width();
            locks.iter().map(|lock| describe(lock, width)).collect::<Vec<_>>().join("\n")
        }
    };
    print::print(&shown)?;
    Ok(if locks.is_empty() { Code::Negative.into() } else { ExitCode::SUCCESS })
}

fn one(lock: &LockInfo, output: Output) -> Result<String> {
    match output {
        Output::Json => print::json(&LockView::of(lock)),
        Output::Text => Ok(describe(lock, table::terminal_width())),
    }
}

fn is_free(name: &str, output: Output) -> Result<ExitCode> {
    print::print(&match output {
        Output::Json => print::json(&())?,
        Output::Text => format!("{} is free\n", text::printable(name)),
    })?;
    Ok(Code::Negative.into())
}

/// Returns all facts about a lock.
fn describe(lock: &LockInfo, width: Option<usize>) -> String {
    let facts = [
        ("name", Some(text::printable(lock.name()).into_owned())),
        ("kind", Some(text::printable(text::short_kind(lock.kind())).into_owned())),
        ("holders", Some(holders(lock))),
        ("permits", permits(lock)),
        ("leader", lock.leader_value().map(|value| text::printable(value).into_owned())),
        ("lease left", Some(left(lock.remaining().map(|it| it.as_secs_f64())))),
        ("last token", lock.token().map(|token| token.to_string())),
        ("waiting", Some(waiting(lock.waiting()))),
    ];
    let counted = if lock.permits().is_some() { "  permits" } else { "  guards" };
    let mut shown = lines(facts);
    for (number, holder) in lock.holders().iter().enumerate() {
        shown += &format!("\nholder {}\n{}", number + 1, describe_holder(holder, counted));
    }
    if let Some(holder) = lock.former_holder() {
        shown += &format!("\nformer holder\n{}", describe_former_holder(holder));
    }
    let queue = lock.waiting().queue();
    if !queue.is_empty() {
        let rows: Vec<_> = queue.iter().enumerate().map(|(at, it)| queue_row(at, it)).collect();
        shown += &format!("\n{}", table::render(&QUEUE, &rows, width));
    }
    shown
}

fn lines<const N: usize>(facts: [(&str, Option<String>); N]) -> String {
    let line = |(title, fact)| Some(format!("{title:TITLES$}{}\n", fact?));
    facts.into_iter().filter_map(line).collect()
}

fn holders(lock: &LockInfo) -> String {
    match lock.holders().len() {
        0 => "none: the minimum of a hold that has ended keeps the lock".to_owned(),
        count => count.to_string(),
    }
}

/// Returns the permits of a semaphore.
fn permits(lock: &LockInfo) -> Option<String> {
    Some(format!("{}, {} in use", lock.permits()?, lock.in_use()?))
}

fn left(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "unlimited".to_owned(), text::brief)
}

fn waiting(waiting: &WaitingInfo) -> String {
    let plural = |count: u64| if count == 1 { "" } else { "es" };
    let processes = format!("{} process{}", waiting.processes(), plural(waiting.processes()));
    match waiting.queue().len() {
        0 => processes,
        1 => format!("1 caller of {processes}"),
        callers => format!("{callers} callers of {processes}"),
    }
}

/// Returns the known facts about a holder. `counted` is the title of its count.
fn describe_holder(holder: &HolderInfo, counted: &str) -> String {
    let hold = lines([
        ("  answer", text::is_silent(holder).then(|| NO_ANSWER.to_owned())),
        (
            "  use",
            holder.is_idle().then(|| "idle: the hold lingers for the next caller".to_owned()),
        ),
        ("  thread", thread(holder)),
        ("  since", since(holder)),
        ("  lease left", Some(left(holder.remaining().map(|it| it.as_secs_f64())))),
        (counted, Some(holder.count().to_string())),
        ("  slot", Some(text::slots(holder)).filter(|slots| !slots.is_empty())),
        ("  waiting", holder.local_waiters().map(|count| format!("{count} in its process"))),
        ("  holds", holder.acquired().map(|count| format!("{count} of its process so far"))),
    ]);
    describe_process(holder) + &hold
}

/// Returns the facts about the holder that has released the lock before its minimum.
fn describe_former_holder(holder: &HolderInfo) -> String {
    describe_process(holder) + &lines([("  acquired", since(holder))])
}

fn describe_process(holder: &HolderInfo) -> String {
    let fact = |fact: Option<&str>| fact.map(|it| text::printable(it).into_owned());
    lines([
        ("  owner", fact(Some(holder.owner()))),
        ("  client", holder.client_id().map(|id| id.to_string())),
        ("  host", fact(holder.host())),
        ("  pid", holder.pid().map(|pid| pid.to_string())),
        ("  program", fact(holder.program())),
        ("  label", fact(holder.label())),
        ("  version", fact(holder.version())),
        ("  started", holder.started().map(moment)),
        ("  instance", fact(holder.instance())),
        ("  ends", holder.ends_with_process().then(|| "with its process".to_owned())),
    ])
}

/// Returns the moment of the acquire, and its age.
fn since(holder: &HolderInfo) -> Option<String> {
    let age = text::age(holder).map_or_else(String::new, text::brief);
    Some(format!("{} ({age} ago)", moment(holder.since()?)))
}

fn moment(time: SystemTime) -> String {
    format!("{} local time", text::date_and_time(since_1970(time)))
}

/// Returns the name and the number of the thread.
fn thread(holder: &HolderInfo) -> Option<String> {
    let number = holder.thread_number()?.to_string();
    match holder.thread().filter(|name| !name.is_empty() && *name != number) {
        Some(name) => Some(format!("{} (number {number})", text::printable(name))),
        None => Some(format!("number {number}")),
    }
}

fn queue_row(position: usize, caller: &HolderInfo) -> Vec<String> {
    let text = |text: Option<&str>| text.map_or_else(String::new, |it| text::printable(it).into());
    vec![
        (position + 1).to_string(),
        text::short_owner(caller),
        text(caller.host()),
        caller.pid().map_or_else(String::new, |pid| pid.to_string()),
        text(caller.program()),
        text(caller.label()),
        text::age(caller).map_or(UNKNOWN.to_owned(), text::brief),
    ]
}
