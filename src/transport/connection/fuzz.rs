//! Random replies and URLs.

use super::decode::parse;
use super::url::ServerUrl;
use crate::util::fuzz::fuzz;

const REPLIES: [&[u8]; 10] = [
    b"*2\r\n$1\r\na\r\n:7\r\n",
    b"%2\r\n+server\r\n+redis\r\n+proto\r\n:3\r\n",
    b"-MOVED 42 10.0.0.1:6379\r\n",
    b"-ERR unknown command\r\n",
    b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\np\r\n",
    b"_\r\n,1.5\r\n#t\r\n(12345678901234567890\r\n",
    b"=15\r\ntxt:Some string\r\n",
    b"!21\r\nSYNTAX invalid syntax\r\n",
    b"|1\r\n+ttl\r\n:3600\r\n~2\r\n+a\r\n+b\r\n",
    b"*1\r\n*1\r\n*1\r\n*-1\r\n$-1\r\n",
];

const URLS: [&[u8]; 7] = [
    b"redis://user:s3cr3t@host:6379/2",
    b"rediss://:s3cr3t@[::1]:7000/?db=3",
    b"redis+unix:///run/redis.sock?db=2&user=u&pass=s3cr3t",
    b"valkey://%75:s3cr3t%23@127.0.0.1",
    b"unix://localhost/tmp/a%20b",
    b"redis://host",
    b"REDIS://user@host.example./0",
];

#[test]
fn random_replies_are_parsed_or_refused() {
    fuzz(&REPLIES, |bytes| drop(parse(bytes)));
    // Arrays in arrays must not use up the stack.
    for depth in [10, 1000, 1_000_000] {
        drop(parse(&b"*1\r\n".repeat(depth)));
    }
}

#[test]
fn random_urls_are_read_or_refused_without_a_part_of_them() {
    fuzz(&URLS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        if let Err(error) = ServerUrl::parse(&text) {
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains("s3cr3t"), "{shown}");
            assert!(!shown.contains(char::is_control) && error.is_configuration(), "{shown}");
        }
    });
}
