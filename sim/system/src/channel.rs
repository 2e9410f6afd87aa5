//! Channels, in the place of `crossbeam_channel`.

use crate::clock::{nanos, since_boot};
use crate::sync::Sleepers;
use crate::world::{maybe_give_way, park, peek_clock};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use crossbeam_channel::{
    RecvError, RecvTimeoutError, SelectTimeoutError, SendError, TryRecvError, TrySendError,
};

/// A channel. One without capacity has no place for a message that no receiver waits for.
struct Channel<T> {
    messages: Mutex<VecDeque<T>>,
    capacity: Option<usize>,
    /// The receivers that wait in a call for one message.
    receiving: AtomicUsize,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    /// Tasks that wait for a message.
    awaiting_message: Sleepers,
    /// Tasks that wait for a place, or for the end of the receivers.
    awaiting_place: Sleepers,
}

/// The sending half of a channel.
pub struct Sender<T>(Arc<Channel<T>>);

/// The receiving half of a channel.
pub struct Receiver<T>(Arc<Channel<T>>);

pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    channel(None)
}

pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    channel(Some(capacity))
}

fn channel<T>(capacity: Option<usize>) -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel {
        messages: Mutex::default(),
        capacity,
        receiving: AtomicUsize::new(0),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
        awaiting_message: Sleepers::default(),
        awaiting_place: Sleepers::default(),
    });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Channel<T> {
    fn messages(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_place(&self) -> bool {
        let count = self.messages().len();
        match self.capacity {
            None => true,
            Some(0) => count < self.receiving.load(Ordering::Relaxed),
            Some(capacity) => count < capacity,
        }
    }

    fn take(&self) -> Result<T, TryRecvError> {
        let message = self.messages().pop_front();
        match message {
            Some(message) => {
                self.awaiting_place.wake_one();
                Ok(message)
            }
            None if self.senders.load(Ordering::Relaxed) == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    fn put(&self, message: T) -> Result<(), TrySendError<T>> {
        if self.receivers.load(Ordering::Relaxed) == 0 {
            return Err(TrySendError::Disconnected(message));
        }
        if !self.has_place() {
            return Err(TrySendError::Full(message));
        }
        self.messages().push_back(message);
        self.awaiting_message.wake_one();
        Ok(())
    }
}

impl<T> Sender<T> {
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        maybe_give_way();
        let mut unsent = message;
        loop {
            match self.0.put(unsent) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(message)) => return Err(SendError(message)),
                Err(TrySendError::Full(message)) => unsent = message,
            }
            self.0.awaiting_place.join();
            park(None);
            self.0.awaiting_place.leave();
        }
    }

    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        maybe_give_way();
        self.0.put(message)
    }

    pub fn len(&self) -> usize {
        self.0.messages().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> Receiver<T> {
    pub fn recv(&self) -> Result<T, RecvError> {
        self.receive_until(u64::MAX).map_err(|_| RecvError)
    }

    pub fn recv_timeout(&self, span: Duration) -> Result<T, RecvTimeoutError> {
        self.receive_until(since_boot().saturating_add(nanos(span)))
    }

    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        maybe_give_way();
        self.0.take()
    }

    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    pub fn len(&self) -> usize {
        self.0.messages().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn receive_until(&self, end: u64) -> Result<T, RecvTimeoutError> {
        maybe_give_way();
        self.0.receiving.fetch_add(1, Ordering::Relaxed);
        if self.0.capacity == Some(0) {
            self.0.awaiting_place.wake_one();
        }
        let outcome = loop {
            match self.0.take() {
                Ok(message) => break Ok(message),
                Err(TryRecvError::Disconnected) => break Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if end <= peek_clock() => {
                    break Err(RecvTimeoutError::Timeout);
                }
                Err(TryRecvError::Empty) => {}
            }
            self.0.awaiting_message.join();
            park(Some(end));
            self.0.awaiting_message.leave();
        };
        self.0.receiving.fetch_sub(1, Ordering::Relaxed);
        outcome
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.awaiting_message.wake_all();
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Receiver<T> {
        self.0.receivers.fetch_add(1, Ordering::Relaxed);
        Receiver(Arc::clone(&self.0))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.0.receivers.fetch_sub(1, Ordering::Relaxed) == 1 {
            let left = std::mem::take(&mut *self.0.messages());
            self.0.awaiting_place.wake_all();
            drop(left);
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

/// The messages of a receiver, until all senders are gone.
#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

/// A half of a channel, as something that becomes ready.
trait Half {
    fn is_ready(&self) -> bool;
    /// Returns the tasks that sleep until the half is ready.
    fn sleepers(&self) -> &Sleepers;
}

impl<T> Half for Sender<T> {
    fn is_ready(&self) -> bool {
        self.0.receivers.load(Ordering::Relaxed) == 0 || self.0.has_place()
    }

    fn sleepers(&self) -> &Sleepers {
        &self.0.awaiting_place
    }
}

impl<T> Half for Receiver<T> {
    fn is_ready(&self) -> bool {
        self.0.senders.load(Ordering::Relaxed) == 0 || !self.is_empty()
    }

    fn sleepers(&self) -> &Sleepers {
        &self.0.awaiting_message
    }
}

/// Waits for the first of several channels that is ready.
#[derive(Default)]
pub struct Select<'a>(Vec<&'a dyn Half>);

/// A channel that is ready, by its position.
#[derive(Debug)]
pub struct SelectedOperation(usize);

impl<'a> Select<'a> {
    pub fn new() -> Select<'a> {
        Select::default()
    }

    pub fn send<T>(&mut self, sender: &'a Sender<T>) {
        self.0.push(sender);
    }

    pub fn recv<T>(&mut self, receiver: &'a Receiver<T>) {
        self.0.push(receiver);
    }

    pub fn select_timeout(
        &mut self,
        span: Duration,
    ) -> Result<SelectedOperation, SelectTimeoutError> {
        maybe_give_way();
        let end = since_boot().saturating_add(nanos(span));
        loop {
            if let Some(at) = self.0.iter().position(|half| half.is_ready()) {
                return Ok(SelectedOperation(at));
            }
            if end <= peek_clock() {
                return Err(SelectTimeoutError);
            }
            self.0.iter().for_each(|half| half.sleepers().join());
            park(Some(end));
            self.0.iter().for_each(|half| half.sleepers().leave());
        }
    }
}

impl fmt::Debug for Select<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Select").finish_non_exhaustive()
    }
}

impl SelectedOperation {
    pub fn index(&self) -> usize {
        self.0
    }

    pub fn send<T>(self, sender: &Sender<T>, message: T) -> Result<(), SendError<T>> {
        sender.0.put(message).map_err(|unsent| SendError(unsent.into_inner()))
    }

    pub fn recv<T>(self, receiver: &Receiver<T>) -> Result<T, RecvError> {
        receiver.0.take().map_err(|_| RecvError)
    }
}
