/* Equal keys of a batch, where memory is refused and where hashes are equal in their upper half. */
#include <stdio.h>
#include <string.h>

#include "access/batch.h"
#include "check.h"
#include "pystate.h"

enum { ROWS = 5000 };

static pst_table *make_table(const pst_column *key) {
    pst_column state = {.name = "n", .type = PST_INT64};
    pst_schema s = {.keys = key, .n_keys = 1, .states = &state, .n_states = 1};
    pst_table_options o = {.max_parallelism = 4, .last_key_group = 3};
    pst_table *t = NULL;
    REQUIRE(pst_table_open(&s, &o, &t, NULL, NULL) == PST_OK);
    return t;
}

static void check_first(pst_batch *b, const int64_t *keys) {
    static int32_t first[ROWS];
    REQUIRE(pst_batch_first(b, first) == PST_OK);
    int right = 1;
    for (int32_t i = 0; i < ROWS; i++) {
        int32_t k = 0;
        while (keys[k] != keys[i])
            k++;
        right &= first[i] == k;
    }
    CHECK(right);
}

/* Texts of which all, or all but a few, have one public hash, as anybody can make them. */
static void test_ties(const int64_t *keys, int other) {
    static uint8_t data[8 * ROWS];
    static int32_t offsets[ROWS + 1];
    pst_column key = {.name = "k", .type = PST_STRING};
    pst_table *t = make_table(&key);
    for (int i = 0; i < ROWS; i++) {
        char text[9];
        snprintf(text, sizeof text, "%08d", (int)keys[i]);
        memcpy(data + 8 * i, text, 8);
        offsets[i + 1] = 8 * (i + 1);
    }
    pst_array array = {.type = PST_STRING, .length = ROWS, .values = data, .offsets = offsets};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
    check_first(b, keys);
    for (int i = 0; i < ROWS; i++)
        b->hash[i] = keys[i] < other ? (uint64_t)keys[i] << 40 : 77;
    check_first(b, keys);
    pst_batch_destroy(b);
    pst_table_close(t);
}

int main(void) {
    static int64_t keys[ROWS];
    static int32_t first[ROWS];
    pst_column key = {.name = "k", .type = PST_INT64};
    pst_table *t = make_table(&key);
    uint64_t random = 1;
    for (int i = 0; i < ROWS; i++)
        keys[i] = (int64_t)(check_random(&random) % 900);
    pst_array array = {.type = PST_INT64, .length = ROWS, .values = keys};
    pst_batch *b = NULL;
    REQUIRE(pst_batch_create(t, &array, &b) == PST_OK);
    check_first(b, keys);
    check_fail_alloc(0, 1);
    pst_status s = pst_batch_first(b, first);
    check_fail_alloc(-1, 0);
    CHECK(s == PST_OK || s == PST_NO_MEMORY);
    check_first(b, keys);
    /* Other keys, under hashes of which few bits differ. */
    for (int i = 0; i < ROWS; i++)
        b->hash[i] = (uint64_t)(keys[i] % 7);
    check_first(b, keys);
    CHECK_EQ(pst_table_rollback(t, 0), PST_OK);
    CHECK_EQ(pst_batch_first(b, first), PST_STALE);
    pst_batch_destroy(b);
    pst_table_close(t);
    test_ties(keys, 0);
    test_ties(keys, 500);
    test_ties(keys, 895);
    return check_report();
}
