//! Serialization of the information about locks, by the feature `serde`.

#![cfg(feature = "serde")]

use crate::client_record::record_key;
use crate::harness::Server;
use crate::harness::faults::{build, patient};
use crate::harness::holders::GONE;
use leasehold::{HolderInfo, LockInfo};
use serde_json::{Value, json};
use std::time::SystemTime;

fn seconds(time: Option<SystemTime>) -> Option<f64> {
    time.map(|it| it.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs_f64())
}

/// Returns the JSON form of a holder, computed from its methods.
fn expected(holder: &HolderInfo) -> Value {
    json!({
        "owner": holder.owner(),
        "client_id": holder.client_id().map(|id| id.to_string()),
        "host": holder.host(),
        "pid": holder.pid(),
        "program": holder.program(),
        "label": holder.label(),
        "version": holder.version(),
        "started": seconds(holder.started()),
        "thread": holder.thread(),
        "thread_number": holder.thread_number(),
        "since": seconds(holder.since()),
        "remaining": holder.remaining().map(|left| left.as_secs_f64()),
        "count": holder.count(),
        "instance": holder.instance(),
        "ends_with_process": holder.ends_with_process(),
        "slots": holder.slots(),
        "is_idle": holder.is_idle(),
        "local_waiters": holder.local_waiters(),
        "acquired": holder.acquired(),
    })
}

#[test]
fn a_finding_of_an_audit_is_serialized_with_its_fields() {
    let server = Server::start();
    let found = build(patient(server.url())).audit().expect("an answer");
    let shown = serde_json::to_value(&found).expect("JSON");
    let [finding] = &found[..] else { panic!("no persistence: {found:?}") };
    assert_eq!(shown, json!([{ "server": &*finding.server, "text": &*finding.text }]));
}

#[test]
fn a_leader_is_serialized_with_a_field_for_each_method() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let term = client.election("a").with_value("host:1").campaign().expect("nobody leads");
    let leader = client.election("a").leader().expect("an answer").expect("a leader");
    let shown = serde_json::to_value(&leader).expect("JSON");
    let holder = expected(leader.holder());
    assert_eq!(shown, json!({ "value": "host:1", "token": term.token(), "holder": holder }));
}

#[test]
fn a_lock_is_serialized_with_a_field_for_each_method() {
    let server = Server::start();
    let client = build(patient(server.url()));
    let owner = format!("{GONE}:1700000000250000");
    server.ask::<()>(&["HSET", "a", &owner, "1"]);
    server.ask::<()>(&["PEXPIRE", "a", "60000"]);
    server.ask::<()>(&["RPUSH", "redisson_lock_queue:{a}", &owner, "garbage"]);
    server.ask::<()>(&["SET", "redisson_lock_token:{a}", "1700000000000007"]);
    let record = record_key(GONE);
    server.ask::<()>(&["HSET", &record, "host", "web-1", "pid", "7", "start", "1500"]);

    let mut locks = client.locks("a").expect("a good pattern");
    let lock: LockInfo = locks.next().expect("a lock").expect("an answer");
    let shown = serde_json::to_value(&lock).expect("JSON");
    let waiting = lock.waiting();
    let all = json!({
        "name": "a",
        "kind": "lock",
        "holders": lock.holders().iter().map(expected).collect::<Vec<_>>(),
        "former_holder": null,
        "remaining": lock.remaining().map(|left| left.as_secs_f64()),
        "waiting": {
            "processes": 1,
            "queue": waiting.queue().iter().map(expected).collect::<Vec<_>>(),
        },
        "token": 1_700_000_000_000_007_u64,
        "leader_value": null,
        "in_use": null,
        "permits": null,
    });
    assert_eq!(shown, all);
    assert_eq!(serde_json::to_value(waiting).expect("JSON"), all["waiting"]);

    let holder = &shown["holders"][0];
    assert_eq!((&holder["owner"], &holder["client_id"]), (&json!(owner), &json!(GONE)));
    assert_eq!((&holder["since"], &holder["started"]), (&json!(1_700_000_000.25), &json!(1.5)));
    assert_eq!((&holder["pid"], &holder["program"]), (&json!(7), &Value::Null));
    let left = holder["remaining"].as_f64().expect("a number");
    assert!(left > 30.0 && left <= 60.0, "{left}");
    assert_eq!(shown["waiting"]["queue"][1]["client_id"], Value::Null);
}
