//! [`Handoffs`]: the hand-offs of one lock, told by its last sightings.
//!
//! A look sees one moment. The clients of the holders count their holds, so two sightings of a
//! client tell how many holds it had in between. The rate of a lock is the sum over all clients
//! that were seen recently. If one of them was seen only once, or does not count, the rate is a
//! lower bound: what the other clients count, or the changes that the looks saw.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::sight::Sight;
use crate::observe::snapshot::Caller;

/// The time over which changes of the holder are counted.
const WINDOW: Duration = Duration::from_secs(10);

/// The time for which a client counts after its last sighting as the holder.
///
/// Many clients share a contended lock, and a look sees one of them.
const CLIENT_KEPT: Duration = Duration::from_secs(20);

/// The number of hand-offs per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Rate {
    Counted(f64),
    /// A lower bound: hand-offs between two looks may be unseen.
    AtLeast(f64),
}

impl Rate {
    pub(crate) fn per_second(self) -> f64 {
        match self {
            Rate::Counted(rate) | Rate::AtLeast(rate) => rate,
        }
    }
}

/// The last sightings of one lock, as far as hand-offs can be told from them.
#[derive(Debug, Default)]
pub(crate) struct Handoffs {
    /// The numbers of holds of each client that has held the lock recently.
    clients: BTreeMap<String, Counts>,
    /// The last sightings of holders whose clients have never told their numbers of holds.
    uncounted: BTreeMap<Option<String>, Instant>,
    /// The hand-offs that were certainly seen, added up.
    seen: Counts,
    /// The owners at the last sighting with holders.
    owners: Vec<String>,
    token: Option<u64>,
}

/// A counter at a few moments, the oldest first.
#[derive(Debug, Default)]
struct Counts(VecDeque<(Instant, u64)>);

impl Handoffs {
    /// Adds a sighting.
    pub(crate) fn add(&mut self, at: Instant, sight: &Sight) {
        let counts = counts(&sight.lock.holders);
        let steps = self.certain_steps(sight, &counts);
        let total = self.seen.last().map_or(0, |last| last + steps);
        self.seen.add(at, total, WINDOW);
        self.add_clients(at, sight, counts);
        if !sight.lock.holders.is_empty() {
            self.owners = sight.lock.holders.iter().map(|holder| holder.owner.clone()).collect();
        }
        self.token = sight.token.or(self.token);
    }

    /// Returns the hand-offs per second; `None` before the second sighting.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let counted = self.clients.values().map(Counts::per_second);
        let all_counted = counted.clone().all(|rate| rate.is_some());
        let sum: f64 = counted.flatten().sum();
        let seen = self.seen.per_second()?;
        if self.uncounted.is_empty() && !self.clients.is_empty() && all_counted {
            Some(Rate::Counted(sum))
        } else {
            Some(Rate::AtLeast(sum.max(seen)))
        }
    }

    /// Returns the number of hand-offs since the sightings before that this sighting proves.
    fn certain_steps(&self, sight: &Sight, counts: &BTreeMap<&String, u64>) -> u64 {
        let before = |client: &String| self.clients.get(client).and_then(Counts::last);
        let is_counted = |holder: &Caller| {
            let client = holder.client_id.as_ref().filter(|client| counts.contains_key(client));
            client.is_some_and(|client| before(client).is_some())
        };
        let is_new = |holder: &&Caller| !self.owners.contains(&holder.owner) && !is_counted(holder);
        let changes = sight.lock.holders.iter().filter(is_new).count() as u64;
        let step = |(client, now): (&&String, &u64)| Some(now.saturating_sub(before(client)?));
        let steps = changes + counts.iter().filter_map(step).sum::<u64>();
        // Tokens follow the clock: another one proves one grant, however large the difference.
        let has_granted = sight.token.zip(self.token).is_some_and(|(now, then)| now != then);
        steps.max(u64::from(has_granted))
    }

    fn add_clients(&mut self, at: Instant, sight: &Sight, counts: BTreeMap<&String, u64>) {
        for (client, count) in counts {
            self.clients.entry(client.clone()).or_default().add(at, count, CLIENT_KEPT);
        }
        let is_recent = |then: Instant| then + CLIENT_KEPT >= at;
        let newest = |counts: &Counts| counts.0.back().map(|(then, _)| *then);
        self.clients.retain(|_, counts| newest(counts).is_some_and(is_recent));
        for holder in &sight.lock.holders {
            self.uncounted.insert(holder.client_id.clone(), at);
        }
        // A client counts from its first answer on, and may miss later answers.
        let counts = |client: &String| self.clients.contains_key(client);
        self.uncounted
            .retain(|client, then| !client.as_ref().is_some_and(counts) && is_recent(*then));
    }
}

impl Counts {
    /// Adds a count; forgets all counts if the counter began anew, and those before the window.
    ///
    /// The last count before the window stays, so that rare sightings have a difference.
    fn add(&mut self, at: Instant, count: u64, window: Duration) {
        if self.last().is_some_and(|last| count < last) {
            self.0.clear();
        }
        self.0.push_back((at, count));
        while self.0.len() > 2 && self.0[1].0 + window <= at {
            self.0.pop_front();
        }
    }

    fn last(&self) -> Option<u64> {
        self.0.back().map(|(_, count)| *count)
    }

    /// Returns the steps per second; `None` for a single count.
    fn per_second(&self) -> Option<f64> {
        let ((begin, first), (end, last)) = (self.0.front()?, self.0.back()?);
        let span = (*end - *begin).as_secs_f64();
        (span > 0.0).then(|| (last - first) as f64 / span)
    }
}

/// Returns the number of holds that each client of a holder has had.
fn counts(holders: &[Caller]) -> BTreeMap<&String, u64> {
    let mut counts = BTreeMap::new();
    for holder in holders {
        if let (Some(client), Some(acquired)) = (&holder.client_id, holder.acquired) {
            let most = counts.entry(client).or_insert(acquired);
            *most = acquired.max(*most);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(client: &str, hold: u32, acquired: Option<u64>) -> Caller {
        let owner = format!("{client}:{hold}");
        Caller { owner, client_id: Some(client.to_owned()), acquired, ..Caller::default() }
    }

    fn held(client: &str, hold: u32, acquired: Option<u64>) -> Sight {
        let mut sight = Sight::free("a");
        sight.lock.holders = vec![holder(client, hold, acquired)];
        sight
    }

    /// Returns the history of sightings that are a second apart.
    fn history(sights: impl IntoIterator<Item = Sight>) -> Handoffs {
        let (mut history, begin) = (Handoffs::default(), Instant::now());
        for (second, sight) in sights.into_iter().enumerate() {
            history.add(begin + Duration::from_secs(second as u64), &sight);
        }
        history
    }

    fn rate(sights: impl IntoIterator<Item = (&'static str, u64)>) -> Option<Rate> {
        let held = |(client, acquired)| held(client, 1, Some(acquired));
        history(sights.into_iter().map(held)).rate()
    }

    #[test]
    fn one_sighting_has_no_rate() {
        assert_eq!(rate([("x", 3)]), None);
        assert_eq!(history([Sight::free("a")]).rate(), None);
    }

    #[test]
    fn the_holds_of_all_recent_clients_add_up() {
        let sights = [("x", 10), ("y", 70), ("x", 14), ("y", 90)];
        assert_eq!(rate(sights), Some(Rate::Counted(2.0 + 10.0)));
        assert_eq!(rate([("x", 3); 3]), Some(Rate::Counted(0.0)), "one long hold");
    }

    #[test]
    fn a_client_that_was_seen_once_makes_the_rate_a_lower_bound() {
        // Seen in two seconds: the first hold of y, and four more; y alone counts four a second.
        let sights = [("x", 10), ("y", 70), ("y", 74)];
        assert_eq!(rate(sights), Some(Rate::AtLeast(4.0)));
        let gone = (0..22).map(|second| ("y", 70 + 2 * second));
        let gone = [("x", 10)].into_iter().chain(gone);
        assert_eq!(rate(gone), Some(Rate::Counted(2.0)), "x is forgotten");
    }

    #[test]
    fn a_counter_that_begins_anew_has_no_rate_before_its_second_count() {
        assert_eq!(rate([("x", 90), ("x", 1)]), Some(Rate::AtLeast(0.0)));
        assert_eq!(rate([("x", 90), ("x", 1), ("x", 3)]), Some(Rate::Counted(2.0)));
    }

    #[test]
    fn changes_of_an_uncounted_holder_are_a_lower_bound() {
        let sights = [1, 2, 2, 3].map(|hold| held("x", hold, None));
        assert_eq!(history(sights).rate(), Some(Rate::AtLeast(2.0 / 3.0)));
        let between = [held("x", 1, None), Sight::free("a"), held("x", 1, None)];
        assert_eq!(history(between).rate(), Some(Rate::AtLeast(0.0)), "one hold, once unseen");
        let late = [held("x", 1, None), held("x", 1, Some(4)), held("x", 1, Some(6))];
        assert_eq!(history(late).rate(), Some(Rate::Counted(2.0)), "its first answer was late");
        let mixed = [held("x", 1, Some(4)), held("java", 1, None), held("x", 2, Some(6))];
        assert_eq!(history(mixed).rate(), Some(Rate::AtLeast(1.5)));
    }

    #[test]
    fn another_token_proves_one_hand_off() {
        let free = |token| Sight { token: Some(token), ..Sight::free("a") };
        assert_eq!(history([7, 7, 1_700_000].map(free)).rate(), Some(Rate::AtLeast(0.5)));
    }

    #[test]
    fn readers_of_one_client_count_once() {
        let readers = |acquired| {
            let mut sight = held("x", 1, Some(acquired));
            sight.lock.holders.push(holder("x", 2, Some(acquired)));
            sight
        };
        assert_eq!(history([4, 6].map(readers)).rate(), Some(Rate::Counted(2.0)));
    }

    #[test]
    fn rare_sightings_have_a_rate() {
        let (mut seen, begin) = (Handoffs::default(), Instant::now());
        for minute in 0..3 {
            let sight = held("x", 1, Some(600 * minute));
            seen.add(begin + Duration::from_secs(60 * minute), &sight);
        }
        assert_eq!(seen.rate(), Some(Rate::Counted(10.0)));
    }
}
