//! Negative controls: plans with a known bug, which the checks must find.

use crate::checks::Promise;
use crate::fault::Fault;
use crate::kind::Kind;
use crate::plan::{LONG, Layout, Plan, Work};
use std::time::Duration;

/// How long faults are injected in each run.
const SPAN: Duration = Duration::from_secs(12);

/// A seeded fault (`tests/seeded`), the promise that it breaks, and a plan that shows it.
pub struct Control {
    pub fault: &'static str,
    pub promise: Promise,
    plan: fn(u64) -> Plan,
}

/// All seeded faults that the simulation finds, in the order of the files in `tests/seeded`.
pub const CONTROLS: [Control; 46] = [
    Control { fault: "no-second-try", promise: Promise::Wait, plan: no_second_try },
    Control { fault: "release-of-others", promise: Promise::Exclusion, plan: release_of_others },
    Control {
        fault: "deadline-from-reply",
        promise: Promise::Exclusion,
        plan: deadline_from_reply,
    },
    Control { fault: "resent-keeps-lease", promise: Promise::Exclusion, plan: resent_keeps_lease },
    Control { fault: "no-polls", promise: Promise::Wait, plan: no_polls },
    Control { fault: "loss-unnoticed", promise: Promise::LossReport, plan: loss_unnoticed },
    Control { fault: "token-passed-on", promise: Promise::Tokens, plan: token_passed_on },
    Control { fault: "deaf-after-reconnect", promise: Promise::Wait, plan: deaf_after_reconnect },
    Control { fault: "no-renewals", promise: Promise::Renewal, plan: no_renewals },
    Control { fault: "release-sent-once", promise: Promise::Leftovers, plan: release_sent_once },
    Control { fault: "limit-ignored", promise: Promise::Limit, plan: limit_ignored },
    Control { fault: "minimum-ignored", promise: Promise::Minimum, plan: minimum_ignored },
    Control { fault: "grant-not-repeated", promise: Promise::Wait, plan: grant_not_repeated },
    Control { fault: "dead-waiters-kept", promise: Promise::Wait, plan: dead_waiters_kept },
    Control {
        fault: "deadline-from-message",
        promise: Promise::Exclusion,
        plan: deadline_from_message,
    },
    Control { fault: "grant-left-behind", promise: Promise::Wait, plan: grant_left_behind },
    Control { fault: "heartbeat-revives", promise: Promise::Wait, plan: heartbeat_revives },
    Control {
        fault: "last-come-first-served",
        promise: Promise::Order,
        plan: last_come_first_served,
    },
    Control {
        fault: "release-counted-twice",
        promise: Promise::Counts,
        plan: release_counted_twice,
    },
    Control { fault: "record-ignored", promise: Promise::Counts, plan: record_ignored },
    Control { fault: "claim-ignored", promise: Promise::Claim, plan: claim_ignored },
    Control {
        fault: "permits-counted-twice",
        promise: Promise::Exclusion,
        plan: permits_counted_twice,
    },
    Control { fault: "former-leader-named", promise: Promise::Leader, plan: former_leader_named },
    Control { fault: "lost-term-goes-on", promise: Promise::Tokens, plan: lost_term_goes_on },
    Control { fault: "leader-not-announced", promise: Promise::Leader, plan: quiet_elections },
    Control { fault: "value-of-another-term", promise: Promise::Leader, plan: quiet_elections },
    Control { fault: "end-not-observed", promise: Promise::Leader, plan: rare_terms },
    Control { fault: "resize-not-announced", promise: Promise::Wait, plan: resize_not_announced },
    Control { fault: "search-ends-early", promise: Promise::Question, plan: search_ends_early },
    Control { fault: "names-kept", promise: Promise::Growth, plan: names_kept },
    Control { fault: "observers-stay", promise: Promise::Leftovers, plan: brief_observers },
    Control { fault: "hand-off-uncounted", promise: Promise::Told, plan: told_hand_offs },
    Control { fault: "announced-for-ever", promise: Promise::Wait, plan: dead_writers },
    Control { fault: "asked-in-vain", promise: Promise::Wait, plan: asked_for },
    Control {
        fault: "lease-from-take-over",
        promise: Promise::Exclusion,
        plan: lease_from_take_over,
    },
    Control { fault: "taken-for-dead", promise: Promise::Exclusion, plan: seen_from_elsewhere },
    Control { fault: "dead-holders-kept", promise: Promise::Wait, plan: dead_holders },
    Control { fault: "slots-by-client", promise: Promise::Exclusion, plan: slots },
    Control { fault: "commit-without-hold", promise: Promise::Result, plan: late_commits },
    Control { fault: "late-commit-overwrites", promise: Promise::Result, plan: late_commits },
    // Faults that reviews found once, put back.
    Control {
        fault: "release-raced-by-message",
        promise: Promise::Renewal,
        plan: release_raced_by_message,
    },
    Control { fault: "false-deadlock", promise: Promise::Answer, plan: false_deadlock },
    Control { fault: "refused-wait-refuses", promise: Promise::Counts, plan: refused_wait_refuses },
    Control { fault: "loss-noticed-late", promise: Promise::LossReport, plan: loss_unnoticed },
    Control { fault: "no-pauses", promise: Promise::Pauses, plan: no_pauses },
    Control { fault: "refusal-ends-waits", promise: Promise::Answer, plan: refusal_ends_waits },
];

/// No subscriber receives the message of a release between a refusal and its subscription.
fn no_second_try(seed: u64) -> Plan {
    Plan { faults: vec![Fault::Quiet], ..Plan::messages(seed, SPAN) }
}

/// A release arrives when its hold is over and another holder has the lock.
fn release_of_others(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::LateRequests], |work| Work { locks: 1, ..work });
    Plan { lasting: 1500..2500, ..plan }
}

/// After a late reply the holder considers its hold valid for longer than the server.
fn deadline_from_reply(seed: u64) -> Plan {
    plain(seed, vec![Fault::DelayReplies], |work| Work { kept_to_the_end: 100, ..work })
}

/// After a cut reply and a repeated request the holder considers its hold valid for longer than the
/// server.
fn resent_keeps_lease(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::CutReplies], |work| Work {
        locks: 6,
        kept_to_the_end: 100,
        fixed: 300..800,
        ..work
    });
    Plan { quiet: 100..300, lasting: 100..200, ..plan }
}

/// Messages are held back for longer than the poll interval and the response time-out.
fn no_polls(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::CutOffSubscribers], |work| Work {
        workers: 8,
        threads: 1,
        locks: 3,
        used_for: Duration::from_millis(30),
        longest: [Duration::from_millis(15); 2],
        leases: [LONG; 2],
        ..work
    });
    Plan { quiet: 200..500, lasting: 5000..6000, ..plan }
}

/// A server loses holds with long leases.
fn loss_unnoticed(seed: u64) -> Plan {
    let (lease, held) = (Duration::from_secs(15), Duration::from_secs(14));
    let plan = plain(seed, vec![Fault::EmptyServer], |work| Work {
        leases: [lease; 2],
        longest: [held; 2],
        locks: 8,
        ..work
    });
    // The fault comes once. A second fault would excuse a later report of the loss.
    Plan { span: Duration::from_secs(1), lasting: 300..500, ..plan }
}

/// Threads of one process hand a lock off to each other.
fn token_passed_on(seed: u64) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = Work { kinds: vec![Kind::Fenced], locks: 1, threads: 4, ..all.work };
    Plan { faults: vec![Fault::Quiet], work, ..all }
}

/// Threads of one process hand a lock off to each other. The statistics of clients are checked.
fn told_hand_offs(seed: u64) -> Plan {
    let plan = token_passed_on(seed);
    Plan { work: Work { told: true, ..plan.work }, ..plan }
}

/// Listeners lose their connections while callers wait.
fn deaf_after_reconnect(seed: u64) -> Plan {
    Plan { faults: vec![Fault::KillSubscribers], ..Plan::messages(seed, SPAN) }
}

/// Holds last for longer than their leases.
fn no_renewals(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::Quiet], |work| Work {
        longest: [Duration::from_secs(3); 2],
        locks: 8,
        ..work
    });
    Plan { span: Duration::from_secs(6), ..plan }
}

/// Releases are lost at first, and no lease ends during the run.
fn release_sent_once(seed: u64) -> Plan {
    let faults = vec![Fault::HalfOpen, Fault::CutRequests];
    plain(seed, faults, |work| Work { leases: [LONG; 2], locks: 8, ..work })
}

/// Holds are kept beyond their limits.
fn limit_ignored(seed: u64) -> Plan {
    plain(seed, vec![Fault::Quiet], |work| Work { limited: 100, kept_to_the_end: 50, ..work })
}

/// Locks are released before their minimum.
fn minimum_ignored(seed: u64) -> Plan {
    plain(seed, vec![Fault::Quiet], |work| Work { limited: 50, ..work })
}

/// Grants are held back for longer than the poll interval and the response time-out.
fn grant_not_repeated(seed: u64) -> Plan {
    let plan = no_polls(seed);
    Plan { work: Work { kinds: vec![Kind::Queued], ..plan.work }, ..plan }
}

/// A process is killed with many waiters. A grant to each of them lasts 3 s.
fn dead_waiters_kept(seed: u64) -> Plan {
    let plan = queued(seed, vec![Fault::KillWorker], |work| Work {
        workers: 3,
        threads: 8,
        poll_interval: Duration::from_secs(1),
        leases: [Duration::from_secs(3); 2],
        ..work
    });
    Plan { quiet: 7000..9000, ..plan }
}

/// A worker is cut off while it is granted the lock, and until another holder has it.
fn deadline_from_message(seed: u64) -> Plan {
    let plan = queued(seed, vec![Fault::CutOffWorker], |work| Work {
        workers: 3,
        // The grant lease is 2 s.
        poll_interval: Duration::from_millis(500),
        leases: [Duration::from_millis(2000); 2],
        longest: [Duration::from_millis(100); 2],
        response_timeout: Duration::from_secs(6),
        ..work
    });
    Plan { quiet: 300..800, lasting: 2300..2900, ..plan }
}

/// Messages are held back until some callers have left. A grant lasts 6 s.
fn grant_left_behind(seed: u64) -> Plan {
    let plan = queued(seed, vec![Fault::CutOffSubscribers], |work| Work {
        poll_interval: Duration::from_secs(2),
        response_timeout: Duration::from_millis(500),
        leases: [LONG; 2],
        longest: [Duration::from_millis(100); 2],
        ..work
    });
    Plan { quiet: 300..800, lasting: 1000..1800, ..plan }
}

/// Callers leave without a fault.
fn heartbeat_revives(seed: u64) -> Plan {
    queued(seed, vec![Fault::Quiet], |work| Work {
        poll_interval: Duration::from_millis(500),
        longest: [Duration::from_millis(300); 2],
        ..work
    })
}

fn last_come_first_served(seed: u64) -> Plan {
    Plan::order(Layout::One, seed, SPAN)
}

/// Most threads hold permits when a fault begins, and get no reply to their release.
fn release_counted_twice(seed: u64) -> Plan {
    counted(seed, Duration::from_millis(200))
}

/// Most threads are about to take permits when a fault begins, and get no reply.
fn record_ignored(seed: u64) -> Plan {
    counted(seed, Duration::from_millis(2))
}

/// Many callers for one permit, and some for more.
fn claim_ignored(seed: u64) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = Work {
        kinds: vec![Kind::Semaphore],
        locks: 3,
        used_for: LONG,
        threads: 6,
        longest: [Duration::from_millis(200); 2],
        kept_to_the_end: 0,
        limited: 0,
        large: 3,
        poll_interval: Duration::from_millis(300),
        response_timeout: Duration::from_millis(500),
        ..all.work
    };
    Plan { name: "semaphores", faults: vec![Fault::Quiet], work, ..all }
}

/// Replies to releases are cut off, and the requests are repeated.
fn permits_counted_twice(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::CutReplies], |work| Work {
        kinds: vec![Kind::Semaphore],
        locks: 1,
        threads: 3,
        large: 20,
        ..work
    });
    Plan { name: "cut replies", ..plan }
}

/// Leaders are killed, and few candidates wait for each election when its lease ends.
fn former_leader_named(seed: u64) -> Plan {
    let all = Plan::elections(Layout::One, seed, SPAN);
    let work = Work {
        threads: 8,
        locks: 200,
        used_for: LONG,
        longest: [Duration::from_secs(2); 2],
        // A record lasts for twice as long.
        leases: [Duration::from_secs(4); 2],
        ..all.work
    };
    Plan { faults: vec![Fault::KillWorker], quiet: 300..600, lasting: 100..300, work, ..all }
}

/// Leaders are stopped until their leases have ended.
fn lost_term_goes_on(seed: u64) -> Plan {
    let all = Plan::elections(Layout::One, seed, SPAN);
    let work = Work {
        threads: 6,
        locks: 12,
        used_for: LONG,
        longest: [Duration::from_secs(1); 2],
        leases: [Duration::from_secs(2); 2],
        ..all.work
    };
    Plan { faults: vec![Fault::StopWorker], quiet: 300..600, lasting: 2000..2500, work, ..all }
}

/// Leaders, readers and observers without a fault.
fn quiet_elections(seed: u64) -> Plan {
    Plan { faults: vec![Fault::Quiet], ..Plan::elections(Layout::One, seed, SPAN) }
}

/// Observers come and go.
fn brief_observers(seed: u64) -> Plan {
    let all = quiet_elections(seed);
    let work = Work { asked: 50, ..all.work };
    Plan { work, ..all }
}

/// The observed election has no leader most of the time, and no fault excuses a late message.
fn rare_terms(seed: u64) -> Plan {
    let all = quiet_elections(seed);
    let work = Work {
        locks: 100,
        used_for: LONG,
        threads: 8,
        longest: [Duration::from_millis(200); 2],
        poll_interval: Duration::from_millis(200),
        response_timeout: Duration::from_millis(400),
        ..all.work
    };
    Plan { work, ..all }
}

/// Nobody gives permits back while callers wait, and no caller polls.
fn resize_not_announced(seed: u64) -> Plan {
    let all = Plan::messages(seed, SPAN);
    let work = Work {
        kinds: vec![Kind::Semaphore],
        locks: 2,
        used_for: LONG,
        threads: 3,
        longest: [Duration::from_secs(4); 2],
        limited: 0,
        resized: 30,
        ..all.work
    };
    Plan { faults: vec![Fault::Quiet], work, ..all }
}

/// More locks are held than one page of a search has.
fn search_ends_early(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::Quiet], |work| Work {
        kinds: vec![Kind::Plain, Kind::Fenced, Kind::Rw, Kind::Spin],
        locks: 30,
        used_for: LONG,
        threads: 16,
        longest: [Duration::from_secs(1); 2],
        asked: 10,
        ..work
    });
    Plan { span: Duration::from_secs(6), ..plan }
}

/// Other names are in use every few milliseconds, for a while.
fn names_kept(seed: u64) -> Plan {
    Plan { faults: vec![Fault::Quiet], ..Plan::waits(Layout::One, seed, 5 * SPAN) }
}

/// Heartbeats bring grants whose messages come while the lock is released.
fn release_raced_by_message(seed: u64) -> Plan {
    let plan = queued(seed, vec![Fault::CutOffSubscribers], |work| Work {
        poll_interval: Duration::from_millis(200),
        leases: [LONG; 2],
        longest: [Duration::from_millis(2); 2],
        pause: Duration::from_millis(1),
        ..work
    });
    Plan { quiet: 50..100, lasting: 200..400, ..plan }
}

/// Processes are killed while their writers wait for readers.
fn dead_writers(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::KillWorker], |work| Work {
        workers: 5,
        threads: 3,
        kinds: vec![Kind::Rw],
        locks: 1,
        used_for: LONG,
        poll_interval: Duration::from_secs(1),
        ..work
    });
    Plan { quiet: 3000..5000, ..plan }
}

/// Processes want a hold that lingers for longer than the bound of a wait.
fn asked_for(seed: u64) -> Plan {
    plain(seed, vec![Fault::Quiet], |work| Work {
        threads: 1,
        locks: 1,
        leases: [Duration::from_secs(12); 2],
        lingering: 50,
        poll_interval: Duration::from_millis(500),
        ..work
    })
}

/// Workers are stopped for longer than their leases, while holds linger.
fn lease_from_take_over(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::StopWorker], |work| Work {
        workers: 4,
        threads: 1,
        locks: 4,
        used_for: LONG,
        pause: Duration::from_millis(100),
        longest: [Duration::from_millis(600); 2],
        lingering: 50,
        ..work
    });
    Plan { quiet: 300..800, lasting: 1600..2500, ..plan }
}

/// Processes on two machines wait for each other.
fn seen_from_elsewhere(seed: u64) -> Plan {
    plain(seed, vec![Fault::Quiet], |work| Work { locks: 1, mortal: true, ..work })
}

/// Processes are killed while others on the same machine wait for their locks.
fn dead_holders(seed: u64) -> Plan {
    plain(seed, vec![Fault::KillWorker], |work| Work {
        workers: 5,
        locks: 2,
        leases: [Duration::from_secs(12); 2],
        poll_interval: Duration::from_millis(500),
        mortal: true,
        ..work
    })
}

/// Clients have permits of one semaphore at the same time.
fn slots(seed: u64) -> Plan {
    plain(seed, vec![Fault::Quiet], |work| Work { kinds: vec![Kind::Semaphore], locks: 1, ..work })
}

/// Commits arrive when their hold is over and another run has begun or is done.
fn late_commits(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::LateRequests], |work| Work {
        kinds: vec![Kind::Once],
        locks: 8,
        used_for: LONG,
        leases: [Duration::from_millis(700); 2],
        ..work
    });
    Plan { lasting: 1500..2500, ..plan }
}

/// Threads give their guards away, and wait for the lock.
fn false_deadlock(seed: u64) -> Plan {
    plain(seed, vec![Fault::Quiet], |work| Work { locks: 1, ..work })
}

/// Masters become replicas while calls wait for replicas.
fn refused_wait_refuses(seed: u64) -> Plan {
    let all = Plan::everything(Layout::Cluster, seed, SPAN);
    let work = Work {
        kinds: vec![Kind::Count],
        threads: 4,
        locks: 4,
        used_for: LONG,
        longest: [Duration::from_millis(2); 2],
        min_replicas: 1,
        ..all.work
    };
    Plan { faults: vec![Fault::FailOver], quiet: 100..300, lasting: 100..300, work, ..all }
}

/// Holders and waiters of many locks have no server for a while.
fn no_pauses(seed: u64) -> Plan {
    let faults = vec![Fault::KillServers];
    plain(seed, faults, |work| Work { threads: 4, longest: [Duration::from_secs(1); 2], ..work })
}

/// Servers refuse writes long after the start of waits. No caller is behind another one of its
/// process.
fn refusal_ends_waits(seed: u64) -> Plan {
    let plan = plain(seed, vec![Fault::LackReplicas], |work| Work {
        workers: 8,
        threads: 1,
        locks: 1,
        longest: [Duration::from_secs(1); 2],
        ..work
    });
    Plan { quiet: 6000..8000, ..plan }
}

/// Returns a plan for plain semaphores whose calls get no reply at times.
///
/// A fault affects one request of each thread. Later ones wait for a new connection: the releases
/// of long holds fail unsent, and are repeated.
fn counted(seed: u64, longest: Duration) -> Plan {
    let faults = vec![Fault::LateReplies, Fault::HalfOpen];
    let plan = plain(seed, faults, |work| Work {
        kinds: vec![Kind::Count],
        response_timeout: Duration::from_millis(500),
        locks: 8,
        threads: 3,
        longest: [longest, Duration::from_secs(1)],
        ..work
    });
    Plan { name: "plain semaphores", quiet: 300..1000, lasting: 700..1200, ..plan }
}

/// Returns a plan in which all workers use the same queue lock.
fn queued(seed: u64, faults: Vec<Fault>, change: impl Fn(Work) -> Work) -> Plan {
    let all = Plan::order(Layout::One, seed, SPAN);
    let work = change(Work { threads: 3, longest: [Duration::from_millis(30); 2], ..all.work });
    Plan { name: "queue locks", faults, work, ..all }
}

/// Returns a plan for plain locks on one server.
fn plain(seed: u64, faults: Vec<Fault>, change: impl Fn(Work) -> Work) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = change(Work {
        kinds: vec![Kind::Plain],
        kept_to_the_end: 0,
        limited: 0,
        leases: [Duration::from_millis(1500); 2],
        longest: [Duration::from_millis(30), Duration::from_secs(1)],
        ..all.work
    });
    Plan { name: "plain locks", faults, work, ..all }
}

impl Control {
    /// Returns the plan. Without the seeded fault, the checks must find nothing in it.
    pub fn plan(&self, seed: u64) -> Plan {
        (self.plan)(seed)
    }
}

/// Returns a plan with a store that ignores tokens, and holders that are stopped at times.
pub fn unfenced(seed: u64) -> Plan {
    let all = Plan::everything(Layout::One, seed, SPAN);
    let work = Work {
        kinds: vec![Kind::Fenced],
        locks: 4,
        longest: [Duration::from_millis(300); 2],
        leases: [Duration::from_millis(800); 2],
        fenced: false,
        ..all.work
    };
    Plan {
        name: "unfenced",
        faults: vec![Fault::StopWorker],
        quiet: 500..1500,
        lasting: 1000..2500,
        work,
        ..all
    }
}
