//! A real redis-server for one test.

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

/// The name of the harness's connections, which `Server::clients` leaves out.
pub const HARNESS: &str = "harness";

/// The number of ports that are tried, since another process may take a free port.
const PORTS_TRIED: usize = 20;

/// A redis-server on a free port of 127.0.0.1 and on a unix socket.
///
/// The server has a temporary folder, and no persistence unless configured. It ends with this
/// value, at the latest with the test process.
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order: the process ends before its folder is removed.
    process: Mutex<Option<Spawned>>,
    folder: TempDir,
    port: u16,
    gate: Option<Gate>,
    config: Config,
}

/// The outcome of an attempt to start, unless it fails the test.
#[derive(PartialEq)]
enum Launch {
    Ready,
    PortTaken,
}

impl Server {
    /// Starts a server; blocks until the server answers.
    pub fn start() -> Self {
        Self::with(|config| config)
    }

    /// Starts a server with more configuration; blocks until the server answers.
    pub fn with(configure: impl FnOnce(Config) -> Config) -> Self {
        let config = configure(Config::default());
        let is_node = config.kind == Kind::Node;
        for _ in 0..PORTS_TRIED {
            let port = if is_node { free_port_with_bus() } else { free_port() };
            let server = Self::on_port(port, config.clone());
            if server.launch() == Launch::Ready {
                return server;
            }
        }
        panic!("no free port stays free for a moment")
    }

    /// Returns `redis://127.0.0.1:<port>/`, or `rediss://`, without credentials.
    pub fn url(&self) -> String {
        let scheme = if self.config.is_encrypted { "rediss" } else { "redis" };
        format!("{scheme}://{}/", self.addr())
    }

    /// Returns `redis://<user>:<password>@127.0.0.1:<port>/`.
    ///
    /// Neither value may contain characters that a URL has to escape.
    pub fn login_url(&self, user: &str, password: &str) -> String {
        format!("redis://{user}:{password}@{}/", self.addr())
    }

    /// Returns `redis+unix:///<path of the socket>`, without credentials.
    pub fn unix_url(&self) -> String {
        format!("redis+unix://{}", self.path("redis.sock").display())
    }

    /// Returns the TCP port for other processes, the same after a restart.
    pub fn port(&self) -> u16 {
        self.gate.as_ref().map_or(self.port, |gate| gate.front().addr().port())
    }

    /// Returns the bus port for the other nodes of a cluster.
    pub fn bus_port(&self) -> u16 {
        let bus = self.gate.as_ref().and_then(Gate::bus);
        bus.map_or(self.port + TO_THE_BUS, |bus| bus.addr().port())
    }

    /// Returns the TCP address for other processes.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// Returns the proxies in front of the server. Panics unless `Config::gated` was used.
    pub fn gate(&self) -> &Gate {
        self.gate.as_ref().expect("a gated server")
    }

    /// Returns the server's name among the members that its gate knows.
    pub fn member(&self) -> String {
        format!("server {}", self.port)
    }

    /// Sets the server's clock to `ahead` milliseconds ahead of this machine's clock.
    pub fn set_clock(&self, ahead: i64) {
        clock::set(self.folder.path(), ahead * 1000);
    }

    /// Returns the path of a file in the server's folder.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Returns the server's log since its last start.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("redis.log")).unwrap_or_default()
    }

    /// Connects as the administrator, over the unix socket, under the name `harness`.
    ///
    /// A reply that takes longer than 30 s is an error.
    pub fn connection(&self) -> Connection {
        self.try_connection().expect("the server takes connections")
    }

    /// Connects like `connection`, but as the given user.
    pub fn connection_as(&self, user: &str, password: &str) -> Connection {
        let address = ConnectionAddr::Unix(self.path("redis.sock")).into_connection_info();
        let login = self.login().set_username(user).set_password(password);
        let address = address.expect("a path").set_redis_settings(login);
        let client = redis::Client::open(address).expect("a good address");
        client.get_connection().expect("the server takes connections")
    }

    /// Returns the server's process id.
    pub fn pid(&self) -> u32 {
        self.running(|process| process.pid())
    }

    /// Stops the process (SIGSTOP); blocks until all its threads have stopped.
    pub fn stop(&self) {
        self.running(|process| process.stop());
    }

    /// Resumes a stopped process (SIGCONT).
    pub fn resume(&self) {
        self.running(|process| process.resume());
    }

    /// Returns whether the process runs and is not stopped.
    pub fn runs(&self) -> bool {
        self.process().as_ref().is_some_and(|process| !process.is_stopped())
    }

    /// Kills the process (SIGKILL) and waits for its end.
    ///
    /// Does nothing if the process has ended.
    pub fn kill(&self) {
        *self.process() = None;
    }

    /// Makes the server save its data and shut down, and waits for its end.
    pub fn shutdown_save(&self) {
        let answer: RedisResult<()> =
            redis::cmd("SHUTDOWN").arg("SAVE").query(&mut self.connection());
        // A server that shuts down closes the connection without a reply.
        let error = answer.expect_err("a server that ends does not answer");
        assert!(error.is_io_error(), "the server stays: {error}");
        self.running(|process| process.wait());
        self.kill();
    }

    /// Restarts the server on its port and in its folder; blocks until the server answers.
    ///
    /// Kills the process first if it still runs. The server loads the data on disk: the last save,
    /// or the append-only file, or nothing.
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
        let folder = self.folder.path().display();
        let port = if self.config.is_encrypted {
            format!("port 0\ntls-port {}", self.port)
        } else {
            format!("port {}", self.port)
        };
        let own = format!(
            "dir \"{folder}\"\n\
             logfile redis.log\n\
             bind 127.0.0.1\n\
             {port}\n\
             unixsocket \"{folder}/redis.sock\"\n\
             save \"\"\n"
        );
        let gate = self.gate.as_ref().map(|gate| gate.lines(self.config.kind));
        let lines = [gate.unwrap_or_default(), self.config.lines.clone()].concat();
        let text = own + &lines.join("\n") + "\n";
        fs::write(self.path("redis.conf"), text).expect("our own folder is writable");
    }

    fn launch(&self) -> Launch {
        // Otherwise a message of an older start could be taken for one of this start.
        let _ = fs::remove_file(self.path("redis.log"));
        let mut process = spawn(self.folder.path(), &self.config);
        // The server must be a member before it connects to others.
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
            let _ = self.try_ask::<()>(self.config.greeting);
        }
        Launch::Ready
    }

    /// Returns whether the server answers over the unix socket.
    ///
    /// The socket is in our own folder and is opened after the port. So an answer proves that our
    /// server has the port.
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

    fn running<T>(&self, action: impl FnOnce(&mut Spawned) -> T) -> T {
        action(self.process().as_mut().expect("the server runs"))
    }

    /// A test that panics with the mutex locked leaves no inconsistent value.
    fn process(&self) -> MutexGuard<'_, Option<Spawned>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
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
