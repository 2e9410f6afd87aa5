/* A storm of signals, as a preloaded library: each thread gets a signal every 5 ms, which its handler
 * ignores. The handler has interrupted system calls begin again, where the system can. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static void ignore(int signal) {
    (void)signal;
}

static void *storm(void *unused) {
    (void)unused;
    pid_t self = (pid_t)syscall(SYS_gettid);
    for (;; usleep(5000)) {
        DIR *threads = opendir("/proc/self/task");
        if (!threads) continue;
        for (struct dirent *entry; (entry = readdir(threads));) {
            pid_t thread = atoi(entry->d_name);
            if (thread > 0 && thread != self) syscall(SYS_tgkill, getpid(), thread, SIGURG);
        }
        closedir(threads);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    struct sigaction action = {.sa_handler = ignore, .sa_flags = SA_RESTART};
    pthread_t thread;
    if (sigaction(SIGURG, &action, NULL) == 0) pthread_create(&thread, NULL, storm, NULL);
}
