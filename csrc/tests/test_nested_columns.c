/* Columns of nested values: there and back, those that are refused, and what a refused allocation
 * leaves behind. */
#include "base/coding.h"
#include "nested_model.h"

/* ---- columns --------------------------------------------------------------------------------- */

/* What is read from a column of longs, strings and maps is what went in, nulls included. */
static void test_columns_come_back(void) {
    model_types m = TREE(STRUCT(2), SCALAR(PST_INT64), MAP, SCALAR(PST_STRING), SCALAR(PST_BOOL));
    static const int64_t longs[] = {9, 5, 6, 7};
    static const int32_t ends[] = {7, 7, 9, 9, 10}, text_ends[] = {0, 1, 2, 3};
    static const uint8_t there = 0x0B, valid = 0x0E, bools = 0x05, bool_valid = 0x05;
    pst_nested_array arrays[] = {
        {.length = 3, .offset = 1, .validity = &valid},
        {.length = 3, .offset = 1, .validity = &there, .values = longs, .values_bytes = 32},
        {.length = 3, .offset = 1, .offsets = ends, .first = 7},
        {.length = 3, .offsets = text_ends, .values = "bac", .values_bytes = 3},
        {.length = 3, .values = &bools, .values_bytes = 1, .validity = &bool_valid},
    };
    pst_nested_rows rows;
    pst_nested_fault fault;
    pst_nested_column c[5];
    REQUIRE(pst_nested_encode(m.nested, arrays, 3, &rows, &fault) == PST_OK);
    pst_array stored = {.type = PST_NESTED,
                        .length = 3,
                        .values = rows.data,
                        .offsets = rows.offsets,
                        .values_bytes = (int64_t)rows.data_bytes};
    REQUIRE(pst_nested_decode(m.nested, &stored, c, &fault) == PST_OK);
    CHECK(c[0].length == 3 && c[0].nulls == 0 && !c[0].validity);
    CHECK(c[1].length == 3 && c[1].nulls == 1 && c[1].validity[0] == 5);
    CHECK(pst_get_u64(c[1].values) == 5 && pst_get_u64(c[1].values + 8) == 0);
    CHECK_EQ(pst_get_u64(c[1].values + 16), 7);
    CHECK(c[2].offsets[1] == 2 && c[2].offsets[2] == 2 && c[2].offsets[3] == 3);
    CHECK(c[3].values_bytes == 3 && memcmp(c[3].values, "abc", 3) == 0);
    /* a: null, b: true, c: true; the null goes with its key */
    CHECK(c[4].values[0] == 6 && c[4].nulls == 1 && c[4].validity[0] == 6);
    model_drop(&m, c);
    free(rows.data);
    free(rows.offsets);
    pst_nested_destroy(m.nested);
}

static pst_status encode_one(const model_types *m, const pst_nested_array *arrays, int64_t rows,
                             pst_nested_fault *fault) {
    pst_nested_rows out = {0};
    *fault = (pst_nested_fault){.what = "", .row = -1};
    pst_status s = pst_nested_encode(m->nested, arrays, rows, &out, fault);
    free(out.data);
    free(out.offsets);
    return s;
}

static void test_columns_that_are_refused(void) {
    model_types m = TREE(STRUCT(2), MAP, SCALAR(PST_INT8), ARRAY, SCALAR(PST_STRING), DECIMAL(2));
    const int32_t good[] = {0, 1, 2}, falls[] = {0, 1, 0}, far[] = {0, 1, 3};
    const int64_t decimals[] = {99, 0, 0, 0}, wide[] = {99, 0, 100, 0};
    const uint8_t bytes[] = {1, 1, 0}, valid = 1, second = 2;
    pst_nested_fault f;
    const pst_nested_array sound[] = {
        {.length = 2},
        {.length = 2, .offsets = good},
        {.length = 2, .values = bytes, .values_bytes = 2},
        {.length = 2, .offsets = good},
        {.length = 2, .offsets = good, .values = "ab", .values_bytes = 2},
        {.length = 2, .values = decimals, .values_bytes = 32},
    };
    pst_nested_array a[6];
#define REFUSED(CHANGE, STATUS, WHAT)                                                              \
    do {                                                                                           \
        memcpy(a, sound, sizeof a);                                                                \
        CHANGE;                                                                                    \
        CHECK_EQ(encode_one(&m, a, 2, &f), STATUS);                                                \
        if (!CHECK(strstr(f.what, WHAT)))                                                          \
            fprintf(stderr, "    %s\n", f.what);                                                   \
        CHECK(STATUS != PST_WRONG_TYPE || f.row == (a[1].first == 0));                             \
    } while (0)
    REFUSED((void)0, PST_OK, "");
    REFUSED(a[0].length = 1, PST_INVALID, "");
    REFUSED(a[5].length = 1, PST_INVALID, "");
    REFUSED(a[1].length = 1, PST_INVALID, "");
    REFUSED(a[0].offset = -1, PST_INVALID, "");
    REFUSED(a[5].values_bytes = 31, PST_INVALID, "");
    REFUSED(a[2].values_bytes = 1, PST_INVALID, "");
    REFUSED(a[5].values = wide, PST_WRONG_TYPE, "more digits");
    REFUSED(a[1].offsets = falls, PST_WRONG_TYPE, "outside of its elements");
    REFUSED(a[1].offsets = far, PST_WRONG_TYPE, "outside of its elements");
    REFUSED(a[2].length = 1, PST_WRONG_TYPE, "outside of its elements");
    REFUSED(a[3].length = 1, PST_WRONG_TYPE, "outside of its elements");
    REFUSED((a[1].first = 1, a[0].validity = &second), PST_OK, "");
    REFUSED((a[1].first = 1, a[0].validity = &valid), PST_WRONG_TYPE, "");
    REFUSED(a[3].offsets = far, PST_WRONG_TYPE, "outside of its elements");
    REFUSED(a[4].offsets = far, PST_WRONG_TYPE, "outside of its bytes");
    REFUSED(a[4].values_bytes = 1, PST_WRONG_TYPE, "outside of its bytes");
    REFUSED(a[4].values = "a\xff", PST_WRONG_TYPE, "not valid UTF-8");
    REFUSED(a[2].validity = &valid, PST_WRONG_TYPE, "null key");
#undef REFUSED
    memcpy(a, sound, sizeof a);
    const int32_t both[] = {0, 2};
    a[1].offsets = both;
    CHECK_EQ(encode_one(&m, a, 1, &f), PST_WRONG_TYPE);
    CHECK(strstr(f.what, "there twice") && f.row == 0);
    CHECK_EQ(encode_one(&m, a, -1, &f), PST_INVALID);
    pst_nested_destroy(m.nested);
    m = TREE(STRUCT(1), DECIMAL(2));
    a[1] = (pst_nested_array){.length = 2, .values = wide, .values_bytes = 32};
    CHECK_EQ(encode_one(&m, a, 2, &f), PST_WRONG_TYPE);
    CHECK(strstr(f.what, "more digits") && f.row == 1);
    pst_nested_destroy(m.nested);
}

static void test_stored_columns_that_are_refused(void) {
    model_types m = TREE(ARRAY, SCALAR(PST_BOOL)), fixed = TREE(STRUCT(1), SCALAR(PST_INT8));
    const int32_t ends[] = {0, 1, 3}, far[] = {0, 1, 4}, falls[] = {0, 1, 0};
    pst_nested_column c[2];
    pst_nested_fault f;
    pst_array stored = {
        .type = PST_NESTED, .length = 2, .values = "\0\2\2", .values_bytes = 3, .offsets = ends};
    CHECK_EQ(pst_nested_decode(m.nested, &stored, c, &f), PST_CORRUPT);
    CHECK(f.row == 1 && f.at == 1 && f.size == 2 && strstr(f.what, "neither 0 nor 1"));
    CHECK(!c[0].offsets && !c[1].values);
    stored.offsets = far;
    CHECK_EQ(pst_nested_decode(m.nested, &stored, c, &f), PST_CORRUPT);
    CHECK(f.row == 1 && strstr(f.what, "outside"));
    stored.offsets = falls;
    CHECK_EQ(pst_nested_decode(m.nested, &stored, c, &f), PST_CORRUPT);
    CHECK(f.row == 1 && strstr(f.what, "outside"));
    stored.type = PST_BINARY;
    CHECK_EQ(pst_nested_decode(m.nested, &stored, c, &f), PST_INVALID);
    CHECK_EQ(pst_nested_decode(fixed.nested, &stored, c, &f), PST_INVALID);
    stored = (pst_array){.type = PST_FIXED,
                         .length = 2,
                         .width = 8,
                         .values = "\1\7\0\0\0\0\0\0\2\0\0\0\0\0\0\0",
                         .values_bytes = 15};
    CHECK_EQ(pst_nested_decode(fixed.nested, &stored, c, &f), PST_INVALID);
    stored.values_bytes = 16;
    CHECK_EQ(pst_nested_decode(fixed.nested, &stored, c, &f), PST_CORRUPT);
    CHECK(f.row == 1 && strstr(f.what, "no field"));
    stored.width = 16;
    CHECK_EQ(pst_nested_decode(fixed.nested, &stored, c, &f), PST_INVALID);
    pst_nested_destroy(m.nested);
    pst_nested_destroy(fixed.nested);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* All that takes memory, with its n-th request refused: PST_NO_MEMORY, and nothing is left
 * behind. */
static void check_refused(const model_types *m, const model_columns *c, const uint8_t *bytes,
                          size_t size, int64_t n, int *refused) {
    pst_nested *nested = NULL;
    pst_nested_fault fault;
    pst_nested_rows rows;
    uint64_t rng = 9;
    check_fail_alloc(n, 0);
    pst_status s = pst_nested_create(m->types, m->n, &nested);
    CHECK(s == (check_alloc_failed() ? PST_NO_MEMORY : PST_OK));
    *refused |= check_alloc_failed();
    pst_nested_destroy(nested);
    check_fail_alloc(n, 0);
    s = pst_nested_encode(m->nested, c->arrays, MODEL_ROWS, &rows, &fault);
    CHECK(s == (check_alloc_failed() ? PST_NO_MEMORY : PST_OK));
    *refused |= check_alloc_failed();
    check_fail_alloc(-1, 0);
    if (!s) {
        free(rows.data);
        free(rows.offsets);
    }
    check_fail_alloc(n, 0);
    s = model_rewrite(m, bytes, size, &rng, &fault);
    CHECK(s == (check_alloc_failed() ? PST_NO_MEMORY : PST_OK));
    *refused |= check_alloc_failed();
    pst_nested_column columns[MODEL_TYPES];
    int32_t offsets[] = {0, (int32_t)size};
    pst_array stored = {.type = pst_nested_width(m->nested) ? PST_FIXED : PST_NESTED,
                        .length = 1,
                        .width = pst_nested_width(m->nested),
                        .values = bytes,
                        .values_bytes = (int64_t)size,
                        .offsets = offsets};
    check_fail_alloc(n, 0);
    s = pst_nested_decode(m->nested, &stored, columns, &fault);
    CHECK(s == (check_alloc_failed() ? PST_NO_MEMORY : PST_OK));
    *refused |= check_alloc_failed();
    check_fail_alloc(-1, 0);
    if (!s)
        model_drop(m, columns);
}

static void test_refused_memory(void) {
    uint64_t worked = 0;
    for (uint64_t round = 0; round < 200; round++) {
        uint64_t rng = 4000 + round;
        model_types m;
        model_columns c;
        pst_nested_rows rows;
        pst_nested_fault fault;
        model_random(&m, &rng);
        model_fill(&m, &c, 0, MODEL_ROWS, 0, &rng);
        free((void *)(uintptr_t)c.arrays[0].validity);
        c.arrays[0].validity = NULL;
        if (pst_nested_encode(m.nested, c.arrays, MODEL_ROWS, &rows, &fault) == PST_OK) {
            size_t size = rows.offsets ? (size_t)rows.offsets[1] : pst_nested_width(m.nested);
            int refused = 1;
            for (int64_t n = 0; refused; n++) {
                refused = 0;
                check_refused(&m, &c, rows.data, size, n, &refused);
            }
            free(rows.data);
            free(rows.offsets);
            worked++;
        }
        model_free(&m, &c);
        pst_nested_destroy(m.nested);
    }
    CHECK(worked > 50);
}

int main(void) {
    test_columns_come_back();
    test_columns_that_are_refused();
    test_stored_columns_that_are_refused();
    test_refused_memory();
    return check_report();
}
