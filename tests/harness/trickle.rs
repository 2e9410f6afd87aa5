//! A server between: it passes everything on until it is told to trickle or to slow down.
//! Trickling, each request gets a reply a byte at a time, without an end until the test drops
//! it. Slowed down, a few bytes pass in both directions at a time.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The pause between two bytes, and between parts of a request or of replies that pass slowly.
const PAUSE: Duration = Duration::from_millis(2);
const SLOW_PAUSE: Duration = Duration::from_millis(3);

/// How many bytes pass at a time, slowed down, of requests and of replies.
const SLOW_REQUESTS: usize = 4096;
const SLOW_REPLIES: usize = 2;

/// Ends with the process of the test.
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
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let modes = Arc::<Modes>::default();
        let of_thread = Arc::clone(&modes);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // Without a server the client finds its connection closed.
                if let Ok(server) = TcpStream::connect(upstream) {
                    carry(client, server, &of_thread);
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

    /// How many bytes of replies have passed since then.
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
    let of_replies = Arc::clone(modes);
    thread::spawn(move || while pass_replies(&from_server, &to_client, &of_replies) {});
    let modes = Arc::clone(modes);
    thread::spawn(move || while pass_requests(&client, &server, &modes) {});
}

/// Passes some bytes on; whether the connection still stands.
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

/// Passes a request on, or trickles; whether the connection still stands.
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
    // The other direction has handles of its own.
    let _ = client.shutdown(Shutdown::Both);
    false
}
