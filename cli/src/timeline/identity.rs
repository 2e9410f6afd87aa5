//! [`Directory`]: the process and the thread behind each event.

use std::collections::HashMap;

use crate::observe::event::LockEvent;

/// The known facts about the process and the thread of a holder or waiting caller.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Identity {
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) program: Option<String>,
    pub(crate) label: Option<String>,
    pub(crate) thread: Option<String>,
    pub(crate) thread_number: Option<u64>,
    pub(crate) client: Option<String>,
}

/// The value that tells processes apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ProcessKey {
    Process(Option<String>, u32),
    Client(String),
    Unknown,
}

impl Identity {
    fn of(event: &LockEvent) -> Identity {
        let owner = event.owner.as_deref();
        Identity {
            host: event.host.clone(),
            pid: event.pid,
            program: event.program.clone(),
            label: event.label.clone(),
            thread: event.thread.clone(),
            thread_number: event.thread_number,
            client: event.client_id.as_deref().or(owner.and_then(client)).map(str::to_owned),
        }
    }

    /// Adds facts about the same process.
    pub(crate) fn add_process(&mut self, other: &Identity) {
        fill(&mut self.client, &other.client);
        fill(&mut self.host, &other.host);
        fill(&mut self.pid, &other.pid);
        fill(&mut self.program, &other.program);
        fill(&mut self.label, &other.label);
    }

    /// Adds facts about the same owner. A known thread stays: a hold can pass to another one.
    pub(crate) fn add(&mut self, other: &Identity) {
        self.add_process(other);
        if (&self.thread, self.thread_number) == (&None, None) {
            self.thread.clone_from(&other.thread);
            self.thread_number = other.thread_number;
        }
    }

    pub(crate) fn key(&self) -> ProcessKey {
        match (self.pid, &self.client) {
            (Some(pid), _) => ProcessKey::Process(self.host.clone(), pid),
            (None, Some(client)) => ProcessKey::Client(client.clone()),
            (None, None) => ProcessKey::Unknown,
        }
    }
}

/// All facts of all events, by owner and by client.
///
/// An event may lack facts that another event of its owner has, so these are read first.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    owners: HashMap<String, Identity>,
    clients: HashMap<String, Identity>,
}

impl Directory {
    pub(crate) fn of(events: &[&LockEvent]) -> Directory {
        let mut directory = Directory::default();
        for event in events {
            let identity = Identity::of(event);
            if let Some(client) = &identity.client {
                directory.clients.entry(client.clone()).or_default().add_process(&identity);
            }
            if let Some(owner) = &event.owner {
                directory.owners.entry(owner.clone()).or_default().add(&identity);
            }
        }
        directory
    }

    /// Returns the facts about the owner of an event.
    pub(crate) fn identity(&self, event: &LockEvent) -> Identity {
        let mut identity = Identity::of(event);
        if let Some(known) = event.owner.as_ref().and_then(|owner| self.owners.get(owner)) {
            identity.add(known);
        }
        if let Some(known) = identity.client.as_ref().and_then(|it| self.clients.get(it)) {
            identity.add_process(known);
        }
        identity
    }
}

/// Returns the client's part of an owner, for events without its id: all before the last colon.
fn client(owner: &str) -> Option<&str> {
    owner.rsplit_once(':').map(|(client, _)| client)
}

fn fill<T: Clone>(fact: &mut Option<T>, other: &Option<T>) {
    if fact.is_none() {
        fact.clone_from(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(owner: &str, pid: Option<u32>, thread: Option<&str>) -> LockEvent {
        let (owner, thread) = (Some(owner.to_owned()), thread.map(str::to_owned));
        LockEvent { owner, pid, thread, ..LockEvent::default() }
    }

    #[test]
    fn an_event_has_the_facts_of_its_owner_and_the_process_of_its_client() {
        let bare = event("c:1", None, None);
        let sibling = event("c:2", None, None);
        let stranger = event("d:1", None, None);
        let directory = Directory::of(&[&bare, &event("c:1", Some(7), Some("main"))]);
        let found = directory.identity(&bare);
        assert_eq!((found.pid, found.thread.as_deref()), (Some(7), Some("main")));
        let found = directory.identity(&sibling);
        assert_eq!((found.pid, found.thread), (Some(7), None));
        assert_eq!(directory.identity(&stranger).key(), ProcessKey::Client("d".into()));
    }

    #[test]
    fn a_process_is_known_by_its_id_on_its_host_else_by_its_client() {
        let key = |owner: &str, pid| Directory::default().identity(&event(owner, pid, None)).key();
        assert_eq!(key("c:1", Some(7)), key("d:9", Some(7)));
        assert_eq!(key("c:1", None), key("c:2", None));
        assert_ne!(key("c:1", None), key("d:1", None));
        assert_eq!(key("owner", None), ProcessKey::Unknown);
    }
}
