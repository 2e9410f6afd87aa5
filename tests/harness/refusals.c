/* A sandbox, as a preloaded library: refuses the boot clock, options of sockets, the signal for the
 * death of the parent, and the change of a terminal's foreground group, with EPERM. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int refuse(void) {
    errno = EPERM;
    return -1;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    return clock == CLOCK_BOOTTIME ? refuse() : (int)syscall(SYS_clock_gettime, clock, time);
}

int setsockopt(int socket, int level, int option, const void *value, socklen_t length) {
    (void)socket, (void)level, (void)option, (void)value, (void)length;
    return refuse();
}

int tcsetpgrp(int terminal, pid_t group) {
    (void)terminal, (void)group;
    return refuse();
}

int prctl(int option, ...) {
    if (option == PR_SET_PDEATHSIG) return refuse();
    va_list list;
    va_start(list, option);
    unsigned long rest[4];
    for (int at = 0; at < 4; at++) rest[at] = va_arg(list, unsigned long);
    va_end(list);
    return (int)syscall(SYS_prctl, option, rest[0], rest[1], rest[2], rest[3]);
}
