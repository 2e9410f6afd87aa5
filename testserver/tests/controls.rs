//! What a test can do to its server.

use leasehold_testserver::{Data, Error, TestServer};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A connection that sends inline requests and reads one line per reply.
struct Client(BufReader<UnixStream>);

impl Client {
    fn connect(server: &TestServer) -> io::Result<Self> {
        let stream = UnixStream::connect(server.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self(BufReader::new(stream)))
    }

    fn ask(&mut self, request: &str) -> io::Result<String> {
        self.send(request)?;
        self.line()
    }

    fn send(&mut self, request: &str) -> io::Result<()> {
        self.0.get_mut().write_all(format!("{request}\r\n").as_bytes())
    }

    /// Returns the lines of a section of `INFO`.
    fn info(&mut self, section: &str) -> io::Result<Vec<String>> {
        let head = self.ask(&format!("INFO {section}"))?;
        let len = head.strip_prefix('$').and_then(|len| len.parse().ok());
        let mut text = vec![0; len.ok_or(ErrorKind::InvalidData)?];
        self.0.read_exact(&mut text)?;
        self.line()?;
        Ok(String::from_utf8_lossy(&text).lines().map(str::to_owned).collect())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

#[test]
fn a_lease_ends_when_the_clock_passes_it_and_not_before() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    client.ask("SET a 1 PX 30000")?;
    server.advance(Duration::from_secs(20))?;
    assert_eq!(client.ask("EXISTS a")?, ":1");
    server.advance(Duration::from_secs(11))?;
    assert_eq!(client.ask("EXISTS a")?, ":0");
    assert!(matches!(server.advance(Duration::MAX), Err(Error::Clock)));
    assert_eq!(client.ask("PING")?, "+PONG");
    Ok(())
}

#[test]
fn a_lease_ends_when_the_clock_moves_by_exactly_its_time() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    // Within one millisecond the clock of the machine does not help.
    for _ in 0..100 {
        client.ask("SET a 1 PX 30000")?;
        server.advance(Duration::from_secs(30))?;
        assert_eq!(client.ask("EXISTS a")?, ":0");
    }
    Ok(())
}

#[test]
fn one_key_expires_without_the_others_and_only_if_it_has_an_expiry() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    client.ask("SET a 1 PX 30000")?;
    client.ask("SET b 1 PX 30000")?;
    client.ask("SET kept 1")?;
    assert!(server.expire("a")?);
    assert!(!server.expire("a")?, "it is gone");
    assert!(!server.expire("kept")?);
    let mut keys = server.keys()?;
    keys.sort();
    assert_eq!(keys, [b"b".to_vec(), b"kept".to_vec()]);
    Ok(())
}

#[test]
fn a_paused_server_is_silent_and_answers_afterwards() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    client.ask("PING")?;
    server.pause();
    client.send("SET a 1")?;
    let mut newcomer = Client::connect(&server)?;
    newcomer.send("GET a")?;
    // Controls take effect one after the other, so the server has had its chance to answer.
    assert_eq!(server.keys()?, Vec::<Vec<u8>>::new());
    client.0.get_ref().set_nonblocking(true)?;
    let silence = client.line().expect_err("a stopped server answers nothing");
    assert_eq!(silence.kind(), ErrorKind::WouldBlock);
    client.0.get_ref().set_nonblocking(false)?;
    server.resume();
    assert_eq!(client.line()?, "+OK");
    assert_eq!(newcomer.line()?, "$1");
    Ok(())
}

#[test]
fn connections_end_and_clients_may_connect_again() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    client.ask("SET a 1")?;
    server.disconnect_all();
    assert!(client.ask("PING").is_err());
    let mut client = Client::connect(&server)?;
    assert_eq!(client.ask("EXISTS a")?, ":1");
    Ok(())
}

#[test]
fn connections_that_are_not_accepted_yet_end_too() -> Outcome {
    let server = TestServer::start()?;
    for end in [TestServer::disconnect_all, |it: &TestServer| it.restart(Data::Kept).expect("runs")]
    {
        // A paused server accepts nothing.
        server.pause();
        let mut client = Client::connect(&server)?;
        end(&server);
        server.resume();
        assert!(client.ask("PING").is_err());
        assert_eq!(Client::connect(&server)?.ask("PING")?, "+PONG");
    }
    Ok(())
}

#[test]
fn a_restart_keeps_or_loses_the_data_and_forgets_scripts() -> Outcome {
    let server = TestServer::start()?;
    for (data, exists) in [(Data::Kept, ":1"), (Data::Lost, ":0")] {
        let mut client = Client::connect(&server)?;
        client.ask("SET a 1")?;
        assert_eq!(client.ask("SCRIPT LOAD return(1)")?, "$40");
        let call = format!("EVALSHA {} 0", client.line()?);
        assert_eq!(client.ask(&call)?, ":1");
        server.restart(data)?;
        assert!(client.ask("PING").is_err(), "the connection has ended");
        let mut client = Client::connect(&server)?;
        assert_eq!(client.ask("EXISTS a")?, exists);
        assert!(client.ask(&call)?.starts_with("-NOSCRIPT"));
    }
    Ok(())
}

#[test]
fn a_refused_command_does_not_run_until_it_is_accepted_also_in_scripts() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    server.refuse("publish", "NOPERM no");
    server.refuse("client", "NOPERM no client");
    assert_eq!(client.ask("PUBLISH a b")?, "-NOPERM no");
    let in_script = client.ask("EVAL return(redis.call([[publish]],[[a]],[[b]])) 0")?;
    assert!(in_script.starts_with("-NOPERM no script: "), "{in_script}");
    assert_eq!(client.ask("CLIENT ID")?, "-NOPERM no client");
    server.accept("PUBLISH");
    assert_eq!(client.ask("PUBLISH a b")?, ":0");
    Ok(())
}

#[test]
fn a_server_that_a_client_shuts_down_tells_its_test() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    client.send("SHUTDOWN NOSAVE")?;
    assert!(client.line().is_err(), "the connection ends");
    let start = Instant::now();
    while server.keys().is_ok() {
        assert!(start.elapsed() < Duration::from_secs(30), "the server ends");
    }
    assert!(matches!(server.restart(Data::Kept), Err(Error::Ended)));
    // These have nothing to do any more.
    server.pause();
    server.disconnect_all();
    Ok(())
}

#[test]
fn the_socket_and_the_thread_end_with_the_value() -> Outcome {
    let server = TestServer::start()?;
    let socket = server.socket().to_owned();
    let mut client = Client::connect(&server)?;
    client.ask("PING")?;
    drop(server);
    assert!(!socket.exists());
    assert!(client.ask("PING").is_err());
    Ok(())
}

/// A request of any bytes gets an answer or the end of the connection, and never that of the
/// server.
#[test]
fn nonsense_ends_no_server() -> Outcome {
    let server = TestServer::start()?;
    let mut random = fastrand::Rng::with_seed(7);
    let pieces = ["*", "$", "\r\n", "1", "-1", "3", "99999999999", "GET", "a", "\0", ":", "\n"];
    for _ in 0..2_000 {
        let mut client = Client::connect(&server)?;
        let count = random.usize(1..20);
        let text: String = (0..count).map(|_| pieces[random.usize(..pieces.len())]).collect();
        // The server may have closed the connection.
        let _ = client.0.get_mut().write_all(text.as_bytes());
    }
    assert_eq!(Client::connect(&server)?.ask("PING")?, "+PONG");
    Ok(())
}

/// Neither a script nor a request changes what later ones see, nor ends the process.
#[test]
fn scripts_change_nothing_for_later_scripts() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    for script in [
        "redis.call=nil",
        "rawset(_G,1,2)",
        "rawset(redis,1,2)",
        "setmetatable(_G,nil)",
        "getmetatable(_G).__index=nil",
        "getmetatable([[x]]).__index=nil",
        "table.insert=nil",
        "math.pi=3",
        "leak=1",
        "local\tfunction\tf()return(pcall(f))end;return(f())",
        "\x1bLua",
    ] {
        let arguments = ["EVAL", &script.replace('\t', " "), "0"];
        let words = arguments.map(|word| format!("${}\r\n{word}\r\n", word.len()));
        client.send(&format!("*3\r\n{}", words.concat().trim_end()))?;
        let reply = client.line()?;
        assert!(reply.starts_with('-') || script.contains('f'), "{script}: {reply}");
        // A text follows in a line of its own.
        if reply.starts_with('$') || reply.starts_with('*') {
            client = Client::connect(&server)?;
        }
    }
    let reply = client.ask("EVAL return(redis.call('incr','a')+math.floor(1.5)+#KEYS) 0")?;
    assert!(reply.starts_with("-ERR the test server does not have quotes"), "{reply}");
    let mut client = Client::connect(&server)?;
    assert_eq!(client.ask("EVAL return(math.floor(1.5)+#string.rep([[a]],2)) 0")?, ":3");
    assert_eq!(client.ask("EVAL return(redis.call([[incr]],[[a]])) 0")?, ":1");
    client.ask("HSET h a 1")?;
    assert!(client.ask("HRANDFIELD h -9223372036854775807")?.starts_with("-ERR"));
    assert_eq!(client.ask("SHUTDOWN foo")?, "-ERR syntax error");
    assert_eq!(client.ask("PING")?, "+PONG");
    Ok(())
}

#[test]
fn bytes_connections_and_errors_are_counted_until_a_reset() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    assert_eq!(client.ask("PING")?, "+PONG");
    let refused = client.ask("GET")?;
    let stats = client.info("stats")?;
    let received = "PING\r\nGET\r\nINFO stats\r\n".len();
    let sent = "+PONG\r\n".len() + refused.len() + "\r\n".len();
    for fact in [
        "total_connections_received:1",
        "total_commands_processed:1",
        &format!("total_net_input_bytes:{received}"),
        &format!("total_net_output_bytes:{sent}"),
        "total_error_replies:1",
    ] {
        assert!(stats.iter().any(|line| line == fact), "{fact}: {stats:?}");
    }
    assert!(client.info("errorstats")?.contains(&"errorstat_ERR:count=1".to_owned()));
    assert_eq!(client.ask("CONFIG RESETSTAT")?, "+OK");
    assert!(client.info("stats")?.contains(&"total_connections_received:0".to_owned()));
    assert_eq!(client.info("errorstats")?.len(), 1);
    Ok(())
}

/// What the server lacks it refuses, instead of answering something else.
#[test]
fn what_is_missing_is_refused() -> Outcome {
    let server = TestServer::start()?;
    let mut client = Client::connect(&server)?;
    for (request, error) in [
        ("MULTI", "-ERR unknown command 'MULTI'"),
        ("BLPOP a 0", "-ERR unknown command 'BLPOP'"),
        ("CONFIG SET maxmemory 100", "-ERR the test server does not have another value of"),
        ("CONFIG SET appendonly yes", "-ERR the test server does not have another value of"),
        ("CONFIG SET hz 10", "-ERR the test server does not have the setting 'hz'"),
        ("ZADD a 0x10 m", "-ERR the test server does not have hexadecimal numbers"),
        ("ZRANGE a - + BYLEX", "-ERR the test server does not have BYLEX"),
        ("CLIENT KILL 1.2.3.4:5", "-ERR the test server does not have CLIENT KILL with"),
        ("EVAL return(cjson) 0", "-ERR user_script:1: Script attempted to access nonexistent"),
    ] {
        let reply = client.ask(request)?;
        assert!(reply.starts_with(error), "{request}: {reply}");
    }
    assert_eq!(client.ask("CONFIG SET maxmemory 0")?, "+OK", "as it is");
    assert_eq!(client.ask("CONFIG GET hz")?, "*0");
    assert_eq!(client.ask("WAIT 0 0")?, ":0");
    assert_eq!(client.ask("WAIT 1 10")?, ":0", "after 10 ms, since there are no replicas");
    assert_eq!(client.ask("CONFIG SET min-replicas-to-write 1")?, "+OK");
    assert_eq!(client.ask("SET a 1")?, "-NOREPLICAS Not enough good replicas to write.");
    assert_eq!(client.ask("EXISTS a")?, ":0");
    Ok(())
}
