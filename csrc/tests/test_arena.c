/* What a file system may answer when a shared table grows: interruptions, quotas. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "check.h"
#include "memory/handle.h"

static const pst_column KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column STATES[] = {{.name = "s", .type = PST_STRING}};

static struct {
    int answer;     /* an errno */
    uint64_t calls; /* that get it, of those to come */
    uint64_t largest /* piece that is given; 0: any */;
    uint64_t seen;
} fake;

/* Takes the C library's place. */
int posix_fallocate(int fd, off_t offset, off_t size) {
    if (fake.calls) {
        fake.calls--;
        fake.seen++;
        return fake.answer;
    }
    if (fake.largest && (uint64_t)size > fake.largest) {
        fake.seen++;
        return EINTR;
    }
    return syscall(SYS_fallocate, fd, 0, offset, size) ? errno : 0;
}

static char path[] = "/dev/shm/pst-arena-XXXXXX";

static pst_status open_table(pst_table **t) {
    static const pst_schema schema = {1, 1, KEY, STATES};
    static const pst_identity identity = {.owner_pid = 1};
    pst_table_options o = {.max_parallelism = 4,
                           .last_key_group = 3,
                           .limit_bytes = (uint64_t)1 << 30,
                           .path = path,
                           .identity = &identity,
                           .create = 1};
    return pst_table_open(&schema, &o, t, NULL, NULL);
}

static pst_status fill(pst_table *t, uint64_t from, uint64_t n) {
    static uint8_t big[50000];
    pst_status s = PST_OK;
    for (uint64_t k = from; !s && k < from + n; k++) {
        pst_cell cell = {{0, 0}, {big, sizeof big}};
        s = pst_key_set_word(t, k);
        if (!s)
            s = pst_value_put(t, 0, &cell);
    }
    return s;
}

static void test_interrupted(void) {
    pst_table *t = NULL;
    fake.answer = EINTR;
    fake.calls = 3;
    REQUIRE(open_table(&t) == PST_OK);
    CHECK_EQ(fake.calls, 0);
    fake.calls = 20;
    CHECK_EQ(fill(t, 0, 20), PST_OK);
    CHECK_EQ(fake.calls, 0);
    /* Signals that come so often that no large piece is ever finished. */
    fake.largest = 4096;
    fake.seen = 0;
    CHECK_EQ(fill(t, 20, 400), PST_OK);
    CHECK(fake.seen > 0);
    fake.largest = 0;
    pst_table_close(t);
    unlink(path);
}

static void on_alarm(int signal) {
    (void)signal;
}

/* The real thing: a timer that fires all the time. */
static void test_signals(void) {
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    pst_table *t = NULL;
    sigaction(SIGALRM, &action, NULL);
    REQUIRE(open_table(&t) == PST_OK);
    setitimer(ITIMER_REAL, &often, NULL);
    CHECK_EQ(fill(t, 0, 2000), PST_OK);
    setitimer(ITIMER_REAL, &never, NULL);
    pst_table_close(t);
    unlink(path);
}

/* No room, in whatever words: a status that says so, and the table is good after the roll back. */
static void test_refused(int answer, pst_status expected) {
    pst_table *t = NULL;
    fake.answer = answer;
    fake.calls = 1;
    CHECK_EQ(open_table(&t), expected);
    unlink(path);
    REQUIRE(open_table(&t) == PST_OK);
    fake.calls = 1;
    CHECK_EQ(fill(t, 0, 100), expected);
    CHECK_EQ(fake.calls, 0);
    CHECK_EQ(pst_table_detail(t)->sys_errno, answer);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK_EQ(fill(t, 0, 100), PST_OK);
    pst_table_close(t);
    unlink(path);
}

int main(void) {
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    unlink(path);
    test_interrupted();
    test_signals();
    test_refused(ENOSPC, PST_NO_SPACE);
    test_refused(EDQUOT, PST_NO_SPACE);
    test_refused(EFBIG, PST_NO_SPACE);
    test_refused(EIO, PST_IO);
    return check_report();
}
