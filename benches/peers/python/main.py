"""Benchmark driver for redis-py's Lock and python-redis-lock; ../README.md is its contract."""

import logging
import sys
import threading
import time
import tracemalloc
from array import array
from importlib.metadata import version

import redis
import redis_lock

LEASE = 30  # seconds, for the locks of pairs
LONG = 3600  # outlasts the benchmark

# With the default of redis-py, 100 connections, the 101st thread fails.
CONNECTIONS = 20_000

now = time.monotonic_ns  # CLOCK_MONOTONIC on Linux


class RedisPy:
    """redis-py: polls every 0.1 s and renews no lease."""

    package = "redis"
    options = {}
    max_held = 0

    @staticmethod
    def lock(client, name, lease=LEASE):
        return client.lock(name, timeout=lease)

    @staticmethod
    def ask(lock, asked):
        taken = lock.acquire(blocking=False)
        asked()
        if not taken:
            lock.acquire()

    @staticmethod
    def watch(client, count):
        return lambda: True


class PythonRedisLock:
    """python-redis-lock: waits with BLPOP on one connection per waiter."""

    package = "python-redis-lock"
    # A wait blocks for up to the lease. With the default of redis-py, 5 s, a longer wait fails.
    options = {"socket_timeout": None}
    max_held = 1000  # the library has one renewal thread per lock

    @staticmethod
    def lock(client, name, lease=LEASE):
        return redis_lock.Lock(client, name, expire=lease)

    @staticmethod
    def renewed(client, name, lease):
        return redis_lock.Lock(client, name, expire=lease, auto_renewal=True)

    @staticmethod
    def ask(lock, asked):
        asked()  # too early by a little: watch checks the server
        lock.acquire()

    @staticmethod
    def watch(client, count):
        return lambda: client.info("clients")["blocked_clients"] >= count


class Driver:
    def __init__(self, peer, url):
        self.peer = peer
        self.url = url
        self.client = self.connect()
        self.client.ping()
        self.records = []  # of the last pairs, by worker
        self.holder = None  # of hold and wait
        self.held = []
        self.waiters = []
        self.errors = []
        self.retained = []

    def connect(self):
        return redis.Redis.from_url(self.url, max_connections=CONNECTIONS, **self.peer.options)

    def obey(self, line):
        command, *words = line.split() or [""]
        args = dict(word.split("=", 1) for word in words)
        if command not in COMMANDS:
            return "unsupported"
        try:
            return getattr(self, command)(args)
        except Exception as error:
            return "failed " + repr(error).replace("\n", " ")

    def pairs(self, args):
        threads = int(args["threads"])
        think = int(args["think_us"]) * 1000
        begin = threading.Barrier(threads + 1)
        self.records = [array("Q") for _ in range(threads)]
        errors = [0] * threads
        length = int(args["millis"]) * 1_000_000

        def work(i, lock):
            records = self.records[i]
            begin.wait()
            end = now() + length
            while now() < end:
                try:
                    before = now()
                    lock.acquire()
                    acquired = now()
                    releasing = now()
                    lock.release()
                    released = now()
                except Exception:
                    errors[i] += 1
                    continue
                records.extend((i, before, acquired, releasing, released))
                while think and now() < released + think:
                    pass

        workers = [
            spawn(work, i, self.peer.lock(self.client, lock_name(args, i))) for i in range(threads)
        ]
        begin.wait()
        for worker in workers:
            worker.join()
        pairs = sum(len(records) // 5 for records in self.records)
        return f"done pairs={pairs} errors={sum(errors)}"

    def write(self, args):
        with open(args["file"], "wb") as file:
            for records in self.records:
                if sys.byteorder == "big":
                    records.byteswap()
                records.tofile(file)
        return "written"

    def hold(self, args):
        count, lease_ms = int(args["count"]), int(args["lease_ms"])
        if count > self.peer.max_held or lease_ms % 1000:
            return "unsupported"
        self.take(args, count, self.peer.renewed, lease_ms // 1000)
        return f"holding count={count}"

    def drop(self, args):
        return f"dropped lost={self.release()}"

    def take(self, args, count, make, lease):
        """Acquires the first locks with a separate client."""
        self.release()
        self.holder = self.connect()
        for i in range(count):
            lock = make(self.holder, lock_name(args, i), lease)
            lock.acquire()
            self.held.append(lock)

    def release(self):
        """Releases the locks of take and returns the number of lost ones."""
        lost = 0
        for lock in self.held:
            try:
                lock.release()
            except Exception:
                lost += 1
        self.held = []
        if self.holder:
            self.holder.close()
            self.holder = None
        return lost

    def wait(self, args):
        count = int(args["count"])
        self.take(args, 1 if args.get("shared") == "1" else count, self.peer.lock, LONG)
        self.errors, asked = [], []
        settled = self.peer.watch(self.client, count)

        def work(lock):
            try:
                self.peer.ask(lock, lambda: asked.append(None))
                lock.release()
            except Exception as error:
                self.errors.append(error)

        self.waiters = [
            spawn(work, self.peer.lock(self.client, lock_name(args, i))) for i in range(count)
        ]
        while not self.errors and (len(asked) < count or not settled()):
            time.sleep(0.01)
        if self.errors:
            self.release()
            self.join()
            reason = f"{len(self.errors)} of {count} did not wait: {self.errors[0]!r}"
            return "failed " + reason.replace("\n", " ")
        return f"waiting count={count}"

    def join(self):
        for waiter in self.waiters:
            waiter.join()
        self.waiters = []

    def free(self, args):
        begun = now()
        lost = self.release()
        self.join()
        return f"drained nanos={now() - begun} errors={len(self.errors) + lost}"

    def handles(self, args):
        def make():
            return [
                self.peer.lock(self.client, lock_name(args, i)) for i in range(int(args["count"]))
            ]

        begun = now()
        self.retained = make()
        nanos = now() - begun
        # A second time to count the bytes, because counting slows the code.
        tracemalloc.start()
        again = make()
        heap = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        del again
        return f"handles nanos={nanos} heap={heap}"

    def forget(self, args):
        self.retained = []
        return "forgotten"

    def start(self, args):
        begun = now()
        for _ in range(int(args["count"])):
            client = self.connect()
            lock = self.peer.lock(client, "peers:start")
            lock.acquire()
            lock.release()
            client.close()
        return f"started nanos={now() - begun}"


COMMANDS = {"pairs", "write", "hold", "drop", "wait", "free", "handles", "forget", "start"}


def lock_name(args, i):
    return args["locks"] if args.get("shared") == "1" else f"{args['locks']}:{i}"


def spawn(work, *args):
    thread = threading.Thread(target=work, args=args, daemon=True)
    thread.start()
    return thread


def main():
    peers = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}
    contender, url = sys.argv[1:]
    if contender not in peers:
        print("unsupported no such contender", flush=True)
        return
    logging.disable()
    threading.stack_size(256 << 10)  # for 10,000 threads
    peer = peers[contender]
    driver = Driver(peer, url)
    print("ready", contender, version(peer.package), flush=True)
    for line in sys.stdin:
        if line.strip() == "quit":
            break
        print(driver.obey(line), flush=True)
    driver.client.close()


main()
