/* Accumulators against plain recomputation: every kind and type, values in random groups that are
 * merged in random order; sketches against the sets that they stand for; damaged bytes.
 *
 *   test_aggregate [rounds] [seed]
 */
#include <math.h>
#include <string.h>

#include "aggregate/aggregate.h"
#include "aggregate/sketch.h"
#include "check.h"
#include "key/hash.h"

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

enum { MOST = 600, ROOM = PST_AGG_MAX_K * 16 };

static const uint8_t NUMBERS[] = {PST_INT8,    PST_INT16,   PST_INT32,  PST_INT64,
                                  PST_FLOAT32, PST_FLOAT64, PST_DECIMAL};

static double as_double(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Small numbers of a type, some equal, and the odd ones of floats. */
static pst_cell make_number(uint8_t type, uint64_t *random) {
    uint64_t x = check_random(random);
    pst_cell c = {{0, 0}, {NULL, 0}};
    int64_t n = type == PST_INT8 ? (int8_t)(x >> 8) : (int64_t)(x >> 8) % 3000 - 1500;
    if (type == PST_FLOAT32) {
        float f = x % 50 == 0 ? -0.0f : x % 51 == 0 ? 0.0f : (float)n / 8;
        uint32_t bits;
        memcpy(&bits, &f, 4);
        c.word[0] = x % 97 == 0 ? UINT32_C(0xFFC00001) : bits;
    } else if (type == PST_FLOAT64) {
        double d = x % 50 == 0 ? -0.0 : x % 51 == 0 ? HUGE_VAL : (double)n / 8;
        memcpy(&c.word[0], &d, 8);
        if (x % 97 == 0)
            c.word[0] = UINT64_C(0xFFF8000000000001);
    } else {
        c.word[0] = (uint64_t)n;
        c.word[1] = type == PST_DECIMAL ? (uint64_t)(n >> 63) : 0;
        if (type == PST_DECIMAL && x % 5 == 0)
            c.word[1] += 1000;
    }
    return c;
}

static int128 wide(const pst_cell *c) {
    return (int128)((uint128)c->word[1] << 64 | c->word[0]);
}

static double value_of(uint8_t type, const pst_cell *c) {
    float f;
    uint32_t bits = (uint32_t)c->word[0];
    memcpy(&f, &bits, 4);
    if (type == PST_FLOAT32)
        return (double)f;
    if (type == PST_FLOAT64)
        return as_double(c->word[0]);
    if (type == PST_DECIMAL)
        return (double)(int64_t)c->word[1] * 0x1p64 + (double)c->word[0];
    return (double)(int64_t)c->word[0];
}

/* Adds the values, cut at random into groups, each to an accumulator of its own; merges them in
 * order. A merged pair must also follow the order, so neighbours are merged. */
static void accumulate(const pst_agg_shape *s, const pst_cell *cells, int n, uint64_t *random,
                       uint64_t *state) {
    uint64_t part[PST_AGG_MAX_WIDTH / 8];
    pst_agg_init(s, state);
    for (int i = 0; i < n;) {
        int end = i + (int)(check_random(random) % 40);
        pst_agg_init(s, part);
        for (; i < n && i < end; i++)
            CHECK_EQ(pst_agg_add(s, part, &cells[i]), PST_OK);
        CHECK_EQ(pst_agg_merge(s, state, part), PST_OK);
    }
}

static void test_mean(uint8_t type, uint64_t *random) {
    pst_agg_shape s = {.kind = PST_AGG_MEAN, .type = type};
    int is_float = type == PST_FLOAT32 || type == PST_FLOAT64;
    pst_cell cells[MOST];
    int n = (int)(check_random(random) % MOST);
    int128 sum = 0;
    double total = 0;
    uint64_t state[3] = {9, 9, 9};
    for (int i = 0; i < n; i++) {
        cells[i] = make_number(type, random);
        sum += type == PST_DECIMAL ? wide(&cells[i]) : (int128)(int64_t)cells[i].word[0];
        total += value_of(type, &cells[i]);
    }
    accumulate(&s, cells, n, random, state);
    CHECK_EQ(state[0], n);
    CHECK_EQ(pst_agg_width(&s), is_float ? 16 : 24);
    if (!is_float) {
        CHECK_EQ(state[1], (uint64_t)sum);
        CHECK_EQ(state[2], (uint64_t)(sum >> 64));
        return;
    }
    /* Eighths add up exactly, so that any order gives the same. */
    double have = as_double(state[1]);
    CHECK(have == total || (isnan(have) && isnan(total)));
}

static void test_variance(uint8_t type, uint64_t *random) {
    pst_agg_shape s = {.kind = PST_AGG_VARIANCE, .type = type};
    pst_cell cells[MOST];
    int n = (int)(check_random(random) % MOST);
    long double mean = 0, m2 = 0;
    uint64_t state[3];
    for (int i = 0; i < n; i++) {
        do
            cells[i] = make_number(type, random);
        while (!isfinite(value_of(type, &cells[i])));
        mean += (long double)value_of(type, &cells[i]);
    }
    mean /= n ? n : 1;
    for (int i = 0; i < n; i++) {
        long double away = (long double)value_of(type, &cells[i]) - mean;
        m2 += away * away;
    }
    accumulate(&s, cells, n, random, state);
    CHECK_EQ(state[0], n);
    CHECK(fabsl((long double)as_double(state[1]) - mean) <= 1e-12L * (fabsl(mean) + sqrtl(m2)));
    CHECK(fabsl((long double)as_double(state[2]) - m2) <= 1e-11L * m2);
}

/* A large mean must not drown a small variance, which is what a sum of squares would do. */
static void test_stable(void) {
    pst_agg_shape s = {.kind = PST_AGG_VARIANCE, .type = PST_FLOAT64};
    uint64_t one[3], parts[3], part[3];
    pst_agg_init(&s, one);
    pst_agg_init(&s, parts);
    for (int i = 0; i < 1000; i++) {
        double x = 1e9 + i % 10;
        pst_cell c = {{0, 0}, {NULL, 0}};
        memcpy(&c.word[0], &x, 8);
        CHECK_EQ(pst_agg_add(&s, one, &c), PST_OK);
        pst_agg_init(&s, part);
        CHECK_EQ(pst_agg_add(&s, part, &c), PST_OK);
        CHECK_EQ(pst_agg_merge(&s, parts, part), PST_OK);
    }
    CHECK(fabs(as_double(one[2]) - 8250) < 1e-2);
    CHECK(fabs(as_double(parts[2]) - 8250) < 1e-2);
}

static void test_first_last(uint8_t type, uint64_t *random) {
    pst_cell cells[MOST];
    int n = (int)(check_random(random) % 60);
    uint64_t state[3];
    for (int i = 0; i < n; i++)
        cells[i] = make_number(type, random);
    for (int last = 0; last < 2; last++) {
        pst_agg_shape s = {.kind = last ? PST_AGG_LAST : PST_AGG_FIRST, .type = type};
        accumulate(&s, cells, n, random, state);
        CHECK_EQ(state[0], n > 0);
        if (n)
            CHECK_EQ(memcmp(state + 1, cells[last ? n - 1 : 0].word, pst_agg_width(&s) - 8), 0);
    }
}

static uint8_t sorted_type;
static int descending(const void *a, const void *b) {
    const pst_cell *x = a, *y = b;
    if (sorted_type == PST_DECIMAL)
        return (wide(y) > wide(x)) - (wide(y) < wide(x));
    double i = value_of(sorted_type, x), j = value_of(sorted_type, y);
    if (isnan(i) || isnan(j))
        return isnan(j) - isnan(i);
    return (i < j) - (i > j);
}

static void check_largest(const pst_agg_shape *s, const pst_cell *sorted, int n,
                          const uint64_t *values, uint64_t count) {
    uint64_t words = s->type == PST_DECIMAL ? 2 : 1;
    CHECK_EQ(count, n < s->parameter ? n : s->parameter);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t want = pst_canonical_word((pst_type)s->type, sorted[i].word[0]);
        CHECK_EQ(values[i * words], want);
        if (words == 2)
            CHECK_EQ(values[i * 2 + 1], sorted[i].word[1]);
    }
}

static void test_top_k(uint8_t type, uint64_t *random) {
    static uint8_t bytes[ROOM], part_bytes[ROOM];
    static uint64_t values[ROOM / 8];
    pst_cell cells[MOST], sorted[MOST];
    int n = (int)(check_random(random) % MOST);
    for (int i = 0; i < n; i++)
        sorted[i] = cells[i] = make_number(type, random);
    sorted_type = type;
    qsort(sorted, (size_t)n, sizeof sorted[0], descending);
    pst_agg_shape s = {.kind = PST_AGG_TOP_K, .type = type};
    s.parameter = (uint16_t)(1 + check_random(random) % 80);
    CHECK_EQ(pst_agg_check(&s), PST_OK);
    if (pst_agg_width(&s)) {
        uint64_t state[PST_AGG_MAX_WIDTH / 8];
        accumulate(&s, cells, n, random, state);
        check_largest(&s, sorted, n, state + 1, state[0]);
        return;
    }
    pst_agg_buffer all = {bytes, 0, pst_agg_room(&s, 0, 0)}, part = all;
    part.data = part_bytes;
    for (int i = 0; i < n; i++) {
        pst_bytes now = {part_bytes, (uint32_t)part.size};
        int absorbs = pst_agg_absorbs(&s, now, &cells[i]);
        uint64_t before = pst_xxh64(part_bytes, part.size, 0);
        CHECK_EQ(pst_agg_add_bytes(&s, &part, &cells[i]), PST_OK);
        CHECK_EQ(absorbs, before == pst_xxh64(part_bytes, part.size, 0));
        if (check_random(random) % 100 && i + 1 < n)
            continue;
        now.size = (uint32_t)part.size;
        CHECK_EQ(pst_agg_merge_bytes(&s, &all, now), PST_OK);
        part.size = 0;
    }
    memcpy(values, bytes, all.size);
    uint64_t value = type == PST_DECIMAL ? 16 : 8;
    check_largest(&s, sorted, n, values, all.size / value);
}

static void test_bytes(void) {
    uint8_t room[64];
    pst_agg_shape first = {.kind = PST_AGG_FIRST, .type = PST_STRING}, last = first;
    last.kind = PST_AGG_LAST;
    pst_agg_buffer a = {room, 0, 8}, b = {room + 32, 0, 8};
    pst_cell none = {{0, 0}, {(const uint8_t *)"", 0}}, abc = {{0, 0}, {(const uint8_t *)"abc", 3}};
    CHECK_EQ(pst_agg_width(&first), 0);
    CHECK_EQ(pst_agg_absorbs(&first, (pst_bytes){room, 0}, &none), 0);
    CHECK_EQ(pst_agg_add_bytes(&first, &a, &none), PST_OK);
    CHECK_EQ(a.size, 1);
    CHECK_EQ(pst_agg_absorbs(&first, (pst_bytes){room, 1}, &abc), 1);
    CHECK_EQ(pst_agg_add_bytes(&first, &a, &abc), PST_OK);
    CHECK_EQ(a.size, 1);
    CHECK_EQ(pst_agg_add_bytes(&last, &b, &abc), PST_OK);
    CHECK_EQ(pst_agg_absorbs(&last, (pst_bytes){b.data, 4}, &abc), 1);
    CHECK_EQ(pst_agg_absorbs(&last, (pst_bytes){b.data, 4}, &none), 0);
    CHECK_EQ(pst_agg_merge_bytes(&last, &a, (pst_bytes){b.data, 4}), PST_OK);
    CHECK(a.size == 4 && memcmp(a.data, "\1abc", 4) == 0);
    CHECK_EQ(pst_agg_merge_bytes(&last, &a, (pst_bytes){b.data, 0}), PST_OK);
    CHECK_EQ(a.size, 4);
    CHECK_EQ(pst_agg_merge_bytes(&last, &a, (pst_bytes){(const uint8_t *)"xyz", 3}), PST_CORRUPT);
    a.capacity = 3;
    CHECK_EQ(pst_agg_add_bytes(&last, &a, &abc), PST_TOO_LARGE);
    CHECK_EQ(a.size, 4);
}

static void to_hex(const void *data, size_t size, char *out) {
    for (size_t i = 0; i < size; i++)
        sprintf(out + 2 * i, "%02x", ((const uint8_t *)data)[i]);
}

/* The bytes that tests/unit/state/test_aggregators.py makes results of. */
static void test_layout(void) {
    static const struct {
        pst_agg_shape shape;
        const char *bytes;
        int n;
        uint64_t word[10];
    } cases[] = {
        {{PST_AGG_MEAN, PST_INT64, 0},
         "0400000000000000fcffffffffffff7f0000000000000000",
         4,
         {1, (uint64_t)-5, UINT64_C(1) << 62, UINT64_C(1) << 62}},
        {{PST_AGG_MEAN, PST_FLOAT64, 0},
         "0200000000000000000000000000fc3f",
         2,
         {UINT64_C(0x3fe0000000000000), UINT64_C(0x3ff4000000000000)}},
        {{PST_AGG_VARIANCE, PST_INT32, 0},
         "080000000000000000000000000014400000000000004040",
         8,
         {2, 4, 4, 4, 5, 5, 7, 9}},
        {{PST_AGG_LAST, PST_INT16, 0}, "0100000000000000f9ffffffffffffff", 2, {3, (uint64_t)-7}},
        {{PST_AGG_TOP_K, PST_INT8, 2},
         "020000000000000009000000000000000300000000000000",
         3,
         {3, (uint64_t)-1, 9}},
        {{PST_AGG_DISTINCT, PST_INT64, 4}, "0104000081402c03d59ec19fd1", 3, {1, 2, 3}},
        {{PST_AGG_DISTINCT, PST_INT64, 4},
         "01040100021000800004410008002100",
         10,
         {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const pst_agg_shape *s = &cases[i].shape;
        uint64_t state[8];
        uint8_t bytes[64];
        char hex[129] = "";
        pst_agg_buffer b = {bytes, 0, sizeof bytes};
        pst_agg_init(s, state);
        for (int k = 0; k < cases[i].n; k++) {
            pst_cell c = {{cases[i].word[k], 0}, {NULL, 0}};
            CHECK_EQ(pst_agg_width(s) ? pst_agg_add(s, state, &c) : pst_agg_add_bytes(s, &b, &c),
                     PST_OK);
        }
        if (pst_agg_width(s))
            to_hex(state, pst_agg_width(s), hex);
        else
            to_hex(bytes, b.size, hex);
        CHECK(strcmp(hex, cases[i].bytes) == 0);
    }
}

static void test_overflow(void) {
    pst_agg_shape s = {.kind = PST_AGG_MEAN, .type = PST_DECIMAL};
    pst_cell most = {{UINT64_MAX, INT64_MAX}, {NULL, 0}}, one = {{1, 0}, {NULL, 0}};
    uint64_t state[3], before[3];
    pst_agg_init(&s, state);
    CHECK_EQ(pst_agg_add(&s, state, &most), PST_OK);
    memcpy(before, state, sizeof state);
    CHECK_EQ(pst_agg_add(&s, state, &one), PST_OVERFLOW);
    CHECK_EQ(pst_agg_merge(&s, state, before), PST_OVERFLOW);
    CHECK_EQ(memcmp(before, state, sizeof state), 0);
    s.type = PST_INT64;
    pst_cell largest = {{INT64_MAX, 0}, {NULL, 0}};
    pst_agg_init(&s, state);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pst_agg_add(&s, state, &largest), PST_OK);
    CHECK(state[1] == (uint64_t)-4 && state[2] == 1);
}

static void test_checks(void) {
    static const struct {
        pst_agg_shape shape;
        pst_status status;
    } cases[] = {
        {{PST_AGG_MEAN, PST_INT32, 0}, PST_OK},
        {{PST_AGG_MEAN, PST_BOOL, 0}, PST_WRONG_TYPE},
        {{PST_AGG_MEAN, PST_TIMESTAMP, 0}, PST_WRONG_TYPE},
        {{PST_AGG_MEAN, PST_STRING, 0}, PST_WRONG_TYPE},
        {{PST_AGG_MEAN, PST_INT32, 1}, PST_INVALID},
        {{PST_AGG_VARIANCE, PST_DECIMAL, 0}, PST_OK},
        {{PST_AGG_FIRST, PST_OBJECT, 0}, PST_OK},
        {{PST_AGG_LAST, PST_BOOL, 0}, PST_OK},
        {{PST_AGG_LAST, 0, 0}, PST_WRONG_TYPE},
        {{PST_AGG_TOP_K, PST_DATE32, 3}, PST_OK},
        {{PST_AGG_TOP_K, PST_STRING, 3}, PST_WRONG_TYPE},
        {{PST_AGG_TOP_K, PST_INT64, 0}, PST_INVALID},
        {{PST_AGG_TOP_K, PST_INT64, PST_AGG_MAX_K + 1}, PST_INVALID},
        {{PST_AGG_DISTINCT, PST_STRING, 11}, PST_OK},
        {{PST_AGG_DISTINCT, PST_OBJECT, 11}, PST_WRONG_TYPE},
        {{PST_AGG_DISTINCT, PST_STRING, 3}, PST_INVALID},
        {{PST_AGG_DISTINCT, PST_STRING, 15}, PST_INVALID},
        {{0, PST_INT64, 0}, PST_INVALID},
        {{7, PST_INT64, 0}, PST_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_EQ(pst_agg_check(&cases[i].shape), cases[i].status);
    pst_agg_shape s = {PST_AGG_TOP_K, PST_INT64, 31};
    CHECK_EQ(pst_agg_width(&s), 256);
    s.parameter = 32;
    CHECK_EQ(pst_agg_width(&s), 0);
}

/* ---- sketches -------------------------------------------------------------------------------- */

/* Ertl 2017, the improved raw estimator, from the number of registers of each value. */
static double sigma(double x) {
    double y = 1, z = x, before;
    if (x == 1)
        return HUGE_VAL;
    do {
        x *= x;
        before = z;
        z += x * y;
        y += y;
    } while (z != before);
    return z;
}

static double tau(double x) {
    double y = 1, z = 1 - x, before;
    if (x == 0 || x == 1)
        return 0;
    do {
        x = sqrt(x);
        before = z;
        y /= 2;
        z -= (1 - x) * (1 - x) * y;
    } while (z != before);
    return z / 3;
}

static double estimate(const uint8_t *data, size_t size) {
    double count[66] = {0};
    if (!size)
        return 0;
    uint32_t bits = data[2] ? data[1] : 18;
    double m = (double)(1u << bits);
    if (data[2]) {
        for (size_t i = 0; i < (size_t)1 << bits; i++) {
            uint64_t at = i * 6;
            uint32_t two = data[4 + at / 8];
            if (at / 8 + 5 < size)
                two |= (uint32_t)data[4 + at / 8 + 1] << 8;
            count[two >> at % 8 & 63]++;
        }
    } else {
        for (size_t at = 4; at < size; at += 3)
            count[data[at] & 63]++;
        count[0] = m - (double)((size - 4) / 3);
    }
    uint32_t q = 64 - bits;
    double z = m * tau(1 - count[q + 1] / m);
    for (uint32_t k = q; k >= 1; k--)
        z = 0.5 * (z + count[k]);
    z += m * sigma(count[0] / m);
    return m * m / (2 * log(2)) / z;
}

/* A set in one order, and in parts in another order and more than once: equal bytes, and an
 * estimate within five standard errors. */
static void test_distinct(uint16_t precision, uint64_t n, uint64_t *random) {
    static uint8_t bytes[2][16384], part_bytes[16384];
    pst_agg_shape s = {PST_AGG_DISTINCT, PST_INT64, precision};
    pst_agg_buffer one = {bytes[0], 0, pst_agg_room(&s, 0, 0)};
    pst_agg_buffer all = {bytes[1], 0, one.capacity}, part = {part_bytes, 0, one.capacity};
    uint64_t salt = check_random(random);
    for (uint64_t i = 0; i < n; i++) {
        pst_cell c = {{salt + i * 3, 0}, {NULL, 0}};
        CHECK_EQ(pst_agg_add_bytes(&s, &one, &c), PST_OK);
        CHECK_EQ(pst_agg_absorbs(&s, (pst_bytes){one.data, (uint32_t)one.size}, &c), 1);
    }
    for (uint64_t i = 0; i < n + n / 2; i++) {
        pst_cell c = {{salt + (n - 1 - i % n) * 3, 0}, {NULL, 0}};
        CHECK_EQ(pst_agg_add_bytes(&s, &part, &c), PST_OK);
        if (check_random(random) % (n + 1) > 3 && i + 1 < n + n / 2)
            continue;
        CHECK_EQ(pst_agg_merge_bytes(&s, &all, (pst_bytes){part.data, (uint32_t)part.size}),
                 PST_OK);
        part.size = 0;
    }
    CHECK(all.size == one.size && memcmp(all.data, one.data, one.size) == 0);
    double e = estimate(one.data, one.size), error = 1.04 / sqrt((double)(1 << precision));
    if (one.size && !one.data[2])
        error = 0.002;
    CHECK(fabs(e - (double)n) <= 5 * error * (double)n + 0.01);
}

static void test_distinct_types(void) {
    uint8_t bytes[4096];
    pst_agg_shape s = {PST_AGG_DISTINCT, PST_FLOAT64, 11};
    pst_agg_buffer b = {bytes, 0, sizeof bytes};
    pst_cell c = {{0, 0}, {NULL, 0}};
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_OK);
    c.word[0] = UINT64_C(1) << 63; /* -0.0 is 0.0 */
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_OK);
    CHECK_EQ(b.size, 7);
    s.type = PST_DECIMAL;
    c.word[1] = 5;
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_OK);
    c.word[1] = 6;
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_OK);
    s.type = PST_STRING;
    c.bytes = (pst_bytes){(const uint8_t *)"abc", 3};
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_OK);
    CHECK_EQ(b.size, 4 + 4 * 3);
    b.size = 0;
    static const char *const airports[] = {"JFK", "EWR", "JFK"};
    char hex[32] = "";
    for (int i = 0; i < 3; i++) {
        c.bytes.data = (const uint8_t *)airports[i];
        CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_OK);
    }
    to_hex(bytes, b.size, hex);
    CHECK(strcmp(hex, "010b000043d10f01f048") == 0);
    s.parameter = 12;
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_CORRUPT);
    CHECK_EQ(pst_agg_absorbs(&s, (pst_bytes){bytes, (uint32_t)b.size}, &c), 0);
    b.capacity = 100;
    s.parameter = 11;
    CHECK_EQ(pst_agg_add_bytes(&s, &b, &c), PST_TOO_LARGE);
}

/* Bytes that no sketch has are refused, or taken without leaving the buffers. */
static void test_damage(uint64_t *random, int rounds) {
    for (int i = 0; i < rounds; i++) {
        pst_agg_shape s = {PST_AGG_DISTINCT, PST_INT64, (uint16_t)(4 + i % 3)};
        size_t room = pst_agg_room(&s, 0, 0), size = check_random(random) % (room + 1);
        size_t from_size = check_random(random) % (room + 3);
        uint8_t *data = malloc(room), *from = malloc(from_size ? from_size : 1);
        REQUIRE(data && from);
        for (size_t k = 0; k < room; k++)
            data[k] = (uint8_t)check_random(random);
        for (size_t k = 0; k < from_size; k++)
            from[k] = (uint8_t)check_random(random);
        for (int half = 0; half < 2; half++) {
            uint8_t *head = half ? from : data;
            if ((half ? from_size : size) < 4)
                continue;
            head[0] = 1;
            head[1] = (uint8_t)s.parameter;
            head[2] = (uint8_t)(check_random(random) % 3);
            head[3] = 0;
        }
        if (i % 2 && room <= from_size) {
            from[2] = 1;
            from_size = room;
        }
        pst_agg_buffer b = {data, size, room};
        pst_cell c = {{check_random(random), 0}, {NULL, 0}};
        (void)pst_agg_absorbs(&s, (pst_bytes){data, (uint32_t)size}, &c);
        pst_status st = pst_agg_merge_bytes(&s, &b, (pst_bytes){from, (uint32_t)from_size});
        CHECK(st == PST_OK || (st == PST_CORRUPT && b.size == size));
        st = pst_agg_add_bytes(&s, &b, &c);
        CHECK((st == PST_OK || st == PST_CORRUPT) && b.size <= room);
        free(data);
        free(from);
    }
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 60;
    uint64_t random = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    for (int i = 0; i < rounds; i++)
        for (size_t n = 0; n < sizeof NUMBERS; n++) {
            test_mean(NUMBERS[n], &random);
            test_variance(NUMBERS[n], &random);
            test_first_last(NUMBERS[n], &random);
            test_top_k(NUMBERS[n], &random);
        }
    for (uint16_t p = PST_AGG_LEAST_PRECISION; p <= PST_AGG_MOST_PRECISION; p++)
        for (uint64_t n = 0; n < 60000; n = n * 3 + 1)
            test_distinct(p, n, &random);
    test_distinct_types();
    test_stable();
    test_bytes();
    test_layout();
    test_overflow();
    test_checks();
    test_damage(&random, rounds * 50);
    return check_report();
}
