//! Holds and holders: the number of a hold, its owner field in Redis, and the thread that holds.

use std::cell::Cell;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use uuid::Uuid;

use crate::command::permit::PermitIds;
use crate::events::Kind;
use crate::util::clock;
use crate::util::sync::{TIME_PASSES, thread_local};
use crate::util::system::{per_process, random_bytes, thread};

/// Returns a new client id: a UUID of version 8 with 60 random bits.
///
/// Redisson's are of version 4, so an owner field tells which library wrote it. The second half
/// repeats the first: the id of a permit has room for half a client id, and a reader of the permit
/// has to find the whole id. Two of a million clients have the same id with a probability of 4 in
/// ten million; their hold numbers would still differ.
pub(crate) fn client_id() -> Uuid {
    let random = uuid::Builder::from_custom_bytes(random_bytes()).into_uuid();
    client_of_tag(std::array::from_fn(|at| random.as_bytes()[at]))
}

/// Returns the client id whose first half is `tag`, if `tag` is the first half of a client id.
pub(crate) fn client_of_tag(tag: [u8; 8]) -> Uuid {
    let bytes = std::array::from_fn(|at| tag[at % tag.len()]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// Returns whether a name has the form of an owner field of this library.
///
/// Such a name is refused as the name of a holder: the release of the hold with this owner field
/// would end all holds under that name.
pub(crate) fn is_owner_field(name: &str) -> bool {
    let id = name.split_once(':').and_then(|(id, _)| Uuid::try_parse(id).ok());
    id.is_some_and(|id| id.get_version_num() == 8)
}

/// The number of one hold: the time at which a caller asked for it, in microseconds since 1970.
///
/// This process never uses a number twice, also after its clock has stepped back: the number is
/// then the next one behind the last. All attempts that may take effect have the same number.
///
/// The last digit tells what the other data of the lock do not: the kind of the hold, so that a
/// reader knows it although its process does not answer; and whether the hold may linger, so that
/// whoever is refused because of it asks its client to give it up (`ask_holder.lua`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HoldId(u64);

per_process! {
    /// The last number that this process has used.
    static LAST: AtomicU64 = AtomicU64::new(0);
}

/// The kind that each last digit stands for, and whether the hold may linger.
///
/// Holds of the other kinds have the digit of a plain lock, and are known by their data.
const DIGITS: [(Kind, bool); 10] = [
    (Kind::Plain, false),
    (Kind::Fair, false),
    (Kind::Fenced, false),
    (Kind::Queued, false),
    (Kind::Spin, false),
    (Kind::Plain, true),
    (Kind::Once, false),
    (Kind::Fenced, true),
    // Unused.
    (Kind::Plain, false),
    (Kind::Plain, false),
];

impl HoldId {
    /// Returns the number of a hold that a caller asks for now, of a plain lock or of no lock.
    pub(crate) fn next() -> HoldId {
        HoldId::of(Kind::Plain, false)
    }

    /// Returns the number of a hold of this kind that a caller asks for now.
    pub(crate) fn of(kind: Kind, lingers: bool) -> HoldId {
        HoldId::after(&LAST, HoldId::now(), HoldId::digit(kind, lingers), 1, 1)
    }

    /// Returns the first of `count` consecutive numbers, for the permits of a hold.
    ///
    /// The number before them stays unused, so the numbers of two holds never adjoin.
    pub(crate) fn block(count: u32) -> HoldId {
        HoldId::after(&LAST, HoldId::now(), HoldId::digit(Kind::Semaphore, false), 2, count)
    }

    /// Returns the kind that a hold number tells.
    pub(crate) fn kind_of(number: u64) -> Kind {
        DIGITS[(number % DIGITS.len() as u64) as usize].0
    }

    /// Returns whether the hold may linger after its last guard.
    pub(crate) fn may_linger(self) -> bool {
        DIGITS[(self.0 % DIGITS.len() as u64) as usize].1
    }

    /// Returns the last digit of the numbers of such holds.
    fn digit(kind: Kind, lingers: bool) -> u64 {
        let position = |kind| DIGITS.iter().position(|digit| *digit == (kind, lingers));
        let digit = position(kind).or_else(|| position(Kind::Plain));
        digit.unwrap_or(0) as u64
    }

    fn now() -> Duration {
        // Models repeat a schedule, so no time may enter.
        if TIME_PASSES { clock::unix_time() } else { Duration::ZERO }
    }

    /// Returns the first number with this last digit from `now` in microseconds, or from `last` plus
    /// `step` if that is larger. Stores the last of `count` numbers from there in `last`.
    fn after(last: &AtomicU64, now: Duration, digit: u64, step: u64, count: u32) -> HoldId {
        let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        let next = |last: u64| {
            let first = now.max(last.saturating_add(step));
            let digits = DIGITS.len() as u64;
            first.saturating_add((digits + digit - first % digits) % digits)
        };
        let update = |last| Some(next(last).saturating_add(u64::from(count.max(1) - 1)));
        let (Ok(last) | Err(last)) =
            last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        HoldId(next(last))
    }

    /// Returns the number as shown in events and in the owner field.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Returns a seed for jitter, different for each hold.
    pub(crate) fn seed(self) -> u64 {
        self.0
    }
}

/// The owner field of a hold in Redis.
///
/// The format is `<client uuid>:<hold number>`, like Redisson's `<uuid>:<thread id>`, followed by
/// the suffix of the kind of lock. A named holder has its name as owner field instead. A hold of
/// permits has an id in Redis for each permit; the owner field only names the hold in claims,
/// events and logs.
#[derive(Clone)]
pub(crate) struct Owner {
    text: [u8; Owner::MAX_LENGTH],
    length: u8,
    holder: Option<Arc<str>>,
    permits: Option<Arc<PermitIds>>,
}

impl Owner {
    /// The length of a hyphenated UUID, a colon, the digits of a `u64`, and `:write`.
    const MAX_LENGTH: usize = 36 + 1 + 20 + 6;

    /// Returns the owner field of a hold without a named holder.
    pub(crate) fn new(client: Uuid, hold: HoldId, suffix: &str) -> Owner {
        let text = [0; Owner::MAX_LENGTH];
        let mut owner = Owner { text, length: 0, holder: None, permits: None };
        // `MAX_LENGTH` covers every suffix, so the write cannot fail.
        let _ = write!(owner, "{client}:{}{suffix}", hold.0);
        owner
    }

    /// Returns the owner field of the hold with this number.
    pub(crate) fn numbered(client: Uuid, hold: u64, suffix: &str) -> Owner {
        Owner::new(client, HoldId(hold), suffix)
    }

    /// Sets the named holder, if any.
    pub(crate) fn named(self, holder: Option<Arc<str>>) -> Owner {
        Owner { holder, ..self }
    }

    /// Sets the ids of the permits of the hold.
    pub(crate) fn with_permits(self, permits: PermitIds) -> Owner {
        Owner { permits: Some(Arc::new(permits)), ..self }
    }

    /// Returns the ids of the permits; `None` for a hold of a lock.
    pub(crate) fn permits(&self) -> Option<&PermitIds> {
        self.permits.as_deref()
    }

    /// Returns the texts that identify the hold in a renewal: one, or one for each permit.
    pub(crate) fn members(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let own = self.permits.is_none().then(|| self.hold().as_bytes());
        own.into_iter().chain(self.permits().into_iter().flat_map(PermitIds::iter))
    }

    /// Returns the number of members.
    pub(crate) fn member_count(&self) -> usize {
        self.permits().map_or(1, |permits| permits.iter().len())
    }

    /// Returns the owner field: the name of the named holder, or else the field of the hold.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.holder {
            Some(holder) => holder.as_bytes(),
            None => &self.text[..usize::from(self.length)],
        }
    }

    /// Returns the field of the hold itself, also for a named holder.
    pub(crate) fn hold(&self) -> &str {
        // Only `write_str` writes to the buffer, so it contains UTF-8.
        std::str::from_utf8(&self.text[..usize::from(self.length)]).unwrap_or_default()
    }
}

impl fmt::Write for Owner {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let start = usize::from(self.length);
        let end = start + part.len();
        let room = self.text.get_mut(start..end).ok_or(fmt::Error)?;
        room.copy_from_slice(part.as_bytes());
        // `end` is at most `MAX_LENGTH`, which fits in a `u8`.
        self.length = end as u8;
        Ok(())
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.holder.as_deref().unwrap_or_else(|| self.hold()))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Identifies a thread of this process. An id is not reused after the end of its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadId(u64);

impl ThreadId {
    /// Returns the id of the calling thread, also while its thread-locals are destroyed.
    pub(crate) fn current() -> ThreadId {
        per_process! {
            static NEXT: AtomicU64 = AtomicU64::new(1);
        }
        thread_local!(static ID: Cell<u64> = const { Cell::new(0) });
        ID.with(|id| {
            if id.get() == 0 {
                id.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            ThreadId(id.get())
        })
    }
}

/// A thread that takes locks.
#[derive(Debug)]
pub(crate) struct LockingThread {
    id: ThreadId,
    name: Option<Box<str>>,
    has_ended: AtomicBool,
}

impl LockingThread {
    /// Returns the calling thread. Allocates at the first call of each thread.
    fn current() -> Arc<LockingThread> {
        thread_local!(static CURRENT: EndMarker = EndMarker(Arc::new(LockingThread::of(
            thread::current().name()
        ))));
        let ending = || LockingThread { has_ended: AtomicBool::new(true), ..Self::of(None) };
        let current = CURRENT.try_with(|EndMarker(thread)| Arc::clone(thread));
        current.unwrap_or_else(|_| Arc::new(ending()))
    }

    fn of(name: Option<&str>) -> LockingThread {
        let (id, name) = (ThreadId::current(), name.map(Box::from));
        LockingThread { id, name, has_ended: AtomicBool::new(false) }
    }

    /// Returns the number of the thread, unique in this process.
    pub(crate) fn number(&self) -> u64 {
        self.id.0
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Marks its thread as ended when the thread drops it.
#[derive(Debug)]
struct EndMarker(Arc<LockingThread>);

impl Drop for EndMarker {
    fn drop(&mut self) {
        self.0.has_ended.store(true, Ordering::Release);
    }
}

/// The holder of a hold in this process.
#[derive(Clone, Debug)]
pub(crate) enum Holder {
    /// A thread, which may re-enter.
    Thread(Arc<LockingThread>),
    /// An owned guard, acquired by this thread. The guard may be in another thread now.
    Owned(Arc<LockingThread>),
}

impl Holder {
    /// Returns the holder for which the calling thread asks: another one, an owned guard, or itself.
    pub(crate) fn of_caller(on_behalf: Option<&Holder>, owned: bool) -> Holder {
        match on_behalf {
            Some(other) => other.clone(),
            None if owned => Holder::owned(),
            None => Holder::this_thread(),
        }
    }

    /// Returns the calling thread as holder.
    pub(crate) fn this_thread() -> Holder {
        Holder::Thread(LockingThread::current())
    }

    /// Returns an owned guard that the calling thread acquires.
    pub(crate) fn owned() -> Holder {
        Holder::Owned(LockingThread::current())
    }

    /// Returns the thread that acquired the hold.
    pub(crate) fn acquirer(&self) -> &LockingThread {
        match self {
            Holder::Thread(thread) | Holder::Owned(thread) => thread,
        }
    }

    /// Returns whether the holder is an owned guard that this thread acquired.
    pub(crate) fn was_taken_by(&self, thread: ThreadId) -> bool {
        matches!(self, Holder::Owned(by) if by.id == thread)
    }

    /// Returns whether the holder is this thread.
    pub(crate) fn is_thread(&self, thread: ThreadId) -> bool {
        matches!(self, Holder::Thread(own) if own.id == thread)
    }

    /// Returns the thread, unless the holder is an owned guard.
    pub(crate) fn thread(&self) -> Option<ThreadId> {
        match self {
            Holder::Thread(thread) => Some(thread.id),
            Holder::Owned(_) => None,
        }
    }

    /// Returns whether both holders are the same thread.
    pub(crate) fn is_same_thread(&self, other: &Holder) -> bool {
        matches!(other, Holder::Thread(thread) if self.is_thread(thread.id))
    }

    /// Returns whether the holder is an owned guard.
    pub(crate) fn is_owned(&self) -> bool {
        matches!(self, Holder::Owned(_))
    }

    /// Returns whether the holder is a thread that has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Holder::Thread(thread) if thread.has_ended.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(leasehold_model)))]
mod tests {
    use super::*;

    #[test]
    fn an_owner_field_has_redissons_format() {
        let client = Uuid::new_v4();
        let owner = Owner::new(client, HoldId(u64::MAX), ":write");
        let text = format!("{client}:18446744073709551615:write");
        assert_eq!(owner.as_bytes(), text.as_bytes());
        let owner = Owner::new(client, HoldId(7), "");
        assert_eq!(format!("{owner:?}"), format!("{client}:7"));
        let named = owner.named(Some("tx-42".into()));
        assert_eq!((named.as_bytes(), named.to_string()), (&b"tx-42"[..], "tx-42".to_owned()));
        assert_eq!(named.hold(), format!("{client}:7"));
    }

    #[test]
    fn an_owner_field_of_this_library_is_recognized_by_its_client_id() {
        let (client, redisson) = (client_id(), Uuid::new_v4());
        assert_ne!(client, client_id());
        assert_eq!(client.get_variant(), redisson.get_variant());
        for ours in [format!("{client}:1"), format!("{client}:7:write")] {
            assert!(is_owner_field(&ours), "{ours}");
        }
        for free in [format!("{redisson}:1"), client.to_string(), "tx-42".into(), "é:1".into()] {
            assert!(!is_owner_field(&free), "{free}");
        }
    }

    #[test]
    fn hold_numbers_are_never_used_twice() {
        let next = |at: usize| {
            let (kind, lingers) = DIGITS[at % DIGITS.len()];
            HoldId::of(kind, lingers).0
        };
        let many = |_| std::thread::spawn(move || (0..1000).map(next).collect());
        let threads: Vec<std::thread::JoinHandle<Vec<u64>>> = (0..4).map(many).collect();
        let mut all: Vec<u64> =
            threads.into_iter().flat_map(|t| t.join().expect("no panic")).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4000);
    }

    #[test]
    fn a_hold_number_is_the_time_in_microseconds() {
        let last = AtomicU64::new(0);
        let second = |number| Duration::from_secs(number);
        assert_eq!(HoldId::after(&last, second(7), 0, 1, 1).0, 7_000_000);
        let before = clock::unix_time().as_micros();
        let number = u128::from(HoldId::next().0);
        // Other tests of this process take numbers too, each a few microseconds ahead at most.
        assert!(number >= before && number <= clock::unix_time().as_micros() + 1_000_000);
    }

    #[test]
    fn a_clock_that_steps_back_repeats_no_number() {
        let last = AtomicU64::new(0);
        let numbers = [9, 9, 3, 3, 10].map(Duration::from_micros);
        let numbers = numbers.map(|now| HoldId::after(&last, now, 0, 1, 1).0);
        assert_eq!(numbers, [10, 20, 30, 40, 50]);
    }

    #[test]
    fn a_hold_number_tells_its_kind_and_whether_it_may_linger() {
        let last = AtomicU64::new(0);
        let number = |now, kind, lingers| {
            let digit = HoldId::digit(kind, lingers);
            HoldId::after(&last, Duration::from_micros(now), digit, 1, 1)
        };
        let holds = [
            number(100, Kind::Plain, false),
            number(100, Kind::Fair, false),
            number(100, Kind::Spin, false),
            number(100, Kind::Fenced, true),
            number(119, Kind::Queued, false),
            number(119, Kind::Write, true),
            number(119, Kind::Plain, false),
        ];
        assert_eq!(holds.map(HoldId::number), [100, 101, 104, 107, 123, 125, 130]);
        let [plain, fair, spin, fenced, queued] =
            [Kind::Plain, Kind::Fair, Kind::Spin, Kind::Fenced, Kind::Queued];
        let kinds = holds.map(|hold| HoldId::kind_of(hold.number()));
        assert_eq!(kinds, [plain, fair, spin, fenced, queued, plain, plain]);
        let lingering = holds.map(HoldId::may_linger);
        assert_eq!(lingering, [false, false, false, true, false, true, false]);
    }

    #[test]
    fn the_numbers_of_two_holds_of_permits_never_adjoin() {
        let last = AtomicU64::new(0);
        let now = Duration::from_micros(9);
        let block = |count| HoldId::after(&last, now, 0, 2, count).0;
        let lock = || HoldId::after(&last, now, 1, 1, 1).0;
        assert_eq!([block(3), block(3), lock(), block(4), lock()], [10, 20, 31, 40, 51]);
        let pause = |last: &AtomicU64, count| HoldId::after(last, now, 0, 2, count).0;
        let full = AtomicU64::new(19);
        assert_eq!([pause(&full, 4), pause(&full, 1)], [30, 40]);
        let (one, two) = (HoldId::block(1000).0, HoldId::block(1).0);
        assert!(two > one + 1000 || two + 1 < one);
    }

    #[test]
    fn a_client_id_is_known_from_its_first_half() {
        let client = client_id();
        let tag = std::array::from_fn(|at| client.as_bytes()[at]);
        assert_eq!((client_of_tag(tag), client.get_version_num()), (client, 8));
        assert_eq!(client.get_variant(), uuid::Variant::RFC4122);
    }

    #[test]
    fn a_hold_of_permits_has_a_member_for_each_permit() {
        let (client, hold) = (client_id(), HoldId::block(3));
        let lock = Owner::new(client, hold, "");
        assert_eq!(lock.members().collect::<Vec<_>>(), [lock.hold().as_bytes()]);
        let ids = PermitIds::new(client, hold.number(), 3, lock.to_string().into());
        let permits = lock.clone().with_permits(ids.clone());
        assert_eq!(permits.members().collect::<Vec<_>>(), ids.iter().collect::<Vec<_>>());
        assert_eq!((permits.member_count(), lock.member_count()), (3, 1));
        assert_eq!(permits.to_string(), lock.to_string());
    }

    #[test]
    fn a_holder_knows_its_thread_and_whether_the_thread_has_ended() {
        let mine = Holder::this_thread();
        assert!(mine.is_thread(ThreadId::current()) && !mine.has_ended());
        let other = std::thread::spawn(Holder::this_thread).join().expect("no panic");
        assert!(!other.is_thread(ThreadId::current()) && other.has_ended());
        let named = std::thread::Builder::new().name("worker".to_owned());
        let named = named.spawn(Holder::owned).expect("a thread starts").join().expect("no panic");
        assert_eq!(named.acquirer().name(), Some("worker"));
        assert_ne!(named.acquirer().number(), mine.acquirer().number());
        let owned = Holder::owned();
        assert!(owned.is_owned() && !owned.has_ended() && !owned.is_thread(ThreadId::current()));
        assert!(owned.was_taken_by(ThreadId::current()) && !mine.was_taken_by(ThreadId::current()));
    }
}
