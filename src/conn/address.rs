//! Where a server is, as whom to speak to it, and whom to trust.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::tls::{self, Certificates};
use crate::error::{Error, Result};
use crate::script::{Call, Digits};

/// After such a silence the system looks whether the other end is still there: a
/// connection that died while it was idle is better found broken than silent.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Where a server is, and as whom to speak to it.
#[derive(Clone)]
pub(crate) struct Address {
    info: ConnectionInfo,
    shown: Arc<str>,
    login: Login,
    database: i64,
}

/// The name and the password of a user of the server.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl Address {
    /// Reads a URL. The error never repeats it: there may be a password in it.
    pub(crate) fn parse(url: &str, certificates: &Certificates) -> Result<Address> {
        let info = url.into_connection_info().map_err(|error| bad_url(&error))?;
        let settings = info.redis_settings();
        let user = settings.username().map(str::to_owned);
        let password = settings.password().map(str::to_owned);
        let database = settings.db();
        // The handshake is ours, with one deadline: the crate's would wait its
        // time-out once per command.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        let silent = redis::RedisConnectionInfo::default().set_skip_set_lib_name();
        let info = info
            .set_redis_settings(silent)
            .set_tcp_settings(TcpSettings::default().set_nodelay(true).set_keepalive(keepalive));
        let info = tls::with_certificates(info, certificates)?;
        let shown = info.addr().to_string().into();
        Ok(Address { info, shown, login: Login { user, password }, database })
    }

    /// The server at another place that is spoken to in the same way; over TCP, with TLS if
    /// this one has it.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        let place = match self.info.addr().clone() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure, tls_params }
            }
            _ => ConnectionAddr::Tcp(host.to_owned(), port),
        };
        let shown = place.to_string().into();
        Address { info: self.info.clone().set_addr(place), shown, ..self.clone() }
    }

    /// The server at a place that this one has named, which may leave the host out.
    pub(crate) fn beside(&self, host: Option<&str>, port: u16) -> Address {
        match (host, self.info.addr()) {
            (Some(host), _) => self.at(host, port),
            (None, ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => {
                self.at(host, port)
            }
            (None, _) => self.at("127.0.0.1", port),
        }
    }

    /// Whether it names another database than the first.
    pub(crate) fn has_database(&self) -> bool {
        self.database > 0
    }

    /// The same place for another user.
    pub(crate) fn with_login(self, login: Login) -> Address {
        Address { login, ..self }
    }

    /// The same place where there are no databases, or but one.
    pub(crate) fn without_database(self) -> Address {
        Address { database: 0, ..self }
    }

    /// The address without user and password.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.shown
    }

    pub(super) fn info(&self) -> ConnectionInfo {
        self.info.clone()
    }

    /// The first command on a connection; RESP3 tells its client id.
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

    pub(super) fn select(&self) -> Option<Call> {
        let database = u64::try_from(self.database).ok().filter(|database| *database > 0)?;
        Some(Call::command(&[b"SELECT", Digits::new(database).as_bytes()]))
    }
}

fn bad_url(error: &redis::RedisError) -> Error {
    let reason = match cfg!(feature = "tls") {
        false if error.to_string().contains("TLS") => "TLS needs the feature \"tls\" of leasehold",
        _ => "it must be redis://, rediss:// or redis+unix://, with a host or a path",
    };
    Error::configuration(format!("the URL of the server cannot be used: {reason}"))
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
        Address::parse(url, &Certificates::default())
    }

    fn shown(url: &str) -> String {
        format!("{:?}", parse(url).expect("a good URL"))
    }

    #[test]
    fn urls_are_read_and_passwords_never_shown() {
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

    #[test]
    fn bad_urls_are_refused_without_being_repeated() {
        for url in ["", "secret", "http://secret/", "redis://:secret@", "redis://h/secret"] {
            let error = parse(url).expect_err(url);
            assert!(error.is_configuration(), "{url}: {error}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{url}: {error:?}");
        }
    }

    #[test]
    fn another_place_is_spoken_to_as_the_same_user() {
        let seed = parse("redis://u:p@host:7000/3").expect("a good URL");
        let other = seed.at("::1", 7001);
        assert_eq!(&**other.shown(), "::1:7001");
        assert_eq!(**other.hello("n").bytes, **seed.hello("n").bytes);
        assert!(other.select().is_some());
        let sentinel = other.with_login(Login::default()).without_database();
        assert!(!String::from_utf8_lossy(&sentinel.hello("n").bytes).contains("AUTH"));
        assert!(sentinel.select().is_none());
    }
}
