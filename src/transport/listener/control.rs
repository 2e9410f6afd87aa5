//! The control channels of the connected listeners.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::transport::call::Call;
use crate::util::sync::Mutex;

/// The control channel of one connection of a listener.
#[derive(Debug)]
pub(crate) struct Control {
    /// The node of the listener; `None` for the listener without one.
    node: Option<u32>,
    name: Arc<str>,
    /// Whether the channel is a shard channel.
    is_sharded: bool,
    /// Whether no caller of this process needs the connection. It then gets few heartbeats.
    is_quiet: AtomicBool,
}

impl Control {
    pub(super) fn new(node: Option<u32>, name: Arc<str>, is_sharded: bool) -> Control {
        Control { node, name, is_sharded, is_quiet: AtomicBool::new(false) }
    }

    pub(super) fn node(&self) -> Option<u32> {
        self.node
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet.load(Ordering::Relaxed)
    }

    pub(super) fn set_quiet(&self, is_quiet: bool) {
        self.is_quiet.store(is_quiet, Ordering::Relaxed);
    }

    /// Returns the command that publishes `payload` on the control channel. A node publishes to its
    /// own listeners.
    fn publish(&self, payload: &str) -> Call {
        let (name, payload) = (self.name.as_bytes(), payload.as_bytes());
        let verb: &[u8] = if self.is_sharded { b"SPUBLISH" } else { b"PUBLISH" };
        match self.node {
            Some(_) => Call::on_key(verb, name, &[payload]),
            None => Call::command(&[verb, name, payload]),
        }
    }

    fn heartbeat(&self) -> Call {
        self.publish("")
    }
}

/// The state of a listener that a caller needs.
#[derive(Debug)]
pub(super) enum Rousing {
    NotConnected,
    /// The listener has to get this message, which makes it look for waiting callers.
    WasQuiet(Call),
    Active,
}

/// The control channels of all connected listeners of a client, by node.
#[derive(Debug, Default)]
pub(super) struct Controls(Mutex<BTreeMap<Option<u32>, Arc<Control>>>);

impl Controls {
    pub(super) fn insert(&self, control: &Arc<Control>) {
        self.0.lock().insert(control.node, Arc::clone(control));
    }

    /// Removes a control channel, unless the next connection has stored its own already.
    pub(super) fn remove(&self, control: &Arc<Control>) {
        let mut controls = self.0.lock();
        if controls.get(&control.node).is_some_and(|current| Arc::ptr_eq(current, control)) {
            controls.remove(&control.node);
        }
    }

    /// Ends the quiet time of a listener, because a caller needs its connection.
    pub(super) fn rouse(&self, node: Option<u32>) -> Rousing {
        match self.0.lock().get(&node) {
            None => Rousing::NotConnected,
            Some(control) if control.is_quiet.swap(false, Ordering::Relaxed) => {
                Rousing::WasQuiet(control.heartbeat())
            }
            Some(_) => Rousing::Active,
        }
    }

    /// Returns a command that sends `payload` to a listener, or `None` if it is not connected.
    pub(super) fn message(&self, node: Option<u32>, payload: &str) -> Option<Call> {
        Some(self.0.lock().get(&node)?.publish(payload))
    }

    /// Returns commands that send a heartbeat to each listener that callers need.
    pub(super) fn heartbeats(&self) -> Vec<Call> {
        let controls = self.0.lock();
        let needed = controls.values().filter(|control| !control.is_quiet());
        needed.map(|control| control.heartbeat()).collect()
    }

    /// Returns commands that send a heartbeat to each quiet listener.
    pub(super) fn quiet_heartbeats(&self) -> Vec<Call> {
        let controls = self.0.lock();
        let quiet = controls.values().filter(|control| control.is_quiet());
        quiet.map(|control| control.heartbeat()).collect()
    }

    /// Returns whether callers need any of the listeners.
    pub(super) fn any_needed(&self) -> bool {
        self.0.lock().values().any(|control| !control.is_quiet())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(node: Option<u32>) -> Arc<Control> {
        Arc::new(Control::new(node, "wake".into(), false))
    }

    #[test]
    fn a_quiet_listener_has_its_own_heartbeats_until_a_caller_needs_it() {
        let (controls, single) = (Controls::default(), control(None));
        let is_connected = |node| !matches!(controls.rouse(node), Rousing::NotConnected);
        assert!(!is_connected(None) && !controls.any_needed());
        controls.insert(&single);
        let counts = || (controls.heartbeats().len(), controls.quiet_heartbeats().len());
        assert_eq!((controls.any_needed(), counts()), (true, (1, 0)));
        single.set_quiet(true);
        assert_eq!((controls.any_needed(), counts()), (false, (0, 1)));
        assert!(controls.message(None, "c").is_some(), "it is connected");
        assert!(matches!(controls.rouse(None), Rousing::WasQuiet(_)) && controls.any_needed());
        assert!(matches!(controls.rouse(None), Rousing::Active));
    }

    #[test]
    fn the_end_of_a_connection_leaves_the_next_one() {
        let (controls, first, second) = (Controls::default(), control(Some(1)), control(Some(1)));
        controls.insert(&first);
        controls.insert(&second);
        controls.remove(&first);
        assert!(matches!(controls.rouse(Some(1)), Rousing::Active));
        controls.remove(&second);
        assert!(matches!(controls.rouse(Some(1)), Rousing::NotConnected));
    }
}
