/* A table against its model: random operations, seals and roll backs, over schemas with inline and
 * block keys and values, few and many states; growth; refused allocations; limits. */
#include "table_model.h"

static const pst_column BOTH_KEYS[] = {{.name = "a", .type = PST_INT64},
                                       {.name = "b", .type = PST_STRING}};

static const pst_column NESTED_STATES[] = {{.name = "n", .type = PST_INT64, .has_default = 1},
                                           {.name = "f", .type = PST_FIXED, .width = MODEL_FIXED},
                                           {.name = "b", .type = PST_INT8},
                                           {.name = "v", .type = PST_NESTED}};

static pst_table *make_table(const pst_schema *s, uint64_t limit) {
    pst_table_options o = {.max_parallelism = 4, .last_key_group = 3, .limit_bytes = limit};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void test_random(const pst_schema *s, int32_t keys, int steps, uint64_t seed) {
    model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    m->schema = s;
    m->keys = keys;
    pst_table *t = make_table(s, (uint64_t)1 << 28);
    uint64_t failed = check_failed;
    for (int i = 0; i < steps && check_failed == failed; i++) {
        model_step(t, m, &seed);
        if (i % 7 == 0)
            CHECK(model_compare(t, &m->now, s, keys));
    }
    if (check_failed != failed)
        fprintf(stderr, "    keys %d, seed leads to it\n", keys);
    CHECK(model_compare(t, &m->now, s, keys));
    pst_table_close(t);
    free(m);
}

/* Inserting, deleting and inserting others for many epochs must not take ever more memory. */
static void test_reuse(const pst_schema *s) {
    model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    m->schema = s;
    m->keys = MODEL_KEYS;
    pst_table *t = make_table(s, (uint64_t)1 << 28);
    pst_table_stats early, late;
    uint64_t random = 5;
    for (int epoch = 0; epoch < 400; epoch++) {
        model_many(t, m, &random, 300, 2);
        model_many(t, m, &random, 400, 3);
        model_seal(t, m, NULL);
        if (epoch == 60)
            pst_table_get_stats(t, &early);
    }
    pst_table_get_stats(t, &late);
    CHECK(late.slots <= early.slots + early.slots / 4);
    CHECK(late.block_bytes <= early.block_bytes + early.block_bytes / 3);
    CHECK(model_compare(t, &m->now, s, m->keys));
    pst_table_close(t);
    free(m);
}

static void test_growth(void) {
    pst_schema s = {1, 2, MODEL_LONG_KEY, MODEL_STATES};
    pst_table *t = make_table(&s, (uint64_t)1 << 30);
    enum { N = 200000, BATCH = 5000 };
    static int64_t keys[BATCH];
    int64_t one = 1;
    for (int64_t from = 0; from < N; from += BATCH) {
        for (int64_t i = 0; i < BATCH; i++)
            keys[i] = (from + i) * 3;
        pst_array k = {PST_INT64, BATCH, 0, NULL, keys, NULL};
        pst_array v = {PST_INT64, 1, 0, NULL, &one, NULL};
        pst_batch *b = NULL;
        REQUIRE(pst_batch_create(t, &k, &b) == PST_OK);
        CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &v), PST_OK);
        pst_batch_destroy(b);
        pst_lineage l = model_lineage((uint64_t)(from / BATCH + 1));
        if (from % (4 * BATCH) == 0)
            CHECK_EQ(pst_table_seal(t, &l, NULL), PST_OK);
    }
    pst_table_stats stats;
    pst_table_get_stats(t, &stats);
    CHECK_EQ(stats.keys, N);
    int missing = 0;
    for (int64_t i = 0; i < N; i++) {
        pst_cell c;
        CHECK_EQ(pst_key_set_word(t, (uint64_t)(i * 3)), PST_OK);
        missing += pst_value_get(t, 0, &c) != PST_OK || c.word[0] != 1;
    }
    CHECK_EQ(missing, 0);
    pst_table_close(t);
}

/* Keys whose tags are all one: the walk passes many lines and still ends right. */
static void test_collisions(void) {
    pst_schema s = {1, 1, MODEL_LONG_KEY, MODEL_STATES};
    pst_table *t = make_table(&s, (uint64_t)1 << 28);
    static pst_record r;
    uint64_t rows = 3000;
    memset(&r, 0, sizeof r);
    r.op = PST_PUT;
    r.changed = r.present = 1;
    for (uint64_t i = 0; i < rows; i++) {
        /* A record's hash is trusted, which lets a test choose it. */
        r.hash = UINT64_C(0xABCDEF0100000000);
        r.key[0].word[0] = i;
        r.cells[0].word[0] = i * 2;
        CHECK_EQ(pst_table_apply(t, &r, NULL, 1), PST_OK);
    }
    for (uint64_t i = 0; i < rows; i++) {
        r.key[0].word[0] = i;
        r.cells[0].word[0] = i * 3;
        CHECK_EQ(pst_table_apply(t, &r, NULL, 1), PST_OK);
    }
    pst_table_stats stats;
    pst_table_get_stats(t, &stats);
    CHECK_EQ(stats.keys, rows);
    pst_table_close(t);
}

/* A table that may not grow says so, keeps what was sealed and works on after the roll back. */
static void test_limit(const pst_schema *s) {
    model *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL);
    m->schema = s;
    m->keys = 100;
    pst_table *t = make_table(s, (uint64_t)3 << 19);
    uint64_t random = 9;
    for (int i = 0; i < 20; i++)
        model_one_key(t, m, &random);
    model_seal(t, m, NULL);
    pst_cell key[2] = {{{0, 0}, {NULL, 0}}, {{0, 0}, {NULL, 0}}}, cell;
    static uint8_t big[60000];
    cell.bytes = (pst_bytes){big, sizeof big};
    pst_status st = PST_OK;
    for (uint64_t i = 0; i < 100000 && !st; i++) {
        key[0].word[0] = i << 20;
        key[0].bytes = key[1].bytes = (pst_bytes){(const uint8_t *)&i, 8};
        CHECK_EQ(pst_key_set(t, key, 0), PST_OK);
        st = pst_value_put(t, 1, &cell);
    }
    CHECK_EQ(st, PST_LIMIT);
    CHECK_EQ(pst_value_put(t, 1, &cell), PST_POISONED);
    pst_lineage l = model_lineage(2);
    CHECK_EQ(pst_table_seal(t, &l, NULL), PST_POISONED);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK(model_follow(t, m));
    model_one_key(t, m, &random);
    model_seal(t, m, NULL);
    CHECK(model_compare(t, &m->now, s, m->keys));
    pst_table_close(t);
    free(m);
}

static void test_overflow(void) {
    pst_schema s = {1, 2, MODEL_LONG_KEY, MODEL_STATES};
    pst_table *t = make_table(&s, 0);
    int64_t keys[] = {1, 2, 3}, values[] = {1, INT64_MAX, 1};
    pst_array k = {PST_INT64, 3, 0, NULL, keys, NULL}, v = {PST_INT64, 3, 0, NULL, values, NULL};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, &k, &b) == PST_OK);
    CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &v), PST_OK);
    CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &v), PST_OVERFLOW);
    CHECK_EQ(pst_table_detail(t)->row, 1);
    CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &v), PST_POISONED);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &v), PST_STALE);
    pst_batch_destroy(b);
    pst_table_stats stats;
    pst_table_get_stats(t, &stats);
    CHECK_EQ(stats.keys, 0);
    pst_table_close(t);
}

/* What is touched and put back, or made and deleted, leaves nothing in the delta. */
static void test_touched_is_not_changed(void) {
    pst_schema s = {1, 2, MODEL_LONG_KEY, MODEL_STATES};
    pst_table *t = make_table(&s, 0);
    pst_lineage l = model_lineage(1);
    pst_sealed *sealed = NULL;
    pst_cell v = {{5, 0}, {NULL, 0}}, text = {{0, 0}, {NULL, 0}};
    uint8_t letters[40] = "a text that needs a block of its own";
    text.bytes = (pst_bytes){letters, sizeof letters};
    for (uint64_t k = 0; k < 10; k++) {
        CHECK_EQ(pst_key_set_word(t, k), PST_OK);
        CHECK_EQ(pst_value_put(t, 0, &v), PST_OK);
        CHECK_EQ(pst_value_put(t, 1, &text), PST_OK);
    }
    CHECK_EQ(pst_table_seal(t, &l, &sealed), PST_OK);
    CHECK_EQ(pst_sealed_rows(sealed), 10);
    CHECK_EQ(pst_sealed_bytes(sealed), 10 * (8 + 8 + sizeof letters));
    pst_sealed_destroy(sealed);
    for (uint64_t k = 0; k < 8; k++) {
        CHECK_EQ(pst_key_set_word(t, k), PST_OK);
        pst_cell other = {{6 + k, 0}, {NULL, 0}}, short_text = {{0, 0}, {letters, 3}};
        CHECK_EQ(pst_value_put(t, 0, &other), PST_OK);
        CHECK_EQ(pst_value_put(t, 1, &short_text), PST_OK);
        CHECK_EQ(pst_value_put(t, 1, &text), PST_OK);
        CHECK_EQ(pst_value_clear(t, -1), PST_OK);
        CHECK_EQ(pst_value_put(t, 1, &text), PST_OK);
        CHECK_EQ(pst_value_put(t, 0, &v), PST_OK);
        CHECK_EQ(pst_key_set_word(t, 100 + k), PST_OK);
        CHECK_EQ(pst_value_put(t, 0, &v), PST_OK);
        CHECK_EQ(pst_value_clear(t, 0), PST_OK);
    }
    l = model_lineage(2);
    CHECK_EQ(pst_table_seal(t, &l, &sealed), PST_OK);
    CHECK_EQ(pst_sealed_rows(sealed), 0);
    pst_sealed_destroy(sealed);
    pst_table_close(t);
}

/* Each allocation refused in turn: a status, and nothing lost. */
static void test_no_memory(const pst_schema *s) {
    for (int64_t n = 0; n < 60; n++) {
        pst_table_options o = {.max_parallelism = 4, .last_key_group = 3};
        pst_table *t = NULL;
        check_fail_alloc(n, 0);
        pst_status st = pst_table_open(s, &o, &t, NULL, NULL);
        if (st) {
            CHECK_EQ(st, PST_NO_MEMORY);
            continue;
        }
        int64_t key = 4;
        pst_array k = {PST_INT64, 1, 0, NULL, &key, NULL};
        pst_batch *b = NULL;
        pst_sealed *sealed = NULL;
        pst_lineage l = model_lineage(1);
        st = pst_batch_create(t, &k, &b);
        if (!st)
            st = pst_batch_apply(b, 0, PST_ADD, &k);
        if (!st)
            st = pst_table_seal(t, &l, &sealed);
        CHECK(st == PST_OK || st == PST_NO_MEMORY);
        check_fail_alloc(-1, 0);
        pst_batch_destroy(b);
        pst_sealed_destroy(sealed);
        pst_table_stats stats;
        pst_table_get_stats(t, &stats);
        CHECK(stats.keys <= 1);
        pst_table_close(t);
    }
    check_fail_alloc(-1, 0);
}

/* Nothing is sealed where an allocation is refused, and the next attempt finds what it needs. */
static void test_seal_again(const pst_schema *s) {
    for (int64_t n = 0, refused = 1; refused; n++) {
        pst_table *t = make_table(s, 0);
        pst_lineage l = model_lineage(1);
        pst_sealed *sealed = NULL;
        pst_cell v = {{5, 0}, {NULL, 0}};
        CHECK_EQ(pst_key_set_word(t, 7), PST_OK);
        CHECK_EQ(pst_value_put(t, 0, &v), PST_OK);
        check_fail_alloc(n, 0);
        pst_status st = pst_table_seal(t, &l, &sealed);
        refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        CHECK_EQ(st, refused ? PST_NO_MEMORY : PST_OK);
        if (refused)
            CHECK_EQ(pst_table_seal(t, &l, &sealed), PST_OK);
        CHECK_EQ(pst_sealed_rows(sealed), 1);
        pst_sealed_destroy(sealed);
        pst_table_close(t);
    }
}

/* A slot that an undone insert of the null key took: its row says nothing of whose it was. */
static void test_undone_null_key(void) {
    pst_column k = {.name = "k", .type = PST_INT64}, v = {.name = "v", .type = PST_INT64};
    pst_schema schema = {.n_keys = 1, .n_states = 1, .keys = &k, .states = &v};
    pst_cell zero = {{0, 0}, {NULL, 0}}, one = {{1, 0}, {NULL, 0}};
    int32_t group = pst_key_group(42, 128); /* of the null key alone */
    pst_table_options o = {.max_parallelism = 128,
                           .first_key_group = group,
                           .last_key_group = group,
                           .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    pst_table_stats stats;
    REQUIRE(pst_table_open(&schema, &o, &t, NULL, NULL) == PST_OK);
    REQUIRE(pst_key_set(t, &zero, 1) == PST_OK);
    CHECK_EQ(pst_value_put(t, 0, &one), PST_OK);
    for (uint64_t e = 1; e < 6; e++) {
        pst_lineage l = {.epoch = e};
        if (e == 2) { /* it dies, and its slot may be taken again from 5 on */
            REQUIRE(pst_key_set(t, &zero, 1) == PST_OK);
            CHECK_EQ(pst_value_clear(t, -1), PST_OK);
        }
        CHECK_EQ(pst_table_seal(t, &l, NULL), PST_OK);
    }
    for (int again = 0; again < 3; again++) {
        REQUIRE(pst_key_set(t, &zero, 1) == PST_OK);
        CHECK_EQ(pst_value_put(t, 0, &one), PST_OK);
        pst_table_get_stats(t, &stats);
        CHECK_EQ(stats.keys, 1);
        CHECK_EQ(stats.slots, 1);
        CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    }
    pst_table_close(t);
}

/* Names that files could not tell apart, found by trying. */
static void test_names_that_clash(void) {
    pst_column k = {.name = "k", .type = PST_INT64};
    pst_column maps[] = {
        {.name = "state_39487", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64},
        {.name = "state_210240", .type = PST_INT64, .kind = PST_MAP, .map_key = PST_INT64}};
    pst_schema schema = {.n_keys = 1, .n_states = 2, .keys = &k, .states = maps};
    pst_table_options o = {.max_parallelism = 4, .last_key_group = 3};
    pst_table *t = NULL;
    pst_detail detail;
    CHECK_EQ(pst_table_open(&schema, &o, &t, NULL, &detail), PST_INVALID);
    CHECK_EQ(detail.column, 1);
    maps[1].name = "state_210241";
    CHECK_EQ(pst_table_open(&schema, &o, &t, NULL, NULL), PST_OK);
    pst_table_close(t);
}

/* What was sized and has changed since is not copied, and nothing is written behind the room. */
static void test_sized_before_it_changed(void) {
    enum { KEYS = 3, ROOM = 40, GUARD = 64 };
    pst_schema s = {1, 2, MODEL_LONG_KEY, MODEL_STATES};
    pst_table *t = make_table(&s, 0);
    uint8_t letters[100], room[ROOM + GUARD], valid[KEYS];
    int32_t offsets[KEYS + 1];
    uint64_t keys[KEYS] = {1, 2, 3};
    pst_array array = {.type = PST_INT64, .length = KEYS, .values = keys};
    pst_cell text = {{0, 0}, {letters, 20}};
    memset(letters, 'x', sizeof letters);
    for (uint64_t k = 1; k < KEYS; k++) {
        CHECK_EQ(pst_key_set_word(t, k), PST_OK);
        CHECK_EQ(pst_value_put(t, 1, &text), PST_OK);
    }
    pst_batch *b;
    REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
    pst_bytes_out out = {offsets, valid, NULL, 0};
    CHECK_EQ(pst_batch_get_bytes(b, 1, &out), PST_OK);
    CHECK_EQ(offsets[KEYS], ROOM);
    memset(room, 0xEE, sizeof room);
    out.data = room;
    out.capacity = ROOM;
    CHECK_EQ(pst_batch_get_bytes(b, 1, &out), PST_OK);
    CHECK(!memcmp(room, letters, ROOM));
    /* Less room than was sized; a longer value, a shorter one, and one where there was none. */
    out.capacity = ROOM - 1;
    CHECK_EQ(pst_batch_get_bytes(b, 1, &out), PST_CHANGED);
    out.capacity = ROOM;
    for (uint64_t k = 1; k <= KEYS; k++)
        for (uint32_t size = 0; size <= sizeof letters; size += 50) {
            text.bytes.size = size;
            CHECK_EQ(pst_key_set_word(t, k), PST_OK);
            CHECK_EQ(pst_value_put(t, 1, &text), PST_OK);
            CHECK_EQ(pst_batch_get_bytes(b, 1, &out), PST_CHANGED);
        }
    for (int i = 0; i < GUARD; i++)
        CHECK_EQ(room[ROOM + i], 0xEE);
    pst_batch_destroy(b);
    pst_table_close(t);
}

/* Offsets that lead outside of the bytes, as of a buffer that somebody writes to. */
static void test_wild_offsets(void) {
    pst_schema s = {1, 2, MODEL_LONG_KEY, MODEL_STATES};
    pst_table *t = make_table(&s, 0);
    uint64_t keys[3] = {1, 2, 3};
    pst_array array = {.type = PST_INT64, .length = 3, .values = keys};
    int32_t wild[][4] = {{0, 4, 1 << 30, 8}, {-1000000, 4, 8, 12}, {0, 8, 4, 12}, {12, 13, 14, 15}};
    pst_batch *b;
    REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
    for (int i = 0; i < 4; i++) {
        uint64_t hash[3];
        pst_array text = {.type = MODEL_STATES[1].type,
                          .length = 3,
                          .values = "abcdefghijkl",
                          .offsets = wild[i],
                          .values_bytes = 12};
        CHECK_EQ(pst_batch_put(b, 1, &text), PST_OK);
        CHECK_EQ(pst_hash(&text, NULL, 1, hash), PST_OK);
    }
    pst_batch_destroy(b);
    pst_table_close(t);
}

int main(int argc, char **argv) {
    int steps = argc > 1 ? atoi(argv[1]) : 1500;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    pst_schema schemas[] = {
        {1, 2, MODEL_LONG_KEY, MODEL_STATES},           {1, 9, MODEL_LONG_KEY, MODEL_STATES},
        {1, 3, MODEL_TEXT_KEY, MODEL_STATES},           {2, 7, BOTH_KEYS, MODEL_STATES},
        {2, 3, BOTH_KEYS, MODEL_STATES, .n_hashed = 1}, {1, 4, MODEL_LONG_KEY, NESTED_STATES}};
    for (int i = 0; i < 6; i++) {
        test_random(&schemas[i], 40, steps, seed + (uint64_t)i);
        test_random(&schemas[i], MODEL_KEYS, steps, seed + 100 + (uint64_t)i);
        test_reuse(&schemas[i]);
        if (schemas[i].states == MODEL_STATES)
            test_limit(&schemas[i]);
    }
    test_no_memory(&schemas[0]);
    test_seal_again(&schemas[0]);
    test_growth();
    test_collisions();
    test_overflow();
    test_touched_is_not_changed();
    test_undone_null_key();
    test_names_that_clash();
    test_sized_before_it_changed();
    test_wild_offsets();
    return check_report();
}
