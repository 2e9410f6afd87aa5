/* A movable clock for a server, as a preloaded library: gettimeofday() plus the offset in the file
 * CLOCK_OFFSET, in microseconds (eight bytes in native order). The server's monotonic clock stays
 * unchanged. libfaketime does the same, but not beneath the jemalloc of Debian's redis-server. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) offset = page;
    close(file);
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
    int64_t micros = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000 + (offset ? *offset : 0);
    time->tv_sec = micros / 1000000;
    time->tv_usec = micros % 1000000;
    return 0;
}
