/* A second process works on a shared table and is killed at random moments, over and over; the
 * first one then attaches, and finds exactly a sealed epoch.
 *
 * What epoch n holds is a function of n: its operations come from a generator seeded with n. So the
 * first process can say what any epoch must look like, however many the second one got done.
 *
 *   test_kill [kills] [seed] [folder]
 */
#include <glob.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "table_model.h"

static const pst_column TEXT_KEY[] = {{.name = "k", .type = PST_STRING}};
static const pst_column LONG_KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column STATES[] = {{.name = "n", .type = PST_INT64, .has_default = 1},
                                    {.name = "s", .type = PST_STRING},
                                    {.name = "i", .type = PST_INT32}};

static char path[512];
static const pst_identity identity = {{1, 2, 3}, 4, 5, 6, {7}};

static pst_table *open_shared(const pst_schema *s, int create, int *created) {
    pst_table_options o = {.max_parallelism = 2,
                           .last_key_group = 1,
                           .limit_bytes = (uint64_t)1 << 28,
                           .path = path,
                           .identity = &identity,
                           .lock_timeout_ms = 5000,
                           .create = create};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, created, NULL) == PST_OK);
    return t;
}

/* The operations of epoch n, on a table that stands at n - 1. */
static void epoch_work(pst_table *t, model *m, uint64_t n) {
    uint64_t random = n * 77 + 1;
    for (int i = 0; i < 6; i++)
        model_many(t, m, &random, 1 + (int)(check_random(&random) % 200), i % 4);
    for (int i = 0; i < 30; i++)
        model_one_key(t, m, &random);
}

/* Never returns: works until it is killed. */
static void child(const pst_schema *s, model *m, int ready) {
    pst_lineage l;
    pst_table *t = open_shared(s, 0, NULL);
    REQUIRE(pst_table_lineage(t, 0, &l) == PST_OK);
    m->seals = l.epoch;
    REQUIRE(write(ready, "r", 1) == 1);
    for (uint64_t turn = 0;; turn++) {
        if (turn % 5 == 4) {
            uint64_t junk = turn;
            model_many(t, m, &junk, 100, 2);
            int32_t back = (int32_t)(turn / 5 % 3);
            if (pst_table_lineage(t, back, &l))
                back = 0;
            REQUIRE(pst_table_rollback(t, back) == PST_OK);
            REQUIRE(pst_table_lineage(t, 0, &l) == PST_OK);
            m->seals = l.epoch;
        }
        epoch_work(t, m, m->seals + 1);
        l = model_lineage(m->seals + 1);
        pst_sealed *sealed = NULL;
        REQUIRE(pst_table_seal(t, &l, turn % 2 ? &sealed : NULL) == PST_OK);
        pst_sealed_destroy(sealed);
        m->seals++;
    }
}

typedef struct tally {
    uint64_t records, ns, longest_ns, epochs;
} tally;

/* Brings the model to epoch n by doing the epochs' work on a heap table of its own. */
static void advance(pst_table *own, model *m, uint64_t n) {
    while (m->seals < n) {
        epoch_work(own, m, m->seals + 1);
        model_seal(own, m, NULL);
    }
}

static void run(const pst_schema *s, int kills, uint64_t seed, tally *sum) {
    model *m = calloc(1, sizeof *m), *childs = calloc(1, sizeof *childs);
    REQUIRE(m && childs);
    m->schema = childs->schema = s;
    m->keys = childs->keys = MODEL_KEYS;
    pst_table_options heap = {.max_parallelism = 2, .last_key_group = 1};
    pst_table *own = NULL;
    REQUIRE(pst_table_open(s, &heap, &own, NULL, NULL) == PST_OK);
    unlink(path);
    int created = 0;
    pst_table *t = open_shared(s, 1, &created);
    CHECK(created);
    pst_table_close(t);
    for (int i = 0; i < kills; i++) {
        int ready[2];
        char byte;
        REQUIRE(pipe(ready) == 0);
        pid_t pid = fork();
        REQUIRE(pid >= 0);
        if (pid == 0)
            child(s, childs, ready[1]);
        close(ready[1]);
        REQUIRE(read(ready[0], &byte, 1) == 1);
        close(ready[0]);
        struct timespec pause = {0, (long)(check_random(&seed) % 6000000)};
        nanosleep(&pause, NULL);
        kill(pid, SIGKILL);
        int status;
        REQUIRE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        t = open_shared(s, 0, &created);
        CHECK(!created);
        pst_lineage l;
        pst_table_stats stats;
        pst_table_get_stats(t, &stats);
        REQUIRE(pst_table_lineage(t, 0, &l) == PST_OK);
        advance(own, m, l.epoch);
        CHECK(m->seals - l.epoch < 3);
        int ok = model_compare(t, &m->sealed[l.epoch % MODEL_EPOCHS], s, m->keys);
        sum->records += stats.recovered_records;
        sum->ns += stats.recovery_ns;
        if (stats.recovery_ns > sum->longest_ns)
            sum->longest_ns = stats.recovery_ns;
        sum->epochs += l.epoch;
        pst_table_close(t);
        if (!ok)
            break;
    }
    pst_table_close(own);
    unlink(path);
    free(childs);
    free(m);
}

static pst_table_options shared_options(void) {
    return (pst_table_options){.max_parallelism = 2,
                               .last_key_group = 1,
                               .limit_bytes = (uint64_t)1 << 28,
                               .path = path,
                               .identity = &identity,
                               .create = 1};
}

static int files_beside(void) {
    char pattern[sizeof path + 2];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s.*", path);
    int n = glob(pattern, 0, NULL, &found) ? 0 : (int)found.gl_pathc;
    globfree(&found);
    return n;
}

static int is_busy(const pst_schema *s) {
    pst_table_options o = shared_options();
    pst_table *other = NULL;
    return pst_table_open(s, &o, &other, NULL, NULL) == PST_BUSY;
}

/* From one table to its successor the lock is held all along. */
static void test_successor(const pst_schema *s) {
    pst_table_options o = shared_options(), heap = {.max_parallelism = 2, .last_key_group = 1};
    pst_table *t = NULL, *next = NULL;
    pst_table_stats stats;
    int32_t successor = 7;
    int created = 0;
    unlink(path);
    REQUIRE(pst_table_open(s, &heap, &t, NULL, NULL) == PST_OK);
    CHECK(pst_table_succeed(t, &successor) == PST_OK && successor == 0);
    pst_table_close(t);
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    m->schema = s;
    m->keys = MODEL_KEYS;
    epoch_work(t, m, 1);
    pst_lineage l = model_lineage(1), got;
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
    REQUIRE(pst_table_succeed(t, &successor) == PST_OK && successor > 0);
    CHECK(is_busy(s));
    pst_table_close(t);
    CHECK(is_busy(s));
    o.successor = successor;
    REQUIRE(pst_table_open(s, &o, &next, &created, NULL) == PST_OK);
    pst_table_get_stats(next, &stats);
    CHECK(created && stats.keys == 0);
    CHECK(pst_table_lineage(next, 0, &got) == PST_OK && got.epoch == 0);
    CHECK(is_busy(s));
    CHECK(pst_table_detach(next) == PST_OK);
    CHECK(pst_table_succeed(next, &successor) == PST_INVALID && successor == 0);
    CHECK(pst_table_attach(next, 0) == PST_OK);
    /* One that is not made, or that cannot be, leaves an empty file for whoever comes. */
    for (int fails = 0; fails < 2; fails++) {
        REQUIRE(pst_table_succeed(next, &successor) == PST_OK);
        pst_table_close(next);
        CHECK(is_busy(s));
        o.successor = successor;
        o.last_key_group = 2;
        if (fails)
            CHECK(pst_table_open(s, &o, &next, NULL, NULL) == PST_INVALID);
        else
            pst_successor_close(successor);
        o.successor = 0;
        o.last_key_group = 1;
        REQUIRE(pst_table_open(s, &o, &next, &created, NULL) == PST_OK);
        CHECK(created);
    }
    CHECK(files_beside() == 0);
    pst_table_close(next);
    unlink(path);
    free(m);
}

int main(int argc, char **argv) {
    int kills = argc > 1 ? atoi(argv[1]) : 60;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    snprintf(path, sizeof path, "%s/pystate-test-kill-%ld", argc > 3 ? argv[3] : "/dev/shm",
             (long)getpid());
    pst_schema schemas[] = {{1, 2, LONG_KEY, STATES}, {1, 3, TEXT_KEY, STATES}};
    tally sum = {0, 0, 0, 0};
    test_successor(&schemas[0]);
    for (int i = 0; i < 2; i++)
        run(&schemas[i], kills / 2, seed + (uint64_t)i, &sum);
    fprintf(stderr,
            "%d kills; %llu undo records replayed, %.1f ns each, longest recovery %.3f ms\n",
            kills / 2 * 2, (unsigned long long)sum.records,
            (double)sum.ns / (double)(sum.records ? sum.records : 1), (double)sum.longest_ns / 1e6);
    CHECK(sum.records > 0);
    return check_report();
}
