//! Connections: protocol, login, names, and what is known of them.

use super::super::resp::{Bytes, Reply, text_of};
use super::super::state::{Connection, ConnectionId, DATABASES, Mode, State};
use super::{Call, Command, Outcome, SYNTAX, refusal, unfit_subcommand, upper, wrong_arity};

pub(super) const COMMANDS: &[Command] = &[
    Command::control("AUTH", -2, auth),
    Command::control("CLIENT|GETNAME", 2, |call| {
        let name = call.connection()?.name.clone();
        Ok(if name.is_empty() { Reply::Nil } else { Reply::Bulk(name) })
    }),
    Command::control("CLIENT|ID", 2, |call| Ok(Reply::Integer(call.caller.0 as i64))),
    Command::control("CLIENT|INFO", 2, |call| {
        let caller = call.caller;
        call.connection()?;
        Ok(Reply::Verbatim(describe(call.state, caller, &call.state.connections[&caller])))
    }),
    Command::control("CLIENT|KILL", -3, kill),
    Command::control("CLIENT|LIST", -2, list),
    Command::control("CLIENT|PAUSE", -3, pause),
    Command::control("CLIENT|SETNAME", 3, |call| {
        let name = call.args[2].clone();
        set_name(call.connection()?, name)?;
        Ok(Reply::ok())
    }),
    Command::control("CLIENT|UNBLOCK", -3, unblock),
    // Also this waits for the end of a pause.
    Command::control("CLIENT|UNPAUSE", 2, |_| Ok(Reply::ok())),
    Command::keyless("ECHO", 2, |call| Ok(Reply::bulk(call.args[1].clone()))),
    Command::control("HELLO", -1, hello),
    Command::keyless("PING", -1, ping),
    Command::control("QUIT", -1, |call| {
        call.connection()?.is_closing = true;
        Ok(Reply::ok())
    }),
    Command::control("RESET", 1, reset),
    Command::control("SELECT", 2, select),
];

const NO_NAME: &str = "ERR Client names cannot contain spaces, newlines or special characters.";

impl Call<'_> {
    /// Returns the connection that called.
    pub(super) fn connection(&mut self) -> Result<&mut Connection, String> {
        let connection = self.state.connections.get_mut(&self.caller);
        connection.ok_or_else(|| "ERR the connection has ended".to_owned())
    }
}

fn set_name(connection: &mut Connection, name: Bytes) -> Result<(), String> {
    if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
        return Err(NO_NAME.to_owned());
    }
    connection.name = name;
    Ok(())
}

fn auth(call: &mut Call<'_>) -> Outcome {
    let (user, password) = match call.args {
        [_, _] if call.state.settings.password.is_empty() => {
            let text = "ERR AUTH <password> called without any password configured for the \
                        default user. Are you sure your configuration is correct?";
            return Err(text.to_owned());
        }
        [_, password] => (&b"default"[..], password),
        [_, user, password] => (&user[..], password),
        _ => return Err(SYNTAX.to_owned()),
    };
    log_in(call.state, call.caller, user, password)?;
    Ok(Reply::ok())
}

/// Logs a connection in.
fn log_in(
    state: &mut State,
    caller: ConnectionId,
    user: &[u8],
    password: &[u8],
) -> Result<(), String> {
    let expected = &state.settings.password;
    let fits = expected.is_empty() || expected.as_bytes() == password;
    if user != b"default" || !fits {
        let text = "WRONGPASS invalid username-password pair or user is disabled.";
        return Err(text.to_owned());
    }
    if let Some(connection) = state.connections.get_mut(&caller) {
        connection.is_logged_in = true;
    }
    Ok(())
}

fn hello(call: &mut Call<'_>) -> Outcome {
    let protocol = match call.args.get(1) {
        Some(version) => {
            let text = "ERR Protocol version is not an integer or out of range";
            let version = super::integer(version).map_err(|_| text)?;
            if !(2..=3).contains(&version) {
                return Err("NOPROTO unsupported protocol version".to_owned());
            }
            Some(version)
        }
        None => None,
    };
    let (mut name, mut at) = (None, 2);
    while at < call.len() {
        match &*call.upper(at) {
            "AUTH" if at + 2 < call.len() => {
                let (user, password) = (&call.args[at + 1], &call.args[at + 2]);
                log_in(call.state, call.caller, user, password)?;
                at += 3;
            }
            "SETNAME" if at + 1 < call.len() => {
                name = Some(call.args[at + 1].clone());
                at += 2;
            }
            _ => {
                let option = text_of(&call.args[at]);
                return Err(format!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
    }
    let caller = call.caller;
    let mode = call.state.mode.name();
    let role = if call.state.replication.master.is_some() { "replica" } else { "master" };
    // A sentinel has no role.
    let role = (mode != "sentinel").then(|| ("role", Reply::bulk(role)));
    let connection = call.connection()?;
    if !connection.is_logged_in {
        let text = "NOAUTH HELLO must be called with the client already authenticated, otherwise \
                    the HELLO AUTH <user> <pass> option can be used to authenticate the \
                    client and select the RESP protocol version at the same time";
        return Err(text.to_owned());
    }
    if let Some(name) = name {
        set_name(connection, name)?;
    }
    if let Some(protocol) = protocol {
        connection.resp3 = protocol == 3;
    }
    let protocol = if connection.resp3 { 3 } else { 2 };
    let facts = [
        ("server", Reply::bulk("redis")),
        ("version", Reply::bulk(super::VERSION)),
        ("proto", Reply::Integer(protocol)),
        ("id", Reply::Integer(caller.0 as i64)),
        ("mode", Reply::bulk(mode)),
    ];
    let facts = facts.into_iter().chain(role).chain([("modules", Reply::Array(Vec::new()))]);
    Ok(Reply::Map(facts.map(|(name, value)| (Reply::bulk(name), value)).collect()))
}

fn ping(call: &mut Call<'_>) -> Outcome {
    if call.len() > 2 {
        return Err(wrong_arity("ping"));
    }
    let text = call.args.get(1);
    if call.connection().is_ok_and(|it| !it.resp3 && it.is_subscriber()) {
        let text = text.cloned().unwrap_or_default();
        return Ok(Reply::Array(vec![Reply::bulk("pong"), Reply::Bulk(text)]));
    }
    Ok(match text {
        Some(text) => Reply::Bulk(text.clone()),
        None => Reply::Status("PONG".to_owned()),
    })
}

fn reset(call: &mut Call<'_>) -> Outcome {
    let needs_login = !call.state.settings.password.is_empty();
    let connection = call.connection()?;
    *connection = Connection {
        is_logged_in: !needs_login,
        input: std::mem::take(&mut connection.input),
        output: std::mem::take(&mut connection.output),
        connected_at: connection.connected_at,
        last_used: connection.last_used,
        ..Connection::default()
    };
    Ok(Reply::Status("RESET".to_owned()))
}

fn select(call: &mut Call<'_>) -> Outcome {
    let database = call.integer(1)?;
    if i32::try_from(database).is_err() {
        let text = "ERR value is out of range, value must between -2147483648 and 2147483647";
        return Err(text.to_owned());
    }
    if database != 0 && matches!(call.state.mode, Mode::Cluster(_)) {
        return Err("ERR SELECT is not allowed in cluster mode".to_owned());
    }
    let database = usize::try_from(database).ok().filter(|database| *database < DATABASES);
    call.connection()?.database = database.ok_or("ERR DB index is out of range")?;
    Ok(Reply::ok())
}

/// Returns a connection's line of `CLIENT LIST`.
fn describe(state: &State, id: ConnectionId, connection: &Connection) -> String {
    let seconds = |since: i64| (state.now - since).max(0) / 1_000_000;
    let flags = match (connection.is_subscriber(), state.is_blocked(id)) {
        (false, false) => "N",
        (false, true) => "b",
        (true, false) => "P",
        (true, true) => "Pb",
    };
    format!(
        "id={} addr=127.0.0.1:{} laddr=127.0.0.1:0 fd={} name={} age={} idle={} flags={} db={} \
         sub={} psub={} ssub={} multi=-1 qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 \
         obl={} oll=0 omem=0 tot-mem=0 events=r cmd={} user=default redir=-1 resp={}\n",
        id.0,
        10_000 + id.0 % 50_000,
        id.0,
        String::from_utf8_lossy(&connection.name),
        seconds(connection.connected_at),
        seconds(connection.last_used),
        flags,
        connection.database,
        connection.channels.len(),
        connection.patterns.len(),
        connection.shard_channels.len(),
        connection.output.len(),
        connection.last_command,
        if connection.resp3 { 3 } else { 2 },
    )
}

/// Reads a number of a connection.
fn id(text: &[u8]) -> Option<ConnectionId> {
    let id = super::number::parse_integer(text).filter(|id| *id > 0)?;
    u64::try_from(id).ok().map(ConnectionId)
}

/// Tells whether a connection is of the type with the given name in upper case.
fn is_of_type(connection: &Connection, name: &str) -> bool {
    match name {
        "PUBSUB" => connection.is_subscriber(),
        "NORMAL" => !connection.is_subscriber(),
        _ => false,
    }
}

/// Reads the name of a type of connections.
fn type_name(text: &[u8]) -> Result<String, String> {
    let name = upper(text);
    let is_known = ["NORMAL", "PUBSUB", "MASTER", "REPLICA", "SLAVE"].contains(&&*name);
    if is_known { Ok(name) } else { Err(format!("ERR Unknown client type '{}'", text_of(text))) }
}

fn list(call: &mut Call<'_>) -> Outcome {
    let (mut wanted_type, mut wanted_ids) = (None, None);
    match (&*call.upper(2), call.len()) {
        ("", 2) => {}
        ("TYPE", 4) => wanted_type = Some(type_name(&call.args[3])?),
        ("ID", 4..) => {
            let ids = call.args[3..].iter().map(|text| id(text));
            let ids: Option<Vec<ConnectionId>> = ids.collect();
            wanted_ids = Some(ids.ok_or("ERR Invalid client ID")?);
        }
        _ => return Err(SYNTAX.to_owned()),
    }
    let lines = call.state.clients().filter(|(id, connection)| {
        wanted_type.as_ref().is_none_or(|name| is_of_type(connection, name))
            && wanted_ids.as_ref().is_none_or(|ids| ids.contains(id))
    });
    let lines = lines.map(|(id, connection)| describe(call.state, id, connection));
    Ok(Reply::Verbatim(lines.collect()))
}

fn pause(call: &mut Call<'_>) -> Outcome {
    if call.len() > 4 {
        return Err(unfit_subcommand("CLIENT", &call.args[1]));
    }
    match &*call.upper(3) {
        "" if call.len() == 3 => {}
        "ALL" => {}
        "WRITE" => return Err(refusal("CLIENT PAUSE WRITE")),
        _ => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL".to_owned()),
    }
    let time = super::number::parse_integer(&call.args[2]);
    let time = time.ok_or("ERR timeout is not an integer or out of range")?;
    if time < 0 {
        return Err("ERR timeout is negative".to_owned());
    }
    // A time that does not fit is in the past, as in C.
    let end = call.now().wrapping_add(time);
    if end >= call.now() {
        call.state.paused_until = Some(end);
    }
    Ok(Reply::ok())
}

/// Ends the wait of another connection.
fn unblock(call: &mut Call<'_>) -> Outcome {
    let is_error = match (&*call.upper(3), call.len()) {
        ("", 3) | ("TIMEOUT", 4) => false,
        ("ERROR", 4) => true,
        (_, 4) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".to_owned()),
        _ => return Err(unfit_subcommand("CLIENT", &call.args[1])),
    };
    let id = u64::try_from(call.integer(2)?).map(ConnectionId);
    let State { connections, replication, counts, released, .. } = &mut *call.state;
    let waits = id.ok().and_then(|id| Some((id, replication.waits.remove(&id)?)));
    let Some((id, wait)) = waits else { return Ok(Reply::Integer(0)) };
    let reply = if is_error {
        let error = "UNBLOCKED client unblocked via CLIENT UNBLOCK";
        counts.add_error(error);
        counts.calls.entry("CLIENT|UNBLOCK").or_default().failed += 1;
        Reply::Error(error.to_owned())
    } else {
        Reply::count(replication.count(wait.offset))
    };
    // Redis counts a failure either way.
    counts.calls.entry("WAIT").or_default().failed += 1;
    if let Some(connection) = connections.get_mut(&id) {
        connection.send(&reply);
    }
    released.push(id);
    Ok(Reply::Integer(1))
}

fn kill(call: &mut Call<'_>) -> Outcome {
    if call.len() == 3 {
        return Err(refusal("CLIENT KILL with an address"));
    }
    let (mut wanted_id, mut wanted_type, mut spares_caller) = (None, None, true);
    let (options, []) = call.args[2..].as_chunks::<2>() else { return Err(SYNTAX.to_owned()) };
    for [option, value] in options {
        match &*upper(option) {
            "ID" => {
                let id = id(value).ok_or("ERR client-id should be greater than 0")?;
                wanted_id = Some(id);
            }
            "TYPE" => wanted_type = Some(type_name(value)?),
            "SKIPME" => {
                spares_caller = match &*upper(value) {
                    "YES" => true,
                    "NO" => false,
                    _ => return Err(SYNTAX.to_owned()),
                }
            }
            "ADDR" | "LADDR" | "USER" => return Err(refusal("this filter of CLIENT KILL")),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    let mut count = 0;
    for (id, connection) in &mut call.state.connections {
        let is_wanted = wanted_id.is_none_or(|wanted| wanted == *id)
            && wanted_type.as_ref().is_none_or(|name| is_of_type(connection, name))
            && !(spares_caller && *id == call.caller)
            && !connection.is_closing;
        if is_wanted {
            connection.is_closing = true;
            count += 1;
        }
    }
    Ok(Reply::Integer(count))
}
