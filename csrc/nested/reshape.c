#include "nested/reshape.h"

#include <string.h>

#include "base/mem.h"
#include "key/schema.h"
#include "nested/types.h"
#include "nested/widen.h"

typedef struct step {
    int32_t from; /* type of the old tree, or -1 */
    uint8_t is_filled;
    pst_widening widening;
} step;

struct pst_reshape {
    pst_nested *takes; /* both NULL: scalars */
    pst_nested *gives;
    pst_nested_type root[2]; /* what it takes and gives */
    pst_nested_column *fill; /* columns of one row, or NULL */
    int32_t n;
    step steps[];
};

static pst_scalar_type scalar_of(const pst_nested_type *t) {
    return (pst_scalar_type){t->type, t->precision, t->scale};
}

int pst_widens(const pst_nested_type *from, const pst_nested_type *to) {
    pst_widening w;
    return from->kind == PST_NESTED_SCALAR && to->kind == PST_NESTED_SCALAR &&
           pst_widening_make(scalar_of(from), scalar_of(to), &w) == PST_OK;
}

/* ---- what becomes of what -------------------------------------------------------------------- */

/* A source must have the place in the old tree that its target has in the new one: then it has as
 * many rows. */
static int is_in_place(const pst_reshape *r, int32_t i) {
    int32_t from = r->steps[i].from, parent = r->gives->shapes[i].parent;
    if (i == 0)
        return from == 0;
    int32_t above = r->steps[parent].from;
    if (from < 0)
        return above < 0 || r->gives->shapes[parent].op == PST_OP_STRUCT;
    if (r->takes->shapes[from].parent != above)
        return 0;
    return r->gives->shapes[parent].op == PST_OP_STRUCT || from - above == i - parent ||
           (r->gives->shapes[parent].op == PST_OP_MAP && !r->gives->shapes[i].is_key &&
            !r->takes->shapes[from].is_key);
}

static pst_status set_steps(pst_reshape *r, const pst_nested_type *from_types, int32_t n_from,
                            const pst_nested_type *to_types, const int32_t *from) {
    for (int32_t i = 0; i < r->n; i++) {
        step *s = &r->steps[i];
        s->from = from[i];
        if (from[i] < -1 || from[i] >= n_from || (r->gives && !is_in_place(r, i)))
            return PST_INVALID;
        if (from[i] < 0)
            continue;
        const pst_nested_type *old = &from_types[from[i]];
        if (old->kind != to_types[i].kind)
            return PST_SCHEMA;
        if (old->kind != PST_NESTED_SCALAR)
            continue;
        pst_status status =
            pst_widening_make(scalar_of(old), scalar_of(&to_types[i]), &s->widening);
        if (status)
            return status;
    }
    return PST_OK;
}

pst_status pst_reshape_create(const pst_nested_type *from_types, int32_t n_from,
                              const pst_nested_type *to_types, int32_t n_to, const int32_t *from,
                              pst_reshape **reshape) {
    if (n_from < 1 || n_to < 1)
        return PST_INVALID;
    pst_reshape *r = pst_calloc(1, sizeof *r + (size_t)n_to * sizeof *r->steps);
    if (!r)
        return PST_NO_MEMORY;
    r->n = n_to;
    r->root[0] = from_types[0];
    r->root[1] = to_types[0];
    pst_status s = PST_OK;
    if (r->root[0].kind == PST_NESTED_SCALAR || r->root[1].kind == PST_NESTED_SCALAR) {
        if (n_from != 1 || n_to != 1 || from[0] != 0)
            s = PST_INVALID;
    } else {
        s = pst_nested_create(from_types, n_from, &r->takes);
        if (!s)
            s = pst_nested_create(to_types, n_to, &r->gives);
    }
    if (!s)
        s = set_steps(r, from_types, n_from, to_types, from);
    /* Scalars that stay as they are have nothing to convert. */
    if (!s && !r->takes && r->steps[0].widening.same)
        s = PST_INVALID;
    if (s) {
        pst_reshape_destroy(r);
        return s;
    }
    *reshape = r;
    return PST_OK;
}

static void free_columns(pst_nested_column *columns, int32_t n) {
    for (int32_t i = 0; columns && i < n; i++) {
        pst_free(columns[i].validity);
        pst_free(columns[i].values);
        pst_free(columns[i].offsets);
    }
    pst_free(columns);
}

void pst_reshape_destroy(pst_reshape *r) {
    if (!r)
        return;
    free_columns(r->fill, r->n);
    pst_nested_destroy(r->takes);
    pst_nested_destroy(r->gives);
    pst_free(r);
}

static pst_value_shape shape_of(const pst_nested *tree, const pst_nested_type *scalar) {
    if (!tree)
        return (pst_value_shape){(pst_type)scalar->type, pst_type_width((pst_type)scalar->type)};
    uint32_t width = pst_nested_width(tree);
    return (pst_value_shape){width ? PST_FIXED : PST_NESTED, width};
}

pst_value_shape pst_reshape_takes(const pst_reshape *r) {
    return shape_of(r->takes, &r->root[0]);
}

pst_value_shape pst_reshape_gives(const pst_reshape *r) {
    return shape_of(r->gives, &r->root[1]);
}

/* ---- what fills fields without a source ------------------------------------------------------ */

/* Of those within structs alone the new column has as many rows as there are values. */
static int is_filled(const pst_reshape *r, int32_t i) {
    if (r->steps[i].from >= 0)
        return 0;
    int32_t parent = r->gives->shapes[i].parent;
    if (r->steps[parent].from < 0)
        return r->steps[parent].is_filled;
    for (; parent >= 0; parent = r->gives->shapes[parent].parent)
        if (r->gives->shapes[parent].op != PST_OP_STRUCT)
            return 0;
    return 1;
}

pst_status pst_reshape_fill(pst_reshape *r, const uint8_t *value, uint32_t size) {
    int32_t ends[2] = {0, (int32_t)size};
    if (!r->gives || size > PST_MAX_BYTES)
        return PST_INVALID;
    pst_value_shape shape = pst_reshape_gives(r);
    if (shape.width && shape.width != size)
        return PST_CORRUPT;
    pst_array stored = {.type = shape.type,
                        .length = 1,
                        .values = value,
                        .offsets = shape.width ? NULL : ends,
                        .width = shape.width,
                        .values_bytes = size};
    pst_nested_column *columns = pst_calloc((size_t)r->n, sizeof *columns);
    if (!columns)
        return PST_NO_MEMORY;
    pst_nested_fault fault;
    pst_status s = pst_nested_decode(r->gives, &stored, columns, &fault);
    if (s) {
        pst_free(columns);
        return s;
    }
    r->fill = columns;
    for (int32_t i = 1; i < r->n; i++)
        r->steps[i].is_filled = (uint8_t)is_filled(r, i);
    return PST_OK;
}

/* Bits of a column of m rows, n times over. */
static void repeat_bits(uint8_t *to, const uint8_t *from, int64_t m, int64_t n) {
    for (int64_t at = 0; at < n * m; at++)
        if (pst_bit(from, (uint64_t)(at % m)))
            pst_set_bit(to, (uint64_t)at);
}

static void repeat_ends(int32_t *to, const int32_t *from, int64_t m, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        for (int64_t j = 0; j < m; j++)
            to[k * m + j + 1] = (int32_t)(k * from[m] + from[j + 1]);
}

/* ---- columns --------------------------------------------------------------------------------- */

/* The new type's columns. Those of one that is null lie over `zeros`; `owned` are to be freed. */
typedef struct columns {
    const pst_reshape *r;
    const pst_nested_column *old;
    pst_nested_array *arrays;
    void **owned;
} columns;

static pst_status add_nulls(const columns *c, int32_t i) {
    const pst_shape *s = &c->r->gives->shapes[i];
    const pst_shape *parent = &c->r->gives->shapes[s->parent];
    pst_nested_array *a = &c->arrays[i];
    a->length = parent->op == PST_OP_STRUCT ? c->arrays[s->parent].length : 0;
    /* Enough for a bitmap, for offsets, and for the widest values. */
    size_t bytes = ((size_t)a->length + 1) * 16;
    c->owned[i] = pst_calloc(1, bytes);
    if (!c->owned[i])
        return PST_NO_MEMORY;
    a->validity = c->owned[i];
    a->values = c->owned[i];
    a->offsets = c->owned[i];
    a->values_bytes = s->op == PST_OP_STRING || s->op == PST_OP_BINARY ? 0 : (int64_t)bytes;
    return PST_OK;
}

/* The filling column n times over: a bitmap, offsets, and values, one after the other. */
static pst_status add_filled(const columns *c, int32_t i, int64_t n) {
    const pst_shape *s = &c->r->gives->shapes[i];
    const pst_nested_column *from = &c->r->fill[i];
    pst_nested_array *a = &c->arrays[i];
    int64_t m = from->length;
    size_t size = (size_t)from->values_bytes;
    if ((m && n > INT32_MAX / m) || (size && (uint64_t)n > INT32_MAX / size))
        return PST_TOO_LARGE;
    size_t bits = ((size_t)(n * m) + 63) / 64 * 8, ends = ((size_t)(n * m) + 2) / 2 * 8;
    uint8_t *block = pst_calloc(1, bits + ends + (size_t)n * size + 8);
    if (!block)
        return PST_NO_MEMORY;
    c->owned[i] = block;
    a->length = n * m;
    a->offsets = (const int32_t *)(const void *)(block + bits);
    a->values = block + bits + ends;
    a->values_bytes = (int64_t)((size_t)n * size);
    if (from->validity) {
        repeat_bits(block, from->validity, m, n);
        a->validity = block;
    }
    if (from->offsets)
        repeat_ends((int32_t *)(void *)(block + bits), from->offsets, m, n);
    if (s->op == PST_OP_BOOL)
        repeat_bits(block + bits + ends, from->values, m, n);
    else
        for (int64_t k = 0; size && k < n; k++)
            memcpy(block + bits + ends + (size_t)k * size, from->values, size);
    return PST_OK;
}

static pst_status add_old(const columns *c, int32_t i) {
    const pst_widening *w = &c->r->steps[i].widening;
    const pst_nested_column *from = &c->old[c->r->steps[i].from];
    pst_nested_array *a = &c->arrays[i];
    *a = (pst_nested_array){.length = from->length,
                            .validity = from->validity,
                            .values = from->values,
                            .values_bytes = (int64_t)from->values_bytes,
                            .offsets = from->offsets};
    if (c->r->gives->shapes[i].op >= PST_OP_STRUCT || w->same)
        return PST_OK;
    size_t bytes = (size_t)from->length * c->r->gives->shapes[i].width;
    c->owned[i] = pst_malloc(bytes);
    if (!c->owned[i])
        return PST_NO_MEMORY;
    a->values = c->owned[i];
    a->values_bytes = (int64_t)bytes;
    return pst_widen(w, from->values, (uint64_t)from->length, c->owned[i]);
}

static pst_status encode_columns(const columns *c, int64_t n, pst_nested_rows *out) {
    pst_nested_fault fault;
    pst_status s = PST_OK;
    for (int32_t i = 0; i < c->r->n && !s; i++) {
        if (c->r->steps[i].from >= 0)
            s = add_old(c, i);
        else
            s = c->r->steps[i].is_filled ? add_filled(c, i, n) : add_nulls(c, i);
    }
    if (!s)
        s = pst_nested_encode(c->r->gives, c->arrays, n, out, &fault);
    /* The bytes were sound, so that only their size is left to refuse. */
    return s == PST_WRONG_TYPE ? PST_TOO_LARGE : s;
}

static pst_status convert_nested(const pst_reshape *r, const pst_array *stored,
                                 pst_nested_rows *out) {
    size_t n = (size_t)r->n, n_old = (size_t)r->takes->n;
    pst_nested_fault fault;
    pst_nested_column *old = pst_calloc(n_old, sizeof *old);
    columns c = {r, old, pst_calloc(n, sizeof *c.arrays), pst_calloc(n, sizeof *c.owned)};
    pst_status s = old && c.arrays && c.owned ? PST_OK : PST_NO_MEMORY;
    if (!s)
        s = pst_nested_decode(r->takes, stored, old, &fault);
    if (!s)
        s = encode_columns(&c, stored->length, out);
    free_columns(old, (int32_t)n_old);
    for (size_t i = 0; c.owned && i < n; i++)
        pst_free(c.owned[i]);
    pst_free(c.arrays);
    pst_free(c.owned);
    return s;
}

pst_status pst_reshape_run(const pst_reshape *r, const uint8_t *data, uint64_t bytes,
                           const int32_t *ends, int64_t n, pst_nested_rows *out) {
    pst_value_shape takes = pst_reshape_takes(r), gives = pst_reshape_gives(r);
    *out = (pst_nested_rows){NULL, NULL, 0};
    if (r->takes) {
        pst_array stored = {.type = takes.type,
                            .length = n,
                            .values = data,
                            .offsets = ends,
                            .width = takes.width,
                            .values_bytes = (int64_t)bytes};
        return convert_nested(r, &stored, out);
    }
    if (bytes / takes.width < (uint64_t)n)
        return PST_CORRUPT;
    out->data_bytes = (uint64_t)n * gives.width;
    out->data = pst_malloc(out->data_bytes);
    if (!out->data)
        return PST_NO_MEMORY;
    pst_status s = pst_widen(&r->steps[0].widening, data, (uint64_t)n, out->data);
    if (s) {
        pst_free(out->data);
        *out = (pst_nested_rows){NULL, NULL, 0};
    }
    return s;
}
