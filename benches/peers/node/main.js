// Benchmark driver for node-redlock, and for redis-semaphore, which only makes pairs; ../README.md is
// its contract.
'use strict';

const { writeFileSync } = require('node:fs');
const { createInterface } = require('node:readline');
const Client = require('ioredis');
const { Semaphore } = require('redis-semaphore');
const Redlock = require('redlock');

const TTL = 30_000; // the library requires a time to live for each lock
const LONG = 3_600_000; // outlasts the benchmark
const PERMITS = 4; // of each semaphore

const [, , contender, url] = process.argv;
const now = () => process.hrtime.bigint(); // CLOCK_MONOTONIC

function connect() {
  const client = new Client(url.startsWith('unix:') ? { path: new URL(url).pathname } : url);
  return { client, redlock: new Redlock([client]) };
}

// Acquires a lock. Calls the library again when it gives up after 10 retries. Returns undefined if
// the time is over.
async function take(redlock, name, end) {
  for (;;) {
    try {
      return await redlock.lock(name, TTL);
    } catch (error) {
      if (!(error instanceof Redlock.LockError)) throw error;
      if (end !== undefined && now() >= end) return undefined;
    }
  }
}

// Returns the acquire of a worker. Its result is the release, or undefined if the time is over.
function worker(name, end) {
  if (contender === 'node-redlock') {
    return async () => {
      const lock = await take(redlock, name, end);
      return lock && (() => lock.unlock());
    };
  }
  const semaphore = new Semaphore(client, name, PERMITS);
  return async () => {
    await semaphore.acquire();
    return () => semaphore.release();
  };
}

// The records of a worker: five numbers for each pair.
class Records {
  numbers = new BigUint64Array(5 * 1024);
  used = 0;

  add(...five) {
    if (this.used === this.numbers.length) {
      const more = new BigUint64Array(2 * this.used);
      more.set(this.numbers);
      this.numbers = more;
    }
    this.numbers.set(five, this.used);
    this.used += 5;
  }
}

const { client, redlock } = connect();
let records = []; // of the last pairs, by worker
let waiting; // the state between wait and free

// Returns the lock of a worker, or the lock of all workers.
const lockName = (args, i) => (args.shared === '1' ? args.locks : `${args.locks}:${i}`);

const supported = (command) => Object.hasOwn(commands, command)
  && (contender === 'node-redlock' || ['pairs', 'write'].includes(command));

const commands = {
  async pairs(args) {
    const end = now() + BigInt(args.millis) * 1_000_000n;
    const think = BigInt(args.think_us) * 1_000n;
    let errors = 0;
    records = Array.from({ length: Number(args.threads) }, () => new Records());
    await Promise.all(records.map(async (own, i) => {
      const acquire = worker(lockName(args, i), end);
      const number = BigInt(i);
      while (now() < end) {
        try {
          const before = now();
          const release = await acquire();
          if (release === undefined) break;
          const acquired = now();
          const releasing = now();
          await release();
          const released = now();
          own.add(number, before, acquired, releasing, released);
          if (think > 0n) while (now() < released + think);
        } catch {
          errors += 1;
        }
      }
    }));
    const pairs = records.reduce((sum, own) => sum + own.used / 5, 0);
    return `done pairs=${pairs} errors=${errors}`;
  },

  // The drivers run on little-endian machines only (x86-64, AArch64).
  async write(args) {
    writeFileSync(args.file, Buffer.concat(
      records.map((own) => Buffer.from(own.numbers.buffer, 0, 8 * own.used))));
    return 'written';
  },

  async wait(args) {
    const count = Number(args.count);
    const holder = connect();
    const held = [];
    for (let i = 0; i < (args.shared === '1' ? 1 : count); i++) {
      held.push(await holder.redlock.lock(lockName(args, i), LONG));
    }
    // A worker asks once, which fails, and then until it gets the lock.
    const once = new Redlock([client], { retryCount: 0 });
    const asked = [];
    waiting = { holder, held, errors: 0, workers: [] };
    for (let i = 0; i < count; i++) {
      const name = lockName(args, i);
      const ask = once.lock(name, TTL).catch(() => undefined);
      asked.push(ask);
      waiting.workers.push(ask.then(() => take(redlock, name))
        .then((lock) => lock.unlock())
        .catch(() => { waiting.errors += 1; }));
    }
    await Promise.all(asked);
    return `waiting count=${count}`;
  },

  async free() {
    const begun = now();
    const { holder, held, workers } = waiting;
    await Promise.all(held.map((lock) => lock.unlock().catch(() => { waiting.errors += 1; })));
    await Promise.all(workers);
    const nanos = now() - begun;
    const { errors } = waiting;
    waiting = undefined;
    await holder.redlock.quit();
    return `drained nanos=${nanos} errors=${errors}`;
  },

  async start(args) {
    const begun = now();
    for (let i = 0; i < Number(args.count); i++) {
      const own = connect();
      const lock = await own.redlock.lock('peers:start', TTL);
      await lock.unlock();
      await own.redlock.quit();
    }
    return `started nanos=${now() - begun}`;
  },
};

async function main() {
  const names = { 'node-redlock': 'redlock', 'redis-semaphore': 'redis-semaphore' };
  if (!Object.hasOwn(names, contender)) {
    console.log('unsupported no such contender');
    process.exit();
  }
  await client.ping();
  const { version } = require(`${names[contender]}/package.json`);
  console.log(`ready ${contender} ${version}`);
  for await (const line of createInterface({ input: process.stdin })) {
    const [command, ...words] = line.split(' ');
    if (command === 'quit') break;
    const args = Object.fromEntries(words.map((word) => word.split(/=(.*)/s, 2)));
    let answer = 'unsupported'; // no renewal, no re-entry, no idle handles
    if (supported(command)) {
      answer = await commands[command](args)
        .catch((error) => `failed ${String(error).replaceAll('\n', ' ')}`);
    }
    console.log(answer);
  }
  await redlock.quit();
  process.exit();
}

main();
