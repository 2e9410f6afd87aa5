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
 * Executes orders from standard input, one per line: {@code THREAD VERB KIND NAME ARGUMENT...}.
 * Each thread is one holder and executes its orders in sequence. The answer is
 * {@code THREAD ok VALUE} or {@code THREAD error CLASS: MESSAGE}. The order
 * {@code THREAD parked OTHER} asks whether another thread sleeps until a message.
 *
 * <p>Arguments: the addresses of the servers, separated by commas, and the time-out of the
 * watchdog in milliseconds. Locks are on the first server; a red lock is on all servers. With the
 * prefix {@code cluster=}, the addresses are those of a cluster's nodes; with the prefix
 * {@code MASTER=}, those of the sentinels of the master with that name.
 */
public final class Driver {
    /** What Redisson's threads sleep in until a message: those of a latch in the second one. */
    private static final List<String> WAITS =
        List.of(Semaphore.class.getName(), ReclosableLatch.class.getName());

    private final RedissonClient[] clients;
    private final Map<String, ExecutorService> threads = new HashMap<>();
    private final Synchronizers synchronizers;

    private Driver(String[] addresses, long watchdog) {
        clients = new RedissonClient[addresses.length];
        for (int i = 0; i < addresses.length; i++) {
            Config config = new Config();
            config.setLockWatchdogTimeout(watchdog);
            config.useSingleServer().setAddress(addresses[i]).setConnectionMinimumIdleSize(2)
                .setConnectionPoolSize(16);
            clients[i] = Redisson.create(config);
        }
        synchronizers = new Synchronizers(clients[0]);
    }

    /** Creates one client of a cluster, or of the master that sentinels announce. */
    private Driver(String topology, String[] addresses, long watchdog) {
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
        clients = new RedissonClient[] {Redisson.create(config)};
        synchronizers = new Synchronizers(clients[0]);
    }

    private static Driver start(String where, long watchdog) {
        String[] parts = where.split("=");
        return parts.length == 1
            ? new Driver(where.split(","), watchdog)
            : new Driver(parts[0], parts[1].split(","), watchdog);
    }

    public static void main(String[] arguments) throws Exception {
        Driver driver = start(arguments[0], Long.parseLong(arguments[1]));
        print("driver ok ready");
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            String[] words = order.split(" ");
            ExecutorService thread = driver.threads.computeIfAbsent(words[0],
                label -> Executors.newSingleThreadExecutor(run -> new Thread(run, label)));
            thread.execute(() -> driver.execute(words));
        }
        System.exit(0);
    }

    private static synchronized void print(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private void execute(String[] words) {
        try {
            Object value;
            if (words[1].equals("parked")) {
                value = isParked(words[2]);
            } else if (Synchronizers.has(words[2])) {
                value = synchronizers.perform(words[1], words[2], words[3], arguments(words));
            } else {
                value = perform(words[1], words[2], words[3], words.length > 4 ? words[4] : "");
            }
            print(words[0] + " ok " + value);
        } catch (Throwable thrown) {
            String message = String.valueOf(thrown.getMessage()).replace('\n', ' ');
            print(words[0] + " error " + thrown.getClass().getSimpleName() + ": " + message);
        }
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
