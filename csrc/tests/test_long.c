/* Lists that are larger than memory: what lies in files stays there, and is read where it is wanted.
 *
 *   test_long [seeds] [seed]
 */
#include "killed.h"

enum { SEEDS = 12 };

/* Items that expire. */
static const pst_column TIMED[] = {{.name = "l", .type = PST_INT64, .kind = PST_LIST},
                                   {.name = "l#", .type = PST_INT64, .kind = PST_TIME}};
static const pst_schema TIMED_SCHEMA = {2, 2, KEYS, TIMED, 1};

/* ---- ten times the memory ----------------------------------------------------------------------- */

enum { LIMIT = 2 << 20, BATCH = 1 << 16, BATCHES = 40 };

static pst_status append_to(pst_table *t, int32_t column, uint64_t key, uint64_t first, int32_t n) {
    static int64_t items[BATCH];
    int64_t k = (int64_t)key, zero = 0;
    int32_t offsets[2] = {0, n};
    pst_array keys[2] = {{.type = PST_INT64, .length = 1, .values = &k},
                         {.type = PST_INT64, .length = 1, .values = &zero}};
    pst_array values = {.type = PST_INT64, .length = n, .values = items};
    pst_batch *b = NULL;
    for (int32_t i = 0; i < n; i++)
        items[i] = (int64_t)first + i;
    REQUIRE(!pst_batch_create(t, keys, &b));
    pst_status s = pst_batch_list_append_many(b, column, offsets, &values);
    pst_batch_destroy(b);
    return s;
}

static pst_status append_many(pst_table *t, uint64_t key, uint64_t first, int32_t n) {
    return append_to(t, L, key, first, n);
}

/* All items of the current key are their numbers, from `first` on. */
static void check_items(files *f, uint64_t first, uint64_t n) {
    uint64_t below;
    REQUIRE(!pst_list_below(f->t, L, &below));
    CHECK(below <= n);
    pst_elements *e = NULL;
    pst_run run;
    uint64_t at = 0, count;
    pst_status s;
    REQUIRE(!pst_elements_count(f->t, L, &count));
    CHECK_EQ(count, n);
    REQUIRE(!pst_elements_create(f->t, &e));
    REQUIRE(!pst_elements_start(e, L));
    while ((s = pst_elements_next_run(e, &run)) == PST_OK) {
        const int64_t *items = run.items;
        uint64_t wrong = 0;
        CHECK_EQ(run.left, n - at);
        for (uint64_t i = 0; i < run.count; i++)
            wrong += items[i] != (int64_t)(first + at + i);
        CHECK_EQ(wrong, 0);
        at += run.count;
    }
    CHECK_EQ(s, PST_NOT_FOUND);
    CHECK_EQ(at, n);
    pst_elements_destroy(e);
}

/* What lies in the middle is found without what is before it. */
static void check_middle(files *f, uint64_t n) {
    pst_elements *e = NULL;
    pst_cell key, value;
    REQUIRE(!pst_elements_create(f->t, &e));
    for (uint64_t at = 5; at < n; at += n / 7) {
        uint64_t before = reads_of(f);
        REQUIRE(!pst_elements_start(e, L) && !pst_elements_skip(e, at));
        for (uint64_t i = at; i < at + 10 && i < n; i++) {
            REQUIRE(!pst_elements_next(e, &key, &value));
            CHECK_EQ(value.word[0], i);
        }
        CHECK(reads_of(f) - before < 40);
    }
    pst_elements_destroy(e);
}

static void check_copy(files *f, uint64_t key, uint64_t n) {
    int64_t k = (int64_t)key, zero = 0, offsets[2];
    pst_array keys[2] = {{.type = PST_INT64, .length = 1, .values = &k},
                         {.type = PST_INT64, .length = 1, .values = &zero}};
    pst_batch *b = NULL;
    REQUIRE(!pst_batch_create(f->t, keys, &b));
    REQUIRE(!pst_batch_element_offsets(b, L, offsets));
    REQUIRE((uint64_t)offsets[1] == n);
    int64_t *items = malloc(n * sizeof *items);
    REQUIRE(items && !pst_batch_list_copy(b, L, offsets, items, n * sizeof *items));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < n; i++)
        wrong += items[i] != (int64_t)i;
    CHECK_EQ(wrong, 0);
    free(items);
    pst_batch_destroy(b);
}

static void test_larger_than_memory(void) {
    files f;
    uint64_t n = 0, most = 0, key = long_key(7), below;
    begin(&f, LIMIT);
    REQUIRE(append_many(f.t, 1, 0, 5) == PST_OK); /* a short one beside it */
    seal(&f);
    for (int i = 0; i < BATCHES; i++, n += BATCH) {
        uint64_t before = reads_of(&f);
        pst_status s = append_many(f.t, key, n, BATCH);
        REQUIRE(s == PST_OK);
        uint64_t reads = reads_of(&f) - before;
        most = reads > most ? reads : most;
        CHECK(pst_table_dirty(f.t));
        seal(&f);
        leave(&f, 1); /* however much it is used */
    }
    CHECK(f.left >= BATCHES);
    REQUIRE(n * 8 >= 10 * (uint64_t)LIMIT);
    /* The row's record and the last run of each file, however long the list is. */
    CHECK(most > 0 && most < 12 * LONG_FILES);
    for (int round = 0; round < 2; round++) {
        pst_budget_stats stats;
        uint64_t before = reads_of(&f);
        REQUIRE(!set_key(f.t, key, 0));
        CHECK(reads_of(&f) - before < 12 * LONG_FILES);
        CHECK(!pst_table_dirty(f.t));
        check_items(&f, 0, n);
        REQUIRE(!pst_list_below(f.t, L, &below));
        CHECK_EQ(below, n);
        check_middle(&f, n);
        check_copy(&f, key, n);
        pst_budget_get_stats(f.budget, &stats);
        CHECK(stats.private_bytes < (uint64_t)1 << 20);
        REQUIRE(!set_key(f.t, 1, 0));
        check_items(&f, 0, 5);
        anew(&f, LIMIT);
    }
    /* It is emptied, begun again, and that is undone. */
    REQUIRE(!set_key(f.t, key, 0) && !pst_value_clear(f.t, L));
    check_items(&f, 0, 0);
    REQUIRE(append_many(f.t, key, 1000, 10) == PST_OK);
    REQUIRE(!set_key(f.t, key, 0));
    check_items(&f, 1000, 10);
    REQUIRE(!pst_table_rollback(f.t, 0));
    REQUIRE(!set_key(f.t, key, 0));
    check_items(&f, 0, n);
    REQUIRE(!pst_value_clear(f.t, L));
    REQUIRE(append_many(f.t, key, 1000, 10) == PST_OK);
    seal(&f);
    REQUIRE(append_many(f.t, key, 1010, 10) == PST_OK);
    seal(&f);
    anew(&f, LIMIT);
    REQUIRE(!set_key(f.t, key, 0));
    check_items(&f, 1000, 20);
    end(&f);
}

/* ---- items that reading changes ----------------------------------------------------------------- */

enum { TTL = 100, EACH = 1 << 14, TIMES = 20 };

static void set_now(files *f, int64_t processing_ms, int64_t watermark_ms, int64_t event_ms) {
    f->now = (pst_clock){processing_ms, watermark_ms, event_ms};
    pst_table_set_clock(f->t, &f->now);
}

/* Walks over what can be seen of the current key's list: numbers, from `first` on. PST_OK: of `n`. */
static pst_status walk_timed(files *f, uint64_t first, uint64_t n) {
    pst_elements *e = NULL;
    pst_cell key, value;
    uint64_t at = 0, wrong = 0;
    REQUIRE(!pst_elements_create(f->t, &e));
    pst_status s = pst_elements_start(e, 0);
    for (; !s && (s = pst_elements_next(e, &key, &value)) == PST_OK; at++)
        wrong += value.word[0] != first + at;
    pst_elements_destroy(e);
    if (s != PST_NOT_FOUND)
        return s;
    CHECK_EQ(wrong, 0);
    CHECK_EQ(at, n);
    return PST_OK;
}

static uint64_t counted(files *f) {
    uint64_t count;
    REQUIRE(!pst_elements_count(f->t, 0, &count));
    return count;
}

static uint64_t below_of(files *f) {
    uint64_t below;
    REQUIRE(!pst_list_below(f->t, 0, &below));
    return below;
}

/* A list of several times the memory, the items of which are ten milliseconds apart, from batch to
 * batch. */
static void begin_timed(files *f, const pst_ttl *ttl, uint64_t key) {
    begin_with(f, &TIMED_SCHEMA, ttl, LIMIT);
    for (uint64_t i = 0; i < TIMES; i++) {
        set_now(f, 1000 + (int64_t)i * 10, PST_NO_TIME, PST_NO_TIME);
        REQUIRE(!append_to(f->t, 0, key, i * EACH, EACH));
        seal(f);
        leave(f, 1);
    }
    anew(f, LIMIT);
    REQUIRE(TIMES * EACH * 16 > 2 * LIMIT);
}

/* What expired and was seen is gone, and no more than that: not the items that were appended since, nor
 * what is rolled back. */
static void test_shown_and_gone(void) {
    enum { ALL = TIMES * EACH, GONE = 7 * EACH, MORE = 300 };
    static const pst_ttl ttl = {.duration_ms = TTL, .lenient = 1};
    files f;
    uint64_t key = long_key(7);
    begin_timed(&f, &ttl, key);
    set_now(&f, 1060 + TTL, PST_NO_TIME, PST_NO_TIME);
    for (int undone = 2; undone--;) {
        REQUIRE(!append_to(f.t, 0, key, ALL, MORE));
        REQUIRE(!set_key(f.t, key, 0));
        CHECK_EQ(walk_timed(&f, 0, ALL + MORE), PST_OK);
        CHECK_EQ(below_of(&f), ALL - GONE);
        CHECK_EQ(counted(&f), ALL - GONE + MORE);
        CHECK_EQ(walk_timed(&f, GONE, ALL - GONE + MORE), PST_OK);
        if (!undone)
            break;
        REQUIRE(!pst_table_rollback(f.t, 0));
        REQUIRE(!set_key(f.t, key, 0));
        CHECK_EQ(counted(&f), ALL);
    }
    /* Also in its delta, in a merge of that, and once more. */
    for (int round = 0; round < 3; round++) {
        seal(&f);
        if (round == 1) {
            files_merge(&f, 0);
            files_set_stack(&f);
        }
        anew(&f, LIMIT);
        REQUIRE(!set_key(f.t, key, 0));
        CHECK_EQ(below_of(&f), ALL - GONE + MORE);
        CHECK_EQ(walk_timed(&f, GONE, ALL - GONE + MORE), PST_OK);
        CHECK(!pst_table_dirty(f.t));
        REQUIRE(!append_to(f.t, 0, 1, 0, 1));
    }
    /* The rest of them. */
    set_now(&f, 5000, PST_NO_TIME, PST_NO_TIME);
    REQUIRE(!set_key(f.t, key, 0));
    CHECK_EQ(walk_timed(&f, GONE, ALL - GONE + MORE), PST_OK);
    CHECK_EQ(counted(&f), 0);
    REQUIRE(!append_to(f.t, 0, key, 9, 1));
    seal(&f);
    anew(&f, LIMIT);
    REQUIRE(!set_key(f.t, key, 0));
    CHECK_EQ(walk_timed(&f, 9, 1), PST_OK);
    end(&f);
}

/* What went between others is gone, though that takes the row. */
static void test_gone_between(void) {
    static const pst_ttl ttl = {.duration_ms = TTL, .lenient = 1, .event_time = 1};
    static const int64_t times[] = {1000, 50, 1000, 50};
    files f;
    begin_with(&f, &TIMED_SCHEMA, &ttl, LIMIT);
    for (uint64_t i = 0; i < 4; i++) {
        set_now(&f, PST_NO_TIME, 40, times[i]);
        REQUIRE(!append_to(f.t, 0, long_key(7), i, 1));
        seal(&f);
    }
    anew(&f, LIMIT);
    set_now(&f, PST_NO_TIME, 500, PST_NO_TIME);
    REQUIRE(!set_key(f.t, long_key(7), 0));
    CHECK_EQ(below_of(&f), 4);
    CHECK_EQ(walk_timed(&f, 0, 4), PST_OK);
    for (int round = 0; round < 2; round++) {
        pst_elements *e = NULL;
        pst_cell key, value;
        REQUIRE(!set_key(f.t, long_key(7), 0));
        CHECK_EQ(counted(&f), 2);
        REQUIRE(!pst_elements_create(f.t, &e) && !pst_elements_start(e, 0));
        for (uint64_t i = 0; i < 4; i += 2) {
            REQUIRE(!pst_elements_next(e, &key, &value));
            CHECK_EQ(value.word[0], i);
        }
        CHECK_EQ(pst_elements_next(e, &key, &value), PST_NOT_FOUND);
        pst_elements_destroy(e);
        seal(&f);
        anew(&f, LIMIT);
    }
    end(&f);
}

/* Reading counts as use: what is young is read where it is; what is not must fit, or nothing changes. */
static void test_read_and_used(void) {
    enum { ALL = TIMES * EACH };
    static const pst_ttl ttl = {.duration_ms = TTL, .on_read = 1, .granularity_ms = 60};
    files f;
    uint64_t key = long_key(7);
    begin_timed(&f, &ttl, key);
    for (int64_t at = 0; at < 2; at++) {
        set_now(&f, 1190 + at * 10, PST_NO_TIME, PST_NO_TIME);
        REQUIRE(!set_key(f.t, key, 0));
        CHECK_EQ(walk_timed(&f, (uint64_t)(10 + at) * EACH, ALL - (uint64_t)(10 + at) * EACH),
                 PST_LIMIT);
        CHECK(!f.t->poisoned);
        CHECK(below_of(&f) >= 10 * EACH);
        REQUIRE(!append_to(f.t, 0, 1, 0, 1)); /* the epoch goes on */
    }
    /* Three batches are left, of which the first has moved far enough: all three move. */
    set_now(&f, 1260, PST_NO_TIME, PST_NO_TIME);
    for (int round = 0; round < 2; round++) {
        REQUIRE(!set_key(f.t, key, 0));
        CHECK_EQ(counted(&f), 3 * EACH);
        CHECK_EQ(walk_timed(&f, ALL - 3 * EACH, 3 * EACH), PST_OK);
        seal(&f);
        leave(&f, 1);
        anew(&f, LIMIT);
    }
    set_now(&f, 1260 + 59, PST_NO_TIME, PST_NO_TIME);
    REQUIRE(!set_key(f.t, key, 0));
    CHECK(below_of(&f) >= 3 * EACH);
    CHECK_EQ(walk_timed(&f, ALL - 3 * EACH, 3 * EACH), PST_OK);
    CHECK(!pst_table_dirty(f.t) && below_of(&f));
    set_now(&f, 1260 + TTL, PST_NO_TIME, PST_NO_TIME);
    CHECK_EQ(walk_timed(&f, 0, 0), PST_OK);
    end(&f);
}

/* A table above files and a whole one that do the same, with lists whose items expire when they were last
 * read. */
typedef struct twins {
    files f;
    pst_table *whole;
    uint64_t random;
} twins;

static struct {
    uint64_t below, moved, stayed, hidden;
} twins_seen;

static uint64_t twins_below(twins *w, uint64_t n) {
    return check_random(&w->random) % n;
}

/* What can be seen of a key's list, as a sum, with how many items that are: by a walk, or by a batch. */
static uint64_t sum_of(pst_table *t, uint64_t key, int by_batch, uint64_t *n) {
    int64_t k = (int64_t)key, zero = 0, offsets[2], items[1 << 12];
    pst_array keys[2] = {{.type = PST_INT64, .length = 1, .values = &k},
                         {.type = PST_INT64, .length = 1, .values = &zero}};
    pst_elements *e = NULL;
    pst_batch *b = NULL;
    pst_cell name, value;
    uint64_t sum = 0;
    *n = 0;
    if (by_batch) {
        REQUIRE(!pst_batch_create(t, keys, &b) && !pst_batch_element_offsets(b, 0, offsets));
        REQUIRE((uint64_t)offsets[1] * sizeof *items <= sizeof items);
        REQUIRE(!pst_batch_list_copy(b, 0, offsets, items, sizeof items));
        REQUIRE(!pst_batch_elements_read(b, 0));
        for (; *n < (uint64_t)offsets[1]; ++*n)
            sum = sum * 31 + (uint64_t)items[*n];
        pst_batch_destroy(b);
        return sum;
    }
    REQUIRE(!set_key(t, key, 0) && !pst_elements_create(t, &e) && !pst_elements_start(e, 0));
    for (; pst_elements_next(e, &name, &value) == PST_OK; ++*n)
        sum = sum * 31 + value.word[0];
    pst_elements_destroy(e);
    return sum;
}

static void read_both(twins *w, uint64_t key) {
    uint64_t n[2], sum[2], count[2], below;
    int by_batch = (int)twins_below(w, 2), dirty = pst_table_dirty(w->f.t);
    REQUIRE(!set_key(w->f.t, key, 0) && !set_key(w->whole, key, 0));
    REQUIRE(!pst_elements_count(w->f.t, 0, &count[0]) &&
            !pst_elements_count(w->whole, 0, &count[1]));
    CHECK_EQ(count[0], count[1]);
    below = below_of(&w->f);
    twins_seen.below += below > 0;
    twins_seen.hidden += below > count[0];
    sum[0] = sum_of(w->f.t, key, by_batch, &n[0]);
    sum[1] = sum_of(w->whole, key, by_batch, &n[1]);
    CHECK_EQ(n[0], n[1]);
    CHECK_EQ(n[0], count[0]);
    CHECK_EQ(sum[0], sum[1]);
    REQUIRE(!set_key(w->f.t, key, 0));
    if (below && !dirty && n[0]) {
        twins_seen.moved += (uint64_t)(pst_table_dirty(w->f.t) && !below_of(&w->f));
        twins_seen.stayed += (uint64_t)(!pst_table_dirty(w->f.t) && below_of(&w->f));
    }
}

static void pass_both(twins *w) {
    int64_t ms = 1 + (int64_t)twins_below(w, 40), now = w->f.now.processing_ms + ms;
    set_now(&w->f, now, now - 30, now - 60 + (int64_t)twins_below(w, 80));
    pst_table_set_clock(w->whole, &w->f.now);
}

static void step_twins(twins *w) {
    uint64_t key = long_key(w->random % 3), op = twins_below(w, 12);
    uint64_t first = twins_below(w, 1000);
    int32_t n = 1 + (int32_t)twins_below(w, 20);
    if (op < 4) {
        REQUIRE(!append_to(w->f.t, 0, key, first, n) && !append_to(w->whole, 0, key, first, n));
    } else if (op < 7) {
        read_both(w, key);
    } else if (op < 9) {
        pass_both(w);
    } else if (op == 9 && twins_below(w, 4) == 0) {
        REQUIRE(!set_key(w->f.t, key, 0) && !set_key(w->whole, key, 0));
        REQUIRE(!pst_value_clear(w->f.t, 0) && !pst_value_clear(w->whole, 0));
    } else if (op == 9) {
        REQUIRE(!pst_table_rollback(w->f.t, 0) && !pst_table_rollback(w->whole, 0));
    } else if (op == 10) {
        seal(&w->f);
        REQUIRE(!pst_table_seal(w->whole, &w->f.lineage, NULL));
        if (twins_below(w, 2))
            leave(&w->f, 3);
        else
            anew(&w->f, 1 << 26);
    }
}

static void test_twins(uint64_t seed) {
    twins w = {.random = seed};
    pst_ttl ttl = {.duration_ms = TTL, .on_read = 1};
    ttl.granularity_ms = 20 * (int64_t)twins_below(&w, 3);
    ttl.event_time = (uint8_t)twins_below(&w, 2);
    begin_with(&w.f, &TIMED_SCHEMA, &ttl, 1 << 26);
    pst_table *above = w.f.t;
    open_table(&w.f, 1 << 26);
    w.whole = w.f.t;
    w.f.t = above;
    set_now(&w.f, 1000, 970, 1000);
    pst_table_set_clock(w.whole, &w.f.now);
    for (int i = 0; i < 600; i++)
        step_twins(&w);
    pst_table_close(w.whole);
    end(&w.f);
}

/* Of many rows that were used the one leaves whose list is long. */
static void test_leaves_first(void) {
    enum { OTHERS = 100 };
    files f;
    uint64_t key = long_key(7);
    begin(&f, (uint64_t)1 << 26);
    for (uint64_t n = 0; n < 2; n++) {
        for (uint64_t k = 0; k < OTHERS; k++)
            REQUIRE(append_many(f.t, 1000 + k, n * 5, 5) == PST_OK);
        REQUIRE(append_many(f.t, key, n * 5000, 5000) == PST_OK);
        seal(&f);
        f.left = 0;
        leave(&f, 1);
        CHECK_EQ(f.left, 1);
    }
    uint64_t before = reads_of(&f);
    for (uint64_t k = 0; k < OTHERS; k++)
        REQUIRE(!set_key(f.t, 1000 + k, 0));
    CHECK_EQ(reads_of(&f), before);
    REQUIRE(!set_key(f.t, key, 0));
    CHECK(reads_of(&f) > before);
    check_items(&f, 0, 10000);
    end(&f);
}

/* ---- a process that dies ------------------------------------------------------------------------- */

/* Lists of one hash, whose items are numbers that rise. */
enum { SPACES = 5 };

typedef struct numbers {
    uint64_t first[SPACES];
    uint64_t n[SPACES];
} numbers;

static void compare(pst_table *t, const void *model) {
    const numbers *m = model;
    pst_elements *e = NULL;
    pst_cell key, value;
    REQUIRE(!pst_elements_create(t, &e));
    for (uint64_t i = 0; i < SPACES; i++) {
        uint64_t at = 0, wrong = 0;
        pst_status s = set_key(t, kill_.key, i);
        REQUIRE(!s && !pst_elements_start(e, L));
        for (; (s = pst_elements_next(e, &key, &value)) == PST_OK; at++)
            wrong += value.word[0] != m->first[i] + at;
        CHECK_EQ(s, PST_NOT_FOUND);
        CHECK_EQ(at, m->n[i]);
        CHECK_EQ(wrong, 0);
    }
    pst_elements_destroy(e);
}

static void change(files *f) {
    uint64_t i = check_random(&kill_.random) % SPACES, what = check_random(&kill_.random) % 8;
    numbers *m = kill_.now;
    REQUIRE(!set_key(f->t, kill_.key, i));
    uint32_t slot = f->t->current.slot;
    kill_.below += slot != PST_NONE && pst_items_are_below(f->t, slot, L);
    if (what == 0) {
        REQUIRE(!pst_value_clear(f->t, check_random(&kill_.random) % 2 ? L : -1));
        m->first[i] = check_random(&kill_.random) % 1000;
        m->n[i] = 0;
    } else if (what == 1) {
        pst_cell cell = {{what, 0}, {NULL, 0}};
        REQUIRE(!pst_value_put(f->t, A, &cell));
    }
    for (uint64_t n = what < 2 ? 0 : check_random(&kill_.random) % 900; n > 0; n--) {
        pst_cell cell = {{m->first[i] + m->n[i]++, 0}, {NULL, 0}};
        REQUIRE(!pst_list_add(f->t, L, &cell));
    }
}

static void test_killed(uint64_t seed) {
    static numbers models[3];
    files f;
    kill_begin(models, sizeof *models);
    kill_.change = change;
    kill_.compare = compare;
    kill_.every = 331;
    kill_run(&f, seed);
    kill_end(&f);
}

/* ---- walks --------------------------------------------------------------------------------------- */

static void element_of(uint8_t *bytes, uint64_t seq) {
    pst_put_big(bytes, pst_collection_id("l"), PST_ELEMENT_ID);
    pst_put_big(bytes + PST_ELEMENT_ID, seq, 8);
}

/* From any element on, the records of one key of many in a file, against all that it has. */
static void test_walks(void) {
    enum { FILLED = 6, ABSENT = 3, RUNS = 300 };
    static pst_record r;
    files f;
    uint64_t key = long_key(3);
    begin(&f, (uint64_t)1 << 27);
    for (uint64_t e = 0; e < RUNS; e++) {
        for (uint64_t i = 0; i < FILLED; i++) {
            pst_cell cell = {{e, 0}, {NULL, 0}};
            if (e % (i + 1) || i == ABSENT)
                continue;
            REQUIRE(!set_key(f.t, key, i) && !pst_value_put(f.t, A, &cell));
            for (uint64_t n = 0; n < 20; n++)
                REQUIRE(!pst_list_add(f.t, L, &cell));
        }
        seal(&f);
    }
    files_merge(&f, 0);
    files_set_stack(&f);
    pst_cell cells[2] = {{{key, 0}, {NULL, 0}}};
    uint64_t hash = pst_hash_key(KEYS, 1, cells, 0), most = 0;
    for (uint64_t i = 0; i < FILLED; i++) {
        pst_walk w;
        uint8_t bytes[PST_ELEMENT_ID + 8];
        pst_bytes element = {bytes, sizeof bytes};
        uint64_t runs = i == ABSENT ? 0 : (RUNS + i) / (i + 1);
        cells[1].word[0] = i;
        REQUIRE(!pst_walk_open(&w, f.stack, 0, pst_key_group(hash, GROUPS), hash, cells, 0));
        CHECK(w.blocks > 10);
        CHECK_EQ(pst_walk_seek(&w, NULL), PST_OK);
        for (uint64_t k = 0; k < runs + (i != ABSENT); k++) {
            REQUIRE(!pst_walk_next(&w, &r));
            CHECK_EQ(r.key[1].word[0], i);
            CHECK_EQ(k == 0, r.key_nulls >> 2 & 1);
            if (k)
                CHECK_EQ(pst_get_big(r.key[2].bytes.data + PST_ELEMENT_ID, 8), (k - 1) * 20);
        }
        CHECK_EQ(pst_walk_next(&w, &r), PST_NOT_FOUND);
        for (uint64_t seq = 0; seq <= runs * 20 + 20; seq += 7) {
            uint64_t before = reads_of(&f);
            uint64_t next = (seq + 19) / 20;
            element_of(bytes, seq);
            REQUIRE(!pst_walk_seek(&w, &element));
            pst_status s = pst_walk_next(&w, &r);
            CHECK_EQ(s, next < runs ? PST_OK : PST_NOT_FOUND);
            if (!s)
                CHECK_EQ(pst_get_big(r.key[2].bytes.data + PST_ELEMENT_ID, 8), next * 20);
            s = pst_walk_seek_last(&w, &element);
            REQUIRE(s == PST_OK || (s == PST_NOT_FOUND && i == ABSENT));
            if (!s) {
                REQUIRE(!pst_walk_next(&w, &r));
                CHECK_EQ(r.key[1].word[0], i);
                uint64_t last = next < runs ? next : runs; /* runs that begin before */
                CHECK_EQ(last == 0, r.key_nulls >> 2 & 1);
                if (last)
                    CHECK_EQ(pst_get_big(r.key[2].bytes.data + PST_ELEMENT_ID, 8), (last - 1) * 20);
            }
            most = reads_of(&f) - before > most ? reads_of(&f) - before : most;
        }
        pst_walk_close(&w);
    }
    CHECK(most > 1 && most <= 16);
    end(&f);
}

int main(int argc, char **argv) {
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    test_walks();
    test_larger_than_memory();
    test_leaves_first();
    test_shown_and_gone();
    test_gone_between();
    test_read_and_used();
    for (uint64_t i = 0; i < 2 * seeds; i++)
        test_twins(seed + i);
    CHECK(!seeds ||
          (twins_seen.below && twins_seen.moved && twins_seen.stayed && twins_seen.hidden));
    for (uint64_t i = 0; i < seeds; i++)
        test_killed(seed + i);
    return check_report();
}
