//! Server addresses: endpoint, login, database and TLS settings.
//!
//! The program may give two functions: a login provider, which each new connection calls, and an
//! address map, through which each address goes that a sentinel or a node of a cluster names.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::tls::{self, Session, Trust};
use super::url::ServerUrl;
use crate::error::{CauseChain, Error, Refusal, Result};
use crate::transport::call::{Call, Digits};
use crate::util::text::without_controls;
use crate::util::threads::{catch_panic_of_callback, catch_quietly};

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
    /// The database, if the URL names one; otherwise the first.
    database: Option<u32>,
    /// `None` for the addresses as they are named.
    map: Option<AddressMap>,
}

/// The endpoint at which a server listens.
#[derive(Clone, Debug)]
pub(super) enum Endpoint {
    Host(String, u16),
    Path(PathBuf),
}

/// The name and the password of a Redis user.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

/// The origin of the credentials of a connection.
#[derive(Clone)]
pub(crate) enum Login {
    /// The URL.
    Url(Credentials),
    /// `Builder::login`. Without it, nobody logs in to servers behind sentinels.
    Builder(Credentials),
    /// `Builder::login_provider`.
    Provider(LoginProvider),
}

/// A function of the program that returns the user and the password of a new connection.
#[derive(Clone)]
pub(crate) struct LoginProvider(Arc<ProvideLogin>);

type ProvideLogin = dyn Fn() -> std::result::Result<(String, String), String> + Send + Sync;

/// A function of the program that returns the host and the port behind a named host and port.
#[derive(Clone)]
pub(crate) struct AddressMap(Arc<MapAddress>);

type MapAddress = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

impl LoginProvider {
    /// Of an error of the function only the text is kept: the client drops errors under its
    /// mutexes, where no code of the program may run.
    pub(crate) fn new<E: Into<Box<dyn std::error::Error + Send + Sync>>>(
        provider: impl Fn() -> std::result::Result<(String, String), E> + Send + Sync + 'static,
    ) -> LoginProvider {
        let text = |cause: E| CauseChain(&*cause.into()).to_string();
        LoginProvider(Arc::new(move || provider().map_err(text)))
    }

    /// Calls the function. A panic is an error too.
    fn credentials(&self) -> Result<Credentials> {
        match catch_quietly(|| (self.0)()) {
            None => Err(Error::connection("the login provider panicked")),
            Some(Err(cause)) => {
                Err(Error::connection("the login provider failed").with_source(cause))
            }
            Some(Ok((user, password))) => {
                Ok(Credentials { user: Some(user), password: Some(password) })
            }
        }
    }
}

impl AddressMap {
    pub(crate) fn new(
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> AddressMap {
        AddressMap(Arc::new(map))
    }

    /// Calls the function. After a panic the address is taken as it was named.
    fn apply(&self, host: &str, port: u16) -> (String, u16) {
        let mapped = catch_panic_of_callback("mapping an address", || (self.0)(host, port));
        mapped.unwrap_or_else(|| (host.to_owned(), port))
    }
}

impl Address {
    /// Parses a URL. The error never repeats a part of the URL, which may contain a password.
    pub(crate) fn parse(url: &str) -> Result<Address> {
        let ServerUrl { endpoint, wants_tls, login, database } = ServerUrl::parse(url)?;
        let shown = match &endpoint {
            Endpoint::Host(host, port) => format!("{host}:{port}").into(),
            Endpoint::Path(path) => path.display().to_string().into(),
        };
        let login = Login::Url(login);
        Ok(Address { endpoint, wants_tls, tls: None, shown, login, database, map: None })
    }

    /// Returns the same endpoint with or without TLS, in place of what the URL asks for.
    pub(crate) fn with_tls(self, wants_tls: bool) -> Address {
        Address { wants_tls, ..self }
    }

    /// Adds the client's TLS settings, if the URL asks for TLS.
    pub(crate) fn secured(self, trust: &Trust<'_>) -> Result<Address> {
        let tls = if self.wants_tls { Some(trust.settings()?) } else { None };
        Ok(Address { tls, ..self })
    }

    /// Returns the address of an endpoint that a sentinel or a node named, after the address map,
    /// with the same login, database and TLS settings.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        let (host, port) = match &self.map {
            Some(map) => map.apply(host, port),
            None => (host.to_owned(), port),
        };
        let shown = format!("{}:{port}", without_controls(&host)).into();
        Address { endpoint: Endpoint::Host(host, port), shown, ..self.clone() }
    }

    /// Returns the address of an endpoint that this server named. No host means this server's host.
    pub(crate) fn beside(&self, host: Option<&str>, port: u16) -> Address {
        match (host, &self.endpoint) {
            (Some(host), _) => self.at(host, port),
            (None, Endpoint::Host(host, _)) => self.at(host, port),
            (None, Endpoint::Path(_)) => self.at("127.0.0.1", port),
        }
    }

    /// Returns whether connections to this address use TLS.
    pub(super) fn uses_tls(&self) -> bool {
        self.tls.is_some()
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
        Address { login, ..self }
    }

    /// Returns the same endpoint with the client's address map.
    pub(crate) fn with_map(self, map: Option<AddressMap>) -> Address {
        Address { map, ..self }
    }

    /// Returns the error for a server that refuses the login.
    pub(super) fn login_refused(&self, refusal: &Refusal) -> Error {
        match (&self.login, refusal.code.as_str()) {
            (Login::Builder(_), "NOAUTH") => Error::refused_with(
                refusal,
                "the server requires a password: Builder::login sets it; that of a URL is for the \
                 sentinel",
            ),
            (Login::Builder(_), "WRONGPASS") => {
                Error::refused_with(refusal, "check the user and the password of Builder::login")
            }
            (Login::Provider(_), "WRONGPASS") => {
                let advice = "Builder::login_provider is asked again for the next connection";
                Error::refused_with(refusal, advice).made_transient()
            }
            _ => Error::refused(refusal),
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
    /// Calls the login provider. The reply in RESP3 contains the connection's client id.
    pub(super) fn hello(&self, name: &str) -> Result<Call> {
        let provided;
        let Credentials { user, password } = match &self.login {
            Login::Url(credentials) | Login::Builder(credentials) => credentials,
            Login::Provider(provider) => {
                provided = provider.credentials()?;
                &provided
            }
        };
        let mut parts: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if user.is_some() || password.is_some() {
            let user = user.as_deref().unwrap_or("default");
            let password = password.as_deref().unwrap_or_default();
            parts.extend([b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        parts.extend([b"SETNAME", name.as_bytes()]);
        Ok(Call::command(&parts))
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
    use std::sync::atomic::{AtomicU64, Ordering};

    fn parse(url: &str) -> Result<Address> {
        Address::parse(url)
    }

    fn shown(url: &str) -> String {
        format!("{:?}", parse(url).expect("a good URL"))
    }

    fn hello(address: &Address) -> String {
        let bytes = address.hello("n").expect("a login").bytes;
        String::from_utf8(bytes.to_vec()).expect("ASCII")
    }

    #[test]
    fn a_url_is_parsed_and_its_password_is_not_shown() {
        assert_eq!(shown("redis://u:secret@host:7000/3"), "Address(\"host:7000\")");
        assert_eq!(
            shown("redis+unix:///run/r.sock?user=u&pass=secret"),
            "Address(\"/run/r.sock\")"
        );
        let address = parse("redis://u:s%20x@host/3").expect("a good URL");
        let hello = hello(&address);
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
        assert_eq!(hello(&other), hello(&seed));
        assert!(other.select().is_some());
        let nobody = Login::Builder(Credentials::default());
        let sentinel = other.with_login(nobody).without_database();
        assert!(!hello(&sentinel).contains("AUTH"));
        assert!(sentinel.select().is_none());
    }

    #[test]
    fn a_named_address_goes_through_the_map_once() {
        let map = AddressMap::new(|host, port| match (host, port) {
            ("10.0.0.2", 6379) => ("outside".to_owned(), 7002),
            ("outside", 6379) => panic!("on purpose"),
            _ => (host.to_owned(), port + 1),
        });
        let seed = parse("redis://outside:7001").expect("a good URL").with_map(Some(map));
        assert_eq!(&**seed.shown(), "outside:7001");
        let other = seed.beside(Some("10.0.0.2"), 6379);
        assert_eq!(&**other.shown(), "outside:7002");
        assert_eq!(&**other.beside(None, 7000).shown(), "outside:7001");
        assert_eq!(&**other.beside(None, 6379).shown(), "outside:6379", "a panic changes nothing");
    }

    #[test]
    fn each_connection_asks_the_login_provider() {
        let count = AtomicU64::new(0);
        let provider = LoginProvider::new(move || match count.fetch_add(1, Ordering::Relaxed) {
            2 => Err("no token"),
            3 => panic!("on purpose"),
            count => Ok(("u".to_owned(), format!("p{count}"))),
        });
        let address = parse("redis://old:old@h").expect("a good URL");
        let address = address.with_login(Login::Provider(provider));
        for password in ["p0", "p1"] {
            assert!(hello(&address).contains(&format!("u\r\n$2\r\n{password}\r\n")));
        }
        let error = |address: &Address| address.hello("n").expect_err("no login");
        assert_eq!(
            error(&address).with_causes().to_string(),
            "the login provider failed: no token"
        );
        assert_eq!(error(&address).to_string(), "the login provider panicked");
        assert!(hello(&address).contains("p4"));
    }
}
