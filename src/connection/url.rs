//! The URL of a server: all of its parts are understood, or the URL is refused.
//!
//! A part that is ignored would let two services use different databases or users, and so exclude
//! nobody. The texts never repeat a part of the URL: a sign that is not percent-encoded moves parts
//! of a password into the host, the path, the parameters or the fragment.
//!
//! The redis crate decodes the user, the password, the host and the port. The path, the parameters
//! and the fragment are read here, because the crate ignores what it does not know.

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::address::{Endpoint, Login};
use crate::error::{Error, Result};

/// What a URL tells about a server.
pub(super) struct ServerUrl {
    pub(super) endpoint: Endpoint,
    pub(super) wants_tls: bool,
    pub(super) login: Login,
    pub(super) database: u32,
}

const FORMS: &str = "it must be redis://, rediss:// or redis+unix://, with a host or a path";
const SIGNS: &str = "the signs # / ? and @ of a user or a password must be percent-encoded, as %23 \
                     %2F %3F and %40";
const FRAGMENT: &str = "it must have no fragment; # in a user or a password is written %23";
const CONTROL: &str = "it contains a control character";
const NO_HOST: &str = "it has no host";
const HOST: &str = "its host is neither a name nor an address of one server";
const PORT: &str = "its port must be a number from 1 to 65535";
const USER_INFO: &str = "its user or password is not UTF-8 after percent-decoding";
const PATH: &str = "its path must be the number of a database, as in redis://host/2";
const DATABASE: &str = "its parameter db must be the number of a database";
const TWO_DATABASES: &str = "its path and its parameters name different databases";
const PARAMETERS: &str = "its only parameter may be db, once; user and password stand before the \
                          host, percent-encoded, as in redis://user:password@host";
const SOCKET_PARAMETERS: &str =
    "the parameters of a socket are db, user and pass, each once and percent-encoded";
const SOCKET_USER: &str = "the user and the password of a socket are parameters, as in \
                           redis+unix:///path?user=user&pass=password";
const SOCKET_PATH: &str = "the path of a socket follows three slashes, as in redis+unix:///path";

/// The parts of a URL in their raw form.
#[derive(Clone, Copy, Debug)]
struct Parts<'a> {
    authority: &'a str,
    path: &'a str,
    parameters: &'a str,
}

impl ServerUrl {
    pub(super) fn parse(url: &str) -> Result<ServerUrl> {
        // The parser of the crate ignores white space at both ends, and some of it within.
        let url = url.trim();
        if url.contains(|sign: char| sign.is_ascii_control()) {
            return Err(refused(CONTROL));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| refused(FORMS))?;
        match scheme.to_ascii_lowercase().as_str() {
            "redis" | "valkey" => read_tcp(split(rest)?, false),
            "rediss" | "valkeys" => read_tcp(split(rest)?, true),
            "redis+unix" | "valkey+unix" | "unix" => read_socket(split(rest)?),
            _ => Err(refused(FORMS)),
        }
    }
}

/// Splits the text behind the scheme.
fn split(rest: &str) -> Result<Parts<'_>> {
    if let Some((front, fragment)) = rest.split_once('#') {
        let is_insecure = fragment == "insecure" && !front.is_empty();
        let reason = if fragment.contains('@') { SIGNS } else { FRAGMENT };
        return Err(if is_insecure { insecure() } else { refused(reason) });
    }
    let (front, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = front.split_at(front.find('/').unwrap_or(front.len()));
    Ok(Parts { authority, path, parameters })
}

fn read_tcp(parts: Parts<'_>, wants_tls: bool) -> Result<ServerUrl> {
    let Parts { authority, path, parameters } = parts;
    let is_unencoded = |text: &str| text.contains('@');
    let (user_info, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    if [user_info, path, parameters].into_iter().any(is_unencoded) {
        return Err(refused(SIGNS));
    }
    check_address(address)?;
    // The redis crate is built without TLS, and refuses the schemes with TLS.
    let info = format!("redis://{authority}").into_connection_info().map_err(|_| {
        let is_address = format!("redis://{address}").into_connection_info().is_ok();
        refused(if is_address { USER_INFO } else { HOST })
    })?;
    let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Err(refused(FORMS)) };
    let database = read_database(read_path(path)?, read_parameters(parameters, &["db"])?)?;
    let endpoint = Endpoint::Host(host, port);
    Ok(ServerUrl { endpoint, wants_tls, login: login_of(&info), database })
}

fn read_socket(parts: Parts<'_>) -> Result<ServerUrl> {
    let Parts { authority, path, parameters } = parts;
    if authority.contains('@') {
        return Err(refused(SOCKET_USER));
    }
    if !matches!(authority, "" | "localhost") || path.trim_matches('/').is_empty() {
        return Err(refused(SOCKET_PATH));
    }
    let database = read_parameters(parameters, &["db", "user", "pass"])?;
    let database = read_database(None, database)?;
    let url = format!("unix://{path}?{parameters}");
    let info = url.into_connection_info().map_err(|_| refused(SOCKET_PATH))?;
    let ConnectionAddr::Unix(path) = info.addr().clone() else { return Err(refused(FORMS)) };
    let endpoint = Endpoint::Path(path);
    Ok(ServerUrl { endpoint, wants_tls: false, login: login_of(&info), database })
}

fn login_of(info: &redis::ConnectionInfo) -> Login {
    let settings = info.redis_settings();
    let user = settings.username().map(str::to_owned);
    Login { user, password: settings.password().map(str::to_owned) }
}

/// Checks that there is a host, and that the port is one.
fn check_address(address: &str) -> Result<()> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (address, ""),
    };
    if host.is_empty() {
        return Err(refused(NO_HOST));
    }
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if port.is_empty() || is_port { Ok(()) } else { Err(refused(PORT)) }
}

/// Returns the database that the path names.
fn read_path(path: &str) -> Result<Option<u32>> {
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() { Ok(None) } else { read_number(path, PATH).map(Some) }
}

/// Returns the value of the parameter `db`, if no parameter is unknown or repeated.
fn read_parameters<'a>(parameters: &'a str, known: &[&str]) -> Result<Option<&'a str>> {
    let reason = if known.len() == 1 { PARAMETERS } else { SOCKET_PARAMETERS };
    let mut names = Vec::new();
    let mut database = None;
    for parameter in parameters.split('&').filter(|it| !it.is_empty()) {
        let (name, value) = parameter.split_once('=').ok_or_else(|| refused(reason))?;
        if !known.contains(&name) || names.contains(&name) {
            return Err(refused(reason));
        }
        names.push(name);
        database = if name == "db" { Some(value) } else { database };
    }
    Ok(database)
}

fn read_database(path: Option<u32>, parameter: Option<&str>) -> Result<u32> {
    let parameter = parameter.map(|text| read_number(text, DATABASE)).transpose()?;
    match (path, parameter) {
        (Some(path), Some(parameter)) if path != parameter => Err(refused(TWO_DATABASES)),
        _ => Ok(path.or(parameter).unwrap_or(0)),
    }
}

/// Reads digits without a sign.
fn read_number(text: &str, reason: &'static str) -> Result<u32> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or_else(|| refused(reason))
}

fn insecure() -> Error {
    Error::configuration("the URL contains \"#insecure\", but certificates are always checked")
}

fn refused(reason: &'static str) -> Error {
    Error::configuration(format!("the URL of the server cannot be used: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the endpoint, the user, the password and the database, in one text.
    fn read(url: &str) -> String {
        let read = ServerUrl::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"));
        let endpoint = match &read.endpoint {
            Endpoint::Host(host, port) => format!("{host} {port}"),
            Endpoint::Path(path) => path.display().to_string(),
        };
        let Login { user, password } = &read.login;
        let [user, password] = [user, password].map(|text| text.as_deref().unwrap_or("-"));
        format!(
            "{endpoint} {user} {password} {}{}",
            read.database,
            ["", " TLS"][usize::from(read.wants_tls)]
        )
    }

    #[test]
    fn each_part_of_a_url_counts() {
        for (url, expected) in [
            ("redis://h", "h 6379 - - 0"),
            ("redis://h:", "h 6379 - - 0"),
            ("valkey://h:1/", "h 1 - - 0"),
            ("REDIS://h:65535/0", "h 65535 - - 0"),
            ("  redis://h\n", "h 6379 - - 0"),
            ("rediss://h/2", "h 6379 - - 2 TLS"),
            ("valkeys://h/2/", "h 6379 - - 2 TLS"),
            ("redis://h?db=2", "h 6379 - - 2"),
            ("redis://h/?db=2", "h 6379 - - 2"),
            ("redis://h/2?db=2", "h 6379 - - 2"),
            ("redis://h/?", "h 6379 - - 0"),
            ("rediss://u:p@h:7/?db=15", "h 7 u p 15 TLS"),
            ("redis://:p@h", "h 6379 - p 0"),
            ("redis://u@h", "h 6379 u - 0"),
            ("redis://u:a:b@h", "h 6379 u a:b 0"),
            ("redis://u%40x:%23%2F%3F%40%25@h", "h 6379 u@x #/?@% 0"),
            ("redis://[::1]:7000/1", "::1 7000 - - 1"),
            ("redis://[::1]", "::1 6379 - - 0"),
            ("redis+unix:///run/r.sock", "/run/r.sock - - 0"),
            ("unix://localhost/run/r.sock?db=3", "/run/r.sock - - 3"),
            ("valkey+unix:///run/r%20s?pass=p%23%26&user=u&db=3", "/run/r s u p#& 3"),
            ("redis+unix:///run/@r.sock?pass=a@b", "/run/@r.sock - a@b 0"),
        ] {
            assert_eq!(read(url), expected, "{url}");
        }
    }

    /// Every `secret` stands for a part of a user or a password.
    #[test]
    fn a_url_that_is_not_understood_is_refused_without_a_part_of_it() {
        for (reason, urls) in [
            (FORMS, &["", "secret", "redis:secret", "http://secret/", "://secret"][..]),
            (
                SIGNS,
                &[
                    "redis://worker:4711#secret@redis.example/",
                    "redis://worker:4711?secret@redis.example/",
                    "redis://worker:4711/secret@redis.example/",
                    "redis://worker:4711@secret@redis.example/",
                    "rediss://worker:#secret@redis.example/2",
                    "redis://:?secret=1@redis.example/2",
                    "redis://:/secret@redis.example",
                    "redis://:secret/@redis.example/2?db=2",
                ],
            ),
            (
                FRAGMENT,
                &[
                    "redis://h#secret",
                    "redis://h/2#secret",
                    "rediss://h/#secret",
                    "redis+unix:///run/r.sock?pass=1#secret",
                    "redis://h/#",
                ],
            ),
            (CONTROL, &["redis://h/\n2", "redis://:se\tcret@h/"]),
            (
                NO_HOST,
                &["redis://", "redis://:secret@", "redis:///2", "redis://:6379/", "redis://?db=2"],
            ),
            (HOST, &["redis://0.0.0.0/", "redis://[::]/", "redis://[secret]/", "redis://a b/"]),
            (
                PORT,
                &[
                    "redis://h:65536/",
                    "redis://u:secret@h:99999",
                    "redis://h:0",
                    "redis://user:secret",
                ],
            ),
            (USER_INFO, &["redis://secret%ff@h", "redis://u:secret%c3@h/2"]),
            (
                PATH,
                &[
                    "redis://h/-1",
                    "redis://h/+1",
                    "redis://h/secret",
                    "redis://h/1/2",
                    "redis://h//1",
                    "redis://h/1.0",
                    "redis://h/%31",
                    "redis://h/4294967296",
                ],
            ),
            (
                DATABASE,
                &[
                    "redis://h?db=-1",
                    "redis://h/?db=",
                    "redis+unix:///r?db=secret",
                    "unix:///r?db=-1",
                ],
            ),
            (TWO_DATABASES, &["redis://h/1?db=2", "redis://h/0?db=2"]),
            (
                PARAMETERS,
                &[
                    "redis://h/?database=2",
                    "redis://h?user=u&password=secret",
                    "redis://h?db",
                    "redis://h?db=1&db=1",
                    "redis://h/2?secret",
                    "redis://h?DB=2",
                    "redis://h?d%62=2",
                ],
            ),
            (
                SOCKET_PARAMETERS,
                &[
                    "redis+unix:///r?database=2",
                    "redis+unix:///r?password=secret",
                    "redis+unix:///r?pass=1&secret",
                    "redis+unix:///r?pass=1&secret=2",
                    "redis+unix:///r?pass=1&pass=secret",
                    "unix:///r?secret",
                ],
            ),
            (SOCKET_USER, &["unix://u:secret@/run/r.sock", "unix://secret@localhost/run/r.sock"]),
            (
                SOCKET_PATH,
                &["redis+unix://run/r.sock", "redis+unix://", "unix:///", "unix://localhost"],
            ),
        ] {
            for url in urls {
                let error =
                    ServerUrl::parse(url).err().unwrap_or_else(|| panic!("{url}: accepted"));
                let text = "the URL of the server cannot be used";
                assert_eq!(error.to_string(), format!("{text}: {reason}"), "{url}");
                assert!(error.is_configuration(), "{url}");
                assert!(!format!("{error:?}").contains("secret"), "{url}: {error:?}");
            }
        }
        for url in ["rediss://h/#insecure", "redis://h/#insecure"] {
            let error = ServerUrl::parse(url).err().map(|error| error.to_string());
            let error = error.expect("certificates are checked");
            assert!(error.contains("certificates are always checked"), "{error}");
        }
    }
}
