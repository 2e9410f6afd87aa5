//! The commands, in one table per group.

mod cluster;
mod connections;
mod hashes;
mod keys;
mod lists;
mod messages;
mod replication;
mod scripts;
mod sentinels;
mod server;
mod sets;
mod sorted_sets;
mod texts;

use super::number;
use super::resp::{Bytes, Reply, text_of};
use super::script::Scripts;
use super::state::{ConnectionId, Mode, State};
use super::store::{Entry, Keyspace, Kind};
use std::collections::HashMap;
use std::sync::OnceLock;

/// The version of Redis whose answers this server gives.
pub(crate) const VERSION: &str = "7.0.15";

pub(crate) const SYNTAX: &str = "ERR syntax error";
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NOT_POSITIVE: &str = "ERR value is out of range, must be positive";
const NO_FLOAT: &str = "ERR value is not a valid float";

/// A reply, or the text of an error with its code.
pub(crate) type Outcome = Result<Reply, String>;

/// A command, or a subcommand such as `CLIENT|ID`.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) name: &'static str,
    /// The number of arguments with the name, or the least number if it is negative.
    arity: i32,
    /// Whether it changes data.
    pub(crate) writes: bool,
    /// Whether it may need memory.
    pub(crate) grows: bool,
    keys: Keys,
    pub(crate) action: Action,
}

/// Which arguments of a command are keys, or channels of a shard.
#[derive(Clone, Copy, Debug)]
enum Keys {
    None,
    First,
    FirstTwo,
    All,
    /// Each second one.
    OfPairs,
    /// As many as the second argument says, behind it.
    Counted,
}

/// What runs a command.
#[derive(Debug)]
pub(crate) enum Action {
    /// Reads and changes data, and may stand in a script.
    Data(fn(&mut Call<'_>) -> Outcome),
    /// Concerns the connection or the server, and may not stand in a script.
    Control(fn(&mut Call<'_>) -> Outcome),
    /// Concerns scripts.
    Script(fn(&mut Scripts, &[Bytes]) -> Outcome),
}

impl Command {
    const fn read(name: &'static str, arity: i32, run: fn(&mut Call<'_>) -> Outcome) -> Self {
        let action = Action::Data(run);
        Self { name, arity, writes: false, grows: false, keys: Keys::First, action }
    }

    /// A read without a key.
    const fn keyless(name: &'static str, arity: i32, run: fn(&mut Call<'_>) -> Outcome) -> Self {
        Self::read(name, arity, run).with(Keys::None)
    }

    const fn write(name: &'static str, arity: i32, run: fn(&mut Call<'_>) -> Outcome) -> Self {
        Self { writes: true, ..Self::read(name, arity, run) }
    }

    /// A write that a server without memory refuses.
    const fn growing(name: &'static str, arity: i32, run: fn(&mut Call<'_>) -> Outcome) -> Self {
        Self { grows: true, ..Self::write(name, arity, run) }
    }

    const fn control(name: &'static str, arity: i32, run: fn(&mut Call<'_>) -> Outcome) -> Self {
        let action = Action::Control(run);
        Self { name, arity, writes: false, grows: false, keys: Keys::None, action }
    }

    const fn script(
        name: &'static str,
        arity: i32,
        run: fn(&mut Scripts, &[Bytes]) -> Outcome,
    ) -> Self {
        let action = Action::Script(run);
        Self { name, arity, writes: false, grows: false, keys: Keys::None, action }
    }

    const fn with(self, keys: Keys) -> Self {
        Self { keys, ..self }
    }

    /// Returns the keys among the arguments; none if the arguments do not fit.
    pub(crate) fn keys<'a>(&self, args: &'a [Bytes]) -> Vec<&'a Bytes> {
        let rest = args.get(1..).unwrap_or_default();
        match self.keys {
            Keys::None => Vec::new(),
            Keys::First => rest.iter().take(1).collect(),
            Keys::FirstTwo => rest.iter().take(2).collect(),
            Keys::All => rest.iter().collect(),
            Keys::OfPairs => rest.iter().step_by(2).collect(),
            Keys::Counted => {
                let count = rest.get(1).and_then(|count| number::parse_integer(count));
                let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
                rest.get(2..)
                    .and_then(|rest| rest.get(..count))
                    .unwrap_or_default()
                    .iter()
                    .collect()
            }
        }
    }

    /// Tells whether the command takes so many arguments, its name included.
    pub(crate) fn takes(&self, count: usize) -> bool {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        if self.arity < 0 { count >= -self.arity } else { count == self.arity }
    }
}

/// Why no command fits the arguments.
#[derive(Debug)]
pub(crate) enum Unknown {
    Command,
    Subcommand { container: &'static str },
}

/// The commands that only have subcommands.
const CONTAINERS: &[&str] = &["CLIENT", "CLUSTER", "CONFIG", "PUBSUB", "SCRIPT", "SENTINEL"];

/// Finds the command that the arguments name. A sentinel has few of them.
///
/// # Errors
///
/// The server has no such command or subcommand.
pub(crate) fn find(args: &[Bytes], mode: &Mode) -> Result<&'static Command, Unknown> {
    static TABLE: OnceLock<HashMap<&'static str, &'static Command>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let groups = [
            cluster::COMMANDS,
            connections::COMMANDS,
            hashes::COMMANDS,
            keys::COMMANDS,
            lists::COMMANDS,
            messages::COMMANDS,
            replication::COMMANDS,
            scripts::COMMANDS,
            sentinels::COMMANDS,
            server::COMMANDS,
            sets::COMMANDS,
            sorted_sets::COMMANDS,
            texts::COMMANDS,
        ];
        groups.into_iter().flatten().map(|command| (command.name, command)).collect()
    });
    let name = upper(&args[0]);
    let is_missing = match mode {
        Mode::Sentinel(_) => !sentinels::OF_SENTINELS.contains(&&*name),
        Mode::Standalone | Mode::Cluster(_) => name == "SENTINEL",
    };
    if is_missing {
        return Err(Unknown::Command);
    }
    if let Some(command) = table.get(&*name) {
        return Ok(command);
    }
    let container = CONTAINERS.iter().find(|container| **container == name);
    let container = container.ok_or(Unknown::Command)?;
    let subcommand = args.get(1).map(|arg| upper(arg)).unwrap_or_default();
    let found = table.get(&*format!("{name}|{subcommand}")).copied();
    found.ok_or(Unknown::Subcommand { container })
}

/// One call of a command, by a connection or by a script.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) state: &'a mut State,
    /// The connection that sent the command or the script.
    pub(crate) caller: ConnectionId,
    /// The name of the command, then its arguments.
    pub(crate) args: &'a [Bytes],
}

impl<'a> Call<'a> {
    /// Returns the number of arguments, with the command's name.
    fn len(&self) -> usize {
        self.args.len()
    }

    /// Returns the key, which is the first argument of most commands.
    fn key(&self) -> &'a Bytes {
        &self.args[1]
    }

    /// Returns an argument in upper case, as names of options are compared.
    fn upper(&self, at: usize) -> String {
        self.args.get(at).map(|arg| upper(arg)).unwrap_or_default()
    }

    fn integer(&self, at: usize) -> Result<i64, String> {
        integer(&self.args[at])
    }

    /// Returns how many items a command pops, if it says so in its last argument.
    fn pop_count(&self) -> Result<Option<usize>, String> {
        let Some(count) = self.args.get(2) else { return Ok(None) };
        let count = number::parse_integer(count).filter(|count| *count >= 0);
        let count = count.ok_or(NOT_POSITIVE)?;
        Ok(Some(usize::try_from(count).unwrap_or(usize::MAX)))
    }

    fn float(&self, at: usize) -> Result<f64, String> {
        float(&self.args[at])
    }

    /// Returns the time in milliseconds since 1970. It stands still during a command.
    fn now(&self) -> i64 {
        self.state.now_ms()
    }

    /// Returns the keys of the caller's database.
    fn keys(&mut self) -> &mut Keyspace {
        self.state.keys()
    }

    /// Returns the entry of a key that exists.
    fn entry(&mut self, key: &[u8]) -> Option<&mut Entry> {
        self.state.entry(key)
    }

    /// Returns the value of a key that exists.
    ///
    /// # Errors
    ///
    /// The key holds a value of another type.
    fn value<T: Kind + 'static>(&mut self, key: &[u8]) -> Result<Option<&mut T>, String> {
        match self.entry(key) {
            None => Ok(None),
            Some(entry) => T::of(&mut entry.value).map(Some).ok_or_else(|| WRONG_TYPE.to_owned()),
        }
    }

    /// Changes the value of a key, which is made if it is missing. A value of which nothing is left
    /// has no key.
    fn change<T: Kind + 'static, R>(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut T) -> R,
    ) -> Result<R, String> {
        if let Some(value) = self.value(key)? {
            let result = change(value);
            self.keys().remove_if_empty(key);
            return Ok(result);
        }
        let mut value = T::default();
        let result = change(&mut value);
        let value = value.into_value();
        if !value.is_empty() {
            self.keys().set(key, Entry { value, expires: None });
        }
        Ok(result)
    }
}

/// Returns a name in upper case.
pub(crate) fn upper(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_ascii_uppercase()
}

fn integer(text: &[u8]) -> Result<i64, String> {
    number::parse_integer(text).ok_or_else(|| NO_INTEGER.to_owned())
}

fn float(text: &[u8]) -> Result<f64, String> {
    if number::is_hexadecimal(text) {
        return Err(refusal("hexadecimal numbers"));
    }
    number::parse_float(text).ok_or_else(|| NO_FLOAT.to_owned())
}

/// Returns the error for what Redis does and this server does not.
pub(crate) fn refusal(what: &str) -> String {
    format!("ERR the test server does not have {what}")
}

/// Returns the error for a wrong number of arguments.
pub(crate) fn wrong_arity(command: &str) -> String {
    format!("ERR wrong number of arguments for '{}' command", command.to_ascii_lowercase())
}

/// Returns the error for a subcommand that the server lacks, or that has too many arguments.
pub(crate) fn unfit_subcommand(container: &str, subcommand: &[u8]) -> String {
    let subcommand = text_of(subcommand);
    format!(
        "ERR unknown subcommand or wrong number of arguments for '{subcommand}'. \
         Try {container} HELP."
    )
}

/// Returns the range of a sequence that two indices name, of which negative ones count from the
/// end.
fn range(start: i64, stop: i64, len: usize) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from = if start < 0 { (len + start).max(0) } else { start };
    let to = if stop < 0 { len + stop } else { stop.min(len - 1) };
    if from > to || from >= len { 0..0 } else { from as usize..to as usize + 1 }
}
