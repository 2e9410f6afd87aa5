//! The server: from the command line, else from the environment.

use std::env;

use clap::Args;
use leasehold::{AuditPolicy, Builder, Client};

use crate::failure::{Failure, Result};

/// The variables with the URL, in their order.
const VARIABLES: [&str; 2] = ["LEASEHOLD_URL", "REDIS_URL"];

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
}

impl Server {
    /// Returns a builder for a client of these servers.
    pub(crate) fn builder(&self) -> Result<Builder> {
        let urls = self.urls()?;
        let builder = Client::builder().label("leasehold").audit_policy(AuditPolicy::Ignore);
        Ok(match (&self.sentinel, self.cluster, &urls[..]) {
            (Some(master), _, _) => builder.sentinel(master, urls),
            (None, true, _) => builder.cluster(urls),
            (None, false, [url]) => builder.single(url),
            (None, false, _) => {
                return Err(Failure::usage("several URLs need --cluster or --sentinel M"));
            }
        })
    }

    /// Connects a client that only looks, and leaves no record.
    pub(crate) fn connect(&self) -> Result<Client> {
        Ok(self.builder()?.announce(false).build()?)
    }

    fn urls(&self) -> Result<Vec<String>> {
        if !self.url.is_empty() {
            return Ok(self.url.iter().flat_map(|urls| split(urls)).collect());
        }
        let mut set = VARIABLES.into_iter().filter_map(|name| env::var(name).ok());
        let urls = set.find(|value| !value.is_empty());
        let missing = || Failure::usage("no server is named: use --url, or set LEASEHOLD_URL");
        Ok(split(&urls.ok_or_else(missing)?))
    }
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
}
