//! Logins that change, and servers whose own addresses lead nowhere.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::harness::faults::channel_of;
use crate::harness::{Cluster, Server, eventually, in_time, pttl};
use crate::{await_subscriber, subscribers};
use leasehold::{Builder, Client};
use parking_lot::Mutex;

const MINUTE: Duration = Duration::from_secs(60);

/// The password that a login provider returns, and how often it did.
#[derive(Clone, Default)]
struct Secret(Arc<Mutex<(Provided, usize)>>);

#[derive(Clone, Copy, Default)]
enum Provided {
    #[default]
    Nothing,
    Panic,
    Password(&'static str),
}

impl Secret {
    fn set(&self, provided: Provided) {
        *self.0.lock() = (provided, 0);
    }

    fn builder(&self, server: &Server) -> Builder {
        let secret = self.clone();
        Client::builder().single(server.url()).login_provider(move || {
            let (provided, count) = &mut *secret.0.lock();
            *count += 1;
            match provided {
                Provided::Nothing => Err(io::Error::other("the secret is not mounted")),
                Provided::Panic => panic!("on purpose"),
                Provided::Password(password) => Ok(("app".to_owned(), (*password).to_owned())),
            }
        })
    }

    /// Waits until connections have asked some times since the last change.
    fn await_questions(&self) {
        eventually("connections ask for the password", || self.0.lock().1 >= 4);
    }
}

fn admin(server: &Server, command: &[&str]) {
    let (verb, rest) = command.split_first().expect("a command");
    let mut connection = server.connection();
    redis::cmd(verb).arg(rest).exec(&mut connection).expect("the administrator may do all");
}

#[test]
fn a_password_that_changes_ends_no_hold_and_no_wait() {
    let server = Server::with(|config| {
        config.password("admin").line("user app on >first ~* &* +@all -@admin +client")
    });
    let secret = Secret::default();
    let open = || secret.builder(&server).watchdog_timeout(MINUTE / 2);
    let error = open().build().expect_err("no login");
    assert!(error.is_connection() && error.is_retryable(), "{error:?}");
    assert!(error.with_causes().to_string().contains("the secret is not mounted"), "{error:?}");
    secret.set(Provided::Password("wrong"));
    let error = open().build().expect_err("a wrong password");
    assert!(error.code() == Some("WRONGPASS") && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("Builder::login_provider"), "{error}");

    secret.set(Provided::Password("first"));
    let [holder, waiter] = [(); 2].map(|()| open().build().expect("the right password"));
    let guard = holder.lock("a").lock().expect("free");
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.lock("a").lock().and_then(|guard| guard.unlock()));
        await_subscriber(std::slice::from_ref(&server), &channel_of("a"));
        admin(&server, &["ACL", "SETUSER", "app", "resetpass", ">second"]);
        admin(&server, &["CLIENT", "KILL", "USER", "app"]);
        for outdated in [Provided::Password("first"), Provided::Nothing, Provided::Panic] {
            secret.set(outdated);
            secret.await_questions();
        }
        secret.set(Provided::Password("second"));
        eventually("the waiter listens again", || {
            subscribers(std::slice::from_ref(&server), &channel_of("a")) == 1
        });
        guard.extend(MINUTE * 2).expect("the holder is connected again");
        assert!(pttl(&server, "a") > 60_000);
        assert!(!waits.is_finished(), "the lock is held");
        guard.unlock().expect("held");
        in_time("the waiter gets the lock", waits).expect("the wait went on");
    });
}

/// Takes and gives back a lock on each node.
fn lock_on_all(client: &Client, cluster: &Cluster) {
    for node in cluster.nodes() {
        let name = cluster.key_on(node, "lock");
        client.lock(name).lock().expect("free").unlock().expect("held");
    }
}

#[test]
fn an_address_map_leads_to_nodes_that_name_themselves_in_vain() {
    let cluster = Cluster::with(3, 0, |config| {
        config
            .line("cluster-announce-hostname node.invalid")
            .line("cluster-preferred-endpoint-type hostname")
    });
    let urls = [cluster.nodes()[0].url()];
    let open = || Client::builder().cluster(&urls).connect_timeout(MINUTE);
    let unmapped = open().build().map(|client| client.lock("a").try_lock().map(drop));
    assert!(unmapped.and_then(|result| result).is_err(), "no name leads to a node");
    let client = open()
        .address_map(|host, port| {
            assert_eq!(host, "node.invalid", "only named addresses are mapped");
            ("127.0.0.1".to_owned(), port)
        })
        .build()
        .expect("the nodes are found");
    lock_on_all(&client, &cluster);
    // A redirection names an address too.
    let [from, to] = [&cluster.nodes()[0], &cluster.nodes()[1]];
    let name = cluster.key_on(from, "moving");
    let guard = client.lock(&name).lock().expect("free");
    cluster.migrate(cluster.slot_of(&name), to);
    guard.extend(MINUTE).expect("the old node replies MOVED");
    guard.unlock().expect("held");
}

#[test]
fn an_address_map_leads_to_the_master_of_a_sentinel() {
    let master = Server::start();
    // 192.0.2.1 is an address for documentation, which nobody has.
    let sentinel =
        Server::with(|config| config.sentinel().line("sentinel monitor main 192.0.2.1 6379 1"));
    let port = master.port();
    let client = Client::builder()
        .sentinel("main", [sentinel.url()])
        .address_map(move |host, named| match (host, named) {
            ("192.0.2.1", 6379) => ("127.0.0.1".to_owned(), port),
            other => panic!("{other:?} was not named"),
        })
        .build()
        .expect("the master is found");
    client.lock("a").lock().expect("free").unlock().expect("held");
}

#[test]
fn settings_of_sentinels_need_sentinels() {
    for builder in [
        Client::builder().single("redis://localhost/").master_tls(true),
        Client::builder().cluster(["redis://localhost/"]).sentinel_tls_authority(""),
    ] {
        let error = builder.build().expect_err("no sentinels");
        assert!(error.is_configuration(), "{error:?}");
    }
}
