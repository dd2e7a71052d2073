/* Which rows of a table are used most. */
#include <string.h>

#include "check.h"
#include "pystate.h"

enum { KEYS = 4000, HOT = 100, WARM = 400 };

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column VALUE = {.name = "v", .type = PST_INT64};
static const pst_schema SCHEMA = {1, 1, &KEY, &VALUE, 0};

static pst_table *open_table(void) {
    pst_table_options o = {
        .max_parallelism = 4, .last_key_group = 3, .limit_bytes = (uint64_t)1 << 26};
    pst_table *t = NULL;
    REQUIRE(!pst_table_open(&SCHEMA, &o, &t, NULL, NULL));
    return t;
}

static void put(pst_table *t, int64_t from, int64_t n) {
    static int64_t keys[KEYS], values[KEYS];
    pst_array k = {.type = PST_INT64, .length = n, .values = keys};
    pst_array v = {.type = PST_INT64, .length = n, .values = values};
    pst_batch *b = NULL;
    for (int64_t i = 0; i < n; i++)
        keys[i] = values[i] = from + i;
    REQUIRE(!pst_batch_create(t, &k, &b));
    CHECK_EQ(pst_batch_put(b, 0, &v), PST_OK);
    pst_batch_destroy(b);
}

/* Each by itself: of a batch's keys few are noted. */
static void use(pst_table *t, int64_t from, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        pst_cell key = {.word = {(uint64_t)(from + i), 0}};
        REQUIRE(!pst_key_set(t, &key, 0));
    }
}

static void drop(pst_table *t, int64_t key) {
    pst_array k = {.type = PST_INT64, .length = 1, .values = &key};
    pst_batch *b = NULL;
    REQUIRE(!pst_batch_create(t, &k, &b));
    CHECK_EQ(pst_batch_clear(b, -1), PST_OK);
    pst_batch_destroy(b);
}

/* The hottest keys, as a mark each; returns how many there are. */
static int64_t hottest(pst_table *t, int64_t most, uint8_t *marks) {
    static int64_t keys[KEYS];
    static uint8_t valid[KEYS];
    pst_batch *b = NULL;
    memset(marks, 0, KEYS);
    pst_status s = pst_batch_hottest(t, most, &b);
    if (s == PST_NOT_FOUND)
        return 0;
    REQUIRE(!s);
    int64_t n = pst_batch_length(b);
    CHECK(n > 0 && n <= most && n <= KEYS);
    CHECK_EQ(pst_batch_get_key(b, 0, keys, valid), PST_OK);
    for (int64_t i = 0; i < n; i++) {
        CHECK(valid[i] && keys[i] >= 0 && keys[i] < KEYS && !marks[keys[i]]);
        marks[keys[i]] = 1;
    }
    pst_batch_destroy(b);
    return n;
}

static int64_t count(const uint8_t *marks, int64_t from, int64_t to) {
    int64_t n = 0;
    while (from < to)
        n += marks[from++];
    return n;
}

static void seal(pst_table *t, uint64_t number) {
    pst_lineage l = {.epoch = number};
    memcpy(l.id, &number, sizeof number);
    REQUIRE(!pst_table_seal(t, &l, NULL));
}

static void run(void) {
    static uint8_t marks[KEYS], valid[KEYS];
    static int64_t keys[KEYS];
    pst_table *t = open_table();
    pst_batch *b;
    CHECK_EQ(hottest(t, 10, marks), 0);
    put(t, 0, KEYS);
    seal(t, 1);
    CHECK_EQ(hottest(t, KEYS, marks), KEYS);
    /* Those that were touched last. Without rows below there is no heat. */
    seal(t, 2);
    seal(t, 3);
    put(t, 3000, HOT);
    CHECK_EQ(hottest(t, HOT, marks), HOT);
    CHECK_EQ(count(marks, 3000, 3000 + HOT), HOT);
    pst_table_set_whole(t, 0);
    for (int i = 0; i < 3; i++)
        use(t, 1000, HOT);
    use(t, 2000, WARM);
    CHECK_EQ(hottest(t, HOT / 2, marks), HOT / 2);
    CHECK_EQ(count(marks, 1000, 1000 + HOT), HOT / 2);
    /* Every other one. */
    CHECK_EQ(count(marks, 1000, 1000 + HOT / 2), HOT / 4);
    CHECK_EQ(hottest(t, HOT + WARM / 4, marks), HOT + WARM / 4);
    CHECK_EQ(count(marks, 1000, 1000 + HOT), HOT);
    CHECK_EQ(count(marks, 2000, 2000 + WARM), WARM / 4);
    CHECK_EQ(count(marks, 2000, 2000 + WARM / 2), WARM / 8);
    CHECK_EQ(hottest(t, KEYS, marks), KEYS);
    /* The hottest ones are the first of all. */
    REQUIRE(!pst_batch_hottest(t, KEYS, &b));
    CHECK_EQ(pst_batch_get_key(b, 0, keys, valid), PST_OK);
    for (int64_t i = 0; i < HOT; i++)
        CHECK(keys[i] >= 1000 && keys[i] < 1000 + HOT);
    pst_batch_destroy(b);
    drop(t, 1001);
    CHECK_EQ(hottest(t, HOT, marks), HOT);
    CHECK_EQ(count(marks, 1000, 1000 + HOT), HOT - 1);
    CHECK(!marks[1001]);
    for (int64_t key = 0; key < 1000; key++)
        drop(t, key);
    /* All that there are, in more slots than that. */
    CHECK_EQ(hottest(t, KEYS - 1001, marks), KEYS - 1001);
    CHECK_EQ(pst_batch_hottest(t, 0, &b), PST_INVALID);
    for (int64_t i = 0; i < 4; i++) {
        check_fail_alloc(i, 1);
        pst_status s = pst_batch_hottest(t, 10, &b);
        CHECK(s == PST_NO_MEMORY || !s);
        if (!s)
            pst_batch_destroy(b);
        check_fail_alloc(-1, 0);
    }
    pst_table_close(t);
}

int main(void) {
    run();
    return check_report();
}
