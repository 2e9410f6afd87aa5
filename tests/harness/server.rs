//! A real redis-server of a test's own.

use super::clock;
use super::config::{Config, Kind};
use super::gate::Gate;
pub use super::ports::free_port;
use super::ports::{TO_THE_BUS, free_port_with_bus};
use super::spawned::Spawned;
use super::wait::{BOUND, eventually};
use redis::{Connection, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, RedisResult};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

/// The name of the harness's own connections, which `Server::clients` leaves out.
pub const HARNESS: &str = "harness";

/// How often another port is tried when one turns out to be taken.
const PORTS_TRIED: usize = 20;

/// A redis-server on a free port of 127.0.0.1 and on a unix socket, with a
/// temporary folder and no persistence unless configured. It dies with this
/// value, and with the test process at the latest.
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order: the process ends before its folder goes.
    process: Mutex<Option<Spawned>>,
    folder: TempDir,
    port: u16,
    gate: Option<Gate>,
    config: Config,
}

/// How an attempt to start ended, where it did not fail the test.
#[derive(PartialEq)]
enum Launch {
    Ready,
    PortTaken,
}

impl Server {
    /// Starts a server; blocks until it answers.
    pub fn start() -> Self {
        Self::with(|config| config)
    }

    /// Starts a server with more configuration; blocks until it answers.
    pub fn with(configure: impl FnOnce(Config) -> Config) -> Self {
        let config = configure(Config::default());
        (0..PORTS_TRIED)
            .map(|_| Self::on_port(port_for(config.kind), config.clone()))
            .find(|server| server.launch() == Launch::Ready)
            .expect("a free port stays free for a moment")
    }

    /// `redis://127.0.0.1:<port>/`, or `rediss://`, without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.config.is_encrypted { "rediss" } else { "redis" };
        format!("{scheme}://{}/", self.addr())
    }

    /// `redis://<user>:<password>@127.0.0.1:<port>/`, both taken as they are: no
    /// signs that an address would have to escape.
    pub fn login_url(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}/", self.addr())
    }

    /// `redis+unix:///<path of the socket>`, without credentials.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.path("redis.sock").display())
    }

    /// The TCP port at which others reach it, the same after a restart.
    pub fn port(&self) -> u16 {
        self.gate.as_ref().map_or(self.port, |gate| gate.front().addr().port())
    }

    /// The port at which the other nodes of a cluster reach it.
    pub fn bus_port(&self) -> u16 {
        let bus = self.gate.as_ref().and_then(Gate::bus);
        bus.map_or(self.port + TO_THE_BUS, |bus| bus.addr().port())
    }

    /// The TCP address at which others reach it.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// The proxies through which others reach it; it was configured to have them.
    pub fn gate(&self) -> &Gate {
        self.gate.as_ref().expect("a server that is gated")
    }

    /// Under which name the server is one of the members that its gate knows.
    pub fn member(&self) -> String {
        format!("server {}", self.port)
    }

    /// Moves its clock to so many milliseconds ahead of this machine's, or behind.
    pub fn set_clock(&self, ahead: i64) {
        clock::set(self.folder.path(), ahead * 1000);
    }

    /// The path of a file in the server's folder.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// What the server has logged since it last started.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("redis.log")).unwrap_or_default()
    }

    /// Connects as the administrator, over the unix socket, under the name
    /// `harness`. A reply that does not come within 30 s is an error.
    pub fn connection(&self) -> Connection {
        self.try_connection().expect("the server takes connections")
    }

    /// The same as another user than the one that the configuration names.
    pub fn connection_as(&self, user: &str, password: &str) -> Connection {
        let address = ConnectionAddr::Unix(self.path("redis.sock")).into_connection_info();
        let login = self.login().set_username(user).set_password(password);
        let address = address.expect("a path").set_redis_settings(login);
        let client = redis::Client::open(address).expect("a good address");
        client.get_connection().expect("the server takes connections")
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.running(|process| process.pid())
    }

    /// Stops the process (SIGSTOP), and blocks until it stands still.
    pub fn stop(&self) {
        self.running(|process| process.stop());
    }

    /// Lets a stopped process run again (SIGCONT).
    pub fn resume(&self) {
        self.running(|process| process.resume());
    }

    /// Whether the process is there and does not stand still.
    pub fn runs(&self) -> bool {
        self.process().as_ref().is_some_and(|process| !process.is_stopped())
    }

    /// Kills the process (SIGKILL) and waits for its end. Does nothing to one
    /// that has ended.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Lets the server end without saving, and waits for its end.
    pub fn shutdown_nosave(&self) {
        self.shutdown("NOSAVE");
    }

    /// Lets the server save its data and end, and waits for its end.
    pub fn shutdown_save(&self) {
        self.shutdown("SAVE");
    }

    /// Starts the server again on its port and in its folder, after killing it
    /// if it still runs; blocks until it answers. It loads what it has on disk:
    /// the last save, or the append-only file, or nothing.
    pub fn restart(&self) {
        self.kill();
        eventually("the server's old port is free again", || self.launch() == Launch::Ready);
    }

    fn on_port(port: u16, config: Config) -> Self {
        let server = Self {
            process: Mutex::new(None),
            folder: tempfile::Builder::new()
                .prefix("leasehold-")
                .tempdir()
                .expect("a temporary folder can be made"),
            port,
            gate: config.members.as_ref().map(|members| Gate::before(port, config.kind, members)),
            config,
        };
        server.write_files();
        server
    }

    fn write_files(&self) {
        for (name, content) in &self.config.files {
            fs::write(self.path(name), content).expect("our own folder is writable");
        }
        let gate = self.gate.as_ref().map(|gate| gate.lines(self.config.kind));
        let lines = [gate.unwrap_or_default(), self.config.lines.clone()].concat();
        let text = self.own_settings() + &lines.join("\n") + "\n";
        fs::write(self.path("redis.conf"), text).expect("our own folder is writable");
    }

    fn own_settings(&self) -> String {
        let folder = self.folder.path().display();
        let port = match self.config.is_encrypted {
            true => format!("port 0\ntls-port {}", self.port),
            false => format!("port {}", self.port),
        };
        format!(
            "dir \"{folder}\"\n\
             logfile redis.log\n\
             bind 127.0.0.1\n\
             {port}\n\
             unixsocket \"{folder}/redis.sock\"\n\
             save \"\"\n"
        )
    }

    fn launch(&self) -> Launch {
        // Or the message of an older start might be taken for this one's.
        let _ = fs::remove_file(self.path("redis.log"));
        let mut process = spawn(self.folder.path(), &self.config);
        // Before it connects to others.
        if let Some(members) = &self.config.members {
            members.join(&self.member(), process.pid());
        }
        let mut ended = false;
        eventually("the server answers", || {
            ended = process.try_wait().is_some();
            ended || self.answers()
        });
        if ended {
            let log = self.log();
            assert!(log.contains("Address already in use"), "no server: {log}");
            return Launch::PortTaken;
        }
        *self.process() = Some(process);
        if !self.config.greeting.is_empty() {
            let _ = self.tells::<()>(self.config.greeting);
        }
        Launch::Ready
    }

    /// Asks over the unix socket, which lies in our own folder and is opened
    /// after the port: whoever answers there is our server, and has the port.
    fn answers(&self) -> bool {
        let pong = self
            .try_connection()
            .and_then(|mut connection| redis::cmd("PING").query::<()>(&mut connection));
        pong.is_ok()
    }

    pub(super) fn try_connection(&self) -> RedisResult<Connection> {
        let address = ConnectionAddr::Unix(self.path("redis.sock")).into_connection_info()?;
        let client = redis::Client::open(address.set_redis_settings(self.login()))?;
        let mut connection = client.get_connection()?;
        connection.set_read_timeout(Some(BOUND))?;
        redis::cmd("CLIENT").arg(&["SETNAME", HARNESS]).query::<()>(&mut connection)?;
        Ok(connection)
    }

    fn login(&self) -> RedisConnectionInfo {
        let settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        let Some(credentials) = &self.config.credentials else {
            return settings;
        };
        let settings = settings.set_password(&credentials.password);
        match &credentials.user {
            Some(user) => settings.set_username(user),
            None => settings,
        }
    }

    fn shutdown(&self, how: &str) {
        let answer: RedisResult<()> = redis::cmd("SHUTDOWN").arg(how).query(&mut self.connection());
        // A server that obeys has no time to answer.
        let error = answer.expect_err("a server that ends does not answer");
        assert!(error.is_io_error(), "the server stays: {error}");
        self.running(|process| process.wait());
        self.kill();
    }

    fn running<T>(&self, action: impl FnOnce(&mut Spawned) -> T) -> T {
        action(self.process().as_mut().expect("the server runs"))
    }

    /// A test that panicked meanwhile leaves nothing half done in there.
    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn port_for(kind: Kind) -> u16 {
    match kind {
        Kind::Node => free_port_with_bus(),
        Kind::Plain | Kind::Sentinel => free_port(),
    }
}

fn spawn(folder: &Path, config: &Config) -> Spawned {
    let program = std::env::var_os("LEASEHOLD_REDIS_SERVER");
    let mut command = Command::new(program.unwrap_or("redis-server".into()));
    command
        .arg(folder.join("redis.conf"))
        .args((config.kind == Kind::Sentinel).then_some("--sentinel"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if config.movable_clock {
        clock::prepare(&mut command, folder);
    }
    Spawned::start(&mut command, Some(folder))
}
