//! The queue in front of one lock, inside one process.
//!
//! Callers of one process that want the same lock stand in line here, and only
//! the first in line, the *front*, talks to Redis. The line is first come, first
//! served. A caller that comes alone becomes the front without an allocation.

use std::collections::BTreeMap;

/// A place in the line of one gate, never used twice by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// The line. `W` is what the gate keeps for each caller.
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
    /// Joins the end of the line.
    pub(crate) fn enter(&mut self, caller: W) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        match self.head {
            None => self.head = Some((ticket, caller)),
            Some(_) => drop(self.behind.insert(ticket, caller)),
        }
        ticket
    }

    /// Leaves the line, from wherever in it. The next in line moves up when the
    /// front leaves; see [`front`](Gate::front) for whom to tell. `None` if it had
    /// left before.
    pub(crate) fn leave(&mut self, ticket: Ticket) -> Option<W> {
        match self.is_head(ticket) {
            true => self.pop(),
            false => self.behind.remove(&ticket),
        }
    }

    /// Takes the front out of the line.
    pub(crate) fn pop(&mut self) -> Option<W> {
        let next = self.behind.pop_first();
        std::mem::replace(&mut self.head, next).map(|(_, caller)| caller)
    }

    /// The first in line.
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
        fn behaves_like_a_list(steps in prop::collection::vec(step(), 0..80)) {
            let mut queue = WaitQueue::default();
            let mut line: Vec<(Ticket, usize)> = Vec::new();
            let mut all = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Enter => {
                        let ticket = queue.enter(number);
                        line.push((ticket, number));
                        all.push(ticket);
                    }
                    Step::Leave(which) if which < all.len() => {
                        let ticket = all[which];
                        let at = line.iter().position(|(t, _)| *t == ticket);
                        prop_assert_eq!(queue.leave(ticket), at.map(|at| line.remove(at).1));
                    }
                    Step::Leave(_) => {}
                    Step::Pop => {
                        let first = (!line.is_empty()).then(|| line.remove(0).1);
                        prop_assert_eq!(queue.pop(), first);
                    }
                }
                prop_assert_eq!(queue.head().map(|(t, n)| (t, *n)), line.first().copied());
                prop_assert_eq!((queue.is_empty(), queue.len()), (line.is_empty(), line.len()));
                prop_assert!(line.iter().skip(1).all(|(t, _)| !queue.is_head(*t)));
            }
        }
    }
}
