/* Nested values that nobody wrote: bytes of values changed at random, bytes of the corpus below,
 * and columns whose offsets, lengths and bytes lie. Whatever comes, it is a status, or a value
 * whose bytes are these and no others; and all readers agree on which. Deterministic; most of what
 * it finds only shows in an instrumented build.
 *
 *   fuzz_nested [rounds] [seed]
 */
#include "nested_model.h"

enum { ROUNDS = 20000, WORLD_ROUNDS = 40, MOST_BYTES = 2048 };

static struct {
    uint64_t sound;
    uint64_t refused;
    uint64_t columns;
    uint64_t lies;
} tally;

/* ---- the corpus: a tree of types, and bytes that once were of interest ----------------------- */

typedef struct specimen {
    pst_nested_type types[8];
    int32_t n;
    const char *bytes;
    uint8_t size;
    uint8_t is_value;
} specimen;

static const specimen corpus[] = {
    /* the documented examples */
    {{STRUCT(3),
      SCALAR(PST_TIMESTAMP),
      STRUCT(2),
      SCALAR(PST_INT16),
      SCALAR(PST_BOOL),
      {PST_NESTED_SCALAR, PST_DECIMAL, 9, 0}},
     6,
     "\x17\0\7\0\0\0\0\0\x40\x42\x0f\0\0\0\0\0\xe2\4\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
     32,
     1},
    {{STRUCT(3), SCALAR(PST_INT32), ARRAY, SCALAR(PST_STRING), MAP, SCALAR(PST_STRING),
      SCALAR(PST_INT64)},
     7,
     "\7\2\1\0\0\5\1\3ant\5\2\1a\1b\2\0\0\0\0\0\0\0",
     25,
     1},
    /* counts and lengths: cut off, too large, too long, all bits set, a bit of no value */
    {{ARRAY, SCALAR(PST_INT32)}, 2, "\xff\xff\xff\xff\xff\xff\xff", 7, 0},
    {{ARRAY, SCALAR(PST_INT32)}, 2, "\xfe\xff\xff\xff\x0f", 5, 0},
    {{ARRAY, SCALAR(PST_INT32)}, 2, "\x80\0", 2, 0},
    {{ARRAY, SCALAR(PST_INT32)}, 2, "\3\1\0\0\0\0", 6, 0},
    {{ARRAY, SCALAR(PST_INT32)}, 2, "\3\2", 2, 0},
    {{ARRAY, SCALAR(PST_INT32)}, 2, "\1", 1, 0},
    {{ARRAY, SCALAR(PST_FLOAT64)}, 2, "\4\0\0\0\0\0\0\xf8\x7f\0\0", 11, 0},
    {{ARRAY, ARRAY, ARRAY, SCALAR(PST_BOOL)}, 4, "\2\2\2\1", 4, 1},
    {{ARRAY, SCALAR(PST_BOOL)}, 2, "\2\2", 2, 0},
    {{STRUCT(1), SCALAR(PST_STRING)}, 2, "\1\2\xc0\x80", 4, 0},
    {{STRUCT(1), SCALAR(PST_STRING)}, 2, "\1\3\xed\xa0\x80", 5, 0},
    {{STRUCT(1), SCALAR(PST_BINARY)}, 2, "\1\5ab", 4, 0},
    /* keys: the same, falling, equal in their first sixteen bytes, a zero and a NaN not
     * canonical */
    {{MAP, SCALAR(PST_INT8), SCALAR(PST_INT8)}, 3, "\4\1\1\0\0", 5, 0},
    {{MAP, SCALAR(PST_INT8), SCALAR(PST_INT8)}, 3, "\4\2\1\0\0", 5, 0},
    {{MAP, SCALAR(PST_INT8), SCALAR(PST_INT8)}, 3, "\4\xff\1\0\0", 5, 1},
    {{MAP, SCALAR(PST_BINARY), SCALAR(PST_INT8)},
     3,
     "\5\1\x11sixteen bytes.. b\x11sixteen bytes.. a\0",
     39,
     0},
    {{MAP, SCALAR(PST_BINARY), SCALAR(PST_INT8)},
     3,
     "\5\1\x11sixteen bytes.. a\x11sixteen bytes.. b\0",
     39,
     1},
    {{MAP, SCALAR(PST_BINARY), SCALAR(PST_INT8)}, 3, "\4\1\0\2\0\0\0\0", 8, 1},
    {{MAP, SCALAR(PST_FLOAT64), SCALAR(PST_INT8)}, 3, "\2\0\0\0\0\0\0\0\x80\0", 10, 0},
    {{MAP, SCALAR(PST_FLOAT32), SCALAR(PST_INT8)}, 3, "\2\1\0\xc0\x7f\0", 6, 0},
    /* structs in the row: a field of a null struct, a null that is set, padding that is set */
    {{STRUCT(1), STRUCT(1), SCALAR(PST_INT8)}, 3, "\2\1\0\0\0\0\0\0", 8, 0},
    {{STRUCT(1), SCALAR(PST_INT32)}, 2, "\0\0\0\0\1\0\0\0", 8, 0},
    {{STRUCT(1), SCALAR(PST_INT32)}, 2, "\1\1\0\0\0\0\0\0", 8, 0},
    {{STRUCT(1), {PST_NESTED_SCALAR, PST_DECIMAL, 1, 0}},
     2,
     "\1\0\0\0\0\0\0\0\x0a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
     24,
     0},
};

enum { SPECIMENS = sizeof corpus / sizeof *corpus };

/* ---- changed bytes --------------------------------------------------------------------------- */

static size_t change(uint8_t *data, size_t size, uint64_t *rng) {
    static const uint8_t special[] = {0,    1,    2,    3,    4,    0x7f, 0x80,
                                      0x81, 0xc0, 0xed, 0xf0, 0xfe, 0xff};
    size_t at = (size_t)model_below(rng, size + 1), n = (size_t)model_below(rng, 9);
    switch (model_below(rng, 6)) {
    case 0: /* a bit */
        if (at < size)
            data[at] ^= (uint8_t)(1u << model_below(rng, 8));
        break;
    case 1: /* a byte */
        if (at < size)
            data[at] = special[model_below(rng, sizeof special)];
        break;
    case 2: /* the end is cut off */
        size = at;
        break;
    case 3: /* bytes come in */
        if (size + n <= MOST_BYTES) {
            memmove(data + at + n, data + at, size - at);
            for (size_t i = 0; i < n; i++)
                data[at + i] = (uint8_t)check_random(rng);
            size += n;
        }
        break;
    case 4: /* bytes go */
        n = n < size - at ? n : size - at;
        memmove(data + at, data + at + n, size - at - n);
        size -= n;
        break;
    default: /* bytes come again */
        n = n < size - at ? n : size - at;
        if (size + n <= MOST_BYTES) {
            memmove(data + at + n, data + at, size - at);
            size += n;
        }
        break;
    }
    return size;
}

static void fuzz_bytes(const model_types *m, const uint8_t *bytes, size_t size, uint64_t *rng) {
    uint8_t data[MOST_BYTES];
    if (size > sizeof data)
        return;
    if (size)
        memcpy(data, bytes, size);
    for (uint64_t n = 1 + model_below(rng, 3); n > 0; n--)
        size = change(data, size, rng);
    if (model_any(m, data, size, rng))
        tally.sound++;
    else
        tally.refused++;
}

/* ---- lying columns --------------------------------------------------------------------------- */

/* Changes an offset, a length or a byte, and never what says how large a buffer is, but
 * downwards. */
static void lie(const model_types *m, model_columns *c, uint64_t *rng) {
    int32_t i = (int32_t)model_below(rng, (uint64_t)m->n);
    pst_nested_array *a = &c->arrays[i];
    int64_t end = a->offset + a->length;
    switch (model_below(rng, 5)) {
    case 0:
        if (a->offsets) {
            int32_t *at = (int32_t *)(uintptr_t)a->offsets + model_below(rng, (uint64_t)end + 1);
            *at = model_below(rng, 2) ? (int32_t)check_random(rng) : *at + 1;
        }
        break;
    case 1:
        a->length = (int64_t)model_below(rng, (uint64_t)a->length + 1);
        break;
    case 2:
        a->first = (int64_t)model_below(rng, 4) - 1;
        break;
    case 3:
        if (a->values_bytes)
            a->values_bytes = (int64_t)model_below(rng, (uint64_t)a->values_bytes);
        break;
    default:
        if (a->values_bytes)
            ((uint8_t *)(uintptr_t)a->values)[model_below(rng, (uint64_t)a->values_bytes)] =
                (uint8_t)check_random(rng);
        break;
    }
}

static void fuzz_column(const model_types *m, uint64_t *rng, int lies) {
    model_columns c;
    pst_nested_rows rows;
    pst_nested_fault fault = {0};
    uint32_t width = pst_nested_width(m->nested);
    int64_t n = 1 + (int64_t)model_below(rng, MODEL_ROWS);
    CHECK_EQ(model_fill(m, &c, 0, n, 0, rng), m->n);
    for (int i = 0; i < lies; i++)
        lie(m, &c, rng);
    pst_status s = pst_nested_encode(m->nested, c.arrays, n, &rows, &fault);
    CHECK(s == PST_OK || s == PST_WRONG_TYPE || (lies && s == PST_INVALID));
    CHECK(s != PST_WRONG_TYPE || (fault.what && fault.row >= 0 && fault.row < n));
    tally.columns += s == PST_OK;
    tally.lies += s != PST_OK;
    for (int64_t row = 0; row < n && !s; row++) {
        const uint8_t *bytes = rows.data + (width ? row * width : rows.offsets[row]);
        size_t size = width ? width : (size_t)(rows.offsets[row + 1] - rows.offsets[row]);
        const pst_nested_array *root = &c.arrays[0];
        int64_t at = root->offset + row;
        int there = !root->validity || (root->validity[at / 8] >> at % 8 & 1);
        if (!there && !width) {
            CHECK_EQ(size, 0);
            continue;
        }
        CHECK(model_any(m, bytes, size, rng));
        for (int i = 0; i < WORLD_ROUNDS; i++)
            fuzz_bytes(m, bytes, size, rng);
    }
    if (!s) {
        free(rows.data);
        free(rows.offsets);
    }
    model_free(m, &c);
}

int main(int argc, char **argv) {
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : ROUNDS / WORLD_ROUNDS;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static model_types own[SPECIMENS];
    for (int i = 0; i < SPECIMENS; i++) {
        uint64_t rng = (uint64_t)i;
        own[i].n = corpus[i].n;
        memcpy(own[i].types, corpus[i].types, sizeof corpus[i].types);
        REQUIRE(pst_nested_create(own[i].types, own[i].n, &own[i].nested) == PST_OK);
        if (!CHECK_EQ(model_any(&own[i], (const uint8_t *)corpus[i].bytes, corpus[i].size, &rng),
                      corpus[i].is_value))
            fprintf(stderr, "    specimen %d\n", i);
    }
    for (uint64_t round = 0; round < rounds && check_failed == 0; round++) {
        uint64_t rng = seed * UINT64_C(1000000007) + round;
        model_types m;
        const specimen *known = &corpus[round % SPECIMENS];
        for (int i = 0; i < WORLD_ROUNDS; i++)
            fuzz_bytes(&own[round % SPECIMENS], (const uint8_t *)known->bytes, known->size, &rng);
        model_random(&m, &rng);
        fuzz_column(&m, &rng, 0);
        fuzz_column(&m, &rng, 1 + (int)model_below(&rng, 2));
        pst_nested_destroy(m.nested);
        if (check_failed)
            fprintf(stderr, "    round %" PRIu64 " of seed %" PRIu64 "\n", round, seed);
    }
    for (int i = 0; i < SPECIMENS; i++)
        pst_nested_destroy(own[i].nested);
    if (argc == 1)
        CHECK(tally.sound && tally.refused && tally.columns && tally.lies);
    else
        fprintf(stderr,
                "    %" PRIu64 " sound, %" PRIu64 " refused, %" PRIu64 " columns, %" PRIu64
                " refused\n",
                tally.sound, tally.refused, tally.columns, tally.lies);
    return check_report();
}
