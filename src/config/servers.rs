//! The servers of a client: the URLs as given, and the addresses read from them.

use std::fmt;

use crate::error::{Error, Result};
use crate::transport::connection::{Address, Certificates, Login, Trust};

/// The URLs given to a builder, not yet parsed.
#[derive(Clone)]
pub(crate) enum ServerUrls {
    Single(String),
    Sentinel { master: String, urls: Vec<String> },
    Cluster { urls: Vec<String> },
}

/// The addresses of a client's servers, parsed and checked.
#[derive(Debug)]
pub(crate) enum Servers {
    Single(Address),
    Sentinel {
        /// The name under which the sentinels know the master.
        master: String,
        sentinels: Vec<Address>,
        /// Login, database and TLS of the master. The sentinels name its host and port.
        template: Address,
    },
    Cluster(Vec<Address>),
}

impl ServerUrls {
    pub(crate) fn read(&self, login: Option<&Login>) -> Result<Servers> {
        match self {
            ServerUrls::Single(url) => {
                let address = Address::parse(url)?;
                Ok(Servers::Single(with_login(address, login)))
            }
            ServerUrls::Sentinel { master, urls } => read_sentinel(master, urls, login),
            ServerUrls::Cluster { urls } => read_cluster(urls, login),
        }
    }
}

fn read_sentinel(master: &str, urls: &[String], login: Option<&Login>) -> Result<Servers> {
    let addresses = parse_all(urls)?;
    let first = addresses.first().ok_or_else(|| no_url("sentinel"))?.clone();
    if master.is_empty() {
        return Err(Error::configuration("the name of the master is empty"));
    }
    if addresses.iter().any(|it| it.contradicts_database_of(&first)) {
        return Err(Error::configuration("the URLs of the sentinels name different databases"));
    }
    // A user and a password in a sentinel's URL are for the sentinel, not for the master.
    let template = first.with_login(login.cloned().unwrap_or_default());
    let sentinels = addresses.into_iter().map(Address::without_database).collect();
    Ok(Servers::Sentinel { master: master.to_owned(), sentinels, template })
}

fn read_cluster(urls: &[String], login: Option<&Login>) -> Result<Servers> {
    let nodes = parse_all(urls)?;
    if nodes.is_empty() {
        return Err(no_url("cluster node"));
    }
    if nodes.iter().any(Address::has_database) {
        return Err(Error::configuration("a cluster has only database 0"));
    }
    Ok(Servers::Cluster(nodes.into_iter().map(|node| with_login(node, login)).collect()))
}

fn parse_all(urls: &[String]) -> Result<Vec<Address>> {
    urls.iter().map(|url| Address::parse(url)).collect()
}

fn with_login(address: Address, login: Option<&Login>) -> Address {
    match login {
        Some(login) => address.with_login(login.clone()),
        None => address,
    }
}

impl Servers {
    /// Applies one set of TLS settings to all addresses, if any URL asks for TLS.
    pub(crate) fn secured(self, certificates: &Certificates) -> Result<Servers> {
        let trust = Trust::new(certificates)?;
        let all = |addresses: Vec<Address>| -> Result<Vec<Address>> {
            addresses.into_iter().map(|address| address.secured(&trust)).collect()
        };
        Ok(match self {
            Servers::Single(address) => Servers::Single(address.secured(&trust)?),
            Servers::Sentinel { master, sentinels, template } => {
                let (sentinels, template) = (all(sentinels)?, template.secured(&trust)?);
                Servers::Sentinel { master, sentinels, template }
            }
            Servers::Cluster(nodes) => Servers::Cluster(all(nodes)?),
        })
    }
}

fn no_url(what: &str) -> Error {
    Error::configuration(format!("no {what} URL was given"))
}

/// Shows the addresses, without passwords.
impl fmt::Debug for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.read(None) {
            Ok(Servers::Single(address)) => address.fmt(f),
            Ok(servers) => servers.fmt(f),
            Err(_) => f.write_str("unreadable"),
        }
    }
}
