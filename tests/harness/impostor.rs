//! A listener that says what a test wants said: answers that no real server can
//! be made to give. For all else the tests have real servers.

use super::listener::Listener;
use super::resp::read_request;
use std::io::{BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// Answers on a free port of 127.0.0.1, each connection on a thread of its own.
/// Dropping it closes all connections and joins their threads; a panic in one of
/// them comes out there.
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
    /// Hands each connection to `serve`, which returns when its stream ends, if
    /// not before. The connection closes when it returns.
    pub fn start(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let serve = Arc::new(serve);
        let served = Arc::new(Mutex::new(Vec::new()));
        let listener = Listener::start("impostor", {
            let served = Arc::clone(&served);
            move |stream| {
                let served_now = serve_on_thread(stream, Arc::clone(&serve));
                lock(&served).push(served_now);
            }
        });
        Self { listener, served }
    }

    /// Answers each request with the bytes that `answer` gives for its words: an
    /// empty answer is silence, `None` closes the connection.
    pub fn answering(
        answer: impl Fn(&[String]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |stream| converse(stream, |_, request| answer(request)))
    }

    /// Answers every request with these bytes.
    pub fn always(reply: impl Into<Vec<u8>>) -> Self {
        let reply = reply.into();
        Self::answering(move |_| Some(reply.clone()))
    }

    /// Answers the requests of each connection with these replies, one after the
    /// other, and those after them with silence.
    pub fn replies<R: Into<Vec<u8>>>(replies: impl IntoIterator<Item = R>) -> Self {
        let replies: Vec<Vec<u8>> = replies.into_iter().map(Into::into).collect();
        Self::start(move |stream| {
            converse(stream, |count, _| Some(replies.get(count).cloned().unwrap_or_default()));
        })
    }

    /// Where it listens, as clients want it.
    pub fn url(&self) -> String {
        self.listener.url()
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.listener.addr()
    }

    /// How many connections it has had.
    pub fn accepted(&self) -> usize {
        lock(&self.served).len()
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.listener.close();
        for served in lock(&self.served).drain(..) {
            // Fails only where the connection is closed already.
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

/// Reads request after request and writes what `answer` says to it and to the
/// number of requests before it. Ends with the connection, whoever ends it.
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
