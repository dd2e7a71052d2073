/* nested_model.h: random trees of types, random columns of them, and all that must hold of any
 * bytes: what the test and the fuzzer of nested values share.
 *
 * Thread safety: none.
 */
#ifndef PST_NESTED_MODEL_H
#define PST_NESTED_MODEL_H

#include "check.h"
#include "pystate.h"

#include <string.h>

enum { MODEL_TYPES = 24, MODEL_ROWS = 5 };

#define SCALAR(TYPE) {PST_NESTED_SCALAR, TYPE, 0, 0}
#define DECIMAL(PRECISION) {PST_NESTED_SCALAR, PST_DECIMAL, PRECISION, 0}
#define STRUCT(N) {PST_NESTED_STRUCT, 0, 0, N}
#define ARRAY {PST_NESTED_ARRAY, 0, 0, 1}
#define MAP {PST_NESTED_MAP, 0, 0, 2}

typedef struct model_types {
    pst_nested_type types[MODEL_TYPES];
    int32_t n;
    pst_nested *nested;
} model_types;

static inline uint64_t model_below(uint64_t *rng, uint64_t n) {
    return check_random(rng) % n;
}

/* ---- types ----------------------------------------------------------------------------------- */

static inline model_types model_tree_of(const pst_nested_type *types, int32_t n) {
    model_types m = {.n = n};
    memcpy(m.types, types, (size_t)n * sizeof *types);
    REQUIRE(pst_nested_create(types, n, &m.nested) == PST_OK);
    return m;
}

#define TREE(...)                                                                                  \
    model_tree_of(                                                                                 \
        (const pst_nested_type[]){__VA_ARGS__},                                                    \
        (int32_t)(sizeof((const pst_nested_type[]){__VA_ARGS__}) / sizeof(pst_nested_type)))

static inline void model_scalar(model_types *m, uint64_t *rng, int fixed) {
    uint8_t type = (uint8_t)(PST_BOOL + model_below(rng, fixed ? 10 : 12));
    uint8_t precision = type == PST_DECIMAL ? (uint8_t)(1 + model_below(rng, 38)) : 0;
    m->types[m->n++] = (pst_nested_type){PST_NESTED_SCALAR, type, precision, 0};
}

/* At least `room` types more can be added. */
static inline void model_grow(model_types *m, uint64_t *rng, int depth, int room, int fixed) {
    uint64_t kind = depth > 3 || room < 3 ? 0 : model_below(rng, fixed ? 2 : 5);
    if (depth > 0 && kind == 0) {
        model_scalar(m, rng, fixed);
        return;
    }
    pst_nested_type *own = &m->types[m->n++];
    if (kind <= 1 || fixed) {
        uint32_t n = 1 + (uint32_t)model_below(rng, room < 6 ? 1 : 4);
        *own = (pst_nested_type){PST_NESTED_STRUCT, 0, 0, n};
        for (uint32_t i = 0; i < n; i++)
            model_grow(m, rng, depth + 1, (room - 1) / (int)n, fixed);
    } else if (kind == 2) {
        *own = (pst_nested_type){PST_NESTED_MAP, 0, 0, 2};
        model_scalar(m, rng, 0);
        model_grow(m, rng, depth + 1, room - 2, 0);
    } else {
        *own = (pst_nested_type){PST_NESTED_ARRAY, 0, 0, 1};
        model_grow(m, rng, depth + 1, room - 1, 0);
    }
}

static inline void model_random(model_types *m, uint64_t *rng) {
    m->n = 0;
    model_grow(m, rng, 0, MODEL_TYPES, model_below(rng, 4) == 0);
    REQUIRE(pst_nested_create(m->types, m->n, &m->nested) == PST_OK);
}

/* The number after type i and all below it. */
static inline int32_t model_after(const pst_nested_type *types, int32_t i) {
    uint32_t n = types[i].n_children;
    i++;
    while (n-- > 0)
        i = model_after(types, i);
    return i;
}

/* ---- columns --------------------------------------------------------------------------------- */

/* Memory of exactly this size, so that an instrumented build sees what is read behind its end. */
static inline void *model_block(const void *data, size_t size) {
    uint8_t *block = malloc(size ? size : 1);
    REQUIRE(block);
    if (size && data)
        memcpy(block, data, size);
    else
        memset(block, 0, size);
    return block;
}

/* Owns its buffers. */
typedef struct model_columns {
    pst_nested_array arrays[MODEL_TYPES];
} model_columns;

static inline size_t model_width(uint8_t type) {
    static const uint8_t widths[] = {0, 1, 1, 2, 4, 8, 4, 8, 4, 8, 16};
    return type <= PST_DECIMAL ? widths[type] : 0;
}

static const char *const model_texts[] = {"",
                                          "a",
                                          "ab",
                                          "a\xc3\xa9",
                                          "\xe2\x82\xac",
                                          "\xf0\x9f\x98\x80",
                                          "twelve bytes",
                                          "twelve bytez",
                                          "a text of more than sixteen bytes, a",
                                          "a text of more than sixteen bytes, b"};

/* One scalar at `to`: numbers that are special more often than not. */
static inline void model_number(const pst_nested_type *type, uint64_t *rng, uint8_t *to) {
    static const uint64_t f64[] = {0,
                                   UINT64_C(0x8000000000000000),
                                   UINT64_C(0x3FF0000000000000),
                                   UINT64_C(0x7FF0000000000000),
                                   UINT64_C(0xFFF8000000000001),
                                   UINT64_C(0x7FF0000000000001)};
    static const uint32_t f32[] = {0, 0x80000000u, 0x3F800000u, 0x7F800000u, 0xFFC00001u};
    uint64_t word[2] = {check_random(rng), 0};
    if (model_below(rng, 2))
        word[0] %= 5;
    if (type->type == PST_FLOAT64 && model_below(rng, 2))
        word[0] = f64[model_below(rng, 6)];
    if (type->type == PST_FLOAT32 && model_below(rng, 2))
        word[0] = f32[model_below(rng, 5)];
    if (type->type == PST_DECIMAL) {
        uint64_t most = 1;
        for (int i = 0; i < type->precision && i < 19; i++)
            most *= 10;
        word[0] %= most;
        if (model_below(rng, 2)) {
            word[0] = ~word[0] + 1;
            word[1] = word[0] ? UINT64_MAX : 0;
        }
    }
    memcpy(to, word, model_width(type->type));
}

static inline void model_values(const pst_nested_type *type, uint64_t *rng, pst_nested_array *a) {
    int64_t end = a->offset + a->length;
    size_t width = model_width(type->type), size = 0;
    if (type->type == PST_BOOL) {
        uint8_t *bits = model_block(NULL, (size_t)(end + 7) / 8);
        for (int64_t i = 0; i < (end + 7) / 8; i++)
            bits[i] = (uint8_t)check_random(rng);
        a->values = bits;
        a->values_bytes = (end + 7) / 8;
    } else if (width) {
        uint8_t *values = model_block(NULL, (size_t)end * width);
        for (int64_t i = 0; i < end; i++)
            model_number(type, rng, values + (size_t)i * width);
        a->values = values;
        a->values_bytes = end * (int64_t)width;
    } else {
        static uint8_t bytes[1 << 16];
        int32_t *offsets = model_block(NULL, (size_t)(end + 1) * 4);
        for (int64_t i = 0; i < end; i++) {
            const char *text = model_texts[model_below(rng, 10)];
            size_t n = strlen(text);
            REQUIRE(size + n < sizeof bytes);
            memcpy(bytes + size, text, n);
            size += n;
            offsets[i + 1] = (int32_t)size;
        }
        a->offsets = offsets;
        a->values = model_block(bytes, size);
        a->values_bytes = (int64_t)size;
    }
}

/* Fills the column of type i, `length` rows, and those below it; returns the next type. A key is
 * never null. */
static inline int32_t model_fill(const model_types *m, model_columns *c, int32_t i, int64_t length,
                                 int is_key, uint64_t *rng) {
    const pst_nested_type *type = &m->types[i];
    pst_nested_array *a = &c->arrays[i];
    int64_t end;
    *a = (pst_nested_array){.length = length, .offset = (int64_t)model_below(rng, 10)};
    end = a->offset + length;
    if (!is_key && model_below(rng, 2)) {
        uint8_t *validity = model_block(NULL, (size_t)(end + 7) / 8);
        for (int64_t k = 0; k < (end + 7) / 8; k++)
            validity[k] = (uint8_t)(check_random(rng) | check_random(rng));
        a->validity = validity;
    }
    int32_t child = i + 1;
    if (type->kind == PST_NESTED_SCALAR) {
        model_values(type, rng, a);
    } else if (type->kind == PST_NESTED_STRUCT) {
        for (uint32_t k = 0; k < type->n_children; k++)
            child = model_fill(m, c, child, length, 0, rng);
    } else {
        int32_t *offsets = model_block(NULL, (size_t)(end + 1) * 4);
        int32_t at = (int32_t)model_below(rng, 3);
        for (int64_t k = 0; k <= end; k++) {
            offsets[k] = at;
            at += (int32_t)model_below(rng, 4);
        }
        a->offsets = offsets;
        a->first = offsets[a->offset];
        length = offsets[end] - a->first;
        if (type->kind == PST_NESTED_MAP)
            child = model_fill(m, c, child, length, 1, rng);
        child = model_fill(m, c, child, length, 0, rng);
    }
    return child;
}

static inline void model_free(const model_types *m, model_columns *c) {
    for (int32_t i = 0; i < m->n; i++) {
        free((void *)(uintptr_t)c->arrays[i].validity);
        free((void *)(uintptr_t)c->arrays[i].values);
        free((void *)(uintptr_t)c->arrays[i].offsets);
    }
}

/* ---- a value, part by part ------------------------------------------------------------------- */

typedef struct model_copy {
    const model_types *m;
    pst_nested_parser p;
    pst_nested_writer w;
    uint64_t *rng;
} model_copy;

static inline pst_status model_copy_value(model_copy *c, int32_t i, const pst_nested_open *in,
                                          uint64_t at);

static inline uint64_t model_nulls(const uint8_t *bits, uint64_t n) {
    uint64_t nulls = 0;
    for (uint64_t i = 0; bits && i < n; i++)
        nulls += !(bits[i / 8] >> i % 8 & 1);
    return nulls;
}

/* Puts a map's keys in any order, and has them sorted again. */
static inline pst_status model_copy_keys(model_copy *c, int32_t i, const pst_nested_open *open) {
    pst_cell *cells = model_block(NULL, open->n * sizeof *cells);
    uint64_t *order = model_block(NULL, open->n * sizeof *order), same;
    pst_status s = PST_OK;
    for (uint64_t k = 0; k < open->n && !s; k++) {
        uint64_t other = model_below(c->rng, k + 1);
        order[k] = order[other];
        order[other] = k;
        s = pst_nested_take_scalar(&c->p, i + 1, &cells[k]);
    }
    for (uint64_t k = 0; k < open->n && !s; k++)
        s = pst_nested_put_scalar(&c->w, i + 1, open, k, &cells[order[k]]);
    if (!s)
        s = pst_nested_put_keys(&c->w, i, open, &same);
    for (uint64_t k = 0; k < open->n && !s; k++)
        CHECK_EQ(order[pst_nested_entry_at(&c->w, open, k)], k);
    free(cells);
    free(order);
    return s;
}

static inline pst_status model_copy_children(model_copy *c, int32_t child,
                                             const pst_nested_open *open, const uint8_t *bits,
                                             uint64_t n, int is_struct) {
    pst_status s = PST_OK;
    for (uint64_t k = 0; k < n && !s; k++) {
        if (pst_nested_is_valid(&c->p, child, bits, k))
            s = model_copy_value(c, child, open, k);
        if (is_struct)
            child = model_after(c->m->types, child);
    }
    return s;
}

/* n scalars none of which is null, a few at a time. */
static inline pst_status model_copy_scalars(model_copy *c, int32_t i, const pst_nested_open *open,
                                            uint64_t n) {
    pst_cell cells[3];
    pst_status s = PST_OK;
    for (uint64_t k = 0; k < n && !s;) {
        uint64_t some = 1 + model_below(c->rng, 3);
        some = some < n - k ? some : n - k;
        s = pst_nested_take_scalars(&c->p, i, some, cells);
        if (!s)
            s = pst_nested_put_scalars(&c->w, i, open, k, some, cells);
        k += some;
    }
    return s;
}

static inline pst_status model_copy_value(model_copy *c, int32_t i, const pst_nested_open *in,
                                          uint64_t at) {
    const pst_nested_type *type = &c->m->types[i];
    const uint8_t *bits = NULL;
    pst_nested_open open;
    pst_cell cell;
    uint64_t n = type->n_children;
    pst_status s;
    if (type->kind == PST_NESTED_SCALAR) {
        s = pst_nested_take_scalar(&c->p, i, &cell);
        return s ? s : pst_nested_put_scalar(&c->w, i, in, at, &cell);
    }
    if (type->kind == PST_NESTED_STRUCT) {
        s = pst_nested_take_struct(&c->p, i, &bits);
        if (!s)
            s = pst_nested_put_struct(&c->w, i, in, at, &open);
        return s ? s : model_copy_children(c, i + 1, &open, bits, n, 1);
    }
    s = pst_nested_take_array(&c->p, i, &n, &bits);
    if (s)
        return s;
    int nulls = model_nulls(bits, n) > 0;
    if (type->kind == PST_NESTED_ARRAY) {
        s = pst_nested_put_array(&c->w, i, in, at, n, nulls, &open);
        if (!s && !nulls && c->m->types[i + 1].kind == PST_NESTED_SCALAR)
            return model_copy_scalars(c, i + 1, &open, n);
        return s ? s : model_copy_children(c, i + 1, &open, bits, n, 0);
    }
    s = pst_nested_put_map(&c->w, i, in, at, n, nulls, &open);
    if (!s)
        s = model_copy_keys(c, i, &open);
    if (!s)
        s = model_copy_children(c, i + 2, &open, bits, n, 0);
    pst_nested_end_map(&c->w, &open);
    return s;
}

/* Reads a value and writes it again; where that works, the bytes must be the same. */
static inline pst_status model_rewrite(const model_types *m, const uint8_t *data, size_t size,
                                       uint64_t *rng, pst_nested_fault *fault) {
    uint8_t room[24];
    model_copy c = {.m = m, .rng = rng};
    pst_nested_writer_open(&c.w, m->nested, room, model_below(rng, sizeof room));
    pst_status s = pst_nested_parser_open(&c.p, m->nested, data, size);
    if (!s)
        s = model_copy_value(&c, 0, NULL, 0);
    if (!s)
        s = pst_nested_parser_finish(&c.p);
    if (!s && CHECK_EQ(c.w.out.size, size))
        CHECK(size == 0 || memcmp(c.w.out.data, data, size) == 0);
    if (s == PST_CORRUPT)
        pst_nested_parser_fault(&c.p, fault);
    pst_nested_writer_close(&c.w);
    return s;
}

/* ---- a column -------------------------------------------------------------------------------- */

static inline void model_drop(const model_types *m, pst_nested_column *columns) {
    for (int32_t i = 0; i < m->n; i++) {
        free(columns[i].validity);
        free(columns[i].values);
        free(columns[i].offsets);
    }
}

/* Decoded columns as arrays; they keep their buffers. Each has what its length says. */
static inline void model_as_arrays(const model_types *m, const pst_nested_column *columns,
                                   pst_nested_array *arrays) {
    for (int32_t i = 0; i < m->n; i++) {
        const pst_nested_column *c = &columns[i];
        arrays[i] = (pst_nested_array){.length = c->length,
                                       .validity = c->validity,
                                       .values = c->values,
                                       .values_bytes = (int64_t)c->values_bytes,
                                       .offsets = c->offsets};
        CHECK((c->nulls != 0) == (c->validity != NULL));
        CHECK_EQ(model_nulls(c->validity, (uint64_t)c->length), c->nulls);
        if (c->offsets)
            CHECK_EQ(c->offsets[0], 0);
    }
}

/* A column of one row, read and written again. */
static inline pst_status model_recode(const model_types *m, const uint8_t *data, size_t size,
                                      pst_nested_fault *fault) {
    int32_t offsets[] = {0, (int32_t)size};
    uint32_t width = pst_nested_width(m->nested);
    pst_nested_column columns[MODEL_TYPES];
    pst_nested_array arrays[MODEL_TYPES];
    pst_nested_rows rows;
    pst_array stored = {.type = width ? PST_FIXED : PST_NESTED,
                        .length = 1,
                        .width = width,
                        .values = data,
                        .values_bytes = (int64_t)size,
                        .offsets = offsets};
    pst_status s = pst_nested_decode(m->nested, &stored, columns, fault);
    if (s)
        return s;
    model_as_arrays(m, columns, arrays);
    s = pst_nested_encode(m->nested, arrays, 1, &rows, fault);
    if (CHECK_EQ(s, PST_OK)) {
        if (CHECK_EQ(rows.data_bytes, size))
            CHECK(size == 0 || memcmp(rows.data, data, size) == 0);
        free(rows.data);
        free(rows.offsets);
    }
    model_drop(m, columns);
    return PST_OK;
}

/* ---- what must hold of any bytes ------------------------------------------------------------- */

/* They are a value whose bytes are these and no others, or PST_CORRUPT; and all readers agree. */
static inline int model_any(const model_types *m, const uint8_t *data, size_t size, uint64_t *rng) {
    uint8_t *own = model_block(data, size);
    pst_nested_fault f[3];
    memset(f, 0, sizeof f);
    uint32_t width = pst_nested_width(m->nested);
    pst_status s = pst_nested_check(m->nested, own, size, &f[0]);
    CHECK(s == PST_OK || s == PST_CORRUPT);
    CHECK_EQ(model_rewrite(m, own, size, rng, &f[1]), s);
    if (width == 0 || size == width)
        CHECK_EQ(model_recode(m, own, size, &f[2]), s);
    if (s) {
        CHECK(f[0].what && f[0].at <= f[0].size && f[0].size == size);
        CHECK(f[0].what == f[1].what && f[0].at == f[1].at);
        CHECK(!f[2].what || (strcmp(f[0].what, f[2].what) == 0 && f[0].at == f[2].at));
    }
    free(own);
    return s == PST_OK;
}

#endif
