/* What operations find that the ones before them left behind: keys that a batch guessed wrong, a
 * key that could not be set, elements that went between two passes. */
#include <string.h>

#include "check.h"
#include "memory/handle.h"
#include "pystate.h"

enum { KEYS = 200000 };

static const pst_column KEY = {.name = "k", .type = PST_INT64};
static const pst_column PAIR[] = {{.name = "a", .type = PST_STRING},
                                  {.name = "b", .type = PST_STRING}};
static const pst_column COUNTED[] = {{.name = "n", .type = PST_INT64, .has_default = 1},
                                     {.name = "n#time", .type = PST_INT64, .kind = PST_TIME}};
static const pst_column LISTED[] = {{.name = "l", .type = PST_INT64, .kind = PST_LIST},
                                    {.name = "l#time", .type = PST_INT64, .kind = PST_TIME}};
static const pst_schema COUNTS = {1, 2, &KEY, COUNTED, 0};
static const pst_schema LISTS = {1, 2, &KEY, LISTED, 0};
static const pst_schema PAIRS = {2, 1, PAIR, COUNTED, 0};

static pst_table *open_table(const pst_schema *s) {
    pst_table_options o = {.max_parallelism = 1, .limit_bytes = 1 << 30};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void set_clock(pst_table *t, int64_t now_ms) {
    pst_clock clock = {now_ms, PST_NO_TIME, PST_NO_TIME};
    pst_table_set_clock(t, &clock);
}

static pst_array longs(const int64_t *values, int64_t n) {
    return (pst_array){.type = PST_INT64, .length = n, .values = values};
}

/* Adding to values that have expired begins anew, also where the batch did not see at first that
 * the key is there: because its entry lies far from home, or the index grew meanwhile. */
static void test_expired_values(void) {
    static int64_t keys[KEYS], one[1] = {1}, sums[KEYS];
    static uint8_t valid[KEYS];
    pst_ttl ttl = {.duration_ms = 100};
    pst_table *t = open_table(&COUNTS);
    uint64_t wrong = 0;
    REQUIRE(pst_table_set_ttl(t, 0, &ttl) == PST_OK);
    for (int i = 0; i < KEYS; i++)
        keys[i] = i;
    pst_array values = longs(one, 1);
    int64_t n = KEYS / 50;
    for (uint64_t epoch = 1; n <= KEYS; n += n / 16, epoch++) {
        pst_array all = longs(keys, n);
        pst_batch *b = NULL;
        set_clock(t, 1000 * (int64_t)epoch);
        REQUIRE(pst_batch_create(t, &all, &b) == PST_OK);
        CHECK_EQ(pst_batch_apply(b, 0, PST_ADD, &values), PST_OK);
        CHECK_EQ(pst_batch_get(b, 0, sums, valid), PST_OK);
        for (int64_t i = 0; i < n; i++)
            wrong += !valid[i] || sums[i] != 1;
        pst_batch_destroy(b);
        REQUIRE(pst_table_seal(t, &(pst_lineage){.epoch = epoch}, NULL) == PST_OK);
    }
    CHECK_EQ(wrong, 0);
    pst_table_close(t);
}

/* A key that could not be set leaves none: the bytes of the one before are gone. */
static void test_failed_key(void) {
    static uint8_t text[10000];
    pst_cell value = {{7, 0}, {NULL, 0}};
    pst_cell first[2] = {{{0, 0}, {(const uint8_t *)"aaaa", 4}},
                         {{0, 0}, {(const uint8_t *)"x", 1}}};
    pst_cell second[2] = {{{0, 0}, {(const uint8_t *)"bbbb", 4}}, {{0, 0}, {text, sizeof text}}};
    pst_table *t = open_table(&PAIRS);
    pst_record record;
    uint64_t cursor = 0;
    REQUIRE(pst_key_set(t, first, 0) == PST_OK);
    check_fail_alloc(0, 1);
    CHECK_EQ(pst_key_set(t, second, 0), PST_NO_MEMORY);
    check_fail_alloc(-1, 0);
    CHECK_EQ(pst_value_put(t, 0, &value), PST_INVALID);
    CHECK_EQ(pst_table_next(t, &cursor, &record), PST_NOT_FOUND);
    REQUIRE(pst_key_set(t, first, 0) == PST_OK && pst_value_put(t, 0, &value) == PST_OK);
    cursor = 0;
    CHECK_EQ(pst_table_next(t, &cursor, &record), PST_OK);
    pst_table_close(t);
}

/* Items that were counted and went before they were copied. */
static void test_items_that_went(void) {
    int64_t keys[2] = {1, 2}, offsets[3], items[20];
    pst_ttl ttl = {.duration_ms = 100};
    pst_array both = longs(keys, 2);
    for (int how = 0; how < 2; how++) {
        pst_table *t = open_table(&LISTS);
        pst_batch *b = NULL;
        REQUIRE(pst_table_set_ttl(t, 0, &ttl) == PST_OK);
        set_clock(t, 1000);
        for (int i = 0; i < 20; i++) {
            pst_cell item = {{(uint64_t)i, 0}, {NULL, 0}};
            REQUIRE(pst_key_set_word(t, (uint64_t)keys[i % 2]) == PST_OK);
            REQUIRE(pst_list_add(t, 0, &item) == PST_OK);
        }
        REQUIRE(pst_batch_create(t, &both, &b) == PST_OK);
        REQUIRE(pst_batch_element_offsets(b, 0, offsets) == PST_OK);
        CHECK_EQ(offsets[2], 20);
        if (how)
            set_clock(t, 5000);
        else
            REQUIRE(pst_value_clear(t, -1) == PST_OK);
        CHECK_EQ(pst_batch_list_copy(b, 0, offsets, items, sizeof items), PST_CHANGED);
        pst_batch_destroy(b);
        pst_table_close(t);
    }
}

int main(void) {
    test_expired_values();
    test_failed_key();
    test_items_that_went();
    return check_report();
}
