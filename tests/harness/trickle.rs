//! A proxy that forwards everything until the test calls `trickle` or `slow_down`.
//!
//! After `trickle`, each request gets a reply that arrives byte by byte, and ends only when the
//! test drops the proxy. After `slow_down`, few bytes pass at a time, in both directions.

use super::ports::listen;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The pause between two trickled bytes, and between two parts of a slow request.
const PAUSE: Duration = Duration::from_millis(2);
/// The pause between two parts of slow replies.
const SLOW_PAUSE: Duration = Duration::from_millis(3);

/// The bytes of slow requests that pass at a time.
const SLOW_REQUESTS: usize = 4096;
/// The bytes of slow replies that pass at a time.
const SLOW_REPLIES: usize = 2;

/// A proxy that trickles or slows down. Its threads end with the process of the test.
pub struct Trickle {
    address: SocketAddr,
    modes: Arc<Modes>,
}

#[derive(Default)]
struct Modes {
    trickles: AtomicBool,
    is_slow: AtomicBool,
    /// Bytes of replies that have passed slowly.
    slow_replies: AtomicUsize,
}

impl Modes {
    fn is_slow(&self) -> bool {
        self.is_slow.load(Ordering::Acquire)
    }
}

impl Trickle {
    pub fn start(upstream: SocketAddr) -> Trickle {
        let listener = listen();
        let address = listener.local_addr().expect("an address");
        let modes = Arc::<Modes>::default();
        let shared = Arc::clone(&modes);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Without a server, the client's connection closes.
                if let Ok(server) = TcpStream::connect(upstream) {
                    carry(client, server, &shared);
                }
            }
        });
        Trickle { address, modes }
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address)
    }

    pub fn trickle(&self) {
        self.modes.trickles.store(true, Ordering::Release);
    }

    pub fn slow_down(&self) {
        self.modes.is_slow.store(true, Ordering::Release);
    }

    /// Returns the bytes of replies that have passed since `slow_down`.
    pub fn slow_replies(&self) -> usize {
        self.modes.slow_replies.load(Ordering::Acquire)
    }
}

impl Drop for Trickle {
    fn drop(&mut self) {
        self.modes.trickles.store(false, Ordering::Release);
        self.modes.is_slow.store(false, Ordering::Release);
    }
}

fn carry(client: TcpStream, server: TcpStream, modes: &Arc<Modes>) {
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor is left");
    let (from_server, to_client) = (clone(&server), clone(&client));
    let shared = Arc::clone(modes);
    thread::spawn(move || while pass_replies(&from_server, &to_client, &shared) {});
    let modes = Arc::clone(modes);
    thread::spawn(move || while pass_requests(&client, &server, &modes) {});
}

/// Forwards some bytes of replies; returns whether the connection is still open.
fn pass_replies(mut server: &TcpStream, mut client: &TcpStream, modes: &Modes) -> bool {
    let mut bytes = [0; 1 << 16];
    let most = if modes.is_slow() { SLOW_REPLIES } else { bytes.len() };
    let Ok(count @ 1..) = server.read(&mut bytes[..most]) else { return false };
    if modes.is_slow() {
        modes.slow_replies.fetch_add(count, Ordering::AcqRel);
        thread::sleep(SLOW_PAUSE);
    }
    client.write_all(&bytes[..count]).is_ok()
}

/// Forwards bytes of requests, or trickles; returns whether the connection is still open.
fn pass_requests(mut client: &TcpStream, mut server: &TcpStream, modes: &Modes) -> bool {
    let mut bytes = [0; 1 << 16];
    let most = if modes.is_slow() { SLOW_REQUESTS } else { bytes.len() };
    let Ok(count @ 1..) = client.read(&mut bytes[..most]) else { return false };
    if modes.trickles.load(Ordering::Acquire) {
        return trickle(client, modes);
    }
    if modes.is_slow() && count == SLOW_REQUESTS {
        thread::sleep(PAUSE);
    }
    server.write_all(&bytes[..count]).is_ok()
}

fn trickle(mut client: &TcpStream, modes: &Modes) -> bool {
    let begun = client.write_all(b"$100000000\r\n").is_ok();
    while begun && modes.trickles.load(Ordering::Acquire) && client.write_all(b"x").is_ok() {
        thread::sleep(PAUSE);
    }
    // The other direction uses its own handles.
    let _ = client.shutdown(Shutdown::Both);
    false
}
