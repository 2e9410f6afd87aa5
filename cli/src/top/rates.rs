//! [`History`]: the hand-offs of one lock, told by its last sightings.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::sight::{Caller, Sight};

/// The time that a token counter and the changes of the holder are compared over.
const WINDOW: Duration = Duration::from_secs(6);

/// The time for which a client counts after its last sighting as the holder.
const CLIENT_KEPT: Duration = Duration::from_secs(12);

/// The largest plausible step of a counter per second. A new counter begins at the clock's time.
const PLAUSIBLE: f64 = 1e6;

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
pub(crate) struct History {
    tokens: Counts,
    /// The numbers of holds of each client that has held the lock recently.
    clients: BTreeMap<String, Counts>,
    /// The last sighting of a holder whose client does not tell its number of holds.
    uncounted: Option<Instant>,
    /// The hand-offs that were certainly seen, added up.
    seen: Counts,
    /// The owners at the last sighting with holders.
    owners: Vec<String>,
}

/// A counter at a few moments, the oldest first.
#[derive(Debug, Default)]
struct Counts(VecDeque<(Instant, u64)>);

impl History {
    /// Adds a sighting.
    pub(crate) fn add(&mut self, at: Instant, sight: &Sight) {
        match sight.token {
            Some(token) => self.tokens.add(at, token, WINDOW),
            None => self.tokens.0.clear(),
        }
        let counts = counts(sight);
        let steps = self.certain_steps(sight, &counts);
        let total = self.seen.last().map_or(0, |last| last + steps);
        self.seen.add(at, total, WINDOW);
        self.add_clients(at, sight, counts);
        if !sight.holders.is_empty() {
            self.owners = sight.holders.iter().map(|holder| holder.owner.clone()).collect();
        }
    }

    /// Returns the hand-offs per second; `None` before the second sighting.
    pub(crate) fn rate(&self) -> Option<Rate> {
        let tokens = self.tokens.per_second().map(Rate::Counted);
        tokens.or_else(|| self.of_clients()).or_else(|| self.seen.per_second().map(Rate::AtLeast))
    }

    /// Returns the number of hand-offs since the sightings before that this sighting proves.
    fn certain_steps(&self, sight: &Sight, counts: &BTreeMap<&String, u64>) -> u64 {
        let is_new = |holder: &&Caller| !self.owners.contains(&holder.owner);
        let before = |client: &String| self.clients.get(client).and_then(Counts::last);
        let is_known = |holder: &&Caller| {
            let client = holder.client.as_ref().filter(|client| counts.contains_key(client));
            client.is_some_and(|client| before(client).is_some())
        };
        let changes = sight.holders.iter().filter(|holder| is_new(holder) && !is_known(holder));
        let step = |(client, now): (&&String, &u64)| Some(now.saturating_sub(before(client)?));
        changes.count() as u64 + counts.iter().filter_map(step).sum::<u64>()
    }

    fn add_clients(&mut self, at: Instant, sight: &Sight, counts: BTreeMap<&String, u64>) {
        for (client, count) in counts {
            self.clients.entry(client.clone()).or_default().add(at, count, CLIENT_KEPT);
        }
        let is_recent = |then: Instant| then + CLIENT_KEPT >= at;
        let newest = |counts: &Counts| counts.0.back().map(|(then, _)| *then);
        self.clients.retain(|_, counts| newest(counts).is_some_and(is_recent));
        if sight.holders.iter().any(|holder| holder.acquired.is_none()) {
            self.uncounted = Some(at);
        }
        self.uncounted = self.uncounted.filter(|then| is_recent(*then));
    }

    /// Returns the sum over the clients, if each was seen twice.
    fn of_clients(&self) -> Option<Rate> {
        if self.clients.is_empty() || self.uncounted.is_some() {
            return None;
        }
        let sum = self.clients.values().map(Counts::per_second).sum::<Option<f64>>();
        sum.map(Rate::Counted)
    }
}

impl Counts {
    /// Adds a count; forgets all counts after an implausible step, and those before the window.
    ///
    /// The last count before the window stays, so that rare sightings have a difference.
    fn add(&mut self, at: Instant, count: u64, window: Duration) {
        if let Some(&(before, last)) = self.0.back() {
            let limit = PLAUSIBLE * (at - before).as_secs_f64().max(1.0);
            if count < last || (count - last) as f64 > limit {
                self.0.clear();
            }
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
fn counts(sight: &Sight) -> BTreeMap<&String, u64> {
    let mut counts = BTreeMap::new();
    for holder in &sight.holders {
        if let (Some(client), Some(acquired)) = (&holder.client, holder.acquired) {
            let most = counts.entry(client).or_insert(acquired);
            *most = acquired.max(*most);
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(client: &str, hold: u32, acquired: Option<u64>) -> Sight {
        let owner = format!("{client}:{hold}");
        let client = Some(client.to_owned());
        let holder = Caller { owner, client, acquired, ..Caller::default() };
        Sight { holders: vec![holder], ..Sight::free("a", "lock") }
    }

    /// Returns the history of sightings that are a second apart.
    fn history(sights: impl IntoIterator<Item = Sight>) -> History {
        let (mut history, begin) = (History::default(), Instant::now());
        for (second, sight) in sights.into_iter().enumerate() {
            history.add(begin + Duration::from_secs(second as u64), &sight);
        }
        history
    }

    fn token(token: u64) -> Sight {
        Sight { token: Some(token), ..held("x", 1, None) }
    }

    #[test]
    fn one_sighting_has_no_rate() {
        assert_eq!(history([token(5)]).rate(), None);
        assert_eq!(history([held("x", 1, Some(3))]).rate(), None);
    }

    #[test]
    fn tokens_count_hand_offs() {
        assert_eq!(history([5, 5, 9].map(token)).rate(), Some(Rate::Counted(2.0)));
        let stopped = [0, 100].into_iter().chain([100; 8]);
        assert_eq!(history(stopped.map(token)).rate(), Some(Rate::Counted(0.0)), "out of the window");
    }

    #[test]
    fn a_counter_that_starts_anew_is_no_rate() {
        for again in [3, 1_700_000_000_000_000] {
            let mut seen = history([5, 9, again].map(token));
            assert_eq!(seen.rate(), Some(Rate::AtLeast(0.0)), "{again}");
            seen.add(Instant::now() + Duration::from_secs(3), &token(again + 1));
            assert!(matches!(seen.rate(), Some(Rate::Counted(_))));
        }
    }

    #[test]
    fn the_holds_of_all_recent_clients_add_up() {
        let sights = [("x", 10), ("y", 70), ("x", 14), ("y", 90)];
        let sights = sights.map(|(client, acquired)| held(client, 1, Some(acquired)));
        assert_eq!(history(sights).rate(), Some(Rate::Counted(2.0 + 10.0)));
    }

    #[test]
    fn a_client_that_was_seen_once_makes_the_rate_a_lower_bound() {
        let sights = [("x", 10), ("y", 70), ("y", 74)];
        let sights = sights.map(|(client, acquired)| held(client, 1, Some(acquired)));
        assert_eq!(history(sights).rate(), Some(Rate::AtLeast(2.5)), "1 of y's first hold, 4 more");
        let gone = [held("x", 1, Some(10))].into_iter().chain(
            (0..14).map(|second| held("y", 1, Some(70 + 2 * second))),
        );
        assert_eq!(history(gone).rate(), Some(Rate::Counted(2.0)), "x is forgotten");
    }

    #[test]
    fn changes_of_an_unknown_holder_are_a_lower_bound() {
        let sights = [1, 2, 2, 3].map(|hold| held("x", hold, None));
        assert_eq!(history(sights).rate(), Some(Rate::AtLeast(2.0 / 3.0)));
        let between = [held("x", 1, None), Sight::free("a", "lock"), held("x", 1, None)];
        assert_eq!(history(between).rate(), Some(Rate::AtLeast(0.0)), "the same hold, not seen once");
    }

    #[test]
    fn rare_sightings_have_a_rate() {
        let (mut seen, begin) = (History::default(), Instant::now());
        for minute in 0..3 {
            seen.add(begin + Duration::from_secs(60 * minute), &token(600 * minute));
        }
        assert_eq!(seen.rate(), Some(Rate::Counted(10.0)));
    }
}
