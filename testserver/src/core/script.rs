//! Lua scripts, as Redis runs them.

use super::commands::{Action, Call, Outcome, find};
use super::resp::{Bytes, Reply, bytes_of, text_of};
use super::state::{ConnectionId, Failures, State};
use mlua::{Function, Lua, MultiValue, Table, Value};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// The name under which Lua's errors show a script.
const CHUNK: &str = "@user_script";

/// The error for a digest of no known script.
pub(crate) const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// What scripts see, and how they run. Redis does the same in C and in its own Lua.
const PRELUDE: &str = include_str!("prelude.lua");

/// Why a command of a script has not run, on its way through the script.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{text}")]
struct Refused {
    text: String,
    /// Whether the error has been counted. One that names no command counts when it is sent.
    is_counted: bool,
}

/// The known scripts, and the Lua that runs them.
#[derive(Debug)]
pub(crate) struct Scripts {
    lua: Lua,
    /// Runs a script between its keys and arguments and its outcome.
    run: Function,
    /// Makes a function of a script's text.
    compile: Function,
    known: HashMap<String, Function>,
    /// The connection whose script runs.
    caller: Rc<Cell<ConnectionId>>,
    /// The errors of the last script.
    failures: Failures,
}

impl Scripts {
    pub(crate) fn new(state: Rc<RefCell<State>>) -> Self {
        Self::build(state).expect("Lua runs the prelude")
    }

    fn build(state: Rc<RefCell<State>>) -> mlua::Result<Self> {
        let lua = Lua::new();
        let caller = Rc::new(Cell::new(ConnectionId(0)));
        let (own_state, own_caller) = (Rc::clone(&state), Rc::clone(&caller));
        let call = lua.create_function(move |lua, args: MultiValue| {
            let reply = self::call(&mut own_state.borrow_mut(), own_caller.get(), args);
            reply.map_err(mlua::Error::external).and_then(|reply| to_lua(lua, reply))
        })?;
        let own_caller = Rc::clone(&caller);
        let try_call = lua.create_function(move |lua, args: MultiValue| {
            let reply = self::call(&mut state.borrow_mut(), own_caller.get(), args);
            reply.map_or_else(|error| error.to_lua(lua), |reply| to_lua(lua, reply))
        })?;
        let settled = lua.create_function(|lua, problem: Value| match problem {
            Value::Error(error) => {
                let refused = error.chain().find_map(|cause| cause.downcast_ref::<Refused>());
                match refused {
                    Some(refused) => refused.to_lua(lua),
                    None => field(lua, "err", &format!("ERR {error}")),
                }
            }
            problem => Ok(problem),
        })?;
        let digest = lua.create_function(|_, text: mlua::LuaString| Ok(sha1(&text.as_bytes())))?;
        // The line of the script that is running, for errors.
        let line = lua.create_function(|lua, ()| {
            for level in 0.. {
                let line = lua.inspect_stack(level, |frame| {
                    let is_script = frame.source().source.as_deref() == Some(CHUNK);
                    is_script.then(|| frame.current_line()).flatten()
                });
                match line {
                    Some(None) => {}
                    Some(line) => return Ok(line),
                    None => break,
                }
            }
            Ok(None)
        })?;
        let prelude = lua.load(PRELUDE).set_name("@prelude");
        let (run, compile) = prelude.call((call, try_call, digest, settled, line))?;
        let (known, failures) = (HashMap::new(), Failures::default());
        Ok(Self { lua, run, compile, known, caller, failures })
    }

    /// Names the connection whose scripts run next.
    pub(crate) fn set_caller(&self, caller: ConnectionId) {
        self.caller.set(caller);
    }

    /// Makes a script known, and returns its digest.
    ///
    /// # Errors
    ///
    /// The text is no Lua.
    pub(crate) fn load(&mut self, text: &[u8]) -> Result<String, String> {
        let digest = sha1(text);
        if self.known.contains_key(&digest) {
            return Ok(digest);
        }
        // Lua would take it for a compiled script, which can do anything.
        if text.starts_with(b"\x1b") {
            let problem = "user_script:1: unexpected symbol near 'char(27)'";
            return Err(format!("ERR Error compiling script (new function): {problem}"));
        }
        if text.starts_with(b"#!") {
            return Err(super::commands::refusal("scripts with a shebang"));
        }
        let compiled = (|| {
            let text = self.lua.create_string(text)?;
            self.compile.call::<(Option<Function>, Option<mlua::LuaString>)>((text, CHUNK))
        })();
        let script = match compiled {
            Ok((Some(script), _)) => script,
            Ok((None, problem)) => {
                let problem = problem.map(|text| text_of(&text.as_bytes())).unwrap_or_default();
                return Err(format!("ERR Error compiling script (new function): {problem}"));
            }
            Err(error) => return Err(format!("ERR {error}")),
        };
        self.known.insert(digest.clone(), script);
        Ok(digest)
    }

    /// Tells whether a digest in lower case is known.
    pub(crate) fn has(&self, digest: &str) -> bool {
        self.known.contains_key(digest)
    }

    pub(crate) fn flush(&mut self) {
        self.known.clear();
    }

    /// Returns the errors that the last script has returned or raised.
    pub(crate) fn take_failures(&mut self) -> Failures {
        std::mem::take(&mut self.failures)
    }

    /// Runs the script with the digest, and returns what it returns.
    ///
    /// # Errors
    ///
    /// An error that has not been counted yet.
    pub(crate) fn run(&mut self, digest: &str, keys: &[Bytes], args: &[Bytes]) -> Outcome {
        let Some(script) = self.known.get(digest) else {
            return Err(NO_SCRIPT.to_owned());
        };
        let outcome = (|| {
            let (keys, args) = (self.texts(keys)?, self.texts(args)?);
            self.run.call::<(bool, Value, Option<i64>, bool)>((script, keys, args))
        })();
        match outcome {
            Ok((true, value, ..)) => {
                let reply = from_lua(value, &mut self.failures);
                reply.map_err(|error| format!("ERR {error}"))
            }
            Ok((false, error, line, is_counted)) => {
                let error = match error {
                    Value::String(text) => text_of(&text.as_bytes()),
                    _ => "ERR the error of the script has no text".to_owned(),
                };
                let error = match line {
                    Some(line) => format!("{error} script: {digest}, on {CHUNK}:{line}."),
                    None => error,
                };
                if !is_counted {
                    return Err(error);
                }
                self.failures.counted += 1;
                Ok(Reply::Error(error))
            }
            Err(error) => Err(format!("ERR {error}")),
        }
    }

    fn texts(&self, texts: &[Bytes]) -> mlua::Result<Table> {
        let table = self.lua.create_table_with_capacity(texts.len(), 0)?;
        for (at, text) in texts.iter().enumerate() {
            table.raw_set(at + 1, self.lua.create_string(text)?)?;
        }
        Ok(table)
    }
}

fn sha1(text: &[u8]) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

impl Refused {
    /// Returns the error as scripts see it.
    fn to_lua(&self, lua: &Lua) -> mlua::Result<Value> {
        let table = lua.create_table_with_capacity(0, 2)?;
        table.raw_set("err", lua.create_string(bytes_of(&self.text))?)?;
        if self.is_counted {
            table.raw_set("ignore_error_stats_update", true)?;
        }
        Ok(Value::Table(table))
    }
}

/// Runs a command of a script.
fn call(state: &mut State, caller: ConnectionId, args: MultiValue) -> Result<Reply, Refused> {
    let words = words(args).map_err(|text| Refused { text: text.to_owned(), is_counted: false })?;
    let reply = run_command(state, caller, &words);
    reply.map_err(|text| Refused { text, is_counted: true })
}

/// Returns the arguments of a command as Redis reads them.
fn words(args: MultiValue) -> Result<Vec<Bytes>, &'static str> {
    if args.is_empty() {
        return Err("ERR Please specify at least one argument for this redis lib call");
    }
    let words = args.iter().map(|arg| match arg {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(number) => Some(super::number::format_float(*number as f64).into_bytes()),
        Value::Number(number) => Some(super::number::format_float(*number).into_bytes()),
        _ => None,
    });
    let words: Option<Vec<Bytes>> = words.collect();
    words.ok_or("ERR Lua redis lib command arguments must be strings or integers")
}

fn run_command(state: &mut State, caller: ConnectionId, words: &[Bytes]) -> Outcome {
    let Ok(command) = find(words, &state.mode) else {
        let error = "ERR Unknown Redis command called from script";
        state.counts.add_error(error);
        return Err(error.to_owned());
    };
    let rejected = |state: &mut State, error: &str| state.rejected(command.name, error.to_owned());
    let Action::Data(run) = command.action else {
        return Err(rejected(state, "ERR This Redis command is not allowed from script"));
    };
    if !command.takes(words.len()) {
        return Err(rejected(state, "ERR Wrong number of args calling Redis command from script"));
    }
    state.admit(command)?;
    if let Some(elsewhere) = state.elsewhere(command, words) {
        return Err(rejected(state, elsewhere.error_in_script()));
    }
    state.script_has_written |= command.writes;
    state.run(command, words, |state| run(&mut Call { state, caller, args: words }))
}

/// Returns a reply as scripts see it: numbers as numbers, nil as false, the rest as texts and
/// tables.
fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let text = |text: &[u8]| lua.create_string(text).map(Value::String);
    Ok(match reply {
        Reply::Integer(number) => Value::Number(number as f64),
        Reply::Bulk(bytes) => text(&bytes)?,
        Reply::Verbatim(bytes) => text(bytes.as_bytes())?,
        Reply::Double(number) => text(super::number::format_float(number).as_bytes())?,
        Reply::Nil | Reply::NilArray | Reply::Sent => Value::Boolean(false),
        Reply::Status(text) => field(lua, "ok", &text)?,
        Reply::Error(text) => field(lua, "err", &text)?,
        Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => sequence(lua, items)?,
        Reply::Map(pairs) | Reply::Pairs(pairs) => {
            sequence(lua, pairs.into_iter().flat_map(|(key, value)| [key, value]))?
        }
    })
}

fn field(lua: &Lua, name: &str, text: &str) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(name, lua.create_string(bytes_of(text))?)?;
    Ok(Value::Table(table))
}

fn sequence(lua: &Lua, items: impl IntoIterator<Item = Reply>) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    for (at, item) in items.into_iter().enumerate() {
        table.raw_set(at + 1, to_lua(lua, item)?)?;
    }
    Ok(Value::Table(table))
}

/// Returns what a script has returned as a reply: numbers without their fractions, arrays up to
/// the first nil. Notes the errors in it.
fn from_lua(value: Value, failures: &mut Failures) -> mlua::Result<Reply> {
    Ok(match value {
        Value::Integer(number) => Reply::Integer(number),
        Value::Number(number) => Reply::Integer(whole(number)),
        Value::String(text) => Reply::bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Integer(1),
        Value::Table(table) => {
            if let Value::String(text) = table.raw_get::<Value>("err")? {
                let text = text_of(&text.as_bytes());
                match table.raw_get("ignore_error_stats_update")? {
                    Value::Boolean(true) => failures.counted += 1,
                    _ => failures.new.push(text.clone()),
                }
                return Ok(Reply::Error(text));
            }
            if let Value::String(text) = table.raw_get::<Value>("ok")? {
                return Ok(Reply::Status(text_of(&text.as_bytes()).replace(['\r', '\n'], " ")));
            }
            for name in ["double", "map", "set", "big_number", "verbatim_string"] {
                if !table.raw_get::<Value>(name)?.is_nil() {
                    let text = format!("replies with the field '{name}'");
                    let refusal = super::commands::refusal(&text);
                    failures.new.push(refusal.clone());
                    return Ok(Reply::Error(refusal));
                }
            }
            let mut items = Vec::new();
            for at in 1.. {
                match table.raw_get::<Value>(at)? {
                    Value::Nil => break,
                    item => items.push(from_lua(item, failures)?),
                }
            }
            Reply::Array(items)
        }
        _ => Reply::Nil,
    })
}

/// Returns a number without its fraction, as C does: the least number for one that does not fit.
fn whole(number: f64) -> i64 {
    if number.abs() < 9_223_372_036_854_775_808.0 { number as i64 } else { i64::MIN }
}
