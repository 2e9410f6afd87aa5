//! The configuration of a server.

use super::members::Members;

/// The configuration of a `Server`.
///
/// Settings for redis.conf, files in the same folder, and the credentials of the harness.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(super) kind: Kind,
    pub(super) lines: Vec<String>,
    pub(super) files: Vec<(String, String)>,
    pub(super) credentials: Option<Credentials>,
    pub(super) greeting: &'static [&'static str],
    pub(super) members: Option<Members>,
    pub(super) movable_clock: bool,
    pub(super) is_encrypted: bool,
}

/// The mode of a redis-server.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Kind {
    #[default]
    Plain,
    Sentinel,
    /// A node of a cluster, with a second port for the other nodes.
    Node,
}

/// A user name, `None` for the default user, and a password.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Config {
    /// Adds a line to redis.conf. It overrides the lines of the harness.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Puts a file into the server's folder.
    ///
    /// The folder is the server's working folder, so a line may name the file without a path.
    pub fn file(mut self, name: impl Into<String>, content: impl Into<String>) -> Self {
        self.files.push((name.into(), content.into()));
        self
    }

    /// Keeps all acknowledged data when the process is killed.
    ///
    /// Written data survives the process without fsync, which would turn each stall of the disk
    /// into a stall of the server.
    pub fn durable(self) -> Self {
        self.line("appendonly yes").line("appendfsync no")
    }

    /// Makes the server require this password.
    pub fn password(mut self, password: &str) -> Self {
        self.credentials = Some(Credentials { user: None, password: password.to_owned() });
        self.line(format!("requirepass {password}"))
    }

    /// Makes the server use TLS only, on its port and to other servers.
    ///
    /// Lines have to name the server's certificate. The harness still uses the unix socket.
    pub fn encrypted(mut self) -> Self {
        self.is_encrypted = true;
        self.line("tls-replication yes").line("tls-cluster yes")
    }

    /// Makes the harness log in as this user.
    ///
    /// Needed if lines or a file disable the default user. They have to grant this user everything.
    pub fn admin(mut self, user: &str, password: &str) -> Self {
        self.credentials =
            Some(Credentials { user: Some(user.to_owned()), password: password.to_owned() });
        self
    }

    /// Makes the server a sentinel instead of a server with data.
    pub fn sentinel(mut self) -> Self {
        self.kind = Kind::Sentinel;
        self
    }

    /// Puts a proxy in front of every port of the server.
    ///
    /// The proxies know which of these members makes a connection. Other processes get the ports of
    /// the proxies.
    pub fn gated(mut self, members: &Members) -> Self {
        self.members = Some(members.clone());
        self
    }

    /// Makes the server's clock movable (`Server::set_clock`).
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        // The allocator's thread would sleep until moments of another clock: not at all, or long.
        self.greeting(&["CONFIG", "SET", "jemalloc-bg-thread", "no"])
    }

    /// Sets a command that runs after each start. The server may refuse it.
    pub(super) fn greeting(mut self, words: &'static [&'static str]) -> Self {
        self.greeting = words;
        self
    }

    /// Makes the server a node of a cluster.
    pub(super) fn node(mut self) -> Self {
        self.kind = Kind::Node;
        self.line("cluster-enabled yes").line("cluster-announce-ip 127.0.0.1")
    }

    /// Adds the lines that make a replica follow its master soon.
    pub(super) fn follower(self) -> Self {
        self.line("replica-announce-ip 127.0.0.1")
            .line("repl-diskless-sync yes")
            .line("repl-diskless-sync-delay 0")
            .line("repl-ping-replica-period 1")
    }

    /// Makes the server log in at its master with the credentials of the harness.
    pub(super) fn login_at_master(self) -> Self {
        let Some(Credentials { user, password }) = self.credentials.clone() else {
            return self;
        };
        let known = self.line(format!("masterauth {password}"));
        match user {
            Some(user) => known.line(format!("masteruser {user}")),
            None => known,
        }
    }
}
