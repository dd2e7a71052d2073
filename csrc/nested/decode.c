/* decode.c: a column of bytes to Arrow columns, row by row into buffers that grow. */
#include "base/mem.h"
#include "nested/parser.h"
#include "nested/places.h"
#include "nested/writer.h"

/* What becomes the array of one type. */
typedef struct target {
    pst_growing values; /* of booleans bits */
    pst_growing ends;   /* offsets */
    pst_growing bits;   /* validity, from the first null on: until then there are none */
    int64_t length;
    int64_t nulls;
} target;

typedef struct decoder {
    const pst_nested *t;
    target *targets;
    pst_nested_parser p;
} decoder;

static pst_status refuse(decoder *d, const char *why) {
    d->p.fault = why;
    return PST_CORRUPT;
}

/* ---- what an array is made of ---------------------------------------------------------------- */

/* Bit `at` of a bitmap that has `at` bits. */
static inline int add_bit(pst_growing *bits, int64_t at, int bit) {
    if (at % 8 == 0) {
        uint8_t *to = pst_growing_room(bits, 1);
        if (!to)
            return 0;
        *to = 0;
    }
    bits->data[at >> 3] |= (uint8_t)(bit << (at & 7));
    return 1;
}

/* All rows so far are there. */
static int begin_bits(target *to) {
    size_t size = (size_t)(to->length + 7) >> 3;
    uint8_t *bits = pst_growing_room(&to->bits, size);
    if (!bits)
        return 0;
    memset(bits, 0xFF, size);
    if (to->length % 8)
        bits[size - 1] = (uint8_t)(0xFF >> (8 - to->length % 8));
    return 1;
}

static inline int add_row(target *to, int valid) {
    if (!valid && to->nulls++ == 0 && !begin_bits(to))
        return 0;
    if (to->nulls && !add_bit(&to->bits, to->length, valid))
        return 0;
    to->length++;
    return 1;
}

/* An offset behind a row. */
static inline pst_status add_end(decoder *d, target *to, uint64_t end) {
    if (end > INT32_MAX)
        return refuse(d, "too much for one array: decode them in parts");
    uint8_t *at = pst_growing_room(&to->ends, 4);
    if (!at)
        return PST_NO_MEMORY;
    pst_put_u32(at, (uint32_t)end);
    return PST_OK;
}

static pst_status add_null(decoder *d, int32_t i) {
    const pst_shape *s = &d->t->shapes[i];
    target *to = &d->targets[i];
    int64_t at = to->length;
    if (!add_row(to, 0))
        return PST_NO_MEMORY;
    if (s->op == PST_OP_BOOL)
        return add_bit(&to->values, at, 0) ? PST_OK : PST_NO_MEMORY;
    if (s->width) {
        uint8_t *value = pst_growing_room(&to->values, s->width);
        if (!value)
            return PST_NO_MEMORY;
        memset(value, 0, s->width);
        return PST_OK;
    }
    if (s->op != PST_OP_STRUCT)
        return add_end(
            d, to, s->op < PST_OP_STRUCT ? to->values.size : (uint64_t)d->targets[i + 1].length);
    int32_t child = i + 1;
    for (uint32_t k = 0; k < s->count; k++) {
        pst_status status = add_null(d, child);
        if (status)
            return status;
        child += d->t->shapes[child].span;
    }
    return PST_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static inline pst_status add_scalar(decoder *d, int32_t i, const uint8_t *at, size_t size) {
    const pst_shape *s = &d->t->shapes[i];
    target *to = &d->targets[i];
    if (s->op == PST_OP_BOOL)
        return add_bit(&to->values, to->length, at[0]) && add_row(to, 1) ? PST_OK : PST_NO_MEMORY;
    uint8_t *value = pst_growing_room(&to->values, size);
    if (!value || !add_row(to, 1))
        return PST_NO_MEMORY;
    if (s->width) {
        pst_scalar_store(s->op, value, at);
        return PST_OK;
    }
    pst_copy_short(value, at, size);
    return add_end(d, to, to->values.size);
}

/* n numbers, none of which is null, and no booleans. */
static pst_status take_numbers(decoder *d, int32_t i, uint64_t n) {
    const pst_shape *s = &d->t->shapes[i];
    target *to = &d->targets[i];
    const uint8_t *from = d->p.at;
    uint64_t there = pst_parser_left(&d->p) / s->width;
    if (s->op >= PST_OP_FLOAT32) {
        for (uint64_t k = 0; k < n && k < there; k++)
            if (!pst_parser_fixed(&d->p, s))
                return PST_CORRUPT;
    } else {
        d->p.at += s->width * (n < there ? n : there);
    }
    if (there < n)
        return refuse(d, "cut off");
    uint8_t *values = pst_growing_room(&to->values, n * s->width);
    if (!values)
        return PST_NO_MEMORY;
    if (n)
        memcpy(values, from, n * s->width);
    if (!to->nulls) {
        to->length += (int64_t)n;
        return PST_OK;
    }
    for (uint64_t k = 0; k < n; k++)
        if (!add_row(to, 1))
            return PST_NO_MEMORY;
    return PST_OK;
}

static pst_status take_row(decoder *d, int32_t i);

static pst_status take_fields(decoder *d, int32_t i) {
    uint32_t count = d->t->shapes[i].count;
    const uint8_t *bits = pst_parser_bits(&d->p, count);
    if (!bits)
        return PST_CORRUPT;
    if (!add_row(&d->targets[i], 1))
        return PST_NO_MEMORY;
    int32_t child = i + 1;
    for (uint32_t k = 0; k < count; k++) {
        pst_status s = pst_bit(bits, k) ? take_row(d, child) : add_null(d, child);
        if (s)
            return s;
        child += d->t->shapes[child].span;
    }
    return PST_OK;
}

static pst_status take_keys(decoder *d, int32_t i, uint64_t n) {
    const pst_shape *s = &d->t->shapes[i];
    pst_nested_key key = {.size = 0};
    for (uint64_t k = 0; k < n; k++) {
        uint64_t size;
        const uint8_t *at = pst_parser_scalar(&d->p, s, &size);
        if (!at || !pst_parser_ascends(&d->p, s, at, size, k > 0, &key))
            return PST_CORRUPT;
        pst_status status = add_scalar(d, i, at, size);
        if (status)
            return status;
    }
    return PST_OK;
}

/* An array or a map. */
static pst_status take_rows(decoder *d, int32_t i) {
    uint64_t n;
    const uint8_t *bits;
    int32_t child = i + 1;
    pst_status s = PST_OK;
    if (!pst_parser_head(&d->p, &n, &bits))
        return PST_CORRUPT;
    if (d->t->shapes[i].op == PST_OP_MAP)
        s = take_keys(d, child++, n);
    const pst_shape *shape = &d->t->shapes[child];
    if (!s && !bits && shape->width && shape->op != PST_OP_BOOL)
        s = take_numbers(d, child, n);
    else
        for (uint64_t k = 0; k < n && !s; k++)
            s = !bits || pst_bit(bits, k) ? take_row(d, child) : add_null(d, child);
    if (s)
        return s;
    if (!add_row(&d->targets[i], 1))
        return PST_NO_MEMORY;
    return add_end(d, &d->targets[i], (uint64_t)d->targets[i + 1].length);
}

/* Appends a value that is not null to the targets of its tree. The recursion ends with the tree. */
static pst_status take_row(decoder *d, int32_t i) {
    const pst_shape *s = &d->t->shapes[i];
    uint64_t size;
    if (s->op == PST_OP_STRUCT)
        return take_fields(d, i);
    if (s->op > PST_OP_STRUCT)
        return take_rows(d, i);
    const uint8_t *at = pst_parser_scalar(&d->p, s, &size);
    return at ? add_scalar(d, i, at, size) : PST_CORRUPT;
}

/* ---- the whole column ------------------------------------------------------------------------ */

static pst_status take_slots(decoder *d, const pst_array *stored, int64_t *row,
                             pst_nested_column *columns) {
    uint32_t width = d->t->width;
    const uint8_t *slots = stored->values;
    if (stored->length)
        slots += stored->offset * width;
    for (; *row < stored->length; ++*row) {
        if (stored->validity && !pst_bit(stored->validity, (uint64_t)(stored->offset + *row)))
            continue;
        pst_parser_over(&d->p, d->t, slots + *row * width, width);
        d->p.fault = pst_places_fault(d->t, d->p.data);
        if (d->p.fault)
            return PST_CORRUPT;
    }
    return pst_places_decode(d->t, stored->validity, stored->offset, slots, stored->length,
                             columns);
}

/* Offsets begin with 0. What has as many rows as the column is given room for them. */
static pst_status begin_targets(decoder *d, int64_t rows) {
    for (int32_t i = 0; i < d->t->n; i++) {
        const pst_shape *s = &d->t->shapes[i];
        target *to = &d->targets[i];
        to->values.limit = to->ends.limit = to->bits.limit = SIZE_MAX;
        int by_row = i == 0 || (s->parent == 0 && d->t->shapes[0].op == PST_OP_STRUCT);
        size_t expected = by_row ? (size_t)rows : 0;
        if (s->op < PST_OP_STRUCT && !pst_growing_reserve(&to->values, expected * s->width))
            return PST_NO_MEMORY;
        if (s->width || s->op == PST_OP_STRUCT)
            continue;
        if (!pst_growing_reserve(&to->ends, 4 * (expected + 1)))
            return PST_NO_MEMORY;
        pst_status status = add_end(d, to, 0);
        if (status)
            return status;
    }
    return PST_OK;
}

static pst_status take_column(decoder *d, const pst_array *stored, int64_t *row) {
    pst_status s = PST_OK;
    for (; *row < stored->length && !s; ++*row) {
        int64_t at = stored->offset + *row;
        if (stored->validity && !pst_bit(stored->validity, (uint64_t)at)) {
            s = add_null(d, 0);
        } else {
            int64_t first = __atomic_load_n(&stored->offsets[at], __ATOMIC_RELAXED);
            int64_t last = __atomic_load_n(&stored->offsets[at + 1], __ATOMIC_RELAXED);
            if (first < 0 || last < first || last > stored->values_bytes) {
                pst_parser_over(&d->p, d->t, NULL, 0);
                return refuse(d, "outside of the column's buffer");
            }
            pst_parser_over(&d->p, d->t, last ? (const uint8_t *)stored->values + first : NULL,
                            (size_t)(last - first));
            s = take_row(d, 0);
            if (!s)
                s = pst_nested_parser_finish(&d->p);
        }
        if (s)
            return s;
    }
    return s;
}

/* Hands the buffers over. */
static void give(const decoder *d, pst_nested_column *columns) {
    for (int32_t i = 0; i < d->t->n; i++) {
        const target *from = &d->targets[i];
        columns[i] = (pst_nested_column){.length = from->length,
                                         .nulls = from->nulls,
                                         .validity = from->bits.heap,
                                         .values = from->values.heap,
                                         .offsets = (int32_t *)(void *)from->ends.heap,
                                         .values_bytes = from->values.size};
    }
}

static void drop(const pst_nested *t, pst_nested_column *columns) {
    for (int32_t i = 0; i < t->n; i++) {
        pst_free(columns[i].validity);
        pst_free(columns[i].values);
        pst_free(columns[i].offsets);
        columns[i] = (pst_nested_column){0};
    }
}

static int is_of(const pst_nested *t, const pst_array *stored) {
    if (stored->length < 0 || stored->offset < 0)
        return 0;
    if (!t->width)
        return stored->type == PST_NESTED;
    return stored->type == PST_FIXED && stored->width == t->width &&
           stored->offset + stored->length <= stored->values_bytes / t->width;
}

pst_status pst_nested_decode(const pst_nested *nested, const pst_array *stored,
                             pst_nested_column *columns, pst_nested_fault *fault) {
    decoder d = {.t = nested};
    int64_t row = 0;
    pst_status s;
    if (!is_of(nested, stored))
        return PST_INVALID;
    pst_parser_over(&d.p, nested, NULL, 0);
    memset(columns, 0, (size_t)nested->n * sizeof *columns);
    if (nested->width) {
        s = take_slots(&d, stored, &row, columns);
    } else {
        d.targets = pst_calloc((size_t)nested->n, sizeof *d.targets);
        if (!d.targets)
            return PST_NO_MEMORY;
        s = begin_targets(&d, stored->length);
        if (!s)
            s = take_column(&d, stored, &row);
        give(&d, columns);
        pst_free(d.targets);
    }
    if (s) {
        drop(nested, columns);
        pst_nested_parser_fault(&d.p, fault);
        fault->row = row;
    }
    return s;
}
