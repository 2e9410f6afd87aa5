//! The server itself: its clock, settings, counts and end.

use super::super::glob;
use super::super::resp::{Bytes, Reply};
use super::super::state::{Calls, Counts, Mode, Settings, State};
use super::{Call, Command, Outcome, SYNTAX, VERSION, refusal, upper};
use std::collections::BTreeSet;

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
];

/// The only limit of memory in bytes that the server takes: it is always reached.
const FULL: &str = "1";

fn settings(call: &mut Call<'_>) -> Outcome {
    let patterns: Vec<Bytes> = call.args[2..].iter().map(|it| it.to_ascii_lowercase()).collect();
    let settings = &call.state.settings;
    let numbers = [settings.max_clients, settings.min_replicas, settings.timeout];
    let [max_clients, min_replicas, timeout] = numbers.map(|number| number.to_string());
    let is_node = if matches!(call.state.mode, Mode::Cluster(_)) { "yes" } else { "no" };
    let own = [
        ("cluster-enabled", is_node),
        ("maxclients", &*max_clients),
        ("maxmemory", if settings.is_full { FULL } else { "0" }),
        ("min-replicas-to-write", &*min_replicas),
        ("requirepass", &*settings.password),
        ("timeout", &*timeout),
    ];
    let all = FIXED.iter().copied().chain(own);
    let fits = |name: &str| patterns.iter().any(|pattern| glob::fits(pattern, name.as_bytes()));
    let found = all.filter(|(name, _)| fits(name));
    Ok(Reply::Map(found.map(|(name, value)| (Reply::bulk(name), Reply::bulk(value))).collect()))
}

fn change_settings(call: &mut Call<'_>) -> Outcome {
    let (pairs, []) = call.args[2..].as_chunks::<2>() else { return Err(SYNTAX.to_owned()) };
    // All settings change, or none.
    let (mut settings, mut names) = (call.state.settings.clone(), BTreeSet::new());
    for [name, value] in pairs {
        let name = upper(name).to_ascii_lowercase();
        settings.set(&name, &String::from_utf8_lossy(value))?;
        if !names.insert(name.clone()) {
            return Err(unset(&name, "duplicate parameter"));
        }
    }
    call.state.settings = settings;
    Ok(Reply::ok())
}

/// Returns why `CONFIG SET` has failed.
fn unset(name: &str, problem: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {problem}")
}

impl Settings {
    /// Changes a setting.
    ///
    /// # Errors
    ///
    /// The value is wrong, or the server does not have it.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        const MOST: u32 = i32::MAX as u32;
        match name {
            "maxclients" => self.max_clients = number(name, value, 1, u32::MAX)?,
            "maxmemory" if matches!(value, "0" | FULL) => self.is_full = value == FULL,
            "min-replicas-to-write" => self.min_replicas = number(name, value, 0, MOST)?,
            "requirepass" => value.clone_into(&mut self.password),
            "timeout" => self.timeout = number(name, value, 0, MOST)?,
            _ if FIXED.contains(&(name, value)) => {}
            _ => {
                let mut known = FIXED.iter().map(|(name, _)| *name);
                let is_known = matches!(name, "cluster-enabled" | "maxmemory")
                    || known.any(|known| known == name);
                let what = if is_known { "another value of the setting" } else { "the setting" };
                return Err(refusal(&format!("{what} '{name}'")));
            }
        }
        Ok(())
    }
}

/// Reads the value of a setting between two bounds.
fn number(name: &str, value: &str, least: u32, most: u32) -> Result<u32, String> {
    let parsed = super::number::parse_integer(value.as_bytes())
        .ok_or_else(|| unset(name, "argument couldn't be parsed into an integer"))?;
    let fitting = u32::try_from(parsed).ok().filter(|it| (least..=most).contains(it));
    fitting.ok_or_else(|| {
        unset(name, &format!("argument must be between {least} and {most} inclusive"))
    })
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
        "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:{}\r\n",
        state.clients().count(),
        state.settings.max_clients,
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
         rejected_connections:{}\r\ntotal_error_replies:{errors}\r\n",
        counts.connections, counts.bytes_in, counts.bytes_out, counts.rejected_connections
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
