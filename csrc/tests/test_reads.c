/* Reads of files, by io_uring and by threads: what comes is what the file has, whatever single calls
 * return; a file that is gone or cut is an error and nothing else; children begin anew. */
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "reads/reads.h"

#ifdef __SANITIZE_THREAD__
#define UNDER_TSAN 1 /* which knows no threads after a fork */
#else
#define UNDER_TSAN 0
#endif

enum { FILE_BYTES = (3 << 20) + 1234, SYS_URING_SETUP = 425 };

static char folder[256], path[300];

static uint8_t byte_at(uint64_t offset) {
    return (uint8_t)((offset * 2654435761u) >> 13);
}

static void make_file(const char *at, uint64_t size) {
    uint8_t *bytes = malloc(size);
    int fd = open(at, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    REQUIRE(bytes && fd >= 0);
    for (uint64_t i = 0; i < size; i++)
        bytes[i] = byte_at(i);
    REQUIRE(write(fd, bytes, size) == (ssize_t)size);
    fsync(fd); /* O_DIRECT reads what the disk has */
    close(fd);
    free(bytes);
}

static pst_read_file open_file(int direct) {
    pst_read_file f;
    uint64_t size = 0;
    int sys_errno = 0;
    REQUIRE(!pst_read_file_open(&f, path, &size, &sys_errno));
    CHECK_EQ(size, FILE_BYTES);
    if (direct)
        pst_read_file_direct(&f);
    return f;
}

static pst_reads *engine(int no_uring, uint64_t pool, int32_t depth) {
    pst_reads_options o = {.pool_bytes = pool, .depth = depth, .threads = 8, .no_uring = no_uring};
    pst_reads *r = NULL;
    REQUIRE(!pst_reads_create(&o, &r));
    return r;
}

typedef struct outcome {
    uint32_t right;
    uint32_t wrong;
    uint32_t failed;
    int sys_errno;
} outcome;

static void arrive(pst_reads *r, const uint64_t *offsets, const uint32_t *sizes, outcome *o) {
    pst_arrival a;
    pst_reads_next(r, &a);
    uint32_t same = 0;
    if (a.sys_errno) {
        o->failed++;
        o->sys_errno = a.sys_errno;
    } else {
        while (same < sizes[a.tag] && a.data[same] == byte_at(offsets[a.tag] + same))
            same++;
        o->right += same == sizes[a.tag];
        o->wrong += same < sizes[a.tag];
    }
    pst_reads_give(r, &a);
}

/* Reads drawn pieces, as many at a time as there may be. */
static outcome read_pieces(pst_reads *r, pst_read_file *f, uint32_t n, uint32_t largest,
                           uint64_t seed) {
    uint64_t *offsets = malloc(n * sizeof *offsets), rng = seed;
    uint32_t *sizes = malloc(n * sizeof *sizes);
    outcome o = {0, 0, 0, 0};
    REQUIRE(offsets && sizes && !pst_reads_enter(r));
    for (uint32_t i = 0; i < n; i++) {
        sizes[i] = 1 + (uint32_t)(check_random(&rng) % largest);
        offsets[i] = check_random(&rng) % (FILE_BYTES - sizes[i] + 1);
        if (i == n / 2) /* the end, where a page is not whole */
            offsets[i] = FILE_BYTES - sizes[i];
        pst_status s;
        while ((s = pst_reads_start(r, f, offsets[i], sizes[i], i)) == PST_BUSY)
            arrive(r, offsets, sizes, &o);
        CHECK_EQ(s, PST_OK);
    }
    while (pst_reads_pending(r))
        arrive(r, offsets, sizes, &o);
    pst_reads_leave(r);
    free(offsets);
    free(sizes);
    return o;
}

static void check_right(pst_reads *r, pst_read_file *f, uint32_t n, uint32_t largest) {
    outcome o = read_pieces(r, f, n, largest, n);
    CHECK_EQ(o.right, n);
    CHECK_EQ(o.wrong + o.failed, 0);
}

static void run_plain(int no_uring, int direct) {
    pst_read_file f = open_file(direct);
    pst_reads *r = engine(no_uring, 1 << 20, 16);
    pst_reads_stats stats;
    check_right(r, &f, 300, 9000);
    check_right(r, &f, 100, 140000); /* some above an eighth of the pool */
    check_right(r, &f, 10, 2 << 20);
    pst_reads_get_stats(r, &stats);
    CHECK_EQ(stats.reads, 410);
    CHECK(stats.flight_most > 1 && stats.flight_most <= 16);
    CHECK(no_uring == 0 || !stats.uring);
    pst_reads_release(r);
    pst_read_file_close(&f);
}

/* ---- what calls return ------------------------------------------------------------------------- */

static _Atomic uint64_t hook_calls;
static int hook_kind;

enum { HOOK_EINTR = 1, HOOK_SHORT, HOOK_EIO, HOOK_STALLED, HOOK_ODD };

static int64_t hook(const pst_read *r, int64_t result) {
    uint64_t call = atomic_fetch_add(&hook_calls, 1);
    switch (hook_kind) {
    case HOOK_EINTR:
        return call % 3 ? (call % 3 == 1 ? -EINTR : -EAGAIN) : result;
    case HOOK_SHORT:
        return call % 2 && result > PST_READ_ALIGN ? PST_READ_ALIGN : result;
    case HOOK_ODD: /* not a multiple of a page: what was read of it is read again */
        return call % 2 && result > PST_READ_ALIGN ? PST_READ_ALIGN + 77 : result;
    case HOOK_EIO:
        return call % 5 == 4 ? -EIO : result;
    case HOOK_STALLED:
        return r->offset % 3 ? result : -EINTR;
    }
    return result;
}

static outcome run_hooked(int no_uring, int kind, uint32_t n) {
    pst_read_file f = open_file(1);
    pst_reads *r = engine(no_uring, 1 << 20, 16);
    hook_kind = kind;
    hook_calls = 0;
    pst_read_hook = hook;
    outcome o = read_pieces(r, &f, n, 60000, 5);
    pst_read_hook = NULL;
    CHECK_EQ(o.wrong, 0);
    CHECK_EQ(o.right + o.failed, n);
    pst_reads_release(r);
    pst_read_file_close(&f);
    return o;
}

static void run_hooks(int no_uring) {
    CHECK_EQ(run_hooked(no_uring, HOOK_EINTR, 200).right, 200);
    CHECK_EQ(run_hooked(no_uring, HOOK_SHORT, 200).right, 200);
    CHECK_EQ(run_hooked(no_uring, HOOK_ODD, 200).right, 200);
    outcome o = run_hooked(no_uring, HOOK_EIO, 200);
    CHECK_EQ(o.failed, 40);
    CHECK_EQ(o.sys_errno, EIO);
    o = run_hooked(no_uring, HOOK_STALLED, 200);
    CHECK(o.failed > 0 && o.right > 0);
    CHECK_EQ(o.sys_errno, EINTR);
}

/* ---- files that change ------------------------------------------------------------------------- */

static void run_cut(int no_uring, int direct) {
    pst_read_file f = open_file(direct), missing;
    pst_reads *r = engine(no_uring, 0, 0);
    uint64_t size;
    int sys_errno = 0;
    check_right(r, &f, 20, 9000);
    REQUIRE(!truncate(path, FILE_BYTES / 2 + 100));
    outcome o = read_pieces(r, &f, 200, 9000, 3);
    CHECK(o.failed > 50 && o.right > 50);
    CHECK_EQ(o.wrong, 0);
    CHECK_EQ(o.sys_errno, ENODATA);
    REQUIRE(!truncate(path, 0));
    CHECK_EQ(read_pieces(r, &f, 50, 9000, 3).failed, 50);
    make_file(path, FILE_BYTES);
    pst_read_file_close(&f);
    f = open_file(direct);
    REQUIRE(!unlink(path));
    check_right(r, &f, 50, 9000); /* who has it open reads on */
    CHECK_EQ(pst_read_file_open(&missing, path, &size, &sys_errno), PST_NOT_FOUND);
    CHECK_EQ(sys_errno, ENOENT);
    CHECK_EQ(pst_read_file_open(&missing, "/proc/self/mem/x", &size, &sys_errno), PST_IO);
    CHECK_EQ(sys_errno, ENOTDIR);
    pst_read_file_close(&f);
    make_file(path, FILE_BYTES);
    pst_reads_release(r);
}

/* Whoever leaves early leaves nothing behind. */
static void run_leave(int no_uring) {
    pst_read_file f = open_file(1);
    pst_reads *r = engine(no_uring, 1 << 20, 16);
    for (int round = 0; round < 20; round++) {
        pst_arrival a;
        REQUIRE(!pst_reads_enter(r));
        CHECK_EQ(pst_reads_enter(r), PST_INVALID);
        for (uint64_t i = 0; i < 12; i++)
            CHECK_EQ(pst_reads_start(r, &f, i * 50000, i == 5 ? 400000 : 9000, i), PST_OK);
        pst_reads_next(r, &a); /* and is not given back */
        pst_reads_leave(r);
    }
    check_right(r, &f, 50, 9000);
    pst_reads_release(r);
    pst_read_file_close(&f);
}

static void run_memory(int no_uring) {
    pst_read_file f = open_file(1);
    pst_budget *budget = NULL;
    pst_budget_stats stats;
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    pst_reads_options o = {.no_uring = no_uring, .threads = 4, .budget = budget};
    for (int64_t i = 0; i < 20; i++) {
        pst_reads *r = NULL;
        check_fail_alloc(i, 1);
        pst_status s = pst_reads_create(&o, &r);
        if (!s)
            s = pst_reads_enter(r);
        if (!s) {
            s = pst_reads_start(r, &f, 0, 2 << 20, 1);
            pst_reads_leave(r);
        }
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(s, refused ? PST_NO_MEMORY : PST_OK);
        if (r) {
            check_right(r, &f, 10, 9000);
            pst_budget_get_stats(budget, &stats);
            CHECK(stats.private_bytes >= 8 << 20 && stats.private_bytes < 10 << 20);
        }
        pst_reads_release(r);
        pst_budget_get_stats(budget, &stats);
        CHECK_EQ(stats.private_bytes, 0);
        if (!refused)
            break;
        CHECK(i < 19);
    }
    pst_budget_release(budget);
    REQUIRE(!pst_budget_create(1 << 20, &budget));
    o.budget = budget;
    pst_reads *r = NULL;
    REQUIRE(!pst_reads_create(&o, &r));
    CHECK_EQ(pst_reads_enter(r), PST_LIMIT);
    pst_reads_release(r);
    pst_budget_release(budget);
    o = (pst_reads_options){.depth = -1};
    CHECK_EQ(pst_reads_create(&o, &r), PST_INVALID);
    o = (pst_reads_options){.pool_bytes = 1};
    CHECK_EQ(pst_reads_create(&o, &r), PST_INVALID);
    pst_read_file_close(&f);
}

/* Large reads together have as much memory as the pool, and where the budget has less, one by one. */
static void run_large(int no_uring) {
    enum { LARGE = 400000, ALL = 12 };
    pst_read_file f = open_file(1);
    pst_budget *budget = NULL;
    uint64_t offsets[ALL] = {0};
    uint32_t sizes[ALL];
    for (int few = 0; few < 2; few++) {
        outcome o = {0, 0, 0, 0};
        pst_budget_stats stats;
        pst_reads *r = NULL;
        uint64_t most = 0;
        REQUIRE(!pst_budget_create(few ? (18 << 20) / 10 : 64 << 20, &budget));
        pst_reads_options ro = {
            .pool_bytes = 1 << 20, .threads = 4, .no_uring = no_uring, .budget = budget};
        REQUIRE(!pst_reads_create(&ro, &r) && !pst_reads_enter(r));
        for (uint32_t i = 0; i < ALL; i++) {
            pst_status s;
            offsets[i] = i * 100000;
            sizes[i] = LARGE;
            while ((s = pst_reads_start(r, &f, offsets[i], sizes[i], i)) == PST_BUSY) {
                REQUIRE(pst_reads_pending(r));
                arrive(r, offsets, sizes, &o);
            }
            CHECK_EQ(s, PST_OK);
            pst_budget_get_stats(budget, &stats);
            most = stats.private_bytes > most ? stats.private_bytes : most;
        }
        while (pst_reads_pending(r))
            arrive(r, offsets, sizes, &o);
        pst_reads_leave(r);
        CHECK_EQ(o.right, ALL);
        CHECK(most < (uint64_t)22 << 17); /* the pool, as much again, and some */
        CHECK(most > (few ? (uint64_t)11 : (uint64_t)14) << 17);
        pst_reads_release(r);
        pst_budget_get_stats(budget, &stats);
        CHECK_EQ(stats.private_bytes, 0);
        pst_budget_release(budget);
    }
    pst_read_file_close(&f);
}

/* ---- threads and processes --------------------------------------------------------------------- */

typedef struct sharer {
    pst_reads *reads;
    uint32_t right;
} sharer;

static void *share(void *arg) {
    sharer *s = arg;
    pst_read_file f = open_file(1);
    for (uint64_t i = 0; i < 10; i++)
        s->right += read_pieces(s->reads, &f, 40, 9000, i).right;
    pst_read_file_close(&f);
    return NULL;
}

static void run_shared(int no_uring) {
    pst_reads *r = engine(no_uring, 1 << 20, 16);
    sharer sharers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        sharers[i] = (sharer){r, 0};
        REQUIRE(!pthread_create(&threads[i], NULL, share, &sharers[i]));
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        CHECK_EQ(sharers[i].right, 400);
    }
    pst_reads_release(r);
}

static int child_status(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

/* In the middle of reads a child is made, which reads by itself; both get what the file has. */
static void run_fork(int no_uring) {
    pst_read_file f = open_file(1);
    pst_reads *r = engine(no_uring, 1 << 20, 16);
    check_right(r, &f, 50, 9000);
    for (int round = 0; round < 5; round++) {
        uint64_t offsets[16];
        uint32_t sizes[16];
        outcome o = {0, 0, 0, 0};
        REQUIRE(!pst_reads_enter(r));
        for (uint32_t i = 0; i < 16; i++) {
            offsets[i] = i * 100000;
            sizes[i] = 9000;
            CHECK_EQ(pst_reads_start(r, &f, offsets[i], sizes[i], i), PST_OK);
        }
        pid_t child = fork();
        if (child == 0) {
            outcome own = read_pieces(r, &f, 100, 60000, 9);
            pst_reads_release(r);
            pst_read_file_close(&f);
            _exit(own.right == 100 ? 0 : 1);
        }
        REQUIRE(child > 0);
        while (pst_reads_pending(r))
            arrive(r, offsets, sizes, &o);
        pst_reads_leave(r);
        CHECK_EQ(o.right, 16);
        CHECK_EQ(child_status(child), 0);
    }
    check_right(r, &f, 50, 9000);
    pid_t child = fork();
    if (child == 0) { /* lets go without a read */
        pst_reads_release(r);
        _exit(0);
    }
    CHECK_EQ(child_status(child), 0);
    check_right(r, &f, 50, 9000);
    pst_reads_release(r);
    pst_read_file_close(&f);
}

/* A child that is made while another thread of its parent begins anew begins anew by itself. */
static void run_fork_twice(int no_uring) {
    pst_read_file f = open_file(1);
    pst_reads *r = engine(no_uring, 1 << 20, 16);
    check_right(r, &f, 50, 9000);
#ifndef __SANITIZE_ADDRESS__ /* whose allocator stays locked in a child, if a thread was in it */
    pid_t child = fork();
    if (child == 0) {
        sharer sharers[2] = {{r, 0}, {r, 0}};
        pthread_t threads[2];
        int failed = 0;
        for (int i = 0; i < 2; i++)
            REQUIRE(!pthread_create(&threads[i], NULL, share, &sharers[i]));
        for (int i = 0; i < 20; i++) {
            pid_t own = fork();
            if (own == 0) {
                alarm(20);
                _exit(read_pieces(r, &f, 10, 9000, 3).right == 10 ? 0 : 1);
            }
            failed += child_status(own) != 0;
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
            failed += sharers[i].right != 400;
        }
        _exit(failed);
    }
    CHECK_EQ(child_status(child), 0);
#endif
    /* The same without luck: as a thread that is none of the child's would have left it. */
    int32_t *pid = pst_reads_pid(r);
    pid_t lone = fork();
    if (lone == 0) {
        *pid = ~(int32_t)getppid();
        alarm(20);
        _exit(read_pieces(r, &f, 10, 9000, 3).right == 10 ? 0 : 1);
    }
    CHECK_EQ(child_status(lone), 0);
    pst_reads_release(r);
    pst_read_file_close(&f);
}

/* What the parent reads into memory of its own is no charge of the child's. */
static void run_fork_large(int no_uring) {
    pst_read_file f = open_file(1);
    pst_budget *budget = NULL;
    pst_reads *r = NULL;
    REQUIRE(!pst_budget_create(64 << 20, &budget));
    pst_reads_options o = {
        .pool_bytes = 1 << 20, .threads = 4, .no_uring = no_uring, .budget = budget};
    REQUIRE(!pst_reads_create(&o, &r) && !pst_reads_enter(r));
    CHECK_EQ(pst_reads_start(r, &f, 0, 500000, 0), PST_OK);
    pid_t child = fork();
    if (child == 0) {
        pst_budget_stats stats;
        uint32_t right = read_pieces(r, &f, 10, 9000, 3).right;
        pst_reads_release(r);
        pst_budget_get_stats(budget, &stats);
        _exit(right == 10 && !stats.private_bytes ? 0 : 1);
    }
    pst_reads_leave(r);
    CHECK_EQ(child_status(child), 0);
    pst_reads_release(r);
    pst_budget_release(budget);
    pst_read_file_close(&f);
}

/* As the default profiles of containers do. */
static int refuse_uring(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_URING_SETUP, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

static void run_refused(void) {
    pid_t child = fork();
    if (child == 0) {
        if (refuse_uring())
            _exit(77);
        pst_read_file f = open_file(1);
        pst_reads *r = engine(0, 0, 0);
        pst_reads_stats stats;
        outcome o = read_pieces(r, &f, 100, 9000, 1);
        pst_reads_get_stats(r, &stats);
        _exit(o.right == 100 && !stats.uring ? 0 : 1);
    }
    int status = child_status(child);
    CHECK(status == 0 || status == 77);
}

int main(void) {
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/pst_reads_XXXXXX", tmp ? tmp : "/tmp");
    REQUIRE(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/file", folder);
    make_file(path, FILE_BYTES);
    run_refused();
    for (int no_uring = 0; no_uring < 2; no_uring++) {
        for (int direct = 0; direct < 2; direct++) {
            run_plain(no_uring, direct);
            run_cut(no_uring, direct);
        }
        run_hooks(no_uring);
        run_leave(no_uring);
        run_memory(no_uring);
        run_large(no_uring);
        run_shared(no_uring);
        if (UNDER_TSAN)
            continue;
        run_fork(no_uring);
        run_fork_twice(no_uring);
        run_fork_large(no_uring);
    }
    unlink(path);
    rmdir(folder);
    return check_report();
}
