//! The server as a program: its settings, and its sockets.

use crate::core::{Core, Settings};
use crate::net::{Listener, Service};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::channel;

/// What the program serves, and where.
#[derive(Debug, Default)]
#[doc(hidden)]
pub struct Program {
    port: u16,
    socket: Option<PathBuf>,
    log: Option<PathBuf>,
    settings: Settings,
}

impl Program {
    /// Reads the settings from the arguments, and from the file that they name.
    ///
    /// # Errors
    ///
    /// A setting that the server does not have.
    pub fn from_args(args: &[String]) -> Result<Self, String> {
        let mut program = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            if let Some(name) = arg.strip_prefix("--") {
                let value = args.next().ok_or_else(|| format!("--{name} has no value"))?;
                program.set(name, value)?;
                continue;
            }
            let text = fs::read_to_string(arg).map_err(|error| format!("{arg}: {error}"))?;
            for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
                let (name, value) = line.split_once(' ').unwrap_or((line, ""));
                if !name.starts_with('#') {
                    program.set(name, value.trim().trim_matches('"'))?;
                }
            }
        }
        Ok(program)
    }

    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match (name, value) {
            ("port", _) => {
                self.port = value.parse().map_err(|_| format!("{value} is no port"))?;
            }
            ("unixsocket", _) => self.socket = Some(value.into()),
            ("dir", _) => {
                std::env::set_current_dir(value).map_err(|error| format!("{value}: {error}"))?;
            }
            ("logfile", _) => self.log = Some(value.into()),
            ("bind", "127.0.0.1") => {}
            _ => {
                let problem = |error: String| error.trim_start_matches("ERR ").to_owned();
                self.settings.set(name, value).map_err(problem)?;
            }
        }
        Ok(())
    }

    /// Serves until a client sends `SHUTDOWN`.
    ///
    /// # Errors
    ///
    /// A socket cannot be made.
    pub fn run(self) -> Result<(), String> {
        let served = self.serve();
        if let (Err(problem), Some(log)) = (&served, &self.log) {
            // The problem is also told to the caller.
            let _ = fs::write(log, format!("{problem}\n"));
        }
        served
    }

    fn serve(&self) -> Result<(), String> {
        let mut listeners = Vec::new();
        if self.port > 0 {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port));
            let listener = listener.and_then(Listener::tcp);
            listeners.push(listener.map_err(|error| error.to_string())?);
        }
        if let Some(path) = &self.socket {
            // A killed server leaves its socket behind.
            let _ = fs::remove_file(path);
            let listener = UnixListener::bind(path).and_then(Listener::unix);
            listeners.push(listener.map_err(|error| error.to_string())?);
        }
        if listeners.is_empty() {
            return Err("neither a port nor a unixsocket is set".to_owned());
        }
        let mut core = Core::new(std::process::id().into());
        core.change_settings(self.settings.clone());
        let mut service = Service::new(core, listeners);
        // Nothing controls the program.
        let (_waker, woken) = UnixStream::pair().map_err(|error| error.to_string())?;
        let (_controls, received) = channel();
        service.run(&woken, &received);
        Ok(())
    }
}
