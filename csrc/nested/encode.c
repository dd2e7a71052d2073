/* encode.c: Arrow columns to a column of bytes, row by row over the columns' buffers.
 *
 * Their owner may write to the buffers meanwhile: each offset and each validity bit is loaded once.
 */
#include "base/mem.h"
#include "nested/places.h"
#include "nested/scalar.h"
#include "nested/writer.h"

typedef struct encoder {
    const pst_nested *t;
    const pst_nested_array *arrays;
    pst_nested_writer w;
    const char *fault;
} encoder;

static pst_status refuse(encoder *e, const char *why) {
    e->fault = why;
    return PST_WRONG_TYPE;
}

static pst_status no_room(encoder *e) {
    if (e->w.out.limit)
        return PST_NO_MEMORY;
    return refuse(e, "too many bytes for one value (256 MiB) or array (2 GiB)");
}

static inline int is_valid(const pst_nested_array *a, int64_t row) {
    return !a->validity || pst_bit(a->validity, (uint64_t)(a->offset + row));
}

/* Where a row's bytes or elements begin and end: *first <= *last <= most, else 0. */
static inline int load_ends(const pst_nested_array *a, int64_t row, int64_t base, int64_t most,
                            int64_t *first, int64_t *last) {
    const int32_t *at = a->offsets + a->offset + row;
    *first = (int64_t)__atomic_load_n(at, __ATOMIC_RELAXED) - base;
    *last = (int64_t)__atomic_load_n(at + 1, __ATOMIC_RELAXED) - base;
    return *first >= 0 && *last >= *first && *last <= most;
}

/* Writes a number in its canonical form; `from` may be `to`. */
static inline pst_status put_canonical(encoder *e, const pst_shape *s, const uint8_t *from,
                                       uint8_t *to) {
    uint64_t word[2];
    pst_scalar_load(s->op, from, word);
    if (s->op == PST_OP_DECIMAL && !pst_in_limit(s, word))
        return refuse(e, "a decimal of more digits than its type has");
    pst_scalar_canonical(s, word);
    pst_scalar_store(s->op, to, word);
    return PST_OK;
}

static pst_status put_row(encoder *e, int32_t i, int64_t row);

/* Elements [first, first + n) of numbers, none of which is null. */
static pst_status put_numbers(encoder *e, int32_t i, int64_t first, int64_t n) {
    const pst_shape *s = &e->t->shapes[i];
    const pst_nested_array *a = &e->arrays[i];
    size_t width = s->width;
    uint8_t *to = pst_growing_room(&e->w.out, (size_t)n * width);
    if (!to)
        return no_room(e);
    if (n == 0)
        return PST_OK;
    if (s->op == PST_OP_BOOL) {
        for (int64_t k = 0; k < n; k++)
            to[k] = (uint8_t)pst_bit(a->values, (uint64_t)(a->offset + first + k));
        return PST_OK;
    }
    memcpy(to, (const uint8_t *)a->values + (size_t)(a->offset + first) * width, (size_t)n * width);
    if (s->op < PST_OP_FLOAT32)
        return PST_OK;
    pst_status st = PST_OK;
    for (int64_t k = 0; !st && k < n; k++, to += width)
        st = put_canonical(e, s, to, to);
    return st;
}

static inline pst_status put_number(encoder *e, int32_t i, int64_t row) {
    const pst_shape *s = &e->t->shapes[i];
    const pst_nested_array *a = &e->arrays[i];
    int64_t at = a->offset + row;
    uint8_t *to = pst_growing_room(&e->w.out, s->width);
    if (!to)
        return no_room(e);
    if (s->op == PST_OP_BOOL) {
        *to = (uint8_t)pst_bit(a->values, (uint64_t)at);
        return PST_OK;
    }
    return put_canonical(e, s, (const uint8_t *)a->values + at * s->width, to);
}

static inline pst_status put_bytes(encoder *e, int32_t i, int64_t row) {
    const pst_nested_array *a = &e->arrays[i];
    int64_t first, last;
    if (!load_ends(a, row, 0, a->values_bytes, &first, &last))
        return refuse(e, "offsets that lead outside of its bytes");
    size_t size = (size_t)(last - first);
    const uint8_t *bytes = size ? (const uint8_t *)a->values + first : NULL;
    if (e->t->shapes[i].op == PST_OP_STRING && !pst_is_utf8(bytes, size))
        return refuse(e, "a string that is not valid UTF-8");
    return pst_growing_bytes(&e->w.out, bytes, size) ? PST_OK : no_room(e);
}

static pst_status put_fields(encoder *e, int32_t i, int64_t row) {
    uint32_t count = e->t->shapes[i].count;
    size_t bits = e->w.out.size, size = (count + 7) >> 3;
    uint8_t *to = pst_growing_room(&e->w.out, size);
    if (!to)
        return no_room(e);
    memset(to, 0, size);
    int32_t child = i + 1;
    for (uint32_t k = 0; k < count; k++) {
        if (is_valid(&e->arrays[child], row)) {
            pst_set_bit(e->w.out.data + bits, k);
            pst_status s = put_row(e, child, row);
            if (s)
                return s;
        }
        child += e->t->shapes[child].span;
    }
    return PST_OK;
}

/* The head of n values of which some may be null, and their bits, at *bits: value k is row first +
 * k, or that of the k-th key. Returns whether there are nulls; -1: refused. */
static int put_head(encoder *e, const pst_nested_array *values, int64_t first, int64_t n,
                    size_t *bits) {
    pst_growing *out = &e->w.out;
    size_t head = out->size;
    if (!pst_growing_head(out, (uint64_t)n, values->validity != NULL, bits))
        return -1;
    if (!values->validity)
        return 0;
    int64_t there = 0;
    for (int64_t k = 0; k < n; k++)
        if (is_valid(values, first + k)) {
            pst_set_bit(out->data + *bits, (uint64_t)k);
            there++;
        }
    if (there < n)
        return 1;
    /* The same head but for its lowest bit: there are none. */
    out->data[head] &= 0xFE;
    out->size = *bits;
    return 0;
}

static pst_status put_array(encoder *e, int32_t i, int64_t first, int64_t n) {
    size_t bits;
    int nulls = put_head(e, &e->arrays[i], first, n, &bits);
    if (nulls < 0)
        return no_room(e);
    if (!nulls && e->t->shapes[i].width)
        return put_numbers(e, i, first, n);
    for (int64_t k = 0; k < n; k++)
        if (!nulls || pst_bit(e->w.out.data + bits, (uint64_t)k)) {
            pst_status s = put_row(e, i, first + k);
            if (s)
                return s;
        }
    return PST_OK;
}

/* The validity bits of a map's values in the order of its keys; its values are in that of its
 * rows. */
static pst_status order_bits(encoder *e, const pst_nested_open *open, size_t bits) {
    size_t size = (open->n + 7) >> 3;
    uint8_t *rows = pst_malloc(size);
    if (!rows)
        return PST_NO_MEMORY;
    uint8_t *to = e->w.out.data + bits;
    memcpy(rows, to, size);
    memset(to, 0, size);
    for (uint64_t k = 0; k < open->n; k++)
        if (pst_bit(rows, pst_nested_entry_at(&e->w, open, k)))
            pst_set_bit(to, k);
    pst_free(rows);
    return PST_OK;
}

static pst_status put_keys(encoder *e, int32_t i, int64_t first, const pst_nested_open *open) {
    const pst_nested_array *keys = &e->arrays[i + 1];
    uint64_t same;
    for (uint64_t k = 0; k < open->n; k++) {
        int64_t row = first + (int64_t)k;
        if (!is_valid(keys, row))
            return refuse(e, "a map with a null key");
        size_t start = e->w.out.size;
        pst_status s = put_row(e, i + 1, row);
        if (!s)
            s = pst_writer_key(&e->w, &e->t->shapes[i + 1], start);
        if (s)
            return s;
    }
    pst_status s = pst_nested_put_keys(&e->w, i, open, &same);
    return s == PST_WRONG_TYPE ? refuse(e, "a map in which a key is there twice") : s;
}

static pst_status put_map(encoder *e, int32_t i, int64_t first, int64_t n) {
    int32_t value = i + 1 + e->t->shapes[i + 1].span;
    pst_nested_open open = {.first = e->w.n_keys, .n = (uint64_t)n};
    int nulls = put_head(e, &e->arrays[value], first, n, &open.bits);
    if (nulls < 0)
        return no_room(e);
    open.end = e->w.out.size;
    pst_status s = put_keys(e, i, first, &open);
    if (!s && nulls)
        s = order_bits(e, &open, open.bits);
    for (int64_t k = 0; k < n && !s; k++)
        if (!nulls || pst_bit(e->w.out.data + open.bits, (uint64_t)k))
            s = put_row(e, value, first + (int64_t)pst_nested_entry_at(&e->w, &open, (uint64_t)k));
    pst_nested_end_map(&e->w, &open);
    return s;
}

/* Appends a value that is not null. The recursion ends with the tree. */
static pst_status put_row(encoder *e, int32_t i, int64_t row) {
    const pst_shape *s = &e->t->shapes[i];
    const pst_nested_array *a = &e->arrays[i];
    int64_t first, last;
    switch (s->op) {
    case PST_OP_STRING:
    case PST_OP_BINARY:
        return put_bytes(e, i, row);
    case PST_OP_STRUCT:
        return put_fields(e, i, row);
    case PST_OP_ARRAY:
        if (!load_ends(a, row, a->first, e->arrays[i + 1].length, &first, &last))
            return refuse(e, "offsets that lead outside of its elements");
        return put_array(e, i + 1, first, last - first);
    case PST_OP_MAP: {
        int64_t keys = e->arrays[i + 1].length;
        int64_t values = e->arrays[i + 1 + e->t->shapes[i + 1].span].length;
        if (!load_ends(a, row, a->first, keys < values ? keys : values, &first, &last))
            return refuse(e, "offsets that lead outside of its elements");
        return put_map(e, i, first, last - first);
    }
    default:
        return put_number(e, i, row);
    }
}

/* ---- the whole column ------------------------------------------------------------------------ */

/* Whether type `i` lies in structs alone, so that its rows are the column's. */
static int is_by_row(const pst_nested *t, int32_t i) {
    while (i > 0) {
        i = t->shapes[i].parent;
        if (t->shapes[i].op != PST_OP_STRUCT)
            return 0;
    }
    return 1;
}

static int is_long_enough(const pst_nested *t, const pst_nested_array *arrays, int64_t rows) {
    for (int32_t i = 0; i < t->n; i++) {
        const pst_shape *s = &t->shapes[i];
        const pst_nested_array *a = &arrays[i];
        if (a->length < 0 || a->offset < 0 || (rows > a->length && is_by_row(t, i)))
            return 0;
        if (a->length == 0 || s->op >= PST_OP_STRUCT || s->op == PST_OP_STRING ||
            s->op == PST_OP_BINARY)
            continue;
        int64_t end = a->offset + a->length;
        int64_t room = s->op == PST_OP_BOOL ? a->values_bytes * 8 : a->values_bytes / s->width;
        if (end > room)
            return 0;
    }
    return 1;
}

static pst_status put_rows(encoder *e, int64_t rows, int32_t *ends, int64_t *row) {
    pst_growing *out = &e->w.out;
    if (!pst_growing_reserve(out, (size_t)rows * 16 + 64))
        return PST_NO_MEMORY;
    ends[0] = 0;
    while (*row < rows) {
        size_t before = out->size;
        size_t most = before + PST_MAX_BYTES < INT32_MAX ? before + PST_MAX_BYTES : INT32_MAX;
        out->limit = most + PST_VARINT_MAX; /* what a length may ask for and give back */
        if (is_valid(e->arrays, *row)) {
            pst_status s = put_row(e, 0, *row);
            if (s)
                return s;
            if (out->size > most) {
                out->limit = 0;
                return no_room(e);
            }
        }
        ends[++*row] = (int32_t)out->size;
    }
    return PST_OK;
}

pst_status pst_nested_encode(const pst_nested *nested, const pst_nested_array *arrays, int64_t rows,
                             pst_nested_rows *out, pst_nested_fault *fault) {
    encoder e = {.t = nested, .arrays = arrays};
    int64_t row = 0;
    pst_status s;
    int32_t *ends = NULL;
    if (rows < 0 || !is_long_enough(nested, arrays, rows))
        return PST_INVALID;
    pst_nested_writer_open(&e.w, nested, NULL, 0);
    if (nested->width) {
        s = pst_places_encode(nested, arrays, rows, &e.w.out, &row, &e.fault);
    } else {
        ends = pst_malloc(((size_t)rows + 1) * sizeof *ends);
        s = ends ? put_rows(&e, rows, ends, &row) : PST_NO_MEMORY;
    }
    if (s) {
        if (s == PST_WRONG_TYPE)
            *fault = (pst_nested_fault){.what = e.fault, .row = row};
        pst_free(ends);
    } else {
        *out = (pst_nested_rows){ends, e.w.out.data, e.w.out.size};
        e.w.out.heap = NULL;
    }
    pst_nested_writer_close(&e.w);
    return s;
}
