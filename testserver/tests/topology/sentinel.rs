//! A sentinel.

use crate::clients::{ask, asks, output};
use leasehold_testserver::core::{Address, Core};

fn at(port: u16) -> Address {
    Address::new("127.0.0.1", port)
}

/// Returns the value of a field in a report.
fn field(report: &str, name: &str) -> String {
    let mut parts = report.split('|');
    parts.find(|part| *part == name).expect("the field");
    parts.nth(1).expect("a value").to_owned()
}

#[test]
fn a_sentinel_tells_its_master_and_publishes_a_change() {
    let mut sentinel = Core::new_sentinel(1);
    let client = sentinel.connect();
    let hello = ask(&mut sentinel, client, "HELLO 3 SETNAME x");
    assert!(hello.starts_with("%6|") && hello.contains("|$4|mode|$8|sentinel|"), "{hello}");
    assert_eq!(ask(&mut sentinel, client, "SENTINEL GET-MASTER-ADDR-BY-NAME main"), "_");
    let unknown = "-ERR No such master with that name";
    assert_eq!(ask(&mut sentinel, client, "SENTINEL MASTER main"), unknown);
    sentinel.set_master("main", at(1), 0);
    sentinel.set_companions("main", &[at(2), at(3)], &[at(12), at(13)]);
    ask(&mut sentinel, client, "SUBSCRIBE +switch-master");
    let address = "SENTINEL GET-MASTER-ADDR-BY-NAME main";
    assert_eq!(ask(&mut sentinel, client, address), "*2|$9|127.0.0.1|$1|1");
    let report = ask(&mut sentinel, client, "SENTINEL master main");
    assert!(report.starts_with("%20|$4|name|$4|main|$2|ip|$9|127.0.0.1|"), "{report}");
    let facts = ["config-epoch", "num-slaves", "num-other-sentinels", "quorum"];
    assert_eq!(facts.map(|name| field(&report, name)), ["0", "2", "2", "2"]);
    sentinel.set_master("main", at(1), 1);
    assert_eq!(output(&mut sentinel, client), "", "the same master");
    sentinel.set_master("main", at(3), 2);
    let message = ">3|$7|message|$14|+switch-master|$28|main 127.0.0.1 1 127.0.0.1 3";
    assert_eq!(output(&mut sentinel, client), message);
    assert_eq!(ask(&mut sentinel, client, address), "*2|$9|127.0.0.1|$1|3");
    let report = ask(&mut sentinel, client, "SENTINEL MASTER main");
    assert_eq!([field(&report, "config-epoch"), field(&report, "port")], ["2", "3"]);
    let replicas = ask(&mut sentinel, client, "SENTINEL REPLICAS main");
    assert!(replicas.starts_with("*2|%21|$4|name|$11|127.0.0.1:2|"), "{replicas}");
    assert!(replicas.contains("|$4|name|$11|127.0.0.1:1|"), "{replicas}");
    let sentinels = ask(&mut sentinel, client, "SENTINEL SENTINELS main");
    assert!(sentinels.starts_with("*2|%14|$4|name|$12|127.0.0.1:12|"), "{sentinels}");
}

#[test]
fn a_sentinel_has_no_data_and_a_server_is_no_sentinel() {
    let mut sentinel = Core::new_sentinel(1);
    sentinel.set_master("main", at(1), 0);
    for (request, reply) in [
        ("PING", "+PONG"),
        ("ROLE", "*2|$8|sentinel|*1|$4|main"),
        ("CLIENT SETNAME x", "+OK"),
        ("GET a", "-ERR unknown command 'GET', with args beginning with: 'a'"),
        ("SELECT 0", "-ERR unknown command 'SELECT', with args beginning with: '0'"),
        ("SENTINEL nosuch", "-ERR unknown subcommand 'nosuch'. Try SENTINEL HELP."),
        ("SENTINEL", "-ERR wrong number of arguments for 'sentinel' command"),
        ("SENTINEL MASTER", "-ERR wrong number of arguments for 'sentinel|master' command"),
        ("HELLO 2", "*12|"),
    ] {
        let answer = asks(&mut sentinel, request);
        assert!(answer.starts_with(reply), "{request}: {answer}");
    }
    let mut server = Core::new(1);
    let answer = asks(&mut server, "SENTINEL MASTER main");
    let unknown = "-ERR unknown command 'SENTINEL', with args beginning with: 'MASTER' 'main'";
    assert_eq!(answer, unknown);
}
