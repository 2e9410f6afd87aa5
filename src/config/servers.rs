//! Where the servers of a client are.

use std::fmt;

use crate::connection::{Address, Certificates, Login, Trust};
use crate::error::{Error, Result};

/// What a builder was told.
#[derive(Clone)]
pub(crate) enum ServerUrls {
    Single(String),
    Sentinel { master: String, urls: Vec<String> },
    Cluster { urls: Vec<String> },
}

/// The same, read and checked.
#[derive(Debug)]
pub(crate) enum Servers {
    One(Address),
    /// Those that tell where the master of that name is, and how it is spoken to.
    Named {
        master: String,
        sentinels: Vec<Address>,
        like: Address,
    },
    /// Nodes of a cluster.
    Nodes(Vec<Address>),
}

impl ServerUrls {
    pub(crate) fn read(&self, login: Option<&Login>) -> Result<Servers> {
        let parse = |url: &String| Address::parse(url);
        let with_login = |address: Address| match login {
            Some(login) => address.with_login(login.clone()),
            None => address,
        };
        match self {
            ServerUrls::Single(url) => parse(url).map(with_login).map(Servers::One),
            ServerUrls::Sentinel { master, urls } => {
                let given = urls.iter().map(parse).collect::<Result<Vec<_>>>()?;
                let first = given.first().ok_or_else(|| none("sentinel"))?.clone();
                if master.is_empty() {
                    return Err(Error::configuration("the name of the master is empty"));
                }
                // The user in a sentinel's URL is one of the sentinel's.
                let like = first.with_login(login.cloned().unwrap_or_default());
                let sentinels = given.into_iter().map(Address::without_database).collect();
                Ok(Servers::Named { master: master.clone(), sentinels, like })
            }
            ServerUrls::Cluster { urls } => {
                let nodes = urls.iter().map(parse).collect::<Result<Vec<_>>>()?;
                let first = nodes.first().ok_or_else(|| none("node"))?;
                if first.has_database() {
                    return Err(Error::configuration("a cluster has but one database, 0"));
                }
                Ok(Servers::Nodes(nodes.into_iter().map(with_login).collect()))
            }
        }
    }
}

impl Servers {
    /// The same servers with one set of TLS settings, built if any URL asks for TLS.
    pub(crate) fn secured(self, certificates: &Certificates) -> Result<Servers> {
        let trust = Trust::new(certificates)?;
        let all = |addresses: Vec<Address>| -> Result<Vec<Address>> {
            addresses.into_iter().map(|address| address.secured(&trust)).collect()
        };
        Ok(match self {
            Servers::One(address) => Servers::One(address.secured(&trust)?),
            Servers::Named { master, sentinels, like } => {
                let (sentinels, like) = (all(sentinels)?, like.secured(&trust)?);
                Servers::Named { master, sentinels, like }
            }
            Servers::Nodes(nodes) => Servers::Nodes(all(nodes)?),
        })
    }
}

fn none(what: &str) -> Error {
    Error::configuration(format!("no {what} is named"))
}

impl fmt::Debug for ServerUrls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.read(None) {
            Ok(Servers::One(address)) => address.fmt(f),
            Ok(servers) => servers.fmt(f),
            Err(_) => f.write_str("unreadable"),
        }
    }
}
