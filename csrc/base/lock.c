#include "base/lock.h"

#include <errno.h>
#include <pthread.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

static struct {
    pthread_mutex_t mutex;
    int *fds; /* -1: free */
    int n;
    int installed;
} registry = {PTHREAD_MUTEX_INITIALIZER, NULL, 0, 0};

static void before_fork(void) {
    pthread_mutex_lock(&registry.mutex);
}
static void after_in_parent(void) {
    pthread_mutex_unlock(&registry.mutex);
}

static void after_in_child(void) {
    for (int i = 0; i < registry.n; i++) {
        if (registry.fds[i] >= 0)
            close(registry.fds[i]);
        registry.fds[i] = -1;
    }
    pthread_mutex_unlock(&registry.mutex);
}

int pst_lock_register(int fd) {
    int place = -1;
    pthread_mutex_lock(&registry.mutex);
    if (!registry.installed)
        registry.installed = pthread_atfork(before_fork, after_in_parent, after_in_child) == 0;
    for (int i = 0; i < registry.n && place < 0; i++)
        if (registry.fds[i] < 0)
            place = i;
    if (place < 0 && registry.installed) {
        int n = registry.n ? registry.n * 2 : 16;
        int *fds = pst_realloc(registry.fds, (size_t)n * sizeof *fds);
        if (fds) {
            for (int i = registry.n; i < n; i++)
                fds[i] = -1;
            place = registry.n;
            registry.fds = fds;
            registry.n = n;
        }
    }
    if (place >= 0)
        registry.fds[place] = fd;
    pthread_mutex_unlock(&registry.mutex);
    return place;
}

int pst_lock_descriptor(int place) {
    pthread_mutex_lock(&registry.mutex);
    int fd = registry.fds[place];
    pthread_mutex_unlock(&registry.mutex);
    return fd;
}

void pst_lock_close(int place) {
    pthread_mutex_lock(&registry.mutex);
    if (registry.fds[place] >= 0)
        close(registry.fds[place]);
    registry.fds[place] = -1;
    pthread_mutex_unlock(&registry.mutex);
}

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

pst_status pst_lock_take(int fd, int32_t timeout_ms) {
    int64_t until = now_ms() + timeout_ms;
    struct timespec pause = {0, 500000};
    while (flock(fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return PST_IO;
        if (now_ms() >= until)
            return PST_BUSY;
        nanosleep(&pause, NULL);
    }
    return PST_OK;
}

void pst_lock_release(int fd) {
    (void)flock(fd, LOCK_UN);
}

int pst_lock_is_free(int fd) {
    if (flock(fd, LOCK_SH | LOCK_NB))
        return 0;
    pst_lock_release(fd);
    return 1;
}
