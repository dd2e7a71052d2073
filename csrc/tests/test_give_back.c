/* Memory that a table no longer needs goes back to the system, and what the table says that it has
 * is what the system gave: of shared tables the file's blocks, of heap tables at least what is
 * resident.
 *
 *   test_give_back [rounds]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "memory/alloc.h"
#include "memory/handle.h"
#include "memory/ring.h"
#include "memory/size_class.h"
#include "memory/span.h"
#include "snapshot/evacuate.h"
#include "table/undo.h"

static const pst_column KEY[] = {{.name = "k", .type = PST_INT64}};
static const pst_column STATES[] = {{.name = "n", .type = PST_INT64, .has_default = 1},
                                    {.name = "s", .type = PST_STRING}};
static const pst_schema NUMBERS = {1, 1, KEY, STATES};

static char path[] = "/dev/shm/pst-give-back-XXXXXX";

static struct {
    pst_table *t;
    uint64_t epoch;
} run;

static void open_run(const pst_schema *schema, int shared) {
    static const pst_identity identity = {.owner_pid = 1};
    pst_table_options o = {.max_parallelism = 16,
                           .last_key_group = 15,
                           .limit_bytes = (uint64_t)1 << 30,
                           .path = shared ? path : NULL,
                           .identity = &identity,
                           .create = 1};
    REQUIRE(pst_table_open(schema, &o, &run.t, NULL, NULL) == PST_OK);
    run.epoch = 0;
}

static uint64_t resident(const pst_table *t) {
    char line[512];
    uint64_t sum = 0, from = (uintptr_t)t->arena.base, to = from + t->arena.total;
    int inside = 0;
    FILE *f = fopen("/proc/self/smaps", "re");
    REQUIRE(f != NULL);
    while (fgets(line, sizeof line, f)) {
        unsigned long a, b, kib;
        if (sscanf(line, "%lx-%lx", &a, &b) == 2)
            inside = a >= from && b <= to;
        else if (inside && sscanf(line, "Rss: %lu", &kib) == 1)
            sum += (uint64_t)kib * 1024;
    }
    fclose(f);
    return sum;
}

static pst_table_stats check_books(void) {
    pst_table_stats stats;
    struct stat file;
    pst_table_get_stats(run.t, &stats);
    CHECK_EQ(stats.committed_bytes, run.t->arena.committed_total);
    if (run.t->arena.fd >= 0) {
        REQUIRE(fstat(run.t->arena.fd, &file) == 0);
        CHECK_EQ((uint64_t)file.st_blocks * 512, stats.committed_bytes);
    } else {
        CHECK(resident(run.t) <= stats.committed_bytes);
    }
    return stats;
}

static void close_run(void) {
    check_books();
    pst_table_close(run.t);
    unlink(path);
}

static void seal(void) {
    pst_lineage l = {.id = {1}, .epoch = ++run.epoch};
    REQUIRE(pst_table_seal(run.t, &l, NULL) == PST_OK);
}

static void touch(uint64_t keys, uint64_t value) {
    for (uint64_t k = 0; k < keys; k++) {
        pst_cell cell = {{value, 0}, {NULL, 0}};
        CHECK_EQ(pst_key_set_word(run.t, k), PST_OK);
        CHECK_EQ(pst_value_put(run.t, 0, &cell), PST_OK);
    }
}

static int holds(uint64_t keys, uint64_t value) {
    for (uint64_t k = 0; k < keys; k++) {
        pst_cell cell;
        if (pst_key_set_word(run.t, k) || pst_value_get(run.t, 0, &cell) || cell.word[0] != value)
            return 0;
    }
    return 1;
}

/* Logs of epochs that touched every key, after many that touched few. */
static void test_undo(int shared) {
    enum { KEYS = 50000 };
    open_run(&NUMBERS, shared);
    touch(KEYS, 1);
    seal();
    uint64_t before = check_books().committed_bytes;
    for (uint64_t e = 2; e < 6; e++) {
        touch(KEYS, e);
        seal();
    }
    CHECK(check_books().undo_bytes > 3 * KEYS * 20);
    for (int e = 0; e < 60; e++) {
        touch(10, 100);
        seal();
        check_books();
    }
    CHECK(check_books().committed_bytes <= before + before / 16);
    /* What was given back is there again when it is needed, and undoes what it must. */
    touch(KEYS, 7);
    seal();
    touch(KEYS, 8);
    check_books();
    CHECK_EQ(pst_table_rollback(run.t, 0), PST_OK);
    CHECK(holds(KEYS, 7));
    CHECK_EQ(pst_table_rollback(run.t, 1), PST_OK);
    CHECK(holds(10, 100));
    close_run();
}

/* Large epochs that come again and again keep their logs: none of them takes memory anew. */
static void test_taking_turns(int shared) {
    enum { KEYS = 20000 };
    open_run(&NUMBERS, shared);
    for (uint64_t e = 0; e < 30; e++) {
        touch(KEYS, e);
        seal();
    }
    uint64_t settled = check_books().committed_bytes;
    for (uint64_t e = 0; e < 120; e++) {
        touch(e % 7 ? 10 : KEYS, e);
        seal();
        CHECK_EQ(check_books().committed_bytes, settled);
    }
    close_run();
}

/* A reader of an epoch that is gone may be in the middle of a look: nothing is taken from under it
 * before it has noticed. */
static void test_reader(int shared) {
    enum { KEYS = 20000 };
    pst_reader *reader = NULL;
    static pst_record record;
    pst_cell key = {{3, 0}, {NULL, 0}};
    open_run(&NUMBERS, shared);
    for (uint64_t e = 0; e < 5; e++) {
        touch(KEYS, e);
        seal();
    }
    REQUIRE(pst_reader_open(shared ? NULL : run.t, &NUMBERS, shared ? path : NULL, &reader, NULL) ==
            PST_OK);
    CHECK_EQ(pst_reader_get(reader, &key, 0, &record), PST_OK);
    uint64_t settled = check_books().undo_bytes;
    for (int e = 0; e < 40; e++) {
        touch(10, 100);
        seal();
    }
    CHECK_EQ(check_books().undo_bytes, settled);
    CHECK_EQ(pst_reader_get(reader, &key, 0, &record), PST_SNAPSHOT_TOO_OLD);
    for (int e = 0; e < 40; e++) {
        touch(10, 100);
        seal();
    }
    CHECK(check_books().undo_bytes < settled / 4);
    CHECK_EQ(pst_reader_get(reader, &key, 0, &record), PST_SNAPSHOT_TOO_OLD);
    pst_reader_close(reader);
    close_run();
}

/* ---- values that come, go, grow and shrink --------------------------------------------------- */

static const pst_schema TEXTS = {1, 2, KEY, STATES};

enum { CHURN_KEYS = 20000, LARGEST = 4096 };

static uint16_t sizes[CHURN_KEYS];
static uint64_t live; /* bytes that values and rows take without any waste but their class's */
static uint8_t text[LARGEST];

static void put_text(uint32_t k, uint32_t size) {
    pst_cell cell = {{0, 0}, {text, size}};
    memcpy(text, &k, sizeof k);
    CHECK_EQ(pst_key_set_word(run.t, k), PST_OK);
    if (size)
        CHECK_EQ(pst_value_put(run.t, 1, &cell), PST_OK);
    else
        CHECK_EQ(pst_value_clear(run.t, -1), PST_OK);
    live += (size ? pst_class_size(pst_class_of(size)) : 0) -
            (sizes[k] ? pst_class_size(pst_class_of(sizes[k])) : 0);
    sizes[k] = (uint16_t)size;
}

static void check_texts(void) {
    for (uint32_t k = 0; k < CHURN_KEYS; k++) {
        pst_cell cell;
        CHECK_EQ(pst_key_set_word(run.t, k), PST_OK);
        pst_status s = pst_value_get(run.t, 1, &cell);
        CHECK_EQ(s, sizes[k] ? PST_OK : PST_NOT_FOUND);
        if (!s)
            CHECK(cell.bytes.size == sizes[k] && !memcmp(cell.bytes.data, &k, sizeof k));
    }
}

/* Epochs of no great work, in which what was made room for settles. */
static void settle(int epochs) {
    for (int e = 0; e < epochs; e++) {
        for (uint32_t k = 0; k < 10; k++)
            put_text(k, sizes[k]);
        seal();
    }
}

/* What the table took is at most half more than what is in it, and a constant. */
static void check_bound(const char *when) {
    uint64_t committed = check_books().committed_bytes, most = (live + live / 2) + (3 << 20);
    if (!CHECK(committed <= most)) {
        pst_table_stats s;
        pst_table_get_stats(run.t, &s);
        fprintf(
            stderr,
            "    %s: %llu committed of %llu live (rows %llu, blocks %llu, undo %llu, rings %llu, "
            "free %u)\n",
            when, (unsigned long long)committed, (unsigned long long)live,
            (unsigned long long)s.row_bytes, (unsigned long long)s.block_bytes,
            (unsigned long long)s.undo_bytes, (unsigned long long)s.ring_bytes,
            run.t->m->free_spans);
    }
}

static void open_churn(int shared) {
    open_run(&TEXTS, shared);
    memset(sizes, 0, sizeof sizes);
    live = 0;
}

static void test_growing(int shared, int steps) {
    open_churn(shared);
    for (uint32_t size = 100; size <= 3800; size += size / (uint32_t)steps)
        for (uint32_t part = 0; part < 8; part++) {
            for (uint32_t k = part; k < CHURN_KEYS; k += 8)
                put_text(k, size);
            seal();
        }
    settle(120);
    check_bound("grown");
    check_texts();
    for (uint32_t k = 0; k < CHURN_KEYS; k++)
        if (k != 14321)
            put_text(k, 0);
    seal();
    settle(120);
    check_bound("all but one gone");
    check_texts();
    for (uint32_t k = 0; k < CHURN_KEYS; k++)
        put_text(k, 30 + k % 100);
    seal();
    check_texts();
    close_run();
}

/* The middle of all sizes wanders. */
static void test_drifting(int shared, int rounds) {
    uint64_t random = 7;
    open_churn(shared);
    for (int round = 0; round < rounds; round++) {
        uint32_t middle = 20u << (check_random(&random) % 7);
        for (int e = 0; e < 40; e++) {
            for (int i = 0; i < CHURN_KEYS / 20; i++) {
                uint32_t k = (uint32_t)(check_random(&random) % CHURN_KEYS);
                put_text(k, middle + (uint32_t)(check_random(&random) % (2 * middle)));
            }
            seal();
        }
        if (round % 2) {
            CHECK_EQ(pst_table_rollback(run.t, 0), PST_OK);
            continue;
        }
        settle(80);
        check_bound("drifting");
    }
    settle(120);
    check_bound("drifted");
    check_texts();
    close_run();
}

/* ---- lists and maps -------------------------------------------------------------------------- */

static const pst_column ELEMENTS[] = {
    {.name = "l", .type = PST_INT64, .kind = PST_LIST},
    {.name = "m", .type = PST_STRING, .kind = PST_MAP, .map_key = PST_STRING}};
static const pst_schema COLLECTIONS = {1, 2, KEY, ELEMENTS};

enum { HOLDERS = 1500 };

/* Key k has `items` items, k, k + 1 and so on, and as many entries. */
static uint32_t items[HOLDERS];

static void entry_of(uint32_t k, uint32_t n, char key[40], char value[80]) {
    snprintf(key, 40, "entry %u of holder %u", n, k);
    snprintf(value, 80, "value %u of holder %u%*s", n, k, (int)(n % 30), "");
}

static void set_items(uint32_t k, uint32_t n) {
    char key[40], value[80];
    CHECK_EQ(pst_key_set_word(run.t, k), PST_OK);
    if (n < items[k])
        CHECK_EQ(pst_value_clear(run.t, 0), PST_OK);
    for (uint32_t i = n < items[k] ? 0 : items[k]; i < n; i++) {
        pst_cell item = {{k + i, 0}, {NULL, 0}};
        CHECK_EQ(pst_list_add(run.t, 0, &item), PST_OK);
    }
    for (uint32_t i = n; i < items[k]; i++) {
        entry_of(k, i, key, value);
        pst_cell cell = {{0, 0}, {(const uint8_t *)key, (uint32_t)strlen(key)}};
        CHECK_EQ(pst_map_remove(run.t, 1, &cell), PST_OK);
    }
    for (uint32_t i = items[k]; i < n; i++) {
        entry_of(k, i, key, value);
        pst_cell cell = {{0, 0}, {(const uint8_t *)key, (uint32_t)strlen(key)}};
        pst_cell to = {{0, 0}, {(const uint8_t *)value, (uint32_t)strlen(value)}};
        CHECK_EQ(pst_map_put(run.t, 1, &cell, &to), PST_OK);
    }
    items[k] = n;
}

static void check_items(void) {
    pst_elements *e = NULL;
    char key[40], value[80];
    REQUIRE(pst_elements_create(run.t, &e) == PST_OK);
    for (uint32_t k = 0; k < HOLDERS; k++) {
        pst_cell a, b;
        uint32_t n = 0;
        int is_null;
        CHECK_EQ(pst_key_set_word(run.t, k), PST_OK);
        CHECK_EQ(pst_elements_start(e, 0), PST_OK);
        for (; pst_elements_next(e, &a, &b) == PST_OK; n++)
            CHECK_EQ(b.word[0], k + n);
        CHECK_EQ(n, items[k]);
        for (n = 0; n < items[k]; n++) {
            entry_of(k, n, key, value);
            a.bytes = (pst_bytes){(const uint8_t *)key, (uint32_t)strlen(key)};
            CHECK_EQ(pst_map_get(run.t, 1, &a, &b, &is_null), PST_OK);
            CHECK(b.bytes.size == strlen(value) && !memcmp(b.bytes.data, value, b.bytes.size));
        }
    }
    pst_elements_destroy(e);
}

/* Nothing that is moved enters a delta. */
static void seal_unchanged(void) {
    pst_lineage l = {.id = {1}, .epoch = ++run.epoch};
    pst_sealed *sealed = NULL;
    REQUIRE(pst_table_seal(run.t, &l, &sealed) == PST_OK);
    CHECK_EQ(pst_sealed_rows(sealed), 0);
    pst_sealed_destroy(sealed);
}

/* Large, then small at random, so that what stays is spread over all that was there. */
static void test_collections(int shared) {
    uint64_t random = 3, peak, left = 0;
    open_run(&COLLECTIONS, shared);
    memset(items, 0, sizeof items);
    for (int e = 0; e < 30; e++) {
        for (int i = 0; i < HOLDERS / 5; i++)
            set_items((uint32_t)(check_random(&random) % HOLDERS),
                      (uint32_t)(check_random(&random) % 60));
        seal();
    }
    peak = check_books().committed_bytes;
    for (uint32_t k = 0; k < HOLDERS; k++)
        set_items(k, check_random(&random) % 8 ? items[k] % 3 : items[k]);
    seal();
    for (int e = 0; e < 120; e++) {
        left += run.t->h->spans.phase == PST_SPANS_LEFT;
        seal_unchanged();
    }
    CHECK(left > 0);
    CHECK(check_books().committed_bytes < peak / 2);
    check_items();
    CHECK_EQ(pst_table_rollback(run.t, 2), PST_OK);
    check_items();
    close_run();
}

/* Blocks for the copies of what moves, which need no memory then. */
static void keep_blocks(void) {
    enum { KEPT = 40, OF_CLASSES = 32 };
    uint32_t kept[KEPT];
    for (uint32_t c = 0; c < OF_CLASSES; c++) {
        for (int i = 0; i < KEPT; i++)
            REQUIRE(pst_block_alloc(run.t, c, &kept[i]) == PST_OK);
        for (int i = 0; i < KEPT; i++)
            REQUIRE(pst_block_free(run.t, c, kept[i], 1) == PST_OK);
    }
}

/* Fills the rings, but for a few names, and lets nothing grow. */
static void fill_rings(uint64_t *random) {
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        REQUIRE(pst_ring_reserve(run.t, c, 4) == PST_OK);
    run.t->arena.limit = run.t->arena.committed_total / 9 * 8; /* what makes room may pass it */
    for (uint32_t c = 0; c < PST_CLASSES; c++) {
        uint32_t *tail = &run.t->m->rings[c].tail;
        while (pst_ring_push(run.t, c, 0) == PST_OK)
            ;
        *tail -= (uint32_t)(check_random(random) % 3);
    }
}

/* What has become free is anybody's. */
static void spoil_freed(const uint32_t *tails) {
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        for (uint32_t p = tails[c]; p != run.t->m->rings[c].tail; p++)
            memset(pst_block(run.t, pst_ring_at(run.t, c, p)), 0xEE, pst_class_size(c));
}

/* What cannot be moved, for want of memory to free what it leaves, stays whole where it was: blocks
 * that were let go of and are still in use would be given to two. The number of blocks that were
 * left. */
static uint32_t refused_moves(const pst_schema *schema, int shared, uint64_t seed) {
    uint32_t tails[PST_CLASSES], moved = 0;
    uint64_t random = seed;
    open_run(schema, shared);
    memset(items, 0, sizeof items);
    memset(sizes, 0, sizeof sizes);
    for (uint32_t k = 0; k < 100; k++)
        if (schema == &TEXTS)
            put_text(k, 20 + (uint32_t)(check_random(&random) % 900));
        else
            set_items(k, (uint32_t)(check_random(&random) % 60));
    seal();
    keep_blocks();
    REQUIRE(pst_undo_reserve(run.t, 200) == PST_OK);
    for (uint32_t i = 0; i < pst_span_count(run.t); i++)
        pst_span_at(run.t, i)->state |= PST_SPAN_LEAVING;
    run.t->h->spans.phase = PST_SPANS_LEFT;
    fill_rings(&random);
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        tails[c] = run.t->m->rings[c].tail;
    for (uint32_t slot = 0; slot < run.t->m->slots; slot++) {
        run.t->h->spans.slot = slot; /* the sweep waits where it was refused */
        pst_evacuate(run.t);
    }
    for (uint32_t c = 0; c < PST_CLASSES; c++)
        moved += run.t->m->rings[c].tail - tails[c];
    CHECK(run.t->arena.refused > 0);
    spoil_freed(tails);
    if (schema == &TEXTS)
        check_texts();
    else
        check_items();
    run.t->arena.limit = (uint64_t)1 << 30;
    close_run();
    return moved;
}

static void test_refused_moves(int shared) {
    uint32_t texts = 0, elements = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        texts += refused_moves(&TEXTS, shared, seed);
        elements += refused_moves(&COLLECTIONS, shared, seed);
    }
    CHECK(texts > 0 && elements > 0);
}

/* ---- keys of bytes --------------------------------------------------------------------------- */

static const pst_column NAME[] = {{.name = "k", .type = PST_STRING}};
static const pst_schema NAMED = {1, 1, NAME, STATES};

static void set_named(uint32_t k) {
    char name[48];
    int size = snprintf(name, sizeof name, "a key too long for a reference: %u", k);
    pst_cell key = {.bytes = {(const uint8_t *)name, (uint32_t)size}};
    REQUIRE(pst_key_set(run.t, &key, 0) == PST_OK);
}

/* Entries of rows that died long ago may still be in the index, when the bytes of their keys have
 * gone with their spans. To read those would take memory again that nobody counts, or end the
 * process where there is none. */
static void test_keys_that_return(int shared) {
    enum { KEYS = 4000 };
    pst_cell one = {.word = {1, 0}};
    open_run(&NAMED, shared);
    for (uint32_t k = 0; k < KEYS; k++) {
        set_named(k);
        REQUIRE(pst_value_put(run.t, 0, &one) == PST_OK);
    }
    seal();
    for (uint32_t k = 0; k < KEYS; k++) {
        set_named(k);
        REQUIRE(pst_value_clear(run.t, -1) == PST_OK);
    }
    for (int i = 0; i < 60; i++)
        seal();
    CHECK(run.t->h->absent_bytes > 0);
    check_books();
    for (uint32_t k = 0; k < KEYS; k++) {
        set_named(k);
        REQUIRE(pst_value_put(run.t, 0, &one) == PST_OK);
        if (k % 100 == 0)
            check_books();
    }
    seal();
    check_books();
    close_run();
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 8;
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    unlink(path);
    for (int shared = 0; shared < 2; shared++) {
        test_undo(shared);
        test_taking_turns(shared);
        test_reader(shared);
        test_growing(shared, rounds / 2);
        test_drifting(shared, rounds);
        test_collections(shared);
        test_refused_moves(shared);
        test_keys_that_return(shared);
    }
    return check_report();
}
