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
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',', display_order = 900)]
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
            return Ok(self.url.clone());
        }
        let set = VARIABLES.into_iter().filter_map(|name| env::var(name).ok());
        let urls = set.filter(|value| !value.is_empty()).find(|_| true);
        let missing = || Failure::usage("no server is named: use --url, or set LEASEHOLD_URL");
        Ok(urls.ok_or_else(missing)?.split(',').map(str::to_owned).collect())
    }
}
