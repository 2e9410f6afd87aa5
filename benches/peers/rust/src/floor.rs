//! The floor: the bare redis crate with leasehold's two scripts.
//!
//! Each thread has a connection with `TCP_NODELAY`. There is no queue, no renewal and no wait.
//!
//! The posted floor reads the reply to a release only with the reply to the next acquire. That is
//! the most that a release without a waiting caller can save.

use redis::io::tcp::TcpSettings;
use redis::{Cmd, Connection, ConnectionInfo, IntoConnectionInfo};

use crate::contender::{Blocking, Contender, Result, Worker};

const ACQUIRE: &str = concat!(
    include_str!("../../../../lua/ask_holder.lua"),
    include_str!("../../../../lua/plain_acquire.lua")
);
const RELEASE: &str = include_str!("../../../../lua/plain_release.lua");

#[derive(Clone)]
struct Floor {
    info: ConnectionInfo,
    posted: bool,
}

pub(crate) fn open(url: &str, posted: bool) -> Result<Contender> {
    let settings = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_tcp_settings(settings);
    Ok(Contender::Blocking(Box::new(Floor { info, posted })))
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
        let mut load = |script: &str| {
            redis::cmd("SCRIPT").arg("LOAD").arg(script).query::<String>(&mut connection)
        };
        let (acquire, release) = (load(ACQUIRE)?, load(RELEASE)?);
        let channel = format!("redisson_lock__channel:{{{name}}}");
        let (name, posted) = (name.to_owned(), self.posted);
        Ok(Box::new(Pairs {
            connection,
            acquire,
            release,
            name,
            channel,
            count: 0,
            posted,
            reply_pending: false,
        }))
    }
}

struct Pairs {
    connection: Connection,
    acquire: String,
    release: String,
    name: String,
    channel: String,
    count: u64,
    posted: bool,
    /// Whether the reply to a release is still unread.
    reply_pending: bool,
}

impl Pairs {
    fn acquire(&mut self) -> Result<String> {
        self.count += 1;
        let owner = format!("00000000-0000-4000-8000-000000000000:{}", self.count);
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(1).arg(&self.name).arg(30_000).arg(&owner);
        self.send(&acquire)?;
        let (released, reply) = (self.read_release_reply(), self.reply()?);
        released?;
        match reply {
            -2 => Ok(owner),
            other => Err(format!("the floor was refused: {other}").into()),
        }
    }

    fn release(&mut self, owner: &str) -> Result {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg(&self.name).arg(owner).arg(&self.channel).arg("0");
        self.send(&release)?;
        self.reply_pending = true;
        if self.posted { Ok(()) } else { self.read_release_reply() }
    }

    /// Reads the reply to a release, if it is unread.
    fn read_release_reply(&mut self) -> Result {
        if !std::mem::take(&mut self.reply_pending) {
            return Ok(());
        }
        match self.reply()? {
            0.. => Ok(()),
            other => Err(format!("the floor did not release: {other}").into()),
        }
    }

    fn send(&mut self, command: &Cmd) -> Result {
        Ok(self.connection.send_packed_command(&command.get_packed_command())?)
    }

    fn reply(&mut self) -> Result<i64> {
        Ok(redis::from_redis_value(self.connection.recv_response()?)?)
    }
}

impl Worker for Pairs {
    fn hold(&mut self, until: &mut dyn FnMut()) -> Result {
        let owner = self.acquire()?;
        until();
        self.release(&owner)
    }
}
