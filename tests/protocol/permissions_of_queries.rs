//! The permissions of queries about holders in docs/permissions.md suffice, and each is needed.

use std::collections::BTreeMap;

use crate::harness::Server;
use crate::harness::holders::GONE;
use crate::harness::permissions::{DOCUMENT, rules_of_a_plain_lock};
use leasehold::{AuditPolicy, Client, Error};

/// Returns the code spans of an item of the section, without its names.
fn permissions_of(method: &str) -> Vec<Vec<&'static str>> {
    let (_, section) = DOCUMENT.split_once("## Holder information\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut items = section.split("\n- ").skip(1).map(|item| item.split("\n\n").next());
    let item = items.find_map(|item| item.filter(|item| item.starts_with(method)));
    let item = item.unwrap_or_else(|| panic!("docs/permissions.md has no item {method}"));
    let spans = item.split('`').skip(1).step_by(2).filter(|span| span.starts_with(['+', '~']));
    spans.map(|span| span.split_whitespace().collect()).collect()
}

fn find_all(client: &Client) -> Result<(), Error> {
    client.locks("orders:*")?.try_for_each(|lock| lock.map(drop))
}

fn look(client: &Client) -> Result<(), Error> {
    for name in ["orders:1", "orders:2", "orders:3"] {
        client.lock_info(name)?;
    }
    Ok(())
}

fn force(client: &Client) -> Result<(), Error> {
    for name in ["orders:1", "orders:2", "orders:3"] {
        assert!(client.force_unlock(name)?, "{name} is held");
    }
    Ok(())
}

/// Returns a server with a lock, a readers' lock and a record, and a user with these rules.
fn server_and_client(words: &[&str]) -> (Server, Client) {
    let server = Server::start();
    let owner = format!("{GONE}:1700000000000000");
    server.ask::<()>(&["HSET", "orders:1", &owner, "1"]);
    server.ask::<()>(&["HSET", "orders:2", "mode", "read", &owner, "1"]);
    server.ask::<()>(&["RPUSH", "redisson_lock_queue:{orders:1}", &owner]);
    server.ask::<()>(&["ZADD", "leasehold_queue:{orders:1}", "1", &owner]);
    server.ask::<()>(&["SET", "redisson_lock_token:{orders:1}", "1"]);
    server.ask::<()>(&["HSET", &format!("leasehold_client:{{{GONE}}}"), "host", "web-1"]);
    server.ask::<()>(&[&["ACL", "SETUSER", "worker", "reset"], words].concat());
    take_a_permit(&server);
    let password = words.iter().find_map(|word| word.strip_prefix('>')).expect("a password");
    let builder = Client::builder().single(server.login_url("worker", password));
    let client = builder.audit_policy(AuditPolicy::Ignore).build().expect("the user may log in");
    (server, client)
}

/// Makes a permit of `orders:3` be in use, by a client that is gone.
fn take_a_permit(server: &Server) {
    let client = Client::open(server.url()).expect("the server answers");
    let permit = client.semaphore("orders:3").with_permits(1).acquire().expect("free");
    let expiries = "{orders:3}:timeout";
    let ids: Vec<Vec<u8>> = server.ask(&["ZRANGE", expiries, "0", "0"]);
    permit.release().expect("held");
    let mut add = redis::cmd("ZADD");
    add.arg(expiries).arg("4000000000000").arg(&ids[0]);
    add.query::<()>(&mut server.connection()).expect("added");
}

type Query = fn(&Client) -> Result<(), Error>;

/// The queries, with their permissions and those of their kind.
fn queries() -> Vec<(Vec<&'static str>, Vec<&'static str>, Query)> {
    let holders = permissions_of("`Lock::holder`").concat();
    let waiting = permissions_of("`Lock::waiting`");
    let fair = "~redisson_lock_queue:* +lrange".split(' ').collect();
    let queued = vec!["~leasehold_queue:*"];
    let read = "~{orders:*".split(' ').collect();
    let of_semaphores = permissions_of("`Semaphore::holders`").concat();
    let of_kinds = "~redisson_lock_timeout:* +lindex +lpop +zrem +zscore ~leasehold_slots:* \
                    &redisson_rwlock:* +getdel +hget &redisson_sc:* +incrby";
    let of_kinds = of_kinds.split_whitespace().collect();
    let slots = vec!["~leasehold_slots:*"];
    let semaphore =
        "~{orders:* ~leasehold_slots:* +get +hgetall +time +zcard +zcount +zrangebyscore";
    let semaphore = semaphore.split(' ').collect();
    vec![
        (holders.clone(), vec![], |client| client.lock("orders:1").holder().map(drop)),
        (holders, read, |client| client.rw_lock("orders:2").read_lock().holders().map(drop)),
        (waiting[0].clone(), vec![], |client| client.lock("orders:1").waiting().map(drop)),
        (waiting[2].clone(), fair, |client| client.fair_lock("orders:1").waiting().map(drop)),
        (waiting[3].clone(), queued, |client| client.queue_lock("orders:1").waiting().map(drop)),
        (of_semaphores, semaphore, |client| client.semaphore("orders:3").holders().map(drop)),
        (waiting[0].clone(), vec![], |client| client.semaphore("orders:3").waiting().map(drop)),
        (waiting[0].clone(), vec![], |client| client.latch("orders:4").waiting().map(drop)),
        (permissions_of("`Client::locks`").concat(), slots.clone(), find_all),
        (permissions_of("`Client::lock_info`").concat(), slots, look),
        (permissions_of("`Client::force_unlock`").concat(), of_kinds, force),
    ]
}

#[test]
fn the_permissions_of_each_query_suffice() {
    for (more, of_kind, query) in queries() {
        let live = vec!["&leasehold:reply:*"];
        let (server, client) =
            server_and_client(&[rules_of_a_plain_lock(), more.clone(), of_kind, live].concat());
        query(&client).expect("permitted");
        let denied: Vec<BTreeMap<String, redis::Value>> = server.ask(&["ACL", "LOG"]);
        assert!(denied.is_empty(), "{more:?}: {denied:?}");
    }
}

#[test]
fn a_query_without_a_permission_is_a_clear_error_and_locks_work() {
    for (more, of_kind, query) in queries() {
        for missing in &more {
            let fewer: Vec<_> = more.iter().filter(|word| *word != missing).copied().collect();
            let rules = [rules_of_a_plain_lock(), fewer, of_kind.clone()].concat();
            let (_server, client) = server_and_client(&rules);
            let error = query(&client).expect_err("a permission is missing");
            let text = error.with_causes().to_string();
            assert!(error.is_server(), "without {missing}: {text}");
            assert!(text.contains("docs/permissions.md"), "without {missing}: {text}");
            // A refusal within a script names no permission.
            let is_record = ["~leasehold_client:*", "+hmget"].contains(missing);
            let is_of_script = text.contains("script:");
            assert_eq!(
                text.contains("+hmget"),
                is_record && !is_of_script,
                "without {missing}: {text}"
            );
            let guard = client.lock("orders:free").lock().expect("locks work");
            guard.unlock().expect("held");
        }
    }
}
