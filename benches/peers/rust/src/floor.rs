//! The floor: the bare redis crate sending leasehold's two scripts, one connection
//! with no delay per thread. No gate, no renewal, no waiting.
//!
//! The posted floor reads the answer to a release only with that to the next acquire:
//! what a release that nobody waits for can save at best.

use redis::io::tcp::TcpSettings;
use redis::{Cmd, Connection, ConnectionInfo, IntoConnectionInfo};

use crate::contender::{Blocking, Contender, Result, Worker};

const ACQUIRE: &str = include_str!("../../../../lua/plain_acquire.lua");
const RELEASE: &str = include_str!("../../../../lua/plain_release.lua");

#[derive(Clone)]
struct Floor {
    info: ConnectionInfo,
    posts: bool,
}

pub(crate) fn open(url: &str, posts: bool) -> Result<Contender> {
    let settings = TcpSettings::default().set_nodelay(true);
    let info = url.into_connection_info()?.set_tcp_settings(settings);
    Ok(Contender::Blocking(Box::new(Floor { info, posts })))
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
        let (name, posts) = (name.to_owned(), self.posts);
        Ok(Box::new(Pairs {
            connection,
            acquire,
            release,
            name,
            channel,
            count: 0,
            posts,
            owed: false,
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
    posts: bool,
    /// Whether the answer to a release is still to be read.
    owed: bool,
}

impl Pairs {
    fn acquire(&mut self) -> Result<String> {
        self.count += 1;
        let owner = format!("00000000-0000-4000-8000-000000000000:{}", self.count);
        let mut acquire = redis::cmd("EVALSHA");
        acquire.arg(&self.acquire).arg(1).arg(&self.name).arg(30_000).arg(&owner);
        self.send(&acquire)?;
        let (settled, answer) = (self.settle(), self.answer()?);
        settled?;
        match answer {
            -2 => Ok(owner),
            other => Err(format!("the floor was refused: {other}").into()),
        }
    }

    fn release(&mut self, owner: &str) -> Result {
        let mut release = redis::cmd("EVALSHA");
        release.arg(&self.release).arg(1).arg(&self.name).arg(owner).arg(&self.channel).arg("0");
        self.send(&release)?;
        self.owed = true;
        if self.posts { Ok(()) } else { self.settle() }
    }

    /// Reads the answer to a release, if there is one to come.
    fn settle(&mut self) -> Result {
        if !std::mem::take(&mut self.owed) {
            return Ok(());
        }
        match self.answer()? {
            0.. => Ok(()),
            other => Err(format!("the floor did not release: {other}").into()),
        }
    }

    fn send(&mut self, command: &Cmd) -> Result {
        Ok(self.connection.send_packed_command(&command.get_packed_command())?)
    }

    fn answer(&mut self) -> Result<i64> {
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
