/* Rows of some key groups put from one table into another. */
#include "elements_model.h"
#include "table_model.h"

static const int32_t RANGES[][2] = {{0, 3}, {0, 1}, {2, 2}, {1, 3}};

/* What a table has sealed, in tables of some of its key groups; then from one of those into the
 * next. */
static void check_copies(elements_model *m, pst_table *t) {
    pst_table *before = t;
    for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++) {
        int32_t first = RANGES[i][0], last = RANGES[i][1];
        pst_table *copy = em_open(m, first, last);
        uint64_t rows = 0;
        pst_lineage l = em_lineage(1);
        CHECK_EQ(pst_table_copy(copy, i == 1 ? before : t, first, last, &rows), PST_OK);
        CHECK(em_compare_range(m, &m->now, copy, first, last));
        CHECK_EQ(pst_table_seal(copy, &l, NULL), PST_OK);
        CHECK(em_compare_range(m, &m->now, copy, first, last));
        if (before != t)
            pst_table_close(before);
        before = copy;
    }
    pst_table_close(before);
}

static void test_elements(int spaces, int64_t ttl_ms, int steps, uint64_t seed) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, spaces, ttl_ms);
    pst_table *t = em_open(m, 0, 3);
    uint64_t failed = check_failed;
    for (int i = 0; i < steps && check_failed == failed; i++) {
        for (int k = 0; k < 30; k++)
            em_step(m, t, &seed);
        if (ttl_ms)
            em_pass(m, t, (int64_t)(check_random(&seed) % 30), check_random(&seed) % 100);
        em_seal(m, t, NULL);
        check_copies(m, t);
        CHECK(em_compare(m, &m->now, t));
    }
    pst_table_close(t);
    free(m);
}

static pst_table *open_model(const pst_schema *s, int32_t first, int32_t last) {
    pst_table_options o = {.max_parallelism = 2,
                           .first_key_group = first,
                           .last_key_group = last,
                           .limit_bytes = (uint64_t)1 << 28};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

/* Of values, by keys of one word and of bytes, with few columns and many: halves put together. */
static void test_values(const pst_column *key, int32_t columns, uint64_t seed) {
    pst_schema schema = {1, columns, key, MODEL_STATES, 0};
    model *m = calloc(1, sizeof *m);
    REQUIRE(m);
    m->schema = &schema;
    m->keys = MODEL_KEYS;
    pst_table *t = open_model(&schema, 0, 1);
    for (int i = 0; i < 12; i++) {
        for (int k = 0; k < 12; k++)
            model_step(t, m, &seed);
        model_seal(t, m, NULL);
        pst_table *half[2], *whole = open_model(&schema, 0, 1);
        uint64_t rows = 0, sum = 0;
        for (int32_t g = 0; g < 2; g++) {
            pst_lineage l = model_lineage(1);
            half[g] = open_model(&schema, g, g);
            CHECK_EQ(pst_table_copy(half[g], t, g, g, &rows), PST_OK);
            CHECK_EQ(pst_table_seal(half[g], &l, NULL), PST_OK);
            CHECK_EQ(pst_table_copy(whole, half[g], g, g, &rows), PST_OK);
            sum += rows;
            pst_table_close(half[g]);
        }
        pst_table_stats stats;
        pst_table_get_stats(t, &stats);
        CHECK_EQ(sum, stats.keys);
        CHECK(model_compare(whole, &m->now, &schema, m->keys));
        pst_table_close(whole);
    }
    pst_table_close(t);
    free(m);
}

static void test_refused(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3), *to = em_open(m, 1, 2);
    uint64_t seed = 3;
    for (int k = 0; k < 200; k++)
        em_step(m, t, &seed);
    CHECK_EQ(pst_table_copy(to, t, 1, 2, NULL), PST_INVALID); /* something is unsealed */
    em_seal(m, t, NULL);
    CHECK_EQ(pst_table_copy(to, to, 1, 2, NULL), PST_INVALID);
    CHECK_EQ(pst_table_copy(to, t, 0, 2, NULL), PST_INVALID);
    CHECK_EQ(pst_table_copy(to, t, 1, 3, NULL), PST_INVALID);
    CHECK_EQ(pst_table_copy(to, t, 2, 1, NULL), PST_INVALID);
    CHECK_EQ(pst_table_copy(t, to, 0, 3, NULL), PST_INVALID);
    pst_schema other = {1, 1, EM_LONG_KEY, MODEL_STATES, 0};
    pst_table_options o = {.max_parallelism = 4, .last_key_group = 3, .limit_bytes = 1 << 24};
    pst_table *stranger = NULL;
    REQUIRE(pst_table_open(&other, &o, &stranger, NULL, NULL) == PST_OK);
    CHECK_EQ(pst_table_copy(stranger, t, 0, 3, NULL), PST_SCHEMA);
    CHECK_EQ(pst_table_dirty(stranger), 0);
    pst_table_close(stranger);
    pst_table_close(to);
    pst_table_close(t);
    free(m);
}

/* Memory that is refused anywhere: the copy is rolled back, and succeeds when it is tried again. */
static void test_no_memory(void) {
    elements_model *m = malloc(sizeof *m);
    REQUIRE(m);
    em_init(m, 0, 0);
    pst_table *t = em_open(m, 0, 3);
    uint64_t seed = 5, failures = 0;
    for (int k = 0; k < 300; k++)
        em_step(m, t, &seed);
    em_seal(m, t, NULL);
    pst_status s = PST_NO_MEMORY;
    for (int64_t n = 0; s && n < 100000; n++) {
        pst_table *to = em_open(m, 0, 3);
        check_fail_alloc(n, 0);
        s = pst_table_copy(to, t, 0, 3, NULL);
        int refused = check_alloc_failed();
        check_fail_alloc(-1, 0);
        failures += s != PST_OK;
        if (s) {
            CHECK_EQ(s, PST_NO_MEMORY);
            pst_lineage l = em_lineage(1);
            CHECK(!pst_table_dirty(to) || pst_table_seal(to, &l, NULL) == PST_POISONED);
            CHECK_EQ(pst_table_rollback(to, 0), PST_OK);
            CHECK_EQ(pst_table_copy(to, t, 0, 3, NULL), PST_OK);
        } else if (refused) {
            s = PST_NO_MEMORY; /* this one was not needed */
        }
        CHECK(em_compare(m, &m->now, to));
        pst_table_close(to);
    }
    CHECK_EQ(s, PST_OK);
    CHECK(failures > 10);
    pst_table_close(t);
    free(m);
}

int main(void) {
    test_elements(0, 0, 12, 1);
    test_elements(1, 0, 12, 2);
    test_elements(0, 100, 12, 3);
    test_elements(1, 100, 12, 4);
    test_values(MODEL_LONG_KEY, 1, 1);
    test_values(MODEL_LONG_KEY, MODEL_COLUMNS, 2);
    test_values(MODEL_TEXT_KEY, 4, 3);
    test_refused();
    test_no_memory();
    return check_report();
}
