//! What a test wants of its server.

use super::members::Members;

/// The configuration of a `Server`: settings for redis.conf, files beside it,
/// and the credentials that the harness itself needs.
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

/// What a redis-server is started as.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Kind {
    #[default]
    Plain,
    Sentinel,
    /// A node of a cluster, which needs a second port for the other nodes.
    Node,
}

/// A user name, `None` for the default user, and a password.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl Config {
    /// Adds a line to redis.conf, after the harness's own, so it wins over them.
    pub fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// Puts a file into the server's folder, which is its working folder: a line
    /// may name it without a path.
    pub fn file(mut self, name: impl Into<String>, content: impl Into<String>) -> Self {
        self.files.push((name.into(), content.into()));
        self
    }

    /// Lets the server ask everyone for this password.
    pub fn password(mut self, password: &str) -> Self {
        self.credentials = Some(Credentials { user: None, password: password.to_owned() });
        self.line(format!("requirepass {password}"))
    }

    /// Makes the server speak nothing but TLS, on its port and to other servers. Lines
    /// have to name its certificate. The harness goes on using the unix socket.
    pub fn encrypted(mut self) -> Self {
        self.is_encrypted = true;
        self.line("tls-replication yes").line("tls-cluster yes")
    }

    /// Makes the harness log in as this user. Needed where lines, or a file,
    /// close the default user; they have to grant this one everything.
    pub fn admin(mut self, user: &str, password: &str) -> Self {
        self.credentials =
            Some(Credentials { user: Some(user.to_owned()), password: password.to_owned() });
        self
    }

    /// Starts a sentinel instead of a server with data.
    pub fn sentinel(mut self) -> Self {
        self.kind = Kind::Sentinel;
        self
    }

    /// Puts a proxy before every port of the server that knows which of these members
    /// connects; others are told the proxy's port.
    pub fn gated(mut self, members: &Members) -> Self {
        self.members = Some(members.clone());
        self
    }

    /// Lets the test move the server's clock (`Server::set_clock`).
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Runs a command whenever the server has started. It may refuse.
    pub(super) fn greeting(mut self, words: &'static [&'static str]) -> Self {
        self.greeting = words;
        self
    }

    /// Starts a node of a cluster.
    pub(super) fn node(mut self) -> Self {
        self.kind = Kind::Node;
        self.line("cluster-enabled yes").line("cluster-announce-ip 127.0.0.1")
    }

    /// Makes the server follow a master soon.
    pub(super) fn follower(self) -> Self {
        self.line("replica-announce-ip 127.0.0.1")
            .line("repl-diskless-sync yes")
            .line("repl-diskless-sync-delay 0")
            .line("repl-ping-replica-period 1")
    }

    /// Makes the server log in at its master as the harness does.
    pub(super) fn login_at_master(self) -> Self {
        let Some(Credentials { user, password }) = self.credentials.clone() else {
            return self;
        };
        let known = self.line(format!("masterauth {password}"));
        user.iter().fold(known, |known, user| known.line(format!("masteruser {user}")))
    }
}
