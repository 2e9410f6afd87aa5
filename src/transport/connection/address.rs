//! Server addresses: endpoint, login, database and TLS settings.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::tls::{self, Session, Trust};
use super::url::ServerUrl;
use crate::error::Result;
use crate::transport::call::{Call, Digits};

/// The address of a server, with the settings for connecting to it.
#[derive(Clone)]
pub(crate) struct Address {
    endpoint: Endpoint,
    /// Whether the URL asks for TLS.
    wants_tls: bool,
    /// The TLS settings that all connections of the client share. `None` without TLS.
    tls: Option<tls::Settings>,
    /// The endpoint in text, for messages and comparisons.
    shown: Arc<str>,
    login: Login,
    /// Whether the login was set by `Builder::login`, or left out for servers behind sentinels.
    has_own_login: bool,
    /// The database, if the URL names one; otherwise the first.
    database: Option<u32>,
}

/// The endpoint at which a server listens.
#[derive(Clone, Debug)]
pub(super) enum Endpoint {
    Host(String, u16),
    Path(PathBuf),
}

/// The name and the password of a Redis user.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Address {
    /// Parses a URL. The error never repeats a part of the URL, which may contain a password.
    pub(crate) fn parse(url: &str) -> Result<Address> {
        let ServerUrl { endpoint, wants_tls, login, database } = ServerUrl::parse(url)?;
        let shown = match &endpoint {
            Endpoint::Host(host, port) => format!("{host}:{port}").into(),
            Endpoint::Path(path) => path.display().to_string().into(),
        };
        Ok(Address { endpoint, wants_tls, tls: None, shown, login, has_own_login: false, database })
    }

    /// Adds the client's TLS settings, if the URL asks for TLS.
    pub(crate) fn secured(self, trust: &Trust<'_>) -> Result<Address> {
        let tls = if self.wants_tls { Some(trust.settings()?) } else { None };
        Ok(Address { tls, ..self })
    }

    /// Returns the address of a TCP endpoint, with the same login, database and TLS settings.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        let endpoint = Endpoint::Host(host.to_owned(), port);
        Address { endpoint, shown: format!("{host}:{port}").into(), ..self.clone() }
    }

    /// Returns the address of an endpoint that this server named. No host means this server's host.
    pub(crate) fn beside(&self, host: Option<&str>, port: u16) -> Address {
        match (host, &self.endpoint) {
            (Some(host), _) => self.at(host, port),
            (None, Endpoint::Host(host, _)) => self.at(host, port),
            (None, Endpoint::Path(_)) => self.at("127.0.0.1", port),
        }
    }

    fn database(&self) -> u32 {
        self.database.unwrap_or(0)
    }

    /// Returns whether the address selects a database other than the first.
    pub(crate) fn has_database(&self) -> bool {
        self.database() > 0
    }

    /// Returns whether the URL of this address names a database that `other` does not select.
    pub(crate) fn contradicts_database_of(&self, other: &Address) -> bool {
        self.database.is_some_and(|database| database != other.database())
    }

    /// Returns the same endpoint with another login than that of the URL.
    pub(crate) fn with_login(self, login: Login) -> Address {
        Address { login, has_own_login: true, ..self }
    }

    /// Returns the advice for a server that refuses the login with this code.
    pub(super) fn login_advice(&self, code: &str) -> Option<&'static str> {
        match (code, self.has_own_login) {
            ("NOAUTH", true) => Some(
                "the server requires a password: Builder::login sets it; that of a URL is for the \
                 sentinel",
            ),
            ("WRONGPASS", true) => Some("check the user and the password of Builder::login"),
            _ => None,
        }
    }

    /// Returns the same endpoint without a database, for sentinels and cluster nodes.
    pub(crate) fn without_database(self) -> Address {
        Address { database: None, ..self }
    }

    /// Returns the endpoint in text, without user and password.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Creates a TLS session, if the connection uses TLS.
    pub(super) fn session(&self) -> std::io::Result<Option<Session>> {
        match (&self.tls, &self.endpoint) {
            (Some(tls), Endpoint::Host(host, _)) => Session::open(tls, host).map(Some),
            _ => Ok(None),
        }
    }

    /// Returns the first command of a connection: RESP3, login, and the connection's name.
    ///
    /// The reply in RESP3 contains the connection's client id.
    pub(super) fn hello(&self, name: &str) -> Call {
        let mut parts: Vec<&[u8]> = vec![b"HELLO", b"3"];
        let Login { user, password } = &self.login;
        if user.is_some() || password.is_some() {
            let user = user.as_deref().unwrap_or("default");
            let password = password.as_deref().unwrap_or_default();
            parts.extend([b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        parts.extend([b"SETNAME", name.as_bytes()]);
        Call::command(&parts)
    }

    /// Returns the command that selects the database, if it is not the first.
    pub(super) fn select(&self) -> Option<Call> {
        let database = Digits::new(self.database().into());
        self.has_database().then(|| Call::command(&[b"SELECT", database.as_bytes()]))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.shown).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address> {
        Address::parse(url)
    }

    fn shown(url: &str) -> String {
        format!("{:?}", parse(url).expect("a good URL"))
    }

    #[test]
    fn a_url_is_parsed_and_its_password_is_not_shown() {
        assert_eq!(shown("redis://u:secret@host:7000/3"), "Address(\"host:7000\")");
        assert_eq!(
            shown("redis+unix:///run/r.sock?user=u&pass=secret"),
            "Address(\"/run/r.sock\")"
        );
        let address = parse("redis://u:s%20x@host/3").expect("a good URL");
        let hello = String::from_utf8(address.hello("n").bytes.to_vec()).expect("ASCII");
        assert!(hello.contains("AUTH\r\n$1\r\nu\r\n$3\r\ns x\r\n"), "{hello}");
        assert!(address.select().is_some_and(|call| call.bytes.ends_with(b"3\r\n")));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn addresses_with_tls_share_the_settings_of_the_client() {
        let certificates = tls::Certificates::default();
        let trust = Trust::new(&certificates).expect("TLS is there");
        let secured = |url| parse(url).and_then(|address| address.secured(&trust));
        let [first, other] = ["rediss://a/", "rediss://b:1/"]
            .map(|url| secured(url).expect("the system has root certificates"));
        let settings = |address: &Address| address.tls.clone().expect("it has TLS");
        assert!(settings(&first).is(&settings(&other)));
        assert!(settings(&first).is(&settings(&first.at("c", 2))));
        assert!(secured("redis://a/").is_ok_and(|address| address.tls.is_none()));
        let error = secured("rediss://a/#insecure").expect_err("certificates are checked");
        assert!(error.is_configuration(), "{error:?}");
    }

    #[test]
    fn another_endpoint_keeps_login_and_database() {
        let seed = parse("redis://u:p@host:7000/3").expect("a good URL");
        let other = seed.at("::1", 7001);
        assert_eq!(&**other.shown(), "::1:7001");
        assert_eq!(*other.hello("n").bytes, *seed.hello("n").bytes);
        assert!(other.select().is_some());
        let sentinel = other.with_login(Login::default()).without_database();
        assert!(!String::from_utf8_lossy(&sentinel.hello("n").bytes).contains("AUTH"));
        assert!(sentinel.select().is_none());
    }
}
