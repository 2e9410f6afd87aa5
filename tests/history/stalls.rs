//! The stalls of the machine, as threads and servers feel them.
//!
//! A thread that only sleeps runs soon even on a busy machine. So the parent also asks each server
//! again and again: a server waits longer, for a processor or for its disk. And the proxies tell
//! how long they needed to find out which process has connected.

use super::checks::Stall;
use crate::record::millis;
use crate::system::{Nanos, now};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The time between two measurements.
pub const SAMPLE: Duration = Duration::from_millis(10);

/// The shortest delay that counts as a stall.
const STALL: Nanos = millis(50);

/// How long a question to a server waits for its answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Returns the time since a moment at which something was due, if it is a stall.
pub fn since(due: Nanos) -> Option<Stall> {
    let at = now();
    (due + STALL < at).then_some(Stall { from: due, to: at })
}

/// Returns a time that has passed as a stall.
pub fn between((from, to): (Instant, Instant)) -> Stall {
    // One reading of each clock, so that a stall of this thread does not tear the span.
    let (moment, instant) = (now(), Instant::now());
    let moment = |at: Instant| {
        moment.saturating_sub(instant.saturating_duration_since(at).as_nanos() as Nanos)
    };
    Stall { from: moment(from), to: moment(to) }
}

/// Threads that ask the servers of a run, each over its unix socket.
pub struct Probe {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<Stall>>>,
}

impl Probe {
    /// Starts to ask the servers with these sockets.
    pub fn start(sockets: impl IntoIterator<Item = PathBuf>) -> Probe {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for socket in sockets {
            let stop = Arc::clone(&stop);
            threads.push(thread::spawn(move || stalls_of(&socket, &stop)));
        }
        Probe { threads, stop }
    }

    /// Ends the threads, and returns what they have noticed.
    pub fn finish(self) -> Vec<Stall> {
        self.stop.store(true, Ordering::SeqCst);
        let stalls = self.threads.into_iter().map(|thread| thread.join().expect("it only asks"));
        stalls.flatten().collect()
    }
}

/// Asks a server until `stop`, and returns its stalls. A server that has ended has none.
fn stalls_of(socket: &Path, stop: &AtomicBool) -> Vec<Stall> {
    let (mut connection, mut stalls) = (None, Vec::new());
    while !stop.load(Ordering::SeqCst) {
        let due = now() + SAMPLE.as_nanos() as Nanos;
        thread::sleep(SAMPLE);
        if connection.is_none() {
            connection = connect(socket);
        }
        let Some(server) = &mut connection else { continue };
        // An error is an answer too, but silence breaks the connection.
        let is_answered = server.get_mut().write_all(b"PING\r\n").is_ok()
            && server.read_line(&mut String::new()).is_ok_and(|read| read > 0);
        stalls.extend(since(due));
        if !is_answered {
            connection = None;
        }
    }
    stalls
}

fn connect(socket: &Path) -> Option<BufReader<UnixStream>> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(BufReader::new(stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Server, eventually};

    #[test]
    fn a_stopped_server_stalls_and_a_killed_one_does_not() {
        let server = Server::start();
        let stalls = |disturb: &dyn Fn()| {
            let probe = Probe::start([server.path("redis.sock")]);
            disturb();
            probe.finish()
        };
        let stopped = stalls(&|| {
            let asked = || server.clients().iter().any(|client| client.name.is_empty());
            eventually("the probe has connected", asked);
            server.stop();
            thread::sleep(Duration::from_millis(300));
            server.resume();
        });
        let longest = stopped.iter().map(|stall| stall.to - stall.from).max();
        assert!(longest >= Some(millis(250)), "{stopped:?}");
        server.kill();
        let killed = stalls(&|| thread::sleep(Duration::from_millis(300)));
        assert!(killed.iter().all(|stall| stall.to - stall.from < millis(250)), "{killed:?}");
    }
}
