//! The URL of a server: all of its parts are understood, or the URL is refused.
//!
//! A part that is ignored would let two services use different databases or users, and so exclude
//! nobody. The texts never repeat a part of the URL: a sign that is not percent-encoded moves parts
//! of a password into the host, the path, the parameters or the fragment.
//!
//! The redis crate reads the host and the port. All else is read here: the crate ignores what it
//! does not know, and decodes what is wrong or ambiguous without an error.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::address::{Credentials, Endpoint};
use crate::error::{Error, Result};

/// What a URL tells about a server.
pub(super) struct ServerUrl {
    pub(super) endpoint: Endpoint,
    pub(super) wants_tls: bool,
    pub(super) login: Credentials,
    /// The database, if the URL names one.
    pub(super) database: Option<u32>,
}

const FORMS: &str = "it must be redis://, rediss:// or redis+unix://, with a host or a path";
const SIGNS: &str = "the signs # / ? @ and % of a user or a password must be percent-encoded, as \
                     %23 %2F %3F %40 and %25";
const FRAGMENT: &str = "it must have no fragment; # in a user or a password is written %23";
const CONTROL: &str = "it contains a control character";
const NO_HOST: &str = "it has no host";
const HOST: &str = "its host must be a name in ASCII or the address of one server, without a zone \
                    and not percent-encoded";
const PORT: &str = "its port must be a number from 1 to 65535";
const PERCENT: &str =
    "two hexadecimal digits must follow each sign %; the sign itself is written %25";
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

/// The names and values behind `?`, in their raw form.
struct Parameters<'a>(Vec<(&'a str, &'a str)>);

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
        if fragment == "insecure" && !front.is_empty() {
            return Err(Error::configuration(
                "the URL contains \"#insecure\", but certificates are always checked",
            ));
        }
        return Err(refused(if fragment.contains('@') { SIGNS } else { FRAGMENT }));
    }
    let (front, parameters) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = front.split_at(front.find('/').unwrap_or(front.len()));
    Ok(Parts { authority, path, parameters })
}

fn read_tcp(parts: Parts<'_>, wants_tls: bool) -> Result<ServerUrl> {
    let Parts { authority, path, parameters } = parts;
    let (user_info, address) = authority.rsplit_once('@').unwrap_or(("", authority));
    if [user_info, path, parameters].into_iter().any(|part| part.contains('@')) {
        return Err(refused(SIGNS));
    }
    // `user:password`, of which each part may be missing.
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let text = |part: &str| (!part.is_empty()).then(|| decoded_text(part)).transpose();
    let login = Credentials { user: text(user)?, password: text(password)? };
    check_address(address)?;
    // The redis crate is built without TLS, and refuses the schemes with TLS.
    let info = format!("redis://{address}").into_connection_info().map_err(|_| refused(HOST))?;
    let ConnectionAddr::Tcp(host, port) = info.addr().clone() else { return Err(refused(FORMS)) };
    let parameters = Parameters::read(parameters, &["db"], PARAMETERS)?;
    let path = path.strip_prefix('/').unwrap_or(path);
    let path = path.strip_suffix('/').unwrap_or(path);
    let number = if path.is_empty() { None } else { Some(read_number(path, PATH)?) };
    let database = read_database(number, parameters.get("db"))?;
    Ok(ServerUrl { endpoint: Endpoint::Host(host, port), wants_tls, login, database })
}

fn read_socket(parts: Parts<'_>) -> Result<ServerUrl> {
    let Parts { authority, path, parameters } = parts;
    if authority.contains('@') {
        return Err(refused(SOCKET_USER));
    }
    if !matches!(authority, "" | "localhost") || path.trim_matches('/').is_empty() {
        return Err(refused(SOCKET_PATH));
    }
    let parameters = Parameters::read(parameters, &["db", "user", "pass"], SOCKET_PARAMETERS)?;
    let database = read_database(None, parameters.get("db"))?;
    let user = parameters.get("user").map(decoded_text).transpose()?;
    let password = parameters.get("pass").map(decoded_text).transpose()?;
    let endpoint = Endpoint::Path(OsString::from_vec(decoded(path)?).into());
    Ok(ServerUrl { endpoint, wants_tls: false, login: Credentials { user, password }, database })
}

/// Decodes a user or a password.
fn decoded_text(text: &str) -> Result<String> {
    String::from_utf8(decoded(text)?).map_err(|_| refused(USER_INFO))
}

/// Decodes `%` with two hexadecimal digits. All other signs stand for themselves, also `+`.
fn decoded(text: &str) -> Result<Vec<u8>> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).filter(|it| it.bytes().all(|sign| sign.is_ascii_hexdigit()));
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| refused(PERCENT))?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    Ok(bytes)
}

/// Checks that there is a host that the system finds as it is written, and that the port is one.
fn check_address(address: &str) -> Result<()> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port),
        _ => (address, ""),
    };
    if host.is_empty() {
        return Err(refused(NO_HOST));
    }
    // The redis crate would percent-encode other signs, and decode nothing.
    if !host.is_ascii() || host.contains('%') {
        return Err(refused(HOST));
    }
    let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if port.is_empty() || is_port { Ok(()) } else { Err(refused(PORT)) }
}

impl<'a> Parameters<'a> {
    /// Splits the text behind `?`. Refuses, for `reason`, unknown and repeated parameters.
    fn read(text: &'a str, known: &[&str], reason: &'static str) -> Result<Parameters<'a>> {
        let mut read = Parameters(Vec::new());
        for parameter in text.split('&').filter(|it| !it.is_empty()) {
            let (name, value) = parameter.split_once('=').ok_or_else(|| refused(reason))?;
            if !known.contains(&name) || read.get(name).is_some() {
                return Err(refused(reason));
            }
            read.0.push((name, value));
        }
        Ok(read)
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(it, _)| *it == name).map(|(_, value)| *value)
    }
}

fn read_database(path: Option<u32>, parameter: Option<&str>) -> Result<Option<u32>> {
    let parameter = parameter.map(|text| read_number(text, DATABASE)).transpose()?;
    match (path, parameter) {
        (Some(path), Some(parameter)) if path != parameter => Err(refused(TWO_DATABASES)),
        _ => Ok(path.or(parameter)),
    }
}

/// Reads digits without a sign.
fn read_number(text: &str, reason: &'static str) -> Result<u32> {
    let is_number = text.bytes().all(|digit| digit.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or_else(|| refused(reason))
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
        let Credentials { user, password } = &read.login;
        let [user, password] = [user, password].map(|text| text.as_deref().unwrap_or("-"));
        format!(
            "{endpoint} {user} {password} {}{}",
            read.database.unwrap_or(0),
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
            ("redis+unix:///run/r+s?user=u+v&pass=a+b", "/run/r+s u+v a+b 0"),
            ("redis+unix:///run/../%C3%B6?pass=%2B%25%c3%b6ö", "/run/../ö - +%öö 0"),
            ("redis://u+v:a+%2b%25ö@h", "h 6379 u+v a++%ö 0"),
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
            (
                HOST,
                &[
                    "redis://0.0.0.0/",
                    "redis://[::]/",
                    "redis://[secret]/",
                    "redis://a b/",
                    "redis://h%65llo",
                    "redis://höst:6379",
                    "redis://u:secret@[fe80::1%25eth0]:6379",
                ],
            ),
            (
                PERCENT,
                &[
                    "redis://u:secret%@h",
                    "redis://u:secret%zz@h",
                    "redis://secret%2:p@h",
                    "redis://u:secret%+1@h",
                    "redis://u:%ösecret@h",
                    "redis+unix:///r?pass=secret%z1",
                    "redis+unix:///r%2g?pass=secret",
                ],
            ),
            (
                PORT,
                &[
                    "redis://h:65536/",
                    "redis://u:secret@h:99999",
                    "redis://h:0",
                    "redis://user:secret",
                ],
            ),
            (
                USER_INFO,
                &["redis://secret%ff@h", "redis://u:secret%c3@h/2", "unix:///r?pass=secret%ff"],
            ),
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
