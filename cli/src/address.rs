//! The server: from the command line, else from the environment.

use std::path::{Path, PathBuf};
use std::{env, fs};

use clap::Args;
use leasehold::{AuditPolicy, Builder, Client};

use crate::failure::{Failure, Result};

/// The variables with the URL, in their order.
const VARIABLES: [&str; 2] = ["LEASEHOLD_URL", "REDIS_URL"];

/// The variable with the user and the password for the servers. With sentinels, those of the URLs
/// are for the sentinels alone.
const LOGIN: &str = "LEASEHOLD_LOGIN";

/// The servers that have the locks.
#[derive(Args, Clone, Debug)]
pub(crate) struct Server {
    /// Server, else $LEASEHOLD_URL (safer), else $REDIS_URL
    #[arg(long, global = true, value_name = "URL", display_order = 900)]
    url: Vec<String>,
    /// The URLs are nodes of a cluster
    #[arg(long, global = true, conflicts_with = "sentinel", display_order = 901)]
    cluster: bool,
    /// The URLs are sentinels of the master M
    #[arg(long, global = true, value_name = "M", display_order = 902)]
    sentinel: Option<String>,
    /// The only certificate authorities of TLS, as PEM
    #[arg(long, global = true, value_name = "FILE", display_order = 903)]
    cacert: Option<PathBuf>,
    /// Certificate for servers that ask for one, as PEM
    #[arg(long, global = true, value_name = "FILE", requires = "key", display_order = 904)]
    cert: Option<PathBuf>,
    /// Key of that certificate, as PEM
    #[arg(long, global = true, value_name = "FILE", requires = "cert", display_order = 905)]
    key: Option<PathBuf>,
    /// Name in the servers' certificates, else the host
    #[arg(long, global = true, value_name = "NAME", display_order = 906)]
    sni: Option<String>,
}

impl Server {
    /// Returns a builder for a client of these servers.
    pub(crate) fn builder(&self) -> Result<Builder> {
        let urls = self.urls()?;
        let builder = Client::builder().label("leasehold").audit_policy(AuditPolicy::Ignore);
        let builder = self.secured(builder, &urls)?;
        let builder = match login()? {
            Some((user, password)) => builder.login(user, password),
            None => builder,
        };
        Ok(match (&self.sentinel, self.cluster, &urls[..]) {
            (Some(master), _, _) => builder.sentinel(master, urls),
            (None, true, _) => builder.cluster(urls),
            (None, false, [url]) => builder.single(url),
            (None, false, _) => {
                return Err(Failure::usage("several URLs need --cluster or --sentinel M"));
            }
        })
    }

    /// Adds the settings of TLS. Without a URL for TLS they would protect nothing.
    fn secured(&self, mut builder: Builder, urls: &[String]) -> Result<Builder> {
        let Server { cacert, cert, key, sni, .. } = self;
        let is_set = cacert.is_some() || cert.is_some() || sni.is_some();
        if is_set && !urls.iter().any(|url| wants_tls(url)) {
            return Err(Failure::usage("--cacert, --cert and --sni need a URL with rediss://"));
        }
        if let Some(path) = cacert {
            builder = builder.tls_authority(file(path)?);
        }
        if let (Some(cert), Some(key)) = (cert, key) {
            builder = builder.tls_identity(file(cert)?, file(key)?);
        }
        if let Some(name) = sni {
            builder = builder.tls_host_name(name);
        }
        Ok(builder)
    }

    /// Connects a client that only looks, and leaves no record.
    pub(crate) fn connect(&self) -> Result<Client> {
        Ok(self.builder()?.announce(false).build()?)
    }

    /// Returns the addresses of the servers for people: without user, password and database.
    pub(crate) fn shown(&self) -> Result<String> {
        let hosts = self.urls()?.iter().map(|url| host(url).to_owned()).collect::<Vec<_>>();
        let hosts = hosts.join(", ");
        Ok(match (&self.sentinel, self.cluster) {
            (Some(master), _) => format!("{master} by sentinels {hosts}"),
            (None, true) => format!("cluster {hosts}"),
            (None, false) => hosts,
        })
    }

    fn urls(&self) -> Result<Vec<String>> {
        if !self.url.is_empty() {
            return Ok(self.url.iter().flat_map(|urls| split(urls)).collect());
        }
        for name in VARIABLES {
            if let Some(urls) = variable(name)? {
                return Ok(split(&urls));
            }
        }
        Err(Failure::usage("no server is named: use --url, or set LEASEHOLD_URL"))
    }
}

/// Returns the value of a variable, unless it is not set or empty.
///
/// An unreadable value is an error: without it, another variable might name another server, on
/// which nothing would be excluded.
fn variable(name: &str) -> Result<Option<String>> {
    let value = env::var_os(name).filter(|value| !value.is_empty());
    let text = value.map(|value| value.into_string()).transpose();
    text.map_err(|_| Failure::usage(format!("{name} is not UTF-8")))
}

/// Returns the user and the password for the servers, if a variable has them.
fn login() -> Result<Option<(String, String)>> {
    let Some(login) = variable(LOGIN)? else {
        return Ok(None);
    };
    let wrong = || Failure::usage(format!("{LOGIN} must have the form user:password"));
    let (user, password) = login.split_once(':').ok_or_else(wrong)?;
    let user = if user.is_empty() { "default" } else { user };
    Ok(Some((user.to_owned(), password.to_owned())))
}

/// Splits a list of URLs at the commas. A part without a scheme belongs to the URL before it: a
/// password may have commas.
fn split(urls: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in urls.split(',') {
        match parts.last_mut() {
            Some(last) if !part.contains("://") => *last = format!("{last},{part}"),
            _ => parts.push(part.trim().to_owned()),
        }
    }
    parts
}

fn file(path: &Path) -> Result<Vec<u8>> {
    let wrong = |error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    fs::read(path).map_err(wrong)
}

fn wants_tls(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme.trim());
    ["rediss", "valkeys"].iter().any(|of_tls| scheme.eq_ignore_ascii_case(of_tls))
}

/// Returns the host and the port of a URL, or the path of its socket.
fn host(url: &str) -> &str {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if scheme.to_ascii_lowercase().ends_with("unix") {
        return path;
    }
    authority.rsplit_once('@').map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_separated_by_commas_and_passwords_may_have_commas() {
        assert_eq!(split("redis://a/"), ["redis://a/"]);
        assert_eq!(split("redis://a/, redis://b/"), ["redis://a/", "redis://b/"]);
        assert_eq!(split("redis://:a,b@h/,redis://c/"), ["redis://:a,b@h/", "redis://c/"]);
        assert_eq!(split(""), [""]);
    }

    #[test]
    fn an_address_for_people_has_no_password() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/", "127.0.0.1:6379"),
            ("rediss://user:secret@redis.example:6380/3", "redis.example:6380"),
            ("redis://:p@ss@redis.example", "redis.example"),
            ("redis://[::1]:6379", "[::1]:6379"),
            ("redis+unix:///run/redis.sock?user=a&pass=secret", "/run/redis.sock"),
            ("redis+unix:///run/@r.sock", "/run/@r.sock"),
            ("UNIX://localhost/run/r@1/r.sock?db=2&pass=a@b", "/run/r@1/r.sock"),
            ("unix://user:secret@/run/r.sock", "/run/r.sock"),
        ] {
            assert_eq!(host(url), shown);
        }
    }
}
