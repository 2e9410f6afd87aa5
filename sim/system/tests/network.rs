//! Sockets, servers and the faults between them.

use simulated::net::{self, Direction, Flow, ServerId, Service, Socket, Whose};
use simulated::thread;
use simulated::world::{self, Settings};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);
const ADDRESS: (&str, u16) = ("10.0.0.1", 6379);

/// Answers each byte with the next one.
#[derive(Default)]
struct Echo {
    outputs: BTreeMap<u64, Vec<u8>>,
    made: u64,
    received: Rc<RefCell<Vec<u8>>>,
}

impl Service for Echo {
    fn connect(&mut self, _: i64) -> u64 {
        self.made += 1;
        self.outputs.insert(self.made, Vec::new());
        self.made
    }

    fn receive(&mut self, connection: u64, bytes: &[u8], _: i64) {
        self.received.borrow_mut().extend(bytes);
        let output = self.outputs.get_mut(&connection).expect("an open connection");
        output.extend(bytes.iter().map(|byte| byte + 1));
    }

    fn take_output(&mut self, connection: u64) -> (Vec<u8>, bool) {
        let output = self.outputs.get_mut(&connection).map(std::mem::take);
        output.map_or_else(|| (Vec::new(), true), |bytes| (bytes, false))
    }

    fn disconnect(&mut self, connection: u64) {
        self.outputs.remove(&connection);
    }
}

/// Runs a test with an echo server, with several seeds.
fn check(main: impl Fn(ServerId, &Rc<RefCell<Vec<u8>>>) + Copy + 'static) {
    for seed in 0..50 {
        let settings = Settings { seed, preempted: 4, is_traced: false, longest: 1000 * SECOND };
        let outcome = world::run(settings, move || {
            let echo = Echo::default();
            let received = Rc::clone(&echo.received);
            let server = net::add_server("10.0.0.1:6379", Rc::new(RefCell::new(echo)));
            main(server, &received);
        });
        assert_eq!(outcome.stuck, None, "seed {seed}");
    }
}

fn connect() -> Socket {
    Socket::tcp(ADDRESS.0, ADDRESS.1, SECOND).expect("the server listens")
}

fn send(socket: &mut Socket, bytes: &[u8]) {
    socket.begin_step(SECOND);
    let mut left = bytes;
    while !left.is_empty() {
        match socket.write(left) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                socket.wait_to_write().expect("there is room");
            }
            written => left = &left[written.expect("an open connection")..],
        }
    }
}

/// Reads until that many bytes have come, or for a second without any.
fn receive(socket: &mut Socket, count: usize) -> Result<Vec<u8>, ErrorKind> {
    let mut received = Vec::new();
    while received.len() < count {
        let mut buffer = [0; 16];
        socket.begin_step(SECOND);
        match socket.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => received.extend(&buffer[..count]),
            Err(error) => return Err(error.kind()),
        }
    }
    Ok(received)
}

fn ask(socket: &mut Socket, bytes: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    send(socket, bytes);
    receive(socket, bytes.len())
}

#[test]
fn bytes_arrive_in_order_and_answers_come_back() {
    check(|_, received| {
        let mut socket = connect();
        for _ in 0..20 {
            assert_eq!(ask(&mut socket, b"abc"), Ok(b"bcd".to_vec()));
        }
        assert_eq!(*received.borrow(), b"abc".repeat(20));
        assert_eq!(net::open_connections(world::current_process()), 1);
        drop(socket);
        assert_eq!(net::open_connections(world::current_process()), 0);
    });
}

#[test]
fn held_bytes_arrive_when_the_network_heals_and_swallowed_ones_never() {
    for (flow, arrives) in [(Flow::Hold, true), (Flow::Swallow, false)] {
        let settings = Settings { seed: 1, preempted: 4, is_traced: false, longest: 1000 * SECOND };
        let outcome = world::run(settings, move || {
            let server = net::add_server("10.0.0.1:6379", Rc::new(RefCell::new(Echo::default())));
            let mut socket = connect();
            net::set_flow(Whose::default(), Direction::Replies, flow);
            assert_eq!(ask(&mut socket, b"a"), Err(ErrorKind::WouldBlock));
            let refused = Socket::tcp(ADDRESS.0, ADDRESS.1, SECOND);
            assert_eq!(refused.expect_err("cut off").kind(), ErrorKind::TimedOut);
            net::heal();
            let answer = receive(&mut socket, 1);
            assert_eq!(
                answer,
                if arrives { Ok(b"b".to_vec()) } else { Err(ErrorKind::WouldBlock) }
            );
            assert_eq!(ask(&mut connect(), b"x"), Ok(b"y".to_vec()), "{server}");
        });
        assert_eq!(outcome.stuck, None);
    }
}

#[test]
fn a_cut_lets_some_bytes_pass_and_breaks_the_connection() {
    check(|_, received| {
        let mut socket = connect();
        net::set_flow(Whose::default(), Direction::Requests, Flow::CutAfter(2));
        send(&mut socket, b"abcd");
        assert_eq!(receive(&mut socket, 4), Err(ErrorKind::ConnectionReset));
        thread::sleep(SECOND);
        assert_eq!(*received.borrow(), b"ab");
    });
}

#[test]
fn a_killed_server_breaks_its_connections_and_refuses_new_ones() {
    check(|server, _| {
        let mut socket = connect();
        net::stop_server(server);
        assert_eq!(receive(&mut socket, 1), Err(ErrorKind::ConnectionReset));
        let refused = Socket::tcp(ADDRESS.0, ADDRESS.1, SECOND);
        assert_eq!(refused.expect_err("down").kind(), ErrorKind::ConnectionRefused);
        net::start_server(server);
        assert_eq!(ask(&mut connect(), b"a"), Ok(b"b".to_vec()));
    });
}

#[test]
fn a_paused_server_accepts_and_answers_later() {
    check(|server, received| {
        net::pause_server(server);
        let mut socket = connect();
        assert_eq!(ask(&mut socket, b"a"), Err(ErrorKind::WouldBlock));
        assert_eq!(*received.borrow(), b"");
        net::resume_server(server);
        assert_eq!(receive(&mut socket, 1), Ok(b"b".to_vec()));
    });
}

#[test]
fn a_fault_of_one_process_leaves_the_others_alone() {
    check(|_, _| {
        let [cut_off, other] = [0, 0].map(world::start_process);
        net::set_flow(Whose::of(cut_off), Direction::Requests, Flow::Hold);
        let connects = || Socket::tcp(ADDRESS.0, ADDRESS.1, SECOND).is_ok();
        let outcomes = [cut_off, other].map(|it| world::spawn_in(it, "main", connects).join());
        assert_eq!(outcomes.map(|it| it.expect("no panic")), [false, true]);
    });
}

#[test]
fn the_connections_of_a_killed_process_end_after_what_it_sent() {
    check(|_, received| {
        let process = world::start_process(0);
        drop(world::spawn_in(process, "main", || {
            let mut socket = connect();
            send(&mut socket, b"last");
            thread::sleep(100 * SECOND);
        }));
        thread::sleep(SECOND);
        world::kill(process);
        thread::sleep(SECOND);
        assert_eq!(*received.borrow(), b"last");
        assert_eq!(net::open_connections(process), 0);
    });
}

#[test]
fn another_task_can_end_a_connection() {
    check(|_, _| {
        let mut socket = connect();
        let disconnector = socket.disconnector();
        let ending = thread::spawn(move || {
            thread::sleep(SECOND / 2);
            disconnector.disconnect();
        });
        assert_eq!(receive(&mut socket, 1), Ok(Vec::new()), "the end of the stream");
        ending.join().expect("no panic");
    });
}
