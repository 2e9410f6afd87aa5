//! The table of the Lua scripts.
//!
//! Each script is one file in `lua/`, embedded at compile time. A new script needs its file, one
//! line in this table, and a test of its documented replies (`tests/protocol/scripts.rs`). The
//! scripts that grant a queue lock begin with a common text; so do those that look at the head of
//! the queue of a fair lock, those that must know whether a hash is that of a lock, those that
//! refuse a caller for a hold that may linger, those that take a lock with tokens, and those that
//! describe a semaphore. Each common text is a file of its own.
//!
//! A script that announces a release does so by a publication that has a form for shards. The wake
//! channel, on which an acquire script publishes a refusal, is no shard channel, so with sharded
//! pub/sub no caller passes one.

use std::borrow::Cow;

use crate::transport::script::Script;

macro_rules! script {
    ($name:literal $(after $common:literal)*) => {
        Script::new(
            $name,
            Cow::Borrowed(concat!(
                $(include_str!(concat!("../../lua/", $common, ".lua")),)*
                include_str!(concat!("../../lua/", $name, ".lua"))
            )),
        )
    };
}

pub(crate) static PLAIN_ACQUIRE: Script =
    script!("plain_acquire" after "ask_holder").joined(&CALL_MANY, b'a');
pub(crate) static PLAIN_RELEASE: Script = script!("plain_release").joined(&CALL_MANY, b'r');
pub(crate) static PLAIN_RENEW: Script = script!("plain_renew");
pub(crate) static PLAIN_FORCE_UNLOCK: Script = script!("plain_force_unlock" after "lock_form");

pub(crate) static FAIR_ACQUIRE: Script = script!("fair_acquire" after "fair_queue");
pub(crate) static FAIR_RELEASE: Script = script!("fair_release" after "fair_queue");
pub(crate) static FAIR_LEAVE: Script = script!("fair_leave" after "fair_queue");
pub(crate) static FAIR_FORCE_UNLOCK: Script =
    script!("fair_force_unlock" after "fair_queue" after "lock_form");

pub(crate) static FENCED_ACQUIRE: Script =
    script!("fenced_acquire" after "ask_holder" after "fenced_take");

pub(crate) static ONCE_ACQUIRE: Script =
    script!("once_acquire" after "ask_holder" after "fenced_take");
pub(crate) static ONCE_COMMIT: Script = script!("once_commit");
pub(crate) static ONCE_FORGET: Script = script!("once_forget");

pub(crate) static QUEUE_ACQUIRE: Script = script!("queue_acquire" after "queue_grant");
pub(crate) static QUEUE_RELEASE: Script = script!("queue_release" after "queue_grant");
pub(crate) static QUEUE_FORCE_UNLOCK: Script =
    script!("queue_force_unlock" after "queue_grant" after "lock_form");
pub(crate) static QUEUE_HEARTBEAT: Script = script!("queue_heartbeat" after "queue_grant");

pub(crate) static LEADER_RELEASE: Script = script!("leader_release" after "queue_grant");
pub(crate) static LEADER_ANNOUNCE: Script = script!("leader_announce");
pub(crate) static LEADER_LOOK: Script = script!("leader_look").reading();

pub(crate) static SPIN_RELEASE: Script = script!("spin_release");
pub(crate) static SPIN_FORCE_UNLOCK: Script = script!("spin_force_unlock" after "lock_form");

pub(crate) static READ_ACQUIRE: Script =
    script!("read_acquire" after "ask_holder" after "lock_form" after "rw_turn");
pub(crate) static READ_RELEASE: Script = script!("read_release" after "lock_form");
pub(crate) static READ_RENEW: Script = script!("read_renew");
pub(crate) static READ_TTL: Script = script!("read_ttl").reading();

pub(crate) static WRITE_ACQUIRE: Script =
    script!("write_acquire" after "ask_holder" after "rw_turn");
pub(crate) static WRITE_RELEASE: Script =
    script!("write_release" after "lock_form" after "rw_turn");
pub(crate) static WRITE_TTL: Script = script!("write_ttl").reading();

pub(crate) static RW_FORCE_UNLOCK: Script = script!("rw_force_unlock" after "lock_form");

pub(crate) static NAMED_ACQUIRE: Script = script!("named_acquire" after "lock_form");
pub(crate) static NAMED_RELEASE: Script = script!("named_release" after "lock_form");
pub(crate) static NAMED_UNLOCK: Script = script!("named_unlock" after "lock_form");

pub(crate) static MULTI_ACQUIRE: Script = script!("multi_acquire" after "ask_holder");

pub(crate) static SEMAPHORE_ACQUIRE: Script = script!("semaphore_acquire");
pub(crate) static SEMAPHORE_RELEASE: Script = script!("semaphore_release");
pub(crate) static SEMAPHORE_EARLY_RELEASE: Script = script!("semaphore_early_release");
pub(crate) static SEMAPHORE_LEAVE: Script = script!("semaphore_leave");
pub(crate) static SEMAPHORE_RENEW: Script = script!("semaphore_renew");
pub(crate) static SEMAPHORE_POLL: Script = script!("semaphore_poll");
pub(crate) static SEMAPHORE_INFO: Script =
    script!("semaphore_info" after "permit_counts").reading();
pub(crate) static SEMAPHORE_FORCE_RELEASE: Script = script!("semaphore_force_release");
pub(crate) static SEMAPHORE_RESIZE: Script = script!("semaphore_resize");

pub(crate) static COUNT_TAKE: Script = script!("count_take");
pub(crate) static COUNT_ADD: Script = script!("count_add");
pub(crate) static COUNT_DRAIN: Script = script!("count_drain");
pub(crate) static COUNT_SET: Script = script!("count_set");
pub(crate) static COUNT_UNDO: Script = script!("count_undo");

pub(crate) static LATCH_SET: Script = script!("latch_set");
pub(crate) static LATCH_COUNT_DOWN: Script = script!("latch_count_down");
pub(crate) static LATCH_DELETE: Script = script!("latch_delete");
pub(crate) static LATCH_LOOK: Script = script!("latch_look").reading();

/// Makes late copies of a request that changes a count do nothing.
pub(crate) static REQUEST_CLOSE: Script = script!("request_close");

/// Ends a plain, fenced, queue or spin hold before its minimum.
pub(crate) static EARLY_RELEASE: Script = script!("early_release");

/// Writes the record of a client.
pub(crate) static CLIENT_RECORD: Script = script!("client_record");

/// Reads the holders of locks, and finds locks among the keys of a server.
pub(crate) static LOCK_INFO: Script = script!("lock_info" after "permit_counts").reading();

/// Tells who holds locks and permits.
pub(crate) static LOCK_HOLDERS: Script = script!("lock_holders").reading();

/// Finds the free locks among many. Its messages change no data.
pub(crate) static POLL_MANY: Script = script!("poll_many" after "ask_holder").reading();

/// Runs many calls of the scripts that have a join code, as one command. The overhead of a script
/// call costs the server about as much as the work of such a script.
pub(crate) static CALL_MANY: Script = script!("call_many" after "ask_holder");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_that_only_read_call_no_command_that_writes() {
        const READS: [&str; 18] = [
            "exists",
            "get",
            "hexists",
            "hget",
            "hgetall",
            "hkeys",
            "hlen",
            "hmget",
            "hrandfield",
            "lrange",
            "pttl",
            "publish",
            "time",
            "type",
            "zcard",
            "zcount",
            "zrange",
            "zrangebyscore",
        ];
        let reads = |call: &str| READS.iter().any(|name| call.starts_with(&format!("{name}'")));
        let only_reads = |script: &Script| {
            let calls = script.source().split("call('").skip(1);
            calls.into_iter().all(reads)
        };
        let reading = [
            &LEADER_LOOK,
            &READ_TTL,
            &WRITE_TTL,
            &SEMAPHORE_INFO,
            &LATCH_LOOK,
            &LOCK_INFO,
            &LOCK_HOLDERS,
            &POLL_MANY,
        ];
        for script in reading {
            assert!(script.only_reads && only_reads(script), "{}", script.name);
        }
        for script in [&PLAIN_ACQUIRE, &PLAIN_RENEW, &QUEUE_HEARTBEAT, &COUNT_UNDO, &CALL_MANY] {
            assert!(!script.only_reads && !only_reads(script), "{}", script.name);
        }
    }

    #[test]
    fn a_script_that_announces_a_release_has_a_form_for_shards() {
        let sharded = PLAIN_RELEASE.sharded().expect("it announces a release");
        assert!(sharded.name == "plain_release" && sharded.joining.is_none());
        assert!(sharded.source().contains("'spublish'"));
        assert!(!sharded.source().contains("'publish'"));
        assert_ne!(sharded.digest(), PLAIN_RELEASE.digest());
        assert!(sharded.sharded().is_none(), "derived once");
        let silent =
            [&PLAIN_ACQUIRE, &PLAIN_RENEW, &SPIN_RELEASE, &QUEUE_ACQUIRE, &QUEUE_HEARTBEAT];
        for silent in silent {
            assert!(silent.sharded().is_none(), "{}", silent.name);
        }
    }

    /// A wake channel belongs to a client, in no slot, and is no shard channel.
    #[test]
    fn a_grant_is_published_and_only_a_release_is_announced_to_a_shard() {
        for script in [&QUEUE_RELEASE, &QUEUE_FORCE_UNLOCK, &LEADER_RELEASE] {
            let sharded = script.sharded().expect("it announces a release").source();
            assert_eq!(sharded.matches("redis.call('publish'").count(), 1, "{}", script.name);
            assert!(sharded.contains("redis.call('publish', wake, "), "{}", script.name);
            assert!(sharded.contains("redis.call('spublish', channel, "), "{}", script.name);
        }
    }

    #[test]
    fn common_texts_precede_the_scripts_that_need_them() {
        let grant = include_str!("../../lua/queue_grant.lua");
        let form = include_str!("../../lua/lock_form.lua");
        let both = [grant, form].concat();
        for (common, scripts) in [
            (grant, &[&QUEUE_ACQUIRE, &QUEUE_RELEASE, &QUEUE_HEARTBEAT, &LEADER_RELEASE][..]),
            (form, &[&PLAIN_FORCE_UNLOCK, &NAMED_UNLOCK, &READ_RELEASE]),
            (&both, &[&QUEUE_FORCE_UNLOCK]),
        ] {
            for script in scripts {
                let own = script.source().strip_prefix(common).expect("the common text");
                assert!(own.starts_with("-- "), "{}", script.name);
                assert_eq!(own.matches("-- Atomic: ").count(), 1, "{}", script.name);
            }
        }
    }
}
