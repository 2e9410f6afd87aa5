//! Elections with the name `a`: candidates, their leader, and observers.

use super::wait::BOUND;
use super::{Server, eventually};
use crossbeam_channel::Receiver;
use leasehold::{Client, Election, Leader, Leadership};

/// The record of the leader of the election `a`.
pub const RECORD: &str = "leasehold_leader:{a}";

/// The channel of its observers.
pub const CHANNEL: &str = "leasehold_election:{a}";

/// Returns a candidate with a value.
pub fn candidate(client: &Client, value: &str) -> Election {
    client.election("a").with_value(value)
}

pub fn leader(client: &Client) -> Option<Leader> {
    client.election("a").leader().expect("the server answers")
}

/// Returns the value and the token of the leader.
pub fn value_and_token(client: &Client) -> Option<(String, u64)> {
    leader(client).map(|leader| (leader.value().to_owned(), leader.token()))
}

pub fn campaign(election: &Election) -> Leadership {
    election.campaign().expect("the server answers")
}

/// Observes, and blocks until messages arrive.
pub fn observe(server: &Server, client: &Client) -> Receiver<Option<Leader>> {
    let receiver = client.election("a").observe().expect("the server answers");
    eventually("the observer listens", || server.numsub(CHANNEL) == 1);
    receiver
}

/// Returns the value in the next message, or `None` if the message says that there is no leader.
#[track_caller]
pub fn next_value(observer: &Receiver<Option<Leader>>) -> Option<String> {
    let state = observer.recv_timeout(BOUND).expect("a message");
    state.map(|leader| leader.value().to_owned())
}

/// Blocks until the observer has received the leader with this value.
#[track_caller]
pub fn sees(observer: &Receiver<Option<Leader>>, value: &str) {
    while next_value(observer).as_deref() != Some(value) {}
}
