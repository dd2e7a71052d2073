/* Rows that move into lower slots after most have gone, beside a model: through every phase of a
 * cut, with roll backs, readers of older epochs and growth in the middle of it.
 *
 *   test_slots [rounds] [seed]
 */
#include "access/current_key.h"
#include "elements/timers.h"
#include "slots_check.h"
#include "table_model.h"

enum { KEPT = 60, PHASES = PST_CUT_RELIST + 1 };

static struct {
    pst_table *t;
    model *m;
    uint64_t random;
    uint64_t phases[PHASES]; /* seals that ended in it */
    uint64_t back[PHASES];   /* and roll backs that began there */
    uint64_t lowered;
    uint64_t left;     /* keys whose bytes have moved */
    uint64_t refused;  /* seals for want of memory */
    uint64_t poisoned; /* which had moved something by then */
} run;

static uint64_t any(uint64_t n) {
    return check_random(&run.random) % n;
}

/* ---- timers: a key has those that its first value says --------------------------------------- */

static const pst_column TIMED[] = {{.name = "n", .type = PST_INT64, .has_default = 1},
                                   {.name = "s", .type = PST_STRING},
                                   {.name = "#timers", .type = PST_INT32, .kind = PST_TIMERS},
                                   {.name = "#timer", .type = PST_INT64, .kind = PST_TIMER}};

static int is_timed(const pst_table *t) {
    return t->lay.timers >= 0;
}

typedef struct due {
    uint64_t key;
    int64_t time;
    int64_t domain;
} due;

/* The timers of the key at hand, or of none. */
static int timers_of(const model_state *m, int32_t k, due out[4]) {
    uint64_t seed = m->value[k][0];
    int n = m->present[k][0] ? (int)(seed % 4) : 0;
    for (int i = 0; i < n; i++)
        out[i] =
            (due){(uint64_t)k, (int64_t)(seed % 97) + 1000 * i, (int64_t)(seed + (uint64_t)i) % 2};
    return n;
}

static void change_timers(int32_t k, pst_status (*change)(pst_table *, pst_domain, int64_t)) {
    due timers[4];
    int n = is_timed(run.t) ? timers_of(&run.m->now, k, timers) : 0;
    for (int i = 0; i < n; i++)
        CHECK_EQ(change(run.t, (pst_domain)timers[i].domain, timers[i].time), PST_OK);
}

/* Which of the model's keys a row has. */
static int32_t key_of(const uint64_t *row) {
    const uint64_t *key = row + run.t->lay.key_offset / 8;
    char text[24] = {0};
    if (run.t->lay.key_kind == PST_KEY_WORD)
        return (int32_t)((int64_t)(key[0] + 1000) / 7919);
    uint32_t size = pst_ref_size(key + 1);
    memcpy(text, pst_ref_data(run.t->heap, key + 1), size < 23 ? size : 23);
    return atoi(text + strlen("key-"));
}

static int compare_due(const void *x, const void *y) {
    const due *a = x, *b = y;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    if (a->domain != b->domain)
        return a->domain < b->domain ? -1 : 1;
    return (a->time > b->time) - (a->time < b->time);
}

/* The trees name the rows of the keys, and no others. */
static void check_timers(void) {
    static due found[4 * MODEL_KEYS], wanted[4 * MODEL_KEYS];
    size_t n = 0, all = 0;
    if (!is_timed(run.t))
        return;
    for (int at = 0; at < 2 * 2; at++) {
        pst_tree_root root = *pst_timer_root(run.t, run.t->m, at / 2, (pst_domain)(at % 2));
        pst_tree_cursor c;
        pst_tree_entry e;
        pst_tree_seek(&c, run.t->heap, pst_heap_bytes(run.t), &pst_timer_shape, root, NULL);
        for (uint32_t i = 0; i < root.count; i++) {
            REQUIRE(pst_tree_next(&c, &e) == PST_OK);
            const uint64_t *row = pst_row(run.t, (uint32_t)e.key[1]);
            int32_t k = key_of(row);
            pst_cell key[2];
            model_bytes room;
            uint32_t slot;
            CHECK(pst_is_live(row[0]));
            model_key(run.m->schema, k, key, &room);
            CHECK_EQ(pst_key_set(run.t, key, 0), PST_OK);
            CHECK_EQ(pst_current_row(run.t, 0, &slot), PST_OK);
            CHECK_EQ(slot, (uint32_t)e.key[1]);
            REQUIRE(n < 4 * MODEL_KEYS);
            found[n++] = (due){(uint64_t)k, pst_timer_time(e.key[0]), at % 2};
        }
    }
    for (int32_t k = 0; k < MODEL_KEYS; k++)
        all += (size_t)timers_of(&run.m->now, k, wanted + all);
    qsort(found, n, sizeof *found, compare_due);
    qsort(wanted, all, sizeof *wanted, compare_due);
    CHECK_EQ(n, all);
    CHECK(!memcmp(found, wanted, n * sizeof *found));
}

/* ---- the run --------------------------------------------------------------------------------- */

static void set(int32_t k, int present) {
    pst_cell key[2], cell = {{0, 0}, {NULL, 0}};
    model_bytes room, bytes;
    model_key(run.m->schema, k, key, &room);
    CHECK_EQ(pst_key_set(run.t, key, 0), PST_OK);
    change_timers(k, pst_timer_delete);
    memset(run.m->now.present[k], 0, sizeof run.m->now.present[k]);
    CHECK_EQ(pst_value_clear(run.t, -1), PST_OK);
    for (int32_t c = 0; present && c < run.m->schema->n_states && c < 2; c++) {
        uint64_t seed = any(1000000);
        model_cell(MODEL_STATES[c].type, seed, &cell, &bytes);
        CHECK_EQ(pst_value_put(run.t, c, &cell), PST_OK);
        run.m->now.present[k][c] = 1;
        run.m->now.value[k][c] = seed;
    }
    change_timers(k, pst_timer_register);
}

static void seal(void) {
    uint32_t slots = run.t->m->slots;
    model_seal(run.t, run.m, NULL);
    uint64_t records = run.t->h->undo_count[run.t->h->sealed % PST_UNDO_LOGS];
    for (uint64_t i = 0; i < records; i++)
        run.left +=
            pst_get64(pst_undo_record(run.t, pst_undo_log(run.t, run.t->h->sealed), i)) >> 32;
    run.lowered += run.t->m->slots < slots;
    run.phases[run.t->m->cut_phase]++;
    check_slots(run.t);
}

/* A seal for which there is no memory, not even blocks: it is done, or refused, and undone in the
 * end. */
static int try_seal(void) {
    enum { CLASSES = 24 };
    uint64_t limit = run.t->arena.limit;
    uint32_t granule, least = (uint32_t)any(CLASSES);
    pst_lineage l = model_lineage(run.m->seals + 1);
    run.t->arena.limit = run.t->arena.committed_total / 9 * 8; /* what makes room may pass it */
    for (uint32_t c = least; c < CLASSES; c++)
        while (pst_block_alloc(run.t, c, &granule) == PST_OK)
            ;
    run.m->sealed[(run.m->seals + 1) % MODEL_EPOCHS] = run.m->now;
    pst_status s = pst_table_seal(run.t, &l, NULL);
    run.t->arena.limit = limit;
    CHECK(!s || s == PST_LIMIT);
    run.refused += s != PST_OK;
    int poisoned = run.t->poisoned != PST_OK;
    CHECK_EQ(pst_table_rollback(run.t, !s), PST_OK);
    CHECK(model_follow(run.t, run.m));
    check_timers();
    check_slots(run.t);
    return poisoned;
}

static void seal_at_limit(void) {
    int poisoned = try_seal();
    run.poisoned += (uint64_t)poisoned;
    /* What failed is not tried again. A sweep and a cut may each fail once. */
    if (poisoned && try_seal())
        CHECK(!try_seal());
}

/* Some of the rows that stay, touched; now and then undone, with epochs before it. */
static void some_epochs(int n, int32_t kept, uint64_t every) {
    for (int e = 0; e < n; e++) {
        for (int i = 0; i < 5; i++)
            set((int32_t)any((uint64_t)kept), any(20) != 0);
        if (any(every) == 0) {
            int32_t back = (int32_t)any(3);
            pst_lineage l;
            if (pst_table_lineage(run.t, back, &l))
                back = 0;
            run.back[run.t->m->cut_phase]++;
            CHECK_EQ(pst_table_rollback(run.t, back), PST_OK);
            CHECK(model_follow(run.t, run.m));
            check_slots(run.t);
        } else if (every < 100 && any(2) == 0) {
            seal_at_limit();
        } else {
            seal();
        }
        if (e % 8 == 0) {
            CHECK(model_compare(run.t, &run.m->now, run.m->schema, run.m->keys));
            check_timers();
        }
    }
}

static void open_run(const pst_schema *s, uint64_t seed, const char *path) {
    pst_table_options o = {
        .max_parallelism = 2, .last_key_group = 1, .limit_bytes = (uint64_t)1 << 26, .path = path};
    run.m = calloc(1, sizeof *run.m);
    REQUIRE(run.m);
    run.m->schema = s;
    run.m->keys = MODEL_KEYS;
    run.random = seed;
    pst_schema with_timers = {1, 4, s->keys, TIMED};
    if (s->states == TIMED)
        s = &with_timers;
    REQUIRE(pst_table_open(s, &o, &run.t, NULL, NULL) == PST_OK);
}

static void close_run(void) {
    check_timers();
    CHECK(model_compare(run.t, &run.m->now, run.m->schema, run.m->keys));
    pst_table_close(run.t);
    free(run.m);
}

static void test_cut(const pst_schema *s, int rounds, uint64_t seed) {
    pst_table_stats full, now;
    open_run(s, seed, NULL);
    for (int round = 0; round < rounds; round++) {
        for (int32_t k = 0; k < MODEL_KEYS; k++)
            set(k, 1);
        seal();
        pst_table_get_stats(run.t, &full);
        /* Those that stay were not the first to come. */
        for (int32_t k = KEPT; k < MODEL_KEYS; k++)
            set(k, 0);
        some_epochs(3, KEPT, UINT64_MAX); /* nothing goes back before that */
        some_epochs(60, KEPT, round % 2 ? 5 : 1000);
        if (round % 3 == 2) {
            /* In whatever phase that finds it: others come, more than there is room for below. */
            some_epochs((int)any(12), KEPT, 1000);
            for (int32_t k = 0; k < MODEL_KEYS / 2; k++)
                set(k, 1);
            seal();
            some_epochs(8, MODEL_KEYS / 2, 5);
            for (int32_t k = KEPT; k < MODEL_KEYS / 2; k++)
                set(k, 0);
            some_epochs(3, KEPT, UINT64_MAX);
        }
        /* Longer than what could not be moved is left alone. */
        some_epochs(260, KEPT, 1000);
        pst_table_get_stats(run.t, &now);
        CHECK(now.slots <= KEPT * 3);
        CHECK(now.row_bytes <= full.row_bytes / 2 + 4096);
    }
    close_run();
}

/* What a reader finds is what was there when it was opened. */
static void check_reader(pst_reader *reader, const model_state *wanted) {
    static pst_record r;
    const pst_schema *s = run.m->schema;
    uint64_t cursor = 0, found = 0, alive = 0;
    while (pst_reader_next(reader, &cursor, &r) == PST_OK)
        found++;
    for (int32_t k = 0; k < MODEL_KEYS; k++) {
        pst_cell key[2];
        model_bytes room;
        model_key(s, k, key, &room);
        int is = model_alive(wanted, s, k);
        alive += (uint64_t)is;
        CHECK_EQ(pst_reader_get(reader, key, 0, &r), is ? PST_OK : PST_NOT_FOUND);
        for (int32_t c = 0; is && c < 2; c++)
            if (wanted->present[k][c])
                CHECK(model_same(MODEL_STATES[c].type, wanted->value[k][c], &r.cells[c]));
    }
    CHECK_EQ(found, alive);
}

/* Those that stay lie everywhere, also the bytes of their keys. Others come and go, so that sweeps
 * go far. */
static void test_leaving(const pst_schema *s, int rounds, uint64_t seed) {
    enum { EVERY = 15, FIRST = 200, LAST = 500 };
    model_state *wanted = calloc(1, sizeof *wanted);
    REQUIRE(wanted);
    open_run(s, seed, NULL);
    for (int round = 0; round < rounds; round++) {
        for (int32_t k = 0; k < MODEL_KEYS; k++)
            set(k, 1);
        seal();
        for (int32_t k = 0; k < MODEL_KEYS; k++)
            if (k % EVERY)
                set(k, 0);
        some_epochs(3, 20, UINT64_MAX);
        for (int e = 0; e < 60; e++) {
            pst_reader *reader = NULL;
            *wanted = run.m->sealed[run.m->seals % MODEL_EPOCHS];
            REQUIRE(pst_reader_open(run.t, NULL, NULL, &reader, NULL) == PST_OK);
            for (int32_t k = FIRST; k < LAST; k++)
                if (k % EVERY)
                    set(k, e % 4 == 0);
            seal();
            check_reader(reader, wanted);
            pst_reader_close(reader);
            some_epochs(1, 20, round % 2 ? 3 : 1000);
            if (e % 4 == 3)
                CHECK(model_compare(run.t, &run.m->now, run.m->schema, run.m->keys));
        }
    }
    free(wanted);
    close_run();
}

/* Growth begins in every phase of a cut. */
static void test_growth(const pst_schema *s, uint64_t seed) {
    open_run(s, seed, NULL);
    for (int wait = 0; wait < 40; wait++) {
        for (int32_t k = 0; k < MODEL_KEYS; k++)
            set(k, 1);
        seal();
        for (int32_t k = KEPT; k < MODEL_KEYS; k++)
            set(k, 0);
        seal();
        for (int e = 0; e < wait; e++)
            seal();
        for (int32_t k = MODEL_KEYS - 200; k < MODEL_KEYS; k++)
            set(k, 1);
        if (wait % 2)
            seal();
        CHECK(model_compare(run.t, &run.m->now, run.m->schema, run.m->keys));
        if (wait % 4 > 1) {
            CHECK_EQ(pst_table_rollback(run.t, wait % 3), PST_OK);
            CHECK(model_follow(run.t, run.m));
            check_slots(run.t);
        }
        some_epochs(20, MODEL_KEYS, 6);
        pst_table_stats stats;
        pst_table_get_stats(run.t, &stats);
        CHECK(stats.slots <= 2 * MODEL_KEYS);
    }
    close_run();
}

/* A reader of the epoch in which a row moved, and of those before it, finds it. */
static void test_readers(const pst_schema *s, uint64_t seed) {
    pst_reader *readers[2] = {NULL, NULL};
    model_state *wanted = calloc(2, sizeof *wanted);
    REQUIRE(wanted);
    open_run(s, seed, NULL);
    for (int32_t k = 0; k < MODEL_KEYS; k++)
        set(k, 1);
    seal();
    for (int32_t k = 0; k < MODEL_KEYS; k++)
        if (k % 10)
            set(k, 0);
    seal();
    for (int e = 0; e < 80; e++) {
        pst_reader **reader = &readers[e % 2];
        pst_reader_close(*reader);
        *reader = NULL;
        REQUIRE(pst_reader_open(run.t, NULL, NULL, reader, NULL) == PST_OK);
        wanted[e % 2] = run.m->sealed[run.m->seals % MODEL_EPOCHS];
        set((int32_t)any(MODEL_KEYS / 10) * 10, 1);
        seal();
        for (int i = 0; i < 2 && readers[1]; i++)
            check_reader(readers[i], &wanted[i]);
    }
    CHECK(run.lowered > 0);
    pst_reader_close(readers[0]);
    pst_reader_close(readers[1]);
    free(wanted);
    close_run();
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 3;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_schema schemas[] = {{1, 2, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 3, MODEL_TEXT_KEY, MODEL_STATES},
                            {1, 9, MODEL_LONG_KEY, MODEL_STATES},
                            {1, 2, MODEL_LONG_KEY, TIMED},
                            {1, 2, MODEL_TEXT_KEY, TIMED}};
    for (int i = 0; i < 5; i++) {
        run.left = 0;
        test_cut(&schemas[i], rounds, seed);
        test_leaving(&schemas[i], rounds, seed);
        test_growth(&schemas[i], seed);
        test_readers(&schemas[i], seed);
        fprintf(stderr, "schema %d: the bytes of %llu keys have moved\n", i,
                (unsigned long long)run.left);
        CHECK(run.left > 20 || schemas[i].keys != MODEL_TEXT_KEY);
    }
    for (int p = 0; p < PHASES; p++)
        CHECK(run.phases[p] > 0 && run.back[p] > 0);
    CHECK(run.lowered > 10);
    CHECK(run.refused > 0 && run.poisoned > 0);
    for (int p = 0; p < PHASES; p++)
        fprintf(stderr, "phase %d: %llu seals, %llu roll backs\n", p,
                (unsigned long long)run.phases[p], (unsigned long long)run.back[p]);
    fprintf(stderr, "refused %llu, poisoned %llu\n", (unsigned long long)run.refused,
            (unsigned long long)run.poisoned);
    return check_report();
}
