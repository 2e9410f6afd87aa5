//! A server that gives the replies of a test, for replies that no real server gives.
//!
//! In all other cases the tests use real servers.

use super::listener::Listener;
use super::resp::read_request;
use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// A server on a free port of 127.0.0.1, with one thread per connection.
///
/// Dropping the server closes all connections, joins their threads, and passes on a panic of one of
/// them.
#[derive(Debug)]
pub struct Impostor {
    listener: Listener,
    served: Arc<Mutex<Vec<Served>>>,
}

#[derive(Debug)]
struct Served {
    stream: TcpStream,
    thread: JoinHandle<()>,
}

impl Impostor {
    /// Starts a server that passes each connection to `serve`.
    ///
    /// `serve` has to return when its stream ends. The connection closes when `serve` returns.
    pub fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let serve = Arc::new(serve);
        let served = Arc::new(Mutex::new(Vec::new()));
        let listener = Listener::start("impostor", {
            let served = Arc::clone(&served);
            move |stream| {
                let connection = serve_on_thread(stream, Arc::clone(&serve));
                lock(&served).push(connection);
            }
        });
        Self { listener, served }
    }

    /// Starts a server that replies to each request with the bytes that `answer` returns.
    ///
    /// `answer` gets the words of the request. Empty bytes are no reply; `None` closes the
    /// connection.
    pub fn answering(
        answer: impl Fn(&[String]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |stream| converse(stream, |_, request| answer(request)))
    }

    /// Starts a server that replies to every request with these bytes.
    pub fn always(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Self::answering(move |_| Some(reply.clone()))
    }

    /// Starts a server that gives these replies on each connection, one per request.
    ///
    /// Later requests get no reply.
    pub fn replies<R: Into<Vec<u8>>>(replies: impl IntoIterator<Item = R>) -> Self {
        let replies: Vec<Vec<u8>> = replies.into_iter().map(Into::into).collect();
        Self::start(move |stream| {
            converse(stream, |count, _| Some(replies.get(count).cloned().unwrap_or_default()));
        })
    }

    /// Returns the address as a URL for clients.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Returns the address of the server.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// Returns the number of connections so far.
    pub fn accepted(&self) -> usize {
        lock(&self.served).len()
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.listener.close();
        for served in lock(&self.served).drain(..) {
            // Fails only if the connection is already closed.
            let _ = served.stream.shutdown(Shutdown::Both);
            let result = served.thread.join();
            if let Err(panic) = result
                && !thread::panicking()
            {
                resume_unwind(panic);
            }
        }
    }
}

fn serve_on_thread(
    stream: TcpStream,
    serve: Arc<impl Fn(TcpStream) + Send + Sync + 'static>,
) -> Served {
    let shared = stream.try_clone().expect("a descriptor is left");
    let thread = thread::Builder::new()
        .name("impostor client".to_owned())
        .spawn(move || {
            let ours = stream.try_clone().expect("a descriptor is left");
            serve(stream);
            let _ = ours.shutdown(Shutdown::Both);
        })
        .expect("a thread starts");
    Served { stream: shared, thread }
}

/// Reads requests and writes the replies that `answer` returns, until the connection ends.
///
/// `answer` gets the number of earlier requests and the words of the request.
fn converse(stream: TcpStream, answer: impl Fn(usize, &[String]) -> Option<Vec<u8>>) {
    let mut requests = BufReader::new(&stream);
    for count in 0.. {
        let Ok(Some(request)) = read_request(&mut requests) else {
            return;
        };
        let Some(reply) = answer(count, &request) else {
            return;
        };
        if (&stream).write_all(&reply).is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
