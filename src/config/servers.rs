//! The servers of a client: the settings that say how to reach them, and the addresses read from
//! these.

use std::fmt;

use super::Builder;
use crate::error::{Error, Result};
use crate::transport::connection::{
    Address, AddressMap, Certificates, Credentials, Login, LoginProvider, Trust,
};

/// How the servers of a client are reached.
#[derive(Clone, Default)]
pub(super) struct ServerSettings {
    urls: Option<ServerUrls>,
    /// `None` for the logins of the URLs.
    login: Option<Login>,
    certificates: Certificates,
    /// What differs for sentinels.
    sentinel_certificates: Certificates,
    /// Whether the master behind sentinels has TLS. `None` for what the first URL says.
    master_tls: Option<bool>,
    address_map: Option<AddressMap>,
}

/// The URLs given to a builder, not yet parsed.
#[derive(Clone)]
enum ServerUrls {
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

/// The setters of the servers.
impl Builder {
    /// Sets one server, by its URL. No default.
    ///
    /// The URL has one of these forms:
    /// - `redis://[user][:password]@host[:port][/database]`, or `?db=database` for the database
    /// - `rediss://...`: the same with TLS, needs the feature `tls`
    /// - `redis+unix:///path/to/socket[?db=database&user=user&pass=password]`
    ///
    /// User and password are percent-encoded, `%` itself as `%25`. A URL with any other part, such
    /// as another parameter or a fragment, is an error of the build: if clients ignored such a
    /// part, they could use different databases unnoticed, and would not exclude each other. The
    /// host is a name in ASCII, or an address without a zone. The server must be Redis 6.2 or
    /// newer, or Valkey.
    pub fn single(mut self, url: impl Into<String>) -> Builder {
        self.servers.urls = Some(ServerUrls::Single(url.into()));
        self
    }

    /// Sets a master by its name, and the URLs of its sentinels. No default.
    ///
    /// The URLs have the forms of [`single`](Builder::single). Their user and password are those of
    /// the sentinels; [`login`](Builder::login) sets those of the master. The database of the first
    /// URL is the master's, and no other URL may name a different one. `rediss://` in the first URL
    /// also means TLS to the master, unless [`master_tls`](Builder::master_tls) says otherwise.
    ///
    /// For each new connection the client asks the sentinels one after the other, until a sentinel
    /// names a server that confirms its role as master. The client waits for a silent sentinel for
    /// an eighth of the connect and the response time-out (at least 100 ms). If no sentinel that
    /// answers knows a master, the client asks the silent ones again, with the whole time-outs. One
    /// more thread (`leasehold-failover`) asks one sentinel per second about fail-overs, over
    /// connections that stay open.
    ///
    /// After a fail-over the client leaves the old master, renews every lease on the new master or
    /// reports its loss, and its waiting calls ask the new master. If the old master falls silent
    /// without closing its connections, the [listener](crate#terms) notices after 3 s; until then
    /// the watchdog polls for waiting calls.
    ///
    /// ```
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/"];
    /// let builder = leasehold::Client::builder().sentinel("mymaster", sentinels);
    /// # let _ = builder;
    /// ```
    pub fn sentinel(
        mut self,
        master: impl Into<String>,
        urls: impl IntoIterator<Item = impl Into<String>>,
    ) -> Builder {
        let urls = urls.into_iter().map(Into::into).collect();
        self.servers.urls = Some(ServerUrls::Sentinel { master: master.into(), urls });
        self
    }

    /// Sets a Redis Cluster, by the URLs of some of its nodes. No default.
    ///
    /// The URLs have the forms of [`single`](Builder::single). One node that answers is enough. The
    /// client discovers the other nodes, and connects to them with the login and the TLS of the
    /// node that named them. The client makes up to [`pool_size`](Builder::pool_size) connections
    /// to each node that serves locks.
    ///
    /// All keys of a lock are in one slot. One more thread (`leasehold-failover`) reads the map of
    /// the slots every 5 s, and earlier if a node redirects a command or cannot be reached. After a
    /// change of the map the client renews every lease or reports its loss, and its waiting calls
    /// ask again. A command that the cluster cannot serve yet (`TRYAGAIN`, `CLUSTERDOWN`) is
    /// repeated for one response time-out.
    pub fn cluster(mut self, urls: impl IntoIterator<Item = impl Into<String>>) -> Builder {
        let urls = urls.into_iter().map(Into::into).collect();
        self.servers.urls = Some(ServerUrls::Cluster { urls });
        self
    }

    /// Sets the user and the password for the servers.
    ///
    /// Default: those in the URL; with Sentinel, none. If a server has only a password
    /// (`requirepass`), the user is `default`.
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Builder {
        let credentials = Credentials { user: Some(user.into()), password: Some(password.into()) };
        self.servers.login = Some(Login::Builder(credentials));
        self
    }

    /// Sets the only certificate authorities that `rediss://` URLs trust, as PEM.
    ///
    /// Default: those of the system, or those in the file that the variable `SSL_CERT_FILE` names,
    /// or in the folders that `SSL_CERT_DIR` names. Applies to all servers, and to sentinels unless
    /// [`sentinel_tls_authority`](Builder::sentinel_tls_authority) sets other authorities for them.
    /// Needs the feature `tls`.
    pub fn tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Builder {
        self.servers.certificates.authority = Some(pem.into());
        self
    }

    /// Sets the client certificate and its key, both as PEM.
    ///
    /// Default: none. The client presents the certificate to every server and sentinel that asks
    /// for one, unless [`sentinel_tls_identity`](Builder::sentinel_tls_identity) sets another one
    /// for sentinels. Needs the feature `tls`.
    pub fn tls_identity(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Builder {
        self.servers.certificates.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets a function that returns the user and the password of each new connection.
    ///
    /// Default: none. For passwords that change, such as tokens of a cloud's IAM or secrets that a
    /// file has. Takes the place of [`login`](Builder::login). Open connections stay open after a
    /// change of the password. Most servers accept the old password for some time after the change,
    /// so a new connection with the old password is not refused. If the server refuses the password
    /// (`WRONGPASS`), or if the function fails or panics, the attempt to connect fails: calls that
    /// already wait go on, renewals are repeated, and the next attempt calls the function again. Of
    /// an error of the function only the text is kept.
    ///
    /// The thread that makes a connection calls the function, and no time-out of the client ends
    /// it. Calls and renewals that need the connection wait until it is made. So a function that
    /// asks another service should return a stored password, and renew it in another thread.
    ///
    /// ```no_run
    /// use std::{fs, io};
    ///
    /// let client = leasehold::Client::builder()
    ///     .single("rediss://redis.example/")
    ///     .login_provider(|| -> io::Result<_> {
    ///         let password = fs::read_to_string("/run/secrets/redis")?;
    ///         Ok(("billing".to_owned(), password.trim_end().to_owned()))
    ///     })
    ///     .build()?;
    /// # Ok::<(), leasehold::Error>(())
    /// ```
    pub fn login_provider<E>(
        mut self,
        provider: impl Fn() -> std::result::Result<(String, String), E> + Send + Sync + 'static,
    ) -> Builder
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.servers.login = Some(Login::Provider(LoginProvider::new(provider)));
        self
    }

    /// Sets the name that the certificates of the servers must have.
    ///
    /// Default: the host of the address, for each server. For a cluster or a sentinel that names
    /// its servers by numeric addresses, while the certificates of the servers have a host name, as
    /// with Azure. The client also sends this name to the servers (SNI). The certificate of a
    /// sentinel must have the host of its URL. Needs the feature `tls`.
    pub fn tls_host_name(mut self, name: impl Into<String>) -> Builder {
        self.servers.certificates.host_name = Some(name.into());
        self
    }

    /// Sets whether the master that [sentinels](Builder::sentinel) name is reached over TLS.
    ///
    /// Default: as the first URL of the sentinels. Without sentinels, [`build`](Builder::build)
    /// returns [`is_configuration`](Error::is_configuration) for this setting, for
    /// [`sentinel_tls_authority`](Builder::sentinel_tls_authority) and for
    /// [`sentinel_tls_identity`](Builder::sentinel_tls_identity).
    pub fn master_tls(mut self, tls: bool) -> Builder {
        self.servers.master_tls = Some(tls);
        self
    }

    /// Sets the only certificate authorities that the client trusts for sentinels, as PEM.
    ///
    /// Default: those for the servers, see [`tls_authority`](Builder::tls_authority). Needs the
    /// feature `tls`.
    pub fn sentinel_tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Builder {
        self.servers.sentinel_certificates.authority = Some(pem.into());
        self
    }

    /// Sets the client certificate for sentinels and its key, both as PEM.
    ///
    /// Default: that for the servers, see [`tls_identity`](Builder::tls_identity). Needs the
    /// feature `tls`.
    pub fn sentinel_tls_identity(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Builder {
        self.servers.sentinel_certificates.identity = Some((certificate.into(), key.into()));
        self
    }

    /// Sets a function that maps each address that a sentinel or a cluster node names.
    ///
    /// Default: none. For servers behind a NAT or in containers, which know only addresses of
    /// their own network. The function gets a host and a port, and returns those to which the
    /// client connects. If a cluster node names no host, the function gets the host to which the
    /// client is connected. The function is not called for the hosts of URLs, so it has no effect
    /// with [`single`](Builder::single). Errors, events and log lines have the returned addresses.
    ///
    /// Any thread calls the function, whenever a server names an address. The function should
    /// return the same result for the same address at each call, soon, and must not use the client:
    /// other callers may wait for it. If it panics, the client takes the address as it was named,
    /// and logs an error.
    ///
    /// ```
    /// let builder = leasehold::Client::builder()
    ///     .cluster(["redis://127.0.0.1:7001/"])
    ///     // The containers 172.18.0.11 to 172.18.0.16 have the ports 7001 to 7006 of this host.
    ///     .address_map(|host, port| {
    ///         match host.strip_prefix("172.18.0.1").and_then(|last| last.parse::<u16>().ok()) {
    ///             Some(last) => ("127.0.0.1".to_owned(), 7000 + last),
    ///             None => (host.to_owned(), port),
    ///         }
    ///     });
    /// # let _ = builder;
    /// ```
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> Builder {
        self.servers.address_map = Some(AddressMap::new(map));
        self
    }
}

impl ServerSettings {
    /// Reads the URLs and the certificates. Connects to nothing.
    pub(super) fn read(&self) -> Result<Servers> {
        let urls =
            self.urls.as_ref().ok_or_else(|| Error::configuration("no server URL was given"))?;
        if !matches!(urls, ServerUrls::Sentinel { .. }) && self.has_settings_of_sentinels() {
            return Err(Error::configuration(
                "master_tls and the sentinels' TLS settings need Builder::sentinel",
            ));
        }
        let trust = Trust::new(&self.certificates)?;
        match urls {
            ServerUrls::Single(url) => {
                Ok(Servers::Single(self.server(Address::parse(url)?).secured(&trust)?))
            }
            ServerUrls::Sentinel { master, urls } => self.read_sentinel(master, urls, &trust),
            ServerUrls::Cluster { urls } => self.read_cluster(urls, &trust),
        }
    }

    fn has_settings_of_sentinels(&self) -> bool {
        self.master_tls.is_some() || self.sentinel_certificates.is_set()
    }

    /// Returns the address of a server with locks, with the settings for such servers.
    fn server(&self, address: Address) -> Address {
        let address = address.with_map(self.address_map.clone());
        match &self.login {
            Some(login) => address.with_login(login.clone()),
            None => address,
        }
    }

    fn read_sentinel(&self, master: &str, urls: &[String], trust: &Trust<'_>) -> Result<Servers> {
        let sentinels = parse_all(urls)?;
        let first = sentinels.first().ok_or_else(|| no_url("sentinel"))?.clone();
        if master.is_empty() {
            return Err(Error::configuration("the name of the master is empty"));
        }
        if sentinels.iter().any(|it| it.contradicts_database_of(&first)) {
            return Err(Error::configuration("the URLs of the sentinels name different databases"));
        }
        // A user and a password in a sentinel's URL are for the sentinel, not for the master.
        let template = self.server(first.with_login(Login::Builder(Credentials::default())));
        let template = match self.master_tls {
            Some(tls) => template.with_tls(tls),
            None => template,
        };
        let certificates = self.certificates.of_sentinels(&self.sentinel_certificates);
        let trust_in_sentinels = Trust::new(&certificates)?;
        let secured = |sentinel: Address| sentinel.without_database().secured(&trust_in_sentinels);
        Ok(Servers::Sentinel {
            master: master.to_owned(),
            sentinels: sentinels.into_iter().map(secured).collect::<Result<_>>()?,
            template: template.secured(trust)?,
        })
    }

    fn read_cluster(&self, urls: &[String], trust: &Trust<'_>) -> Result<Servers> {
        let nodes = parse_all(urls)?;
        if nodes.is_empty() {
            return Err(no_url("cluster node"));
        }
        if nodes.iter().any(Address::has_database) {
            return Err(Error::configuration("a cluster has only database 0"));
        }
        let nodes = nodes.into_iter().map(|node| self.server(node).secured(trust));
        Ok(Servers::Cluster(nodes.collect::<Result<_>>()?))
    }
}

fn parse_all(urls: &[String]) -> Result<Vec<Address>> {
    urls.iter().map(|url| Address::parse(url)).collect()
}

fn no_url(what: &str) -> Error {
    Error::configuration(format!("no {what} URL was given"))
}

/// Shows the addresses, without passwords.
impl fmt::Debug for ServerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.urls.is_none() {
            return f.write_str("None");
        }
        match self.read() {
            Ok(Servers::Single(address)) => address.fmt(f),
            Ok(servers) => servers.fmt(f),
            Err(_) => f.write_str("unreadable"),
        }
    }
}
