//! Connections: how many there may be, and how long they wait or stay idle.

use super::Core;
use super::resp::Reply;
use super::state::{Connection, ConnectionId, State};

impl State {
    /// Returns the connections that do not end.
    pub(crate) fn clients(&self) -> impl Iterator<Item = (ConnectionId, &Connection)> {
        let all = self.connections.iter().map(|(id, connection)| (*id, connection));
        all.filter(|(_, connection)| !connection.is_closing)
    }

    /// Tells whether a connection waits for replicas or for the end of a pause.
    pub(crate) fn is_blocked(&self, id: ConnectionId) -> bool {
        self.replication.waits.contains_key(&id) || self.postponed.contains(&id)
    }

    /// Lets a request wait during a pause; returns whether there is one.
    pub(super) fn postpones(&mut self, id: ConnectionId) -> bool {
        let is_paused = self.paused_until.is_some();
        if is_paused {
            self.postponed.insert(id);
        }
        is_paused
    }

    /// Ends a pause, and the connections that were idle for too long.
    pub(super) fn end_by_clock(&mut self) {
        if self.paused_until.is_some_and(|end| end < self.now_ms()) {
            self.paused_until = None;
            self.released.extend(std::mem::take(&mut self.postponed));
        }
        if self.settings.timeout == 0 {
            return;
        }
        let idle: Vec<ConnectionId> = self
            .clients()
            .filter(|(id, it)| self.idle_end(*id, it).is_some_and(|end| end <= self.now))
            .map(|(id, _)| id)
            .collect();
        for id in idle {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.is_closing = true;
            }
        }
    }

    /// Returns when a connection that stays idle ends. Redis looks at whole seconds, and spares
    /// connections that are subscribed or wait.
    fn idle_end(&self, id: ConnectionId, connection: &Connection) -> Option<i64> {
        let timeout = i64::from(self.settings.timeout);
        let is_spared = timeout == 0 || connection.is_subscriber() || self.is_blocked(id);
        let last_used = connection.last_used.div_euclid(1_000_000);
        (!is_spared).then(|| (last_used + timeout + 1).saturating_mul(1_000_000))
    }

    fn next_deadline(&self) -> Option<i64> {
        let waits = self.replication.waits.values().filter_map(|wait| wait.until);
        let pause = self.paused_until.filter(|_| !self.postponed.is_empty());
        let pause = pause.map(|end| end.saturating_add(1).saturating_mul(1000));
        let clients = (self.settings.timeout > 0).then(|| self.clients()).into_iter().flatten();
        let idle = clients.filter_map(|(id, it)| self.idle_end(id, it));
        waits.chain(pause).chain(idle).min()
    }
}

impl Core {
    /// Opens a connection. One beyond `maxclients` gets an error and ends.
    pub fn connect(&mut self) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        let mut state = self.state.borrow_mut();
        let (is_logged_in, now) = (state.settings.password.is_empty(), state.now);
        let mut connection = Connection {
            is_logged_in,
            connected_at: now,
            last_used: now,
            last_command: "NULL".to_owned(),
            ..Connection::default()
        };
        if state.clients().count() >= state.settings.max_clients as usize {
            connection.send(&Reply::Error("ERR max number of clients reached".to_owned()));
            connection.is_closing = true;
            state.counts.rejected_connections += 1;
        } else {
            state.counts.connections += 1;
        }
        state.connections.insert(id, connection);
        id
    }

    /// Forgets a connection that has ended.
    pub fn disconnect(&mut self, id: ConnectionId) {
        let mut state = self.state.borrow_mut();
        state.connections.remove(&id);
        state.replication.waits.remove(&id);
        state.postponed.remove(&id);
    }

    /// Returns when [`Core::set_clock`] has something to do, in microseconds since 1970: a
    /// connection has waited for long enough, or was idle for too long.
    #[must_use]
    pub fn next_deadline(&self) -> Option<i64> {
        self.state.borrow().next_deadline()
    }

    /// Runs what connections have sent while they waited.
    pub(super) fn go_on(&mut self) {
        loop {
            let released = std::mem::take(&mut self.state.borrow_mut().released);
            if released.is_empty() {
                return;
            }
            for id in released {
                self.receive(id, &[]);
            }
        }
    }
}
