/* One limit for all tables and buffers of a process, and for the shared tables of a host. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/budget.h"
#include "check.h"
#include "files.h"
#include "memory/handle.h"

static const pst_column KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column STATES[] = {{.name = "n", .type = PST_INT64}};
static const pst_schema NUMBERS = {1, 1, KEY, STATES};
static const pst_column WORDS[] = {{.name = "s", .type = PST_STRING}};
static const pst_schema TEXTS = {1, 1, KEY, WORDS};

#define MIB ((uint64_t)1 << 20)

static char folder[] = "/dev/shm/pst-budget-XXXXXX";

static pst_budget *make_budget(uint64_t limit) {
    pst_budget *b = NULL;
    REQUIRE(pst_budget_create(limit, &b) == PST_OK);
    return b;
}

static pst_table *open_at(const pst_schema *s, pst_budget *b, uint64_t limit, const char *path,
                          const char *home) {
    static const pst_identity identity = {.owner_pid = 1};
    pst_table_options o = {.max_parallelism = 4,
                           .last_key_group = 3,
                           .limit_bytes = limit,
                           .budget = b,
                           .path = path,
                           .home = home,
                           .home_depth = 1,
                           .identity = &identity,
                           .create = 1};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static uint64_t committed(const pst_table *t) {
    pst_table_stats stats;
    pst_table_get_stats(t, &stats);
    return stats.committed_bytes;
}

static pst_budget_stats stats_of(pst_budget *b) {
    pst_budget_stats stats;
    pst_budget_get_stats(b, &stats);
    return stats;
}

/* Puts keys from `first` on until something is refused, or there are `most`. */
static pst_status fill_with(pst_table *t, const pst_cell *cell, uint64_t first, uint64_t most) {
    pst_status s = PST_OK;
    for (uint64_t k = first; !s && k < first + most; k++) {
        s = pst_key_set_word(t, k);
        if (!s)
            s = pst_value_put(t, 0, cell);
    }
    return s;
}

static pst_status fill(pst_table *t, uint64_t first, uint64_t most) {
    static const pst_cell seven = {{7, 0}, {NULL, 0}};
    return fill_with(t, &seven, first, most);
}

static void seal(pst_table *t, pst_sealed **sealed) {
    pst_lineage l = {.id = {1}, .epoch = 1};
    CHECK_EQ(pst_table_seal(t, &l, sealed), PST_OK);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void test_two_tables(void) {
    pst_budget *b = make_budget(8 * MIB);
    pst_table *one = open_at(&NUMBERS, b, 0, NULL, NULL);
    pst_table *two = open_at(&NUMBERS, b, 0, NULL, NULL);
    CHECK_EQ(fill(one, 0, 60000), PST_OK);
    seal(one, NULL);
    CHECK_EQ(fill(two, 0, UINT64_MAX / 2), PST_LIMIT);
    CHECK(committed(one) + committed(two) <= 8 * MIB);
    CHECK(committed(one) + committed(two) > 7 * MIB);
    CHECK_EQ(stats_of(b).private_bytes, committed(one) + committed(two));
    pst_refusal r;
    pst_table_refusal(two, &r);
    CHECK(!r.own && r.asked_bytes > 0 && r.limit_bytes == 8 * MIB && r.shared_bytes == 0);
    CHECK_EQ(r.private_bytes, committed(one) + committed(two));
    CHECK(r.private_bytes + r.asked_bytes > r.limit_bytes);
    CHECK_EQ(pst_table_rollback(two, 0), PST_OK);
    /* Whoever goes makes room. */
    pst_table_close(one);
    CHECK_EQ(stats_of(b).private_bytes, committed(two));
    CHECK_EQ(fill(two, 0, 100000), PST_OK);
    CHECK_EQ(fill(two, 0, UINT64_MAX / 2), PST_LIMIT);
    pst_table_refusal(two, &r);
    CHECK(!r.own && r.private_bytes == committed(two));
    pst_table_close(two);
    CHECK_EQ(stats_of(b).private_bytes, 0);
    pst_budget_release(b);
}

/* A limit of its own is the only one that binds a table, and it counts for the others. */
static void test_own_limit(void) {
    pst_budget *b = make_budget(4 * MIB);
    pst_table *own = open_at(&NUMBERS, b, 16 * MIB, NULL, NULL);
    CHECK_EQ(fill(own, 0, 200000), PST_OK);
    CHECK(committed(own) > 4 * MIB);
    CHECK_EQ(stats_of(b).private_bytes, committed(own));
    pst_table_options o = {.max_parallelism = 4, .last_key_group = 3, .budget = b};
    pst_table *t = NULL;
    CHECK_EQ(pst_table_open(&NUMBERS, &o, &t, NULL, NULL), PST_LIMIT);
    /* Neither do buffers bind it, which count. */
    pst_sealed *sealed = NULL;
    seal(own, &sealed);
    CHECK(stats_of(b).private_bytes >= committed(own) + 200000 * 24u);
    pst_sealed_destroy(sealed);
    uint64_t kept = stats_of(b).private_bytes - committed(own);
    CHECK_EQ(fill(own, 200000, UINT64_MAX / 2), PST_LIMIT);
    pst_refusal r;
    pst_table_refusal(own, &r);
    CHECK(r.own && r.limit_bytes == 16 * MIB && r.private_bytes == committed(own));
    CHECK(committed(own) > 15 * MIB && committed(own) <= 16 * MIB);
    CHECK_EQ(stats_of(b).private_bytes, committed(own) + kept);
    pst_table_close(own);
    CHECK_EQ(pst_table_open(&NUMBERS, &o, &t, NULL, NULL), PST_OK);
    pst_table_close(t);
    CHECK_EQ(stats_of(b).private_bytes, 0);
    pst_budget_release(b);
}

/* A table with a target grows no further, and is bound by the budget, as are all buffers. */
static void test_target(void) {
    pst_budget *b = make_budget(16 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, NULL, NULL),
              *other = open_at(&NUMBERS, b, 0, NULL, NULL);
    pst_refusal r;
    CHECK_EQ(pst_table_set_target(t, 4 * MIB), PST_OK);
    CHECK_EQ(fill(t, 0, UINT64_MAX / 2), PST_LIMIT);
    pst_table_refusal(t, &r);
    CHECK(r.own == 2 && r.limit_bytes == 4 * MIB && r.private_bytes == committed(t));
    CHECK(committed(t) > 3 * MIB && committed(t) <= 4 * MIB);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    /* What it has it keeps; it is only not given more, but for what makes room. */
    CHECK_EQ(pst_table_set_target(t, 1 * MIB), PST_OK);
    CHECK(!pst_arena_has_room(&t->arena, 1));
    t->arena.clearing = 1;
    CHECK(pst_arena_has_room(&t->arena, MIB));
    t->arena.clearing = 0;
    /* A charge beyond the limit and an eighth. */
    pst_charge buffer = {.budget = b};
    CHECK_EQ(pst_charge_raise(&buffer, 32 * MIB), PST_LIMIT);
    pst_charge_drop(&buffer);
    /* The target says more than the budget has. */
    CHECK_EQ(pst_table_set_target(t, 64 * MIB), PST_OK);
    CHECK_EQ(fill(other, 0, UINT64_MAX / 2), PST_LIMIT);
    CHECK_EQ(fill(t, 0, UINT64_MAX / 2), PST_LIMIT);
    pst_table_refusal(t, &r);
    CHECK(!r.own && r.limit_bytes == 16 * MIB);
    CHECK(committed(t) + committed(other) <= 16 * MIB);
    pst_table_close(other);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK_EQ(pst_table_set_target(t, 0), PST_OK);
    CHECK_EQ(fill(t, 0, 120000), PST_OK);
    CHECK(committed(t) > 4 * MIB);
    pst_table_close(t);
    t = open_at(&NUMBERS, b, 4 * MIB, NULL, NULL);
    CHECK_EQ(pst_table_set_target(t, MIB), PST_INVALID);
    pst_table_close(t);
    pst_budget_release(b);
}

/* What a table gives back is there for others. */
static void test_given_back(void) {
    pst_budget *b = make_budget(64 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, NULL, NULL);
    CHECK_EQ(fill(t, 0, 100000), PST_OK);
    seal(t, NULL);
    /* An undo record of each row. */
    CHECK_EQ(fill(t, 0, 100000), PST_OK);
    seal(t, NULL);
    uint64_t most = committed(t);
    for (int i = 0; i < 40; i++) {
        CHECK_EQ(fill(t, (uint64_t)i, 100), PST_OK);
        seal(t, NULL);
        CHECK_EQ(stats_of(b).private_bytes, committed(t));
    }
    CHECK(committed(t) < most);
    pst_table_close(t);
    CHECK_EQ(stats_of(b).private_bytes, 0);
    pst_budget_release(b);
}

/* ---- hosts ----------------------------------------------------------------------------------- */

static const char *at(const char *name) {
    static char paths[4][64];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", folder, name);
    return paths[turn];
}

/* A process that fills a shared table, and is killed in the middle of it. */
static void killed_child(const char *path, uint64_t keys) {
    int ready[2];
    char byte;
    REQUIRE(pipe(ready) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (!child) {
        pst_budget *b = make_budget(64 * MIB);
        pst_table *t = open_at(&NUMBERS, b, 0, path, folder);
        pst_table *heap = open_at(&NUMBERS, b, 0, NULL, NULL);
        if (fill(t, 0, keys) || fill(heap, 0, keys) || write(ready[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ready[1]);
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    REQUIRE(kill(child, SIGKILL) == 0);
    REQUIRE(waitpid(child, NULL, 0) == child);
}

static uint64_t size_of(const char *path) {
    struct stat st;
    REQUIRE(stat(path, &st) == 0);
    return (uint64_t)st.st_blocks * 512;
}

static void test_shared(void) {
    REQUIRE(mkdir(at("below"), 0700) == 0);
    killed_child(at("below/one.table"), 60000);
    uint64_t other = size_of(at("below/one.table"));
    CHECK(other > 2 * MIB);
    /* Not a table, and one that lies too deep. */
    int fd = open(at("below/one.tables"), O_CREAT | O_WRONLY, 0600);
    REQUIRE(fd >= 0 && posix_fallocate(fd, 0, (off_t)(8 * MIB)) == 0);
    close(fd);
    REQUIRE(link(at("below/one.tables"), at("notes")) == 0);
    REQUIRE(mkdir(at("below/deeper"), 0700) == 0);
    REQUIRE(rename(at("below/one.tables"), at("below/deeper/one.table")) == 0);

    pst_budget *b = make_budget(8 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, at("two.table"), folder);
    pst_budget_stats s = stats_of(b);
    CHECK_EQ(s.private_bytes, 0);
    CHECK_EQ(s.shared_bytes, other + size_of(at("two.table")));
    CHECK_EQ(fill(t, 0, UINT64_MAX / 2), PST_LIMIT);
    pst_refusal r;
    pst_table_refusal(t, &r);
    CHECK(!r.own && r.private_bytes == 0 && r.limit_bytes == 8 * MIB);
    CHECK_EQ(r.shared_bytes, other + size_of(at("two.table")));
    CHECK(r.shared_bytes <= 8 * MIB && r.shared_bytes > 7 * MIB);
    /* A heap table of the process is bound by the same number. */
    pst_table *heap = NULL;
    pst_table_options o = {
        .max_parallelism = 4, .last_key_group = 3, .limit_bytes = 0, .budget = b};
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    pst_status st = pst_table_open(&NUMBERS, &o, &heap, NULL, NULL);
    if (!st)
        st = fill(heap, 0, 60000);
    CHECK_EQ(st, PST_LIMIT);
    pst_table_close(heap);
    /* With the killed process's table its bytes are free. */
    REQUIRE(unlink(at("below/one.table")) == 0);
    CHECK_EQ(fill(t, 0, 60000), PST_OK);
    seal(t, NULL);
    CHECK_EQ(stats_of(b).shared_bytes, size_of(at("two.table")));
    /* Attaching counts nothing twice. */
    pst_table_close(t);
    t = open_at(&NUMBERS, b, 0, at("two.table"), folder);
    CHECK_EQ(stats_of(b).shared_bytes, size_of(at("two.table")));
    pst_table_close(t);
    REQUIRE(unlink(at("two.table")) == 0);
    CHECK_EQ(stats_of(b).shared_bytes, 0);
    pst_budget_release(b);
    REQUIRE(unlink(at("notes")) == 0 && unlink(at("below/deeper/one.table")) == 0 &&
            rmdir(at("below/deeper")) == 0 && rmdir(at("below")) == 0);
}

/* Two processes that grow side by side: together they pass the limit by what BU5 lets them at
 * most. */
static void test_two_processes(void) {
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    pid_t child = fork();
    REQUIRE(child >= 0);
    pst_budget *b = make_budget(16 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, at(child ? "one.table" : "two.table"), folder);
    CHECK_EQ(fill(t, 0, UINT64_MAX / 2), PST_LIMIT);
    if (!child) {
        int failed = write(ready[1], "r", 1) != 1 || check_failed;
        pst_table_close(t);
        pst_budget_release(b);
        _exit(failed);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_EQ(status, 0);
    close(ready[0]);
    close(ready[1]);
    uint64_t together = size_of(at("one.table")) + size_of(at("two.table"));
    CHECK(together > 15 * MIB && together <= 16 * MIB + 16 * MIB / 64);
    pst_table_close(t);
    pst_budget_release(b);
    REQUIRE(unlink(at("one.table")) == 0 && unlink(at("two.table")) == 0);
}

/* A file of another name counts alone, and so does a home that is not there. */
static void test_home_of_one_file(void) {
    pst_budget *b = make_budget(8 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, at("state"), at("state"));
    CHECK_EQ(fill(t, 0, 20000), PST_OK);
    CHECK_EQ(stats_of(b).shared_bytes, size_of(at("state")));
    CHECK_EQ(pst_budget_add_home(b, at("state"), 1), PST_OK);
    CHECK_EQ(pst_budget_add_home(b, "/nowhere", 1), PST_OK);
    CHECK_EQ(stats_of(b).shared_bytes, size_of(at("state")));
    pst_table_close(t);
    REQUIRE(unlink(at("state")) == 0);
    CHECK_EQ(stats_of(b).shared_bytes, 0);
    pst_budget_release(b);
}

/* ---- buffers --------------------------------------------------------------------------------- */

static uint64_t taken(pst_budget *b) {
    return stats_of(b).private_bytes;
}

/* Leaves that much to buffers. */
static uint64_t leave(pst_budget *b, uint64_t bytes) {
    uint64_t limit = stats_of(b).limit_bytes, rest = limit + limit / 8 - taken(b) - bytes;
    CHECK_EQ(pst_budget_take(b, PST_PRIVATE, rest, PST_RELIEF), PST_OK);
    return rest;
}

static void take_keys(const pst_array *keys, pst_table *t, pst_status (*act)(pst_batch *b)) {
    pst_batch *batch = NULL;
    CHECK_EQ(pst_batch_create(t, keys, &batch), PST_OK);
    CHECK_EQ(act(batch), PST_OK);
    pst_batch_destroy(batch);
}

static pst_status fill_texts(pst_table *t, uint64_t first, uint64_t most) {
    static const uint8_t text[300];
    static const pst_cell cell = {{0, 0}, {text, sizeof text}};
    return fill_with(t, &cell, first, most);
}

static pst_status delete_rows(pst_batch *b) {
    return pst_batch_clear(b, -1);
}

/* A table that has filled up can be deleted from, sealed and written, until it is empty. */
static void check_full(pst_table *t, pst_budget *b, uint64_t limit) {
    enum { EPOCH = 2000, SEALS = 20000 };
    static int64_t words[EPOCH];
    pst_array keys = {PST_INT64, EPOCH, 0, NULL, words, NULL};
    uint64_t n = 0;
    pst_status s;
    while ((s = fill_texts(t, n, EPOCH)) == PST_OK) {
        seal(t, NULL);
        n += EPOCH;
    }
    CHECK_EQ(s, PST_LIMIT);
    CHECK(committed(t) <= limit);
    CHECK(n > 10 * EPOCH);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    /* What growth stepped over. */
    uint64_t rest = limit - committed(t);
    if (pst_budget_limit(b) == limit)
        CHECK_EQ(pst_budget_take(b, PST_PRIVATE, rest, PST_GROWTH), PST_OK);
    for (uint64_t at = 0; at < n; at += EPOCH) {
        for (uint64_t i = 0; i < EPOCH; i++)
            words[i] = (int64_t)(at + i);
        take_keys(&keys, t, delete_rows);
        pst_sealed *sealed = NULL;
        seal(t, &sealed);
        CHECK_EQ(pst_sealed_rows(sealed), EPOCH);
        memory_file f = {0};
        pst_io io = file_io(&f, 0);
        pst_file_info info;
        CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
        file_free(&f);
        pst_sealed_destroy(sealed);
        CHECK(committed(t) <= limit + limit / 8);
    }
    /* Seals give back what was freed, each some of it. */
    for (int e = 0; e < SEALS && committed(t) > limit - limit / 8; e++) {
        CHECK_EQ(fill_texts(t, 0, 1), PST_OK);
        seal(t, NULL);
    }
    CHECK(committed(t) <= limit - limit / 8);
    CHECK_EQ(fill_texts(t, n, EPOCH), PST_OK);
    seal(t, NULL);
    if (pst_budget_limit(b) == limit)
        pst_budget_drop(b, rest);
}

static void test_full(void) {
    for (int own = 0; own < 2; own++) {
        pst_budget *b = make_budget((own ? 128 : 64) * MIB);
        pst_table *t = open_at(&TEXTS, b, own ? 16 * MIB : 0, NULL, NULL);
        check_full(t, b, (own ? 16 : 64) * MIB);
        pst_table_close(t);
        CHECK_EQ(taken(b), 0);
        pst_budget_release(b);
    }
}

static void test_sealed(void) {
    enum { ROWS = 500000 };
    pst_budget *b = make_budget(256 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, NULL, NULL);
    CHECK_EQ(fill(t, 0, ROWS), PST_OK);
    pst_lineage l = {.id = {1}, .epoch = 1};
    pst_sealed *sealed = NULL;
    /* Each row is gathered as three words; the epoch stays open where there is no room. */
    uint64_t held = leave(b, 8 * MIB);
    CHECK_EQ(pst_table_seal(t, &l, &sealed), PST_LIMIT);
    pst_refusal r;
    pst_table_refusal(t, &r);
    CHECK(!r.own && r.limit_bytes == 256 * MIB && r.asked_bytes > 0);
    CHECK(pst_table_dirty(t));
    pst_budget_drop(b, held);
    CHECK(taken(b) <= committed(t) + 8 * MIB);
    seal(t, &sealed);
    CHECK_EQ(pst_sealed_rows(sealed), ROWS);
    uint64_t gathered = taken(b) - committed(t);
    CHECK(gathered >= ROWS * 24u && gathered < ROWS * 32u);
    /* Sorting takes a word a row. */
    memory_file f = {0};
    pst_io io = file_io(&f, 1);
    pst_file_info info;
    uint64_t before = taken(b);
    held = leave(b, MIB);
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_LIMIT);
    pst_budget_drop(b, held);
    CHECK_EQ(taken(b), before);
    file_free(&f);
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
    CHECK_EQ(info.rows, ROWS);
    CHECK_EQ(taken(b), before);
    pst_sealed_destroy(sealed);
    file_free(&f);
    /* What is kept for the next epoch stays charged until the table goes, or the last sealed
     * epoch. */
    seal(t, &sealed);
    CHECK(taken(b) >= committed(t));
    pst_table_close(t);
    pst_sealed_destroy(sealed);
    CHECK_EQ(taken(b), 0);
    pst_budget_release(b);
}

/* Buffers of an epoch that is much larger than others are not kept. */
static void test_large_epoch(void) {
    enum { ROWS = 1000000 };
    pst_budget *b = make_budget(512 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, NULL, NULL);
    CHECK_EQ(fill(t, 0, ROWS), PST_OK);
    pst_sealed *sealed = NULL;
    seal(t, &sealed);
    CHECK(taken(b) >= committed(t) + ROWS * 24u);
    pst_sealed_destroy(sealed);
    CHECK_EQ(taken(b), committed(t));
    pst_table_close(t);
    pst_budget_release(b);
}

static void put_text(pst_table *t, uint64_t key, uint8_t *text, uint32_t size) {
    pst_cell cell = {{0, 0}, {text, size}};
    memset(text, (int)('a' + key % 26), size);
    CHECK_EQ(pst_key_set_word(t, key), PST_OK);
    CHECK_EQ(pst_value_put(t, 0, &cell), PST_OK);
}

static pst_status read_all(pst_sst_reader *reader) {
    pst_record record;
    pst_status s;
    while ((s = pst_sst_reader_next(reader, &record)) == PST_OK)
        ;
    return s;
}

/* Writers, readers and merges hold a block; of a large value it is as large. */
static void test_files(void) {
    enum { VALUE = 4 << 20 };
    uint8_t *text = malloc(VALUE);
    REQUIRE(text != NULL);
    pst_budget *b = make_budget(256 * MIB);
    pst_table *t = open_at(&TEXTS, b, 0, NULL, NULL);
    put_text(t, 1, text, VALUE);
    put_text(t, 2, text, 10);
    pst_sealed *sealed = NULL;
    seal(t, &sealed);
    memory_file f = {0}, merged = {0};
    pst_io io = file_io(&f, 0), plain = io;
    pst_file_info info;
    uint64_t held = leave(b, 2 * MIB), before = taken(b);
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_LIMIT);
    CHECK_EQ(taken(b), before);
    pst_budget_drop(b, held);
    file_free(&f);
    CHECK_EQ(pst_sealed_write(sealed, &io, &info), PST_OK);
    pst_sealed_destroy(sealed);

    io.budget = b;
    pst_sst_reader *reader = NULL;
    CHECK_EQ(pst_sst_reader_open(&io, f.size, &reader, NULL), PST_OK);
    held = leave(b, MIB);
    CHECK_EQ(pst_sst_reader_seek(reader, 0, 3), PST_OK);
    CHECK_EQ(read_all(reader), PST_LIMIT);
    CHECK_EQ(pst_table_load(t, reader, NULL, 1, NULL), PST_LIMIT);
    pst_refusal r;
    pst_table_refusal(t, &r);
    CHECK(!r.own && r.asked_bytes >= VALUE);
    pst_budget_drop(b, held);
    CHECK_EQ(pst_sst_reader_seek(reader, 0, 3), PST_OK);
    before = taken(b);
    CHECK_EQ(read_all(reader), PST_NOT_FOUND);
    CHECK(taken(b) >= before + VALUE);

    pst_io out = file_io(&merged, 0);
    out.budget = b;
    for (int room = 0; room < 2; room++) {
        pst_sst_writer *writer = NULL;
        info.kind = PST_BASE;
        merged.size = 0;
        CHECK_EQ(pst_sst_writer_create(&TEXTS, &info, &out, &writer), PST_OK);
        held = room ? 0 : leave(b, MIB);
        CHECK_EQ(pst_merge(&reader, NULL, 1, writer), room ? PST_OK : PST_LIMIT);
        pst_budget_drop(b, held);
        before = taken(b);
        pst_sst_writer_destroy(writer);
        CHECK(!room || taken(b) + VALUE <= before);
    }
    pst_sst_reader_close(reader);
    pst_table_close(t);
    CHECK_EQ(taken(b), 0);
    /* Without a budget nothing is refused. */
    CHECK_EQ(pst_sst_reader_open(&plain, f.size, &reader, NULL), PST_OK);
    CHECK_EQ(read_all(reader), PST_NOT_FOUND);
    pst_sst_reader_close(reader);
    pst_budget_release(b);
    file_free(&f);
    file_free(&merged);
    free(text);
}

static void test_batches(void) {
    enum { ROWS = 200000 };
    int64_t *keys = calloc(ROWS, sizeof *keys);
    REQUIRE(keys != NULL);
    pst_budget *b = make_budget(64 * MIB);
    pst_table *t = open_at(&NUMBERS, b, 0, NULL, NULL);
    pst_array k = {PST_INT64, ROWS, 0, NULL, keys, NULL};
    pst_batch *batch = NULL;
    uint64_t before = taken(b), held = leave(b, MIB);
    CHECK_EQ(pst_batch_create(t, &k, &batch), PST_LIMIT);
    pst_budget_drop(b, held);
    CHECK_EQ(taken(b), before);
    CHECK_EQ(pst_batch_create(t, &k, &batch), PST_OK);
    CHECK(taken(b) >= before + ROWS * 12u);
    pst_batch_destroy(batch);
    CHECK_EQ(taken(b), before);
    pst_table_close(t);
    pst_budget_release(b);
    free(keys);
}

/* ---- threads --------------------------------------------------------------------------------- */

static pst_budget *contended;

static void *contend(void *arg) {
    uint64_t random = (uint64_t)(uintptr_t)arg;
    for (int i = 0; i < 20000; i++) {
        uint64_t bytes = check_random(&random) % (3 * MIB);
        if (pst_budget_take(contended, PST_PRIVATE, bytes, 1))
            continue;
        /* Another one may be about to be refused. */
        CHECK(stats_of(contended).private_bytes <= (8 + 4 * 3) * MIB);
        pst_budget_drop(contended, bytes);
    }
    return NULL;
}

static void test_threads(void) {
    pthread_t threads[4];
    contended = make_budget(8 * MIB);
    for (uintptr_t i = 0; i < 4; i++)
        REQUIRE(pthread_create(&threads[i], NULL, contend, (void *)(i + 1)) == 0);
    for (int i = 0; i < 4; i++)
        REQUIRE(pthread_join(threads[i], NULL) == 0);
    CHECK_EQ(taken(contended), 0);
    pst_budget_release(contended);
}

static void test_refused_memory(void) {
    pst_budget *b = NULL;
    check_fail_alloc(0, 0);
    CHECK_EQ(pst_budget_create(MIB, &b), PST_NO_MEMORY);
    b = make_budget(0);
    CHECK(stats_of(b).limit_bytes > 0 && stats_of(b).limit_bytes < pst_memory_bytes(NULL, NULL));
    check_fail_alloc(0, 0);
    CHECK_EQ(pst_budget_add_home(b, folder, 1), PST_NO_MEMORY);
    pst_budget_release(b);
    pst_budget_release(NULL);
}

int main(void) {
    REQUIRE(mkdtemp(folder) != NULL);
    test_two_tables();
    test_own_limit();
    test_target();
    test_given_back();
    test_shared();
    test_two_processes();
    test_home_of_one_file();
    test_full();
    test_sealed();
    test_large_epoch();
    test_files();
    test_batches();
    test_threads();
    test_refused_memory();
    REQUIRE(rmdir(folder) == 0);
    return check_report();
}
