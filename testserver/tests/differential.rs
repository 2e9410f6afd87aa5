//! Random requests to this server and to a real one: every reply is the same, byte by byte.
//!
//! The clock of the real server stands still during a batch of requests, and its random choices
//! are always the first, as those of a [`Core`] with the seed 0. `LEASEHOLD_CALLS` sets the number
//! of requests, `LEASEHOLD_SEED` the seed.

#[path = "differential/real.rs"]
mod real;
#[path = "differential/requests.rs"]
mod requests;
mod wire;

use leasehold_testserver::core::{ConnectionId, Core};
use real::Real;
use requests::{Request, Requests};
use std::os::unix::net::UnixStream;
use wire::{Connection, encode, reply_len};

/// The requests that are sent before their replies are read.
const BATCH: usize = 100;

/// A moment after 2020, when the clocks start.
const START: i64 = 1_600_000_000_000_000;

/// The same connection to both servers.
struct Pair {
    real: Connection<UnixStream>,
    ours: ConnectionId,
}

struct Comparison {
    real: Real,
    ours: Core,
    requests: Requests,
}

impl Comparison {
    fn start(seed: u64) -> Self {
        let real = Real::start(START);
        let mut ours = Core::new(0);
        ours.set_clock(START);
        Self { real, ours, requests: Requests::new(seed, START) }
    }

    /// Connects to both servers, and sends the first requests of the connection.
    fn connect(&mut self, first: &[&str]) -> Pair {
        let mut pair = Pair { real: self.real.connect(), ours: self.ours.connect() };
        for request in first {
            let words: Request = request.split(' ').map(|it| it.as_bytes().to_vec()).collect();
            let bytes = encode(&words);
            pair.real.send(&bytes);
            self.ours.receive(pair.ours, &bytes);
            // The reply to HELLO has the number of the connection.
            let _ = (pair.real.reply(request), self.ours.take_output(pair.ours));
        }
        pair
    }

    /// Sends requests on one connection to both servers, and compares their replies.
    fn compare(&mut self, pair: &mut Pair, requests: &[Request]) {
        self.real.set_clock(self.requests.now);
        self.ours.set_clock(self.requests.now);
        let bytes: Vec<u8> = requests.iter().flat_map(|request| encode(request)).collect();
        pair.real.send(&bytes);
        for request in requests {
            self.ours.receive(pair.ours, &encode(request));
            let (ours, is_closing) = self.ours.take_output(pair.ours);
            assert!(!is_closing, "{}", show(request));
            let real = pair.real.reply(&show(request));
            let (real, ours) = match certainty(request) {
                Certainty::Bytes => (real, ours),
                Certainty::Items => (sorted(&real), sorted(&ours)),
                Certainty::Number => (first_line(&real), first_line(&ours)),
            };
            assert!(
                real == ours,
                "{}\nredis-server: {}\nthis server:  {}",
                show(request),
                real.escape_ascii(),
                ours.escape_ascii()
            );
        }
    }

    /// Sends words on one connection to both servers.
    fn send(&mut self, pair: &mut Pair, words: &str) {
        self.send_each(pair, [words, words]);
    }

    /// Sends words to the real server, and others to ours.
    fn send_each(&mut self, pair: &mut Pair, [real, ours]: [&str; 2]) {
        self.real.set_clock(self.requests.now);
        self.ours.set_clock(self.requests.now);
        let bytes = |words: &str| {
            encode(&words.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Request>())
        };
        pair.real.send(&bytes(real));
        self.ours.receive(pair.ours, &bytes(ours));
    }

    /// Compares the replies to the last requests.
    fn compare_replies(&mut self, pair: &mut Pair, to: &[&str]) {
        let real: Vec<u8> = to.iter().flat_map(|to| pair.real.reply(to)).collect();
        let (ours, _) = self.ours.take_output(pair.ours);
        assert_eq!(real.escape_ascii().to_string(), ours.escape_ascii().to_string(), "{to:?}");
    }

    /// Sets both clocks ahead.
    fn pass(&mut self, milliseconds: i64) {
        self.requests.now += milliseconds * 1000;
        self.real.set_clock(self.requests.now);
        self.ours.set_clock(self.requests.now);
    }

    fn ask(&mut self, pair: &mut Pair, words: &str) {
        self.send(pair, words);
        self.compare_replies(pair, &[words]);
    }

    /// Returns the number of a connection at each server.
    fn ids(&mut self, pair: &mut Pair) -> [String; 2] {
        self.send(pair, "CLIENT ID");
        let replies = [pair.real.reply("CLIENT ID"), self.ours.take_output(pair.ours).0];
        replies.map(|reply| String::from_utf8_lossy(&reply[1..]).trim().to_owned())
    }

    /// Compares the messages that a subscriber got.
    fn compare_messages(&mut self, pair: &mut Pair) {
        let end = encode(&[b"PING".to_vec(), b"end".to_vec()]);
        pair.real.send(&end);
        self.ours.receive(pair.ours, &end);
        let (mut ours, _) = self.ours.take_output(pair.ours);
        while !ours.is_empty() {
            let message: Vec<u8> = ours.drain(..reply_len(&ours).expect("a message")).collect();
            let real = pair.real.reply("a subscriber");
            assert_eq!(real.escape_ascii().to_string(), message.escape_ascii().to_string());
        }
    }

    /// Compares how often each command has run and failed, and how often each error was sent.
    fn compare_counts(&mut self, pair: &mut Pair) {
        let request = ["INFO", "stats", "commandstats", "errorstats"];
        let request = request.map(|word| word.as_bytes().to_vec());
        let bytes = encode(&request);
        pair.real.send(&bytes);
        let real = pair.real.reply("INFO");
        self.ours.receive(pair.ours, &bytes);
        let (ours, _) = self.ours.take_output(pair.ours);
        assert_eq!(counts(&real), counts(&ours));
    }

    /// Compares all that `SCAN` finds.
    fn compare_scans(&mut self, pair: &mut Pair) {
        let count = 1 + self.requests.below(20);
        let kind = ["", "string", "hash", "zset"][self.requests.below(4)];
        let mut found = [Vec::new(), Vec::new()];
        for (at, keys) in found.iter_mut().enumerate() {
            let mut cursor = b"0".to_vec();
            loop {
                let mut request = format!("SCAN x COUNT {count}");
                if !kind.is_empty() {
                    request += &format!(" TYPE {kind}");
                }
                let mut request: Request = request.split(' ').map(|it| it.into()).collect();
                request[1] = cursor;
                let bytes = encode(&request);
                let reply = if at == 0 {
                    pair.real.send(&bytes);
                    pair.real.reply("SCAN")
                } else {
                    self.ours.receive(pair.ours, &bytes);
                    self.ours.take_output(pair.ours).0
                };
                let mut items = texts(&reply);
                cursor = items.remove(0);
                keys.extend(items);
                if cursor == b"0" {
                    break;
                }
            }
            keys.sort();
            keys.dedup();
        }
        assert_eq!(found[0], found[1]);
    }
}

/// What of a reply follows from the requests.
enum Certainty {
    Bytes,
    /// The order follows from the hashes of Redis.
    Items,
    /// Redis chooses by chance.
    Number,
}

fn certainty(request: &[Vec<u8>]) -> Certainty {
    let word = |at: usize| request.get(at).map(|word| word.to_ascii_uppercase());
    match word(0).as_deref() {
        Some(b"CONFIG" | b"KEYS" | b"SMEMBERS") => Certainty::Items,
        Some(b"PUBSUB") if word(1).is_some_and(|word| word.ends_with(b"CHANNELS")) => {
            Certainty::Items
        }
        Some(b"HRANDFIELD") if request.len() > 2 => Certainty::Number,
        _ => Certainty::Bytes,
    }
}

fn first_line(reply: &[u8]) -> Vec<u8> {
    reply.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default().to_vec()
}

fn show(request: &[Vec<u8>]) -> String {
    request.iter().map(|word| format!("{} ", word.escape_ascii())).collect()
}

/// Returns the texts of a reply without its nesting.
fn texts(reply: &[u8]) -> Vec<Vec<u8>> {
    let mut texts = Vec::new();
    let mut rest = reply;
    while !rest.is_empty() {
        let line = rest.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
        let is_array = [b'*', b'~', b'>', b'%'].contains(&rest[0]);
        let len = if is_array { line } else { reply_len(rest).expect("a whole reply") };
        if rest[0] == b'$' {
            texts.push(rest[line..len - 2].to_vec());
        } else if !is_array {
            texts.push(rest[..len].to_vec());
        }
        rest = &rest[len..];
    }
    texts
}

fn sorted(reply: &[u8]) -> Vec<u8> {
    let mut texts = texts(reply);
    texts.sort();
    texts.join(&b' ')
}

/// Returns counts of `INFO`: without times, and without `SCAN`, whose steps are not compared.
fn counts(reply: &[u8]) -> Vec<String> {
    const COUNTS: [&str; 5] = [
        "cmdstat_",
        "errorstat_",
        "rejected_connections:",
        "total_connections_received:",
        "total_error_replies:",
    ];
    let text = String::from_utf8_lossy(&texts(reply).concat()).into_owned();
    let is_count = |line: &&str| COUNTS.iter().any(|count| line.starts_with(count));
    let lines = text.lines().filter(is_count).filter(|line| !line.starts_with("cmdstat_scan:"));
    let facts = |line: &str| line.split(',').filter(|fact| !fact.starts_with("usec")).collect();
    let mut counts: Vec<String> = lines.map(facts).collect();
    counts.sort();
    counts
}

fn variable(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    }
}

#[test]
fn a_million_random_calls_have_the_replies_of_a_real_server() {
    let (calls, seed) = (variable("LEASEHOLD_CALLS", 1_000_000), variable("LEASEHOLD_SEED", 1));
    let mut comparison = Comparison::start(seed);
    let mut pairs = [comparison.connect(&["HELLO 2"]), comparison.connect(&["HELLO 3"])];
    let mut subscribers = [
        comparison.connect(&["HELLO 3", "SUBSCRIBE c1"]),
        comparison.connect(&["HELLO 2", "SUBSCRIBE c2"]),
        comparison.connect(&["HELLO 3", "SSUBSCRIBE c3"]),
        comparison.connect(&["HELLO 3", "PSUBSCRIBE c[0-1]"]),
    ];
    let loads = comparison.requests.loads();
    comparison.compare(&mut pairs[0], &loads);
    let mut sent = 0;
    while sent < calls {
        comparison.requests.pass_time();
        let requests: Vec<Request> = (0..BATCH).map(|_| comparison.requests.request()).collect();
        let pair = &mut pairs[comparison.requests.below(2)];
        comparison.compare(pair, &requests);
        for subscriber in &mut subscribers {
            comparison.compare_messages(subscriber);
        }
        if comparison.requests.below(50) == 0 {
            comparison.compare_scans(pair);
        }
        // At times the servers have no memory left, for a few calls.
        let limit: &[u8] = if comparison.requests.below(20) == 0 { b"1" } else { b"0" };
        let set = [b"CONFIG", b"SET".as_slice(), b"maxmemory", limit];
        comparison.compare(pair, &[set.map(<[u8]>::to_vec).to_vec()]);
        if comparison.requests.below(500) == 0 {
            let flush = [vec![b"FLUSHALL".to_vec()]];
            comparison.compare(pair, &flush);
            comparison.compare_counts(pair);
            let reset = [b"CONFIG".as_slice(), b"RESETSTAT"].map(<[u8]>::to_vec);
            comparison.compare(pair, &[reset.to_vec()]);
        }
        sent += BATCH as u64;
    }
    comparison.compare_counts(&mut pairs[0]);
    println!("{sent} calls, seed {seed}");
}

#[test]
fn pauses_ends_of_waits_and_limits_of_connections_are_those_of_a_real_server() {
    let mut both = Comparison::start(1);
    let [mut admin, mut client, mut other] = [(); 3].map(|()| both.connect(&["HELLO 2"]));
    for wrong in [
        "CLIENT PAUSE",
        "CLIENT PAUSE x",
        "CLIENT PAUSE -1",
        "CLIENT PAUSE 1.5 ALL",
        "CLIENT PAUSE x some",
        "CLIENT PAUSE 1 ALL more",
        "CLIENT UNPAUSE now",
        "CLIENT UNBLOCK",
        "CLIENT UNBLOCK x",
        "CLIENT UNBLOCK 999",
        "CLIENT UNBLOCK 1 SOME",
        "CLIENT UNBLOCK 1 ERROR more",
        "CONFIG SET maxclients 0",
        "CONFIG SET maxclients x",
        "CONFIG SET maxclients 4294967296",
        "CONFIG SET timeout -1",
        "CONFIG SET timeout 1.5",
        "CONFIG SET timeout 1 timeout 2",
        "CONFIG SET min-replicas-to-write -1",
        "CONFIG GET timeout",
    ] {
        both.ask(&mut admin, wrong);
    }

    // What cannot run is refused during a pause, and the rest waits for its end.
    both.ask(&mut admin, "CLIENT PAUSE 100 ALL");
    both.send(&mut client, "INCR a");
    both.send(&mut client, "GET a");
    both.ask(&mut other, "NOSUCH");
    both.ask(&mut other, "GET");
    both.send(&mut other, "CLIENT UNPAUSE");
    both.pass(100);
    assert!(both.ours.take_output(client.ours).0.is_empty(), "paused until after 100 ms");
    both.pass(1);
    both.compare_replies(&mut other, &["CLIENT UNPAUSE"]);
    both.compare_replies(&mut client, &["INCR a", "GET a"]);
    both.ask(&mut admin, "CLIENT PAUSE 9223372036854775807");
    both.ask(&mut admin, "PING");

    let [real, ours] = both.ids(&mut client);
    for (how, reply) in [("", ":0"), (" TIMEOUT", ":0"), (" ERROR", "-UNBLOCKED")] {
        both.send(&mut client, "WAIT 1 0");
        both.send(&mut client, "GET a");
        let list = [&real, &ours].map(|id| format!("CLIENT LIST ID {id}"));
        both.send_each(&mut admin, [&list[0], &list[1]]);
        let (_, shown) = (admin.real.reply("CLIENT LIST"), both.ours.take_output(admin.ours).0);
        assert!(String::from_utf8_lossy(&shown).contains(" flags=b "), "{}", shown.escape_ascii());
        let unblock = [&real, &ours].map(|id| format!("CLIENT UNBLOCK {id}{how}"));
        both.send_each(&mut admin, [&unblock[0], &unblock[1]]);
        both.compare_replies(&mut admin, &[&unblock[0]]);
        both.compare_replies(&mut client, &[reply, "GET a"]);
        both.send_each(&mut admin, [&unblock[0], &unblock[1]]);
        both.compare_replies(&mut admin, &["CLIENT UNBLOCK"]);
    }

    both.ask(&mut admin, "CONFIG SET maxclients 3");
    let mut unwanted = Pair { real: both.real.connect(), ours: both.ours.connect() };
    both.compare_replies(&mut unwanted, &["a connection too many"]);
    unwanted.real.ends();
    assert!(both.ours.take_output(unwanted.ours).1, "it ends");
    both.ours.disconnect(unwanted.ours);
    both.ask(&mut admin, "CONFIG SET maxclients 4");
    both.compare_counts(&mut admin);

    // The subscriber and the connection that waits stay.
    let mut subscriber = both.connect(&["HELLO 2", "SUBSCRIBE c"]);
    both.send(&mut other, "WAIT 1 0");
    both.ask(&mut admin, "CONFIG SET timeout 5");
    both.ask(&mut client, "PING");
    both.pass(4999);
    both.ask(&mut admin, "PING");
    both.pass(899);
    assert!(!both.ours.take_output(client.ours).1, "the sixth second has not passed");
    both.pass(1);
    client.real.ends();
    assert!(both.ours.take_output(client.ours).1, "it has");
    both.ask(&mut admin, "PING");
    both.ask(&mut subscriber, "PING");
    assert!(!both.ours.take_output(other.ours).1, "it waits");
}
