//! The queue for one lock inside one process.
//!
//! Callers of one process that want the same lock stand in this queue, first come, first served.
//! Only the *head* of the queue talks to Redis. A single caller becomes the head without an
//! allocation.

use std::collections::BTreeMap;

/// A place in one queue, never used twice by that queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// A first-come, first-served queue; `W` is the entry of one caller.
#[derive(Debug)]
pub(crate) struct WaitQueue<W> {
    next: u64,
    head: Option<(Ticket, W)>,
    behind: BTreeMap<Ticket, W>,
}

impl<W> Default for WaitQueue<W> {
    fn default() -> WaitQueue<W> {
        WaitQueue { next: 0, head: None, behind: BTreeMap::new() }
    }
}

impl<W> WaitQueue<W> {
    /// Appends a caller.
    pub(crate) fn enter(&mut self, caller: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        match self.head {
            None => self.head = Some((ticket, caller)),
            Some(_) => drop(self.behind.insert(ticket, caller)),
        }
        ticket
    }

    /// Removes a caller from any place; `None` if it left before. If the head leaves, the next
    /// caller becomes the [`head`](WaitQueue::head), and has to be woken.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<W> {
        if self.is_head(ticket) { self.pop() } else { self.behind.remove(&ticket) }
    }

    /// Removes and returns the head of the queue.
    pub(crate) fn pop(&mut self) -> Option<W> {
        let next = self.behind.pop_first();
        std::mem::replace(&mut self.head, next).map(|(_, caller)| caller)
    }

    /// Returns the head of the queue.
    pub(crate) fn head(&self) -> Option<(Ticket, &W)> {
        self.head.as_ref().map(|(ticket, caller)| (*ticket, caller))
    }

    pub(crate) fn is_head(&self, ticket: Ticket) -> bool {
        self.head().is_some_and(|(head, _)| head == ticket)
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.head.is_some()) + self.behind.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Enter,
        Leave(usize),
        Pop,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![Just(Step::Enter), (0_usize..12).prop_map(Step::Leave), Just(Step::Pop),]
    }

    proptest! {
        #[test]
        fn a_queue_behaves_like_a_list(steps in prop::collection::vec(step(), 0..80)) {
            let mut queue = WaitQueue::default();
            let mut list: Vec<(Ticket, usize)> = Vec::new();
            let mut all = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter => {
                        let ticket = queue.enter(number);
                        list.push((ticket, number));
                        all.push(ticket);
                    }
                    Step::Leave(index) if index < all.len() => {
                        let ticket = all[index];
                        let at = list.iter().position(|(t, _)| *t == ticket);
                        prop_assert_eq!(queue.leave(ticket), at.map(|at| list.remove(at).1));
                    }
                    Step::Leave(_) => {}
                    Step::Pop => {
                        let first = (!list.is_empty()).then(|| list.remove(0).1);
                        prop_assert_eq!(queue.pop(), first);
                    }
                }
                prop_assert_eq!(queue.head().map(|(t, n)| (t, *n)), list.first().copied());
                prop_assert_eq!((queue.is_empty(), queue.len()), (list.is_empty(), list.len()));
                prop_assert!(list.iter().skip(1).all(|(t, _)| !queue.is_head(*t)));
            }
        }
    }
}
