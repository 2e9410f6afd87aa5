//! Requests for details about holds, as another process publishes them.

use super::server::Server;
use super::wait::BOUND;
use redis::Value;

/// The channel on which [`ask_details`] expects the answer.
pub const REPLY_CHANNEL: &str = "leasehold:reply:{a test}:1";

/// Returns the channel on which a client receives requests and grants.
pub fn wake_channel(client: impl std::fmt::Display) -> String {
    format!("leasehold:wake:{{{client}}}")
}

/// Returns an array of strings in Redis' protocol.
pub fn packed(parts: &[&str]) -> String {
    let part = |part: &&str| format!("${}\r\n{part}\r\n", part.len());
    format!("*{}\r\n{}", parts.len(), parts.iter().map(part).collect::<String>())
}

/// Asks a client for details of its holds, and returns the strings of its answer.
///
/// `holds` are the keys of locks, each with the number of the hold. Listens at `server` and
/// publishes at `publisher`: one server, or two nodes of a cluster.
#[track_caller]
pub fn ask_details(
    server: &Server,
    publisher: &Server,
    client: impl std::fmt::Display,
    holds: &[(&str, &str)],
) -> Vec<String> {
    let mut connection = server.connection();
    connection.set_read_timeout(Some(BOUND)).expect("a time-out");
    let mut answers = connection.as_pubsub();
    answers.subscribe(REPLY_CHANNEL).expect("the server answers");
    let holds = holds.iter().flat_map(|(key, hold)| [*key, *hold]);
    let request: Vec<_> = ["details", REPLY_CHANNEL].into_iter().chain(holds).collect();
    publisher.ask::<()>(&["PUBLISH", &wake_channel(client), &packed(&request)]);
    let answer = answers.get_message().expect("the client answers");
    let value = redis::parse_redis_value(answer.get_payload_bytes()).expect("an array");
    let Value::Array(parts) = value else { panic!("no array: {value:?}") };
    parts.into_iter().map(|part| redis::from_redis_value(part).expect("a string")).collect()
}
