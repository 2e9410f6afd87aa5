//! The scripts in `lua/`, and the digests by which Redis knows them.

use std::borrow::Cow;

/// One script: its file's name, its text, and the SHA-1 by which Redis knows it.
/// `tests/scripts.rs` holds the digests against what a server computes.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    text: &'static str,
    pub(crate) digest: &'static str,
    /// By what [`CALL_MANY`] knows it, if its calls can be joined with others.
    pub(crate) mark: Option<u8>,
    /// The same with messages to the shards of a cluster, if it sends any.
    pub(super) sharded: Option<&'static Script>,
    to_shards: bool,
}

macro_rules! script {
    ($name:literal, $digest:literal) => {
        Script {
            name: $name,
            text: include_str!(concat!("../../lua/", $name, ".lua")),
            digest: $digest,
            mark: None,
            sharded: None,
            to_shards: false,
        }
    };
}

pub(crate) static PLAIN_ACQUIRE: Script =
    script!("plain_acquire", "175079c8c93e934e2954777aedb40fe34787c58c").joined_as(b'a');
pub(crate) static PLAIN_RELEASE: Script =
    script!("plain_release", "fc4ec1e01c705223e326db2917f5da7482fa0df0")
        .joined_as(b'r')
        .sharded_as(&PLAIN_RELEASE_SHARDED);
static PLAIN_RELEASE_SHARDED: Script =
    script!("plain_release", "3e449a184db30da930ea202b55bbbe1866e4a244").for_shards();
pub(crate) static PLAIN_RENEW: Script =
    script!("plain_renew", "f04d58553e3bdc38e13faff1c6e8aa250b80d069");
pub(crate) static PLAIN_FORCE_UNLOCK: Script =
    script!("plain_force_unlock", "098bb0d0e37afac8a07c6edce80f395837cd9759")
        .sharded_as(&PLAIN_FORCE_UNLOCK_SHARDED);
static PLAIN_FORCE_UNLOCK_SHARDED: Script =
    script!("plain_force_unlock", "879bb7dbe0440bf8342ac2208283f216d06a5073").for_shards();

pub(crate) static FAIR_ACQUIRE: Script =
    script!("fair_acquire", "1462eb5eaf9155e21e6a11b89b95983874f746cb");
pub(crate) static FAIR_RELEASE: Script =
    script!("fair_release", "bb10a979143cfc55798d28daa0c3081dd39d11ab")
        .sharded_as(&FAIR_RELEASE_SHARDED);
static FAIR_RELEASE_SHARDED: Script =
    script!("fair_release", "f4b71f274cc02d19c2ce805e67f05e2add857c88").for_shards();
pub(crate) static FAIR_LEAVE: Script =
    script!("fair_leave", "373cf6b7581b0637e130c3b0181c33f784b76168")
        .sharded_as(&FAIR_LEAVE_SHARDED);
static FAIR_LEAVE_SHARDED: Script =
    script!("fair_leave", "874091d8a5cc98f3a8da1f58530014925b17183a").for_shards();
pub(crate) static FAIR_FORCE_UNLOCK: Script =
    script!("fair_force_unlock", "3e86b23fc58b126a743aacd782cfc78734b68530")
        .sharded_as(&FAIR_FORCE_UNLOCK_SHARDED);
static FAIR_FORCE_UNLOCK_SHARDED: Script =
    script!("fair_force_unlock", "a1c269de20f69f782293a7d4cf6cdc54d9a95953").for_shards();
pub(crate) static FENCED_ACQUIRE: Script =
    script!("fenced_acquire", "aa3524bc0350ad745740b3e54258031fccabf3d9");
pub(crate) static SPIN_RELEASE: Script =
    script!("spin_release", "8aa4fd10eda49c5172c3b15c1f504f15525299f8");
pub(crate) static SPIN_FORCE_UNLOCK: Script =
    script!("spin_force_unlock", "8036614d3c63034048e3773073d421526c9fd734");
pub(crate) static READ_ACQUIRE: Script =
    script!("read_acquire", "0469146a498f2de90a800b359595d77561a2d177");
pub(crate) static READ_RELEASE: Script =
    script!("read_release", "2544af7c79775569db4d62df1bfaf9113d446646")
        .sharded_as(&READ_RELEASE_SHARDED);
static READ_RELEASE_SHARDED: Script =
    script!("read_release", "c2caa474592390a805231f483ab98c8f1073c99d").for_shards();
pub(crate) static READ_RENEW: Script =
    script!("read_renew", "b3546e550c85c7244cb4268d7440094ca5e92c82");
pub(crate) static READ_FORCE_UNLOCK: Script =
    script!("read_force_unlock", "6aa01a7d8fd3949aece70a651776c539545a6a17")
        .sharded_as(&READ_FORCE_UNLOCK_SHARDED);
static READ_FORCE_UNLOCK_SHARDED: Script =
    script!("read_force_unlock", "c418622e46bb044ccd4172cd63c66c9da5e1bd13").for_shards();
pub(crate) static READ_TTL: Script =
    script!("read_ttl", "4ce4d4c6c3ef14fd08bef0174801a38dffb152c6");
pub(crate) static WRITE_ACQUIRE: Script =
    script!("write_acquire", "79e663bf135db014be1ae24be4dbb956a7aa342d");
pub(crate) static WRITE_RELEASE: Script =
    script!("write_release", "c692e884f48e572008363a93ece9ebeb95c5898b")
        .sharded_as(&WRITE_RELEASE_SHARDED);
static WRITE_RELEASE_SHARDED: Script =
    script!("write_release", "d3e8e51de74251fda862783aed3ac2334ea47fba").for_shards();
pub(crate) static WRITE_FORCE_UNLOCK: Script =
    script!("write_force_unlock", "63d519c6cef0e37e932b5c0552a5b8a2c852bc7e")
        .sharded_as(&WRITE_FORCE_UNLOCK_SHARDED);
static WRITE_FORCE_UNLOCK_SHARDED: Script =
    script!("write_force_unlock", "e1cd9904a150112b932688573388ea308b115370").for_shards();
pub(crate) static WRITE_TTL: Script =
    script!("write_ttl", "19e7ddcfd41cd744ffec44bfa977c9ce265fcf40");
pub(crate) static NAMED_ACQUIRE: Script =
    script!("named_acquire", "751ac6eef1e50014074e58be179d2fa2eca3912a");
pub(crate) static NAMED_RELEASE: Script =
    script!("named_release", "6909d37b92ced2c77d9f41394e191a97c2d4bcd2")
        .sharded_as(&NAMED_RELEASE_SHARDED);
static NAMED_RELEASE_SHARDED: Script =
    script!("named_release", "bdf2f59cfb98e25282d7b047607e3d8623c45f92").for_shards();
pub(crate) static NAMED_UNLOCK: Script =
    script!("named_unlock", "29a26a575365281b82d03438ace12931abc828c1")
        .sharded_as(&NAMED_UNLOCK_SHARDED);
static NAMED_UNLOCK_SHARDED: Script =
    script!("named_unlock", "eb77883857c8ebb08de975d55e493c00837a85e2").for_shards();
pub(crate) static MULTI_ACQUIRE: Script =
    script!("multi_acquire", "0dd9589547b69e579de98b78bf58efa7d0e7812a");

pub(crate) static POLL_MANY: Script =
    script!("poll_many", "8a94e41c61b5c4fd3b1eb3fa99706d8c3ca62bda");

/// Makes many calls of the scripts that have a mark, as one command: a call costs the
/// server more than what it does. The digest is that of [`Script::source`].
pub(crate) static CALL_MANY: Script =
    script!("call_many", "8d9ffa7b63d265b1d44764beaf410daccc63cba6");
static JOINED: [&Script; 2] = [&PLAIN_ACQUIRE, &PLAIN_RELEASE];

impl Script {
    const fn joined_as(self, mark: u8) -> Script {
        Script { mark: Some(mark), ..self }
    }

    const fn sharded_as(self, sharded: &'static Script) -> Script {
        Script { sharded: Some(sharded), ..self }
    }

    const fn for_shards(self) -> Script {
        Script { to_shards: true, ..self }
    }

    /// What the server has to load.
    pub(crate) fn source(&self) -> Cow<'static, str> {
        match self.name == CALL_MANY.name {
            true => {
                let functions: String = JOINED.into_iter().map(Script::function).collect();
                format!("local scripts = {{}}\n{functions}{}", self.text).into()
            }
            false if self.to_shards => self.text.replace(PUBLISH.0, PUBLISH.1).into(),
            false => self.text.into(),
        }
    }

    /// A function that does the same. The first line of every script gives names to its
    /// key and its arguments, in order; they are the function's parameters.
    fn function(&self) -> String {
        let (_, code) = self.text.split_once("\nlocal ").unwrap_or_default();
        let (names, code) = code.split_once(" = ").unwrap_or_default();
        let (_, body) = code.split_once('\n').unwrap_or_default();
        let mark = self.mark.unwrap_or_default();
        format!("scripts[{mark}] = function({names})\n{body}end\n")
    }
}

/// How a script sends a message, and how it sends one to a shard.
const PUBLISH: (&str, &str) = ("redis.call('publish'", "redis.call('spublish'");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::call::Call;

    #[test]
    fn the_messages_of_a_script_can_go_to_shards() {
        let keys: [&[u8]; 1] = [b"k"];
        let release = || Call::script(&PLAIN_RELEASE, keys, []);
        let (classic, sharded) = (release(), release().for_shards());
        assert_eq!(sharded.bytes.len(), classic.bytes.len());
        assert_eq!(sharded.script.map(|script| script.digest), Some(PLAIN_RELEASE_SHARDED.digest));
        let text = String::from_utf8(sharded.bytes.to_vec()).expect("ASCII");
        assert!(
            text.contains(PLAIN_RELEASE_SHARDED.digest) && !text.contains(PLAIN_RELEASE.digest)
        );
        assert!(PLAIN_RELEASE_SHARDED.source().contains("'spublish'"));
        assert!(!PLAIN_RELEASE_SHARDED.source().contains("'publish'"));
        let acquire = Call::script(&PLAIN_ACQUIRE, keys, []).for_shards();
        assert_eq!(acquire.script.map(|script| script.digest), Some(PLAIN_ACQUIRE.digest));
    }
}
