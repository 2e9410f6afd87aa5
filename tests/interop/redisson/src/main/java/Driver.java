import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;
import org.redisson.misc.ReclosableLatch;

/**
 * Executes orders from standard input, one per line:
 * {@code SESSION/THREAD VERB KIND NAME ARGUMENT...}. Each thread is one holder and executes its
 * orders in sequence. The answer is {@code SESSION/THREAD ok VALUE} or
 * {@code SESSION/THREAD error CLASS: MESSAGE}. The order {@code SESSION/THREAD parked OTHER} asks
 * whether another thread of the session sleeps until a message.
 *
 * <p>A session is a client, or several, with servers of its own. It begins with the order
 * {@code SESSION/THREAD open SERVERS WATCHDOG} and ends with {@code SESSION/THREAD close}, the
 * last of the session. Servers
 * are their addresses, separated by commas. Locks are on the first server; a red lock is on all
 * servers. With the prefix {@code cluster=}, the addresses are those of a cluster's nodes; with the
 * prefix {@code MASTER=}, those of the sentinels of the master with that name. The time-out of the
 * watchdog is in milliseconds.
 */
public final class Driver {
    /** What Redisson's threads sleep in until a message: those of a latch in the second one. */
    private static final List<String> WAITS =
        List.of(Semaphore.class.getName(), ReclosableLatch.class.getName());

    private final Map<String, ExecutorService> threads = new HashMap<>();
    private volatile RedissonClient[] clients;

    private static RedissonClient[] connect(String servers, long watchdog) {
        String[] parts = servers.split("=");
        String[] addresses = parts[parts.length - 1].split(",");
        if (parts.length == 2) {
            return new RedissonClient[] {connect(parts[0], addresses, watchdog)};
        }
        RedissonClient[] clients = new RedissonClient[addresses.length];
        for (int i = 0; i < addresses.length; i++) {
            Config config = new Config();
            config.setLockWatchdogTimeout(watchdog);
            config.useSingleServer().setAddress(addresses[i]).setConnectionMinimumIdleSize(2)
                .setConnectionPoolSize(16);
            clients[i] = Redisson.create(config);
        }
        return clients;
    }

    /** Creates a client of a cluster, or of the master that sentinels announce. */
    private static RedissonClient connect(String topology, String[] addresses, long watchdog) {
        Config config = new Config();
        config.setLockWatchdogTimeout(watchdog);
        if (topology.equals("cluster")) {
            config.useClusterServers().addNodeAddress(addresses).setScanInterval(500)
                .setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(1);
        } else {
            config.useSentinelServers().setMasterName(topology).addSentinelAddress(addresses)
                .setCheckSentinelsList(false).setScanInterval(500)
                .setMasterConnectionMinimumIdleSize(2).setSlaveConnectionMinimumIdleSize(1);
        }
        return Redisson.create(config);
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, Driver> sessions = new HashMap<>();
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            Driver session =
                sessions.computeIfAbsent(words[0].split("/")[0], number -> new Driver());
            ExecutorService thread = session.threads.computeIfAbsent(words[0],
                label -> Executors.newSingleThreadExecutor(run -> new Thread(run, label)));
            thread.execute(() -> session.execute(words));
        }
        for (Driver session : sessions.values()) {
            for (ExecutorService thread : session.threads.values()) {
                thread.shutdown();
                thread.awaitTermination(10, TimeUnit.SECONDS);
            }
        }
        System.exit(0);
    }

    private static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void execute(String[] words) {
        try {
            print(words[0] + " ok " + answer(words));
        } catch (Throwable thrown) {
            String message = String.valueOf(thrown.getMessage()).replace('\n', ' ');
            print(words[0] + " error " + thrown.getClass().getSimpleName() + ": " + message);
        }
    }

    private Object answer(String[] words) throws Exception {
        switch (words[1]) {
            case "open":
                clients = connect(words[2], Long.parseLong(words[3]));
                return "opened";
            case "close": close(); return "closed";
            case "parked": return isParked(words[0].split("/")[0] + "/" + words[2]);
            default:
        }
        return Synchronizers.has(words[2])
            ? Synchronizers.perform(clients[0], words[1], words[2], words[3], arguments(words))
            : perform(words[1], words[2], words[3], words.length > 4 ? words[4] : "");
    }

    /** Ends the clients, and then the threads, of which one executes this. */
    private void close() {
        for (RedissonClient client : clients) {
            client.shutdown(0, 2, TimeUnit.SECONDS);
        }
        threads.values().forEach(ExecutorService::shutdownNow);
    }

    /** Returns whether a thread sleeps until a message of a release, which it receives then. */
    private static boolean isParked(String label) {
        return Thread.getAllStackTraces().entrySet().stream()
            .filter(thread -> thread.getKey().getName().equals(label))
            .flatMap(thread -> Arrays.stream(thread.getValue()))
            .anyMatch(frame -> WAITS.contains(frame.getClassName()));
    }

    private static List<String> arguments(String[] words) {
        return Arrays.asList(words).subList(4, words.length);
    }

    private RLock lock(String kind, String name) {
        RedissonClient client = clients[0];
        switch (kind) {
            case "plain": return client.getLock(name);
            case "fair": return client.getFairLock(name);
            case "fenced": return client.getFencedLock(name);
            case "spin": return client.getSpinLock(name);
            case "read": return client.getReadWriteLock(name).readLock();
            case "write": return client.getReadWriteLock(name).writeLock();
            case "multi":
                String[] names = name.split(",");
                RLock[] locks = new RLock[names.length];
                for (int i = 0; i < names.length; i++) {
                    locks[i] = client.getLock(names[i]);
                }
                return client.getMultiLock(locks);
            case "red":
                RLock[] members = new RLock[clients.length];
                for (int i = 0; i < clients.length; i++) {
                    members[i] = clients[i].getLock(name);
                }
                return client.getRedLock(members);
            default: throw new IllegalArgumentException(kind);
        }
    }

    private Object perform(String verb, String kind, String name, String argument)
        throws Exception {
        RLock lock = lock(kind, name);
        switch (verb) {
            case "lock": lock.lock(); return "locked";
            case "lease":
                lock.lock(Long.parseLong(argument), TimeUnit.MILLISECONDS);
                return "locked";
            case "try": return lock.tryLock();
            case "wait": return lock.tryLock(Long.parseLong(argument), TimeUnit.MILLISECONDS);
            case "unlock": lock.unlock(); return "unlocked";
            case "force": return lock.forceUnlock();
            case "held": return lock.isHeldByCurrentThread();
            case "count": return lock.getHoldCount();
            case "locked": return lock.isLocked();
            case "token": return ((RFencedLock) lock).lockAndGetToken();
            case "owner": return clients[0].getId() + ":" + Thread.currentThread().getId();
            case "add": return add(lock, Integer.parseInt(argument));
            default: throw new IllegalArgumentException(verb);
        }
    }

    /** Increments the counter under the lock, by separate commands for the read and the write. */
    private String add(RLock lock, int times) {
        RBucket<String> counter = clients[0].getBucket("counter", StringCodec.INSTANCE);
        for (int i = 0; i < times; i++) {
            lock.lock();
            try {
                String before = counter.get();
                counter.set(String.valueOf(before == null ? 1 : Integer.parseInt(before) + 1));
            } finally {
                lock.unlock();
            }
        }
        return "added";
    }
}
