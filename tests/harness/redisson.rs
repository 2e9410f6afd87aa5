//! Redisson's operations on semaphores and latches, in scripts of our own, without the JVM.
//!
//! Each operation does what the documentation and the behaviour of Redisson say, and nothing more:
//! keys, numbers and messages. The tests in `tests/interop` use Redisson itself.

use redis::FromRedisValue;

use super::bare::Bare;

/// A semaphore with leased permits, of Redisson and of leasehold.
pub const PERMITS: &str = "the-permits";
/// The ids of the permits in use, with their expiries.
pub const EXPIRIES: &str = "{the-permits}:timeout";
/// The channel of that semaphore, leased or plain.
pub const SEMAPHORE_CHANNEL: &str = "redisson_sc:{the-permits}";
/// A latch.
pub const LATCH: &str = "the-latch";
/// The channel of that latch.
pub const LATCH_CHANNEL: &str = "redisson_countdownlatch__channel__{the-latch}";
/// The expiry of a permit that never expires.
pub const NEVER: i64 = 922_337_203_685_477;

/// The text before each operation on leased permits.
const RECLAIM: &str = "
    local permits, expiries, channel = KEYS[1], KEYS[2], KEYS[3]
    local function reclaim(now, most)
      local over = redis.call('zrangebyscore', expiries, 0, now, 'limit', 0, most)
      if #over > 0 then
        redis.call('zrem', expiries, unpack(over))
        local total = redis.call('incrby', permits, #over)
        if total > 0 then
          redis.call('publish', channel, total)
        end
      end
    end
";

fn run<T: FromRedisValue>(bare: &mut Bare, text: &str, keys: &[&str], args: &[&str]) -> T {
    let count = keys.len().to_string();
    bare.ask(&[&["EVAL", text, &count][..], keys, args].concat())
}

fn run_leased<T: FromRedisValue>(bare: &mut Bare, text: &str, args: &[&str]) -> T {
    let text = RECLAIM.to_owned() + text;
    run(bare, &text, &[PERMITS, EXPIRIES, SEMAPHORE_CHANNEL], args)
}

/// Takes leased permits, all or none, by the caller's clock.
pub fn acquire(bare: &mut Bare, now: i64, expiry: i64, ids: &[&str]) -> bool {
    let text = "
        local wanted = #ARGV - 2
        reclaim(ARGV[1], wanted)
        local free = redis.call('get', permits)
        if not free or tonumber(free) < wanted then
          return 0
        end
        redis.call('decrby', permits, wanted)
        for at = 3, #ARGV do
          redis.call('zadd', expiries, ARGV[2], ARGV[at])
        end
        local left = redis.call('pttl', permits)
        if left > 0 then
          redis.call('pexpire', expiries, left)
        end
        return 1";
    let [now, expiry] = [now, expiry].map(|it| it.to_string());
    run_leased(bare, text, &[&[&*now, &expiry][..], ids].concat())
}

/// Gives one leased permit back; `false` if the permit is gone, or was expired.
pub fn release(bare: &mut Bare, now: i64, id: &str) -> bool {
    let text = "
        local expiry = redis.call('zscore', expiries, ARGV[2])
        if not expiry then
          return 0
        end
        redis.call('zrem', expiries, ARGV[2])
        redis.call('publish', channel, redis.call('incrby', permits, 1))
        return tonumber(expiry) > tonumber(ARGV[1]) and 1 or 0";
    run_leased(bare, text, &[&now.to_string(), id])
}

/// Gives several leased permits back, all or none.
pub fn release_many(bare: &mut Bare, now: i64, ids: &[&str]) -> bool {
    let text = "
        for at = 2, #ARGV do
          local expiry = redis.call('zscore', expiries, ARGV[at])
          if not expiry or tonumber(expiry) <= tonumber(ARGV[1]) then
            return 0
          end
        end
        reclaim(ARGV[1], -1)
        local removed = redis.call('zrem', expiries, unpack(ARGV, 2))
        redis.call('incrby', permits, removed)
        redis.call('publish', channel, removed)
        return 1";
    run_leased(bare, text, &[&[&*now.to_string()][..], ids].concat())
}

/// Sets the expiry of a leased permit, which may be sooner than before.
pub fn update_lease(bare: &mut Bare, now: i64, expiry: i64, id: &str) -> bool {
    let text = "
        reclaim(ARGV[1], -1)
        if not redis.call('zscore', expiries, ARGV[3]) then
          return 0
        end
        redis.call('zadd', expiries, ARGV[2], ARGV[3])
        return 1";
    run_leased(bare, text, &[&now.to_string(), &expiry.to_string(), id])
}

/// Returns the capacity, after all expired permits are reclaimed.
pub fn capacity(bare: &mut Bare, now: i64) -> i64 {
    let text = "
        reclaim(ARGV[1], -1)
        local free = redis.call('get', permits)
        return free and free + redis.call('zcard', expiries) or 0";
    run_leased(bare, text, &[&now.to_string()])
}

/// Changes the capacity to this number.
pub fn set_capacity(bare: &mut Bare, capacity: i64) {
    let text = "
        local free = redis.call('get', permits)
        local before = free and free + redis.call('zcard', expiries)
        if before ~= tonumber(ARGV[1]) then
          if before then
            redis.call('incrby', permits, ARGV[1] - before)
          else
            redis.call('set', permits, ARGV[1])
          end
          redis.call('publish', channel, ARGV[1])
        end";
    run_leased(bare, text, &[&capacity.to_string()])
}

/// Adds leased permits, or takes some away. A time to live is lost.
pub fn add(bare: &mut Bare, permits: i64) {
    let text = "
        redis.call('set', permits, (redis.call('get', permits) or 0) + ARGV[1])
        if tonumber(ARGV[1]) > 0 then
          redis.call('publish', channel, ARGV[1])
        end";
    run_leased(bare, text, &[&permits.to_string()])
}

/// Takes permits of a plain semaphore.
pub fn take(bare: &mut Bare, permits: i64) -> bool {
    let text = "
        local free = redis.call('get', KEYS[1])
        if not free or tonumber(free) < tonumber(ARGV[1]) then
          return 0
        end
        redis.call('decrby', KEYS[1], ARGV[1])
        return 1";
    run(bare, text, &[PERMITS], &[&permits.to_string()])
}

/// Gives permits of a plain semaphore back.
pub fn give(bare: &mut Bare, permits: i64) {
    let text = "redis.call('publish', KEYS[2], redis.call('incrby', KEYS[1], ARGV[1]))";
    run(bare, text, &[PERMITS, SEMAPHORE_CHANNEL], &[&permits.to_string()])
}

/// Takes all permits of a plain semaphore. A time to live is lost.
pub fn drain(bare: &mut Bare) -> i64 {
    let text = "
        local free = redis.call('get', KEYS[1])
        if free then
          redis.call('set', KEYS[1], 0)
        end
        return tonumber(free or 0)";
    run(bare, text, &[PERMITS], &[])
}

/// Sets the permits of a semaphore without a key, plain or leased.
pub fn set_permits(bare: &mut Bare, permits: i64) -> bool {
    let text = "
        if redis.call('setnx', KEYS[1], ARGV[1]) == 0 then
          return 0
        end
        redis.call('publish', KEYS[2], ARGV[1])
        return 1";
    run(bare, text, &[PERMITS, SEMAPHORE_CHANNEL], &[&permits.to_string()])
}

/// Sets the count of a latch without a key.
pub fn set_count(bare: &mut Bare, count: i64) -> bool {
    let text = "
        if redis.call('setnx', KEYS[1], ARGV[1]) == 0 then
          return 0
        end
        redis.call('publish', KEYS[2], 1)
        return 1";
    run(bare, text, &[LATCH, LATCH_CHANNEL], &[&count.to_string()])
}

/// Counts a latch down.
pub fn count_down(bare: &mut Bare) {
    let text = "
        local count = redis.call('decr', KEYS[1])
        if count <= 0 then
          redis.call('del', KEYS[1])
        end
        if count == 0 then
          redis.call('publish', KEYS[2], 0)
        end";
    run(bare, text, &[LATCH, LATCH_CHANNEL], &[])
}

/// Deletes a latch.
pub fn delete_latch(bare: &mut Bare) -> bool {
    let text = "
        if redis.call('del', KEYS[1]) == 0 then
          return 0
        end
        redis.call('publish', KEYS[2], 1)
        return 1";
    run(bare, text, &[LATCH, LATCH_CHANNEL], &[])
}
