//! A sentinel that knows what its owner tells it.
//!
//! It watches nothing and decides nothing: [`Core::set_master`] is the end of a fail-over.

use super::Core;
use super::replication::{Address, Message};
use super::state::{Mode, State};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What a sentinel knows of one master.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) address: Address,
    /// The number of the fail-over that made it the master.
    pub(crate) epoch: u64,
    pub(crate) replicas: Vec<Address>,
    /// The other sentinels.
    pub(crate) sentinels: Vec<Address>,
}

/// The masters of a sentinel, by name.
pub(crate) type WatchedMasters = BTreeMap<String, Watched>;

/// Sentinels.
impl Core {
    /// Creates a sentinel, which knows no master. Its clock stands at 1970.
    #[must_use]
    pub fn new_sentinel(seed: u64) -> Self {
        let mut state = State::new(seed);
        state.mode = Mode::Sentinel(WatchedMasters::new());
        Self::with(RefCell::new(state).into())
    }

    /// Tells a sentinel the address of a master, and the number of the fail-over since which it is
    /// the master.
    ///
    /// If the master has changed, publishes `+switch-master`, and the former master takes the place
    /// of the new one among the replicas. Nothing happens at a server that is no sentinel.
    pub fn set_master(&mut self, name: &str, address: Address, epoch: u64) {
        let mut state = self.state.borrow_mut();
        let Mode::Sentinel(masters) = &mut state.mode else { return };
        let Some(watched) = masters.get_mut(name) else {
            let (replicas, sentinels) = (Vec::new(), Vec::new());
            masters.insert(name.to_owned(), Watched { address, epoch, replicas, sentinels });
            return;
        };
        watched.epoch = epoch;
        if watched.address == address {
            return;
        }
        let former = std::mem::replace(&mut watched.address, address.clone());
        let text =
            format!("{name} {} {} {} {}", former.host, former.port, address.host, address.port);
        if let Some(place) = watched.replicas.iter_mut().find(|replica| **replica == address) {
            *place = former;
        }
        let (channel, text) = (b"+switch-master".to_vec(), text.into_bytes());
        state.deliver(&Message { channel, text, is_sharded: false });
    }

    /// Tells a sentinel the replicas of a master that it knows, and the other sentinels.
    pub fn set_companions(&mut self, name: &str, replicas: &[Address], sentinels: &[Address]) {
        if let Mode::Sentinel(masters) = &mut self.state.borrow_mut().mode
            && let Some(watched) = masters.get_mut(name)
        {
            watched.replicas = replicas.to_vec();
            watched.sentinels = sentinels.to_vec();
        }
    }
}
