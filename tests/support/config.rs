//! What a test wants of its server.

/// The configuration of a `Server`: settings for redis.conf, files beside it,
/// and the credentials that the harness itself needs.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub(super) lines: Vec<String>,
    pub(super) files: Vec<(String, String)>,
    pub(super) credentials: Option<Credentials>,
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

    /// Makes the harness log in as this user. Needed where lines, or a file,
    /// close the default user; they have to grant this one everything.
    pub fn admin(mut self, user: &str, password: &str) -> Self {
        self.credentials =
            Some(Credentials { user: Some(user.to_owned()), password: password.to_owned() });
        self
    }
}
