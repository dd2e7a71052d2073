#include "nested/places.h"

#include "base/mem.h"
#include "nested/scalar.h"
#include "nested/writer.h"

/* ---- columns to bytes ------------------------------------------------------------------------ */

typedef struct source {
    const pst_nested_array *root;
    const pst_nested_array *a;
    int32_t parent; /* the bit of the struct that the field is in, -1: that is the root */
} source;

static inline int has_bit(const pst_nested_array *a, int64_t row) {
    return !a->validity || pst_bit(a->validity, (uint64_t)(a->offset + row));
}

/* What lies under a null has no meaning, and stays zero. */
static inline int is_there(const source *from, int64_t row, const uint8_t *to) {
    return has_bit(from->root, row) && has_bit(from->a, row) &&
           (from->parent < 0 || pst_bit(to, (uint64_t)from->parent));
}

/* Fills a field of all rows. Called with constants for `op` and `always`, one loop for each. */
static inline int64_t fill(const source *from, const pst_shape *s, pst_nested_op op, int always,
                           int64_t rows, uint8_t *to, uint32_t stride) {
    const uint8_t *values = from->a->values;
    const int64_t width = s->width;
    for (int64_t row = 0; row < rows; row++, to += stride) {
        uint64_t word[2];
        if (!always && !is_there(from, row, to))
            continue;
        pst_set_bit(to, (uint64_t)s->bit);
        if (op == PST_OP_STRUCT)
            continue;
        if (op == PST_OP_BOOL)
            word[0] = (uint64_t)pst_bit(values, (uint64_t)(from->a->offset + row));
        else
            pst_scalar_load(op, values + (from->a->offset + row) * width, word);
        if (op == PST_OP_DECIMAL && !pst_in_limit(s, word))
            return row;
        if (op == PST_OP_FLOAT64)
            word[0] = pst_canonical_f64(word[0], 0);
        else if (op == PST_OP_FLOAT32)
            word[0] = pst_canonical_f32((uint32_t)word[0], 0);
        pst_scalar_store(op, to + s->at, word);
    }
    return rows;
}

/* Returns how many rows were filled: the next one is refused. */
static int64_t fill_field(const source *from, const pst_shape *s, int64_t rows, uint8_t *to,
                          uint32_t stride) {
    int always = !from->a->validity && !from->root->validity && from->parent < 0;
    switch (s->op) {
#define PST_FILL(OP)                                                                               \
    case OP:                                                                                       \
        return always ? fill(from, s, OP, 1, rows, to, stride)                                     \
                      : fill(from, s, OP, 0, rows, to, stride);
        PST_FILL(PST_OP_BOOL)
        PST_FILL(PST_OP_INT8)
        PST_FILL(PST_OP_INT16)
        PST_FILL(PST_OP_INT32)
        PST_FILL(PST_OP_INT64)
        PST_FILL(PST_OP_FLOAT32)
        PST_FILL(PST_OP_FLOAT64)
        PST_FILL(PST_OP_DECIMAL)
        PST_FILL(PST_OP_STRUCT)
#undef PST_FILL
    default:
        return 0; /* no other has a constant width */
    }
}

pst_status pst_places_encode(const pst_nested *nested, const pst_nested_array *arrays, int64_t rows,
                             pst_growing *out, int64_t *row, const char **fault) {
    uint8_t *to = pst_growing_room(out, (size_t)rows * nested->width);
    if (!to)
        return PST_NO_MEMORY;
    memset(to, 0, (size_t)rows * nested->width);
    for (int32_t i = 1; i < nested->n; i++) {
        const pst_shape *s = &nested->shapes[i];
        source from = {arrays, &arrays[i], nested->shapes[s->parent].bit};
        *row = fill_field(&from, s, rows, to, nested->width);
        if (*row < rows) {
            *fault = "a decimal of more digits than its type has";
            return PST_WRONG_TYPE;
        }
    }
    return PST_OK;
}

/* ---- bytes to columns ------------------------------------------------------------------------ */

typedef struct stored {
    const uint8_t *validity;
    int64_t offset;
    const uint8_t *slots;
    int64_t rows;
    uint32_t stride;
} stored;

/* Validity bits of up to eight rows from `row` on: those of the rows, and of the field itself. */
static inline unsigned there_of(const stored *from, const pst_shape *s, int64_t row, int64_t n) {
    const uint8_t *slot = from->slots + row * from->stride;
    unsigned there = (1u << n) - 1;
    if (s->bit >= 0) {
        there = 0;
        for (int64_t k = 0; k < n; k++, slot += from->stride)
            there |= (unsigned)pst_bit(slot, (uint64_t)s->bit) << k;
    }
    if (from->validity)
        for (int64_t k = 0; k < n; k++)
            if (!pst_bit(from->validity, (uint64_t)(from->offset + row + k)))
                there &= ~(1u << k);
    return there;
}

/* A bitmap only where there are nulls. */
static pst_status take_validity(const stored *from, const pst_shape *s, pst_nested_column *c) {
    int64_t ones = 0;
    if (s->bit < 0 && !from->validity)
        return PST_OK;
    uint8_t *bits = pst_malloc((size_t)(from->rows + 7) >> 3);
    if (!bits)
        return PST_NO_MEMORY;
    for (int64_t row = 0; row < from->rows; row += 8) {
        int64_t n = from->rows - row < 8 ? from->rows - row : 8;
        unsigned there = n == 8 ? there_of(from, s, row, 8) : there_of(from, s, row, n);
        bits[row >> 3] = (uint8_t)there;
        ones += __builtin_popcount(there);
    }
    c->nulls = from->rows - ones;
    if (c->nulls)
        c->validity = bits;
    else
        pst_free(bits);
    return PST_OK;
}

/* A null field is zero; what the bytes of a null struct are is not known. Called with constants for
 * `op` and `always`, one loop for each. */
static inline void take(const stored *from, const pst_shape *s, pst_nested_op op, int always,
                        uint8_t *to) {
    const uint8_t *slot = from->slots;
    const uint32_t width = s->width;
    for (int64_t row = 0; row < from->rows; row++, slot += from->stride) {
        int there = always || pst_bit(from->validity, (uint64_t)(from->offset + row));
        if (op == PST_OP_BOOL)
            to[row >> 3] |= (uint8_t)((there ? slot[s->at] : 0) << (row & 7));
        else if (there)
            pst_scalar_store(op, to + row * width, slot + s->at);
    }
}

static pst_status take_values(const stored *from, const pst_shape *s, pst_nested_column *c) {
    c->values_bytes =
        s->op == PST_OP_BOOL ? (uint64_t)(from->rows + 7) >> 3 : (uint64_t)from->rows * s->width;
    c->values = from->validity || s->op == PST_OP_BOOL ? pst_calloc(c->values_bytes, 1)
                                                       : pst_malloc(c->values_bytes);
    if (!c->values)
        return PST_NO_MEMORY;
    switch (s->op) {
#define PST_TAKE(OP)                                                                               \
    case OP:                                                                                       \
        if (from->validity)                                                                        \
            take(from, s, OP, 0, c->values);                                                       \
        else                                                                                       \
            take(from, s, OP, 1, c->values);                                                       \
        break;
        PST_TAKE(PST_OP_BOOL)
        PST_TAKE(PST_OP_INT8)
        PST_TAKE(PST_OP_INT16)
        PST_TAKE(PST_OP_INT32)
        PST_TAKE(PST_OP_INT64)
        PST_TAKE(PST_OP_FLOAT32)
        PST_TAKE(PST_OP_FLOAT64)
        PST_TAKE(PST_OP_DECIMAL)
#undef PST_TAKE
    default:
        break; /* no other has a constant width */
    }
    return PST_OK;
}

pst_status pst_places_decode(const pst_nested *nested, const uint8_t *validity, int64_t offset,
                             const uint8_t *slots, int64_t rows, pst_nested_column *columns) {
    stored from = {validity, offset, slots, rows, nested->width};
    for (int32_t i = 0; i < nested->n; i++) {
        const pst_shape *s = &nested->shapes[i];
        columns[i].length = rows;
        pst_status status = take_validity(&from, s, &columns[i]);
        if (!status && s->width)
            status = take_values(&from, s, &columns[i]);
        if (status)
            return status;
    }
    return PST_OK;
}
