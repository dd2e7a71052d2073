/* Nested values: trees of types, values to bytes and back, and bytes that are no values. */
#include "nested_model.h"

static pst_cell word(int64_t value) {
    return (pst_cell){.word = {(uint64_t)value, value < 0 ? UINT64_MAX : 0}};
}

static pst_cell text(const char *value) {
    return (pst_cell){.bytes = {(const uint8_t *)value, (uint32_t)strlen(value)}};
}

static void check_written(const pst_nested_writer *w, const char *bytes, size_t size) {
    if (CHECK_EQ(w->out.size, size))
        CHECK(memcmp(w->out.data, bytes, size) == 0);
}

/* ---- types ----------------------------------------------------------------------------------- */

static void test_trees_that_are_refused(void) {
    static const struct {
        pst_nested_type types[4];
        int32_t n;
    } bad[] = {
        {{SCALAR(PST_INT32)}, 1},
        {{STRUCT(0)}, 1},
        {{STRUCT(1)}, 1},
        {{STRUCT(2), SCALAR(PST_INT32)}, 2},
        {{STRUCT(1), SCALAR(PST_INT32), SCALAR(PST_INT32)}, 3},
        {{STRUCT(UINT32_MAX), SCALAR(PST_INT32)}, 2},
        {{{PST_NESTED_ARRAY, 0, 0, 2}, SCALAR(PST_INT32), SCALAR(PST_INT32)}, 3},
        {{{PST_NESTED_MAP, 0, 0, 1}, SCALAR(PST_INT32)}, 2},
        {{MAP, STRUCT(1), SCALAR(PST_INT8), SCALAR(PST_INT8)}, 4},
        {{ARRAY, {4, 0, 0, 0}}, 2},
        {{ARRAY, {PST_NESTED_SCALAR, PST_INT32, 0, 1}}, 2},
        {{ARRAY, SCALAR(0)}, 2},
        {{ARRAY, SCALAR(PST_OBJECT)}, 2},
        {{ARRAY, DECIMAL(0)}, 2},
        {{ARRAY, DECIMAL(39)}, 2},
    };
    pst_nested *nested = NULL;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(pst_nested_create(bad[i].types, bad[i].n, &nested), PST_INVALID);
    CHECK_EQ(pst_nested_create(bad[0].types, 0, &nested), PST_INVALID);
    CHECK(nested == NULL);
    pst_nested_destroy(NULL);
}

static void test_levels_are_bounded(void) {
    pst_nested_type types[PST_NESTED_LEVELS + 2];
    uint8_t bytes[PST_NESTED_LEVELS + 4];
    pst_nested *nested = NULL;
    pst_nested_fault fault;
    for (int32_t i = 0; i < PST_NESTED_LEVELS + 1; i++)
        types[i] = (pst_nested_type)ARRAY;
    types[PST_NESTED_LEVELS + 1] = (pst_nested_type)SCALAR(PST_INT8);
    CHECK_EQ(pst_nested_create(types, PST_NESTED_LEVELS + 2, &nested), PST_INVALID);
    REQUIRE(pst_nested_create(types + 1, PST_NESTED_LEVELS + 1, &nested) == PST_OK);
    /* One element in one element, and on behind the last level: that is a number. */
    memset(bytes, 2, sizeof bytes);
    CHECK_EQ(pst_nested_check(nested, bytes, PST_NESTED_LEVELS + 1, NULL), PST_OK);
    CHECK_EQ(pst_nested_check(nested, bytes, PST_NESTED_LEVELS, &fault), PST_CORRUPT);
    CHECK(!strcmp(fault.what, "cut off"));
    CHECK_EQ(pst_nested_check(nested, bytes, sizeof bytes, &fault), PST_CORRUPT);
    CHECK(!strcmp(fault.what, "longer than their value"));
    CHECK_EQ(fault.at, PST_NESTED_LEVELS + 1);
    pst_nested_destroy(nested);
}

static void test_places(void) {
    int32_t bit, at;
    /* long, struct<byte, decimal>, boolean, short, float */
    model_types m = TREE(STRUCT(5), SCALAR(PST_INT64), STRUCT(2), SCALAR(PST_INT8), DECIMAL(9),
                         SCALAR(PST_BOOL), SCALAR(PST_INT16), SCALAR(PST_FLOAT32));
    static const int32_t places[] = {-1, 16, -1, 1, 24, 2, 4, 8};
    static const int32_t bits[] = {-1, 0, 1, 2, 3, 4, 5, 6};
    CHECK_EQ(pst_nested_width(m.nested), 40);
    for (int32_t i = 0; i < m.n; i++) {
        CHECK_EQ(pst_nested_place(m.nested, i, &bit, &at), PST_OK);
        CHECK_EQ(bit, bits[i]);
        CHECK_EQ(at, places[i]);
    }
    CHECK_EQ(pst_nested_place(m.nested, -1, &bit, &at), PST_INVALID);
    CHECK_EQ(pst_nested_place(m.nested, m.n, &bit, &at), PST_INVALID);
    pst_nested_destroy(m.nested);
    m = TREE(STRUCT(1), SCALAR(PST_STRING));
    CHECK_EQ(pst_nested_width(m.nested), 0);
    CHECK_EQ(pst_nested_place(m.nested, 1, &bit, &at), PST_INVALID);
    pst_nested_destroy(m.nested);
    /* 31 longs and their bits are 256 bytes, the most; 32 are too many. */
    pst_nested_type wide[33];
    for (int i = 1; i < 33; i++)
        wide[i] = (pst_nested_type)SCALAR(PST_INT64);
    for (uint32_t n = 31; n < 33; n++) {
        wide[0] = (pst_nested_type)STRUCT(n);
        REQUIRE(pst_nested_create(wide, (int32_t)n + 1, &m.nested) == PST_OK);
        CHECK_EQ(pst_nested_width(m.nested), n == 31 ? 256 : 0);
        pst_nested_destroy(m.nested);
    }
}

/* ---- one value ------------------------------------------------------------------------------- */

static void test_the_documented_struct_in_the_row(void) {
    model_types m = TREE(STRUCT(3), SCALAR(PST_TIMESTAMP), STRUCT(2), SCALAR(PST_INT16),
                         SCALAR(PST_BOOL), DECIMAL(9));
    uint8_t room[PST_MAX_FIXED];
    pst_nested_writer w;
    pst_nested_open row, place;
    pst_cell at = word(1000000), number = word(7), price = word(1250);
    memset(room, 0xFF, sizeof room);
    pst_nested_writer_open(&w, m.nested, room, sizeof room);
    CHECK_EQ(pst_nested_put_struct(&w, 0, NULL, 0, &row), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(&w, 1, &row, 0, &at), PST_OK);
    CHECK_EQ(pst_nested_put_struct(&w, 2, &row, 1, &place), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(&w, 3, &place, 0, &number), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(&w, 5, &row, 2, &price), PST_OK);
    check_written(&w, "\x17\0\7\0\0\0\0\0\x40\x42\x0f\0\0\0\0\0\xe2\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
                  32);
    CHECK(w.out.data == room);
    pst_nested_writer_close(&w);
    pst_nested_destroy(m.nested);
}

static void put_example(pst_nested_writer *w) {
    pst_nested_open row, tags, seen;
    pst_cell id = word(258), ant = text("ant"), a = text("a"), b = text("b"), two = word(2);
    uint64_t same;
    CHECK_EQ(pst_nested_put_struct(w, 0, NULL, 0, &row), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(w, 1, &row, 0, &id), PST_OK);
    CHECK_EQ(pst_nested_put_array(w, 2, &row, 1, 2, 1, &tags), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(w, 3, &tags, 0, &ant), PST_OK);
    CHECK_EQ(pst_nested_put_map(w, 4, &row, 2, 2, 1, &seen), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(w, 5, &seen, 0, &b), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(w, 5, &seen, 1, &a), PST_OK);
    CHECK_EQ(pst_nested_put_keys(w, 4, &seen, &same), PST_OK);
    CHECK_EQ(pst_nested_entry_at(w, &seen, 0), 1);
    CHECK_EQ(pst_nested_entry_at(w, &seen, 1), 0);
    CHECK_EQ(pst_nested_put_scalar(w, 6, &seen, 1, &two), PST_OK);
    pst_nested_end_map(w, &seen);
}

static void test_the_documented_value(void) {
    model_types m = TREE(STRUCT(3), SCALAR(PST_INT32), ARRAY, SCALAR(PST_STRING), MAP,
                         SCALAR(PST_STRING), SCALAR(PST_INT64));
    pst_nested_writer w;
    uint8_t room[64];
    for (size_t capacity = 0; capacity <= sizeof room; capacity += 8) {
        pst_nested_writer_open(&w, m.nested, capacity ? room : NULL, capacity);
        put_example(&w);
        check_written(&w, "\7\2\1\0\0\5\1\3ant\5\2\1a\1b\2\0\0\0\0\0\0\0", 25);
        pst_nested_writer_close(&w);
    }
    pst_nested_destroy(m.nested);
}

static void test_a_writer_refuses_what_does_not_fit(void) {
    model_types m = TREE(STRUCT(2), MAP, SCALAR(PST_INT8), ARRAY, SCALAR(PST_BOOL), DECIMAL(3));
    pst_nested_writer w;
    pst_nested_open row, map, other;
    pst_cell cell = word(1), large = word(1000), least = word(-1000);
    uint64_t same = 0;
    pst_nested_writer_open(&w, m.nested, NULL, 0);
    CHECK_EQ(pst_nested_put_scalar(&w, 5, NULL, 0, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_put_map(&w, 1, NULL, 0, 1, 0, &map), PST_INVALID);
    CHECK_EQ(pst_nested_put_struct(&w, 0, NULL, 0, &row), PST_OK);
    CHECK_EQ(pst_nested_put_struct(&w, 0, NULL, 0, &other), PST_INVALID);
    CHECK_EQ(pst_nested_put_struct(&w, 1, &row, 0, &other), PST_INVALID);
    CHECK_EQ(pst_nested_put_array(&w, 1, &row, 0, 0, 0, &other), PST_INVALID);
    CHECK_EQ(pst_nested_put_map(&w, 3, &row, 0, 0, 0, &other), PST_INVALID);
    CHECK_EQ(pst_nested_put_map(&w, 1, &row, 2, 0, 0, &other), PST_INVALID);
    CHECK_EQ(pst_nested_put_map(&w, 1, &row, 0, UINT64_MAX, 0, &other), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, -1, &row, 0, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, m.n, &row, 0, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, 1, &row, 0, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalars(&w, 3, &row, 0, 1, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, 5, &row, 1, &large), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, 5, &row, 1, &least), PST_INVALID);
    CHECK_EQ(pst_nested_put_map(&w, 1, &row, 0, 2, 0, &map), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(&w, 2, &map, 0, &cell), PST_OK);
    CHECK_EQ(pst_nested_put_keys(&w, 1, &map, &same), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, 2, &map, 2, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_put_scalar(&w, 2, &map, 1, &cell), PST_OK);
    CHECK_EQ(pst_nested_put_keys(&w, 1, &map, &same), PST_WRONG_TYPE);
    CHECK_EQ(same, 1);
    pst_nested_writer_close(&w);
    pst_nested_destroy(m.nested);
}

/* 10^20 lies between five and six times 2^64. */
static void test_digits_are_counted_in_both_words(void) {
    model_types m = TREE(ARRAY, DECIMAL(20));
    pst_nested_writer w;
    pst_nested_open array;
    pst_nested_writer_open(&w, m.nested, NULL, 0);
    CHECK_EQ(pst_nested_put_array(&w, 0, NULL, 0, 4, 0, &array), PST_OK);
    for (uint64_t high = 5; high < 7; high++) {
        pst_cell above = {.word = {0, high}}, below = {.word = {0, ~high + 1}};
        pst_status wanted = high == 5 ? PST_OK : PST_INVALID;
        CHECK_EQ(pst_nested_put_scalar(&w, 1, &array, 0, &above), wanted);
        CHECK_EQ(pst_nested_put_scalar(&w, 1, &array, 1, &below), wanted);
    }
    pst_nested_writer_close(&w);
    pst_nested_destroy(m.nested);
}

static void test_a_parser_refuses_other_kinds(void) {
    model_types m = TREE(STRUCT(1), ARRAY, SCALAR(PST_STRING));
    pst_nested_parser p;
    pst_cell cell;
    const uint8_t *bits;
    uint64_t n;
    CHECK_EQ(pst_nested_parser_open(&p, m.nested, "\1\2\1a", 4), PST_OK);
    CHECK_EQ(pst_nested_take_array(&p, 0, &n, &bits), PST_INVALID);
    CHECK_EQ(pst_nested_take_scalar(&p, 0, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_take_scalars(&p, 3, 1, &cell), PST_INVALID);
    CHECK_EQ(pst_nested_take_struct(&p, 1, &bits), PST_INVALID);
    CHECK_EQ(pst_nested_take_struct(&p, 0, &bits), PST_OK);
    CHECK_EQ(pst_nested_take_array(&p, 1, &n, &bits), PST_OK);
    CHECK(n == 1 && !bits);
    CHECK_EQ(pst_nested_parser_finish(&p), PST_CORRUPT);
    CHECK_EQ(pst_nested_take_scalar(&p, 2, &cell), PST_OK);
    CHECK(cell.bytes.size == 1 && cell.bytes.data[0] == 'a');
    CHECK_EQ(pst_nested_parser_finish(&p), PST_OK);
    pst_nested_destroy(m.nested);
}

/* ---- equal values ---------------------------------------------------------------------------- */

static size_t put_key(const model_types *m, uint64_t bits, uint8_t *to) {
    pst_nested_writer w;
    pst_nested_open map, array;
    pst_cell cell = {.word = {bits, 0}};
    uint64_t same;
    pst_nested_writer_open(&w, m->nested, NULL, 0);
    CHECK_EQ(pst_nested_put_map(&w, 0, NULL, 0, 1, 0, &map), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(&w, 1, &map, 0, &cell), PST_OK);
    CHECK_EQ(pst_nested_put_keys(&w, 0, &map, &same), PST_OK);
    CHECK_EQ(pst_nested_put_array(&w, 2, &map, 0, 1, 0, &array), PST_OK);
    CHECK_EQ(pst_nested_put_scalar(&w, 3, &array, 0, &cell), PST_OK);
    size_t size = w.out.size;
    memcpy(to, w.out.data, size);
    pst_nested_writer_close(&w);
    return size;
}

/* Every NaN is one, as key and elsewhere; 0.0 and -0.0 are one as a key alone. */
static void test_equal_numbers_have_equal_bytes(void) {
    static const uint64_t nan64[] = {UINT64_C(0x7FF8000000000000), UINT64_C(0xFFF8000000000001),
                                     UINT64_C(0x7FF0000000000001), UINT64_MAX};
    static const uint64_t nan32[] = {0x7FC00000u, 0xFFC00001u, 0x7F800001u, UINT32_MAX};
    uint8_t first[32], other[32];
    for (int wide = 0; wide < 2; wide++) {
        uint8_t type = wide ? PST_FLOAT64 : PST_FLOAT32;
        model_types m = TREE(MAP, SCALAR(type), ARRAY, SCALAR(type));
        size_t half = wide ? 8 : 4, size = put_key(&m, wide ? nan64[0] : nan32[0], first);
        CHECK_EQ(size, 1 + half + 1 + half);
        for (int i = 0; i < 4; i++) {
            CHECK_EQ(put_key(&m, wide ? nan64[i] : nan32[i], other), size);
            CHECK(memcmp(first, other, size) == 0);
        }
        put_key(&m, 0, first);
        put_key(&m, wide ? UINT64_C(1) << 63 : 0x80000000u, other);
        CHECK(memcmp(first, other, 1 + half + 1) == 0);
        CHECK_EQ(other[size - 1], 0x80);
        pst_nested_destroy(m.nested);
    }
}

/* Keys of each type in their order, given in all others. */
static void test_keys_ascend(void) {
    static const char *const texts[] = {"",
                                        "a",
                                        "aa",
                                        "ab",
                                        "b",
                                        "sixteen bytes...",
                                        "sixteen bytes...a",
                                        "sixteen bytes...b",
                                        "\x7f",
                                        "\xc3\xa9"};
    static const double doubles[] = {-1e300, -1.5, -1e-300, 0.0, 1e-300, 0.25, 2.0, 1e300};
    static const int64_t longs[] = {-300, -129, -128, -1, 0, 1, 127, 128, 300};
    uint64_t rng = 5;
    for (int round = 0; round < 200; round++) {
        uint8_t type = round % 3 == 0 ? PST_STRING : round % 3 == 1 ? PST_FLOAT64 : PST_DECIMAL;
        uint64_t n = round % 3 == 0 ? 10 : round % 3 == 1 ? 8 : 9, order[16], same;
        model_types m =
            TREE(MAP, {PST_NESTED_SCALAR, type, type == PST_DECIMAL ? 5 : 0, 0}, SCALAR(PST_INT8));
        pst_nested_writer w;
        pst_nested_open map;
        pst_nested_writer_open(&w, m.nested, NULL, 0);
        CHECK_EQ(pst_nested_put_map(&w, 0, NULL, 0, n, 0, &map), PST_OK);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t k = check_random(&rng) % (i + 1);
            order[i] = order[k];
            order[k] = i;
        }
        for (uint64_t i = 0; i < n; i++) {
            uint64_t k = order[i];
            pst_cell cell = type == PST_STRING ? text(texts[k]) : word(k < 9 ? longs[k] : 0);
            if (type == PST_FLOAT64)
                memcpy(cell.word, &doubles[k], 8);
            CHECK_EQ(pst_nested_put_scalar(&w, 1, &map, i, &cell), PST_OK);
        }
        CHECK_EQ(pst_nested_put_keys(&w, 0, &map, &same), PST_OK);
        for (uint64_t i = 0; i < n; i++)
            CHECK_EQ(order[pst_nested_entry_at(&w, &map, i)], i);
        pst_nested_writer_close(&w);
        pst_nested_destroy(m.nested);
    }
}

/* More keys than are sorted by insertion, and one of them twice. */
static void test_many_keys(void) {
    enum { MANY = 1000 };
    uint64_t rng = 6, order[MANY], same = 0;
    for (int twice = 0; twice < 2; twice++) {
        model_types m = TREE(MAP, SCALAR(PST_INT64), SCALAR(PST_INT8));
        pst_nested_writer w;
        pst_nested_open map;
        pst_nested_writer_open(&w, m.nested, NULL, 0);
        CHECK_EQ(pst_nested_put_map(&w, 0, NULL, 0, MANY, 0, &map), PST_OK);
        for (uint64_t i = 0; i < MANY; i++) {
            uint64_t k = check_random(&rng) % (i + 1);
            order[i] = order[k];
            order[k] = i;
        }
        for (uint64_t i = 0; i < MANY; i++) {
            pst_cell cell = word((int64_t)order[i == 700 && twice ? 600 : i] * 77 - 40000);
            CHECK_EQ(pst_nested_put_scalar(&w, 1, &map, i, &cell), PST_OK);
        }
        CHECK_EQ(pst_nested_put_keys(&w, 0, &map, &same), twice ? PST_WRONG_TYPE : PST_OK);
        CHECK_EQ(same, twice ? 700 : 0);
        for (uint64_t i = 0; i < MANY && !twice; i++) {
            pst_cell cell = word((int64_t)(i % 100));
            CHECK_EQ(order[pst_nested_entry_at(&w, &map, i)], i);
            CHECK_EQ(pst_nested_put_scalar(&w, 2, &map, i, &cell), PST_OK);
        }
        if (!twice)
            CHECK(model_any(&m, w.out.data, w.out.size, &rng));
        pst_nested_writer_close(&w);
        pst_nested_destroy(m.nested);
    }
}

/* ---- any type, any value --------------------------------------------------------------------- */

/* One row of a column as an array of its own. */
static void each_row(const model_types *m, uint64_t *rng,
                     void (*f)(const model_types *m, const uint8_t *bytes, size_t size,
                               uint64_t *rng)) {
    model_columns c;
    pst_nested_rows rows;
    pst_nested_fault fault;
    uint32_t width = pst_nested_width(m->nested);
    model_fill(m, &c, 0, MODEL_ROWS, 0, rng);
    pst_status s = pst_nested_encode(m->nested, c.arrays, MODEL_ROWS, &rows, &fault);
    /* Random maps may have a key twice. */
    CHECK(s == PST_OK || (s == PST_WRONG_TYPE && strstr(fault.what, "twice")));
    for (int64_t row = 0; row < MODEL_ROWS && !s; row++) {
        if (width)
            f(m, rows.data + row * width, width, rng);
        else if (rows.offsets[row + 1] > rows.offsets[row])
            f(m, rows.data + rows.offsets[row], (size_t)(rows.offsets[row + 1] - rows.offsets[row]),
              rng);
    }
    if (!s) {
        free(rows.data);
        free(rows.offsets);
    }
    model_free(m, &c);
}

static void check_sound(const model_types *m, const uint8_t *bytes, size_t size, uint64_t *rng) {
    CHECK(model_any(m, bytes, size, rng));
}

static void check_damaged(const model_types *m, const uint8_t *bytes, size_t size, uint64_t *rng) {
    uint8_t *copy = model_block(bytes, size);
    for (size_t cut = 0; cut < size; cut++)
        model_any(m, copy, cut, rng);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        model_any(m, copy, size, rng);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(copy);
}

static void test_any_value_comes_back(void) {
    for (uint64_t round = 0; round < 2000; round++) {
        uint64_t rng = round;
        model_types m;
        model_random(&m, &rng);
        each_row(&m, &rng, check_sound);
        pst_nested_destroy(m.nested);
    }
}

static void test_every_cut_and_every_flipped_bit(void) {
    for (uint64_t round = 0; round < 60; round++) {
        uint64_t rng = 77000 + round;
        model_types m;
        model_random(&m, &rng);
        each_row(&m, &rng, check_damaged);
        pst_nested_destroy(m.nested);
    }
}

/* A count that the bytes cannot hold is refused before it costs memory: with all that is left of
 * the address range it would. */
static void test_lengths_that_lie(void) {
    static const char *const lies[] = {"\xfe\xff\xff\xff\x0f", "\xff\xff\xff\xff\x0f",
                                       "\xfe\xff\xff\xff\xff\x01",
                                       "\xff\xff\xff\xff\xff\xff\xff\x01"};
    model_types trees[] = {TREE(ARRAY, SCALAR(PST_INT64)), TREE(ARRAY, SCALAR(PST_STRING)),
                           TREE(MAP, SCALAR(PST_INT64), SCALAR(PST_INT64)),
                           TREE(STRUCT(1), SCALAR(PST_BINARY))};
    uint8_t bytes[16];
    uint64_t rng = 3;
    /* One number, and its count in two bytes. */
    CHECK(model_any(&trees[0], (const uint8_t *)"\2\0\0\0\0\0\0\0\0", 9, &rng));
    CHECK(!model_any(&trees[0], (const uint8_t *)"\x82\0\0\0\0\0\0\0\0\0", 10, &rng));
    for (size_t t = 0; t < 4; t++) {
        for (size_t i = 0; i < 4; i++)
            for (size_t more = 0; more < 4; more++) {
                size_t at = t == 3, n = strlen(lies[i]);
                memset(bytes, 1, sizeof bytes);
                memcpy(bytes + at, lies[i], n);
                CHECK(!model_any(&trees[t], bytes, at + n + more, &rng));
            }
        pst_nested_destroy(trees[t].nested);
    }
}

int main(void) {
    test_trees_that_are_refused();
    test_levels_are_bounded();
    test_places();
    test_the_documented_struct_in_the_row();
    test_the_documented_value();
    test_a_writer_refuses_what_does_not_fit();
    test_digits_are_counted_in_both_words();
    test_a_parser_refuses_other_kinds();
    test_equal_numbers_have_equal_bytes();
    test_keys_ascend();
    test_many_keys();
    test_any_value_comes_back();
    test_every_cut_and_every_flipped_bit();
    test_lengths_that_lie();
    return check_report();
}
