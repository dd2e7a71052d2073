/* Readers whose rows do not come to rest: a writer is killed in a roll back, or goes on with one
 * for longer than a reader has patience, or rows contradict their undo records for good. A reader
 * says so, and goes on when that has ended.
 *
 *   test_reader_stuck [folder]
 */
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/wait.h>

static int64_t patience_ms;
#define PST_READER_PATIENCE_MS patience_ms
#include "../snapshot/reader.c"

#include "check.h"

enum { ROWS = 200000, FEW = 50, SHORT_MS = 20 };
/* Whoever waits for this long has not seen that nobody is there any more. */
#define FOREVER_MS ((int64_t)1000000000)

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column TEXT_KEY = {.name = "k", .type = PST_STRING};
static const pst_column VALUE = {.name = "n", .type = PST_INT64, .has_default = 1};
static const pst_schema SCHEMA = {1, 1, &KEY, &VALUE, 0};
static const pst_schema TEXT = {1, 1, &TEXT_KEY, &VALUE, 0};

static char path[512];
static const pst_identity identity = {{1, 2, 3}, 4, 5, 6, {7}};

static pst_table *open_table(const pst_schema *s, const char *file) {
    pst_table_options o = {.max_parallelism = 2,
                           .last_key_group = 1,
                           .limit_bytes = (uint64_t)1 << 28,
                           .path = file,
                           .identity = &identity,
                           .lock_timeout_ms = 5000,
                           .create = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

/* Gives each key its own value times `times`. */
static void put(pst_table *t, uint64_t rows, uint64_t times) {
    for (uint64_t i = 0; i < rows; i++) {
        pst_cell value = {{i * times, 0}, {NULL, 0}};
        REQUIRE(pst_key_set_word(t, i) == PST_OK && pst_value_put(t, 0, &value) == PST_OK);
    }
}

static void seal(pst_table *t, uint64_t epoch) {
    pst_lineage l = {.id = {(uint8_t)epoch}, .epoch = epoch};
    REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
}

static pst_reader *open_reader(pst_table *t) {
    pst_reader *r = NULL;
    REQUIRE(pst_reader_open(t, &SCHEMA, t ? NULL : path, &r, NULL) == PST_OK);
    return r;
}

static pst_status get(pst_reader *r, uint64_t k, pst_record *record) {
    pst_cell key = {{k, 0}, {NULL, 0}};
    return pst_reader_get(r, &key, 0, record);
}

/* Every call that reads rows says that it cannot; the reader and the cursor stay as they are. */
static void check_busy(pst_reader *r, pst_table *t) {
    pst_record record;
    pst_reader *another = NULL;
    uint64_t cursor = 3;
    CHECK_EQ(get(r, 5, &record), PST_BUSY);
    CHECK_EQ(pst_reader_next(r, &cursor, &record), PST_BUSY);
    CHECK_EQ(cursor, 3);
    CHECK_EQ(pst_reader_open(t, &SCHEMA, t ? NULL : path, &another, NULL), PST_BUSY);
    CHECK(!another);
}

static void check_reads(pst_reader *r, uint64_t rows, uint64_t times) {
    pst_record record;
    uint64_t cursor = 0, n = 0;
    CHECK_EQ(get(r, rows - 1, &record), PST_OK);
    CHECK_EQ(record.cells[0].word[0], (rows - 1) * times);
    while (pst_reader_next(r, &cursor, &record) == PST_OK)
        n++;
    CHECK_EQ(n, rows);
}

/* ---- the words alone ------------------------------------------------------------------------- */

/* `rollbacks` is odd: with the lock held, patience ends; with the lock free, nobody is waited
 * for. */
static void test_words(void) {
    pst_table *t = open_table(&SCHEMA, path);
    put(t, FEW, 2);
    seal(t, 1);
    pst_reader *r = open_reader(NULL);
    for (int gone = 0; gone < 2; gone++) {
        patience_ms = gone ? FOREVER_MS : SHORT_MS;
        pst_release64(&t->h->rollbacks, t->h->rollbacks + 1);
        if (gone)
            pst_lock_release(t->arena.fd);
        check_busy(r, NULL);
        if (gone)
            REQUIRE(pst_lock_take(t->arena.fd, 5000) == PST_OK);
        pst_release64(&t->h->rollbacks, t->h->rollbacks + 1);
        check_reads(r, FEW, 2);
    }
    pst_reader_close(r);
    pst_table_close(t);
    unlink(path);
}

/* In the writer's own process, too. */
static void test_own_process(void) {
    pst_table *t = open_table(&SCHEMA, NULL);
    put(t, FEW, 2);
    seal(t, 1);
    pst_reader *r = open_reader(t);
    patience_ms = SHORT_MS;
    pst_release64(&t->h->rollbacks, t->h->rollbacks + 1);
    check_busy(r, t);
    pst_release64(&t->h->rollbacks, t->h->rollbacks + 1);
    check_reads(r, FEW, 2);
    /* A row's header says that an undo record has its image, and there is none. */
    uint64_t header = pst_row(t, 5)[0];
    pst_put64(pst_row(t, 5), pst_make_header((uint32_t)header, t->stamp, 7));
    pst_record record;
    uint64_t cursor = 5;
    CHECK_EQ(get(r, 5, &record), PST_BUSY);
    CHECK_EQ(pst_reader_next(r, &cursor, &record), PST_BUSY);
    pst_put64(pst_row(t, 5), header);
    check_reads(r, FEW, 2);
    pst_reader_close(r);
    pst_table_close(t);
}

/* A key that does not fit memory is not a key that is not there. */
static void test_no_memory(void) {
    static const char text[] = "a key that is too long to lie in its row";
    pst_cell key = {{0, 0}, {(const uint8_t *)text, sizeof text}}, value = {{9, 0}, {NULL, 0}};
    pst_table *t = open_table(&TEXT, NULL);
    pst_record record;
    REQUIRE(pst_key_set(t, &key, 0) == PST_OK && pst_value_put(t, 0, &value) == PST_OK);
    seal(t, 1);
    pst_reader *r = open_reader(t);
    check_fail_alloc(0, 1);
    CHECK_EQ(pst_reader_get(r, &key, 0, &record), PST_NO_MEMORY);
    check_fail_alloc(-1, 0);
    CHECK_EQ(pst_reader_get(r, &key, 0, &record), PST_OK);
    CHECK_EQ(record.cells[0].word[0], 9);
    pst_reader_close(r);
    pst_table_close(t);
}

/* ---- a real writer that is killed ------------------------------------------------------------ */

/* Never returns: changes every row and takes it back, until it is killed. */
static void child(int ready) {
    pst_table *t = open_table(&SCHEMA, path);
    REQUIRE(write(ready, "r", 1) == 1);
    for (;;) {
        put(t, ROWS, 7);
        REQUIRE(pst_table_rollback(t, 0) == PST_OK);
    }
}

/* Kills a writer in a roll back, if it does not end it before the signal comes. */
static int kill_in_rollback(const pst_header *h) {
    int ready[2], status;
    char byte;
    REQUIRE(pipe(ready) == 0);
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0)
        child(ready[1]);
    close(ready[1]);
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    while (!(pst_acquire64(&h->rollbacks) & 1))
        sched_yield();
    kill(pid, SIGKILL);
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
    return (int)(pst_acquire64(&h->rollbacks) & 1);
}

static void test_killed(void) {
    pst_table *t = open_table(&SCHEMA, path);
    put(t, ROWS, 2);
    seal(t, 1);
    pst_table_close(t);
    pst_reader *r = open_reader(NULL);
    const pst_header *h = r->view->h;
    while (!kill_in_rollback(h))
        ;
    patience_ms = FOREVER_MS;
    check_busy(r, NULL);
    /* Whoever attaches ends the roll back; both the reader that waited and a new one go on. */
    t = open_table(&SCHEMA, path);
    check_reads(r, ROWS, 2);
    pst_reader_close(r);
    r = open_reader(NULL);
    check_reads(r, ROWS, 2);
    pst_reader_close(r);
    pst_table_close(t);
    unlink(path);
}

int main(int argc, char **argv) {
    snprintf(path, sizeof path, "%s/pystate-test-stuck-%ld", argc > 1 ? argv[1] : "/dev/shm",
             (long)getpid());
    test_words();
    test_own_process();
    test_no_memory();
    test_killed();
    return check_report();
}
