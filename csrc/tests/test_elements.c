/* Lists, maps, timers and times to live against their model: random operations, seals, roll backs;
 * every delta applied to a replica, merged with others into deltas and bases, loaded in sub-ranges.
 *
 *   test_elements [steps] [seed]
 */
#include "access/current_key.h"
#include "elements/collections.h"
#include "elements_model.h"
#include "files.h"

enum { FILES = 6 };

static memory_file written[FILES];
static int n_written;

static void load(pst_table *t, memory_file *f, int32_t first, int32_t last) {
    pst_sst_reader *r = NULL;
    REQUIRE(file_open(f, &r) == PST_OK);
    REQUIRE(pst_sst_reader_seek(r, first, last) == PST_OK);
    CHECK_EQ(pst_table_load(t, r, NULL, pst_sst_reader_schema(r)->n_states, NULL), PST_OK);
    pst_sst_reader_close(r);
}

static void write_sealed(pst_sealed *sealed, memory_file *f) {
    pst_file_info info;
    file_free(f);
    pst_io io = file_io(f, 1);
    REQUIRE(pst_sealed_write(sealed, &io, &info) == PST_OK);
}

/* Puts one file in the place of those from `first` on; a base in the place of all. */
static void merge_files(const pst_schema *schema, pst_file_kind kind, int first) {
    pst_sst_reader *readers[FILES];
    pst_schema *own = NULL;
    memory_file out = {.calls_left = -1};
    pst_file_info info = {.kind = kind, .max_parallelism = 4, .last_key_group = 3};
    pst_io io = file_io(&out, 1);
    REQUIRE(pst_file_schema_create(schema, &own) == PST_OK);
    for (int i = first; i < n_written; i++)
        REQUIRE(file_open(&written[i], &readers[i - first]) == PST_OK);
    CHECK_EQ(file_merge(own, &info, readers, NULL, n_written - first, &io), PST_OK);
    for (int i = first; i < n_written; i++) {
        pst_sst_reader_close(readers[i - first]);
        file_free(&written[i]);
    }
    pst_file_schema_destroy(own);
    written[first] = out;
    n_written = first + 1;
}

/* The files from the first one on, in tables of their own: whole, and cut in two. */
static void restore(elements_model *m) {
    static const int32_t ranges[][2] = {{0, 3}, {0, 1}, {2, 3}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        pst_table *t = em_open(m, ranges[i][0], ranges[i][1]);
        for (int f = 0; f < n_written; f++)
            load(t, &written[f], ranges[i][0], ranges[i][1]);
        CHECK(em_compare_range(m, &m->now, t, ranges[i][0], ranges[i][1]));
        pst_lineage l = em_lineage(1);
        CHECK_EQ(pst_table_seal(t, &l, NULL), PST_OK);
        CHECK(em_compare_range(m, &m->now, t, ranges[i][0], ranges[i][1]));
        pst_table_close(t);
    }
}

/* Applying what is there already changes nothing. */
static void load_twice(elements_model *m, pst_table *replica, memory_file *f) {
    load(replica, f, 0, 3);
    load(replica, f, 0, 3);
    CHECK(em_compare(m, &m->now, replica));
    pst_lineage l;
    REQUIRE(pst_table_lineage(replica, 0, &l) == PST_OK);
    l = em_lineage(l.epoch + 1);
    CHECK_EQ(pst_table_seal(replica, &l, NULL), PST_OK);
}

static void test_random(int spaces, int64_t ttl_ms, int steps, uint64_t seed) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, spaces, ttl_ms);
    pst_table *t = em_open(m, 0, 3), *replica = em_open(m, 0, 3);
    uint64_t failed = check_failed;
    for (int i = 0; i < steps && check_failed == failed; i++) {
        for (int k = 0; k < 12; k++)
            em_step(m, t, &seed);
        CHECK(em_compare(m, &m->now, t));
        if (!ttl_ms) {
            pst_table_stats stats;
            pst_table_get_stats(t, &stats);
            CHECK_EQ(stats.keys, em_alive(&m->now));
        }
        if (check_random(&seed) % 8 == 0) {
            CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
            check_ownership(t);
            m->now = m->sealed[m->seals % EM_EPOCHS];
            em_clock(m, t);
            CHECK(em_compare(m, &m->now, t));
            continue;
        }
        if (ttl_ms)
            em_pass(m, t, (int64_t)(check_random(&seed) % 30), check_random(&seed) % 100);
        pst_sealed *sealed = NULL;
        em_seal(m, t, &sealed);
        em_clock(m, replica);
        uint64_t how = check_random(&seed);
        if (n_written == FILES)
            merge_files(&m->schema, how % 3 ? PST_DELTA : PST_BASE,
                        how % 3 ? (int)(how / 3 % (FILES - 1)) : 0);
        write_sealed(sealed, &written[n_written++]);
        pst_sealed_destroy(sealed);
        CHECK(em_compare(m, &m->now, t));
        load_twice(m, replica, &written[n_written - 1]);
        if (i % 5 == 0)
            restore(m);
    }
    while (n_written > 0)
        file_free(&written[--n_written]);
    pst_table_close(t);
    pst_table_close(replica);
    free(m);
}

/* Roll backs over sealed epochs. */
static void test_undo(int spaces, int64_t ttl_ms, int steps, uint64_t seed) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, spaces, ttl_ms);
    pst_table *t = em_open(m, 0, 3);
    uint64_t failed = check_failed;
    for (int i = 0; i < steps && check_failed == failed; i++) {
        for (int k = 0; k < 8; k++)
            em_step(m, t, &seed);
        int32_t back = (int32_t)(check_random(&seed) % 3);
        pst_lineage l;
        if (check_random(&seed) % 3 == 0 && !pst_table_lineage(t, back, &l) && l.epoch) {
            CHECK_EQ(pst_table_rollback(t, back), PST_OK);
            check_ownership(t);
            em_clock(m, t);
            m->seals = l.epoch;
            m->now = m->sealed[l.epoch % EM_EPOCHS];
        } else {
            em_seal(m, t, NULL);
        }
        CHECK(em_compare(m, &m->now, t));
    }
    pst_table_close(t);
    free(m);
}

/* A table whose elements come and go takes no ever more memory. */
static void test_reuse(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3);
    pst_table_stats early, late;
    uint64_t seed = 9;
    for (int i = 0; i < 600; i++) {
        for (int k = 0; k < 30; k++)
            em_step(m, t, &seed);
        em_seal(m, t, NULL);
        if (i == 200)
            pst_table_get_stats(t, &early);
    }
    pst_table_get_stats(t, &late);
    CHECK(late.block_bytes <= early.block_bytes + early.block_bytes / 4);
    pst_table_close(t);
    free(m);
}

/* What is touched and left as it was leaves no record. */
static void test_touched_is_not_changed(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 100);
    pst_table *t = em_open(m, 0, 3);
    pst_cell key = {{7, 0}, {NULL, 0}}, value = {{1, 0}, {NULL, 0}};
    pst_sealed *sealed = NULL;
    em_set_key(m, t, 3);
    CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &value), PST_OK);
    CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &value), PST_OK);
    CHECK_EQ(pst_value_put(t, m->column[EM_N], &value), PST_OK);
    CHECK_EQ(pst_timer_register(t, PST_EVENT, 100), PST_OK);
    em_seal(m, t, &sealed);
    CHECK_EQ(pst_sealed_rows(sealed), 3); /* the row with its timer, the item, the entry */
    pst_sealed_destroy(sealed);
    em_clock(m, t);
    em_set_key(m, t, 3);
    CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &value), PST_OK);
    key.word[0] = 8;
    CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &value), PST_OK);
    CHECK_EQ(pst_map_remove(t, m->column[EM_MAP], &key), PST_OK);
    CHECK_EQ(pst_value_put(t, m->column[EM_N], &value), PST_OK);
    CHECK_EQ(pst_timer_register(t, PST_EVENT, 100), PST_OK);
    CHECK_EQ(pst_timer_register(t, PST_EVENT, 200), PST_OK);
    CHECK_EQ(pst_timer_delete(t, PST_EVENT, 200), PST_OK);
    CHECK_EQ(pst_timer_delete(t, PST_PROCESSING, 300), PST_OK);
    em_seal(m, t, &sealed);
    CHECK_EQ(pst_sealed_rows(sealed), 0);
    pst_sealed_destroy(sealed);
    pst_table_close(t);
    free(m);
}

static uint64_t sealed_rows(elements_model *m, pst_table *t) {
    pst_sealed *sealed = NULL;
    em_seal(m, t, &sealed);
    uint64_t rows = pst_sealed_rows(sealed);
    pst_sealed_destroy(sealed);
    em_set_key(m, t, 3);
    return rows;
}

/* A key's only timer costs its row's record a cell; of several each is a record. */
static void test_timers_cost(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3);
    em_set_key(m, t, 3);
    CHECK_EQ(pst_timer_register(t, PST_PROCESSING, 100), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 1);
    CHECK_EQ(pst_timer_delete(t, PST_PROCESSING, 100), PST_OK);
    CHECK_EQ(pst_timer_register(t, PST_EVENT, 100), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 1);
    CHECK_EQ(t->m->timed_apart, 0);
    /* The one that stays becomes an element. */
    CHECK_EQ(pst_timer_register(t, PST_EVENT, 200), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 3);
    CHECK_EQ(t->m->timed_apart, 1);
    CHECK_EQ(pst_timer_register(t, PST_EVENT, 300), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 1);
    CHECK_EQ(pst_timer_delete(t, PST_EVENT, 300), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 1);
    /* The one that is left is an element no longer. */
    CHECK_EQ(pst_timer_delete(t, PST_EVENT, 100), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 3);
    CHECK_EQ(t->m->timed_apart, 0);
    /* A word has no room for this one. */
    CHECK_EQ(pst_timer_register(t, PST_EVENT, INT64_MAX), PST_OK);
    CHECK_EQ(pst_timer_delete(t, PST_EVENT, 200), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 2);
    CHECK_EQ(t->m->timed_apart, 1);
    CHECK_EQ(pst_timer_delete(t, PST_EVENT, INT64_MAX), PST_OK);
    CHECK_EQ(sealed_rows(m, t), 2);
    CHECK_EQ(t->m->timed_apart, 0);
    pst_table_close(t);
    free(m);
}

/* An append or a put costs the delta its element, whatever was there. */
static void test_cost(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3);
    for (int64_t size = 0, grow = 1000; size < 100000; grow *= 10) {
        for (; size < grow; size++) {
            pst_cell key = {{(uint64_t)size, 0}, {NULL, 0}};
            em_set_key(m, t, 1);
            CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &key), PST_OK);
            CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &key), PST_OK);
        }
        em_seal(m, t, NULL);
        pst_sealed *sealed = NULL;
        pst_cell key = {{(uint64_t)size++, 0}, {NULL, 0}};
        em_set_key(m, t, 1);
        CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &key), PST_OK);
        CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &key), PST_OK);
        em_seal(m, t, &sealed);
        CHECK_EQ(pst_sealed_rows(sealed), 2);
        CHECK(pst_sealed_bytes(sealed) < 80);
        pst_sealed_destroy(sealed);
    }
    pst_table_close(t);
    free(m);
}

/* Longer than a reference and alike at the start; short; alike for longer than a place knows of. */
static const char *const NAMES[] = {"https://example.org/%d", "%d", "%0300d"};

/* Two maps of a key, with so many entries each. */
static void put_maps(elements_model *m, pst_table *t, int entries, const char *names) {
    char name[400];
    em_set_key(m, t, 1);
    for (int i = 0; i < entries; i++) {
        pst_cell key = {{(uint64_t)i * 7, 0}, {NULL, 0}}, text = {{0}};
        text.bytes.size = (uint32_t)snprintf(name, sizeof name, names, i * 7);
        text.bytes.data = (const uint8_t *)name;
        CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &key), PST_OK);
        CHECK_EQ(pst_map_put(t, m->column[EM_BOOK], &text, &text), PST_OK);
    }
}

static void fill_maps(elements_model *m, pst_table *t, int entries, const char *names) {
    put_maps(m, t, entries, names);
    CHECK_EQ(pst_table_expire(t, 0, NULL), PST_OK);
    em_seal(m, t, NULL);
}

static pst_table *open_expired(elements_model *m, int entries, const char *names) {
    em_init(m, 0, 100);
    pst_table *t = em_open(m, 0, 3);
    fill_maps(m, t, entries, names);
    m->now_ms += 1000;
    em_clock(m, t);
    return t;
}

/* A map larger than a budget goes a part at a time, and neither a roll back in between nor a write
 * loses the place. */
static void test_sweep_in_parts(const char *names) {
    enum { ENTRIES = 3000, BUDGET = 100 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    pst_table *t = open_expired(m, ENTRIES, names);
    pst_table_stats stats;
    uint64_t gone = 0, removed, calls = 0;
    while (gone < 2 * ENTRIES && calls < 4 * 2 * ENTRIES / BUDGET) {
        CHECK_EQ(pst_table_expire(t, BUDGET, &removed), PST_OK);
        CHECK(removed <= BUDGET);
        CHECK(t->h->sweep.column == 0 || t->h->sweep.slot == 0);
        if (++calls % 7 == 0) {
            CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
            em_clock(m, t);
            continue;
        }
        gone += removed;
        em_seal(m, t, NULL);
    }
    CHECK_EQ(gone, 2 * ENTRIES);
    /* What was rolled back waits for the next round. */
    CHECK(calls <= (2 * ENTRIES / BUDGET + 12) * 7 / 6);
    CHECK_EQ(pst_table_expire(t, BUDGET, NULL), PST_OK);
    pst_table_get_stats(t, &stats);
    CHECK_EQ(stats.keys, 0);
    pst_table_close(t);
    free(m);
}

/* All at once, where the budget allows it, also of nodes that are changed where they lie. */
static void test_sweep_of_everything(const char *names) {
    enum { ENTRIES = 3000 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 100);
    pst_table *t = em_open(m, 0, 3);
    uint64_t removed;
    put_maps(m, t, ENTRIES, names);
    m->now_ms += 1000;
    em_clock(m, t);
    CHECK_EQ(pst_table_expire(t, UINT64_MAX, &removed), PST_OK);
    CHECK_EQ(removed, 2 * ENTRIES);
    pst_table_close(t);
    free(m);
}

/* A sweep comes to the one entry that has expired, past all that have not. */
static void test_sweep_goes_on(const char *names, int budget) {
    enum { ENTRIES = 300 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    pst_table *t = open_expired(m, ENTRIES, names);
    uint64_t gone = 0, removed;
    fill_maps(m, t, ENTRIES - 1, names);
    for (int i = 0; i < 2 * ENTRIES / budget + 2; i++) {
        CHECK_EQ(pst_table_expire(t, (uint64_t)budget, &removed), PST_OK);
        em_seal(m, t, NULL);
        gone += removed;
    }
    CHECK_EQ(gone, 2);
    pst_table_close(t);
    free(m);
}

/* Each entry is looked at once, also where every other one goes. */
static void test_sweep_looks_once(void) {
    enum { ENTRIES = 300 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    pst_table *t = open_expired(m, ENTRIES, NAMES[1]);
    uint64_t removed;
    em_set_key(m, t, 1);
    for (uint64_t i = 0; i < ENTRIES; i += 2) {
        pst_cell key = {{i * 7, 0}, {NULL, 0}};
        CHECK_EQ(pst_map_put(t, m->column[EM_MAP], &key, &key), PST_OK);
    }
    CHECK_EQ(pst_table_expire(t, 1 + ENTRIES, &removed), PST_OK);
    CHECK_EQ(removed, ENTRIES / 2);
    pst_table_close(t);
    free(m);
}

/* The map in which a sweep stopped goes before it comes again. */
static void test_sweep_place_goes(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    for (int how = 0; how < 3; how++) {
        pst_table *t = open_expired(m, 500, NAMES[0]);
        pst_cell value = {{1, 0}, {NULL, 0}};
        uint64_t removed;
        /* Into the second map. */
        CHECK_EQ(pst_table_expire(t, 700, &removed), PST_OK);
        CHECK(removed > 600 && removed <= 700);
        em_seal(m, t, NULL);
        em_set_key(m, t, 1);
        if (how == 0) {
            CHECK_EQ(pst_value_clear(t, m->column[EM_BOOK]), PST_OK);
            CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &value), PST_OK);
        } else if (how == 1) {
            CHECK_EQ(pst_value_clear(t, -1), PST_OK);
        } else {
            pst_ttl none = {.duration_ms = 0};
            CHECK_EQ(pst_table_set_ttl(t, m->column[EM_BOOK], &none), PST_OK);
        }
        em_set_key(m, t, 2);
        CHECK_EQ(pst_value_put(t, m->column[EM_N], &value), PST_OK);
        em_seal(m, t, NULL);
        CHECK_EQ(pst_table_expire(t, 700, &removed), PST_OK);
        CHECK_EQ(removed, 0);
        m->now_ms += 1000;
        em_clock(m, t);
        CHECK_EQ(pst_table_expire(t, 700, &removed), PST_OK);
        CHECK_EQ(removed, how == 0 ? 2 : 1);
        CHECK_EQ(t->h->sweep.column, 0);
        pst_table_close(t);
    }
    free(m);
}

/* Entries, or rows, come and expire as fast: a sweep with next to no budget of its own keeps
 * pace. */
static void test_sweep_keeps_pace(int rows) {
    enum { MADE = 200, LIVES = 10, MOST = MADE * LIVES * 3 / 2 };
    pst_table_stats stats;
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, LIVES);
    pst_table *t = em_open(m, 0, 3);
    for (int epoch = 0; epoch < 20 * LIVES; epoch++) {
        m->now_ms++;
        em_clock(m, t);
        for (int i = 0; i < MADE; i++) {
            uint64_t key = (uint64_t)(epoch * MADE + i), random = key + 1;
            pst_cell cell = {{check_random(&random), 0}, {NULL, 0}};
            em_set_key(m, t, rows ? 2 + (int)key : 1);
            CHECK_EQ(rows ? pst_value_put(t, m->column[EM_N], &cell)
                          : pst_map_put(t, m->column[EM_MAP], &cell, &cell),
                     PST_OK);
        }
        uint32_t slot;
        REQUIRE(pst_current_row(t, 0, &slot) == PST_OK);
        pst_table_get_stats(t, &stats);
        CHECK(pst_row_map(t, pst_row(t, slot), m->column[EM_MAP]).count <= MOST);
        CHECK(stats.keys <= MOST);
        CHECK_EQ(pst_table_expire(t, 1, NULL), PST_OK);
        em_seal(m, t, NULL);
    }
    pst_table_close(t);
    free(m);
}

/* Of a long list only the head is looked at: it does not use up a budget. */
static void test_sweep_passes_long_lists(void) {
    enum { ITEMS = 10000, KEYS = 40 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 100);
    pst_table *t = em_open(m, 0, 3);
    pst_cell one = {{1, 0}, {NULL, 0}};
    uint64_t removed;
    for (int k = 0; k < KEYS; k++) {
        em_set_key(m, t, k);
        CHECK_EQ(k ? pst_value_put(t, m->column[EM_N], &one)
                   : pst_list_add(t, m->column[EM_LONGS], &one),
                 PST_OK);
    }
    m->now_ms += 1000;
    em_clock(m, t);
    em_set_key(m, t, 0);
    for (int i = 0; i < ITEMS; i++)
        CHECK_EQ(pst_list_add(t, m->column[EM_LONGS], &one), PST_OK);
    em_seal(m, t, NULL);
    CHECK_EQ(pst_table_expire(t, KEYS, &removed), PST_OK);
    CHECK_EQ(removed, KEYS - 1);
    pst_table_close(t);
    free(m);
}

/* Epochs without a change are not sealed, and a roll back takes none of the way back that a sweep
 * has come. */
static void test_sweep_of_idle_table(void) {
    enum { KEYS = 1000, BUDGET = 30 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 100);
    pst_table *t = em_open(m, 0, 3);
    pst_cell one = {{1, 0}, {NULL, 0}};
    uint64_t removed = 0;
    int epochs = 0;
    em_set_key(m, t, KEYS);
    CHECK_EQ(pst_value_put(t, m->column[EM_N], &one), PST_OK);
    m->now_ms += 1000;
    em_clock(m, t);
    for (int k = 0; k < KEYS; k++) {
        em_set_key(m, t, k);
        CHECK_EQ(pst_value_put(t, m->column[EM_N], &one), PST_OK);
    }
    em_seal(m, t, NULL);
    t->h->sweep.slot = 1; /* past the one */
    for (; !removed && epochs < 2 * KEYS / BUDGET; epochs++) {
        CHECK_EQ(pst_table_expire(t, BUDGET, &removed), PST_OK);
        CHECK(removed || !pst_table_dirty(t));
        if (!removed)
            CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
        em_clock(m, t);
    }
    CHECK_EQ(removed, 1);
    CHECK_EQ(epochs, KEYS / BUDGET + 1);
    pst_table_close(t);
    free(m);
}

/* Whatever lies where the place is, a sweep goes on from somewhere. */
static void test_sweep_place_is_nonsense(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    uint64_t random = 5;
    for (int i = 0; i < 200; i++) {
        pst_table *t = open_expired(m, 20, NAMES[i % 2]);
        pst_sweep_place *at = &t->h->sweep;
        uint64_t removed, gone = 0;
        at->slot = i % 3 ? 0 : check_random(&random);
        at->column = (uint32_t)(i % 7 ? check_random(&random) % 16 : check_random(&random));
        at->size = (uint32_t)(i % 5 ? check_random(&random) % 16 : check_random(&random));
        for (size_t k = 0; k < sizeof at->key / sizeof *at->key; k++)
            at->key[k] = check_random(&random);
        for (int call = 0; call < 2; call++) {
            CHECK_EQ(pst_table_expire(t, UINT64_MAX, &removed), PST_OK);
            gone += removed;
        }
        CHECK_EQ(gone, 40);
        pst_table_close(t);
    }
    free(m);
}

/* Tables that are made anew for every epoch look at other rows in each. */
static void test_sweep_begins_elsewhere(void) {
    enum { KEYS = 1000, EPOCHS = 8 };
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    pst_cell one = {{1, 0}, {NULL, 0}};
    uint64_t slots[EPOCHS];
    for (uint64_t epoch = 0; epoch < EPOCHS; epoch++) {
        em_init(m, 0, 100);
        pst_table *t = em_open(m, 0, 3);
        pst_lineage l = {.epoch = epoch + 1};
        for (int k = 0; k < KEYS; k++) {
            em_set_key(m, t, k);
            CHECK_EQ(pst_value_put(t, m->column[EM_N], &one), PST_OK);
        }
        REQUIRE(pst_table_seal(t, &l, NULL) == PST_OK);
        CHECK_EQ(pst_table_expire(t, 1, NULL), PST_OK);
        slots[epoch] = t->h->sweep.slot;
        for (uint64_t before = 0; before < epoch; before++) {
            uint64_t a = slots[before], b = slots[epoch];
            CHECK((a > b ? a - b : b - a) > KEYS / EPOCHS / 4);
        }
        pst_table_close(t);
    }
    free(m);
}

/* No memory for the copies of entries that a sweep gives a time, since they were put before there
 * was a clock: its epoch may only be rolled back, to all that was there. */
static void test_sweep_is_refused(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    uint64_t fits = UINT64_MAX;
    for (int round = 0; round < 2; round++) {
        em_init(m, 0, 100);
        pst_table_options o = {.max_parallelism = 4, .last_key_group = 3, .limit_bytes = 1 << 20};
        pst_ttl ttl = {.duration_ms = m->ttl_ms};
        pst_table *t = NULL;
        pst_status st = PST_OK;
        uint64_t n = 0, count = 0;
        REQUIRE(pst_table_open(&m->schema, &o, &t, NULL, NULL) == PST_OK);
        REQUIRE(pst_table_set_ttl(t, m->column[EM_MAP], &ttl) == PST_OK);
        em_set_key(m, t, 1);
        for (; !st && n < fits; n++) {
            pst_cell cell = {{n, 0}, {NULL, 0}};
            st = pst_map_put(t, m->column[EM_MAP], &cell, &cell);
        }
        if (round == 0) {
            CHECK_EQ(st, PST_LIMIT);
            fits = n * 3 / 4;
        } else {
            CHECK_EQ(st, PST_OK);
            em_seal(m, t, NULL);
            em_clock(m, t);
            CHECK_EQ(pst_table_expire(t, UINT64_MAX, NULL), PST_LIMIT);
            CHECK_EQ(pst_table_seal(t, &(pst_lineage){.epoch = 9}, NULL), PST_POISONED);
            CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
            em_set_key(m, t, 1);
            CHECK_EQ(pst_elements_count(t, m->column[EM_MAP], &count), PST_OK);
            CHECK_EQ(count, fits);
        }
        pst_table_close(t);
    }
    free(m);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 120;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (int spaces = 0; spaces < 2; spaces++)
        for (int64_t ttl_ms = 0; ttl_ms < 200; ttl_ms += 100) {
            test_random(spaces, ttl_ms, steps, seed++);
            test_undo(spaces, ttl_ms, steps, seed++);
        }
    test_reuse();
    test_touched_is_not_changed();
    test_timers_cost();
    test_cost();
    for (int i = 0; i < 2; i++) {
        test_sweep_in_parts(NAMES[i]);
        test_sweep_of_everything(NAMES[i]);
        test_sweep_keeps_pace(i);
    }
    for (int i = 0; i < 3; i++) {
        test_sweep_goes_on(NAMES[i], 20);
        test_sweep_goes_on(NAMES[i], 1);
    }
    test_sweep_looks_once();
    test_sweep_place_goes();
    test_sweep_of_idle_table();
    test_sweep_place_is_nonsense();
    test_sweep_begins_elsewhere();
    test_sweep_passes_long_lists();
    test_sweep_is_refused();
    return check_report();
}
