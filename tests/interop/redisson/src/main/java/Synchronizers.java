import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/**
 * Executes the orders of the driver for semaphores and latches.
 *
 * <p>Times are in milliseconds. Ids of permits are hexadecimal; a list of ids has commas. An
 * acquire without a lease takes permits that never expire.
 */
final class Synchronizers {
    private static final long NEVER = -1;
    private static final List<String> VERBS_WITH_IDS =
        List.of("release", "releaseAll", "lease", "left");

    private Synchronizers() {
    }

    static boolean has(String kind) {
        return List.of("permits", "semaphore", "latch").contains(kind);
    }

    static Object perform(
        RedissonClient client, String verb, String kind, String name, List<String> arguments)
        throws Exception {
        boolean hasId = kind.equals("permits") && VERBS_WITH_IDS.contains(verb);
        String ids = hasId ? arguments.get(0) : "";
        long[] numbers =
            arguments.stream().skip(hasId ? 1 : 0).mapToLong(Long::parseLong).toArray();
        switch (kind) {
            case "permits":
                return permits(client.getPermitExpirableSemaphore(name), verb, numbers, ids);
            case "semaphore": return semaphore(client.getSemaphore(name), verb, numbers);
            default: return latch(client.getCountDownLatch(name), verb, numbers);
        }
    }

    private static int first(long[] numbers) {
        return Math.toIntExact(numbers[0]);
    }

    /** Returns the number at this position, or the duration of a permit without a lease. */
    private static long lease(long[] numbers, int position) {
        return position < numbers.length ? numbers[position] : NEVER;
    }

    private static Object permits(
        RPermitExpirableSemaphore semaphore, String verb, long[] numbers, String ids)
        throws Exception {
        TimeUnit unit = TimeUnit.MILLISECONDS;
        switch (verb) {
            case "acquire":
                return join(semaphore.acquire(first(numbers), lease(numbers, 1), unit));
            case "try":
                return join(semaphore.tryAcquire(first(numbers), 0, lease(numbers, 1), unit));
            case "timed": return join(
                semaphore.tryAcquire(first(numbers), numbers[1], lease(numbers, 2), unit));
            case "release": semaphore.release(ids); return "released";
            case "releaseAll": semaphore.release(Arrays.asList(ids.split(","))); return "released";
            case "lease": return semaphore.updateLeaseTime(ids, numbers[0], unit);
            case "left": return semaphore.getLeaseTime(ids);
            case "set": return semaphore.trySetPermits(first(numbers));
            case "resize": semaphore.setPermits(first(numbers)); return "resized";
            case "add": semaphore.addPermits(first(numbers)); return "added";
            case "available": return semaphore.availablePermits();
            case "acquired": return semaphore.acquiredPermits();
            case "capacity": return semaphore.getPermits();
            case "delete": return semaphore.delete();
            default: throw new IllegalArgumentException(verb);
        }
    }

    /** Returns the ids with commas between them; without an id, the empty text. */
    private static String join(List<String> ids) {
        return String.join(",", ids);
    }

    private static Object semaphore(RSemaphore semaphore, String verb, long[] numbers)
        throws Exception {
        switch (verb) {
            case "acquire": semaphore.acquire(first(numbers)); return "acquired";
            case "try": return semaphore.tryAcquire(first(numbers));
            case "timed":
                return semaphore.tryAcquire(first(numbers), numbers[1], TimeUnit.MILLISECONDS);
            case "release": semaphore.release(first(numbers)); return "released";
            case "set": return semaphore.trySetPermits(first(numbers));
            case "add": semaphore.addPermits(first(numbers)); return "added";
            case "drain": return semaphore.drainPermits();
            case "available": return semaphore.availablePermits();
            case "delete": return semaphore.delete();
            default: throw new IllegalArgumentException(verb);
        }
    }

    private static Object latch(RCountDownLatch latch, String verb, long[] numbers)
        throws Exception {
        switch (verb) {
            case "set": return latch.trySetCount(numbers[0]);
            case "down": latch.countDown(); return "counted";
            case "await": latch.await(); return "open";
            case "timed": return latch.await(numbers[0], TimeUnit.MILLISECONDS);
            case "count": return latch.getCount();
            case "delete": return latch.delete();
            default: throw new IllegalArgumentException(verb);
        }
    }
}
