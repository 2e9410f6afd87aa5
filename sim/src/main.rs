mod server;

use leasehold::Client;
use server::Redis;
use simulated::net::{self, Whose};
use simulated::world::{self, Settings};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

fn one(seed: u64, traced: bool) -> world::Outcome {
    let settings = Settings { seed, preempted: 20, is_traced: traced, longest: Duration::from_secs(600) };
    world::run(settings, move || {
        let server = net::add_server("10.0.0.1:6379", Rc::new(RefCell::new(Redis::new(seed))));
        let holders = Rc::new(Cell::new(0));
        let mut handles = Vec::new();
        for process in 0..3 {
            let process = world::start_process(process * 1000 - 1000);
            for thread in 0..2 {
                let holders = Rc::clone(&holders);
                handles.push(world::spawn_in(process, &format!("caller-{thread}"), move || {
                    let client = Client::builder().single("redis://10.0.0.1:6379").build().expect("connects");
                    let lock = client.lock("a");
                    for _ in 0..20 {
                        let guard = lock.lock().expect("gets the lock");
                        holders.set(holders.get() + 1);
                        assert_eq!(holders.get(), 1);
                        simulated::thread::sleep(Duration::from_millis(5));
                        if guard.is_held() { assert_eq!(holders.get(), 1); }
                        holders.set(holders.get() - 1);
                        drop(guard);
                    }
                    client.close();
                }));
            }
        }
        for _ in 0..20 {
            simulated::thread::sleep(Duration::from_millis(50));
            net::reset(Whose::default());
        }
        for h in handles { h.join().expect("no panic"); }
        let _ = server;
    })
}

fn main() {
    let seed = std::env::args().nth(1).map_or(1, |t| t.parse().unwrap());
    let count: u64 = std::env::args().nth(2).map_or(1, |t| t.parse().unwrap());
    let start = std::time::Instant::now();
    let mut all = Duration::ZERO;
    for seed in seed..seed + count {
        let outcome = one(seed, count == 1);
        if count == 1 { for (at, text) in &outcome.trace { println!("{:>12.6} {text}", *at as f64 / 1e9); } }
        all += outcome.span;
        if outcome.stuck.is_some() || count < 5 {
            println!("{seed}: {:x} {:?} {:?} {:?}", outcome.hash, outcome.span, outcome.counts, outcome.stuck);
        }
    }
    println!("{all:?} in {:?}", start.elapsed());
}
