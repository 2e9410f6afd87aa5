//! The floor of a semaphore: the bare redis crate with the least that two scripts can do in
//! Redisson's format.
//!
//! Each thread has a connection with `TCP_NODELAY`. Expired permits are not reclaimed, and there is
//! no wait.

use std::time::{SystemTime, UNIX_EPOCH};

use redis::io::tcp::TcpSettings;
use redis::{Connection, ConnectionInfo, IntoConnectionInfo};

use crate::contender::{Blocking, Contender, PERMITS, Result, Worker};

/// Takes a permit if one is free. KEYS: permits, expiries. ARGV: id, expiry.
const ACQUIRE: &str = "
    if tonumber(redis.call('get', KEYS[1])) < 1 then
        return 0
    end
    redis.call('decr', KEYS[1])
    return redis.call('zadd', KEYS[2], ARGV[2], ARGV[1])
";

/// Gives a permit back. KEYS: permits, expiries. ARGV: id, channel.
const RELEASE: &str = "
    if redis.call('zrem', KEYS[2], ARGV[1]) == 0 then
        return 0
    end
    redis.call('publish', ARGV[2], redis.call('incr', KEYS[1]))
    return 1
";

const LEASE_MS: u128 = 30_000;

#[derive(Clone)]
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
        Ok(Box::new(self.clone()))
    }

    fn worker(&self, name: &str) -> Result<Box<dyn Worker>> {
        let mut connection = redis::Client::open(self.info.clone())?.get_connection()?;
        let set = redis::cmd("SET").arg(name).arg(PERMITS).arg("NX").take();
        set.exec(&mut connection)?;
        let mut load = |script: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(script).query::<String>(&mut connection)
        };
        let (acquire, release) = (load(ACQUIRE)?, load(RELEASE)?);
        let (name, expiries) = (name.to_owned(), format!("{{{name}}}:timeout"));
        let channel = format!("redisson_sc:{{{name}}}");
        Ok(Box::new(Pairs { connection, acquire, release, name, expiries, channel, count: 0 }))
    }
}

struct Pairs {
    connection: Connection,
    acquire: String,
    release: String,
    name: String,
    expiries: String,
    channel: String,
    count: u64,
}

impl Pairs {
    fn call(&mut self, script: &str, id: &str, argument: &str) -> Result {
        let mut call = redis::cmd("EVALSHA");
        call.arg(script).arg(2).arg(&self.name).arg(&self.expiries).arg(id).arg(argument);
        match call.query(&mut self.connection)? {
            1 => Ok(()),
            other => Err(format!("the floor was refused: {other}").into()),
        }
    }
}

impl Worker for Pairs {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        self.count += 1;
        // 16 bytes, as all ids.
        let id = format!("{:016x}", self.count);
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        let (acquire, release) = (self.acquire.clone(), self.release.clone());
        self.call(&acquire, &id, &(now + LEASE_MS).to_string())?;
        until();
        let channel = self.channel.clone();
        self.call(&release, &id, &channel)
    }
}
