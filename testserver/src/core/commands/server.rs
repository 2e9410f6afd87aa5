//! The server itself: its clock, settings, counts and end.

use super::super::glob;
use super::super::resp::{Bytes, Reply};
use super::super::state::{Calls, Counts, Mode, State};
use super::{Call, Command, Outcome, SYNTAX, VERSION, refusal, upper};

pub(super) const COMMANDS: &[Command] = &[
    Command::control("CONFIG|GET", -3, settings),
    Command::control("CONFIG|RESETSTAT", 2, |call| {
        call.state.counts = Counts::default();
        Ok(Reply::ok())
    }),
    Command::control("CONFIG|SET", -4, change_settings),
    Command::keyless("INFO", -1, info),
    Command::control("SHUTDOWN", -1, shut_down),
    Command::keyless("TIME", 1, |call| {
        let now = call.state.now;
        let parts = [now.div_euclid(1_000_000), now.rem_euclid(1_000_000)];
        Ok(Reply::bulks(parts.map(|part| part.to_string())))
    }),
];

fn shut_down(call: &mut Call<'_>) -> Outcome {
    for option in &call.args[1..] {
        match &*upper(option) {
            "NOSAVE" | "SAVE" | "NOW" | "FORCE" => {}
            "ABORT" if call.len() == 2 => return Err("ERR No shutdown in progress.".to_owned()),
            _ => return Err(SYNTAX.to_owned()),
        }
    }
    call.state.is_shut_down = true;
    Ok(Reply::Sent)
}

/// The settings that never change: without eviction and without persistence.
const FIXED: &[(&str, &str)] = &[
    ("appendfsync", "everysec"),
    ("appendonly", "no"),
    ("databases", "16"),
    ("maxmemory-policy", "noeviction"),
    ("min-replicas-max-lag", "10"),
    ("save", ""),
    ("timeout", "0"),
];

/// The only limit of memory in bytes that the server takes: it is always reached.
const FULL: &str = "1";

fn settings(call: &mut Call<'_>) -> Outcome {
    let patterns: Vec<Bytes> = call.args[2..].iter().map(|it| it.to_ascii_lowercase()).collect();
    let replicas = call.state.min_replicas.to_string();
    let is_node = if matches!(call.state.mode, Mode::Cluster(_)) { "yes" } else { "no" };
    let own = [
        ("cluster-enabled", is_node),
        ("maxmemory", if call.state.is_full { FULL } else { "0" }),
        ("min-replicas-to-write", &*replicas),
        ("requirepass", &*call.state.password),
    ];
    let all = FIXED.iter().copied().chain(own);
    let fits = |name: &str| patterns.iter().any(|pattern| glob::fits(pattern, name.as_bytes()));
    let found = all.filter(|(name, _)| fits(name));
    Ok(Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
}

fn change_settings(call: &mut Call<'_>) -> Outcome {
    let (pairs, []) = call.args[2..].as_chunks::<2>() else { return Err(SYNTAX.to_owned()) };
    let (mut password, mut min_replicas, mut is_full) = (None, None, None);
    for [name, value] in pairs {
        let (name, value) = (upper(name).to_ascii_lowercase(), String::from_utf8_lossy(value));
        match &*name {
            "maxmemory" if matches!(&*value, "0" | FULL) => is_full = Some(&*value == FULL),
            "requirepass" => password = Some(value.into_owned()),
            "min-replicas-to-write" => {
                let problem = "argument couldn't be parsed into an integer";
                min_replicas = Some(value.parse().map_err(|_| {
                    format!(
                        "ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}"
                    )
                })?);
            }
            _ if FIXED.contains(&(&*name, &*value)) => {}
            _ => return Err(refusal(&format!("another value of the setting '{name}'"))),
        }
    }
    // All settings change, or none.
    let state = &mut *call.state;
    state.password = password.unwrap_or(std::mem::take(&mut state.password));
    state.min_replicas = min_replicas.unwrap_or(state.min_replicas);
    state.is_full = is_full.unwrap_or(state.is_full);
    Ok(Reply::ok())
}

/// Writes the lines of a section.
type Section = fn(&mut State) -> String;

fn info(call: &mut Call<'_>) -> Outcome {
    let wanted: Vec<String> = call.args[1..].iter().map(|it| upper(it)).collect();
    let names = |name: &str| wanted.iter().any(|wanted| wanted == name);
    let (all, default) =
        (names("ALL") || names("EVERYTHING"), wanted.is_empty() || names("DEFAULT"));
    let sections: [(&str, Section); 9] = [
        ("Server", server),
        ("Clients", clients),
        ("Persistence", |_| "loading:0\r\naof_enabled:0\r\n".to_owned()),
        ("Stats", stats),
        ("Replication", super::replication::section),
        ("Commandstats", command_stats),
        ("Errorstats", error_stats),
        ("Cluster", |state| {
            format!("cluster_enabled:{}\r\n", u8::from(matches!(state.mode, Mode::Cluster(_))))
        }),
        ("Keyspace", keyspace),
    ];
    let mut text = String::new();
    for (name, section) in sections {
        let in_default = name != "Commandstats";
        if all || (default && in_default) || names(&name.to_ascii_uppercase()) {
            if !text.is_empty() {
                text += "\r\n";
            }
            text += &format!("# {name}\r\n{}", section(call.state));
        }
    }
    Ok(Reply::Verbatim(text))
}

fn server(state: &mut State) -> String {
    let uptime = (state.now - state.started_at).max(0) / 1_000_000;
    format!(
        "redis_version:{VERSION}\r\nredis_mode:{}\r\nrun_id:{}\r\ntcp_port:0\r\n\
         server_time_usec:{}\r\nuptime_in_seconds:{uptime}\r\n",
        state.mode.name(),
        state.run_id,
        state.now
    )
}

fn clients(state: &mut State) -> String {
    format!(
        "connected_clients:{}\r\nblocked_clients:{}\r\n",
        state.connections.len(),
        state.replication.waits.len()
    )
}

fn stats(state: &mut State) -> String {
    let counts = &state.counts;
    let commands: u64 = counts.calls.values().map(|calls| calls.run).sum();
    let errors: u64 = counts.errors.values().sum();
    format!(
        "total_connections_received:{}\r\ntotal_commands_processed:{commands}\r\n\
         total_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\n\
         total_error_replies:{errors}\r\n",
        counts.connections, counts.bytes_in, counts.bytes_out
    )
}

fn command_stats(state: &mut State) -> String {
    let line = |(name, calls): (&&str, &Calls)| {
        // The clock stands still while a command runs.
        format!(
            "cmdstat_{}:calls={},usec=0,usec_per_call=0.00,rejected_calls={},failed_calls={}\r\n",
            name.to_ascii_lowercase(),
            calls.run,
            calls.rejected,
            calls.failed
        )
    };
    state.counts.calls.iter().map(line).collect()
}

fn error_stats(state: &mut State) -> String {
    let line = |(code, count): (&String, &u64)| {
        format!("errorstat_{}:count={count}\r\n", code.replace(['#', ':', '\r', '\n'], "_"))
    };
    state.counts.errors.iter().map(line).collect()
}

fn keyspace(state: &mut State) -> String {
    let now = state.now_ms();
    let counts = state.databases().iter().map(|database| database.count(now));
    let counts = counts.enumerate().filter(|(_, keys)| *keys > 0);
    counts.map(|(at, keys)| format!("db{at}:keys={keys},expires=0,avg_ttl=0\r\n")).collect()
}
