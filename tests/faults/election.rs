//! Faults of elections: killed and stopped leaders, lost announcements and resignations, broken
//! listeners, outages, and a restart without data.

use crate::harness::bare::digest;
use crate::harness::elections::*;
use crate::harness::faults::*;
use crate::harness::queued::{
    POLL, is_listening, load_scripts, only_tokens_are_left, polling, queue_ended_call, queue_length,
};
use crate::harness::wait::BOUND;
use crate::harness::{
    ChildProcess, Connections, Direction, Flow, Proxy, Server, eventually, in_time, process,
};
use crossbeam_channel::RecvTimeoutError;
use leasehold::{CancelToken, Client};
use std::thread;
use std::time::{Duration, Instant};

/// Wins the election, and then tells the state of the term at each order of the parent.
#[test]
fn child_entry() {
    let Some(role) = process::role() else { return };
    assert_eq!(role.name(), "lead");
    let client = build(polling(role.arg(0)).watchdog_timeout(BRISK));
    let term = campaign(&candidate(&client, "child"));
    role.say(&term.token().to_string());
    while let Some(order) = role.hear() {
        assert_eq!(order, "check");
        let is_over = term.check().is_err_and(|error| error.is_lost());
        role.say(if is_over && !term.is_held() { "over" } else { "leads" });
    }
}

/// Has a client observe and campaign while another process leads. `end` ends the term of that
/// process, and `then` runs during the term of the client.
fn with_leading_process(end: impl Fn(&mut ChildProcess), then: impl Fn(&mut ChildProcess)) {
    let server = Server::start();
    let mut child = ChildProcess::start("election::child_entry", "lead", &[&server.url()]);
    let token: u64 = child.next_line().parse().expect("a token");
    let client = build(polling(server.url()).watchdog_timeout(BRISK));
    let observer = observe(&server, &client);
    sees(&observer, "child");
    thread::scope(|scope| {
        let next = scope.spawn(|| campaign(&candidate(&client, "next")));
        eventually("the candidate waits", || queue_length(&server, "a") == 1);
        let began = Instant::now();
        end(&mut child);
        let next = in_time("the next candidate leads", next);
        let after = began.elapsed();
        assert!(after < BRISK + POLL + BOUND / 6, "it follows after {after:?}");
        assert!(next.token() > token);
        sees(&observer, "next");
        then(&mut child);
        next.check().expect("the former leader does not touch the term");
        assert_eq!(value_and_token(&client), Some(("next".to_owned(), next.token())));
    });
}

#[test]
fn a_killed_leader_is_followed_within_its_lease() {
    with_leading_process(ChildProcess::kill, |_| {});
}

#[test]
fn a_stopped_leader_finds_its_term_over_when_it_resumes() {
    with_leading_process(
        |child| child.stop(),
        |child| {
            child.resume();
            child.send_line("check");
            child.expect_line("over");
            child.close_input();
            assert!(child.wait().success());
        },
    );
}

/// Returns a server with all scripts, and a proxy in front of it.
fn server_and_proxy() -> (Server, Proxy) {
    let server = Server::start();
    load_scripts(&server);
    let proxy = Proxy::start(server.addr());
    (server, proxy)
}

/// Has the proxy hold the next announcement of a leader back.
fn hold_announcement(proxy: &Proxy) {
    proxy.on_request(digest("leader_announce").as_bytes(), Direction::Requests, Flow::Hold);
}

/// The client announces itself over another connection.
#[test]
fn an_announcement_without_a_reply_is_repeated_and_the_term_is_valid() {
    for (direction, flow) in [
        (Direction::Requests, Flow::Swallow),
        (Direction::Replies, Flow::Swallow),
        (Direction::Requests, Flow::CutAfter(60)),
        (Direction::Replies, Flow::CutAfter(0)),
    ] {
        let (server, proxy) = server_and_proxy();
        let (client, other) = (build(hasty(proxy.url())), other(&server));
        proxy.on_request(digest("leader_announce").as_bytes(), direction, flow);
        let term = campaign(&candidate(&client, "x"));
        term.check().expect("the term does not wait for its announcement");
        eventually("the leader is announced", || leader(&other).is_some());
        assert_eq!(value_and_token(&other), Some(("x".to_owned(), term.token())));
        proxy.wait_until("a fault", |stats| stats.triggered == 1);
        term.resign().expect("the term is valid");
        only_tokens_are_left(&server);
    }
}

/// The response time-out is longer than the test may take.
#[test]
fn a_campaign_with_a_deadline_does_not_wait_longer_for_its_announcement() {
    let (server, proxy) = server_and_proxy();
    let client = build(patient(proxy.url()));
    hold_announcement(&proxy);
    let began = Instant::now();
    let election = candidate(&client, "x");
    let term = election.try_campaign_for(POLL * 5).expect("a reply").expect("nobody leads");
    let took = began.elapsed();
    assert!(took < BOUND / 3, "the call waits for the announcement: {took:?}");
    something_is_held(&proxy);
    let other = other(&server);
    assert_eq!(leader(&other), None, "the term is not announced");
    assert!(other.election("a").try_campaign().expect("a reply").is_none(), "but it is valid");
    term.check().expect("the term is valid");
    proxy.pass();
    eventually("the leader is announced", || leader(&other).is_some());
}

/// The term is ended by force between its grant and its announcement.
#[test]
fn a_term_that_its_announcement_finds_ended_is_no_term() {
    let (server, proxy) = server_and_proxy();
    let (client, other) = (build(patient(proxy.url())), other(&server));
    let end_term = || {
        assert!(other.force_unlock("a").expect("a reply"), "the candidate has the lock");
    };
    hold_announcement(&proxy);
    thread::scope(|scope| {
        let campaigning = scope.spawn(|| campaign(&candidate(&client, "x")));
        something_is_held(&proxy);
        end_term();
        let between = campaign(&candidate(&other, "between"));
        proxy.pass();
        eventually("the call campaigns again", || queue_length(&server, "a") == 1);
        assert!(!campaigning.is_finished(), "two lead");
        eventually("the candidate listens", || is_listening(&server, &client));
        let token = between.token();
        between.resign().expect("the term is valid");
        let term = in_time("the next term", campaigning);
        assert!(term.is_held() && term.token() > token);
        assert_eq!(value_and_token(&other), Some(("x".to_owned(), term.token())));
        term.resign().expect("the term is valid");
    });
    hold_announcement(&proxy);
    thread::scope(|scope| {
        let candidate = candidate(&client, "x");
        let campaigning = scope.spawn(move || candidate.try_campaign());
        something_is_held(&proxy);
        end_term();
        proxy.pass();
        let error = in_time("the call returns", campaigning).expect_err("the term was lost");
        assert!(error.is_lost(), "{error}");
    });
    only_tokens_are_left(&server);
}

/// The call has not waited for its announcement.
#[test]
fn a_late_announcement_ends_a_term_that_the_server_denies() {
    let (server, proxy) = server_and_proxy();
    let (client, other) = (build(patient(proxy.url())), other(&server));
    hold_announcement(&proxy);
    let election = candidate(&client, "x");
    let term = election.try_campaign_for(POLL * 5).expect("a reply").expect("nobody leads");
    something_is_held(&proxy);
    assert_eq!(server.ask::<u32>(&["DEL", "a"]), 1);
    let next = campaign(&candidate(&other, "next"));
    proxy.pass();
    assert!(term.wait_lost(BOUND), "two lead");
    assert!(term.resign().is_err_and(|error| error.is_lost()));
    next.resign().expect("the term is valid");
    only_tokens_are_left(&server);
}

#[test]
fn a_cancellation_and_a_close_end_the_wait_for_an_announcement() {
    for closes in [false, true] {
        let (server, proxy) = server_and_proxy();
        let (client, stop) = (build(patient(proxy.url())), CancelToken::new());
        hold_announcement(&proxy);
        thread::scope(|scope| {
            let election = candidate(&client, "x").with_cancel(&stop);
            let waiter = scope.spawn(move || election.campaign().map(drop));
            something_is_held(&proxy);
            if closes {
                scope.spawn(|| client.close()).join().expect("no panic")
            } else {
                stop.cancel()
            }
            let error = in_time("the call returns", waiter).expect_err("it was ended");
            assert!(error.is_cancelled() != closes && error.is_closed() == closes, "{error}");
        });
        proxy.pass();
        only_tokens_are_left(&server);
    }
}

/// A late copy of a campaign has queued a candidate whose call has ended.
#[test]
fn a_term_of_a_call_that_has_ended_is_released_with_its_record() {
    let server = Server::start();
    load_scripts(&server);
    let (client, other) = (build(patient(server.url())), other(&server));
    let term = campaign(&candidate(&other, "first"));
    thread::scope(|scope| {
        // So that the client listens.
        let next = scope.spawn(|| campaign(&candidate(&client, "next")).resign());
        eventually("the candidate listens", || is_listening(&server, &client));
        term.resign().expect("the term is valid");
        in_time("the next term ends", next).expect("the term is valid");
    });
    let term = campaign(&candidate(&other, "first"));
    let ended = queue_ended_call(&server, &client);
    assert_eq!(server.ask::<u32>(&["DEL", RECORD]), 1);
    server.ask::<u32>(&["HSET", RECORD, "owner", &ended]);
    term.resign().expect("the term is valid");
    eventually("the term is released", || !exists(&server, "a"));
    only_tokens_are_left(&server);
}

/// The resignation is lost; the client repeats it before `run` returns.
#[test]
fn run_hands_over_although_its_resignation_is_lost() {
    let (server, proxy) = server_and_proxy();
    let (client, other) = (build(hasty(proxy.url())), other(&server));
    let stop = CancelToken::new();
    let outcome = candidate(&client, "x").run(&stop, |_| {
        stop.cancel();
        let release = digest("leader_release");
        proxy.on_request(release.as_bytes(), Direction::Requests, Flow::Swallow);
    });
    proxy.wait_until("a fault", |stats| stats.triggered == 1);
    let error = outcome.expect_err("the resignation was not confirmed in time");
    assert!(error.is_timeout(), "{error}");
    assert!(other.election("a").try_campaign().expect("a reply").is_some(), "nobody leads");
}

#[test]
fn run_goes_on_after_an_outage() {
    let (server, proxy) = server_and_proxy();
    let settings = hasty(proxy.url()).poll_interval(POLL).watchdog_timeout(BRISK);
    let (client, stop) = (build(settings), CancelToken::new());
    let mut tokens = Vec::new();
    thread::scope(|scope| {
        let (lost, losses) = crossbeam_channel::bounded(0);
        let proxy = &proxy;
        scope.spawn(move || {
            for () in losses {
                // Some campaigns fail meanwhile.
                let refused = proxy.stats().refused;
                proxy.wait_until("refused connections", |it| it.refused > refused + 3);
                proxy.heal();
            }
        });
        let outcome = candidate(&client, "x").run(&stop, |term| {
            tokens.push(term.token());
            if tokens.len() == 3 {
                return stop.cancel();
            }
            proxy.refuse();
            proxy.kill_all();
            assert!(term.wait_lost(BOUND), "the lease ends");
            lost.send(()).expect("the other thread runs");
        });
        outcome.expect("it was stopped");
        drop(lost);
    });
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    only_tokens_are_left(&server);
}

#[test]
fn a_restart_without_data_ends_the_term_and_the_next_token_is_larger() {
    let server = Server::start();
    let client = build(polling(server.url()).watchdog_timeout(BRISK));
    let (stop, mut tokens) = (CancelToken::new(), Vec::new());
    let observer = observe(&server, &client);
    let outcome = candidate(&client, "x").run(&stop, |term| {
        tokens.push(term.token());
        while observer
            .recv_timeout(BOUND)
            .expect("a message")
            .is_none_or(|leader| leader.token() != term.token())
        {}
        if tokens.len() == 2 {
            return stop.cancel();
        }
        server.kill();
        server.restart();
        assert!(term.wait_lost(BOUND), "the server has no lock");
    });
    outcome.expect("it was stopped");
    assert!(tokens[1] > tokens[0], "{tokens:?}");
}

/// No poll is near: only a message can tell the change.
#[test]
fn an_observer_listens_again_after_its_connection_broke() {
    let (server, proxy) = server_and_proxy();
    let (client, other) = (build(patient(proxy.url())), other(&server));
    let observer = observe(&server, &client);
    assert_eq!(next_value(&observer), None);
    proxy.kill(&Connections::Subscribers);
    eventually("the observer listens again", || server.numsub(CHANNEL) == 1);
    let _term = campaign(&candidate(&other, "x"));
    sees(&observer, "x");
}

#[test]
fn an_observer_reports_nothing_during_an_outage_and_the_change_afterwards() {
    let (server, proxy) = server_and_proxy();
    let settings = hasty(proxy.url()).poll_interval(POLL);
    let (client, other) = (build(settings), other(&server));
    let term = campaign(&candidate(&other, "first"));
    let observer = observe(&server, &client);
    sees(&observer, "first");
    proxy.refuse();
    proxy.kill_all();
    term.resign().expect("the term is valid");
    let _next = campaign(&candidate(&other, "second"));
    let refused = proxy.stats().refused;
    proxy.wait_until("the observer has tried to look", |stats| stats.refused > refused + 3);
    assert_eq!(observer.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout));
    proxy.heal();
    assert_eq!(next_value(&observer).as_deref(), Some("second"));
}

/// The messages of the leaders are lost.
#[test]
fn a_lost_message_costs_an_observer_a_poll_interval() {
    let (server, proxy) = server_and_proxy();
    let (client, other): (Client, Client) = (build(polling(proxy.url())), other(&server));
    let observer = observe(&server, &client);
    assert_eq!(next_value(&observer), None);
    proxy.set_for(Connections::Subscribers, Direction::Replies, Flow::Swallow);
    for value in ["first", "second"] {
        let term = campaign(&candidate(&other, value));
        sees(&observer, value);
        term.resign().expect("the term is valid");
    }
}

/// The thread of the leader sends nothing, so only the announcement can make a new connection.
#[test]
fn a_record_comes_back_after_all_connections_broke() {
    let server = Server::start();
    let client = build(polling(server.url()).watchdog_timeout(BRISK));
    let term = campaign(&candidate(&client, "x"));
    for _ in 0..2 {
        server.ask::<u32>(&["CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal"]);
        assert_eq!(server.ask::<u32>(&["DEL", RECORD]), 1);
        eventually("the leader is announced again", || server.ask::<u32>(&["EXISTS", RECORD]) == 1);
    }
    term.check().expect("the term is valid");
    term.resign().expect("the term is valid");
}
