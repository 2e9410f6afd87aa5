//! The floor: the bare redis crate sending leasehold's two scripts, one connection
//! with no delay per thread. No gate, no renewal, no waiting.

use redis::io::tcp::TcpSettings;
use redis::{Connection, ConnectionInfo, IntoConnectionInfo};

use crate::contender::{Blocking, Contender, Result, Worker};

const ACQUIRE: &str = include_str!("../../../../lua/plain_acquire.lua");
const RELEASE: &str = include_str!("../../../../lua/plain_release.lua");

struct Floor {
    info: ConnectionInfo,
}

pub(crate) fn open(url: &str) -> Result<Contender> {
    let settings = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_tcp_settings(settings);
    Ok(Contender::Blocking(Box::new(Floor { info })))
}

impl Blocking for Floor {
    fn version(&self) -> &str {
        "redis-rs-1.8"
    }

    fn waits(&self) -> bool {
        false
    }

    fn another(&self) -> Result<Box<dyn Blocking>> {
        Ok(Box::new(Floor { info: self.info.clone() }))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        let mut connection = redis::Client::open(self.info.clone())?.get_connection()?;
        let mut load = |script: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(script).query::<String>(&mut connection)
        };
        let (acquire, release) = (load(ACQUIRE)?, load(RELEASE)?);
        let channel = format!("redisson_lock__channel:{{{name}}}");
        Ok(Box::new(Pairs { connection, acquire, release, name: name.into(), channel, count: 0 }))
    }
}

struct Pairs {
    connection: Connection,
    acquire: String,
    release: String,
    name: String,
    channel: String,
    count: u64,
}

impl Pairs {
    fn acquire(&mut self) -> Result<String> {
        self.count += 1;
        let owner = format!("00000000-0000-4000-8000-000000000000:{}", self.count);
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(1).arg(&self.name).arg(30_000).arg(&owner);
        match acquire.query::<i64>(&mut self.connection)? {
            -2 => Ok(owner),
            other => Err(format!("the floor was refused: {other}").into()),
        }
    }

    fn release(&mut self, owner: &str) -> Result {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg(&self.name).arg(owner).arg(&self.channel).arg("0");
        match release.query::<i64>(&mut self.connection)? {
            0.. => Ok(()),
            other => Err(format!("the floor did not release: {other}").into()),
        }
    }
}

impl Worker for Pairs {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        let owner = self.acquire()?;
        until();
        self.release(&owner)
    }
}
