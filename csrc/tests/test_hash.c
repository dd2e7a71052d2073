/* XXH64 against published vectors, Spark's hashInt and hashLong against the general algorithm,
 * Spark SQL's own values, pst_hash against pst_hash_cell, key order, key-group arithmetic, and the
 * number codings. */
#include "check.h"

#include <string.h>

#include "base/coding.h"
#include "key/hash.h"

static void test_vectors(void) {
    CHECK_EQ(pst_xxh64(NULL, 0, 0), UINT64_C(0xEF46DB3751D8E999));
    CHECK_EQ(pst_xxh64("a", 1, 0), UINT64_C(0xD24EC4F1A98C6E5B));
    CHECK_EQ(pst_xxh64("abc", 3, 0), UINT64_C(0x44BC2CF5AD770999));
    /* The specification's generator: bytes from a multiplicative sequence. */
    uint8_t bytes[101];
    uint32_t g = UINT32_C(2654435761);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(g >> 24);
        g *= g;
    }
    static const struct {
        size_t size;
        uint64_t seed, hash;
    } known[] = {
        {1, 0, UINT64_C(0x4FCE394CC88952D8)},   {1, 2654435761, UINT64_C(0x739840CB819FA723)},
        {14, 0, UINT64_C(0xCFFA8DB881BC3A3D)},  {14, 2654435761, UINT64_C(0x5B9611585EFCC9CB)},
        {101, 0, UINT64_C(0x0EAB543384F878AD)}, {101, 2654435761, UINT64_C(0xCAA65939306F1E21)},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        CHECK_EQ(pst_xxh64(bytes, known[i].size, known[i].seed), known[i].hash);
}

static pst_cell word_cell(uint64_t w) {
    return (pst_cell){{w, 0}, {NULL, 0}};
}

static pst_cell bytes_cell(const char *s) {
    return (pst_cell){{0, 0}, {(const uint8_t *)s, (uint32_t)strlen(s)}};
}

/* What Spark SQL's xxhash64(...) says of a few literals. */
static void test_spark(void) {
    static const pst_column int32 = {.type = PST_INT32}, int64 = {.type = PST_INT64};
    static const pst_column tiny = {.type = PST_INT8}, date = {.type = PST_DATE32};
    static const pst_column d9 = {.type = PST_DECIMAL, .precision = 9, .scale = 2};
    static const pst_column d30 = {.type = PST_DECIMAL, .precision = 30};
    static const pst_column d38 = {.type = PST_DECIMAL, .precision = 38, .scale = 10};
    static const pst_column mixed[3] = {
        {.type = PST_INT32}, {.type = PST_STRING}, {.type = PST_BOOL}};
    static const pst_column floats[2] = {{.type = PST_FLOAT64}, {.type = PST_FLOAT32}};
    pst_cell text = bytes_cell("pystate"), one = word_cell(1), minus = word_cell(UINT64_MAX);
    CHECK_EQ(pst_hash_key(&int64, 1, &one, 0), INT64_C(-7001672635703045582));
    CHECK_EQ(pst_hash_key(&mixed[1], 1, &text, 0), INT64_C(7915527355032795947));
    CHECK_EQ(pst_hash_key(&int32, 1, &one, 1), 42);
    CHECK_EQ(pst_hash_key(&tiny, 1, &minus, 0), INT64_C(2017008487422258757));
    pst_cell three[3] = {one, bytes_cell("a"), one};
    CHECK_EQ(pst_hash_key(mixed, 3, three, 0), INT64_C(-1771785051822675751));
    pst_cell zero_nan[2] = {word_cell(UINT64_C(1) << 63), word_cell(0xffc12345)};
    CHECK_EQ(pst_hash_key(floats, 2, zero_nan, 0), INT64_C(2790068213323637606));
    pst_cell leap = word_cell(19782); /* 2024-02-29 */
    CHECK_EQ(pst_hash_key(&date, 1, &leap, 0), INT64_C(4183429117450946631));
    pst_cell small = {{(uint64_t)-1250, UINT64_MAX}, {NULL, 0}};
    CHECK_EQ(pst_hash_key(&d9, 1, &small, 0), INT64_C(-5788752094224277284));
    pst_cell all_ones = {{UINT64_MAX, UINT64_MAX}, {NULL, 0}};
    CHECK_EQ(pst_hash_key(&d30, 1, &all_ones, 0), INT64_C(-4006032525457443936));
    /* 123456789012345678901.5 with ten decimals, as 128 bits */
    pst_cell wide = {{UINT64_C(0), 0}, {NULL, 0}};
    uint64_t digits = UINT64_C(1234567890123456789);
    __extension__ unsigned __int128 unscaled =
        ((unsigned __int128)digits * 1000 + 15) * UINT64_C(1000000000);
    wide.word[0] = (uint64_t)unscaled;
    wide.word[1] = (uint64_t)(unscaled >> 64);
    CHECK_EQ(pst_hash_key(&d38, 1, &wide, 0), INT64_C(-1946875306419265109));
}

static void test_streaming(void) {
    uint8_t data[300];
    uint64_t rng = 1;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)check_random(&rng);
    for (size_t size = 0; size <= sizeof data; size++) {
        uint64_t seed = check_random(&rng);
        uint64_t whole = pst_xxh64(data, size, seed);
        for (int round = 0; round < 8; round++) {
            pst_xxh64_state s;
            pst_xxh64_init(&s, seed);
            for (size_t at = 0; at < size;) {
                size_t n = check_random(&rng) % (round < 4 ? 9 : 90);
                n = n < size - at ? n : size - at;
                pst_xxh64_update(&s, data + at, n);
                at += n;
            }
            CHECK_EQ(pst_xxh64_digest(&s), whole);
        }
    }
    for (int i = 0; i < 1000; i++) {
        uint64_t seed = check_random(&rng), v = check_random(&rng);
        uint8_t le[8];
        pst_put_u64(le, v);
        CHECK_EQ(pst_xxh64_long((int64_t)v, seed), pst_xxh64(le, 8, seed));
        CHECK_EQ(pst_xxh64_int((int32_t)(uint32_t)v, seed), pst_xxh64(le, 4, seed));
    }
}

enum { ROWS = 3000, OFFSET = 5 };

/* Fills a column with noise; float columns get every special value, decimals every length. */
static pst_array random_array(pst_type type, uint64_t *rng, int nulls) {
    static const uint64_t special[] = {0,
                                       UINT64_C(0x8000000000000000),
                                       UINT64_C(0x80000000),
                                       UINT64_C(0x7ff8000000000001),
                                       UINT64_C(0xfff0000000000001),
                                       UINT64_C(0x7fc00001),
                                       UINT64_C(0xffc00000),
                                       UINT64_C(0x7ff0000000000000),
                                       UINT64_C(0x7f800000)};
    size_t n = ROWS + OFFSET;
    uint64_t *words = calloc(n * 2, 8);
    int32_t *offsets = calloc(n + 1, 4);
    uint8_t *validity = calloc(n / 8 + 1, 1);
    REQUIRE(words && offsets && validity);
    for (size_t i = 0; i < n / 8 + 1; i++)
        validity[i] = (uint8_t)check_random(rng);
    for (size_t i = 0; i < n; i++) {
        uint64_t r = check_random(rng);
        if (type == PST_DECIMAL) {
            unsigned shift = (unsigned)(r % 64);
            words[2 * i] = check_random(rng);
            words[2 * i + 1] = (uint64_t)((int64_t)check_random(rng) >> shift);
            if (shift > 50) {
                words[2 * i] = (uint64_t)((int64_t)words[2 * i] >> (r >> 8) % 64);
                words[2 * i + 1] = (uint64_t)((int64_t)words[2 * i] >> 63);
            }
        } else {
            words[i] = r % 4 ? check_random(rng) : special[(r >> 8) % 9];
        }
        offsets[i + 1] = offsets[i] + (int32_t)((r >> 16) % 6 == 0 ? (r >> 20) % 60 : 1);
        if ((size_t)offsets[i + 1] > n * 16)
            offsets[i + 1] = offsets[i];
    }
    if (!nulls) {
        free(validity);
        validity = NULL;
    }
    return (pst_array){
        type, ROWS, OFFSET, validity, words, offsets, .values_bytes = (int64_t)n * 16};
}

static void free_array(pst_array *a) {
    free((void *)(uintptr_t)a->values);
    free((void *)(uintptr_t)a->offsets);
    free((void *)(uintptr_t)a->validity);
}

static pst_cell cell_of(const pst_array *a, int64_t i) {
    const uint8_t *v = a->values;
    size_t at = (size_t)(a->offset + i);
    pst_cell c = {{0, 0}, {NULL, 0}};
    switch (a->type) {
    case PST_BOOL:
        c.word[0] = (v[at / 8] >> (at % 8)) & 1;
        break;
    case PST_INT8:
        c.word[0] = (uint64_t)(int8_t)v[at];
        break;
    case PST_INT16:
        c.word[0] = (uint64_t)(int16_t)pst_get_u16(v + at * 2);
        break;
    case PST_INT32:
    case PST_DATE32:
        c.word[0] = (uint64_t)(int32_t)pst_get_u32(v + at * 4);
        break;
    case PST_FLOAT32:
        c.word[0] = pst_get_u32(v + at * 4);
        break;
    case PST_DECIMAL:
        c.word[0] = pst_get_u64(v + at * 16);
        c.word[1] = pst_get_u64(v + at * 16 + 8);
        break;
    case PST_STRING:
    case PST_BINARY:
        c.bytes.data = v + a->offsets[at];
        c.bytes.size = (uint32_t)(a->offsets[at + 1] - a->offsets[at]);
        break;
    default:
        c.word[0] = pst_get_u64(v + at * 8);
        break;
    }
    return c;
}

static void test_arrays_equal_cells(void) {
    uint64_t rng = 7;
    for (int t = PST_BOOL; t <= PST_BINARY; t++) {
        for (int nulls = 0; nulls < 2; nulls++) {
            /* The column under test between two others, so that seeds chain both ways. */
            pst_array a[3] = {random_array(PST_INT64, &rng, nulls),
                              random_array((pst_type)t, &rng, nulls),
                              random_array(PST_STRING, &rng, 0)};
            pst_column columns[3] = {{.type = PST_INT64},
                                     {.type = (pst_type)t, .precision = nulls ? 38 : 18},
                                     {.type = PST_STRING}};
            uint8_t precision[3] = {0, columns[1].precision, 0};
            uint64_t *h = malloc(ROWS * sizeof *h);
            REQUIRE(h);
            CHECK_EQ(pst_hash(a, precision, 3, h), PST_OK);
            for (int64_t i = 0; i < ROWS; i++) {
                pst_cell key[3];
                uint32_t null_bits = 0;
                for (int c = 0; c < 3; c++) {
                    key[c] = cell_of(&a[c], i);
                    int64_t at = a[c].offset + i;
                    if (a[c].validity && !((a[c].validity[at / 8] >> (at % 8)) & 1))
                        null_bits |= 1u << c;
                }
                CHECK_EQ(h[i], pst_hash_key(columns, 3, key, null_bits));
                if (t < PST_DECIMAL) {
                    uint64_t word = pst_canonical_word((pst_type)t, key[1].word[0]);
                    CHECK_EQ(pst_hash_word((pst_type)t, word, 9),
                             pst_hash_cell(&columns[1], &key[1], 9));
                }
            }
            free(h);
            for (int c = 0; c < 3; c++)
                free_array(&a[c]);
        }
    }
}

static void test_canonical(void) {
    CHECK_EQ(pst_canonical_word(PST_FLOAT64, UINT64_C(1) << 63), 0);
    CHECK_EQ(pst_canonical_word(PST_FLOAT32, UINT64_C(1) << 31), 0);
    CHECK_EQ(pst_canonical_word(PST_FLOAT64, UINT64_C(0xfff0000000000001)),
             UINT64_C(0x7ff8000000000000));
    CHECK_EQ(pst_canonical_word(PST_FLOAT32, UINT64_C(0xffffffff)), UINT64_C(0x7fc00000));
    CHECK_EQ(pst_canonical_word(PST_FLOAT64, UINT64_C(0xfff0000000000000)),
             UINT64_C(0xfff0000000000000));
    CHECK_EQ(pst_canonical_word(PST_FLOAT32, UINT64_C(0x7f800000)), UINT64_C(0x7f800000));
    CHECK_EQ(pst_canonical_word(PST_INT64, UINT64_C(1) << 63), UINT64_C(1) << 63);
}

static void test_refusals(void) {
    uint64_t h;
    int64_t v[2] = {0, 0};
    pst_array a = {PST_OBJECT, 1, 0, NULL, v, NULL};
    CHECK_EQ(pst_hash(&a, NULL, 1, &h), PST_WRONG_TYPE);
    a.type = PST_DECIMAL;
    CHECK_EQ(pst_hash(&a, NULL, 1, &h), PST_INVALID);
    a.type = PST_INT64;
    CHECK_EQ(pst_hash(&a, NULL, 0, &h), PST_INVALID);
    CHECK_EQ(pst_hash(&a, NULL, 1, &h), PST_OK);
    pst_array two[2] = {a, a};
    two[1].length = 0;
    CHECK_EQ(pst_hash(two, NULL, 2, &h), PST_INVALID);
}

static void test_order(void) {
    pst_column k[2] = {{.type = PST_INT64}, {.type = PST_STRING}};
    pst_cell a[2] = {word_cell(1), bytes_cell("ab")};
    pst_cell b[2] = {word_cell(1), bytes_cell("abc")};
    CHECK(pst_key_compare(k, 2, a, 0, b, 0) < 0);
    CHECK(pst_key_compare(k, 2, b, 0, a, 0) > 0);
    CHECK(pst_key_compare(k, 2, a, 0, a, 0) == 0);
    CHECK(pst_key_compare(k, 2, a, 2, b, 0) < 0);
    CHECK(pst_key_compare(k, 2, a, 2, b, 2) == 0);
    a[0] = word_cell(UINT64_MAX);
    CHECK(pst_key_compare(k, 2, a, 0, b, 0) > 0);
    CHECK(pst_key_compare(k, 2, a, 1, b, 0) < 0);
    pst_column d = {.type = PST_DECIMAL, .precision = 38};
    pst_cell low = {{5, 1}, {NULL, 0}}, high = {{2, 2}, {NULL, 0}};
    CHECK(pst_key_compare(&d, 1, &low, 0, &high, 0) < 0);
    pst_cell empty = {{0, 0}, {NULL, 0}};
    CHECK(pst_key_compare(&k[1], 1, &empty, 0, &b[1], 0) < 0);
    CHECK(pst_key_compare(&k[1], 1, &empty, 0, &empty, 0) == 0);
}

static void test_key_groups(void) {
    CHECK_EQ(pst_key_group(0, 128), 0);
    CHECK_EQ(pst_key_group(UINT64_MAX, 128), 127);
    CHECK_EQ(pst_key_group(UINT64_MAX, 100), 99);
    CHECK_EQ(pst_key_group(UINT64_C(1) << 63, 7), (7 - INT64_C(9223372036854775807) % 7 - 1) % 7);
    for (int32_t m = 1; m <= 70; m++) {
        for (int32_t p = 1; p <= m; p++) {
            int32_t next = 0;
            for (int32_t i = 0; i < p; i++) {
                int32_t first, last;
                pst_range_bounds(i, m, p, &first, &last);
                CHECK_EQ(first, next);
                CHECK(last >= first);
                for (int32_t g = first; g <= last; g++)
                    CHECK_EQ(pst_range_of(g, m, p), i);
                next = last + 1;
            }
            CHECK_EQ(next, m);
        }
    }
    int32_t first, last;
    pst_range_bounds(32766, 32768, 32767, &first, &last);
    CHECK_EQ(last, 32767);
}

static void test_coding(void) {
    uint64_t rng = 3;
    for (int i = 0; i < 2000; i++) {
        uint64_t shift = check_random(&rng) % 64;
        uint64_t v = check_random(&rng) >> shift;
        uint8_t b[PST_VARINT_MAX];
        size_t n = pst_put_varint(b, v);
        CHECK_EQ(n, pst_varint_size(v));
        pst_cursor c = pst_cursor_over(b, n);
        CHECK_EQ(pst_cursor_varint(&c), v);
        CHECK(!c.bad && pst_cursor_left(&c) == 0);
        c = pst_cursor_over(b, n - 1);
        CHECK_EQ(pst_cursor_varint(&c), 0);
        CHECK(c.bad);
    }
    static const uint8_t too_long[] = {0x80, 0x00};
    static const uint8_t too_large[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02};
    pst_cursor c = pst_cursor_over(too_long, sizeof too_long);
    pst_cursor_varint(&c);
    CHECK(c.bad);
    c = pst_cursor_over(too_large, sizeof too_large);
    pst_cursor_varint(&c);
    CHECK(c.bad);
    CHECK(pst_cursor_bytes(&c, 0) == NULL);
    c = pst_cursor_over(too_large, sizeof too_large);
    CHECK(pst_cursor_bytes(&c, UINT64_MAX) == NULL && c.bad);
}

int main(void) {
    test_vectors();
    test_spark();
    test_streaming();
    test_arrays_equal_cells();
    test_canonical();
    test_refusals();
    test_order();
    test_key_groups();
    test_coding();
    for (int i = PST_OK; i <= PST_SCHEMA; i++)
        CHECK(strcmp(pst_status_name((pst_status)i), "unknown status") != 0);
    return check_report();
}
