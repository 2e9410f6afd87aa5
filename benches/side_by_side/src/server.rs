//! The redis-server of this run, and its counters.

use std::collections::HashMap;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redis::Connection;

use crate::Result;
use crate::process;
use crate::spawned::Spawned;

/// The commands by which the libraries acquire and release.
const CALLS: [&str; 5] = ["eval", "evalsha", "fcall", "set", "setnx"];

pub(crate) struct Server {
    // Fields are dropped in this order: the process ends before its folder goes.
    process: Spawned,
    watch: Connection,
    tcp: String,
    unix: String,
    folder: tempfile::TempDir,
}

/// The counters of the server at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    /// Commands, including those that scripts call.
    pub(crate) commands: f64,
    /// Script calls and SETs.
    pub(crate) calls: f64,
    pub(crate) bytes: f64,
    pub(crate) cpu: Duration,
}

impl Counters {
    pub(crate) fn since(&self, before: &Counters) -> Counters {
        Counters {
            commands: self.commands - before.commands,
            calls: self.calls - before.calls,
            bytes: self.bytes - before.bytes,
            cpu: self.cpu.saturating_sub(before.cpu),
        }
    }
}

impl Server {
    pub(crate) fn start() -> Result<Server> {
        let folder = tempfile::tempdir()?;
        let socket = folder.path().join("redis.sock");
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let binary = std::env::var("LEASEHOLD_REDIS_SERVER");
        let mut command = Command::new(binary.as_deref().unwrap_or("redis-server"));
        command
            .args(["--save", "", "--maxclients", "20000", "--bind", "127.0.0.1"])
            .args(["--port", &port.to_string(), "--unixsocket"])
            .arg(&socket)
            .arg("--dir")
            .arg(folder.path())
            .stdout(Stdio::null());
        let mut process = Spawned::start(&mut command, Some(folder.path()))?;
        let client = redis::Client::open(format!("redis+unix://{}", socket.display()))?;
        let end = Instant::now() + Duration::from_secs(30);
        let watch = loop {
            match client.get_connection() {
                Ok(connection) => break connection,
                Err(error) if Instant::now() > end || process.has_ended() => {
                    return Err(format!("redis-server did not start: {error}").into());
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        };
        let (tcp, unix) =
            (format!("redis://127.0.0.1:{port}"), format!("unix://{}", socket.display()));
        Ok(Server { process, watch, tcp, unix, folder })
    }

    pub(crate) fn url(&self, path: Path) -> &str {
        match path {
            Path::Tcp => &self.tcp,
            Path::Unix => &self.unix,
        }
    }

    /// Returns a folder that is removed with the server, however this process ends.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub(crate) fn counters(&mut self) -> Result<Counters> {
        let stats = self.info("stats")?;
        let number = |name: &str| -> Result<f64> {
            Ok(stats.get(name).ok_or_else(|| format!("no {name}"))?.parse()?)
        };
        let bytes = number("total_net_input_bytes")? + number("total_net_output_bytes")?;
        let commands = number("total_commands_processed")?;
        let of = self.info("commandstats")?;
        let calls = CALLS.iter().filter_map(|name| {
            let line = of.get(&format!("cmdstat_{name}"))?;
            line.strip_prefix("calls=")?.split(',').next()?.parse::<f64>().ok()
        });
        let calls = calls.sum();
        Ok(Counters { commands, calls, bytes, cpu: process::cpu_of_threads(self.process.pid())? })
    }

    pub(crate) fn version(&mut self) -> Result<String> {
        Ok(self.info("server")?.get("redis_version").cloned().unwrap_or_default())
    }

    fn info(&mut self, section: &str) -> Result<HashMap<String, String>> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.watch)?;
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        Ok(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Returns the number of channels with subscribers.
    pub(crate) fn channels(&mut self) -> Result<usize> {
        let channels: Vec<String> = redis::cmd("PUBSUB").arg("CHANNELS").query(&mut self.watch)?;
        Ok(channels.len())
    }

    /// Returns the time to live of each key in milliseconds, negative as `PTTL` replies.
    pub(crate) fn remaining(&mut self, keys: &[String]) -> Result<Vec<i64>> {
        let mut pipeline = redis::pipe();
        for key in keys {
            pipeline.cmd("PTTL").arg(key);
        }
        Ok(pipeline.query(&mut self.watch)?)
    }

    /// Returns the keys whose names contain `part`.
    pub(crate) fn keys(&mut self, part: &str) -> Result<Vec<String>> {
        Ok(redis::cmd("KEYS").arg(format!("*{part}*")).query(&mut self.watch)?)
    }

    pub(crate) fn clear(&mut self) -> Result {
        Ok(redis::cmd("FLUSHALL").query(&mut self.watch)?)
    }
}

/// The transport between clients and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    Tcp,
    Unix,
}

impl Path {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::Tcp => "TCP",
            Path::Unix => "unix socket",
        }
    }
}
