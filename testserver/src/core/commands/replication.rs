//! What clients see of the replication.

use super::super::replication::{Replica, Wait};
use super::super::resp::Reply;
use super::super::state::{Mode, State};
use super::{Call, Command, Outcome};

pub(super) const COMMANDS: &[Command] =
    &[Command::control("ROLE", 1, role), Command::control("WAIT", 3, wait)];

/// What a replica has acknowledged; 0 before it is online.
fn acknowledged(replica: &Replica) -> u64 {
    replica.acknowledged.map_or(0, |it| it.offset)
}

fn role(call: &mut Call<'_>) -> Outcome {
    if let Mode::Sentinel(masters) = &call.state.mode {
        let masters = Reply::bulks(masters.keys().cloned());
        return Ok(Reply::Array(vec![Reply::bulk("sentinel"), masters]));
    }
    let replication = &call.state.replication;
    let offset = Reply::Integer(replication.offset as i64);
    let Some(master) = &replication.master else {
        let online = replication.replicas.iter().filter(|replica| replica.acknowledged.is_some());
        let replicas = online.map(|replica| {
            let (port, offset) = (replica.address.port.to_string(), acknowledged(replica));
            Reply::bulks([replica.address.host.clone(), port, offset.to_string()])
        });
        return Ok(Reply::Array(vec![
            Reply::bulk("master"),
            offset,
            Reply::Array(replicas.collect()),
        ]));
    };
    let (link, offset) = if replication.is_synchronized {
        ("connected", offset)
    } else {
        ("connect", Reply::Integer(-1))
    };
    let (host, port) = (Reply::bulk(master.host.clone()), Reply::Integer(master.port.into()));
    Ok(Reply::Array(vec![Reply::bulk("slave"), host, port, Reply::bulk(link), offset]))
}

fn wait(call: &mut Call<'_>) -> Outcome {
    if call.state.replication.master.is_some() {
        let text = "ERR WAIT cannot be used with replica instances. Please also note that since \
                    Redis 4.0 if a replica is configured to be writable (which is not the default) \
                    writes to replicas are just local and are not propagated.";
        return Err(text.to_owned());
    }
    let replicas = call.integer(1)?;
    let timeout = super::number::parse_integer(&call.args[2]);
    let timeout = timeout.ok_or("ERR timeout is not an integer or out of range")?;
    if timeout < 0 {
        return Err("ERR timeout is negative".to_owned());
    }
    let offset = call.connection()?.offset;
    let count = call.state.replication.count(offset);
    if count as i64 >= replicas {
        return Ok(Reply::count(count));
    }
    // Without a time-out, or with one behind the end of the clock, it waits for ever.
    let until = timeout.checked_mul(1000).and_then(|it| it.checked_add(call.state.now));
    let until = until.filter(|_| timeout > 0);
    call.state.replication.waits.insert(call.caller, Wait { offset, replicas, until });
    Ok(Reply::Sent)
}

/// Returns the section of `INFO`.
pub(super) fn section(state: &mut State) -> String {
    let (now, min_replicas) = (state.now, state.settings.min_replicas);
    let replication = &state.replication;
    let mut text = match &replication.master {
        None => "role:master\r\n".to_owned(),
        Some(master) => {
            let (link, seconds) =
                if replication.is_synchronized { ("up", 0) } else { ("down", -1) };
            let offset = replication.offset;
            format!(
                "role:slave\r\nmaster_host:{}\r\nmaster_port:{}\r\nmaster_link_status:{link}\r\n\
                 master_last_io_seconds_ago:{seconds}\r\nmaster_sync_in_progress:0\r\n\
                 slave_read_repl_offset:{offset}\r\nslave_repl_offset:{offset}\r\n\
                 slave_priority:100\r\nslave_read_only:1\r\nreplica_announced:1\r\n",
                master.host, master.port
            )
        }
    };
    text += &format!("connected_slaves:{}\r\n", replication.replicas.len());
    if min_replicas > 0 && replication.master.is_none() {
        text += &format!("min_slaves_good_slaves:{}\r\n", replication.count_good(now));
    }
    for (at, replica) in replication.replicas.iter().enumerate() {
        let (state, lag) = match replica.acknowledged {
            None => ("wait_bgsave", 0),
            Some(it) => ("online", (now - it.at).max(0) / 1_000_000),
        };
        let (host, port) = (&replica.address.host, replica.address.port);
        let offset = acknowledged(replica);
        text +=
            &format!("slave{at}:ip={host},port={port},state={state},offset={offset},lag={lag}\r\n");
    }
    let (history, offset) = (&replication.history, replication.offset);
    let (is_active, first) = (u8::from(replication.is_active()), offset.min(1));
    text += &format!(
        "master_failover_state:no-failover\r\nmaster_replid:{history}\r\nmaster_replid2:{:0>40}\r\n\
         master_repl_offset:{offset}\r\nsecond_repl_offset:-1\r\nrepl_backlog_active:{is_active}\r\n\
         repl_backlog_size:1048576\r\nrepl_backlog_first_byte_offset:{first}\r\n\
         repl_backlog_histlen:{offset}\r\n",
        ""
    );
    text
}
