//! A TCP listener on a free port of 127.0.0.1, served by a thread.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use super::ports::listen;
use super::wait::eventually;

/// Accepts connections on its own thread until it is closed or dropped.
#[derive(Debug)]
pub struct Listener {
    addr: SocketAddr,
    closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Starts to listen; the thread passes each connection to `serve`.
    pub fn start(thread_name: &str, serve: impl FnMut(TcpStream) + Send + 'static) -> Self {
        let socket = listen();
        let addr = socket.local_addr().expect("a bound socket has an address");
        let closing = Arc::new(AtomicBool::new(false));
        let thread = thread::Builder::new()
            .name(thread_name.to_owned())
            .spawn({
                let closing = Arc::clone(&closing);
                move || accept(&socket, &closing, serve)
            })
            .expect("a thread starts");
        Self { addr, closing, thread: Some(thread) }
    }

    /// Returns the address of the listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address as a URL for clients.
    pub fn url(&self) -> String {
        format!("redis://{}/", self.addr)
    }

    /// Stops listening and joins the thread.
    pub fn close(&mut self) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        self.closing.store(true, Ordering::SeqCst);
        eventually("the listener ends", || {
            // Wakes the thread from `accept`.
            let _ = TcpStream::connect(self.addr);
            thread.is_finished()
        });
        // A panic of the thread has already been printed.
        let _ = thread.join();
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

fn accept(socket: &TcpListener, closing: &AtomicBool, mut serve: impl FnMut(TcpStream)) {
    for stream in socket.incoming() {
        if closing.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(stream) = stream {
            serve(stream);
        }
    }
}
