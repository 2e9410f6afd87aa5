//! Connections of clients to a core.

use leasehold_testserver::core::{ConnectionId, Core};

/// A moment after 2020, when the clocks start, in microseconds.
pub(crate) const START: i64 = 1_600_000_000_000_000;

/// One second of a server's clock.
pub(crate) const SECOND: i64 = 1_000_000;

/// Returns a server whose clock stands at [`START`].
pub(crate) fn server(seed: u64) -> Core {
    let mut core = Core::new(seed);
    core.set_clock(START);
    core
}

/// Sends a request in one line, and returns what the connection gets, with `|` for ends of lines.
pub(crate) fn ask(core: &mut Core, connection: ConnectionId, request: &str) -> String {
    core.receive(connection, format!("{request}\r\n").as_bytes());
    output(core, connection)
}

/// Sends requests over a connection of their own, and returns the replies.
pub(crate) fn asks(core: &mut Core, requests: &str) -> String {
    let connection = core.connect();
    let reply = ask(core, connection, requests);
    core.disconnect(connection);
    reply
}

/// Returns what a connection has got since the last call, and whether it ends.
pub(crate) fn output(core: &mut Core, connection: ConnectionId) -> String {
    let (bytes, is_closing) = core.take_output(connection);
    let text = String::from_utf8(bytes).expect("texts");
    let text = text.trim_end().replace("\r\n", "|");
    if is_closing { text + " END" } else { text }
}
