//! Requests for details about holds, as another process publishes them.

use super::server::Server;
use super::wait::BOUND;
use redis::Value;

/// The name of a hold in a request: the key of its lock, and its number.
pub type Asked<'a> = (&'a str, &'a str);

/// Returns the channel on which a client receives requests.
pub fn wake_channel(client: impl std::fmt::Display) -> String {
    format!("leasehold:wake:{{{client}}}")
}

/// Returns an array of strings in Redis' protocol.
pub fn packed(parts: &[&str]) -> String {
    let part = |part: &&str| format!("${}\r\n{part}\r\n", part.len());
    format!("*{}\r\n{}", parts.len(), parts.iter().map(part).collect::<String>())
}

/// Asks a client for details of its holds. Returns the strings of its answer.
///
/// `None` if no process received the request. Publishes at `publisher` and listens at `server`,
/// which are different nodes of a cluster or the same server.
pub fn ask_details(
    server: &Server,
    publisher: &Server,
    client: impl std::fmt::Display,
    holds: &[Asked<'_>],
) -> Option<Vec<String>> {
    let channel = "leasehold:reply:{a test}:1";
    let mut connection = server.connection();
    connection.set_read_timeout(Some(BOUND)).expect("a time-out");
    let mut answers = connection.as_pubsub();
    answers.subscribe(channel).expect("the server answers");
    let holds = holds.iter().flat_map(|(key, hold)| [*key, *hold]);
    let request: Vec<_> = ["details", channel].into_iter().chain(holds).collect();
    let receivers: i64 = publisher.ask(&["PUBLISH", &wake_channel(client), &packed(&request)]);
    if receivers == 0 {
        return None;
    }
    let answer = answers.get_message().expect("the client answers");
    Some(strings(answer.get_payload_bytes()))
}

fn strings(payload: &[u8]) -> Vec<String> {
    let value = redis::parse_redis_value(payload).expect("an array");
    let Value::Array(parts) = value else { panic!("no array: {value:?}") };
    parts.into_iter().map(|part| redis::from_redis_value(part).expect("a string")).collect()
}
