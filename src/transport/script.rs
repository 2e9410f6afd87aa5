//! A Lua script: source text and SHA-1 digest.
//!
//! Redis identifies a script by the SHA-1 of its source. [`Script::digest`] computes it at the
//! first use and keeps it. A script that publishes to a channel `channel` also has a form for
//! clusters, which publishes to the shard of the channel's slot; [`Script::sharded`] derives it at
//! the first use.

use std::borrow::Cow;
use std::sync::OnceLock;

use sha1_smol::Sha1;

/// A Lua script with its name, source and digest.
#[derive(Debug)]
pub(crate) struct Script {
    /// The name, for log lines.
    pub(crate) name: &'static str,
    source: Cow<'static, str>,
    /// How calls of this script are joined, if they can be.
    pub(crate) joining: Option<JoinedBy>,
    /// Whether the script changes no key, and sends no message on which data depend.
    pub(crate) only_reads: bool,
    digest: OnceLock<String>,
    sharded: OnceLock<Option<Box<Script>>>,
}

/// Another script, one call of which runs many calls of this one and of others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedBy {
    pub(crate) by: &'static Script,
    /// The byte that selects this script.
    pub(crate) code: u8,
}

/// The start of the call that publishes, with its form for the shards of a cluster.
const PUBLISH: (&str, &str) = ("redis.call('publish', channel", "redis.call('spublish', channel");

impl Script {
    pub(crate) const fn new(name: &'static str, source: Cow<'static, str>) -> Script {
        Script {
            name,
            source,
            joining: None,
            only_reads: false,
            digest: OnceLock::new(),
            sharded: OnceLock::new(),
        }
    }

    /// Lets calls of this script be joined.
    pub(crate) const fn joined(mut self, by: &'static Script, code: u8) -> Script {
        self.joining = Some(JoinedBy { by, code });
        self
    }

    /// States that the script changes no key, and sends no message on which data depend.
    pub(crate) const fn reading(mut self) -> Script {
        self.only_reads = true;
        self
    }

    /// Returns the text that `SCRIPT LOAD` sends.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the SHA-1 of the source, as 40 hexadecimal digits.
    pub(crate) fn digest(&self) -> &str {
        self.digest.get_or_init(|| Sha1::from(self.source.as_bytes()).digest().to_string())
    }

    /// Returns the form that publishes with `SPUBLISH`, if this script publishes.
    ///
    /// A script reaches shard channels of its own slot only. Other publications stay as they are.
    pub(crate) fn sharded(&self) -> Option<&Script> {
        let derive = || {
            let source = self.source.replace(PUBLISH.0, PUBLISH.1);
            (source != self.source).then(|| Box::new(Script::new(self.name, Cow::Owned(source))))
        };
        self.sharded.get_or_init(derive).as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_sha1_of_the_source() {
        let script = Script::new("abc", Cow::Borrowed("abc"));
        // The first example of FIPS 180.
        assert_eq!(script.digest(), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(std::ptr::eq(script.digest(), script.digest()), "computed once");
    }
}
