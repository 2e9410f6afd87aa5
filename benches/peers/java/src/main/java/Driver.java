import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.api.redisnode.RedisNode.InfoSection;
import org.redisson.api.redisnode.RedisNodes;
import org.redisson.config.Config;

/**
 * Benchmark driver for Redisson's RLock, plain or fair, and for its two semaphores, which only make
 * pairs; ../README.md is its contract.
 */
public final class Driver {
    private static final long STACK = 256 << 10; // for 10,000 threads
    private static final int PERMITS = 4; // of each semaphore
    private static final List<String> LOCKS = List.of("redisson", "redisson-fair");
    private static final List<String> SEMAPHORES =
            List.of("redisson-permits", "redisson-semaphore");
    private static final List<String> COMMANDS_OF_SEMAPHORES = List.of("pairs", "write");

    private final String address;
    private final String contender;
    private final RedissonClient client;
    private List<Records> records = List.of(); // of the last pairs
    private RedissonClient holder; // of hold and wait
    private List<RLock> held = List.of();
    private List<Thread> waiters = List.of();
    private final AtomicInteger mishaps = new AtomicInteger(); // of the waiters
    private final AtomicReference<Throwable> mishap = new AtomicReference<>();
    private RLock[] retained;

    private Driver(String address, String contender) {
        this.address = address;
        this.contender = contender;
        this.client = connect(new Config());
    }

    public static void main(String[] args) throws IOException {
        if (!LOCKS.contains(args[0]) && !SEMAPHORES.contains(args[0])) {
            System.out.println("unsupported no such contender");
            return;
        }
        if (args[1].startsWith("unix:")) {
            System.out.println("unsupported unix sockets need another transport than the default");
            return;
        }
        Driver driver = new Driver(args[1], args[0]);
        System.out.println("ready " + args[0] + " " + Redisson.class.getPackage().getImplementationVersion());
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null && !line.equals("quit"); ) {
            System.out.println(driver.answer(line));
        }
        // Locks that are still held and threads that still wait end with the process.
        driver.client.shutdown();
        System.exit(0);
    }

    private RedissonClient connect(Config config) {
        config.useSingleServer().setAddress(address);
        return Redisson.create(config);
    }

    private RLock lock(RedissonClient of, String name) {
        return contender.equals("redisson-fair") ? of.getFairLock(name) : of.getLock(name);
    }

    /** What a worker acquires and releases. */
    private interface Pair {
        void acquire() throws InterruptedException;

        void release();
    }

    private Pair pair(String name) {
        return switch (contender) {
            case "redisson-permits" -> permit(name);
            case "redisson-semaphore" -> semaphore(name);
            default -> pair(lock(client, name));
        };
    }

    private static Pair pair(RLock lock) {
        return new Pair() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    private Pair permit(String name) {
        RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(name);
        semaphore.trySetPermits(PERMITS);
        return new Pair() {
            private String id;

            @Override
            public void acquire() throws InterruptedException {
                id = semaphore.acquire(30, TimeUnit.SECONDS); // the lease of a lock
            }

            @Override
            public void release() {
                semaphore.release(id);
            }
        };
    }

    private Pair semaphore(String name) {
        RSemaphore semaphore = client.getSemaphore(name);
        semaphore.trySetPermits(PERMITS);
        return new Pair() {
            @Override
            public void acquire() throws InterruptedException {
                semaphore.acquire();
            }

            @Override
            public void release() {
                semaphore.release();
            }
        };
    }

    private String answer(String line) {
        String[] words = line.split(" ");
        Arguments args = new Arguments(words);
        if (SEMAPHORES.contains(contender) && !COMMANDS_OF_SEMAPHORES.contains(words[0])) {
            return "unsupported";
        }
        try {
            return switch (words[0]) {
                case "pairs" -> pairs(args, false);
                case "nested" -> pairs(args, true);
                case "write" -> write(args.text("file"));
                case "hold" -> hold(args);
                case "drop" -> "dropped lost=" + release();
                case "wait" -> await(args);
                case "free" -> free();
                case "handles" -> handles(args);
                case "forget" -> {
                    retained = null;
                    yield "forgotten";
                }
                case "start" -> start((int) args.number("count"));
                default -> "unsupported";
            };
        } catch (Exception e) {
            return "failed " + reason(e);
        }
    }

    private static String reason(Throwable e) {
        return e.toString().replace('\n', ' ');
    }

    /** The records of a worker: five numbers for each pair. */
    private static final class Records {
        long[] numbers = new long[5 * 1024];
        int used;

        void add(long worker, long before, long acquired, long releasing, long released) {
            if (used == numbers.length) {
                numbers = Arrays.copyOf(numbers, 2 * used);
            }
            numbers[used++] = worker;
            numbers[used++] = before;
            numbers[used++] = acquired;
            numbers[used++] = releasing;
            numbers[used++] = released;
        }
    }

    /** Times each nested pair like any other pair, because it also goes to the server. */
    private String pairs(Arguments args, boolean nested) throws InterruptedException {
        int count = (int) args.number("threads");
        long length = args.number("millis") * 1_000_000;
        long think = args.number("think_us") * 1_000;
        CountDownLatch ready = new CountDownLatch(count);
        CountDownLatch begin = new CountDownLatch(1);
        AtomicInteger errors = new AtomicInteger();
        List<Records> all = new ArrayList<>();
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            int worker = i;
            Pair pair = pair(args.lock(i));
            Records own = new Records();
            all.add(own);
            workers.add(spawn(() -> {
                if (nested) {
                    pair.acquire();
                }
                ready.countDown();
                begin.await();
                errors.addAndGet(work(pair, worker, own, System.nanoTime() + length, think));
                if (nested) {
                    pair.release();
                }
                return null;
            }));
        }
        ready.await();
        begin.countDown();
        for (Thread worker : workers) {
            worker.join();
        }
        records = all;
        long pairs = 0;
        long nanos = 0;
        for (Records own : all) {
            pairs += own.used / 5;
            for (int i = 0; i < own.used; i += 5) {
                nanos += own.numbers[i + 4] - own.numbers[i + 1];
            }
        }
        String done = "done pairs=" + pairs + " errors=" + errors;
        return nested && pairs > 0 ? done + " nanos=" + nanos / pairs : done;
    }

    private static int work(Pair pair, int worker, Records own, long end, long think)
            throws InterruptedException {
        int errors = 0;
        while (System.nanoTime() < end) {
            try {
                long before = System.nanoTime();
                pair.acquire();
                long acquired = System.nanoTime();
                long releasing = System.nanoTime();
                pair.release();
                long released = System.nanoTime(); // CLOCK_MONOTONIC on Linux
                own.add(worker, before, acquired, releasing, released);
                if (think > 0) {
                    while (System.nanoTime() - released < think) {
                        Thread.onSpinWait();
                    }
                }
            } catch (RuntimeException e) {
                errors++;
            }
        }
        return errors;
    }

    private interface Task {
        Void run() throws Exception;
    }

    private Thread spawn(Task task) {
        Thread thread = new Thread(null, () -> {
            try {
                task.run();
            } catch (Throwable e) {
                mishap.set(e);
                mishaps.incrementAndGet();
            }
        }, "worker", STACK);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private String write(String path) throws IOException {
        try (OutputStream file = new BufferedOutputStream(new FileOutputStream(path), 1 << 16)) {
            for (Records own : records) {
                ByteBuffer bytes = ByteBuffer.allocate(8 * own.used).order(ByteOrder.LITTLE_ENDIAN);
                bytes.asLongBuffer().put(own.numbers, 0, own.used);
                file.write(bytes.array());
            }
        }
        return "written";
    }

    /** Acquires the first locks with a separate client, in this thread. */
    private void take(Config config, Arguments args, int count) {
        holder = connect(config);
        held = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            RLock lock = lock(holder, args.lock(i));
            lock.lock();
            held.add(lock);
        }
    }

    /** Releases the locks of take and returns the number of lost ones. */
    private int release() {
        int lost = 0;
        for (RLock lock : held) {
            try {
                lock.unlock();
            } catch (RuntimeException e) { // IllegalMonitorStateException: the lock was lost
                lost++;
            }
        }
        held = List.of();
        return lost;
    }

    /** Closes the client of take, which takes 100 ms or more, at a time that is not measured. */
    private void closeHolder() {
        if (holder != null) {
            holder.shutdown();
            holder = null;
        }
    }

    private String hold(Arguments args) {
        closeHolder();
        Config config = new Config();
        config.setLockWatchdogTimeout(args.number("lease_ms"));
        take(config, args, (int) args.number("count"));
        return "holding count=" + held.size();
    }

    private String await(Arguments args) throws InterruptedException {
        closeHolder();
        int count = (int) args.number("count");
        take(new Config(), args, args.shared() ? 1 : count);
        mishaps.set(0);
        waiters = new ArrayList<>();
        long before = scripts();
        for (int i = 0; i < count; i++) {
            RLock lock = lock(client, args.lock(i));
            waiters.add(spawn(() -> {
                lock.lock();
                lock.unlock();
                return null;
            }));
        }
        // Each worker asks twice, before and after it subscribes, each time with a script.
        while (scripts() - before < 2L * count) {
            if (mishaps.get() > 0) {
                release();
                join();
                return "failed " + mishaps + " of " + count + " did not wait: " + reason(mishap.get());
            }
            Thread.sleep(10);
        }
        return "waiting count=" + count;
    }

    /** Returns the number of script calls of the server. */
    private long scripts() {
        Map<String, String> stats =
                client.getRedisNodes(RedisNodes.SINGLE).getInstance().info(InfoSection.COMMANDSTATS);
        long calls = 0;
        for (String name : List.of("cmdstat_eval", "cmdstat_evalsha")) {
            String line = stats.getOrDefault(name, "calls=0,");
            calls += Long.parseLong(line.substring(line.indexOf('=') + 1, line.indexOf(',')));
        }
        return calls;
    }

    private void join() throws InterruptedException {
        for (Thread waiter : waiters) {
            waiter.join();
        }
        waiters = List.of();
    }

    private String free() throws InterruptedException {
        long begun = System.nanoTime();
        int lost = release();
        join();
        long nanos = System.nanoTime() - begun;
        return "drained nanos=" + nanos + " errors=" + (mishaps.get() + lost);
    }

    private String handles(Arguments args) {
        int count = (int) args.number("count");
        retained = new RLock[count];
        long bytes = allocated();
        long begun = System.nanoTime();
        for (int i = 0; i < count; i++) {
            retained[i] = lock(client, args.lock(i));
        }
        long nanos = System.nanoTime() - begun;
        return "handles nanos=" + nanos + " heap=" + (allocated() - bytes);
    }

    private static long allocated() {
        var threads = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        return threads.getThreadAllocatedBytes(Thread.currentThread().getId());
    }

    private String start(int count) {
        long begun = System.nanoTime();
        for (int i = 0; i < count; i++) {
            RedissonClient own = connect(new Config());
            RLock lock = lock(own, "peers:start");
            lock.lock();
            lock.unlock();
            own.shutdown();
        }
        return "started nanos=" + (System.nanoTime() - begun);
    }

    /** The name=value words of a command. */
    private static final class Arguments {
        private final Map<String, String> values = new HashMap<>();

        Arguments(String[] words) {
            for (String word : words) {
                int sign = word.indexOf('=');
                if (sign > 0) {
                    values.put(word.substring(0, sign), word.substring(sign + 1));
                }
            }
        }

        String text(String name) {
            return values.get(name);
        }

        /** Returns a number, or 0 for a missing argument. */
        long number(String name) {
            return Long.parseLong(values.getOrDefault(name, "0"));
        }

        boolean shared() {
            return number("shared") == 1;
        }

        String lock(int i) {
            return shared() ? text("locks") : text("locks") + ":" + i;
        }
    }
}
