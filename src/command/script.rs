//! The table of the Lua scripts: source text and SHA-1 digest.
//!
//! Each script is one file in `lua/`, embedded at compile time. A new script needs its file, one
//! line in this table, and a test of its documented replies (`tests/protocol/scripts.rs`). The
//! scripts that grant a queue lock begin with a common text, and so do those that must know whether
//! a hash is that of a lock. Each common text is a file of its own.
//!
//! Redis identifies a script by the SHA-1 of its source. [`Script::digest`] computes it at the
//! first use and keeps it. A script that announces a release also has a form for clusters, which
//! publishes to the shard of the lock's slot; [`Script::sharded`] derives it at the first use.

use std::borrow::Cow;
use std::sync::OnceLock;

use sha1_smol::Sha1;

/// A Lua script with its name, source and digest.
#[derive(Debug)]
pub(crate) struct Script {
    /// The name of the file in `lua/`, without its extension.
    pub(crate) name: &'static str,
    source: Cow<'static, str>,
    /// The byte that selects this script in a call of [`CALL_MANY`], if `CALL_MANY` can run it.
    pub(crate) join_code: Option<u8>,
    digest: OnceLock<String>,
    sharded: OnceLock<Option<Box<Script>>>,
}

macro_rules! script {
    ($name:literal) => {
        script!($name, None)
    };
    ($name:literal, $join_code:expr) => {
        Script::new(
            $name,
            Cow::Borrowed(include_str!(concat!("../../lua/", $name, ".lua"))),
            $join_code,
        )
    };
    ($common:literal + $name:literal) => {
        Script::new(
            $name,
            Cow::Borrowed(concat!(
                include_str!(concat!("../../lua/", $common, ".lua")),
                include_str!(concat!("../../lua/", $name, ".lua"))
            )),
            None,
        )
    };
    ($first:literal + $second:literal + $name:literal) => {
        Script::new(
            $name,
            Cow::Borrowed(concat!(
                include_str!(concat!("../../lua/", $first, ".lua")),
                include_str!(concat!("../../lua/", $second, ".lua")),
                include_str!(concat!("../../lua/", $name, ".lua"))
            )),
            None,
        )
    };
}

pub(crate) static PLAIN_ACQUIRE: Script = script!("plain_acquire", Some(b'a'));
pub(crate) static PLAIN_RELEASE: Script = script!("plain_release", Some(b'r'));
pub(crate) static PLAIN_RENEW: Script = script!("plain_renew");
pub(crate) static PLAIN_FORCE_UNLOCK: Script = script!("lock_form" + "plain_force_unlock");

pub(crate) static FAIR_ACQUIRE: Script = script!("fair_acquire");
pub(crate) static FAIR_RELEASE: Script = script!("fair_release");
pub(crate) static FAIR_LEAVE: Script = script!("fair_leave");
pub(crate) static FAIR_FORCE_UNLOCK: Script = script!("lock_form" + "fair_force_unlock");

pub(crate) static FENCED_ACQUIRE: Script = script!("fenced_acquire");

pub(crate) static QUEUE_ACQUIRE: Script = script!("queue_grant" + "queue_acquire");
pub(crate) static QUEUE_RELEASE: Script = script!("queue_grant" + "queue_release");
pub(crate) static QUEUE_FORCE_UNLOCK: Script =
    script!("queue_grant" + "lock_form" + "queue_force_unlock");
pub(crate) static QUEUE_HEARTBEAT: Script = script!("queue_grant" + "queue_heartbeat");

pub(crate) static LEADER_RELEASE: Script = script!("queue_grant" + "leader_release");
pub(crate) static LEADER_ANNOUNCE: Script = script!("leader_announce");
pub(crate) static LEADER_LOOK: Script = script!("leader_look");

pub(crate) static SPIN_RELEASE: Script = script!("spin_release");
pub(crate) static SPIN_FORCE_UNLOCK: Script = script!("lock_form" + "spin_force_unlock");

pub(crate) static READ_ACQUIRE: Script = script!("lock_form" + "read_acquire");
pub(crate) static READ_RELEASE: Script = script!("lock_form" + "read_release");
pub(crate) static READ_RENEW: Script = script!("read_renew");
pub(crate) static READ_FORCE_UNLOCK: Script = script!("lock_form" + "read_force_unlock");
pub(crate) static READ_TTL: Script = script!("read_ttl");

pub(crate) static WRITE_ACQUIRE: Script = script!("write_acquire");
pub(crate) static WRITE_RELEASE: Script = script!("lock_form" + "write_release");
pub(crate) static WRITE_FORCE_UNLOCK: Script = script!("lock_form" + "write_force_unlock");
pub(crate) static WRITE_TTL: Script = script!("write_ttl");

pub(crate) static NAMED_ACQUIRE: Script = script!("lock_form" + "named_acquire");
pub(crate) static NAMED_RELEASE: Script = script!("lock_form" + "named_release");
pub(crate) static NAMED_UNLOCK: Script = script!("lock_form" + "named_unlock");

pub(crate) static MULTI_ACQUIRE: Script = script!("multi_acquire");

pub(crate) static SEMAPHORE_ACQUIRE: Script = script!("semaphore_acquire");
pub(crate) static SEMAPHORE_RELEASE: Script = script!("semaphore_release");
pub(crate) static SEMAPHORE_EARLY_RELEASE: Script = script!("semaphore_early_release");
pub(crate) static SEMAPHORE_LEAVE: Script = script!("semaphore_leave");
pub(crate) static SEMAPHORE_RENEW: Script = script!("semaphore_renew");
pub(crate) static SEMAPHORE_POLL: Script = script!("semaphore_poll");
pub(crate) static SEMAPHORE_INFO: Script = script!("semaphore_info");
pub(crate) static SEMAPHORE_RESIZE: Script = script!("semaphore_resize");

pub(crate) static COUNT_TAKE: Script = script!("count_take");
pub(crate) static COUNT_ADD: Script = script!("count_add");
pub(crate) static COUNT_DRAIN: Script = script!("count_drain");
pub(crate) static COUNT_SET: Script = script!("count_set");
pub(crate) static COUNT_UNDO: Script = script!("count_undo");

pub(crate) static LATCH_SET: Script = script!("latch_set");
pub(crate) static LATCH_COUNT_DOWN: Script = script!("latch_count_down");
pub(crate) static LATCH_DELETE: Script = script!("latch_delete");
pub(crate) static LATCH_LOOK: Script = script!("latch_look");

/// Makes late copies of a request that changes a count do nothing.
pub(crate) static REQUEST_CLOSE: Script = script!("request_close");

/// Ends a plain, fenced, queue or spin hold before its minimum.
pub(crate) static EARLY_RELEASE: Script = script!("early_release");

/// Writes the record of a client.
pub(crate) static CLIENT_RECORD: Script = script!("client_record");

/// Reads the holders of locks, and finds locks among the keys of a server.
pub(crate) static LOCK_INFO: Script = script!("lock_info");

/// Finds the free locks among many.
pub(crate) static POLL_MANY: Script = script!("poll_many");

/// Runs many calls of the scripts that have a join code, as one command. The overhead of a script
/// call costs the server about as much as the work of such a script.
pub(crate) static CALL_MANY: Script = script!("call_many");

/// The scripts that change no key and send no message.
static READING: [&Script; 7] =
    [&LEADER_LOOK, &READ_TTL, &WRITE_TTL, &SEMAPHORE_INFO, &LATCH_LOOK, &LOCK_INFO, &POLL_MANY];

/// The start of the call that announces a release, with its form for the shards of a cluster.
const PUBLISH: (&str, &str) = ("redis.call('publish', channel", "redis.call('spublish', channel");

impl Script {
    const fn new(name: &'static str, source: Cow<'static, str>, join_code: Option<u8>) -> Script {
        Script { name, source, join_code, digest: OnceLock::new(), sharded: OnceLock::new() }
    }

    /// Returns whether the script changes no key and sends no message.
    pub(crate) fn only_reads(&self) -> bool {
        READING.iter().any(|script| script.name == self.name)
    }

    /// Returns the text that `SCRIPT LOAD` sends.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the SHA-1 of the source, as 40 hexadecimal digits.
    pub(crate) fn digest(&self) -> &str {
        self.digest.get_or_init(|| Sha1::from(self.source.as_bytes()).digest().to_string())
    }

    /// Returns the form that announces a release with `SPUBLISH`, if this script announces one.
    ///
    /// The wake channel, on which an acquire script publishes a refusal, is no shard channel. A
    /// script reaches shard channels of its own slot only, so with sharded pub/sub no caller passes
    /// a wake channel.
    pub(crate) fn sharded(&self) -> Option<&Script> {
        let derive = || {
            let source = self.source.replace(PUBLISH.0, PUBLISH.1);
            let script = |source| Box::new(Script::new(self.name, Cow::Owned(source), None));
            (source != self.source).then(|| script(source))
        };
        self.sharded.get_or_init(derive).as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_sha1_of_the_source() {
        let script = Script::new("abc", Cow::Borrowed("abc"), None);
        // The first example of FIPS 180.
        assert_eq!(script.digest(), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(std::ptr::eq(script.digest(), script.digest()), "computed once");
    }

    #[test]
    fn scripts_that_only_read_call_no_command_that_writes() {
        const READS: [&str; 16] = [
            "exists",
            "get",
            "hexists",
            "hget",
            "hgetall",
            "hkeys",
            "hlen",
            "hmget",
            "lrange",
            "pttl",
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
        for script in READING {
            assert!(script.only_reads() && only_reads(script), "{}", script.name);
        }
        for script in [&PLAIN_ACQUIRE, &PLAIN_RENEW, &QUEUE_HEARTBEAT, &COUNT_UNDO, &CALL_MANY] {
            assert!(!script.only_reads() && !only_reads(script), "{}", script.name);
        }
    }

    #[test]
    fn a_script_that_announces_a_release_has_a_form_for_shards() {
        let sharded = PLAIN_RELEASE.sharded().expect("it announces a release");
        assert_eq!((sharded.name, sharded.join_code), ("plain_release", None));
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
